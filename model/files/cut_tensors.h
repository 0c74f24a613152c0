// The bytes of a checkpoint's files that a layer is made of, and how they come to their places:
// those that can be read there, and those that cannot. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/base/dtype.h"
#include "forebay/model/files/safetensors.h"

namespace forebay {

// A tensor of a checkpoint, or some consecutive elements of one, and where they lie in the flat
// vector of its layer.
struct PlacedTensor {
  const CheckpointReader::Tensor* source = nullptr;
  CheckpointReader::Place place;  // in the file
  int64_t offset_elems = 0;       // in the vector
  int64_t num_elems = 0;
  bool direct = false;     // the engine can read the file
  int64_t first_elem = 0;  // of the tensor's
};

// Some elements of one tensor.
struct TensorPiece {
  enum class How : uint8_t {
    kInPlace,  // the engine reads it into the vector
    kStaged,   // the engine reads it into other memory, from where it is converted
    kByReader  // CheckpointReader::ReadAs
  };
  const CheckpointReader::Tensor* source = nullptr;
  How how = How::kByReader;
  int64_t first_elem = 0;   // of the tensor
  int64_t target_elem = 0;  // of the vector
  int64_t num_elems = 0;
  // Whole blocks (kIoAlignBytes) of the file, unless the reader reads them.
  int64_t from_bytes = 0;
  int64_t until_bytes = 0;
  int64_t skip_bytes = 0;  // staged: in front of the first element
  // In place: it is read so far in front of its place, still behind the beginning of the tensor,
  // and then moved. 0 where address and offset suit each other.
  int64_t before_bytes = 0;
};

struct CutOptions {
  DType dtype = DType::kBF16;      // of the vector
  int64_t piece_bytes = 0;         // staged pieces are no longer; a multiple of kIoAlignBytes
  int64_t memory_align_bytes = 1;  // addresses are multiples of it; divides kIoAlignBytes
};

struct CutLayer {
  // So far behind a multiple of kIoAlignBytes the vector begins: where the most is read in place
  // without being moved.
  int64_t shift_bytes = 0;
  // In the order in which they are finished. Those in place are the first, as moving one writes to
  // where other pieces of its tensor belong; else they are ordered as in the files, as drives like
  // it.
  std::vector<TensorPiece> pieces;
};
CutLayer CutTensors(std::span<const PlacedTensor> tensors, const CutOptions& options);

}  // namespace forebay
