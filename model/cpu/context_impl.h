// What a Context owns; for the operators in this folder only.
#pragma once

#include <memory>
#include <vector>

#include "forebay/model/cpu/matmul_bf16.h"
#include "forebay/model/cpu/one_thread_openmp.h"
#include "forebay/model/cpu/ops.h"
#include "forebay/model/cpu/scratch.h"

namespace forebay::cpu {

struct Context::Impl {
  Impl(int num_threads, Precision requested);

  // Calls task(i, thread) for every i in [0, num_tasks), with oneDNN confined to the calling
  // thread.
  template <typename Task>
  void Parallel(int64_t num_tasks, const Task& task) {
    const OneThreadOpenMp confined;  // the pool's own threads were confined when they started
    pool.ParallelForWithThread(num_tasks, task);
  }
  // As above over [0, count) in blocks of `block`: task(begin, end).
  template <typename Task>
  void ParallelBlocks(int64_t count, int64_t block, const Task& task) {
    pool.ParallelFor((count + block - 1) / block, [&](int64_t i) {
      const int64_t begin = i * block;
      task(begin, count < begin + block ? count : begin + block);
    });
  }
  Scratch& thread_scratch(int thread) { return per_thread[static_cast<size_t>(thread)]; }

  const Precision precision;
  const bool native_bf16;
  const bool rounds_to_fp16;  // operands and results of products
  Scratch shared;
  std::vector<Scratch> per_thread;
  MatmulCache matmuls;
  ThreadPool pool;  // last: its threads end before what they use
};

}  // namespace forebay::cpu
