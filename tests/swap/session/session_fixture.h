// A session beside a reference in plain memory that is told the same things.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/swap/session/tensor_session.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gtest/gtest.h"

namespace forebay {

inline constexpr TensorPlane kWritablePlanes[] = {TensorPlane::kMaster, TensorPlane::kM,
                                                  TensorPlane::kV};

inline std::vector<TensorPlane> WritablePlanes(const TileMap& tiles, const TensorSpec& tensor) {
  if (tensor.raw) return {TensorPlane::kRaw};
  std::vector<TensorPlane> planes(std::begin(kWritablePlanes), std::end(kWritablePlanes));
  std::erase_if(planes, [&](TensorPlane plane) { return !Has(tiles, plane); });
  return planes;
}

// Values by tensor and plane; what is not there is zeros.
class PlainTensors {
 public:
  explicit PlainTensors(const Inventory* inventory) : inventory_(inventory) {}

  std::vector<float>& At(const std::string& tensor, TensorPlane plane) {
    std::vector<float>& values = values_[{tensor, plane}];
    values.resize(static_cast<size_t>(inventory_->Find(tensor)->num_elems));
    return values;
  }
  std::vector<std::byte>& Raw(const std::string& tensor) {
    std::vector<std::byte>& bytes = raw_[tensor];
    bytes.resize(static_cast<size_t>(inventory_->Find(tensor)->num_elems));
    return bytes;
  }
  // The values of a plane, of whatever kind.
  std::span<std::byte> Bytes(const std::string& tensor, TensorPlane plane) {
    if (plane == TensorPlane::kRaw) return Raw(tensor);
    return std::as_writable_bytes(std::span(At(tensor, plane)));
  }

 private:
  const Inventory* inventory_;
  std::map<std::pair<std::string, TensorPlane>, std::vector<float>> values_;
  std::map<std::string, std::vector<std::byte>> raw_;
};

// The values of a lease, of whatever kind.
inline std::span<const std::byte> BytesOf(const TensorLease& lease) {
  if (lease.plane() == TensorPlane::kRaw) return lease.bytes();
  return std::as_bytes(lease.values());
}
inline std::span<std::byte> WritableBytesOf(TensorLease& lease) {
  if (lease.plane() == TensorPlane::kRaw) return lease.writable_bytes();
  return std::as_writable_bytes(lease.floats());
}

inline bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}
inline bool SameBits(std::span<const float> a, std::span<const float> b) {
  return SameBytes(std::as_bytes(a), std::as_bytes(b));
}

// Any bits: NaNs and denormals too.
inline void FillFloats(std::span<float> values, uint64_t seed, uint64_t stream) {
  CounterRng(seed, stream).Fill(std::as_writable_bytes(values));
}

// Whether all committed values of `store` are those of `expected`.
inline bool HoldsTensors(TensorStore& store, PlainTensors& expected) {
  for (const TensorSpec& tensor : store.inventory().tensors()) {
    if (tensor.raw) {
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.num_elems));
      if (!store.ReadRaw(tensor, 0, bytes).ok()) return false;
      if (bytes != expected.Raw(tensor.name)) return false;
      continue;
    }
    std::vector<float> values(static_cast<size_t>(tensor.num_elems));
    for (const TensorPlane plane : WritablePlanes(store.tiles(), tensor)) {
      if (!store.ReadTensor(tensor, plane, 0, values).ok()) return false;
      if (!SameBits(values, expected.At(tensor.name, plane))) return false;
    }
  }
  return true;
}

// Whether a session sees them, by leases.
inline absl::Status SeesTensors(TensorSession& session, PlainTensors& expected) {
  for (const TensorSpec& tensor : session.inventory().tensors()) {
    for (const TensorPlane plane : WritablePlanes(session.store().tiles(), tensor)) {
      FOREBAY_ASSIGN_OR_RETURN(const TensorLease lease,
                               session.Acquire(tensor.name, plane, LeaseAccess::kRead));
      if (!SameBytes(BytesOf(lease), expected.Bytes(tensor.name, plane))) {
        return CorruptError("'" + tensor.name + "' has other values");
      }
    }
  }
  return absl::OkStatus();
}

// Sets all of a plane, in the session and in `expected`.
inline absl::Status SetAll(TensorSession& session, PlainTensors& expected,
                           const std::string& tensor, TensorPlane plane, uint64_t seed) {
  FOREBAY_ASSIGN_OR_RETURN(TensorLease lease,
                           session.Acquire(tensor, plane, LeaseAccess::kOverwrite));
  CounterRng(seed, static_cast<uint64_t>(plane)).Fill(WritableBytesOf(lease));
  std::ranges::copy(BytesOf(lease), expected.Bytes(tensor, plane).begin());
  return lease.Release();
}

inline absl::Status SetEverything(TensorSession& session, PlainTensors& expected, uint64_t seed) {
  uint64_t number = 0;
  for (const TensorSpec& tensor : session.inventory().tensors()) {
    for (const TensorPlane plane : WritablePlanes(session.store().tiles(), tensor)) {
      FOREBAY_RETURN_IF_ERROR(
          SetAll(session, expected, tensor.name, plane, 1000 * seed + ++number));
    }
  }
  return absl::OkStatus();
}

// Tensors of SmallInventory.
inline constexpr char kUp[] = "layers.0.up";      // 3200 elements, most of one tile
inline constexpr char kDown[] = "layers.0.down";  // its neighbour, in the same tile and the next

// A session over SmallInventory in a temporary folder.
class SessionFixture : public testing::Test {
 protected:
  StoreOptions Store(int num_slots = 2, Layout layout = Layout::kBf16) const {
    return {.directories = {folder_.Path("store")},
            .layout = layout,
            .tile_elems = kSmallTileElems,
            .num_slots = num_slots};
  }
  std::unique_ptr<TensorSession> MustCreate(const SessionOptions& options = kPlenty,
                                            int num_slots = 2, Layout layout = Layout::kBf16) {
    auto session =
        TensorSession::Create(options, Store(num_slots, layout), inventory_, engine_.get());
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }
  std::unique_ptr<TensorSession> MustOpen(const SessionOptions& options = kPlenty) {
    auto session = TensorSession::Open(options, {folder_.Path("store")}, engine_.get());
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }

  static constexpr SessionOptions kPlenty{.memory_bytes = int64_t{4} << 20};
  TemporaryFolder folder_;
  Inventory inventory_ = SmallInventory();
  PlainTensors expected_{&inventory_};
  std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2});
};

}  // namespace forebay
