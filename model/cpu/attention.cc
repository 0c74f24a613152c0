// Attention cut into tasks: which thread computes which block of which head. Each output element is
// written by one task, so no order of tasks changes a bit.
#include <algorithm>
#include <cmath>

#include "forebay/base/check.h"
#include "forebay/model/cpu/attention_blocks.h"
#include "forebay/model/cpu/context_impl.h"

namespace forebay::cpu {
namespace {

// Keys of one task where dk and dv are computed apart from dq.
constexpr int64_t kSplitKeys = 128;

int64_t BlocksOf(int64_t length, int64_t block) {
  return (length + block - 1) / block;
}

int64_t CountBlocks(std::span<const Segment> segments, int64_t block) {
  int64_t count = 0;
  for (const Segment& segment : segments) count += BlocksOf(segment.length, block);
  return count;
}

// The `index`-th block of `block` rows over all segments.
struct SegmentBlock {
  Segment segment;
  int64_t begin = 0, end = 0;  // within the segment
};
SegmentBlock FindBlock(std::span<const Segment> segments, int64_t block, int64_t index) {
  for (const Segment& segment : segments) {
    const int64_t count = BlocksOf(segment.length, block);
    if (index < count) {
      const int64_t begin = index * block;
      return {segment, begin, std::min(begin + block, segment.length)};
    }
    index -= count;
  }
  FOREBAY_CHECK(!"a block index is below the number of blocks");
  return {};
}

struct Inputs {
  const AttentionShape& shape;
  const float* q;
  const float* k;
  const float* v;

  int64_t query_stride() const { return shape.heads * shape.head_dim; }
  int64_t key_stride() const { return shape.kv_heads * shape.head_dim; }
  int64_t heads_per_kv() const { return shape.heads / shape.kv_heads; }
  int64_t QueryOffset(const Segment& segment, int64_t head) const {
    return segment.begin * query_stride() + head * shape.head_dim;
  }
  int64_t KeyOffset(const Segment& segment, int64_t kv_head) const {
    return segment.begin * key_stride() + kv_head * shape.head_dim;
  }
  HeadView View(const Segment& segment, int64_t head) const {
    const int64_t key_offset = KeyOffset(segment, head / heads_per_kv());
    return {.q = q + QueryOffset(segment, head),
            .k = k + key_offset,
            .v = v + key_offset,
            .query_stride = query_stride(),
            .key_stride = key_stride(),
            .head_dim = shape.head_dim,
            .first_position = 0,
            .window = shape.window,
            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)))};
  }
};

// Rows that belong to no segment.
void ZeroPadding(const AttentionShape& shape, int64_t width, float* rows) {
  int64_t next = 0;
  for (const Segment& segment : shape.segments) {
    std::fill(rows + next * width, rows + segment.begin * width, 0.0f);
    next = segment.begin + segment.length;
  }
  std::fill(rows + next * width, rows + shape.tokens * width, 0.0f);
}

void CheckShape(const AttentionShape& shape) {
  FOREBAY_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  int64_t next = 0;
  for (const Segment& segment : shape.segments) {
    FOREBAY_CHECK(segment.begin >= next && segment.length >= 0);
    next = segment.begin + segment.length;
  }
  FOREBAY_CHECK(next <= shape.tokens);
}

class Backward {
 public:
  Backward(const Inputs& in, const float* o, const float* log_sum_exp, const float* d_o, float* dq,
           float* dk, float* dv)
      : in_(in), o_(o), log_sum_exp_(log_sum_exp), d_o_(d_o), dq_(dq), dk_(dk), dv_(dv) {}

