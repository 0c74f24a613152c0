#include "forebay/measure/runs/wear.h"

#include "fmt/format.h"
#include "forebay/base/format.h"

namespace forebay {

double PlannedWriteBytes(const Job& job, double bytes_per_s) {
  const double pass_bytes = bytes_per_s * (job.warmup_s + job.seconds);
  const double passes_of_a_load = job.repeats * (job.targets.size() > 1 ? 2 : 1);
  auto bytes = static_cast<double>(job.size_bytes);
  for (const LoadKind& load : job.loads) {
    bytes += (100 - load.read_percent) / 100.0 * pass_bytes * passes_of_a_load;
  }
  return bytes;
}

std::string WearNote(const Job& job, const BenchTarget& target, bool twice) {
  if (target.storage.in_memory()) return "";
  const double bytes = PlannedWriteBytes(job, target.fill_bytes_per_s) * (twice ? 2 : 1);
  const double share = bytes / (kUsualRatedTbw * 1e12);
  if (share <= kNotedWearShare) return "";
  return fmt::format(
      "{}: about {} are going to be written, {:.1f} % of the {:g} TB that drives of 1 TB are often "
      "rated for in their life. A shorter --time or fewer --repeats write less",
      target.directory, FormatBytes(static_cast<int64_t>(bytes)), share * 100, kUsualRatedTbw);
}

}  // namespace forebay
