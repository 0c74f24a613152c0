# The decoder's part of the model library (model/CMakeLists.txt).
set(MODEL_decoder_SOURCES
  decoder.cc
  decoder_block.cc
  decoder_compute.cc
  decoder_compute_pieces.cc
  decoder_extend.cc
  decoder_tensors.cc
  decoder_vocabulary.cc
  decoder_workspace.cc
  kv_cache.cc
  sequences.cc)
