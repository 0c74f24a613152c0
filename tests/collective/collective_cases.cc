#include "forebay/tests/collective/collective_cases.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/hash.h"
#include "forebay/tests/collective/rank_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

// More than a piece of kTestScratchBytes, less, none, and what no number of ranks divides.
constexpr int64_t kSizes[] = {0, 1, 2, 3, 5, 64, 257, 5003};

// The values differ so much in size that every other order of adding gives other bits.
std::vector<float> ValuesOf(int rank, int64_t size) {
  const CounterRng rng(17, static_cast<uint64_t>(rank));
  std::vector<float> values(static_cast<size_t>(size));
  for (size_t i = 0; i < values.size(); ++i) {
    const double magnitude = static_cast<double>(rng.Below(2 * i + 1, 1 << 12));
    values[i] = static_cast<float>(rng.Normal(2 * i) * magnitude);
  }
  return values;
}

std::vector<float> SumOf(int num_ranks, int64_t size) {
  std::vector<float> sum = ValuesOf(0, size);
  for (int r = 1; r < num_ranks; ++r) {
    const std::vector<float> values = ValuesOf(r, size);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

std::vector<std::byte> BytesOf(uint64_t seed, int64_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  CounterRng(seed).Fill(bytes);
  return bytes;
}

uint64_t Bits(std::span<const float> values) {
  return Xxh3_64(std::as_bytes(values));
}

// Some parts are empty, and none is as long as another but by chance.
std::vector<int64_t> UnequalParts(int num_ranks, int64_t size, uint64_t seed) {
  const CounterRng rng(seed);
  std::vector<int64_t> offsets = {0, size};
  for (int r = 1; r < num_ranks; ++r) {
    offsets.push_back(
        static_cast<int64_t>(rng.Below(static_cast<uint64_t>(r), static_cast<uint64_t>(size) + 1)));
  }
  std::sort(offsets.begin(), offsets.end());
  if (num_ranks > 2 && seed % 2 == 0) offsets[1] = offsets[2];
  return offsets;
}

void AllReduceAddsInTheOrderOfTheRanks(Communicator& ranks) {
  for (const int64_t size : kSizes) {
    std::vector<float> values = ValuesOf(ranks.rank(), size);
    ASSERT_EQ(ranks.AllReduce(values), absl::OkStatus());
    EXPECT_EQ(Bits(values), Bits(SumOf(ranks.size(), size))) << size;
  }
}

void ReduceScatterAddsTheOwnPartAlone(Communicator& ranks) {
  for (const int64_t size : kSizes) {
    for (const uint64_t seed : {1, 2, 3}) {
      const std::vector<int64_t> offsets = UnequalParts(ranks.size(), size, seed);
      std::vector<float> values = ValuesOf(ranks.rank(), size);
      std::vector<float> expected = values;
      const std::vector<float> sum = SumOf(ranks.size(), size);
      const auto own = static_cast<size_t>(ranks.rank());
      std::copy(sum.begin() + offsets[own], sum.begin() + offsets[own + 1],
                expected.begin() + offsets[own]);
      ASSERT_EQ(ranks.ReduceScatter(values, offsets), absl::OkStatus());
      EXPECT_EQ(Bits(values), Bits(expected)) << size << ", parts of seed " << seed;
    }
  }
}

// Among them are values and sums that are too large for fp16.
std::vector<float> RoundedSumOf(int num_ranks, int64_t size, DType wire) {
  const auto round = [&](float& value) {
    value =
        wire == DType::kBF16 ? Bf16ToFloat(FloatToBf16(value)) : Fp16ToFloat(FloatToFp16(value));
  };
  std::vector<float> sum(static_cast<size_t>(size));
  for (int r = 0; r < num_ranks; ++r) {
    std::vector<float> values = ValuesOf(r, size);
    std::ranges::for_each(values, round);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = r == 0 ? values[i] : sum[i] + values[i];
  }
  std::ranges::for_each(sum, round);
  return sum;
}

void SumsAsOf16BitsAreTheSameOnAllAndMoveHalfTheBytes(Communicator& ranks) {
  constexpr int64_t kSize = 5003;
  const auto sent_bytes = [&](DType wire, bool in_parts) {
    std::vector<float> values = ValuesOf(ranks.rank(), kSize);
    const std::vector<int64_t> offsets =
        in_parts ? EvenParts(kSize, ranks.size()) : std::vector<int64_t>();
    CollectiveMemory memory = OnHost(std::span(values));
    memory.wire = wire;
    const int64_t before = ranks.traffic().sent_bytes;
    EXPECT_EQ(ranks.Await(in_parts ? ranks.StartReduceScatter(memory, offsets)
                                   : ranks.StartAllReduce(memory)),
              absl::OkStatus());
    if (wire == DType::kF32) return ranks.traffic().sent_bytes - before;
    std::vector<float> expected = ValuesOf(ranks.rank(), kSize);
    const std::vector<float> sum = RoundedSumOf(ranks.size(), kSize, wire);
    const auto own = static_cast<size_t>(ranks.rank());
    if (ranks.size() > 1) {  // one alone keeps its values
      const int64_t begin = in_parts ? offsets[own] : 0;
      const int64_t end = in_parts ? offsets[own + 1] : kSize;
      std::copy(sum.begin() + begin, sum.begin() + end, expected.begin() + begin);
    }
    EXPECT_EQ(Bits(values), Bits(expected)) << NameOf(wire) << ", in parts: " << in_parts;
    return ranks.traffic().sent_bytes - before;
  };
  for (const bool in_parts : {false, true}) {
    const int64_t in_fp32 = sent_bytes(DType::kF32, in_parts);
    EXPECT_EQ(2 * sent_bytes(DType::kBF16, in_parts), in_fp32);
    EXPECT_EQ(2 * sent_bytes(DType::kF16, in_parts), in_fp32);
  }
}

void AllReduceIsReduceScatterAndAllGather(Communicator& ranks) {
  std::vector<float> values = ValuesOf(ranks.rank(), 4001);
  std::vector<float> in_two = values;
  const std::vector<int64_t> offsets = UnequalParts(ranks.size(), 4001, 5);
  std::vector<int64_t> byte_offsets = offsets;
  for (int64_t& offset : byte_offsets) offset *= 4;
  ASSERT_EQ(ranks.AllReduce(values), absl::OkStatus());
  ASSERT_EQ(ranks.ReduceScatter(in_two, offsets), absl::OkStatus());
  ASSERT_EQ(ranks.AllGather(std::as_writable_bytes(std::span(in_two)), byte_offsets),
            absl::OkStatus());
  EXPECT_EQ(Bits(values), Bits(in_two));
}

void AllGatherBringsEveryPart(Communicator& ranks) {
  for (const int64_t size : kSizes) {
    for (const uint64_t seed : {1, 2, 3}) {
      const std::vector<std::byte> all = BytesOf(seed, size);
      const std::vector<int64_t> offsets = UnequalParts(ranks.size(), size, seed);
      std::vector<std::byte> bytes(all.size());
      const auto own = static_cast<size_t>(ranks.rank());
      std::copy(all.begin() + offsets[own], all.begin() + offsets[own + 1],
                bytes.begin() + offsets[own]);
      ASSERT_EQ(ranks.AllGather(bytes, offsets), absl::OkStatus());
      EXPECT_EQ(bytes, all) << size << ", parts of seed " << seed;
    }
  }
}

void BroadcastBringsTheRootsBytes(Communicator& ranks) {
  for (const int64_t size : kSizes) {
    for (int root = 0; root < ranks.size(); ++root) {
      const auto seed = static_cast<uint64_t>(100 + root);
      std::vector<std::byte> bytes =
          ranks.rank() == root ? BytesOf(seed, size) : std::vector<std::byte>(BytesOf(7, size));
      ASSERT_EQ(ranks.Broadcast(bytes, root), absl::OkStatus());
      EXPECT_EQ(bytes, BytesOf(seed, size)) << size << " from " << root;
    }
  }
}

void RecordsOfAnyLengthArrive(Communicator& ranks) {
  const auto record = [](int rank, int round) {
    return std::string(static_cast<size_t>((rank * 31 + round * 7) % 5 * 1000),
                       static_cast<char>('a' + rank));
  };
  for (int round = 0; round < 5; ++round) {
    std::vector<std::string> expected;
    for (int r = 0; r < ranks.size(); ++r) expected.push_back(record(r, round));
    const auto records = ranks.GatherRecords(record(ranks.rank(), round));
    ASSERT_EQ(records.status(), absl::OkStatus());
    EXPECT_EQ(*records, expected);
  }
}

// More than may wait at once, of every kind, awaited in another order than they were started in.
void OperationsGoOnBesideTheirCaller(Communicator& ranks) {
  constexpr int64_t kNumStarted = 3 * kMaxPendingCollectives;
  std::vector<std::vector<float>> values;
  for (int64_t i = 0; i < kNumStarted; ++i) values.push_back(ValuesOf(ranks.rank(), i));
  std::vector<CollectiveTicket> tickets;
  for (auto& vector : values) {
    tickets.push_back(ranks.StartAllReduce(OnHost(std::span(vector))));
    ASSERT_EQ(ranks.IsComplete(tickets.back()).status(), absl::OkStatus());
  }
  for (int64_t i = kNumStarted - 1; i >= 0; --i) {
    const auto index = static_cast<size_t>(i);
    ASSERT_EQ(ranks.Await(tickets[index]), absl::OkStatus());
    EXPECT_TRUE(ranks.IsComplete(tickets[index]).value());
    EXPECT_EQ(Bits(values[index]), Bits(SumOf(ranks.size(), i)));
  }
  EXPECT_EQ(ranks.Barrier(), absl::OkStatus());
}

void TrafficIsWhatItHasToBe(Communicator& ranks) {
  const int64_t n = ranks.size();
  const int64_t size = 600 * n;  // even parts
  const int64_t share = size * 4 / n * (n - 1);
  std::vector<float> values = ValuesOf(ranks.rank(), size);
  std::vector<int64_t> byte_offsets = EvenParts(size * 4, ranks.size());
  const auto sent = [&](const auto& call) {
    const CollectiveTraffic before = ranks.traffic();
    EXPECT_EQ(call(), absl::OkStatus());
    const CollectiveTraffic after = ranks.traffic();
    EXPECT_EQ(after.received_bytes - before.received_bytes, after.sent_bytes - before.sent_bytes);
    EXPECT_EQ(after.num_calls - before.num_calls, 1);
    return after.sent_bytes - before.sent_bytes;
  };
  EXPECT_EQ(sent([&] { return ranks.AllReduce(values); }), 2 * share);
  EXPECT_EQ(sent([&] { return ranks.ReduceScatter(values, EvenParts(size, ranks.size())); }),
            share);
  EXPECT_EQ(sent([&] {
              return ranks.AllGather(std::as_writable_bytes(std::span(values)), byte_offsets);
            }),
            share);
}

}  // namespace

// The device is a GPU where one is emulated, else the host's twin.
void DeviceMemoryIsReducedAndGatheredWhenItIsReady(Communicator& ranks) {
  constexpr int64_t kNumElems = 1201;
  constexpr int64_t kSizeBytes = kNumElems * 4;
  Device& device = DeviceOfTests();
  const std::unique_ptr<Stream> stream = device.CreateStream().value();
  const std::unique_ptr<Event> ready = device.CreateEvent().value();
  const DeviceBuffer buffer = device.Allocate(kSizeBytes).value();
  const std::vector<float> own = ValuesOf(ranks.rank(), kNumElems);
  const CollectiveMemory memory = OnDevice(buffer.address(), kSizeBytes, ready.get());
  const auto start_again = [&] {
    ASSERT_TRUE(stream->CopyToDevice(buffer.address(), std::as_bytes(std::span(own))).ok());
    ASSERT_TRUE(stream->Record(*ready).ok());
  };
  const auto fetch = [&] {
    std::vector<float> values(kNumElems);
    EXPECT_TRUE(
        stream->CopyToHost(std::as_writable_bytes(std::span(values)), buffer.address()).ok());
    EXPECT_TRUE(stream->Await().ok());
    return values;
  };

  start_again();
  ASSERT_EQ(ranks.Await(ranks.StartAllReduce(memory)), absl::OkStatus());
  EXPECT_EQ(Bits(fetch()), Bits(SumOf(ranks.size(), kNumElems)));

  start_again();
  const std::vector<int64_t> offsets = UnequalParts(ranks.size(), kNumElems, 4);
  std::vector<int64_t> byte_offsets = offsets;
  for (int64_t& offset : byte_offsets) offset *= 4;
  ranks.StartReduceScatter(memory, offsets);
  ASSERT_EQ(ranks.Await(ranks.StartAllGather(memory, byte_offsets)), absl::OkStatus());
  EXPECT_EQ(Bits(fetch()), Bits(SumOf(ranks.size(), kNumElems)));

  start_again();
  const int root = ranks.size() - 1;
  ASSERT_EQ(ranks.Await(ranks.StartBroadcast(memory, root)), absl::OkStatus());
  EXPECT_EQ(Bits(fetch()), Bits(ValuesOf(root, kNumElems)));
}

const std::vector<CollectiveCase>& CollectiveCases() {
  static const auto* const cases = new std::vector<CollectiveCase>{
      {"AllReduceAddsInTheOrderOfTheRanks", AllReduceAddsInTheOrderOfTheRanks},
      {"ReduceScatterAddsTheOwnPartAlone", ReduceScatterAddsTheOwnPartAlone},
      {"SumsAsOf16BitsAreTheSameOnAllAndMoveHalfTheBytes",
       SumsAsOf16BitsAreTheSameOnAllAndMoveHalfTheBytes},
      {"AllReduceIsReduceScatterAndAllGather", AllReduceIsReduceScatterAndAllGather},
      {"AllGatherBringsEveryPart", AllGatherBringsEveryPart},
      {"BroadcastBringsTheRootsBytes", BroadcastBringsTheRootsBytes},
      {"RecordsOfAnyLengthArrive", RecordsOfAnyLengthArrive},
      {"OperationsGoOnBesideTheirCaller", OperationsGoOnBesideTheirCaller},
      {"DeviceMemoryIsReducedAndGatheredWhenItIsReady",
       DeviceMemoryIsReducedAndGatheredWhenItIsReady},
      {"TrafficIsWhatItHasToBe", TrafficIsWhatItHasToBe},
  };
  return *cases;
}

}  // namespace forebay
