# FOREBAY_CUDA=AUTO builds the CUDA code where nvcc is found and says so where it is not. EMULATED compiles the same
# sources with the C++ compiler for a GPU that is emulated on the host (device/emulation/), and needs CUDA's headers alone.
set(FOREBAY_HAVE_CUDA OFF)
set(FOREBAY_CUDA_EMULATED OFF)
if(FOREBAY_CUDA STREQUAL "EMULATED")
  find_path(FOREBAY_CUDA_HEADERS cuda_runtime.h
    HINTS ${PROJECT_SOURCE_DIR}/build/cuda-headers/nvidia/cu13/include /usr/local/cuda/include)
  if(NOT FOREBAY_CUDA_HEADERS)
    message(FATAL_ERROR "FOREBAY_CUDA=EMULATED needs cuda_runtime.h, which was not found. Install the CUDA Toolkit, run "
                        "scripts/build asan (which fetches the headers), or set FOREBAY_CUDA_HEADERS to their folder.")
  endif()
  set(FOREBAY_HAVE_CUDA ON)
  set(FOREBAY_CUDA_EMULATED ON)
  message(STATUS "CUDA: a GPU is emulated on the host, with the headers in ${FOREBAY_CUDA_HEADERS}")
elseif(NOT FOREBAY_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      # Turing to Blackwell in one binary: code for 8.0 also runs on 8.6 and 8.9, and PTX is for the others from 9.0 on.
      set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 90 120-real)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror>")
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
      # Without it, code for so many GPUs is 20 MB larger than a wheel may be.
      add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>")
    endif()
    set(FOREBAY_HAVE_CUDA ON)
    message(STATUS "CUDA: building with ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}")
  elseif(FOREBAY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FOREBAY_CUDA=ON, but no nvcc was found. Install the CUDA Toolkit, set CUDACXX, or use -DFOREBAY_CUDA=AUTO.")
  else()
    message(STATUS "CUDA: no nvcc found; the CUDA code is skipped (the CPU path is complete without it)")
  endif()
endif()

# forebay_cuda_sources(<target> <source.cu...>): compiled by nvcc; where the GPU is emulated, by the C++ compiler, with
# nvcc's arithmetic: nothing is fused that the source does not fuse.
function(forebay_cuda_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  # Each by itself: nvcc takes long for one, and their names may be the same.
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(FOREBAY_CUDA_EMULATED)
    target_include_directories(${target} SYSTEM PRIVATE ${FOREBAY_CUDA_HEADERS})
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX
      COMPILE_OPTIONS "-x;c++;-ffp-contract=off;-fno-strict-aliasing;-Wno-unknown-pragmas")
  endif()
endfunction()
