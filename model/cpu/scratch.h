// Grow-only working memory of the operators: one set of slots for the whole context and one per
// thread. A slot that has once held an operator's largest need is never allocated again, so steps
// after the first allocate nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace forebay::cpu {

// One slot per use, so that an operator that calls another never shares memory with it.
enum class Slot : uint8_t {
  // Per thread.
  kWeightPanel,    // 16-bit weights widened to fp32
  kProduct,        // of one block, before it is rounded to fp16
  kScores,         // attention probabilities of one block
  kScoreGradient,  // and their gradient
  kMatmul,         // oneDNN's scratchpad
  // The context's.
  kNormWeight,    // weight (and bias) of a norm, fp32
  kPartialSums,   // sums over blocks of rows
  kOperand,       // activations of a product, in bf16 or rounded to fp16
  kOtherOperand,  // and its other activation operand
  kSlices,        // what slices of a product's k come to
  kLossRows,      // indices and statistics of trained rows
  kLossInput,     // trained rows of x
  kLossGradient,  // and their gradient
  kLogits,
  kCount,
};

// Bytes that a slot asked for `bytes` occupies.
int64_t ScratchAllocationBytes(int64_t bytes);

// Owned by one thread at a time. Movable.
class Scratch {
 public:
  // At least `count` elements in `slot`, 64-byte aligned (2 MiB-aligned with transparent huge pages
  // asked for when large). The contents are undefined; earlier pointers into the slot are invalid
  // when it grew.
  template <typename T>
  T* Get(Slot slot, int64_t count) {
    return static_cast<T*>(GetBytes(slot, count * static_cast<int64_t>(sizeof(T))));
  }
  int64_t allocated_bytes() const;

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Block {
    std::unique_ptr<void, Free> memory;
    int64_t size_bytes = 0;
  };
  void* GetBytes(Slot slot, int64_t bytes);

  std::array<Block, static_cast<size_t>(Slot::kCount)> blocks_;
};

}  // namespace forebay::cpu
