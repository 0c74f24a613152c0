#include "forebay/tools/swap_bench/job_flags.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/tools/swap_bench/flag_reader.h"

namespace forebay {
namespace {

// A steady state is judged by ten points.
constexpr double kLeastWindowS = 0.5;

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

void ReadFlush(FlagReader& reader, const std::string& text, Job& job) {
  if (text.starts_with("every=")) {
    job.flush = FlushRule::kEveryN;
    return reader.TakeNumber("flush", text.substr(6), job.flush_every);
  }
  reader.TakeWord<FlushRule>(
      "flush", text,
      {{"none", FlushRule::kNone}, {"step", FlushRule::kAtEnd}, {"every=N", FlushRule::kEveryN}},
      job.flush);
}

void ReadFill(FlagReader& reader, const std::string& text, Job& job) {
  if (text == "random") return;
  if (text.starts_with("compressible=")) {
    return reader.TakeNumber("fill", text.substr(13), job.compressible_percent);
  }
  reader.Problem("fill", fmt::format("'{}'; allowed: random or compressible=PERCENT", text));
}

}  // namespace

const std::vector<JobFlag>& JobFlagTable() {
  static const std::vector<JobFlag> table = {
      {"op", "OP,...", "read,write,mixed", "read, write, mixed or mixed=PERCENT of reads"},
      {"bs", "SIZE", "1M", "bytes of one operation, a multiple of 4096", false},
      {"qd", "N", "32", "operations in flight on each folder", false},
      {"inflight", "SIZE", "", "bytes in flight on each folder, instead of --qd", false},
      {"engine", "auto|io_uring|libaio|threads|buffered", "auto",
       "how bytes are moved; what cannot be used here steps down, and the verdict says why"},
      {"engine_strict", "switch", "", "stop instead of stepping down to a lesser engine"},
      {"size", "SIZE", "4G", "of the file that is made on each folder"},
      {"time", "TIME", "3s", "measured, for each load and repeat", false},
      {"warmup", "TIME", "500ms", "before that, not measured", false},
      {"steady", "bw:X%/TIME", "",
       "end a pass when the bandwidth changed by less than X % over TIME (500ms to --time); --time "
       "is the cap",
       false},
      {"repeats", "N", "3", "of every load, interleaved; median, least and most are printed",
       false},
      {"threads", "N", "1", "that submit, each with an engine and a share of what is in flight"},
      {"fixed", "on|off", "on", "register the buffers with io_uring"},
      {"pages", "thp|huge|4k", "thp",
       "of the buffers: transparent huge pages, reserved ones (vm.nr_hugepages) or 4 KiB"},
      {"numa", "auto|N", "auto", "node of the buffers; auto: that of the disk"},
      {"pattern", "seq|rand", "seq", "order of the offsets"},
      {"verify", "switch", "", "write checksummed blocks and read every one back", false},
      {"flush", "none|step|every=N", "step",
       "fdatasync: never, behind each pass, or behind each pass and every N writes", false},
      {"fill", "random|compressible=PERCENT", "random", "what the blocks hold"},
      {"percentiles", "X,...", "50,99,99.9", "of the latency, in the JSON and CSV", false},
      {"seed", "N", "1", "of random offsets and contents"},
  };
  return table;
}

JobTarget ParseTarget(std::string_view text) {
  // A folder may have a colon in its name.
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || IsDirectory(std::string(text))) {
    return {std::string(text), 0};
  }
  const std::optional<double> weight = Whole<double>(text.substr(colon + 1));
  if (!weight.has_value()) return {std::string(text), 0};
  // Not above 0: refused, in the words of who wrote it.
  return {std::string(text.substr(0, colon)), *weight > 0 ? *weight : -1};
}

