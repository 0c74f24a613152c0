#include "forebay/train/run/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/activity.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/step/layer_window.h"

namespace forebay {
namespace {

// Groups of rows ("processes" of the format), in the order in which they are shown.
enum Group : int { kThreads = 1, kDisks = 2, kDevices = 3 };
constexpr int kNumGroups = 3;

// They stand before the events of a file, and behind them.
constexpr std::string_view kHead = R"({"displayTimeUnit":"ms","traceEvents":[)";
constexpr std::string_view kTail = "\n],\"otherData\":";
constexpr int64_t kMostBytesOfTail = 256;

struct Row {
  Group group = kThreads;
  std::string name;
  bool operator<(const Row& other) const {
    return std::tie(group, name) < std::tie(other.group, other.name);
  }
};

// One event and the row that it belongs to, before events that overlap get rows of their own.
struct Placed {
  const Row* row = nullptr;
  const TraceEvent* event = nullptr;
};

struct TimeSegment {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  Activity activity = Activity::kOther;
};

// Outer events before those within.
bool ComesBefore(const TraceEvent* a, const TraceEvent* b) {
  return std::tuple(a->begin_ns, -a->end_ns) < std::tuple(b->begin_ns, -b->end_ns);
}

// The activities of a thread one after another: of those within one another, the innermost.
// `events`: sorted by ComesBefore, properly nested.
std::vector<TimeSegment> InnermostActivities(const std::vector<const TraceEvent*>& events) {
  std::vector<TimeSegment> segments;
  std::vector<const TraceEvent*> open;
  int64_t at_ns = 0;
  const auto go_to = [&](int64_t end_ns) {
    if (!open.empty() && end_ns > at_ns) {
      segments.push_back({at_ns, end_ns, open.back()->activity});
    }
    at_ns = end_ns;
  };
  const auto close_until = [&](int64_t end_ns) {
    while (!open.empty() && open.back()->end_ns <= end_ns) {
      go_to(open.back()->end_ns);
      open.pop_back();
    }
  };
  for (const TraceEvent* event : events) {
    close_until(event->begin_ns);
    go_to(event->begin_ns);
    open.push_back(event);
  }
  close_until(INT64_MAX);
  return segments;
}

std::string Quoted(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Appends to a file beside the one that it becomes.
class TraceText {
 public:
  explicit TraceText(const std::string& path) : path_(path), temporary_(path + ".tmp") {}
  ~TraceText() {
    if (fd_.valid()) ::unlink(temporary_.c_str());
  }

  absl::Status Open() {
    FOREBAY_ASSIGN_OR_RETURN(fd_, OpenFile(temporary_, O_WRONLY | O_CREAT | O_TRUNC));
    return absl::OkStatus();
  }
  void Append(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kBufferBytes) Write();
  }
  // One object of the list.
  void AppendEvent(std::string_view object) {
    Append(is_first_ ? "\n" : ",\n");
    is_first_ = false;
    Append(object);
  }
  absl::Status Close() {
    Write();
    FOREBAY_RETURN_IF_ERROR(status_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return StorageError(fmt::format("renaming '{}' to '{}' failed", temporary_, path_), errno);
    }
    fd_.Reset();
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kBufferBytes = size_t{64} << 10;
  void Write() {
    if (status_.ok()) {
      status_ = PwriteAll(fd_.get(), std::as_bytes(std::span(buffer_)), offset_, temporary_);
    }
    offset_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
  }

  const std::string path_;
  const std::string temporary_;
  UniqueFd fd_;
  std::string buffer_;
  int64_t offset_ = 0;
  bool is_first_ = true;
  absl::Status status_;
};

class TraceWriter {
 public:
  TraceWriter(const TraceRecorder& recorder, std::span<const TracedStep> steps,
              const Inventory& inventory, const TracedRank& rank, TraceText& text)
      : recorder_(recorder), steps_(steps), inventory_(inventory), rank_(rank), text_(text) {}

  void Write() {
    text_.Append(kHead);
    WriteMetadata(kThreads, 0, "process_name", NameOfGroup("forebay"));
    WriteMetadata(kDisks, 0, "process_name", NameOfGroup("disks"));
    WriteSteps();
    std::vector<Placed> events = Place();
    const bool has_device = std::ranges::any_of(
        events, [](const Placed& placed) { return placed.row->group == kDevices; });
    if (has_device) {
      WriteMetadata(kDevices, 0, "process_name", NameOfGroup("GPU"));
    }
    FindWindowActivities(events);
    for (size_t begin = 0, end = 0; begin < events.size(); begin = end) {
      while (end < events.size() && events[end].row == events[begin].row) ++end;
      WriteRow(std::span(events).subspan(begin, end - begin));
    }
    text_.Append(fmt::format("{}{{\"events_dropped\":{}}}}}\n", kTail, recorder_.num_dropped()));
  }

 private:
  std::string NameOfGroup(std::string_view name) const {
    return rank_.num_ranks == 1 ? std::string(name) : fmt::format("rank {}: {}", rank_.rank, name);
  }
  // Numbers the group among those of all ranks.
  int NumberOf(Group group) const { return group + rank_.rank * kNumGroups; }

  std::string LayerName(int layer) const {
    const auto& layers = inventory_.layers();
    return layer < 0 || layer >= std::ssize(layers) ? "" : layers[static_cast<size_t>(layer)].name;
  }

  Row RowOf(const TraceRecorder::Thread& thread, const TraceEvent& event) const {
    if (event.row == TraceRow::kDevice) {
      return {kDevices, event.label < 0 ? "?" : recorder_.label(event.label)};
    }
    if (event.row == TraceRow::kThread) {
      const std::string name = thread.name.data();
      if (name == kTrainingThread) return {kThreads, name};
      // After the training thread, and each thread of a name by itself.
      return {kThreads, fmt::format("{} ({})", name, thread.number)};
    }
    const std::filesystem::path file = event.label < 0 ? "?" : recorder_.label(event.label);
    const char* const what = event.row == TraceRow::kRead    ? "reads"
                             : event.row == TraceRow::kWrite ? "writes"
                                                             : "flushes";
    return {kDisks, fmt::format("{} of {}", what, file.parent_path().string())};
  }

  // All events, by row and then by time.
  std::vector<Placed> Place() {
    std::vector<Placed> events;
    events.reserve(static_cast<size_t>(recorder_.num_events()));
    recorder_.ForEach([&](const TraceRecorder::Thread& thread, const TraceEvent& event) {
      events.push_back({&*rows_.insert(RowOf(thread, event)).first, &event});
    });
    std::ranges::sort(events, [](const Placed& a, const Placed& b) {
      if (a.row != b.row) return *a.row < *b.row;
      return ComesBefore(a.event, b.event);
    });
    return events;
  }

  void FindWindowActivities(std::span<const Placed> events) {
    std::vector<const TraceEvent*> activities;
    for (const Placed& placed : events) {
      const bool is_window =
          placed.row->group == kThreads && placed.row->name.starts_with(kWindowThread);
      if (is_window && placed.event->name == nullptr) activities.push_back(placed.event);
    }
    window_ = InnermostActivities(activities);
  }

  // Events that overlap another without lying within it go to a further row of the same name.
  void WriteRow(std::span<const Placed> events) {
    std::vector<std::vector<int64_t>> open_ends;  // by row: of the events that are open
    std::vector<int> ids;
    const bool nests = events.front().row->group == kThreads;
    for (const auto& [row, event] : events) {
      size_t i = 0;
      for (; i < open_ends.size(); ++i) {
        std::vector<int64_t>& ends = open_ends[i];
        while (!ends.empty() && ends.back() <= event->begin_ns) ends.pop_back();
        if (ends.empty() || (nests && event->end_ns <= ends.back())) break;
      }
      if (i == open_ends.size()) {
        open_ends.emplace_back();
        ids.push_back(++num_rows_);
        WriteMetadata(row->group, ids.back(), "thread_name", row->name);
        WriteMetadata(row->group, ids.back(), "thread_sort_index", "", OrderOf(*row, ids.back()));
      }
      open_ends[i].push_back(event->end_ns);
      WriteEvent(*row, ids[i], *event);
    }
  }
  static int OrderOf(const Row& row, int id) {
    return row.group == kThreads && row.name == kTrainingThread ? 1 : id + 1;
  }

  void WriteEvent(const Row& row, int id, const TraceEvent& event) {
    const bool trains = row.name == kTrainingThread;
    if (trains && event.name != nullptr && std::string_view(event.name) == kAwaitWindow) {
      return WriteWait(id, event);
    }
    if (event.row != TraceRow::kThread && event.row != TraceRow::kDevice) {
      return WriteTransfer(row, id, event);
    }
    const std::string layer = LayerName(event.layer);
    std::string args;
    const auto add = [&](std::string_view key, std::string value) {
      args += fmt::format("{}\"{}\":{}", args.empty() ? "" : ",", key, value);
    };
    if (!layer.empty()) add("layer", Quoted(layer));
    if (event.tile >= 0) add("tile", fmt::format("{}", event.tile));
    if (event.batch >= 0) add("micro_batch", fmt::format("{}", event.batch));
    if (event.bytes > 0) add("bytes", fmt::format("{}", event.bytes));
    WriteSpan(row.group, id, event.begin_ns, event.end_ns,
              event.name == nullptr ? NameOfActivity(event.activity, trains)
              : layer.empty()       ? std::string(event.name)
                                    : fmt::format("{} {}", event.name, layer),
              args);
  }

  static std::string NameOfActivity(Activity activity, bool trains) {
    const bool works = activity == Activity::kUpdate && !trains;
    return works ? "update a layer" : fmt::format("wait: {}", NameOf(activity));
  }

  // In the pieces that the window's thread had other things to do in.
  void WriteWait(int id, const TraceEvent& event) {
    const auto write = [&](int64_t begin_ns, int64_t end_ns, Activity cause) {
      if (end_ns <= begin_ns) return;
      WriteSpan(kThreads, id, begin_ns, end_ns, NameOfActivity(cause, /*trains=*/true), "");
    };
    int64_t at_ns = event.begin_ns;
    auto segment = std::ranges::upper_bound(window_, at_ns, {}, &TimeSegment::end_ns);
    for (; segment != window_.end() && segment->begin_ns < event.end_ns; ++segment) {
      write(at_ns, segment->begin_ns, Activity::kOther);
      at_ns = std::max(at_ns, segment->begin_ns);
      const int64_t end_ns = std::min(segment->end_ns, event.end_ns);
      write(at_ns, end_ns, segment->activity);
      at_ns = end_ns;
    }
    write(at_ns, event.end_ns, Activity::kOther);
  }

  void WriteTransfer(const Row& row, int id, const TraceEvent& event) {
    const std::filesystem::path file = event.label < 0 ? "?" : recorder_.label(event.label);
    const std::string name = file.filename().string();
    std::string args = fmt::format("\"file\":{},\"wait_in_queue_us\":{:.3f}", Quoted(name),
                                   Micros(event.started_ns - event.begin_ns));
    if (event.row != TraceRow::kFlush) {
      args += fmt::format(",\"offset\":{},\"bytes\":{}", event.offset_bytes, event.bytes);
      const std::optional<int64_t> step = StepOf(event);
      if (step.has_value()) args += fmt::format(",\"step\":{}", *step);
    }
    WriteSpan(row.group, id, event.begin_ns, event.end_ns, name, args);
  }

  // The step whose bytes these are counted with in metrics.jsonl.
  std::optional<int64_t> StepOf(const TraceEvent& event) const {
    const auto total =
        event.row == TraceRow::kRead ? &IoStats::submitted_read_bytes : &IoStats::write_bytes;
    for (const TracedStep& step : steps_) {
      if (event.total_bytes > step.before.*total && event.total_bytes <= step.after.*total) {
        return step.step;
      }
    }
    return std::nullopt;
  }

  void WriteSteps() {
    WriteMetadata(kThreads, 0, "thread_name", "steps");
    WriteMetadata(kThreads, 0, "thread_sort_index", "", 0);
    for (const TracedStep& step : steps_) {
      WriteSpan(kThreads, 0, step.begin_ns, step.end_ns, fmt::format("step {}", step.step),
                fmt::format("\"step\":{},\"read_bytes\":{},\"write_bytes\":{}", step.step,
                            step.after.submitted_read_bytes - step.before.submitted_read_bytes,
                            step.after.write_bytes - step.before.write_bytes));
    }
  }

  static double Micros(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

  void WriteSpan(Group group, int id, int64_t begin_ns, int64_t end_ns, std::string_view name,
                 std::string_view args) {
    text_.AppendEvent(fmt::format(
        R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{},"args":{{{}}}}})",
        NumberOf(group), id, Micros(begin_ns - recorder_.begin_ns()), Micros(end_ns - begin_ns),
        Quoted(name), args));
  }
  void WriteMetadata(Group group, int id, std::string_view what, std::string_view name,
                     int order = 0) {
    const std::string args = what == "thread_sort_index" ? fmt::format("\"sort_index\":{}", order)
                                                         : fmt::format("\"name\":{}", Quoted(name));
    text_.AppendEvent(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{{}}}}})",
                                  NumberOf(group), id, what, args));
  }

  const TraceRecorder& recorder_;
  const std::span<const TracedStep> steps_;
  const Inventory& inventory_;
  const TracedRank rank_;
  TraceText& text_;
  std::set<Row> rows_;
  int num_rows_ = 0;
  std::vector<TimeSegment> window_;  // what its thread did
};

