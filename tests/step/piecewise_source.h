// Lends large layers of another source in pieces, and lets no piece outlive the next Get.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/step/param_source.h"

namespace forebay {

class PiecewiseSource final : public ParamSource {
 public:
  // Layers of more than two pieces come in pieces. `source` must outlive this.
  PiecewiseSource(ParamSource* source, int64_t piece_elems)
      : source_(source), piece_elems_(piece_elems) {}

  void Expect(std::span<const int> layers) override { source_->Expect(layers); }
  absl::StatusOr<WeightsLease> Acquire(int layer) override {
    FOREBAY_ASSIGN_OR_RETURN(WeightsLease lease, source_->Acquire(layer));
    const LayerWeights whole = lease.weights();
    const int64_t num_elems = std::ssize(whole.data) / SizeOf(whole.dtype);
    Lent& lent = lent_[layer];
    lent.lease = std::move(lease);
    if (num_elems <= 2 * piece_elems_) return WeightsLease(this, layer, whole);
    lent.pieces.emplace_back(whole, piece_elems_, &pieces_read_);
    return WeightsLease(this, layer, {.dtype = whole.dtype, .pieces = &lent.pieces.back()});
  }

  // The arguments of Get, whatever the layer.
  const std::vector<int>& pieces_read() const { return pieces_read_; }

 protected:
  void Release(int layer, Event* done) override {
    lent_.at(layer).lease.Release(done);
    lent_.erase(layer);
  }

 private:
  class Pieces final : public WeightPieces {
   public:
    Pieces(const LayerWeights& whole, int64_t piece_elems, std::vector<int>* pieces_read)
        : whole_(whole), piece_elems_(piece_elems), pieces_read_(*pieces_read) {}
    int num_pieces() const override {
      const int64_t piece_bytes = piece_elems_ * SizeOf(whole_.dtype);
      return static_cast<int>((std::ssize(whole_.data) + piece_bytes - 1) / piece_bytes);
    }
    int64_t piece_elems() const override { return piece_elems_; }
    int64_t num_elems() const override { return std::ssize(whole_.data) / SizeOf(whole_.dtype); }
    absl::StatusOr<LayerWeights> Get(int piece) override {
      FOREBAY_CHECK(piece >= 0 && piece < num_pieces());
      pieces_read_.push_back(piece);
      std::ranges::fill(memory_, std::byte{0xff});  // NaN
      const auto piece_bytes = static_cast<size_t>(piece_elems_ * SizeOf(whole_.dtype));
      const size_t begin = static_cast<size_t>(piece) * piece_bytes;
      const auto data =
          whole_.data.subspan(begin, std::min(piece_bytes, whole_.data.size() - begin));
      // Elsewhere than the one before.
      std::vector<std::byte> next(data.begin(), data.end());
      std::swap(before_, memory_);
      std::swap(memory_, next);
      return LayerWeights{
          .dtype = whole_.dtype, .data = memory_, .first_elem = piece * piece_elems_};
    }

   private:
    const LayerWeights whole_;
    const int64_t piece_elems_;
    std::vector<int>& pieces_read_;
    std::vector<std::byte> memory_, before_;
  };
  struct Lent {
    WeightsLease lease;
    std::vector<Pieces> pieces;  // one, or none
  };

  ParamSource* const source_;
  const int64_t piece_elems_;
  std::map<int, Lent> lent_;
  std::vector<int> pieces_read_;
};

}  // namespace forebay
