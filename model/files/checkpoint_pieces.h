// A buffer of the window over a checkpoint (checkpoint_source.h) that has two pieces of a layer at
// a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/model/files/checkpoint_stream.h"
#include "forebay/step/held_pieces.h"
#include "forebay/step/param_source.h"

namespace forebay {

// Used by the window's thread, and while the layer is lent, by the caller's.
class CheckpointPieces final : public WeightPieces {
 public:
  struct Options {
    DType dtype = DType::kBF16;
    int64_t piece_elems = 0;
    bool converts = true;  // as CheckpointStream::Options has it
  };
  // One that is lent in pieces.
  struct Layer {
    int layer = 0;
    int64_t num_elems = 0;
    std::vector<CheckpointStream::Part> parts;  // in order
  };
  // `memory`: of BytesOf. It charges StagingBytes. `reader` and `budget` must outlive it.
  // OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<CheckpointPieces>> Create(const CheckpointReader& reader,
                                                                  const std::vector<Layer>& layers,
                                                                  const Options& options,
                                                                  std::span<std::byte> memory,
                                                                  MemoryBudget* budget);
  static int64_t BytesOf(const Options& options);
  static int64_t StagingBytes(const Options& options);
  ~CheckpointPieces() override { Drop(); }

  // Pieces are of this layer from here on.
  void Start(int layer);
  // Forgets what is read.
  void Drop();

  int num_pieces() const override { return num_pieces_; }
  int64_t piece_elems() const override { return options_.piece_elems; }
  int64_t num_elems() const override { return num_elems_; }
  // The errors of CheckpointStream::Finish. The first stays. Reads the next piece ahead where it is
  // likely to come next.
  absl::StatusOr<LayerWeights> Get(int piece) override;

  // The first error of Get. For whoever calls it.
  const absl::Status& failure() const { return failure_; }
  // As they lie in the files. For whoever calls Get.
  int64_t read_bytes() const { return read_bytes_; }

 private:
  CheckpointPieces(const Options& options, std::span<std::byte> memory)
      : options_(options), memory_(memory) {}
  // The stream has each piece of each layer as a layer of its own.
  int InStream(int piece) const { return first_in_stream_ + piece; }
  int64_t ElemsOf(int piece) const;
  std::span<std::byte> MemoryOf(int piece) const;
  void StartRead(int piece);
  absl::Status FinishRead(int piece);
  void DropSlot(int slot);

  const Options options_;
  const std::span<std::byte> memory_;
  std::vector<Layer> layers_;
  std::vector<std::vector<CheckpointStream::Part>> parts_;  // of the stream's layers
  std::unique_ptr<CheckpointStream> stream_;
  // The layer:
  int64_t num_elems_ = 0;
  int num_pieces_ = 0;
  int first_in_stream_ = 0;
  HeldPieces held_;
  std::array<int, kPiecesOfBuffer> reading_ = {-1, -1};  // by slot: the piece; -1: none
  int last_ = -1;                                        // piece that was asked for
  absl::Status failure_;
  int64_t read_bytes_ = 0;
};

}  // namespace forebay
