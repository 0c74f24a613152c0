#include <algorithm>
#include <limits>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/measure/report/compare.h"
#include "forebay/measure/report/report_json.h"
#include "forebay/tools/print.h"
#include "forebay/tools/swap_bench/bench_output.h"
#include "forebay/tools/swap_bench/bench_table.h"
#include "forebay/tools/swap_bench/job_flags.h"
#include "forebay/tools/swap_bench/program.h"

namespace forebay {
namespace {

constexpr int64_t kMaxReportBytes = int64_t{256} << 20;

absl::StatusOr<std::vector<ReportCell>> ReadCells(const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, kMaxReportBytes));
  return CellsFromJson(json, path);
}

class BenchCompareCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("BEFORE", before_, "results of run or sweep, as JSON")->required();
    app.add_option("AFTER", after_, "others")->required();
    app.add_option("--fail_below", fail_below_,
                   "end with exit code 10 when a median is slower by more than this")
        ->type_name("SHARE")
        ->take_last();
  }

  absl::Status Run(const CommandContext& context) override {
    double share = 1;
    if (!fail_below_.empty()) {
      const absl::StatusOr<double> parsed = ParseShare(fail_below_);
      if (!parsed.ok()) return Annotate(parsed.status(), "--fail_below");
      share = *parsed;
    }
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<ReportCell> before, ReadCells(before_));
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<ReportCell> after, ReadCells(after_));
    const ReportComparison comparison = CompareReports(before, after);
    if (comparison.cells.empty()) {
      return BadInputError(
          fmt::format("'{}' and '{}' have no run in common: same folder, load, --bs, bytes in "
                      "flight and engine. "
                      "Measure both with the same flags",
                      before_, after_));
    }
    PrintTo(stdout, "{}",
            context.json              ? DumpResults(ComparisonToJson(comparison))
            : context.format == "csv" ? ComparisonCsv(comparison)
                                      : ComparisonText(comparison));
    return fail_below_.empty() ? absl::OkStatus() : CheckRatios(comparison, share);
  }

 private:
  absl::Status CheckRatios(const ReportComparison& comparison, double share) const {
    // What is not there any more is not as fast as it was.
    if (!comparison.only_before.empty()) {
      const CellKey& missing = comparison.only_before.front();
      return BadInputError(fmt::format(
          "'{}' has no run of {} {} with {}, which '{}' has, so --fail_below cannot compare it. "
          "Measure both with the same flags; see whether the engine fell back",
          after_, missing.device, LoadName(missing.load), missing.engine, before_));
    }
    // What had no bandwidth before cannot have become slower.
    const auto worst =
        std::ranges::min_element(comparison.cells, {}, [](const CellComparison& cell) {
          return cell.ratio.value_or(std::numeric_limits<double>::infinity());
        });
    if (!worst->ratio.has_value()) {
      return BadInputError(fmt::format(
          "'{}' has no bandwidth that --fail_below could compare with. Measure it again", before_));
    }
    const double ratio = *worst->ratio;
    if (ratio >= 1 - share) return absl::OkStatus();
    return RegressedError(fmt::format(
        "{} {} is at {:.1f} % of what it was, and --fail_below={:g}% allows {:g} %",
        worst->key.device, LoadName(worst->key.load), ratio * 100, share * 100, (1 - share) * 100));
  }

  std::string before_;
  std::string after_;
  std::string fail_below_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCompareCommand() {
  return std::make_unique<BenchCompareCommand>();
}

}  // namespace forebay
