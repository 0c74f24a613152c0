#include "forebay/aio/speed_probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "forebay/aio/engine_probe.h"
#include "forebay/base/clock.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/file_space.h"

namespace forebay {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int kNumInFlight = 16;
constexpr double kSeconds = 0.08;   // of each direction
constexpr double kFillSeconds = 1;  // the most for the first pass

// One block for each op, outside every budget: 16 MiB for a moment. In huge pages where there are
// some, as the buffers of a run are: a virtual disk may be three times as slow with small ones.
class Blocks {
 public:
  Blocks() {
    void* const mapped =
        ::mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return;
    mapped_ = static_cast<std::byte*>(mapped);
    void* aligned = mapped;
    size_t room = kMappedBytes;
    std::align(kHugePageBytes, kBytes, aligned, room);
    data_ = static_cast<std::byte*>(aligned);
    ::madvise(data_, kBytes, MADV_HUGEPAGE);
  }
  ~Blocks() {
    if (mapped_ != nullptr) ::munmap(mapped_, kMappedBytes);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  bool valid() const { return mapped_ != nullptr; }
  std::span<std::byte> operator[](int i) const {
    return {data_ + i * kBlockBytes, static_cast<size_t>(kBlockBytes)};
  }

 private:
  static constexpr size_t kHugePageBytes = size_t{2} << 20;
  static constexpr size_t kBytes = kNumInFlight * kBlockBytes;
  static constexpr size_t kMappedBytes = kBytes + kHugePageBytes;
  std::byte* mapped_ = nullptr;
  std::byte* data_ = nullptr;
};

// Keeps kNumInFlight blocks moving, from the file's beginning on and again from there.
class Load {
 public:
  Load(Engine& engine, int file, const Blocks& blocks, const std::function<bool()>& stop)
      : engine_(engine), stop_(stop) {
    for (int i = 0; i < kNumInFlight; ++i) {
      ops_[i].buffer = blocks[i];
      ops_[i].file = file;
    }
  }
  // Once over all of the file, or as far as kFillSeconds go. What follows stays within that.
  absl::Status Fill() {
    FOREBAY_ASSIGN_OR_RETURN(const Moved moved,
                             Run(IoKind::kWrite, kFillSeconds, kSpeedProbeBytes));
    length_bytes_ = std::min(moved.bytes, kSpeedProbeBytes);
    return absl::OkStatus();
  }
  // Of a direction, in bytes per second.
  absl::StatusOr<double> Speed(IoKind kind) {
    FOREBAY_ASSIGN_OR_RETURN(const Moved moved,
                             Run(kind, kSeconds, std::numeric_limits<int64_t>::max()));
    return static_cast<double>(moved.bytes) / moved.elapsed_s;
  }

 private:
  struct Moved {
    int64_t bytes = 0;
    double elapsed_s = 0;
  };
  // Starts blocks for `seconds` or up to `limit_bytes`, and waits for all of them: what a slow disk
  // has not given back when the time is over is most of what it moved.
  absl::StatusOr<Moved> Run(IoKind kind, double seconds, int64_t limit_bytes) {
    const Stopwatch watch;
    int64_t next_bytes = 0;
    absl::Status status;
    std::array<IoOp*, kNumInFlight> pending;
    for (int i = 0; i < kNumInFlight; ++i) {
      pending[i] = &ops_[i];
      Start(kind, *pending[i], next_bytes);
    }
    while (status.ok() && watch.Seconds() < seconds && next_bytes < limit_bytes) {
      engine_.WaitAny(pending);
      if (stop_()) status = InterruptedError("stopped on request");
      for (IoOp* op : pending) {
        if (op->pending()) continue;
        status.Update(engine_.Wait(*op));
        if (status.ok()) Start(kind, *op, next_bytes);
      }
    }
    for (IoOp* op : pending) {
      if (!status.ok() && op->pending()) engine_.Cancel(*op);
      status.Update(engine_.Wait(*op));
    }
    if (!status.ok()) return status;
    return Moved{next_bytes, watch.Seconds()};
  }

  void Start(IoKind kind, IoOp& op, int64_t& next_bytes) {
    op.kind = kind;
    op.io_class = kind == IoKind::kRead ? IoClass::kDemand : IoClass::kWriteBack;
    op.offset_bytes = next_bytes % length_bytes_;
    next_bytes += kBlockBytes;
    engine_.Submit(op);
  }

  Engine& engine_;
  const std::function<bool()>& stop_;
  int64_t length_bytes_ = kSpeedProbeBytes;
  std::array<IoOp, kNumInFlight> ops_;
};

absl::StatusOr<DiskSpeed> Measure(Engine& engine, int file, const std::function<bool()>& stop) {
  const Blocks blocks;
  if (!blocks.valid()) {
    return OutOfMemoryError("aio: the system refused 16 MiB for trying the disk: " +
                            ErrnoText(errno));
  }
  const CounterRng rng(0x7370656564);
  for (int i = 0; i < kNumInFlight; ++i) {
    const std::span<std::byte> block = blocks[i];
    for (size_t at = 0; at < block.size(); at += 8) {
      const uint64_t word = rng.Bits64(static_cast<uint64_t>(i) * block.size() + at);
      std::memcpy(block.data() + at, &word, 8);
    }
  }
  Load load(engine, file, blocks, stop);
  DiskSpeed speed;
  // Extents that were never written are another thing to write, and nothing to read.
  FOREBAY_RETURN_IF_ERROR(load.Fill());
  FOREBAY_ASSIGN_OR_RETURN(speed.write_bytes_per_s, load.Speed(IoKind::kWrite));
  FOREBAY_ASSIGN_OR_RETURN(speed.read_bytes_per_s, load.Speed(IoKind::kRead));
  return speed;
}

}  // namespace

absl::StatusOr<DiskSpeed> ProbeSpeed(Engine& engine, const std::string& folder,
                                     const std::function<bool()>& stop) {
  FOREBAY_ASSIGN_OR_RETURN(ScratchFile scratch, OpenScratchFile(folder, engine.direct()));
  // Where space cannot be reserved the writes make it, and say so when there is none.
  [[maybe_unused]] const int reserved = ReserveFileSpace(scratch.fd.get(), kSpeedProbeBytes);
  const std::string path = scratch.path;
  const int file = engine.AddFile(std::move(scratch.fd), path);
  absl::StatusOr<DiskSpeed> speed = Measure(engine, file, stop);
  engine.RemoveFile(file);
  return speed;
}

}  // namespace forebay
