// Layers of a checkpoint, read ahead through an engine with direct I/O. Whole blocks of a file go
// straight to their places in the layer where that can be: where they are stored as they are
// needed, and the layer begins where its addresses suit their offsets in the file. What lies in
// other blocks, and what is converted, comes in pieces through staging memory. What cannot be read
// so (a file system without direct I/O, the end of a file that is no multiple of a block, elements
// at odd addresses) is read when it is asked for.
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
  // Elements of a tensor of the checkpoint, and where they lie in the flat vector of their layer.
  struct Part {
    const CheckpointReader::Tensor* source = nullptr;
    int64_t offset_elems = 0;
    int64_t num_elems = 0;
    int64_t first_elem = 0;  // of the tensor's
  };
  struct Options {
    DType dtype = DType::kBF16;  // what the layers are converted to
    int64_t layer_bytes = 0;     // of those that are read often; 0: there are none, and nothing is
                                 // read ahead
    bool converts = true;        // whether some tensors are stored in another type
  };

  // It charges so much to its budget.
  static int64_t StagingBytes(const Options& options);

  // `layers`: the parts of each. `reader` and `budget` must outlive it. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<CheckpointStream>> Create(
      const CheckpointReader& reader, const std::vector<std::vector<Part>>& layers,
      const Options& options, MemoryBudget* budget);
  ~CheckpointStream();  // nothing is read into the layers any more

  // So many bytes behind a multiple of kIoAlignBytes the flat vector of the layer begins, less than
  // that: where most of it is read to its place.
  int64_t ShiftBytes(int layer) const;

  // Begins to read a layer, behind those that were started and not finished, into `out`: its flat
  // vector in the type that was asked for, which nobody else touches until Finish or Drop. Elements
  // between the parts are left alone. Requires: the layer is not one of these.
  void Start(int layer, std::span<std::byte> out);
  // Does a part of what Finish would do, and waits for it: whether more is left. In the order of
  // Start nothing is read twice. The errors of CheckpointReader::ReadAs and Engine::Wait.
  absl::StatusOr<bool> FinishPart(int layer);
  // Ends that: the layer is in `out`. The same errors. Allocates nothing, as the others do.
  absl::Status Finish(int layer);
  // Ends it without its result, also after an error.
  void Drop(int layer);

  // Whether it reads ahead at all.
  bool reads_ahead() const;

 private:
  struct Impl;
  explicit CheckpointStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay
