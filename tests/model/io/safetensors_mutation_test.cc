// What libFuzzer does for hours (tests/fuzz), for a second in every build: headers that are nearly
// right. Under ASan and UBSan this shows that no input is read out of bounds; the property that
// holds everywhere is that what is accepted is sound.
#include "forebay/base/counter_rng.h"
#include "forebay/model/files/safetensors.h"
#include "gmock/gmock.h"
#include "safetensors_invariants.h"
#include "sample_files.h"

namespace forebay {
namespace {

const std::string_view kTokens[] = {"\"",
                                    "{",
                                    "}",
                                    "[",
                                    "]",
                                    ",",
                                    ":",
                                    "0",
                                    "1",
                                    "-1",
                                    "1e9",
                                    "1.5",
                                    "a",
                                    "null",
                                    "\\u0000",
                                    "\\ud800",
                                    "F32",
                                    "F4",
                                    "U8",
                                    "BF16",
                                    "dtype",
                                    "shape",
                                    "data_offsets",
                                    "__metadata__",
                                    " ",
                                    "\xFF",
                                    "18446744073709551615",
                                    "9223372036854775807",
                                    "4194305"};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : rng_(99, seed) {}

  std::string Mutate(std::string text) {
    const uint64_t num_edits = 1 + Below(4);
    for (uint64_t i = 0; i < num_edits; ++i) Edit(text);
    return text;
  }
  uint64_t Below(uint64_t bound) { return rng_.Bits64(drawn_++) % bound; }

 private:
  void Edit(std::string& text) {
    const size_t at = Below(text.size() + 1);
    const size_t length = Below(12);
    switch (Below(6)) {
      case 0:
        text.insert(at, kTokens[Below(std::size(kTokens))]);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(Below(text.size() + 1), length * 4));
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(Below(256));
        break;
      case 4:
        text.replace(at, length, kTokens[Below(std::size(kTokens))]);
        break;
      default:
        if (at < text.size() && text[at] >= '0' && text[at] <= '9')
          text[at] = static_cast<char>('0' + Below(10));
    }
  }
  const CounterRng rng_;
  uint64_t drawn_ = 0;
};

constexpr std::string_view kSeeds[] = {
    R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[0],"data_offsets":[24,24]}})",
    R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},"x":{"dtype":"F4","shape":[44],"data_offsets":[2,24]}})",
    R"({"p":{"dtype":"I64","shape":[3],"note":{"x":[1,2]},"data_offsets":[0,24]}}    )"};

TEST(SafetensorsMutation, AcceptedHeadersAreSound) {
  int accepted = 0;
  for (uint64_t round = 0; round < 20000; ++round) {
    Mutator mutator(round);
    const std::string header = mutator.Mutate(std::string(kSeeds[round % std::size(kSeeds)]));
    std::string file = RawSafetensors(header, std::string(24, 'x'));
    if (mutator.Below(8) == 0) file[mutator.Below(8)] = static_cast<char>(mutator.Below(256));
    const auto parsed =
        ParseSafetensorsHeader(BytesOf(file), static_cast<int64_t>(file.size()), "mutated");
    if (!parsed.ok()) continue;
    ++accepted;
    ASSERT_EQ(BrokenInvariant(*parsed, static_cast<int64_t>(file.size())), "") << header;
  }
  // Mutants that are still right (another digit in a name, say) prove that the property was tested.
  EXPECT_GT(accepted, 200);
}

TEST(SafetensorsMutation, AcceptedIndexesNameBareFiles) {
  const std::string seed =
      R"({"metadata":{"total_size":9},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})";
  int accepted = 0;
  for (uint64_t round = 0; round < 10000; ++round) {
    const auto index = ParseSafetensorsIndex(Mutator(round).Mutate(seed), "mutated");
    if (!index.ok()) continue;
    ++accepted;
    for (const auto& [name, file] : *index) ASSERT_EQ(file.find('/'), std::string::npos);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace forebay
