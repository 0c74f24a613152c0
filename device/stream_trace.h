// When the streams of a device did their work, for a trace of it (base/trace.h): timed events of
// the device stand around the work, and its clock is laid beside the host's where the recording
// begins. Tracing waits for nothing until it ends.
//
//   stream = CreateTracedStream(device, "weights to the GPU")     a row of the device's StreamTrace
//   { const StreamScope scope(*stream, "weights", {.layer = 3});  what is enqueued in the scope
//     stream->CopyToDevice(...); }                                is a slice of the row
//
// A device without a StreamTrace has no events for it, and a scope costs it one test.
//
// Not for: what the host did meanwhile (TraceScope).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/trace.h"
#include "forebay/device/device.h"

namespace forebay {

class StreamTrace;

// One for each traced stream: its slices do not overlap.
struct StreamRow {
  StreamTrace* trace = nullptr;
  std::string name;
  int64_t end_ns = 0;  // of the last slice that was read
};

// Thread-safe; each stream and its scopes are one thread's at a time.
class StreamTrace {
 public:
  // That are not done yet. A host is not so far ahead, as the driver's queue of a stream has about
  // a thousand kernels, and a slice is several. What does not fit is left out, and the recorder
  // counts it.
  static constexpr int64_t kNumSlices = 1024;

  struct Slice {
    enum class State : uint8_t { kFree, kOpen, kEnded };
    std::unique_ptr<Event> begin, end;
    StreamRow* row = nullptr;
    TraceEvent event;
    State state = State::kFree;
  };

  // All that it will need. Streams that are made on `device` from here on have rows "`name`: ...".
  // The device outlives it, and it outlives what is enqueued on those streams. EnvironmentError.
  static absl::StatusOr<std::unique_ptr<StreamTrace>> Create(Device* device, std::string name,
                                                             int64_t num_slices = kNumSlices);
  ~StreamTrace();

  // Slices that begin from here on go to `recorder`, which outlives Stop. Nothing is recorded where
  // the device has failed: whoever needs it next is told.
  void Start(TraceRecorder* recorder);
  // Waits for the slices that have ended, as the host sees it, and gives them to the recorder.
  void Stop();

 private:
  friend class StreamScope;
  friend absl::StatusOr<std::unique_ptr<Stream>> CreateTracedStream(Device*, std::string_view);

  StreamTrace(Device* device, std::string name) : device_(device), name_(std::move(name)) {}
  StreamRow* AddRow(std::string_view name);
  // nullptr: nothing is recorded, or there is no room.
  Slice* Begin(Stream& stream, const TraceEvent& event);
  void End(Stream& stream, Slice& slice);
  Slice* Take();
  bool HasEnded(const Slice& slice);
  void Give(Slice& slice);

  Device* const device_;
  const std::string name_;
  std::unique_ptr<Event> anchor_;  // reached when the host's clock was at anchor_ns_
  int64_t anchor_ns_ = 0;
  std::atomic<bool> is_recording_ = false;
  std::mutex mutex_;  // of what follows
  TraceRecorder* recorder_ = nullptr;
  std::deque<StreamRow> rows_;  // which stay where they are
  std::vector<Slice> slices_;   // used in turn
  int64_t num_begun_ = 0;
  // Ends before the event.
  std::unique_ptr<Stream> stream_;
};

// A stream that has a row where the device's streams are traced.
absl::StatusOr<std::unique_ptr<Stream>> CreateTracedStream(Device* device, std::string_view name);

// One slice: the work that `stream` gets in the scope. Put it behind what the stream waits for, and
// it begins when the work does.
class StreamScope {
 public:
  StreamScope(Stream& stream, const char* name, const TraceScope::Of& of = {}, int64_t bytes = 0)
      : stream_(stream) {
    if (stream.row() != nullptr) Begin(name, of, bytes);
  }
  ~StreamScope() {
    if (slice_ != nullptr) stream_.row()->trace->End(stream_, *slice_);
  }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  void Begin(const char* name, const TraceScope::Of& of, int64_t bytes);

  Stream& stream_;
  StreamTrace::Slice* slice_ = nullptr;
};

}  // namespace forebay
