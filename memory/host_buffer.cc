#include "forebay/memory/host_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A zeroed mapping of `bytes` (a multiple of kPageBytes) whose address is a multiple of
// `alignment`; nullptr with errno set.
std::byte* MapAligned(int64_t bytes, int64_t alignment) {
  const int64_t slack = alignment > kPageBytes ? alignment : 0;
  void* const mapped = ::mmap(nullptr, static_cast<size_t>(bytes + slack), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  std::byte* const start = static_cast<std::byte*>(mapped);
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(start));
  const int64_t before = RoundUp(address, alignment) - address;
  const int64_t after = slack - before;
  if (before > 0) ::munmap(start, static_cast<size_t>(before));
  if (after > 0) ::munmap(start + before + bytes, static_cast<size_t>(after));
  return start + before;
}

}  // namespace

absl::StatusOr<HostBuffer> HostBuffer::Create(MemoryBudget* budget, std::string_view purpose,
                                              int64_t size_bytes) {
  FOREBAY_CHECK(budget != nullptr && size_bytes >= 0);
  HostBuffer buffer;
  if (size_bytes == 0) return buffer;
  const int64_t mapped_bytes = RoundUp(size_bytes, kPageBytes);
  FOREBAY_RETURN_IF_ERROR(budget->Charge(purpose, mapped_bytes));
  const bool huge = mapped_bytes >= kHugePageBytes;
  std::byte* const data = MapAligned(mapped_bytes, huge ? kHugePageBytes : kPageBytes);
  if (data == nullptr) {
    const int error = errno;
    budget->Release(purpose, mapped_bytes);
    return OutOfMemoryError(fmt::format(
        "memory: the system refused {} ({} bytes) for '{}', which the budget allows: {}. Lower "
        "--ram, or raise the limit of the process (ulimit -v, cgroup, vm.overcommit_memory)",
        FormatBinaryBytes(mapped_bytes), mapped_bytes, purpose, ErrnoText(error)));
  }
  // Huge pages make a disk transfer one segment instead of 512; a kernel without them still works,
  // slower. A child must not share these pages: copy-on-write would move them away from under a
  // running transfer.
  if (huge) ::madvise(data, static_cast<size_t>(mapped_bytes), MADV_HUGEPAGE);
  ::madvise(data, static_cast<size_t>(mapped_bytes), MADV_DONTFORK);
  buffer.data_ = data;
  buffer.size_bytes_ = size_bytes;
  buffer.mapped_bytes_ = mapped_bytes;
  buffer.budget_ = budget;
  buffer.purpose_ = std::string(purpose);
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
  budget_ = std::exchange(other.budget_, nullptr);
  purpose_ = std::exchange(other.purpose_, {});
  return *this;
}

void HostBuffer::Free() {
  if (data_ == nullptr) return;
  ::munmap(data_, static_cast<size_t>(mapped_bytes_));
  budget_->Release(purpose_, mapped_bytes_);
  data_ = nullptr;
}

}  // namespace forebay
