#include "forebay/device/stream_trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

int64_t NsOf(double seconds) {
  return std::llround(seconds * 1e9);
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamTrace>> StreamTrace::Create(Device* device, std::string name,
                                                                 int64_t num_slices) {
  std::unique_ptr<StreamTrace> trace(new StreamTrace(device, std::move(name)));
  FOREBAY_ASSIGN_OR_RETURN(trace->anchor_, device->CreateTimedEvent());
  FOREBAY_ASSIGN_OR_RETURN(trace->stream_, device->CreateStream());
  trace->slices_.resize(static_cast<size_t>(num_slices));
  for (Slice& slice : trace->slices_) {
    FOREBAY_ASSIGN_OR_RETURN(slice.begin, device->CreateTimedEvent());
    FOREBAY_ASSIGN_OR_RETURN(slice.end, device->CreateTimedEvent());
  }
  FOREBAY_CHECK(device->stream_trace() == nullptr);
  device->SetStreamTrace(trace.get());
  return trace;
}

StreamTrace::~StreamTrace() {
  if (device_->stream_trace() == this) device_->SetStreamTrace(nullptr);
}

StreamRow* StreamTrace::AddRow(std::string_view name) {
  const std::lock_guard lock(mutex_);
  rows_.push_back({.trace = this, .name = fmt::format("{}: {}", name_, name)});
  return &rows_.back();
}

void StreamTrace::Start(TraceRecorder* recorder) {
  const int64_t before_ns = TraceNowNs();
  if (!stream_->Record(*anchor_).ok() || !anchor_->Await().ok()) return;
  anchor_ns_ = before_ns + (TraceNowNs() - before_ns) / 2;
  const std::lock_guard lock(mutex_);
  recorder_ = recorder;
  is_recording_ = true;
}

void StreamTrace::Stop() {
  {
    const std::lock_guard lock(mutex_);
    if (!is_recording_.exchange(false)) return;
  }
  // From the oldest on. What another thread still enqueues is cut off, as at the end of any row.
  for (size_t i = 0; i < slices_.size(); ++i) {
    Slice& slice = slices_[(static_cast<size_t>(num_begun_) + i) % slices_.size()];
    if (HasEnded(slice)) Give(slice);
  }
}

bool StreamTrace::HasEnded(const Slice& slice) {
  const std::lock_guard lock(mutex_);
  return slice.state == Slice::State::kEnded;
}

// The slice that was used longest ago. Nobody waits for its work.
StreamTrace::Slice* StreamTrace::Take() {
  const std::lock_guard lock(mutex_);
  if (!is_recording_) return nullptr;
  Slice& slice = slices_[static_cast<size_t>(num_begun_) % slices_.size()];
  if (slice.state == Slice::State::kEnded && slice.end->IsReached().value_or(false)) Give(slice);
  if (slice.state != Slice::State::kFree) {
    recorder_->CountDropped();
    return nullptr;
  }
  ++num_begun_;
  slice.state = Slice::State::kOpen;
  return &slice;
}

// Leaves it out where the device has failed. Requires: the lock, or that nothing is recorded.
void StreamTrace::Give(Slice& slice) {
  slice.state = Slice::State::kFree;
  const absl::StatusOr<double> begin_s = slice.begin->SecondsSince(*anchor_);
  const absl::StatusOr<double> length_s = slice.end->SecondsSince(*slice.begin);
  if (!begin_s.ok() || !length_s.ok()) return;
  // A device rounds its times, the longer the more: they are not to make slices overlap.
  const int64_t begin_ns = anchor_ns_ + NsOf(*begin_s);
  slice.event.begin_ns = std::max(begin_ns, slice.row->end_ns);
  slice.event.end_ns = std::max(begin_ns + NsOf(*length_s), slice.event.begin_ns);
  slice.event.label = recorder_->LabelOf(slice.row->name);
  slice.row->end_ns = slice.event.end_ns;
  recorder_->Add(slice.event);
}

StreamTrace::Slice* StreamTrace::Begin(Stream& stream, const TraceEvent& event) {
  if (!is_recording_) return nullptr;
  Slice* const slice = Take();
  if (slice == nullptr) return nullptr;
  slice->row = stream.row();
  slice->event = event;
  if (stream.Record(*slice->begin).ok()) return slice;
  const std::lock_guard lock(mutex_);
  slice->state = Slice::State::kFree;
  return nullptr;
}

void StreamTrace::End(Stream& stream, Slice& slice) {
  const bool is_recorded = stream.Record(*slice.end).ok();
  const std::lock_guard lock(mutex_);
  slice.state = is_recorded ? Slice::State::kEnded : Slice::State::kFree;
}

absl::StatusOr<std::unique_ptr<Stream>> CreateTracedStream(Device* device, std::string_view name) {
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device->CreateStream());
  if (device->stream_trace() != nullptr) stream->SetRow(device->stream_trace()->AddRow(name));
  return stream;
}

void StreamScope::Begin(const char* name, const TraceScope::Of& of, int64_t bytes) {
  TraceEvent event;
  event.row = TraceRow::kDevice;
  event.name = name;
  event.layer = of.layer;
  event.tile = of.tile;
  event.batch = static_cast<int32_t>(of.batch);
  event.bytes = bytes;
  slice_ = stream_.row()->trace->Begin(stream_, event);
}

}  // namespace forebay
