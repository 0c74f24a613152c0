# Sources of model/cuda; included by model/CMakeLists.txt where CUDA code is compiled.
set(MODEL_cuda_SOURCES
  cuda/context.cc)
set(MODEL_cuda_KERNELS)
