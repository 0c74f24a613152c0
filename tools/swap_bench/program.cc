#include "forebay/tools/swap_bench/program.h"

#include "forebay/tools/cmd_version.h"

namespace forebay {
namespace {

std::unique_ptr<Command> MakeBenchVersionCommand() {
  return std::make_unique<VersionCommand>("swap-bench");
}

std::vector<CommandEntry> SwapBenchCommands() {
  return {
      {"run", "read, write and mixed bandwidth, latency and CPU cost of folders on disks",
       "swap-bench run /nvme --op=read --bs=1M --qd=32 --time=30s", MakeBenchRunCommand},
      {"probe", "engines, direct I/O, huge pages and limits, without moving much",
       "swap-bench probe /nvme", MakeBenchProbeCommand},
      {"sweep", "the best block size, bytes in flight and engine",
       "swap-bench sweep /nvme --budget=3m --plot=sweep.svg", MakeBenchSweepCommand},
      {"tune", "engine settings for these disks, as an io.json that forebay reads",
       "swap-bench tune /nvme --out=io.json", MakeBenchTuneCommand},
      {"step", "how long a training step of a model takes, by replaying its transfers",
       "swap-bench step /nvme --params=13B --layout=bf16", MakeBenchStepCommand},
      {"compare", "two results files beside each other",
       "swap-bench compare before.json after.json --fail_below=5%", MakeBenchCompareCommand},
      {"version", "the version of swap-bench", "swap-bench version", MakeBenchVersionCommand},
  };
}

constexpr char kExitCodes[] =
    "Exit codes:\n"
    "  0 done   1 internal error (please report)   2 command line\n"
    "  3 no such folder, or no results file   4 does not fit (disk or memory; nothing was "
    "measured)\n"
    "  5 storage I/O failed   6 out of memory   8 --verify found blocks that are not as written\n"
    "  9 environment (an engine that --engine_strict demands, fio)   10 compare: slower than "
    "allowed\n"
    "  75 stopped on request   130 ended at once by a second signal\n";

}  // namespace

const Program& SwapBenchProgram() {
  static const Program program = {
      .name = "swap-bench",
      .about =
          "swap-bench tells what a disk can do for training from NVMe: large direct transfers, "
          "every "
          "byte checked.\n\n"
          "Usage: swap-bench DIR            measures the disk of DIR, in about a minute\n"
          "       swap-bench COMMAND [FLAGS]\n\n"
          "It works in a file of its own without a name: nothing is overwritten, and nothing is "
          "left "
          "behind (but by 'step' when it is killed: a folder swap-bench-step-...).\n",
      .commands = SwapBenchCommands(),
      .formats = {"table", "json", "csv"},
      .exit_codes = kExitCodes,
      .out_of_memory_advice = "use a smaller --qd or --bs",
      .default_command = "run",
  };
  return program;
}

}  // namespace forebay
