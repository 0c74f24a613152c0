// Gradients that outlive a crash, with recognisable contents, for tests of their store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/records/gradient_seals.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gtest/gtest.h"

namespace forebay {

inline constexpr int64_t kGradientElemBytes = 2;

// Where the gradients of a store lie, one after another, and what of them is known.
class KeptGradients {
 public:
  // `num_halves`: 2 where those of a step are written before the step before is committed.
  explicit KeptGradients(TensorStore* store, int num_halves = 1)
      : store_(store),
        num_halves_(num_halves),
        seals_(*GradientSeals::Create(store->tiles(), &budget_)) {
    StripeBytes sizes(static_cast<size_t>(store->tiles().num_stripes()));
    for (const Tile& tile : store->tiles().tiles()) {
      offsets_.push_back(sizes[tile.stripe]);
      sizes[tile.stripe] += Bytes(tile);
    }
    half_bytes_ = sizes;
    for (int64_t& bytes : sizes) bytes *= num_halves;
    FOREBAY_CHECK(store->EnsureScratchArea(sizes, GradientArea::kAll).ok());
  }

  // Those of `step`, and their intent.
  absl::Status Publish(int64_t step) {
    FOREBAY_RETURN_IF_ERROR(Write(step));
    return PublishIntent(step);
  }
  absl::Status Write(int64_t step) {
    Scratch scratch(store_->tiles().max_state_bytes());
    for (int i = 0; i < store_->tiles().num_tiles(); ++i) {
      const Tile& tile = store_->tiles().tiles()[i];
      const auto bytes = scratch.first(Bytes(tile));
      FillPattern(bytes, step, i, false);
      for (int64_t part = 0; part < NumSealParts(tile); ++part) {
        seals_.Seal(i, part, bytes, kGradientElemBytes);
      }
      IoOp op;
      store_->StartWriteScratch(tile.stripe, OffsetOf(i, step), bytes, op);
      FOREBAY_RETURN_IF_ERROR(store_->engine().Wait(op));
    }
    return absl::OkStatus();
  }
  // Requires: those of `step` were written last.
  absl::Status PublishIntent(int64_t step) {
    return store_->PublishIntent({step, kGradientElemBytes, Json{{"lr", 0.5}}}, seals_.table());
  }

  // The step of the intent that is found; -1: there is none. `are_whole`: whether all gradients are
  // what their checksums say; then they must be those of the step.
  absl::StatusOr<int64_t> Find(bool& are_whole) {
    FOREBAY_ASSIGN_OR_RETURN(const std::optional<StepIntent> intent,
                             store_->FindIntent(seals_.table()));
    if (!intent.has_value()) return -1;
    EXPECT_EQ(intent->gradient_elem_bytes, kGradientElemBytes);
    EXPECT_EQ(intent->trainer["lr"], 0.5);
    are_whole = true;
    Scratch scratch(store_->tiles().max_state_bytes());
    Scratch expected(store_->tiles().max_state_bytes());
    for (int i = 0; i < store_->tiles().num_tiles(); ++i) {
      const Tile& tile = store_->tiles().tiles()[i];
      const auto bytes = scratch.first(Bytes(tile));
      IoOp op;
      store_->StartReadScratch(tile.stripe, OffsetOf(i, intent->step), bytes, op);
      FOREBAY_RETURN_IF_ERROR(store_->engine().Wait(op));
      bool matches = true;
      for (int64_t part = 0; part < NumSealParts(tile); ++part) {
        matches = matches && seals_.Matches(i, part, bytes, kGradientElemBytes);
      }
      are_whole = are_whole && matches;
      FillPattern(expected.first(Bytes(tile)), intent->step, i, false);
      const bool is_it = std::ranges::equal(bytes, expected.first(Bytes(tile)));
      EXPECT_EQ(matches, is_it) << "gradients of another step pass for those of " << intent->step;
    }
    return intent->step;
  }

 private:
  static int64_t Bytes(const Tile& tile) { return tile.num_elems * kGradientElemBytes; }

  int64_t OffsetOf(int tile, int64_t step) const {
    return offsets_[tile] + step % num_halves_ * half_bytes_[store_->tiles().tiles()[tile].stripe];
  }

  TensorStore* const store_;
  const int num_halves_;
  MemoryBudget budget_{0};
  GradientSeals seals_;
  std::vector<int64_t> offsets_;  // by tile, in its stripe
  StripeBytes half_bytes_;
};

}  // namespace forebay
