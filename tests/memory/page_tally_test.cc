#include "forebay/memory/page_tally.h"

#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(PageTally, IsOneLineWithoutAWordOfWarningWhenAllIsWell) {
  PageTally pages;
  pages.transparent_huge_bytes = int64_t{640} << 20;
  pages.base_bytes = int64_t{3} << 20;
  EXPECT_EQ(DescribePages(pages),
            "pages: 640 MiB in transparent huge pages of 2 MiB, 3.00 MiB in pages of 4 KiB");
}

TEST(PageTally, SaysWhatWasMissedWhyAndHowToGetIt) {
  PageTally pages;
  pages.base_bytes = int64_t{101} << 20;
  pages.missed_bytes = int64_t{100} << 20;
  pages.missed_reason = "they are switched off";
  const std::string line = DescribePages(pages);
  EXPECT_THAT(line, HasSubstr("100 MiB of them should be huge pages"));
  EXPECT_THAT(line, HasSubstr("they are switched off"));
  EXPECT_THAT(line, HasSubstr("reserve 50 pages more in vm.nr_hugepages"));
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  pages.missed_bytes = int64_t{2} << 20;
  EXPECT_THAT(DescribePages(pages), HasSubstr("reserve 1 page more"));
}

TEST(PageTally, AddsUpAndKeepsTheFirstReason) {
  PageTally first;
  first.reserved_huge_bytes = 1;
  first.base_bytes = 2;
  first.missed_bytes = 3;
  PageTally second = first;
  second.missed_reason = "second";
  PageTally third = first;
  third.missed_reason = "third";
  PageTally sum;
  for (const PageTally& part : {first, second, third}) sum.Add(part);
  EXPECT_EQ(sum.reserved_huge_bytes, 3);
  EXPECT_EQ(sum.missed_reason, "second");
  sum.Subtract(first);
  EXPECT_EQ(sum.base_bytes, 4);
  EXPECT_EQ(sum.missed_bytes, 6);
}

}  // namespace
}  // namespace forebay
