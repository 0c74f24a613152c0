// The pieces that a buffer holds of a layer which is lent in pieces (param_source.h). Pure: whoever
// reads them asks it, and who counts beforehand what will be read.
#pragma once

#include <array>
#include <cstddef>

namespace forebay {

// One piece is used while the next arrives.
inline constexpr int kPiecesOfBuffer = 2;

class HeldPieces {
 public:
  static int SlotOf(int piece) { return piece % kPiecesOfBuffer; }
  bool Holds(int piece) const { return held_[static_cast<size_t>(SlotOf(piece))] == piece; }
  // Its slot gets the piece. Whether it has to be read.
  bool Take(int piece) {
    const bool is_there = Holds(piece);
    held_[static_cast<size_t>(SlotOf(piece))] = piece;
    return !is_there;
  }
  void Drop(int slot) { held_[static_cast<size_t>(slot)] = -1; }

 private:
  std::array<int, kPiecesOfBuffer> held_ = {-1, -1};  // by slot; -1: none
};

}  // namespace forebay
