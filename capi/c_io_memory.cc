// The memory that transfers go to and come from without a copy.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/capi/c.h"
#include "forebay/capi/c_status.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"

struct forebay_memory : forebay::capi::Handle {
  std::mutex mutex;
  forebay::MemoryBudget budget{0};
  std::map<const std::byte*, forebay::HostBuffer> blocks;  // mutex; by where they begin
  std::string note;                                        // mutex; of the last that is not locked
};

namespace forebay::capi {
namespace {

std::string WhyNotLocked(int64_t size_bytes, int error_number) {
  return fmt::format(
      "memory: {} are not locked in RAM: {}. Transfers work as before; under memory pressure the "
      "system may page them out. Raise the limit (ulimit -l, LimitMEMLOCK= of systemd, or memlock "
      "in /etc/security/limits.conf)",
      FormatBytes(size_bytes), ErrnoText(error_number));
}

absl::Status Allocate(forebay_memory* memory, size_t num_bytes, void** data) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(memory, "memory"));
  FOREBAY_RETURN_IF_ERROR(CheckPointer(data, "data"));
  constexpr size_t kMaxBytes = size_t{1} << 46;
  if (num_bytes > kMaxBytes) {
    return OutOfMemoryError(fmt::format("memory: no machine has {} bytes", num_bytes));
  }
  // A block of no bytes has an address of its own too.
  const auto size_bytes = static_cast<int64_t>(std::max<size_t>(num_bytes, 1));
  FOREBAY_ASSIGN_OR_RETURN(HostBuffer block,
                           HostBuffer::Create(&memory->budget, "locked", size_bytes));
  const auto charged_bytes = HostBuffer::ChargedBytes(size_bytes);
  const bool is_locked = ::mlock(block.data(), static_cast<size_t>(charged_bytes)) == 0;
  const int error_number = errno;
  const std::lock_guard lock(memory->mutex);
  if (!is_locked) memory->note = WhyNotLocked(charged_bytes, error_number);
  *data = block.data();
  memory->blocks.emplace(block.data(), std::move(block));
  return absl::OkStatus();
}

bool Free(forebay_memory* memory, const void* data) {
  if (!IsUsable(memory)) return false;
  HostBuffer freed_later;
  const std::lock_guard lock(memory->mutex);
  const auto found = memory->blocks.find(static_cast<const std::byte*>(data));
  if (found == memory->blocks.end()) return false;
  freed_later = std::move(found->second);
  memory->blocks.erase(found);
  return true;
}

bool Contains(forebay_memory* memory, const void* data, size_t num_bytes) {
  if (!IsUsable(memory)) return false;
  const auto* const first = static_cast<const std::byte*>(data);
  const std::lock_guard lock(memory->mutex);
  auto after = memory->blocks.upper_bound(first);
  if (after == memory->blocks.begin()) return false;
  const auto& [begin, block] = *--after;
  const auto skipped = static_cast<size_t>(first - begin);
  const auto size = static_cast<size_t>(block.size_bytes());
  return skipped <= size && num_bytes <= size - skipped;
}

}  // namespace
}  // namespace forebay::capi

extern "C" {

forebay_memory* forebay_memory_create(void) {
  return new (std::nothrow) forebay_memory;
}

void forebay_memory_destroy(forebay_memory* memory) {
  forebay::capi::Destroy(memory);
}

int32_t forebay_memory_allocate(forebay_memory* memory, size_t num_bytes, void** data,
                                char** message) {
  return forebay::capi::Run(message,
                            [&] { return forebay::capi::Allocate(memory, num_bytes, data); });
}

int32_t forebay_memory_free(forebay_memory* memory, void* data) {
  return forebay::capi::Free(memory, data) ? 1 : 0;
}

int32_t forebay_memory_contains(forebay_memory* memory, const void* data, size_t num_bytes) {
  return forebay::capi::Contains(memory, data, num_bytes) ? 1 : 0;
}

int32_t forebay_memory_note(forebay_memory* memory, char** text, char** message) {
  return forebay::capi::Run(message, [&] {
    FOREBAY_RETURN_IF_ERROR(forebay::capi::CheckPointer(memory, "memory"));
    const std::lock_guard lock(memory->mutex);
    return forebay::capi::Give(memory->note, text);
  });
}

}  // extern "C"
