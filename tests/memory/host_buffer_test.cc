#include "forebay/memory/host_buffer.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

uint64_t Address(const HostBuffer& buffer) {
  return reinterpret_cast<uint64_t>(buffer.data());
}

// The "VmFlags:" of the mapping that holds `address` ("dc": not copied on fork, "hg": huge pages
// asked for).
std::string VmFlags(const std::byte* address) {
  const auto wanted = reinterpret_cast<uint64_t>(address);
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    unsigned long first = 0, last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      inside = first <= wanted && wanted < last;
    }
    if (inside && line.starts_with("VmFlags:")) return line;
  }
  return "";
}

TEST(HostBuffer, IsZeroedAndPageAligned) {
  MemoryBudget budget(0);
  const auto buffer = HostBuffer::Create(&budget, "test", 10'000);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->size_bytes(), 10'000);
  EXPECT_EQ(Address(*buffer) % 4096, 0u);
  EXPECT_TRUE(std::ranges::all_of(buffer->bytes(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(HostBuffer, LargeOnesAreAlignedForHugePages) {
  MemoryBudget budget(0);
  for (const int64_t size_bytes : {int64_t{2} << 20, (int64_t{5} << 20) + 4096}) {
    const auto buffer = HostBuffer::Create(&budget, "test", size_bytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(Address(*buffer) % (2 << 20), 0u);
    buffer->bytes().back() = std::byte{1};
  }
}

TEST(HostBuffer, IsNeitherInheritedByChildrenNorDumped) {
  MemoryBudget budget(0);
  const auto buffer = HostBuffer::Create(&budget, "test", int64_t{4} << 20);
  ASSERT_TRUE(buffer.ok());
  EXPECT_THAT(VmFlags(buffer->data()), AllOf(HasSubstr(" dc"), HasSubstr(" dd")));
}

TEST(HostBuffer, IsCountedInTheBudgetByThePagesItGot) {
  MemoryBudget budget(0);
  {
    const auto buffer = HostBuffer::Create(&budget, "test", (int64_t{5} << 20) + 1);
    ASSERT_TRUE(buffer.ok());
    const PageTally pages = budget.pages();
    EXPECT_EQ(pages.reserved_huge_bytes + pages.transparent_huge_bytes + pages.base_bytes,
              budget.used_bytes());
    EXPECT_EQ(budget.used_bytes(), (int64_t{5} << 20) + 4096) << "no rounding to huge pages";
    EXPECT_EQ(buffer->page_kind() == PageKind::kBase, pages.missed_bytes >= int64_t{2} << 20);
  }
  EXPECT_EQ(DescribePages(budget.pages()), "pages: none");
}

TEST(HostBuffer, TakesNoBetterPagesThanItIsAllowed) {
  MemoryBudget budget(0);
  const auto buffer =
      HostBuffer::Create(&budget, "test", int64_t{4} << 20, {.best_pages = PageKind::kBase});
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->page_kind(), PageKind::kBase);
  EXPECT_EQ(budget.pages().base_bytes, int64_t{4} << 20);
  EXPECT_EQ(budget.pages().missed_bytes, 0) << "nothing to complain about";
  EXPECT_EQ(buffer->IoPieces().size(), 1u);
}

// Remembers what is pinned; reads it when it goes, which crashes if the memory went first.
class FakeDevice : public Device {
 public:
  explicit FakeDevice(bool refuses = false) : refuses_(refuses) {}
  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string name() const override { return "fake"; }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override { return NotHere(); }
  std::unique_ptr<Stream> AdoptStream(void*) override { return nullptr; }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return NotHere(); }
  absl::StatusOr<std::unique_ptr<Event>> CreateTimedEvent() override { return NotHere(); }
  absl::StatusOr<DeviceMemory> Memory() override { return NotHere(); }
  std::span<std::byte> pinned;
  std::byte last_seen{0};

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t) override { return NotHere(); }
  void FreeBytes(void*) override {}
  absl::Status PinBytes(std::span<std::byte> memory) override {
    if (refuses_) return NotHere();
    pinned = memory;
    return absl::OkStatus();
  }
  void UnpinBytes(std::span<std::byte> memory) override {
    last_seen = memory.back();
    pinned = {};
  }

 private:
  static absl::Status NotHere() { return EnvironmentError("not here"); }
  const bool refuses_;
};

TEST(HostBuffer, IsPinnedWholeForItsDeviceUntilJustBeforeItGoes) {
  MemoryBudget budget(0);
  FakeDevice device;
  {
    auto made = HostBuffer::Create(&budget, "test", 8192, {.device = &device});
    ASSERT_TRUE(made.ok());
    EXPECT_TRUE(made->pinned());
    const HostBuffer buffer = *std::move(made);
    EXPECT_TRUE(buffer.pinned());
    EXPECT_EQ(device.pinned.data(), buffer.data());
    EXPECT_EQ(device.pinned.size(), 8192u);
    buffer.bytes().back() = std::byte{7};
  }
  EXPECT_TRUE(device.pinned.empty());
  EXPECT_EQ(device.last_seen, std::byte{7});
}

TEST(HostBuffer, ThatADeviceRefusesToPinWorksAndSaysSo) {
  MemoryBudget budget(0);
  FakeDevice device(true);
  const auto buffer = HostBuffer::Create(&budget, "weights", 8192, {.device = &device});
  ASSERT_TRUE(buffer.ok());
  EXPECT_FALSE(buffer->pinned());
  EXPECT_THAT(DescribePages(budget.pages()),
              HasSubstr("'weights' is not pinned for fake, so copies block: not here"));
}

TEST(HostBuffer, ChargesWholePagesWhileItLives) {
  MemoryBudget budget(0);
  {
    const auto buffer = HostBuffer::Create(&budget, "test", 5000);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(budget.used_bytes(), 8192);
  }
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(HostBuffer, MovesWithItsCharge) {
  MemoryBudget budget(0);
  auto first = HostBuffer::Create(&budget, "first", 4096);
  auto second = HostBuffer::Create(&budget, "second", 8192);
  ASSERT_TRUE(first.ok() && second.ok());
  std::byte* const data = second->data();
  *first = *std::move(second);
  EXPECT_EQ(first->data(), data);
  EXPECT_EQ(first->size_bytes(), 8192);
  EXPECT_EQ(second->data(), nullptr);
  EXPECT_EQ(second->size_bytes(), 0);
  EXPECT_EQ(budget.used_bytes(), 8192);
}

TEST(HostBuffer, OfZeroBytesIsEmptyAndFree) {
  MemoryBudget budget(1);
  const auto buffer = HostBuffer::Create(&budget, "test", 0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE(buffer->bytes().empty());
  EXPECT_EQ(budget.peak_bytes(), 0);
}

TEST(HostBuffer, BeyondTheBudgetIsAnErrorThatNamesThePurpose) {
  MemoryBudget budget(4096);
  const auto buffer = HostBuffer::Create(&budget, "window", 4097);
  EXPECT_EQ(ExitCodeOf(buffer.status()), ExitCode::kOutOfMemory);
  EXPECT_THAT(MessageOf(buffer.status()), HasSubstr("'window'"));
}

TEST(HostBuffer, RefusedByTheSystemIsAnErrorAndNotCharged) {
  MemoryBudget budget(0);
  const auto buffer = HostBuffer::Create(&budget, "window", int64_t{1} << 50);
  EXPECT_EQ(ExitCodeOf(buffer.status()), ExitCode::kOutOfMemory);
  EXPECT_THAT(MessageOf(buffer.status()), HasSubstr("ENOMEM"));
  EXPECT_EQ(budget.used_bytes(), 0);
}

}  // namespace
}  // namespace forebay
