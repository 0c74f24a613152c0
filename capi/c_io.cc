// The disk engine of c.h.
#include "forebay/capi/c_io.h"

#include <limits>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/capi/c.h"
#include "forebay/capi/c_status.h"

struct forebay_io : forebay::capi::Handle {
  explicit forebay_io(std::unique_ptr<forebay::Engine> engine) : requests(std::move(engine)) {}
  forebay::capi::IoRequests requests;
};

namespace forebay::capi {
namespace {

absl::StatusOr<EngineOptions> EngineOptionsOf(const forebay_io_options* given) {
  FOREBAY_ASSIGN_OR_RETURN(const forebay_io_options options, OptionsOf(given));
  constexpr int32_t kMaxThreads = 256;
  constexpr int64_t kMaxBytes = int64_t{1} << 40;
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return UsageError(fmt::format("num_threads is {}, and has to be from 0 to {}",
                                  options.num_threads, kMaxThreads));
  }
  if (options.block_bytes < 0 || options.block_bytes > kMaxBytes ||
      options.block_bytes % kIoAlignBytes != 0) {
    return UsageError(fmt::format("block_bytes is {}, and has to be a multiple of {}",
                                  options.block_bytes, kIoAlignBytes));
  }
  if (options.max_in_flight_bytes < 0 || options.max_in_flight_bytes > kMaxBytes) {
    return UsageError(fmt::format("max_in_flight_bytes is {}, and has to be from 0 to {}",
                                  options.max_in_flight_bytes, kMaxBytes));
  }
  EngineOptions result;
  if (options.num_threads > 0) result.num_threads = options.num_threads;
  result.block_bytes = options.block_bytes;
  if (options.max_in_flight_bytes > 0) result.max_in_flight_bytes = options.max_in_flight_bytes;
  return result;
}

absl::StatusOr<std::unique_ptr<Engine>> OpenBestEngine(const EngineOptions& options) {
  if (auto engine = CreateIoUringEngine(options); engine.ok()) return engine;
  if (auto engine = CreateLibaioEngine(options); engine.ok()) return engine;
  return CreateThreadsEngine(options);
}

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const forebay_io_options* given) {
  FOREBAY_ASSIGN_OR_RETURN(const EngineOptions options, EngineOptionsOf(given));
  FOREBAY_ASSIGN_OR_RETURN(const forebay_io_options known, OptionsOf(given));
  switch (known.engine) {
    case FOREBAY_ENGINE_AUTO:
      return OpenBestEngine(options);
    case FOREBAY_ENGINE_URING:
      return CreateIoUringEngine(options);
    case FOREBAY_ENGINE_LIBAIO:
      return CreateLibaioEngine(options);
    case FOREBAY_ENGINE_THREADS:
      return CreateThreadsEngine(options);
    default:
      return UsageError(
          fmt::format("engine is {}, and has to be one of FOREBAY_ENGINE_AUTO, _URING, _LIBAIO and "
                      "_THREADS",
                      known.engine));
  }
}

absl::StatusOr<IoRequest> RequestOf(const forebay_io_request* given) {
  FOREBAY_ASSIGN_OR_RETURN(const forebay_io_request request, OptionsOf(given));
  if (request.num_bytes > 0) FOREBAY_RETURN_IF_ERROR(CheckPointer(request.data, "data"));
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  if (request.offset_bytes < 0 ||
      request.num_bytes > static_cast<uint64_t>(kMax - request.offset_bytes)) {
    return UsageError(fmt::format("{} bytes at {} are no range of a file", request.num_bytes,
                                  request.offset_bytes));
  }
  IoRequest result;
  result.kind = request.is_write != 0 ? IoKind::kWrite : IoKind::kRead;
  result.fd = request.fd;
  result.offset_bytes = request.offset_bytes;
  result.memory = {static_cast<std::byte*>(request.data), request.num_bytes};
  if (request.path == nullptr) return result;
  FOREBAY_ASSIGN_OR_RETURN(result.path, TextOf(request.path, request.path_length, "path"));
  if (result.path.empty() || result.path.find('\0') != std::string::npos) {
    return UsageError("path is empty, or has a zero byte in it. Name a file");
  }
  return result;
}

absl::Status Submit(forebay_io* io, const forebay_io_request* given, uint64_t* ticket) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(io, "io"));
  FOREBAY_RETURN_IF_ERROR(CheckPointer(ticket, "ticket"));
  FOREBAY_ASSIGN_OR_RETURN(const IoRequest request, RequestOf(given));
  FOREBAY_ASSIGN_OR_RETURN(*ticket, io->requests.Submit(request));
  return absl::OkStatus();
}

absl::Status WaitAll(forebay_io* io, int64_t* num_ended) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(io, "io"));
  int64_t count = 0;
  const absl::Status status = io->requests.WaitAll(count);
  if (num_ended != nullptr) *num_ended = count;
  return status;
}

Json StatsOf(const Engine& engine) {
  const IoStats stats = engine.stats();
  return {{"engine", engine.name()},          {"read_bytes", stats.read_bytes},
          {"write_bytes", stats.write_bytes}, {"read_ops", stats.read_ops},
          {"write_ops", stats.write_ops},     {"read_us", stats.read_us},
          {"write_us", stats.write_us}};
}

}  // namespace
}  // namespace forebay::capi

using forebay::capi::CheckPointer;
using forebay::capi::Run;

extern "C" {

int32_t forebay_io_create(const forebay_io_options* options, forebay_io** io, char** message) {
  return Run(message, [&] {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(io, "io"));
    FOREBAY_ASSIGN_OR_RETURN(auto engine, forebay::capi::CreateEngine(options));
    *io = new forebay_io(std::move(engine));
    return absl::OkStatus();
  });
}

void forebay_io_destroy(forebay_io* io) {
  forebay::capi::Destroy(io);
}

int32_t forebay_io_submit(forebay_io* io, const forebay_io_request* request, uint64_t* ticket,
                          char** message) {
  return Run(message, [&] { return forebay::capi::Submit(io, request, ticket); });
}

int32_t forebay_io_wait(forebay_io* io, uint64_t ticket, char** message) {
  return Run(message, [&] {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(io, "io"));
    return io->requests.Wait(ticket);
  });
}

int32_t forebay_io_wait_all(forebay_io* io, int64_t* num_ended, char** message) {
  return Run(message, [&] { return forebay::capi::WaitAll(io, num_ended); });
}

int32_t forebay_io_stats_json(forebay_io* io, char** json, char** message) {
  return Run(message, [&] {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(io, "io"));
    return forebay::capi::Give(forebay::capi::StatsOf(io->requests.engine()).dump(), json);
  });
}

}  // extern "C"
