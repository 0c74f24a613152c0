#include "forebay/base/trace.h"

#include <algorithm>
#include <chrono>

#include "forebay/base/activity.h"
#include "forebay/base/check.h"

namespace forebay {
namespace {

struct OfThisThread {
  TraceRecorder::Thread row = {.name = {"thread"}};
  uint64_t recording = 0;  // that `chunk` and the row's number are of
  void* chunk = nullptr;
};
thread_local OfThisThread this_thread;

std::atomic<uint64_t> num_recordings = 0;

}  // namespace

std::atomic<TraceRecorder*> TraceRecorder::active = nullptr;

TraceRecorder::TraceRecorder(std::span<std::byte> memory)
    : chunks_(memory.size() / (kChunkEvents * sizeof(TraceEvent))),
      number_(num_recordings.fetch_add(1) + 1),
      labels_(kMostLabels) {
  FOREBAY_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % alignof(TraceEvent) == 0);
  auto* const events = reinterpret_cast<TraceEvent*>(memory.data());
  for (size_t i = 0; i < chunks_.size(); ++i) chunks_[i].events = events + i * kChunkEvents;
}

TraceRecorder::~TraceRecorder() {
  Stop();
}

bool TraceRecorder::Start() {
  begin_ns_ = TraceNowNs();
  TraceRecorder* none = nullptr;
  return active.compare_exchange_strong(none, this);
}

void TraceRecorder::Stop() {
  TraceRecorder* self = this;
  active.compare_exchange_strong(self, nullptr);
}

TraceRecorder::Chunk* TraceRecorder::ChunkOfThisThread() {
  OfThisThread& own = this_thread;
  auto* const current = static_cast<Chunk*>(own.chunk);
  const bool is_new = own.recording != number_;
  if (!is_new &&
      (current == nullptr || current->size.load(std::memory_order_relaxed) < kChunkEvents)) {
    return current;
  }
  if (is_new) own.row.number = num_threads_.fetch_add(1);
  own.recording = number_;
  own.chunk = nullptr;
  const size_t taken = num_taken_.fetch_add(1);
  if (taken >= chunks_.size()) return nullptr;
  Chunk& chunk = chunks_[taken];
  chunk.thread = own.row;
  own.chunk = &chunk;
  return &chunk;
}

void TraceRecorder::Add(const TraceEvent& event) {
  Chunk* const chunk = ChunkOfThisThread();
  if (chunk == nullptr) {
    CountDropped();
    return;
  }
  const int64_t size = chunk->size.load(std::memory_order_relaxed);
  chunk->events[size] = event;
  chunk->size.store(size + 1, std::memory_order_release);
}

int64_t TraceRecorder::num_events() const {
  int64_t num_events = 0;
  ForEach([&](const Thread&, const TraceEvent&) { ++num_events; });
  return num_events;
}

int TraceRecorder::LabelOf(std::string_view text) {
  const auto find = [&](int begin, int end) {
    while (begin < end && labels_[static_cast<size_t>(begin)] != text) ++begin;
    return begin;
  };
  const int known = num_labels_.load(std::memory_order_acquire);
  const int found = find(0, known);
  if (found < known) return found;
  const std::lock_guard lock(labels_mutex_);
  const int size = num_labels_.load(std::memory_order_relaxed);
  const int found_since = find(known, size);
  if (found_since < size) return found_since;
  if (size == kMostLabels) return -1;
  labels_[static_cast<size_t>(size)] = text;
  num_labels_.store(size + 1, std::memory_order_release);
  return size;
}

int64_t TraceNowNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void NameThreadInTraces(std::string_view name) {
  std::array<char, 32>& kept = this_thread.row.name;
  kept = {};
  std::ranges::copy(name.substr(0, kept.size() - 1), kept.begin());
}

void TraceScope::End() {
  TraceEvent event;
  event.begin_ns = begin_ns_;
  event.end_ns = TraceNowNs();
  event.name = name_;
  event.activity = activity_;
  event.layer = of_.layer;
  event.tile = of_.tile;
  event.batch = static_cast<int32_t>(of_.batch);
  recorder_->Add(event);
}

void TraceScope::Next() {
  if (recorder_ != nullptr) End();
  recorder_ = TraceRecorder::Active();
  begin_ns_ = recorder_ != nullptr ? TraceNowNs() : 0;
}

}  // namespace forebay
