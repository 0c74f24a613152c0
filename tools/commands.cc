#include "forebay/tools/commands.h"

#include "forebay/doctor/examine.h"
#include "forebay/tools/cmd_version.h"

namespace forebay {
namespace {

std::unique_ptr<Command> MakeVersionCommand() {
  return std::make_unique<VersionCommand>("forebay",
                                          [] { return DescribeLibraries(AskGpuLibraries()); });
}

std::vector<CommandEntry> ForebayCommands() {
  return {
      {"train", "fine-tune a model, with its state on NVMe inside a memory budget",
       "forebay train --model=models/smollm2 --data=book.txt --out=runs/book --ram=1GiB --steps=60",
       MakeTrainCommand},
      {"data", "show, check and pack training data", "", nullptr, RunDataCommand},
      {"plan", "what a run would need: bytes per tier, fits or not",
       "forebay plan models/smollm2 --ram=1GiB --batch=4 --seq=256", MakePlanCommand},
      {"generate", "continue a prompt or answer a chat message",
       "forebay generate --model=runs/book/model --prompt='In the beginning' --max_tokens=50",
       MakeGenerateCommand},
      {"eval", "loss and perplexity of a model on text",
       "forebay eval --model=runs/book/model --data=held_out.txt", MakeEvalCommand},
      {"inspect", "tensors, shapes, dtypes, bytes and digest of a model folder or a run",
       "forebay inspect runs/book --hash", MakeInspectCommand},
      {"report", "what runs did, beside their plans: a page with charts, text, CSV, TensorBoard",
       "forebay report runs/book", MakeReportCommand},
      {"export", "the committed step of a run as a Hugging Face folder",
       "forebay export runs/book --out=models/book", MakeExportCommand},
      {"init", "a model with random weights from a config.json",
       "forebay init --config=config.json --out=models/fresh --seed=1", MakeInitCommand},
      {"clean", "give the swap space of a run back", "forebay clean runs/book", MakeCleanCommand},
      {"doctor", "what this machine has and lacks for training, with the fix of each thing",
       "forebay doctor --dir=/nvme", MakeDoctorCommand},
      {"version", "the version of forebay", "forebay version", MakeVersionCommand},
  };
}

constexpr char kExitCodes[] =
    "Exit codes:\n"
    "  0 done   1 internal error (please report)   2 command line or configuration\n"
    "  3 model or data invalid   4 does not fit (memory or disk; nothing was started)\n"
    "  5 storage I/O failed   6 out of memory   7 numerical failure\n"
    "  8 checkpoint or store corrupt or incompatible   9 environment (missing program, run in "
    "use; doctor found what fails)\n"
    "  75 stopped on request, resumable   130 ended at once by a second signal\n";

}  // namespace

const Program& ForebayProgram() {
  static const Program program = {
      .name = "forebay",
      .about =
          "forebay trains language models whose state is larger than RAM: weights and optimizer "
          "state live on NVMe\n"
          "and stream through memory layer by layer.\n\nUsage: forebay COMMAND [FLAGS]\n",
      .commands = ForebayCommands(),
      .formats = {"text", "json"},
      .exit_codes = kExitCodes,
      .out_of_memory_advice = "use a smaller --ram",
  };
  return program;
}

}  // namespace forebay
