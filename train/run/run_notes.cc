#include "forebay/train/run/run_notes.h"

#include <string>

#include "fmt/format.h"

namespace forebay {

void NoteStore(TensorStore& store, LoggedObserver& observer) {
  for (const std::string& note : store.TakeNotes()) observer.OnNote("store: " + note);
}

void NoteMachine(const PreparedRun& run, RunSession& session, LoggedObserver& observer) {
  const std::string kernel = session.compute().kernel_identity();
  const int of_update = run.options.update_threads;
  observer.OnNote(fmt::format("compute: {}, {} threads{}", kernel, run.options.threads,
                              of_update > 0 ? fmt::format(", {} for updates", of_update) : ""));
  if (!run.plan.why_no_gpu.empty()) observer.OnNote("no GPU: " + run.plan.why_no_gpu);
  observer.OnNote("disk: " + run.engine_line);
  const std::string& space = session.store().space_note();
  if (!space.empty()) observer.OnNote("space: " + space);
  NoteStore(session.store(), observer);
  if (!run.stripes_line.empty()) {
    observer.OnNote("stripes: " + run.stripes_line);
  }
  observer.OnNote(DescribePages(run.budget->pages()));
  const std::string not_registered = run.engine->RegistrationNote();
  if (!not_registered.empty()) observer.OnNote(not_registered);
  const Json& committed = session.store().committed().trainer;
  if (committed.contains("kernel") && committed["kernel"] != kernel) {
    observer.OnNote(
        fmt::format("the steps so far were computed with '{}', these with '{}': results stay "
                    "correct, but differ in the last bits from an uninterrupted run",
                    committed["kernel"].get<std::string>(), kernel));
  }
}

}  // namespace forebay
