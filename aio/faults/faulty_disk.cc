#include "forebay/aio/faults/faulty_disk.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace forebay {

namespace {

// A call that stalls in the kernel keeps its file, also when the engine is gone and its descriptor
// is somebody else's.
UniqueFd StallOn(int fd, FaultScript& script) {
  UniqueFd kept(::dup(fd));
  script.AwaitRelease();
  return kept;
}

}  // namespace

int64_t FaultyDisk::Transfer(IoKind kind, int fd, std::string_view path,
                             std::span<std::byte> buffer, int64_t offset_bytes) {
  const Fault fault = script_.Next(kind, path, offset_bytes, static_cast<int64_t>(buffer.size()));
  UniqueFd kept;
  if (fault.stall) {
    kept = StallOn(fd, script_);
    fd = kept.get();
  }
  if (fault.delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(fault.delay_us));
  if (fault.made_up.has_value()) return *fault.made_up;
  std::span<std::byte> part = buffer.first(static_cast<size_t>(fault.asked_bytes));
  // Direct transfers need aligned memory, so the bit of a write is flipped in place meanwhile.
  std::vector<std::byte> flipped;
  if (fault.flip && kind == IoKind::kWrite) flipped = FaultScript::Flipped(fault, part);
  std::swap_ranges(flipped.begin(), flipped.end(), part.begin());
  const int64_t result = system_.Transfer(kind, fd, path, part, offset_bytes);
  std::swap_ranges(flipped.begin(), flipped.end(), part.begin());
  if (fault.flip && kind == IoKind::kRead) {
    std::ranges::copy(FaultScript::Flipped(fault, part), part.begin());
  }
  if (script_.plan().record && kind == IoKind::kWrite && result > 0) {
    script_.RecordWrite(path, offset_bytes, part.first(static_cast<size_t>(result)));
  }
  return std::min(result, fault.moved_bytes);
}

int FaultyDisk::Flush(int fd, std::string_view path) {
  const Fault fault = script_.Next(IoKind::kFlush, path, 0, 0);
  UniqueFd kept;
  if (fault.stall) {
    kept = StallOn(fd, script_);
    fd = kept.get();
  }
  if (fault.made_up.has_value()) return *fault.made_up;
  const int result = system_.Flush(fd, path);
  if (script_.plan().record && result == 0) script_.RecordFlush(path);
  return result;
}

}  // namespace forebay
