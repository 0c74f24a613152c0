// Stands in for libnccl.so.2 where GPUs are emulated: its C interface over shared memory, for ranks
// that are threads or processes of one machine. As a communicator of NCCL's that does not block, it
// says "in progress" until the group's bytes have come, and sees nothing of a rank that has gone.
//
// The test program is linked with the emulated CUDA runtime and exports it to this library.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kSystemError = 2;
constexpr int kInProgress = 7;
constexpr uint64_t kRingBytes = 1 << 14;

// Bytes from one rank to another.
struct Ring {
  std::atomic<uint64_t> num_written;
  std::atomic<uint64_t> num_read;
  char bytes[kRingBytes];
};

struct Transfer {
  int peer = 0;
  void* device_bytes = nullptr;
  std::vector<char> bytes;
  size_t num_done = 0;
  cudaStream_t stream = nullptr;
};

struct TwinCommunicator {
  int rank = 0;
  int num_ranks = 0;
  Ring* rings = nullptr;  // [from, to]
  std::atomic<int>* num_joined = nullptr;
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;

  size_t size_bytes() const {
    return sizeof(Ring) * static_cast<size_t>(num_ranks * num_ranks) + sizeof(std::atomic<int>);
  }
  Ring& RingOf(int from, int to) { return rings[from * num_ranks + to]; }
};

thread_local TwinCommunicator* grouped = nullptr;

void Write(Ring& ring, Transfer& transfer) {
  uint64_t at = ring.num_written.load(std::memory_order_relaxed);
  const uint64_t end = ring.num_read.load(std::memory_order_acquire) + kRingBytes;
  for (; at < end && transfer.num_done < transfer.bytes.size(); ++at) {
    ring.bytes[at % kRingBytes] = transfer.bytes[transfer.num_done++];
  }
  ring.num_written.store(at, std::memory_order_release);
}

void Read(Ring& ring, Transfer& transfer) {
  uint64_t at = ring.num_read.load(std::memory_order_relaxed);
  const uint64_t end = ring.num_written.load(std::memory_order_acquire);
  for (; at < end && transfer.num_done < transfer.bytes.size(); ++at) {
    transfer.bytes[transfer.num_done++] = ring.bytes[at % kRingBytes];
  }
  ring.num_read.store(at, std::memory_order_release);
}

// Whether every byte of the group has come and gone.
bool GoOn(TwinCommunicator& communicator) {
  bool is_done = true;
  for (Transfer& send : communicator.sends) {
    Write(communicator.RingOf(communicator.rank, send.peer), send);
    is_done &= send.num_done == send.bytes.size();
  }
  for (Transfer& receive : communicator.receives) {
    Read(communicator.RingOf(receive.peer, communicator.rank), receive);
    is_done &= receive.num_done == receive.bytes.size();
  }
  return is_done;
}

}  // namespace

extern "C" {

struct ncclUniqueId {
  char bytes[128];
};

int ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> count{0};
  std::snprintf(id->bytes, sizeof id->bytes, "/forebay_nccl_%d_%d", static_cast<int>(getpid()),
                count++);
  return kSuccess;
}

int ncclCommInitRankConfig(void** communicator, int num_ranks, ncclUniqueId id, int rank,
                           void* /*config*/) {
  auto* const made = new TwinCommunicator;
  made->rank = rank;
  made->num_ranks = num_ranks;
  const int file = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(made->size_bytes())) != 0) return kSystemError;
  void* const memory =
      mmap(nullptr, made->size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return kSystemError;
  made->rings = static_cast<Ring*>(memory);
  made->num_joined = reinterpret_cast<std::atomic<int>*>(made->rings + num_ranks * num_ranks);
  if (++*made->num_joined == num_ranks) shm_unlink(id.bytes);
  *communicator = made;
  return kInProgress;
}

int ncclCommFinalize(void*) {
  return kSuccess;
}

int ncclCommDestroy(void* communicator) {
  auto* const twin = static_cast<TwinCommunicator*>(communicator);
  munmap(twin->rings, twin->size_bytes());
  delete twin;
  return kSuccess;
}

int ncclCommAbort(void* communicator) {
  return ncclCommDestroy(communicator);
}

const char* ncclGetErrorString(int) {
  return "an error of the stand-in";
}

int ncclGroupStart() {
  grouped = nullptr;
  return kSuccess;
}

int ncclSend(const void* bytes, size_t count, int, int peer, void* communicator,
             cudaStream_t stream) {
  grouped = static_cast<TwinCommunicator*>(communicator);
  grouped->sends.push_back({peer, const_cast<void*>(bytes), std::vector<char>(count), 0, stream});
  return kSuccess;
}

int ncclRecv(void* bytes, size_t count, int, int peer, void* communicator, cudaStream_t stream) {
  grouped = static_cast<TwinCommunicator*>(communicator);
  grouped->receives.push_back({peer, bytes, std::vector<char>(count), 0, stream});
  return kSuccess;
}

int ncclGroupEnd() {
  if (grouped == nullptr) return kSuccess;
  for (Transfer& send : grouped->sends) {
    cudaMemcpyAsync(send.bytes.data(), send.device_bytes, send.bytes.size(), cudaMemcpyDeviceToHost,
                    send.stream);
    cudaStreamSynchronize(send.stream);
  }
  return kInProgress;
}

int ncclCommGetAsyncError(void* communicator, int* error) {
  auto* const twin = static_cast<TwinCommunicator*>(communicator);
  const bool is_done = *twin->num_joined == twin->num_ranks && GoOn(*twin);
  *error = is_done ? kSuccess : kInProgress;
  if (!is_done) return kSuccess;
  for (Transfer& receive : twin->receives) {
    cudaMemcpyAsync(receive.device_bytes, receive.bytes.data(), receive.bytes.size(),
                    cudaMemcpyHostToDevice, receive.stream);
    cudaStreamSynchronize(receive.stream);
  }
  twin->sends.clear();
  twin->receives.clear();
  return kSuccess;
}

}  // extern "C"
