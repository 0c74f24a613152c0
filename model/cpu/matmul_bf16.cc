#include "forebay/model/cpu/matmul_bf16.h"

#include <cstdio>
#include <map>
#include <vector>

#include "dnnl.hpp"
#include "forebay/base/check.h"

namespace forebay::cpu {

bool CpuHasNativeBf16() {
  // Values of dnnl_cpu_isa_t are sets of features: newer ones contain those they build on.
  const unsigned isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  constexpr unsigned kWanted = static_cast<unsigned>(dnnl_cpu_isa_avx512_core_bf16);
  return (isa & kWanted) == kWanted;
}

class MatmulCache::Primitive {
 public:
  // Memory objects are bound to other buffers at each run, so every thread has its own.
  struct PerThread {
    dnnl::memory a, b, c, scratchpad;
    dnnl::stream stream;
  };
  dnnl::matmul matmul;
  int64_t scratchpad_bytes = 0;
  std::vector<PerThread> per_thread;
};

struct MatmulCache::Impl {
  int num_threads = 1;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::map<MatmulShape, std::unique_ptr<Primitive>> primitives;
};

namespace {

dnnl::matmul::primitive_desc Describe(const MatmulShape& shape, const dnnl::engine& engine) {
  using dnnl::memory;
  const auto input = shape.input == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc a({shape.m, shape.k}, input,
                       memory::dims{shape.a_row_stride, shape.a_column_stride});
  const memory::desc b({shape.k, shape.n}, input,
                       memory::dims{shape.b_row_stride, shape.b_column_stride});
  const memory::desc c({shape.m, shape.n}, memory::data_type::f32, memory::dims{shape.ldc, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.accumulate) {
    dnnl::post_ops post_ops;
    post_ops.append_sum(1.0f);
    attr.set_post_ops(post_ops);
  }
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, a, b, c, attr);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attr, engine);
#endif
}

}  // namespace

MatmulCache::MatmulCache(int num_threads) : impl_(std::make_unique<Impl>()) {
  impl_->num_threads = num_threads;
}
MatmulCache::~MatmulCache() = default;

MatmulCache::Primitive& MatmulCache::Get(const MatmulShape& shape) {
  std::unique_ptr<Primitive>& entry = impl_->primitives[shape];
  if (entry != nullptr) return *entry;
  try {
    entry = std::make_unique<Primitive>();
    const dnnl::matmul::primitive_desc description = Describe(shape, impl_->engine);
    entry->matmul = dnnl::matmul(description);
    entry->scratchpad_bytes = static_cast<int64_t>(description.scratchpad_desc().get_size());
    for (int thread = 0; thread < impl_->num_threads; ++thread) {
      entry->per_thread.push_back(
          {dnnl::memory(description.src_desc(), impl_->engine, nullptr),
           dnnl::memory(description.weights_desc(), impl_->engine, nullptr),
           dnnl::memory(description.dst_desc(), impl_->engine, nullptr),
           dnnl::memory(description.scratchpad_desc(), impl_->engine, nullptr),
           dnnl::stream(impl_->engine)});
    }
  } catch (const dnnl::error& error) {
    std::fprintf(stderr, "oneDNN made no matmul of %lld x %lld x %lld: %s\n",
                 static_cast<long long>(shape.m), static_cast<long long>(shape.n),
                 static_cast<long long>(shape.k), error.what());
    FOREBAY_CHECK(!"oneDNN has a matmul for every shape that is asked of it");
  }
  return *entry;
}

void MatmulCache::Run(Primitive& primitive, int thread, Scratch& scratch, const void* a,
                      const void* b, float* c) {
  Primitive::PerThread& own = primitive.per_thread[static_cast<size_t>(thread)];
  dnnl_memory_set_data_handle(own.a.get(), const_cast<void*>(a));  // oneDNN only reads sources
  dnnl_memory_set_data_handle(own.b.get(), const_cast<void*>(b));
  dnnl_memory_set_data_handle(own.c.get(), c);
  dnnl_memory_set_data_handle(own.scratchpad.get(),
                              scratch.Get<std::byte>(Slot::kMatmul, primitive.scratchpad_bytes));
  // The C call: the C++ one builds a hash map each time.
  const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, own.a.get()},
                                  {DNNL_ARG_WEIGHTS, own.b.get()},
                                  {DNNL_ARG_DST, own.c.get()},
                                  {DNNL_ARG_SCRATCHPAD, own.scratchpad.get()}};
  FOREBAY_CHECK(dnnl_primitive_execute(primitive.matmul.get(), own.stream.get(), 4, args) ==
                dnnl_success);
}

}  // namespace forebay::cpu