absl::StatusOr<std::vector<LoadKind>> ParseLoads(std::string_view text) {
  std::vector<LoadKind> loads;
  for (const std::string& part : Split(text, ',')) {
    LoadKind load;
    if (part == "read") {
      load = {LoadOp::kRead, 100};
    } else if (part == "write") {
      load = {LoadOp::kWrite, 0};
    } else if (part == "mixed") {
      load = {LoadOp::kMixed, 50};
    } else {
      const std::optional<int> percent =
          part.starts_with("mixed=") ? Whole<int>(std::string_view(part).substr(6)) : std::nullopt;
      if (!percent.has_value() || *percent < 1 || *percent > 99) {
        return UsageError(fmt::format(
            "'{}'; allowed: read, write, mixed or mixed=PERCENT (1 to 99), with commas{}", part,
            part == "step" ? ". Whole training steps are 'swap-bench step'" : ""));
      }
      load = {LoadOp::kMixed, *percent};
    }
    if (std::ranges::find(loads, load) == loads.end()) loads.push_back(load);
  }
  return loads;
}

absl::StatusOr<double> ParseShare(std::string_view text) {
  const bool percent = text.ends_with("%");
  const std::optional<double> value =
      Whole<double>(percent ? text.substr(0, text.size() - 1) : text);
  const double share = value.value_or(-1) / (percent ? 100 : 1);
  if (!(share >= 0 && share <= 1)) {
    return UsageError(fmt::format("'{}' is no share; write one such as 5% or 0.05", text));
  }
  return share;
}

absl::StatusOr<SteadyRule> ParseSteady(std::string_view text) {
  const absl::Status error =
      UsageError(fmt::format("'{}'; allowed: bw:SHARE/TIME, such as bw:2%/5s", text));
  const size_t slash = text.find('/');
  if (!text.starts_with("bw:") || slash == std::string_view::npos) return error;
  const absl::StatusOr<double> share = ParseShare(text.substr(3, slash - 3));
  const absl::StatusOr<double> window = ParseDuration(text.substr(slash + 1));
  if (!share.ok() || !window.ok()) return error;
  if (*share <= 0) return UsageError(fmt::format("'{}'; a SHARE above 0 is allowed", text));
  if (*window < kLeastWindowS) {
    return UsageError(fmt::format("'{}'; a TIME of {:g}s or more is allowed", text, kLeastWindowS));
  }
  return SteadyRule{*share, *window};
}

void JobFlags::Declare(CLI::App& app) {
  app.add_option("DIR", directories_,
                 use_ == JobUse::kSweep
                     ? "folders on the disks to be measured, one after the other"
                     : "folders on the disks to be measured, DIR or DIR:WEIGHT; several are "
                       "measured one by one and striped")
      ->required();
  for (const JobFlag& flag : JobFlagTable()) {
    if (use_ == JobUse::kSweep && !flag.in_sweep) {
      continue;
    }
    std::string& text = texts_[flag.name];
    text = flag.by_default;
    const std::string help = flag.by_default.empty()
                                 ? flag.help
                                 : fmt::format("{} (default: {})", flag.help, flag.by_default);
    CLI::Option* const option = flag.value == "switch"
                                    ? app.add_flag("--" + flag.name, text, help)
                                    : app.add_option("--" + flag.name, text, help);
    if (flag.value != "switch") option->type_name(flag.value);
    option->take_last();
    options_[flag.name] = option;
  }
}

absl::StatusOr<Job> JobFlags::Read() const {
  Job job;
  FlagReader reader;
  ReadTargets(reader, job);
  ReadLoad(reader, job);
  if (use_ == JobUse::kSweep) {
    job.repeats = 1;  // many settings once tell more than few ones often
    FOREBAY_RETURN_IF_ERROR(reader.status());
    return job;
  }
  ReadQueue(reader, job);
  ReadTimes(reader, job);
  job.verify = Given("verify");
  ReadFlush(reader, Text("flush"), job);
  FOREBAY_RETURN_IF_ERROR(reader.status());
  FOREBAY_RETURN_IF_ERROR(Percentiles().status());
  return job;
}

