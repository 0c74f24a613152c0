#include "forebay/tools/swap_bench/fio_check.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "absl/strings/ascii.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/base/process/child_process.h"
#include "forebay/memory/page_tally.h"
#include "forebay/tools/stop_signal.h"

namespace forebay {
namespace {

// Runs fio and takes what it prints; its errors go to our stderr. It writes to a disk: whatever
// ends this process ends it too. EnvironmentError, InterruptedError.
absl::StatusOr<FioOutcome> RunFio(const std::vector<std::string>& arguments) {
  const std::string program = FindInPath("fio");
  if (program.empty()) return EnvironmentError("there is no program fio in PATH");
  std::vector<std::string> command = {program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<ChildProcess> fio,
      ChildProcess::Start(command, ChildStreams::kOurs, AtOurDeath::kIsKilled));
  fio->EndInput();
  FioOutcome outcome;
  outcome.output = fio->ReadAll(StopRequested);
  // A stop that only this process was asked for is passed on.
  if (StopRequested()) fio->Terminate();
  outcome.exit_code = fio->Wait();
  if (StopRequested() || EndedByStopSignal(outcome.exit_code)) {
    return InterruptedError("stopped on request");
  }
  return outcome;
}

// Whether reserved huge pages of 2 MiB for so much are free.
bool HugePagesFree(int64_t bytes) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", 4096);
  return text.ok() && std::atoll(text->c_str()) * kHugePageBytes >= bytes + kHugePageBytes;
}

const char* FioEngine(EngineKind engine) {
  if (engine == EngineKind::kIoUring) return "io_uring";
  return engine == EngineKind::kLibaio ? "libaio" : "psync";
}

}  // namespace

absl::Status CheckFioInstalled() {
  if (FindInPath("fio").empty()) {
    return EnvironmentError(
        "--fio needs the program fio, which is not in PATH. Install it (apt-get install fio), or "
        "leave --fio out");
  }
  FOREBAY_ASSIGN_OR_RETURN(const FioOutcome outcome, RunFio({"--version"}));
  if (outcome.exit_code == 0) return absl::OkStatus();
  return EnvironmentError(fmt::format(
      "--fio: 'fio --version' ended with exit code {}. Install fio anew (apt-get install "
      "--reinstall fio), or leave --fio out",
      outcome.exit_code));
}

std::vector<std::string> FioArguments(const Job& job, const LoadKind& load, EngineKind engine,
                                      const std::string& path, int64_t size_bytes,
                                      bool huge_pages) {
  const bool random = job.pattern == AccessPattern::kRandom;
  std::string rw = load.op == LoadOp::kRead ? "read" : load.op == LoadOp::kWrite ? "write" : "rw";
  if (random) rw = "rand" + rw;
  // A synchronous engine has as many in flight as it has jobs.
  const bool synchronous = engine == EngineKind::kThreads;
  const int jobs = synchronous ? job.depth : job.threads;
  const int depth = synchronous ? 1 : std::max(1, job.depth / job.threads);
  std::vector<std::string> arguments = {
      "--name=swap-bench",
      "--filename=" + path,
      "--allow_file_create=0",
      "--direct=1",
      "--thread",
      "--group_reporting",
      "--time_based",
      "--output-format=json",
      "--rw=" + rw,
      fmt::format("--ioengine={}", FioEngine(engine)),
      fmt::format("--bs={}", job.block_bytes),
      fmt::format("--iodepth={}", depth),
      fmt::format("--numjobs={}", jobs),
      fmt::format("--size={}", size_bytes / jobs),
      fmt::format("--offset_increment={}", size_bytes / jobs),
      fmt::format("--runtime={}ms", static_cast<int64_t>(job.seconds * 1000)),
      fmt::format("--ramp_time={}ms", static_cast<int64_t>(job.warmup_s * 1000))};
  if (load.op == LoadOp::kMixed)
    arguments.push_back(fmt::format("--rwmixread={}", load.read_percent));
  // Buffers are written as they are, as swap-bench does without --verify; fio else changes a part
  // of each before every write.
  arguments.push_back("--scramble_buffers=0");
  if (engine == EngineKind::kIoUring) arguments.push_back("--registerfiles");
  if (engine == EngineKind::kIoUring && job.fixed) arguments.push_back("--fixedbufs");
  if (huge_pages) arguments.push_back("--mem=mmaphuge");
  return arguments;
}

