# Sources of model/cuda and model/cuda_decoder; included by model/CMakeLists.txt.
set(MODEL_cuda_SOURCES  # in every build: plans are made anywhere
  cuda/scratch.cc
  cuda_decoder/decoder_layout.cc
  cuda_decoder/device_batches.cc
  cuda_decoder/sequences_layout.cc)
set(MODEL_cuda_KERNELS)
if(FOREBAY_HAVE_CUDA)
  list(APPEND MODEL_cuda_SOURCES
    cuda/context.cc
    cuda/linear.cc
    cuda/loss.cc
    cuda_decoder/create_cuda_decoder.cc
    cuda_decoder/cuda_block.cc
    cuda_decoder/cuda_layer_compute.cc
    cuda_decoder/cuda_sequences.cc
    cuda_decoder/decoder_products.cc
    cuda_decoder/gpu_activations.cc
    cuda_decoder/sequence_cache.cc)
  set(MODEL_cuda_KERNELS
    cuda/activations.cu
    cuda/attention.cu
    cuda/attention_cached.cu
    cuda/attention_output_dots.cu
    cuda/attention_simt_backward.cu
    cuda/attention_simt_forward.cu
    cuda/attention_tensor_backward.cu
    cuda/attention_tensor_forward.cu
    cuda/bias.cu
    cuda/embedding.cu
    cuda/loss_kernels.cu
    cuda/norm.cu
    cuda/norm_weights.cu
    cuda/rope.cu)
else()
  list(APPEND MODEL_cuda_SOURCES cuda_decoder/cuda_decoder_absent.cc)
endif()
