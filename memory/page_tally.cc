#include "forebay/memory/page_tally.h"

#include "fmt/format.h"
#include "forebay/base/format.h"

namespace forebay {

void PageTally::Add(const PageTally& other) {
  reserved_huge_bytes += other.reserved_huge_bytes;
  transparent_huge_bytes += other.transparent_huge_bytes;
  base_bytes += other.base_bytes;
  missed_bytes += other.missed_bytes;
  if (missed_reason.empty()) missed_reason = other.missed_reason;
  if (note.empty()) note = other.note;
}

void PageTally::Subtract(const PageTally& other) {
  reserved_huge_bytes -= other.reserved_huge_bytes;
  transparent_huge_bytes -= other.transparent_huge_bytes;
  base_bytes -= other.base_bytes;
  missed_bytes -= other.missed_bytes;
}

std::string DescribePages(const PageTally& pages) {
  std::string kinds;
  const auto add = [&kinds](int64_t bytes, const char* kind) {
    if (bytes == 0) return;
    kinds += fmt::format("{}{} in {}", kinds.empty() ? "" : ", ", FormatBinaryBytes(bytes), kind);
  };
  add(pages.reserved_huge_bytes, "reserved huge pages of 2 MiB");
  add(pages.transparent_huge_bytes, "transparent huge pages of 2 MiB");
  add(pages.base_bytes, "pages of 4 KiB");
  std::string line = fmt::format("pages: {}", kinds.empty() ? "none" : kinds);
  if (pages.missed_bytes > 0) {
    const int64_t num_pages = pages.missed_bytes / kHugePageBytes;
    line += fmt::format(
        ". {} of them should be huge pages; without, disk transfers are slower and cost several "
        "times the CPU: {}. Or reserve {} page{} more in vm.nr_hugepages (sysctl, as root)",
        FormatBinaryBytes(pages.missed_bytes), pages.missed_reason, num_pages,
        num_pages == 1 ? "" : "s");
  }
  if (!pages.note.empty()) line += fmt::format(". {}", pages.note);
  return line;
}

}  // namespace forebay
