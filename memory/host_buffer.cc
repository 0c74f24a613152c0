#include "forebay/memory/host_buffer.h"

#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/memory/io_pieces.h"
#include "forebay/memory/page_mapping.h"

namespace forebay {
namespace {

absl::Status Refused(std::string_view purpose, int64_t bytes, int error_number) {
  return OutOfMemoryError(fmt::format(
      "memory: the system refused {} ({} bytes) for '{}', which the budget allows: {}. Lower "
      "--ram, or raise the limit of the process (ulimit -v, cgroup, vm.overcommit_memory)",
      FormatBinaryBytes(bytes), bytes, purpose, ErrnoText(error_number)));
}

}  // namespace

absl::StatusOr<HostBuffer> HostBuffer::Create(MemoryBudget* budget, std::string_view purpose,
                                              int64_t size_bytes,
                                              const HostBufferOptions& options) {
  FOREBAY_CHECK(budget != nullptr && size_bytes >= 0);
  HostBuffer buffer;
  if (size_bytes == 0) return buffer;
  const int64_t mapped_bytes = ChargedBytes(size_bytes);
  FOREBAY_RETURN_IF_ERROR(budget->Charge(purpose, mapped_bytes));
  PageMapping mapping = MapPages(mapped_bytes, {options.best_pages, options.numa_node});
  if (mapping.data == nullptr) {
    budget->Release(purpose, mapped_bytes);
    return Refused(purpose, mapped_bytes, mapping.error_number);
  }
  buffer.data_ = mapping.data;
  buffer.size_bytes_ = size_bytes;
  buffer.mapped_bytes_ = mapped_bytes;
  buffer.huge_bytes_ = mapping.huge_bytes;
  buffer.pages_ = std::move(mapping.pages);
  buffer.budget_ = budget;
  buffer.purpose_ = std::string(purpose);
  if (options.device != nullptr) {
    absl::StatusOr<PinnedRegion> pinned =
        options.device->Pin({mapping.data, static_cast<size_t>(mapped_bytes)});
    if (pinned.ok()) {
      buffer.pinned_ = *std::move(pinned);
    } else {
      buffer.pages_.note = fmt::format("'{}' is not pinned for {}, so copies block: {}", purpose,
                                       options.device->name(), MessageOf(pinned.status()));
    }
  }
  budget->AddPages(buffer.pages_);
  return buffer;
}

HostBuffer::~HostBuffer() {
  Free();
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept {
  *this = std::move(other);
}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  if (this == &other) return *this;
  Free();
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  huge_bytes_ = std::exchange(other.huge_bytes_, 0);
  pages_ = std::exchange(other.pages_, {});
  pinned_ = std::move(other.pinned_);
  budget_ = std::exchange(other.budget_, nullptr);
  purpose_ = std::exchange(other.purpose_, {});
  return *this;
}

PageKind HostBuffer::page_kind() const {
  const int64_t in_huge_bytes = pages_.reserved_huge_bytes + pages_.transparent_huge_bytes;
  if (2 * in_huge_bytes <= huge_bytes_) return PageKind::kBase;
  return pages_.reserved_huge_bytes >= pages_.transparent_huge_bytes ? PageKind::kReservedHuge
                                                                     : PageKind::kTransparentHuge;
}

std::vector<std::span<std::byte>> HostBuffer::IoPieces(int64_t unit_bytes) const {
  return CutIoPieces(bytes(), page_kind() == PageKind::kBase ? 0 : huge_bytes_, unit_bytes);
}

void HostBuffer::Free() {
  if (data_ == nullptr) return;
  pinned_.Reset();  // before the memory goes
  UnmapPages(data_, mapped_bytes_);
  budget_->SubtractPages(pages_);
  budget_->Release(purpose_, mapped_bytes_);
  data_ = nullptr;
}

}  // namespace forebay
