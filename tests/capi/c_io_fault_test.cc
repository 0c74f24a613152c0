// Requests of any alignment on disks that cut transfers short, are busy, answer out of order, and
// fail.
#include <fcntl.h>

#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/capi/c_io.h"
#include "forebay/tests/aio/engine_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay::capi {
namespace {

class RequestsOnBadDisks : public testing::TestWithParam<EngineCase> {};

IoRequest RequestOf(IoKind kind, const std::string& path, int64_t offset_bytes,
                    std::span<std::byte> memory) {
  IoRequest request;
  request.kind = kind;
  request.path = path;
  request.offset_bytes = offset_bytes;
  request.memory = memory;
  return request;
}

TEST_P(RequestsOnBadDisks, MoveEveryByte) {
  auto made = MakeEngine(GetParam(), GetParam().faults);
  if (!made.ok()) GTEST_SKIP() << made.status();
  IoRequests requests(std::move(made->engine));
  const TemporaryFolder folder;
  alignas(4096) static std::byte memory[1 << 18];
  std::vector<std::byte> expected(sizeof(memory));
  struct Range {
    size_t offset, skip, size;
  };
  const Range ranges[] = {{0, 0, 1 << 18}, {512, 512, 100'000}, {513, 1, 70'001},
                          {7, 7, 99'999},  {0, 3, 5'000},       {100, 100, 300}};
  int seed = 0;
  for (const Range& range : ranges) {
    const std::span<std::byte> part = std::span(memory).subspan(range.skip, range.size);
    FillRandom(part, ++seed);
    std::ranges::copy(part, expected.begin() + static_cast<ptrdiff_t>(range.offset));
    auto ticket = requests.Submit(RequestOf(IoKind::kWrite, folder.Path("f"), range.offset, part));
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    const absl::Status status = requests.Wait(*ticket);
    ASSERT_TRUE(status.ok()) << status;
    std::ranges::fill(part, std::byte{0});
    ticket = requests.Submit(RequestOf(IoKind::kRead, folder.Path("f"), range.offset, part));
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    ASSERT_TRUE(requests.Wait(*ticket).ok());
    ASSERT_TRUE(SameBytes(part, std::span(expected).subspan(range.offset, range.size)));
  }
}

TEST_P(RequestsOnBadDisks, TellTheFirstFailureAndEndThemAll) {
  FaultPlan faults = GetParam().faults;
  faults.again_every = 0;
  faults.fail_call = 1;
  faults.error_number = ENOSPC;
  auto made = MakeEngine(GetParam(), faults);
  if (!made.ok()) GTEST_SKIP() << made.status();
  IoRequests requests(std::move(made->engine));
  const TemporaryFolder folder;
  alignas(4096) static std::byte memory[20'000];
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(
        requests
            .Submit(RequestOf(IoKind::kWrite, folder.Path(std::to_string(i)), 0, std::span(memory)))
            .ok());
  }
  int64_t num_ended = 0;
  const absl::Status status = requests.WaitAll(num_ended);
  EXPECT_EQ(num_ended, 4);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("ENOSPC"));
  EXPECT_TRUE(requests.WaitAll(num_ended).ok());
  EXPECT_EQ(num_ended, 0);
}

INSTANTIATE_TEST_SUITE_P(All, RequestsOnBadDisks, testing::ValuesIn(AllCases()),
                         [](const auto& tested) { return tested.param.name; });

TEST(DirectPart, IsWhatAddressOffsetAndLengthAllow) {
  alignas(4096) static std::byte memory[16'384];
  const auto part = [](TransferLimits limits, int64_t offset, size_t skip, size_t size) {
    const DirectPart found =
        DirectPartOf(limits, offset, std::span<const std::byte>(memory).subspan(skip, size));
    return std::pair(found.first_byte, found.num_bytes);
  };
  using Pair = std::pair<int64_t, int64_t>;
  const TransferLimits sectors = {.range_bytes = 512, .memory_bytes = 512};
  EXPECT_EQ(part({}, 0, 0, 4096), Pair(0, 0));
  EXPECT_EQ(part(sectors, 0, 0, 4096), Pair(0, 4096));
  EXPECT_EQ(part(sectors, 512, 1024, 1024), Pair(0, 1024));
  EXPECT_EQ(part(sectors, 0, 0, 1000), Pair(0, 512));
  EXPECT_EQ(part(sectors, 100, 100, 2000), Pair(412, 1536));
  EXPECT_EQ(part(sectors, 100, 0, 2000), Pair(0, 0));
  EXPECT_EQ(part(sectors, 100, 100, 900), Pair(0, 0));
  EXPECT_EQ(part(sectors, 0, 0, 0), Pair(0, 0));
  EXPECT_EQ(part({.range_bytes = 512, .memory_bytes = 4}, 0, 4, 1024), Pair(0, 1024));
  EXPECT_EQ(part({.range_bytes = 4096, .memory_bytes = 4096}, 0, 512, 8192), Pair(0, 0));
}

// The engine opens a file for each request: its books must not grow with them.
TEST(Requests, GiveNumbersOfFilesAgain) {
  auto engine = CreateThreadsEngine({.num_threads = 1});
  const TemporaryFolder folder;
  int last = -1;
  for (int i = 0; i < 3; ++i) {
    last = engine->AddFile(
        UniqueFd(::open(folder.Path("f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)), "f");
    engine->RemoveFile(last);
  }
  EXPECT_EQ(last, 0);
}

}  // namespace
}  // namespace forebay::capi