void JobFlags::ReadTargets(FlagReader& reader, Job& job) const {
  for (const std::string& directory : directories_) {
    job.targets.push_back(ParseTarget(directory));
    if (use_ == JobUse::kSweep && job.targets.back().weight != 0) {
      reader.Complain(fmt::format(
          "'{}' has a weight, but sweep measures each folder alone: leave ':WEIGHT' out",
          directory));
      continue;
    }
    if (job.targets.back().weight >= 0) continue;
    reader.Complain(
        fmt::format("the weight in '{}' is no number above 0: take {}:WEIGHT, such as "
                    "{}:2, or the folder alone",
                    directory, job.targets.back().directory, job.targets.back().directory));
  }
}

void JobFlags::ReadLoad(FlagReader& reader, Job& job) const {
  reader.Take("op", ParseLoads(Text("op")), job.loads);
  reader.TakeWord("engine", Text("engine"), EngineWords(), job.engine);
  job.strict = Given("engine_strict");
  reader.Take("size", ParseSize(Text("size")), job.size_bytes);
  reader.TakeNumber("threads", Text("threads"), job.threads);
  reader.TakeWord<bool>("fixed", Text("fixed"), {{"on", true}, {"off", false}}, job.fixed);
  reader.TakeWord<BenchPages>("pages", Text("pages"),
                              {{"thp", BenchPages::kTransparentHuge},
                               {"huge", BenchPages::kReservedHuge},
                               {"4k", BenchPages::kBase}},
                              job.pages);
  if (Text("numa") != "auto") {
    reader.TakeNumber("numa", Text("numa"), job.numa_node);
    if (Whole<int>(Text("numa")).value_or(0) < 0) {
      reader.Problem("numa",
                     fmt::format("'{}'; allowed: auto, or the number of a node", Text("numa")));
    }
  }
  reader.TakeWord<AccessPattern>(
      "pattern", Text("pattern"),
      {{"seq", AccessPattern::kSequential}, {"rand", AccessPattern::kRandom}}, job.pattern);
  ReadFill(reader, Text("fill"), job);
  reader.TakeNumber("seed", Text("seed"), job.seed);
}

void JobFlags::ReadQueue(FlagReader& reader, Job& job) const {
  reader.Take("bs", ParseSize(Text("bs")), job.block_bytes);
  reader.TakeNumber("qd", Text("qd"), job.depth);
  if (!Given("inflight")) return;
  int64_t inflight_bytes = 0;
  reader.Take("inflight", ParseSize(Text("inflight")), inflight_bytes);
  if (Given("qd")) reader.Problem("inflight", "give this or --qd");
  if (job.block_bytes <= 0) return;
  const int64_t depth = inflight_bytes / job.block_bytes;
  job.depth = static_cast<int>(std::min<int64_t>(depth, 1 << 30));
  if (depth < 1) {
    reader.Problem("inflight", fmt::format("{} is less than one operation of --bs={}",
                                           SizeText(inflight_bytes), SizeText(job.block_bytes)));
  }
}

void JobFlags::ReadTimes(FlagReader& reader, Job& job) const {
  reader.TakeNumber("repeats", Text("repeats"), job.repeats);
  reader.Take("time", ParseDuration(Text("time")), job.seconds);
  reader.Take("warmup", ParseDuration(Text("warmup")), job.warmup_s);
  if (!Given("steady")) return;
  SteadyRule steady;
  reader.Take("steady", ParseSteady(Text("steady")), steady);
  job.steady = steady;
}

absl::StatusOr<std::vector<double>> JobFlags::Percentiles() const {
  std::vector<double> percentiles;
  for (const std::string& part : Split(Text("percentiles"), ',')) {
    const double percent = Whole<double>(part).value_or(0);
    if (!(percent > 0 && percent <= 100)) {
      return UsageError(
          fmt::format("--percentiles: '{}'; allowed: numbers above 0 to 100, with commas", part));
    }
    percentiles.push_back(percent);
  }
  return percentiles;
}

}  // namespace forebay