  // All of dq, dk and dv of one segment and key head: each score is recomputed once.
  void WholeSegment(const Segment& segment, int64_t kv_head, Scratch& scratch) const {
    ZeroKeyRows(segment, kv_head, 0, segment.length);
    for (int64_t head = kv_head * in_.heads_per_kv(); head < (kv_head + 1) * in_.heads_per_kv();
         ++head) {
      for (int64_t begin = 0; begin < segment.length; begin += kQueryBlock) {
        Queries(segment, head, begin, std::min(begin + kQueryBlock, segment.length),
                Gradients(segment, head, true, true), scratch);
      }
    }
  }
  // dq of one block of queries.
  void QueryBlock(const SegmentBlock& block, int64_t head, Scratch& scratch) const {
    Queries(block.segment, head, block.begin, block.end,
            Gradients(block.segment, head, true, false), scratch);
  }
  // dk and dv of one block of keys.
  void KeyBlock(const SegmentBlock& block, int64_t kv_head, Scratch& scratch) const {
    ZeroKeyRows(block.segment, kv_head, block.begin, block.end);
    for (int64_t head = kv_head * in_.heads_per_kv(); head < (kv_head + 1) * in_.heads_per_kv();
         ++head) {
      const HeadView view = in_.View(block.segment, head);
      const HeadGradients gradients = Gradients(block.segment, head, false, true);
      // The first query that sees a key is the one at its own position.
      for (int64_t begin = block.begin; begin < block.segment.length; begin += kQueryBlock) {
        const int64_t end = std::min(begin + kQueryBlock, block.segment.length);
        const KeyRange visible = view.Visible(begin, end);
        const KeyRange keys{std::max(visible.begin, block.begin), std::min(visible.end, block.end)};
        if (keys.size() <= 0) break;  // the window has passed them
        AttendBlockGradient(view, gradients, begin, end, keys, false, scratch);
      }
    }
  }

 private:
  HeadGradients Gradients(const Segment& segment, int64_t head, bool queries, bool keys) const {
    const int64_t query_offset = in_.QueryOffset(segment, head);
    const int64_t key_offset = in_.KeyOffset(segment, head / in_.heads_per_kv());
    return {.o = o_ + query_offset,
            .d_o = d_o_ + query_offset,
            .log_sum_exp = log_sum_exp_ + head * in_.shape.tokens + segment.begin,
            .dq = queries ? dq_ + query_offset : nullptr,
            .dk = keys ? dk_ + key_offset : nullptr,
            .dv = keys ? dv_ + key_offset : nullptr};
  }
  void Queries(const Segment& segment, int64_t head, int64_t begin, int64_t end,
               const HeadGradients& gradients, Scratch& scratch) const {
    const HeadView view = in_.View(segment, head);
    const KeyRange visible = view.Visible(begin, end);
    for (int64_t key = visible.begin; key < visible.end; key += kKeyBlock) {
      AttendBlockGradient(view, gradients, begin, end,
                          {key, std::min(key + kKeyBlock, visible.end)}, key != visible.begin,
                          scratch);
    }
  }
  void ZeroKeyRows(const Segment& segment, int64_t kv_head, int64_t begin, int64_t end) const {
    const int64_t offset = in_.KeyOffset(segment, kv_head);
    for (int64_t key = begin; key < end; ++key) {
      std::fill_n(dk_ + offset + key * in_.key_stride(), in_.shape.head_dim, 0.0f);
      std::fill_n(dv_ + offset + key * in_.key_stride(), in_.shape.head_dim, 0.0f);
    }
  }

  const Inputs& in_;
  const float* o_;
  const float* log_sum_exp_;
  const float* d_o_;
  float* dq_;
  float* dk_;
  float* dv_;
};

// Whether tasks of a whole segment and key head are small enough a share of the work to balance
// over threads. Where they are not, dq and dk, dv become separate, smaller tasks, which recompute
// the scores twice.
bool WholeSegmentsBalance(const AttentionShape& shape) {
  constexpr int64_t kEnoughTasks = 8;
  int64_t longest = 0;
  int64_t total = 0;
  for (const Segment& segment : shape.segments) {
    longest = std::max(longest, segment.length * segment.length);
    total += segment.length * segment.length;
  }
  return total * shape.kv_heads >= longest * kEnoughTasks;
}

}  // namespace

