// The part of NCCL's C interface that is used here, as a table of its functions. Opened when it is
// needed, so that forebay runs where there is no NCCL. Source: nccl.h of NCCL 2.18 and later.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace forebay {

struct Nccl {
  using Communicator = void*;
  struct UniqueId {
    char bytes[128];
  };
  // As of 2.14; later versions have more behind it, and take this for what it is.
  struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;
    int blocking = 0;
  };
  static constexpr int kSuccess = 0;
  static constexpr int kInProgress = 7;
  static constexpr int kInt8 = 0;  // ncclDataType_t

  int (*GetUniqueId)(UniqueId* id);
  int (*CommInitRankConfig)(Communicator* communicator, int num_ranks, UniqueId id, int rank,
                            Config* config);
  int (*CommFinalize)(Communicator communicator);
  int (*CommDestroy)(Communicator communicator);
  int (*CommAbort)(Communicator communicator);
  int (*CommGetAsyncError)(Communicator communicator, int* error);
  const char* (*GetErrorString)(int error);
  int (*GroupStart)();
  int (*GroupEnd)();
  int (*Send)(const void* bytes, size_t count, int type, int peer, Communicator communicator,
              void* stream);
  int (*Recv)(void* bytes, size_t count, int type, int peer, Communicator communicator,
              void* stream);
};

// libnccl.so.2 of the system or of the Python package nvidia-nccl-cu13, or the file that
// FOREBAY_NCCL names. EnvironmentError: where it was looked for.
absl::StatusOr<const Nccl*> LoadNccl();
// The file that it was loaded from, for people; its errors.
absl::StatusOr<std::string> NcclFile();

}  // namespace forebay
