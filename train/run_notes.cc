#include "forebay/train/run_notes.h"

#include <string>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::Status NoteMachine(const PreparedRun& run, RunSession& session, LoggedObserver& observer) {
  const std::string kernel = session.decoder().context().kernel_identity();
  const int of_update = run.options.update_threads;
  FOREBAY_RETURN_IF_ERROR(
      observer.Note(fmt::format("compute: {}, {} threads{}", kernel, run.options.threads,
                                of_update > 0 ? fmt::format(", {} for updates", of_update) : "")));
  FOREBAY_RETURN_IF_ERROR(observer.Note("disk: " + run.engine_line));
  const std::string& space = session.store().space_note();
  if (!space.empty()) FOREBAY_RETURN_IF_ERROR(observer.Note("space: " + space));
  for (const std::string& note : session.store().notes()) {
    FOREBAY_RETURN_IF_ERROR(observer.Note("store: " + note));
  }
  if (!run.stripes_line.empty()) {
    FOREBAY_RETURN_IF_ERROR(observer.Note("stripes: " + run.stripes_line));
  }
  FOREBAY_RETURN_IF_ERROR(observer.Note(DescribePages(run.budget->pages())));
  const std::string not_registered = run.engine->RegistrationNote();
  if (!not_registered.empty()) FOREBAY_RETURN_IF_ERROR(observer.Note(not_registered));
  const Json& committed = session.store().committed().trainer;
  if (committed.contains("kernel") && committed["kernel"] != kernel) {
    FOREBAY_RETURN_IF_ERROR(observer.Note(
        fmt::format("the steps so far were computed with '{}', these with '{}': results stay "
                    "correct, but differ in the last bits from an uninterrupted run",
                    committed["kernel"].get<std::string>(), kernel)));
  }
  return absl::OkStatus();
}

}  // namespace forebay