void AttentionForward(Context& context, const AttentionShape& shape, const float* q, const float* k,
                      const float* v, float* o, float* log_sum_exp) {
  CheckShape(shape);
  Context::Impl& impl = context.impl();
  const Inputs in{shape, q, k, v};
  ZeroPadding(shape, in.query_stride(), o);
  for (int64_t head = 0; head < shape.heads; ++head) {
    ZeroPadding(shape, 1, log_sum_exp + head * shape.tokens);
  }
  const int64_t num_blocks = CountBlocks(shape.segments, kQueryBlock);
  impl.Parallel(num_blocks * shape.heads, [&](int64_t task, int thread) {
    const int64_t head = task % shape.heads;
    // Last blocks first: they see the most keys, and short tasks at the end balance the threads.
    const SegmentBlock block =
        FindBlock(shape.segments, kQueryBlock, num_blocks - 1 - task / shape.heads);
    AttendBlock(in.View(block.segment, head), block.begin, block.end, impl.thread_scratch(thread),
                o + in.QueryOffset(block.segment, head),
                log_sum_exp + head * shape.tokens + block.segment.begin);
  });
}

void AttentionBackward(Context& context, const AttentionShape& shape, const float* q,
                       const float* k, const float* v, const float* o, const float* log_sum_exp,
                       const float* d_o, float* dq, float* dk, float* dv) {
  CheckShape(shape);
  Context::Impl& impl = context.impl();
  const Inputs in{shape, q, k, v};
  ZeroPadding(shape, in.query_stride(), dq);
  ZeroPadding(shape, in.key_stride(), dk);
  ZeroPadding(shape, in.key_stride(), dv);
  const Backward backward(in, o, log_sum_exp, d_o, dq, dk, dv);
  if (WholeSegmentsBalance(shape)) {
    const int64_t num_segments = static_cast<int64_t>(shape.segments.size());
    impl.Parallel(num_segments * shape.kv_heads, [&](int64_t task, int thread) {
      backward.WholeSegment(shape.segments[static_cast<size_t>(task / shape.kv_heads)],
                            task % shape.kv_heads, impl.thread_scratch(thread));
    });
    return;
  }
  const int64_t key_tasks = CountBlocks(shape.segments, kSplitKeys) * shape.kv_heads;
  const int64_t num_blocks = CountBlocks(shape.segments, kQueryBlock);
  impl.Parallel(key_tasks + num_blocks * shape.heads, [&](int64_t task, int thread) {
    Scratch& scratch = impl.thread_scratch(thread);
    if (task < key_tasks) {  // the first keys are seen by the most queries
      backward.KeyBlock(FindBlock(shape.segments, kSplitKeys, task / shape.kv_heads),
                        task % shape.kv_heads, scratch);
      return;
    }
    const int64_t unit = task - key_tasks;
    backward.QueryBlock(FindBlock(shape.segments, kQueryBlock, num_blocks - 1 - unit / shape.heads),
                        unit % shape.heads, scratch);
  });
}

void AttentionCached(Context& context, int64_t num_queries, int64_t first_position, int64_t heads,
                     int64_t kv_heads, int64_t head_dim, int64_t window, const float* q,
                     const float* k_cache, const float* v_cache, float* o) {
  Context::Impl& impl = context.impl();
  const Segment segment{0, num_queries};
  const AttentionShape shape{num_queries, heads, kv_heads, head_dim, window, {&segment, 1}};
  CheckShape(shape);
  const Inputs in{shape, q, k_cache, v_cache};
  const int64_t num_blocks = BlocksOf(num_queries, kQueryBlock);
  impl.Parallel(num_blocks * heads, [&](int64_t task, int thread) {
    const int64_t head = task % heads;
    const SegmentBlock block =
        FindBlock(shape.segments, kQueryBlock, num_blocks - 1 - task / heads);
    HeadView view = in.View(segment, head);
    view.first_position = first_position;
    AttendBlock(view, block.begin, block.end, impl.thread_scratch(thread),
                o + in.QueryOffset(segment, head), nullptr);
  });
}

}  // namespace forebay::cpu
