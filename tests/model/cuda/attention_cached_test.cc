// Attention of generation on a GPU against the CPU's operator, for sequences of different lengths
// in one call.
#include "forebay/model/cuda/attention_cached.h"

#include "forebay/tests/model/cuda/gpu_operands.h"

namespace forebay::cuda {
namespace {

struct Sequence {
  int64_t before = 0;  // tokens that are cached
  int64_t added = 0;
};

class AttentionCachedOps : public GpuOps {
 protected:
  struct Case {
    CachedAttentionShape shape;
    std::vector<Sequence> sequences;
  };

  // Tokens of all sequences behind each other; their rows in the cache lie `kGap` apart.
  struct Tokens {
    std::vector<int32_t> position, row;
    int64_t num_rows = 0;
    explicit Tokens(const std::vector<Sequence>& sequences) {
      constexpr int64_t kGap = 3;
      num_rows = kGap;
      for (const Sequence& sequence : sequences) {
        for (int64_t i = 0; i < sequence.added; ++i) {
          position.push_back(static_cast<int32_t>(sequence.before + i));
          row.push_back(static_cast<int32_t>(num_rows + sequence.before + i));
        }
        num_rows += sequence.before + sequence.added + kGap;
      }
    }
  };

  void ExpectAsOnTheCpu(const Case& c) {
    const auto [heads, kv_heads, head_dim, window] = c.shape;
    const Tokens tokens(c.sequences);
    const auto num_tokens = static_cast<int64_t>(tokens.row.size());
    const Floats q = Random(num_tokens * heads * head_dim, 1);
    Floats keys(static_cast<size_t>(tokens.num_rows * kv_heads * head_dim), NAN);
    Floats values = keys;
    Floats expected(q.size());
    int64_t token = 0;
    for (const Sequence& sequence : c.sequences) {
      const int64_t length = sequence.before + sequence.added;
      const Floats k = Random(length * kv_heads * head_dim, 2 + token);
      const Floats v = Random(length * kv_heads * head_dim, 3 + token);
      const int64_t row = tokens.row[token] - sequence.before;
      std::ranges::copy(k, keys.begin() + row * kv_heads * head_dim);
      std::ranges::copy(v, values.begin() + row * kv_heads * head_dim);
      cpu::AttentionCached(cpu_, sequence.added, sequence.before, heads, kv_heads, head_dim, window,
                           q.data() + token * heads * head_dim, k.data(), v.data(),
                           expected.data() + token * heads * head_dim);
      token += sequence.added;
    }
    const DeviceBuffer position = ArrayOnDevice(tokens.position), row = ArrayOnDevice(tokens.row);
    const CachedTokens on_device = {num_tokens, position.As<int32_t>(), row.As<int32_t>()};
    const DeviceValues q_there = OnDevice(q), k_there = OnDevice(keys), v_there = OnDevice(values);
    DeviceValues o = Unset(num_tokens * heads * head_dim);
    ASSERT_TRUE(AttentionCached(*context_, c.shape, on_device, q_there.address(), k_there.address(),
                                v_there.address(), o.address())
                    .ok());
    ExpectClose(o, expected);
  }
};
FOREBAY_TEST_TYPES(AttentionCachedOps);

TEST_P(AttentionCachedOps, EachTokenSeesItsOwnSequenceUpToItself) {
  // One query of a short and of a long sequence, several queries behind a few keys, and the first
  // tokens of one; the longest takes more rounds of a block's warps than one.
  ExpectAsOnTheCpu({{.heads = 4, .kv_heads = 2, .head_dim = 16},
                    {{.before = 5, .added = 1},
                     {.before = 300, .added = 1},
                     {.before = 30, .added = 5},
                     {.before = 0, .added = 3}}});
}

TEST_P(AttentionCachedOps, HeadsOfEveryKindOfWidth) {
  for (const int64_t head_dim : {6, 40, 72, 144}) {  // 6: rows that cannot be read by 16 bytes
    ExpectAsOnTheCpu({{.heads = 2, .kv_heads = 2, .head_dim = head_dim},
                      {{.before = 33, .added = 2}, {.before = 0, .added = 1}}});
  }
}

TEST_P(AttentionCachedOps, AWindowHidesWhatIsTooFarBack) {
  for (const int64_t window : {1, 9, 33, 1000}) {
    ExpectAsOnTheCpu({{.heads = 3, .kv_heads = 1, .head_dim = 8, .window = window},
                      {{.before = 70, .added = 3}, {.before = 4, .added = 1}}});
  }
}

TEST_P(AttentionCachedOps, RowsAreAppendedWhereTheyBelong) {
  for (const int64_t width : {2, 40}) {
    const Tokens tokens({{.before = 2, .added = 3}, {.before = 0, .added = 1}});
    const auto num_tokens = static_cast<int64_t>(tokens.row.size());
    const Floats rows = Random(num_tokens * width, 4);
    const Floats before = Random(tokens.num_rows * width, 5);
    Floats expected = before;
    for (int64_t i = 0; i < num_tokens; ++i) {
      std::copy_n(rows.begin() + i * width, width, expected.begin() + tokens.row[i] * width);
    }
    const DeviceBuffer row = ArrayOnDevice(tokens.row);
    const DeviceValues from = OnDevice(rows);
    DeviceValues to = OnDevice(before);
    ASSERT_TRUE(AppendToCache(*context_, {num_tokens, nullptr, row.As<int32_t>()}, width,
                              from.address(), to.address())
                    .ok());
    EXPECT_EQ(ToHost(to), expected);
  }
}

}  // namespace
}  // namespace forebay::cuda
