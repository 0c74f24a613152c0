// Adam on tensors that live on disk: embedding_example FOLDER trains five steps more at each start.
#include <cmath>

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"
#include "forebay/swap/session/tensor_session.h"
#include "forebay/swap/store/store_state.h"

using namespace forebay;

absl::Status Train(const std::string& folder) {
  Inventory inventory;
  inventory.BeginLayer("layer");
  inventory.Add("weight", {1000, 512}, 0, true);
  inventory.Add("bias", {1000}, 0, false);
  inventory.BeginRawLayer("buffers");
  inventory.AddRaw("num_batches", sizeof(int64_t));
  FOREBAY_ASSIGN_OR_RETURN(const OpenedEngine io, OpenEngine({}, {folder}));
  const SessionOptions memory{.memory_bytes = 64 << 20};  // of 12 bytes for each parameter
  FOREBAY_ASSIGN_OR_RETURN(const FolderState found, LookAtFolder(folder));
  auto opened = HasCommit(found.state)
                    ? TensorSession::Open(memory, {folder}, io.engine.get())
                    : TensorSession::Create(memory, {{folder}}, inventory, io.engine.get());
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSession> session, std::move(opened));
  const int64_t done = session->committed().has_value() ? session->committed()->step : 0;
  for (int64_t step = done + 1; step <= done + 5; ++step) {
    for (const TensorSpec& tensor : session->inventory().tensors()) {
      if (tensor.raw) continue;
      const LeaseRequest requests[] = {{tensor.name, TensorPlane::kMaster, LeaseAccess::kWrite},
                                       {tensor.name, TensorPlane::kM, LeaseAccess::kWrite},
                                       {tensor.name, TensorPlane::kV, LeaseAccess::kWrite}};
      TensorLease leases[3];
      FOREBAY_RETURN_IF_ERROR(session->AcquireAll(requests, leases));
      const auto w = leases[0].floats(), m = leases[1].floats(), v = leases[2].floats();
      for (size_t i = 0; i < w.size(); ++i) {
        const float gradient = w[i] - 1.0f;  // of (w - 1)^2 / 2: yours is a backward pass
        m[i] += 0.1f * (gradient - m[i]);
        v[i] += 0.001f * (gradient * gradient - v[i]);
        w[i] -= 0.01f * m[i] / (std::sqrt(v[i]) + 1e-8f);
      }
      // Written back while the next tensor is computed.
      for (TensorLease& lease : leases) FOREBAY_RETURN_IF_ERROR(lease.Release());
    }
    FOREBAY_ASSIGN_OR_RETURN(TensorLease buffer, session->Acquire("num_batches", TensorPlane::kRaw,
                                                                  LeaseAccess::kWrite));
    ++*reinterpret_cast<int64_t*>(buffer.writable_bytes().data());
    FOREBAY_RETURN_IF_ERROR(buffer.Release());
    FOREBAY_RETURN_IF_ERROR(session->Commit(step, {{"rows_seen", 32 * step}}));
  }
  float bias = 0;
  FOREBAY_RETURN_IF_ERROR(session->ReadCommitted("bias", TensorPlane::kMaster, 999, {&bias, 1}));
  int64_t num_batches = 0;
  FOREBAY_RETURN_IF_ERROR(session->ReadCommittedRaw(
      "num_batches", 0, std::as_writable_bytes(std::span(&num_batches, 1))));
  const SessionStats stats = session->stats();
  fmt::print("step {}: bias {:.4f}, {} batches, {:.1f} MB read, {:.1f} MB written\n", done + 5,
             bias, num_batches, 1e-6 * stats.read_bytes, 1e-6 * stats.write_bytes);
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const absl::Status status = argc == 2 ? Train(argv[1]) : UsageError("name a folder");
  if (!status.ok()) fmt::print(stderr, "{}\n", MessageOf(status));
  return static_cast<int>(ExitCodeOf(status));
}