absl::StatusOr<double> FioBytesPerSecond(const std::string& output) {
  // Notes may stand before the document.
  const size_t begin = output.find('{');
  FOREBAY_ASSIGN_OR_RETURN(
      const Json json,
      ParseJson(begin == std::string::npos ? "" : std::string_view(output).substr(begin),
                "the output of fio"));
  double sum = 0;
  try {
    for (const char* direction : {"read", "write"}) {
      sum += json.at("jobs").at(0).at(direction).at("bw_bytes").get<double>();
    }
  } catch (const Json::exception&) {
    return EnvironmentError("the output of fio has no bandwidth; is it older than 3.0?");
  }
  return sum;
}

absl::StatusOr<FioOutcome> RunInPages(bool huge_pages,
                                      const std::function<absl::StatusOr<FioOutcome>(bool)>& run) {
  FOREBAY_ASSIGN_OR_RETURN(FioOutcome outcome, run(huge_pages));
  if (outcome.exit_code != 0 && huge_pages) {
    FOREBAY_ASSIGN_OR_RETURN(outcome, run(false));
    huge_pages = false;
  }
  outcome.huge_pages = huge_pages;
  if (outcome.exit_code == 0) return outcome;
  // fio prints its errors before its JSON document, on the same stream.
  constexpr size_t kMostMessage = 500;
  std::string message = outcome.output.substr(
      0, std::min({outcome.output.find('{'), outcome.output.size(), kMostMessage}));
  absl::StripAsciiWhitespace(&message);
  if (message.empty()) message = "it does not say why";
  return EnvironmentError(
      fmt::format("fio ended with exit code {}: {}. Leave --fio out to measure without it",
                  outcome.exit_code, message));
}

absl::Status FioCheck::Run(const BenchCell& cell) {
  const EngineKind engine = session_.EngineOf(cell.targets);
  if (cell.targets.size() > 1 || engine == EngineKind::kBuffered) return absl::OkStatus();
  const BenchTarget& target = *session_.targets()[static_cast<size_t>(cell.targets[0])];
  const auto run = [&](bool huge_pages) {
    return RunFio(FioArguments(job_, cell.load, engine, target.file.PathForOthers(),
                               target.file.size_bytes(), huge_pages));
  };
  const bool huge = job_.pages != BenchPages::kBase && HugePagesFree(job_.block_bytes * job_.depth);
  FOREBAY_ASSIGN_OR_RETURN(const FioOutcome outcome, RunInPages(huge, run));
  FOREBAY_ASSIGN_OR_RETURN(const double bytes_per_s, FioBytesPerSecond(outcome.output));
  const std::string pages = outcome.huge_pages ? "reserved huge pages" : "4 KiB pages";
  auto found = std::ranges::find_if(measured_, [&](const Measured& measured) {
    return measured.cell.load == cell.load && measured.cell.targets == cell.targets;
  });
  if (found == measured_.end()) {
    measured_.push_back({cell, {}, pages});
    found = measured_.end() - 1;
  }
  // Pages may be taken by others between two repeats.
  if (found->pages != pages) found->pages = "pages of both sizes";
  found->gbps.push_back(bytes_per_s / 1e9);
  return absl::OkStatus();
}

void FioCheck::AddTo(const std::vector<BenchCell>& cells, std::vector<CellResult>& runs) const {
  for (const Measured& measured : measured_) {
    for (size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].load == measured.cell.load && cells[i].targets == measured.cell.targets) {
        runs[i].fio = {SpreadOf(measured.gbps), measured.pages};
      }
    }
  }
}

std::string FioText(const std::vector<CellResult>& runs) {
  std::string text;
  for (const CellResult& run : runs) {
    if (!run.fio.has_value()) continue;
    const Spread& gbps = run.fio->gbps;
    const std::string spread =
        gbps.is_of_several() ? fmt::format(" ({:.2f}..{:.2f})", gbps.min, gbps.max) : "";
    text += fmt::format("fio {} {}: {:.2f} GB/s{}, in {}", LoadName(run.key.load), run.key.device,
                        gbps.median, spread, run.fio->pages);
    const std::optional<double> ratio = run.fio_ratio();
    text += ratio.has_value() ? fmt::format("; swap-bench has {:.3f} of it\n", *ratio) : "\n";
  }
  return text;
}

}  // namespace forebay
