// The weights of whole layers on a rank whose store has a part of each: every rank's part comes
// from its window, and all of them are gathered while the layer before is computed.
//
//   window            part 0       part 1       part 2 ...           (swap/window/swapper.h)
//   communicator        gather 0     gather 1     gather 2 ...
//   caller                           compute 0    compute 1 ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/collective/communicator.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/tiles/inventory_parts.h"
#include "forebay/swap/window/swapper.h"

namespace forebay {

// How long the weights of whole layers stay in RAM.
enum class GatheredFor : uint8_t {
  kUse,   // until they are released: each use gathers them (ZeRO's stage 3)
  kStep,  // all layers, until they change: each is gathered once in a step (stages 1 and 2)
};

struct GatheredWeightsOptions {
  GatheredFor length = GatheredFor::kUse;
  int most_held = 2;         // of kUse: so many layers at one time, while one more is gathered
  Device* device = nullptr;  // that copies from the buffers; nullptr: none does
};

// Every rank makes the same calls in the same order: that alone decides what is gathered when. Of
// kStep ranks may acquire different layers, as a module with branches does: layers are gathered
// from the first to the last, all of them before Settle or Forget returns, if any was acquired.
//
// Owned by one thread. Between two calls the communicator's thread may use the swapper: others call
// it behind Settle, but for Expect. A step of `forebay train` allocates nothing here after Create.
class GatheredWeights {
 public:
  // Charges ChargedBytes. Everything pointed to must outlive it. `dtype`: of the stored weights.
  // OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<GatheredWeights>> Create(
      const InventoryParts* parts, DType dtype, GatheredWeightsOptions options, Communicator* ranks,
      Swapper* swapper, MemoryBudget* budget);
  ~GatheredWeights();
  static int64_t ChargedBytes(const Inventory& whole, DType dtype, GatheredWeightsOptions options);

  // As ParamSource's (step/param_source.h).
  void Expect(std::span<const int> layers);
  // The whole layer's flat vector. EnvironmentError of the ranks, which has the swapper's error
  // where that is why.
  absl::StatusOr<std::span<const std::byte>> Acquire(int layer);
  // `done`: as WeightsLease::Release has it; the layer's memory is not written to before.
  void Release(int layer, Event* done = nullptr);

  // Waits for what is to be gathered. Every rank does so here.
  void Settle();
  // Forgets what was announced and not acquired. Requires: every rank does so here.
  void CancelExpected();
  // The weights change: what is kept is no longer theirs. Requires: nothing is announced or lent.
  void Forget();

 private:
  class PartArrival;
  struct Buffer {
    HostBuffer memory;
    std::unique_ptr<PartArrival> part;
    int layer = -1;  // that it holds, or will hold; -1: none
    int num_lent = 0;
    bool is_under_way = false;
    CollectiveTicket ticket;
  };

  GatheredWeights(const InventoryParts* parts, DType dtype, GatheredFor length, Communicator* ranks,
                  Swapper* swapper);
  static std::vector<int64_t> BufferBytes(const Inventory& whole, DType dtype,
                                          GatheredWeightsOptions options);
  // The buffer with the layer for another use, or where it may be gathered; nullptr: none.
  Buffer* Find(int layer);
  Buffer* FindFree();
  void Start(Buffer& buffer, int layer);
  absl::StatusOr<Buffer*> BufferFor(int layer);
  void StartAhead();
  void StartUpTo(int layer);
  void ExpectRest();
  int num_layers() const { return static_cast<int>(offsets_bytes_.size()); }
  void AwaitStarted();
  std::span<std::byte> BytesOf(Buffer& buffer) const;

  const InventoryParts* const parts_;
  const int64_t elem_bytes_;
  const GatheredFor length_;
  Communicator* const ranks_;
  Swapper* const swapper_;
  std::vector<Buffer> buffers_;
  std::vector<std::vector<int64_t>> offsets_bytes_;  // of the parts, by layer
  std::vector<int> announced_;                       // from next_ on not acquired
  size_t next_ = 0;
  // With kStep: layers before this one are gathered, or under way; and whether the window knows
  // that the others follow.
  int num_gathered_ = 0;
  bool rest_is_expected_ = false;
};

}  // namespace forebay
