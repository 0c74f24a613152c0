// Layers of a checkpoint, read ahead: through an engine with direct I/O, in pieces of the files of
// which many are in flight, each converted into its place when it is there. What cannot be read so
// (a file system without direct I/O, the end of a file that is no multiple of a block, elements at
// odd addresses) is read when it is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/files/safetensors.h"

namespace forebay {

// Used by one thread, beside the engine's own.
class CheckpointStream {
 public:
  // Where a tensor of the checkpoint lies in the flat vector of its layer.
  struct Part {
    const CheckpointReader::Tensor* source = nullptr;
    int64_t offset_elems = 0;
    int64_t num_elems = 0;
  };

  // It charges so much to its budget where layers have so many bytes.
  static int64_t StagingBytes(int64_t layer_bytes);

  // `layers`: the parts of each. `dtype`: what they are converted to. `layer_bytes`: of those that
  // are read often; 0: there are none, and nothing is read ahead. `reader` and `budget` must
  // outlive it. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<CheckpointStream>> Create(
      const CheckpointReader& reader, std::vector<std::vector<Part>> layers, DType dtype,
      int64_t layer_bytes, MemoryBudget* budget);
  ~CheckpointStream();

  // Begins to read a layer, behind those that were started and not finished. Requires: it is not
  // one of these.
  void Start(int layer);
  // The layer that will be started next: as much of it is read ahead as there is memory for.
  void Expect(int layer);
  // Ends that: its parts are in `out`, the flat vector in `dtype`, whose other elements are left
  // alone. In the order of Start nothing is read twice. The errors of CheckpointReader::ReadAs.
  // Allocates nothing.
  absl::Status Finish(int layer, std::span<std::byte> out);
  // Ends it without its result.
  void Drop(int layer);

  // Whether it reads ahead at all.
  bool reads_ahead() const;

 private:
  struct Impl;
  explicit CheckpointStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay
