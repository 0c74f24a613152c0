#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/capi/c_io.h"

namespace forebay::capi {
namespace {

std::string NameOf(const IoRequest& request) {
  return request.path.empty() ? fmt::format("descriptor {}", request.fd) : request.path;
}

// The file of the request, opened anew: a descriptor that was lent may have O_APPEND, under which a
// write goes elsewhere, or the wrong O_DIRECT.
absl::StatusOr<UniqueFd> OpenFileOf(const IoRequest& request) {
  const bool is_write = request.kind == IoKind::kWrite;
  const std::string path =
      request.path.empty() ? fmt::format("/proc/self/fd/{}", request.fd) : request.path;
  absl::StatusOr<UniqueFd> fd = OpenFile(path, is_write ? O_WRONLY : O_RDONLY);
  if (!fd.ok() && ExitCodeOf(fd.status()) == ExitCode::kBadInput && is_write &&
      !request.path.empty()) {
    fd = OpenFile(path, O_WRONLY | O_CREAT);
  }
  if (!fd.ok()) return Annotate(fd.status(), "io: " + NameOf(request));
  return fd;
}

// UsageError: it is no regular file. BadInputError: a read begins or ends behind its end.
absl::Status CheckFile(const IoRequest& request, int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    return StorageError(fmt::format("io: stat of '{}' failed", NameOf(request)), errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return UsageError(fmt::format("io: '{}' is no regular file. Name one", NameOf(request)));
  }
  const auto num_bytes = static_cast<int64_t>(request.memory.size());
  if (request.kind == IoKind::kWrite || request.offset_bytes + num_bytes <= info.st_size) {
    return absl::OkStatus();
  }
  return BadInputError(fmt::format(
      "io: a read of {} bytes at {} of '{}' ends behind the end of the file, which has {} bytes. "
      "Read less, or look whether everything was written to it",
      num_bytes, request.offset_bytes, NameOf(request), info.st_size));
}

// Switches O_DIRECT on where that can be had; else leaves the file as it is. Whole pages are
// transferred directly, also where the file system takes less: what is left goes through the page
// cache, and a page that both write to loses what one of them has written.
TransferLimits MakeDirect(int fd) {
  if (!SwitchToDirect(fd).empty()) return {};
  static const int64_t page_bytes = std::max<int64_t>(kIoAlignBytes, ::sysconf(_SC_PAGESIZE));
  return {.range_bytes = page_bytes, .memory_bytes = DirectMemoryAlign(fd)};
}

int64_t UpTo(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

DirectPart DirectPartOf(const TransferLimits& limits, int64_t offset_bytes,
                        std::span<const std::byte> memory) {
  if (!limits.direct()) return {};
  const int64_t first_byte = UpTo(offset_bytes, limits.range_bytes) - offset_bytes;
  const auto rest_bytes = static_cast<int64_t>(memory.size()) - first_byte;
  const auto address = reinterpret_cast<uintptr_t>(memory.data()) + first_byte;
  if (rest_bytes < limits.range_bytes || address % limits.memory_bytes != 0) return {};
  return {first_byte, rest_bytes / limits.range_bytes * limits.range_bytes};
}

IoRequests::~IoRequests() {
  int64_t num_ended = 0;
  WaitAll(num_ended).IgnoreError();
}

absl::StatusOr<uint64_t> IoRequests::Submit(const IoRequest& request) {
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd direct, OpenFileOf(request));
  FOREBAY_RETURN_IF_ERROR(CheckFile(request, direct.get()));
  const TransferLimits limits = MakeDirect(direct.get());
  const DirectPart part = DirectPartOf(limits, request.offset_bytes, request.memory);
  UniqueFd cached;
  if (part.num_bytes < static_cast<int64_t>(request.memory.size())) {
    if (limits.direct()) {
      FOREBAY_ASSIGN_OR_RETURN(cached, OpenFileOf(request));
    } else {
      cached = std::exchange(direct, UniqueFd());
    }
  }
  auto running = std::make_unique<Running>();
  const std::lock_guard lock(mutex_);
  Running& started = *(running_[++last_ticket_] = std::move(running));
  Start(started, request, limits, std::move(direct), std::move(cached));
  return last_ticket_;
}

void IoRequests::Start(Running& running, const IoRequest& request, const TransferLimits& limits,
                       UniqueFd direct, UniqueFd cached) {
  const DirectPart part = DirectPartOf(limits, request.offset_bytes, request.memory);
  const auto num_bytes = static_cast<int64_t>(request.memory.size());
  if (part.num_bytes > 0) running.files[0] = engine_->AddFile(std::move(direct), NameOf(request));
  if (cached.valid()) running.files[1] = engine_->AddFile(std::move(cached), NameOf(request));
  const auto add = [&](int file, int64_t first_byte, int64_t end_byte, int64_t align_bytes) {
    if (end_byte <= first_byte) return;
    IoOp& op = running.ops[running.num_ops++];
    op.kind = request.kind;
    op.file = file;
    op.offset_bytes = request.offset_bytes + first_byte;
    op.buffer = request.memory.subspan(static_cast<size_t>(first_byte),
                                       static_cast<size_t>(end_byte - first_byte));
    op.align_bytes = align_bytes;
    engine_->Submit(op);
  };
  const int64_t end_byte = part.first_byte + part.num_bytes;
  add(running.files[1], 0, part.first_byte, 1);
  add(running.files[0], part.first_byte, end_byte,
      std::min(limits.range_bytes, limits.memory_bytes));
  add(running.files[1], end_byte, num_bytes, 1);
}

absl::Status IoRequests::Finish(Running& running) {
  absl::Status status;
  for (size_t i = 0; i < running.num_ops; ++i) status.Update(engine_->Wait(running.ops[i]));
  for (const int file : running.files) {
    if (file >= 0) engine_->RemoveFile(file);
  }
  return status;
}

absl::Status IoRequests::Wait(uint64_t ticket) {
  std::unique_ptr<Running> running;
  {
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(ticket);
    if (found == running_.end()) {
      return UsageError(fmt::format(
          "io: no request has the ticket {}. Wait once for each that forebay_io_submit gave",
          ticket));
    }
    running = std::move(found->second);
    running_.erase(found);
  }
  return Finish(*running);
}

absl::Status IoRequests::WaitAll(int64_t& num_ended) {
  std::map<uint64_t, std::unique_ptr<Running>> running;
  {
    const std::lock_guard lock(mutex_);
    running.swap(running_);
  }
  num_ended = static_cast<int64_t>(running.size());
  absl::Status status;
  for (auto& [ticket, request] : running) status.Update(Finish(*request));
  return status;
}

}  // namespace forebay::capi
