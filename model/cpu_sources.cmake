# Sources of model/cpu; included by model/CMakeLists.txt.
set(MODEL_cpu_SOURCES
  cpu/activation_kernels.cc
  cpu/attention.cc
  cpu/attention_blocks.cc
  cpu/context.cc
  cpu/direct_kernels.cc
  cpu/elementwise.cc
  cpu/gemm.cc
  cpu/linear.cc
  cpu/loss.cc
  cpu/matmul_bf16.cc
  cpu/norm.cc
  cpu/norm_kernels.cc
  cpu/one_thread_openmp.cc
  cpu/scratch.cc
  cpu/softmax_kernels.cc
  cpu/vector_kernels.cc)
