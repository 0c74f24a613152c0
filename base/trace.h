// A recording of what the threads of the process do, and when: for a trace of some steps. While
// none goes on, a scope costs one load.
//
// Events go into memory that the recording was given, in chunks that each thread takes for itself:
// nothing is allocated and nobody waits. What does not fit is counted.
//
// Not for: what a trace looks like (train/run/trace_file.h), or sums of waits (activity.h).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace forebay {

enum class Activity : uint8_t;  // activity.h

enum class TraceRow : uint8_t {
  kThread,  // the row of the thread that recorded it
  kRead,    // transfers of the disk that the label names a file of
  kWrite,
  kFlush,
  kDevice,  // work of a GPU's stream, in the row that the label names
};

// Nanoseconds of the steady clock, as all times here.
int64_t TraceNowNs();

struct TraceEvent {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  const char* name = nullptr;  // lives as long as the program; nullptr: `activity` says it
  int32_t layer = -1;
  int32_t tile = -1;
  int32_t batch = -1;  // micro-batch
  int32_t label = -1;  // of all rows but kThread: TraceRecorder::label
  TraceRow row = TraceRow::kThread;
  Activity activity = {};
  // A transfer alone: until `started_ns` it waited in the engine's queue. `total_bytes`: what was
  // to be read by the engine when it was submitted, or what had been written when it was complete.
  int64_t started_ns = 0;
  int64_t offset_bytes = 0;
  int64_t bytes = 0;
  int64_t total_bytes = 0;
};

// One recording. Its memory and itself must outlive every thread that may still be in a scope that
// began before Stop.
class TraceRecorder {
 public:
  // Borrows `memory`, aligned as TraceEvent.
  explicit TraceRecorder(std::span<std::byte> memory);
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // The one that scopes write to; nullptr: none.
  static TraceRecorder* Active() { return active.load(std::memory_order_acquire); }
  // Once. False where another recording goes on.
  bool Start();
  void Stop();
  int64_t begin_ns() const { return begin_ns_; }

  // Thread-safe. Any thread's, while it is active or was when the event began.
  void Add(const TraceEvent& event);
  // One that there was no room for before it came here.
  void CountDropped() { num_dropped_.fetch_add(1, std::memory_order_relaxed); }
  // The number of a text that lives on with the recorder; -1: it has no room for more.
  int LabelOf(std::string_view text);

  // ---- After Stop

  struct Thread {
    int number = 0;                  // from 0, in the order in which they came
    std::array<char, 32> name = {};  // as NameThreadInTraces has it, ended by a 0
  };
  // Calls `take(thread, event)` for all events; those of a thread come in the order of their ends.
  template <typename Take>
  void ForEach(const Take& take) const {
    for (const Chunk& chunk : chunks_) {
      const int64_t size = chunk.size.load(std::memory_order_acquire);
      for (int64_t i = 0; i < size; ++i) take(chunk.thread, chunk.events[i]);
    }
  }
  int64_t num_events() const;
  int64_t num_dropped() const { return num_dropped_.load(std::memory_order_relaxed); }
  const std::string& label(int number) const { return labels_[static_cast<size_t>(number)]; }

 private:
  static constexpr int64_t kChunkEvents = 64;
  static constexpr int kMostLabels = 1024;
  struct Chunk {
    TraceEvent* events = nullptr;
    std::atomic<int64_t> size = 0;  // written by its thread alone
    Thread thread = {};             // before the first event
  };
  // The calling thread's, with room for one more event; nullptr: none is left.
  Chunk* ChunkOfThisThread();

  static std::atomic<TraceRecorder*> active;

  std::vector<Chunk> chunks_;
  std::atomic<size_t> num_taken_ = 0;
  std::atomic<int> num_threads_ = 0;
  std::atomic<int64_t> num_dropped_ = 0;
  uint64_t number_ = 0;  // of this recording in the process: tells threads that their chunk is old
  int64_t begin_ns_ = 0;
  std::mutex labels_mutex_;
  std::vector<std::string> labels_;  // never moves; written under the mutex
  std::atomic<int> num_labels_ = 0;
};

// Names the calling thread in recordings that begin later. At most 31 bytes of it.
void NameThreadInTraces(std::string_view name);

// The calling thread does this until the end of the scope.
class TraceScope {
 public:
  struct Of {
    int layer = -1;
    int tile = -1;
    int64_t batch = -1;
  };
  explicit TraceScope(const char* name) : TraceScope(name, Of{}) {}
  TraceScope(const char* name, const Of& of)
      : recorder_(TraceRecorder::Active()), name_(name), of_(of) {
    if (recorder_ != nullptr) begin_ns_ = TraceNowNs();
  }
  // An activity; on the training thread, a wait with that cause.
  explicit TraceScope(Activity activity) : recorder_(TraceRecorder::Active()), activity_(activity) {
    if (recorder_ != nullptr) begin_ns_ = TraceNowNs();
  }
  ~TraceScope() {
    if (recorder_ != nullptr) End();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  // Ends here, and begins anew where a recording goes on: for what takes longer than one.
  void Next();

 private:
  void End();

  TraceRecorder* recorder_;
  const char* const name_ = nullptr;
  const Of of_ = {};
  const Activity activity_ = {};
  int64_t begin_ns_ = 0;
};

}  // namespace forebay
