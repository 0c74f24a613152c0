#include "forebay/swap/store/transfer_buffer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/memory/numa.h"

namespace forebay {
namespace {

// The node of all disks; -1 when they hang on several, so that no node is near to all.
int NumaNodeOf(const std::vector<std::string>& directories) {
  const int node = NumaNodeOfPath(directories.front());
  const bool is_common = std::ranges::all_of(
      directories, [&](const std::string& path) { return NumaNodeOfPath(path) == node; });
  return is_common ? node : -1;
}

}  // namespace

// Not the default one, which would unmap the memory that this had before its registration ends.
TransferBuffer& TransferBuffer::operator=(TransferBuffer&& other) noexcept {
  registration_ = std::move(other.registration_);
  memory_ = std::move(other.memory_);
  return *this;
}

absl::StatusOr<TransferBuffer> TransferBuffer::Create(TensorStore* store, MemoryBudget* budget,
                                                      std::string_view purpose, int64_t size_bytes,
                                                      int64_t unit_bytes, Device* device) {
  TransferBuffer buffer;
  FOREBAY_ASSIGN_OR_RETURN(
      buffer.memory_,
      HostBuffer::Create(budget, purpose, size_bytes,
                         {.numa_node = NumaNodeOf(store->directories()), .device = device}));
  buffer.registration_ = BufferRegistration(&store->engine(), buffer.memory_.IoPieces(unit_bytes));
  return buffer;
}

}  // namespace forebay