// The events of a file as text, with what separates them: [begin, end) of its bytes.
struct EventsOfFile {
  UniqueFd fd;
  std::string path;
  int64_t begin_bytes = 0;
  int64_t end_bytes = 0;
  std::string tail;  // what is behind them
};

absl::StatusOr<EventsOfFile> OpenEvents(const std::string& path) {
  EventsOfFile file{.path = path, .begin_bytes = std::ssize(kHead)};
  FOREBAY_ASSIGN_OR_RETURN(file.fd, OpenFile(path, O_RDONLY));
  const int64_t size = ::lseek(file.fd.get(), 0, SEEK_END);
  file.tail.resize(static_cast<size_t>(std::clamp<int64_t>(size, 0, kMostBytesOfTail)));
  FOREBAY_RETURN_IF_ERROR(PreadAll(file.fd.get(), std::as_writable_bytes(std::span(file.tail)),
                                   size - std::ssize(file.tail), path));
  const size_t found = file.tail.rfind(kTail);
  if (found == std::string::npos) {
    return CorruptError(fmt::format("'{}' does not end as a trace does", path));
  }
  file.tail.erase(0, found);
  file.end_bytes = size - std::ssize(file.tail);
  return file;
}

absl::Status Copy(const EventsOfFile& file, TraceText& text) {
  std::string piece;
  for (int64_t at = file.begin_bytes; at < file.end_bytes; at += std::ssize(piece)) {
    piece.resize(static_cast<size_t>(std::min<int64_t>(file.end_bytes - at, 64 << 10)));
    FOREBAY_RETURN_IF_ERROR(
        PreadAll(file.fd.get(), std::as_writable_bytes(std::span(piece)), at, file.path));
    text.Append(piece);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteTraceFile(const std::string& path, const TraceRecorder& recorder,
                            std::span<const TracedStep> steps, const Inventory& inventory,
                            const TracedRank& rank) {
  TraceText text(path);
  FOREBAY_RETURN_IF_ERROR(text.Open());
  TraceWriter(recorder, steps, inventory, rank, text).Write();
  return text.Close();
}

absl::Status AppendTraceFile(const std::string& path, const std::string& of_other_rank) {
  FOREBAY_ASSIGN_OR_RETURN(const EventsOfFile own, OpenEvents(path));
  FOREBAY_ASSIGN_OR_RETURN(const EventsOfFile other, OpenEvents(of_other_rank));
  TraceText text(path);
  FOREBAY_RETURN_IF_ERROR(text.Open());
  text.Append(kHead);
  FOREBAY_RETURN_IF_ERROR(Copy(own, text));
  text.Append(",");
  FOREBAY_RETURN_IF_ERROR(Copy(other, text));
  text.Append(own.tail);
  return text.Close();
}

}  // namespace forebay
