// Every case of the suite over every transport that connects threads of one process, on 1 to 4
// ranks. (Processes: collective_process_test.)
#include <string>
#include <tuple>

#include "forebay/tests/collective/collective_cases.h"
#include "forebay/tests/collective/rank_group.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using CaseParameters = std::tuple<TransportOfTests, int, CollectiveCase>;

class Collective : public ::testing::TestWithParam<CaseParameters> {};

TEST_P(Collective, Passes) {
  const auto& [transport, num_ranks, one] = GetParam();
  RunOnRanks({.transport = transport, .num_ranks = num_ranks}, one.run);
}

std::string NameOfCase(const ::testing::TestParamInfo<CaseParameters>& parameters) {
  const auto& [transport, num_ranks, one] = parameters.param;
  return NameOf(transport) + "_" + std::to_string(num_ranks) + "_" + one.name;
}

INSTANTIATE_TEST_SUITE_P(OverAll, Collective,
                         ::testing::Combine(::testing::Values(TransportOfTests::kThreads,
                                                              TransportOfTests::kSlowThreads,
                                                              TransportOfTests::kSockets),
                                            ::testing::Values(1, 2, 3, 4),
                                            ::testing::ValuesIn(CollectiveCases())),
                         NameOfCase);

}  // namespace
}  // namespace forebay
