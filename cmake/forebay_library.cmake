# forebay_library(<module> SOURCES a.cc b.cc DEPS forebay::base ...): one static library per folder.
function(forebay_library module)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(forebay_${module} STATIC ${ARG_SOURCES})
  add_library(forebay::${module} ALIAS forebay_${module})
  # SYSTEM would hide our own warnings; third-party headers are marked SYSTEM by their packages.
  target_include_directories(forebay_${module} PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>)
  target_link_libraries(forebay_${module} PUBLIC ${ARG_DEPS})
  if(FOREBAY_UNITY)
    set_target_properties(forebay_${module} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${FOREBAY_UNITY_BATCH})
    # Warns of a type in a .cc file with a member whose type lies in an anonymous namespace of the same file.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      target_compile_options(forebay_${module} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
    endif()
    # Highway compiles these once per CPU target by including them again: they stay alone.
    set(kernels ${ARG_SOURCES})
    list(FILTER kernels INCLUDE REGEX "_(kernels|simd)\\.cc$")
    set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# forebay_core_part(<variable>): 1, 2 or 3 in turn. scripts/test --all builds (core_tests_part1) and runs (label core_part1) a
# third of the tests of the core modules under the sanitizers, the next third after each commit.
function(forebay_core_part variable)
  get_property(number GLOBAL PROPERTY FOREBAY_NUM_CORE_TESTS)
  math(EXPR part "0${number} % 3 + 1")
  math(EXPR number "0${number} + 1")
  set_property(GLOBAL PROPERTY FOREBAY_NUM_CORE_TESTS ${number})
  if(NOT TARGET core_tests_part${part})
    add_custom_target(core_tests_part${part})
  endif()
  set(${variable} ${part} PARENT_SCOPE)
endfunction()

# forebay_test(<name> SOURCES x_test.cc DEPS ... LABELS unit): one GoogleTest program, one ctest entry per
# test program (so that a suite of hundreds of cases costs one process start). FILTER is a GoogleTest
# filter. A second entry for the same program (its slow cases, say) names it instead of sources:
# forebay_test(<name> PROGRAM <program> FILTER *Slow* LABELS slow).
# Tests of a core module, and those with SANITIZED, also get the label "core" and are built by the target
# core_tests. FULL_UNDER address thread: what takes long under these sanitizers for the little that they could find
# there. It gets the label "slow" too, and is built by full_core_tests alone, for scripts/test --full.
function(forebay_test name)
  cmake_parse_arguments(ARG "SANITIZED" "TIMEOUT;PROGRAM;FILTER" "SOURCES;DEPS;LABELS;FULL_UNDER" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
    # A sanitizer makes code several times slower, and machines differ: the limit is for what hangs.
    if(FOREBAY_SANITIZE)
      set(ARG_TIMEOUT 900)
    endif()
  endif()
  if(NOT ARG_PROGRAM)
    set(ARG_PROGRAM ${name})
    add_executable(${name} ${ARG_SOURCES})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests_bin)
    target_link_libraries(${name} PRIVATE ${ARG_DEPS} forebay_test_main)
    if(FOREBAY_UNITY)
      set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${FOREBAY_UNITY_BATCH})
    endif()
    # The libraries are optimised; optimising the checks around them only makes builds longer.
    if(CMAKE_BUILD_TYPE STREQUAL "Release")
      target_compile_options(${name} PRIVATE -O1)
    elseif(FOREBAY_SANITIZE MATCHES "address")
      target_compile_options(${name} PRIVATE -O0)
    endif()
  endif()
  set(arguments "")
  if(ARG_FILTER)
    set(arguments "--gtest_filter=${ARG_FILTER}")
  endif()
  add_test(NAME ${name} COMMAND ${ARG_PROGRAM} ${arguments})

  file(RELATIVE_PATH module ${PROJECT_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
  if(module IN_LIST FOREBAY_CORE_MODULES OR ARG_SANITIZED)
    if(NOT TARGET core_tests)
      add_custom_target(core_tests)
      add_custom_target(full_core_tests)
      add_dependencies(full_core_tests core_tests)
    endif()
    set(target core_tests)
    list(APPEND ARG_LABELS core)
    forebay_core_part(part)
    list(APPEND ARG_LABELS core_part${part})
    foreach(sanitizer ${ARG_FULL_UNDER})
      if(FOREBAY_SANITIZE MATCHES "${sanitizer}")
        set(target full_core_tests)
        list(APPEND ARG_LABELS slow)
      endif()
    endforeach()
    add_dependencies(${target} ${ARG_PROGRAM})
    if(target STREQUAL core_tests)
      add_dependencies(core_tests_part${part} ${ARG_PROGRAM})
    endif()
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77)
  # Under ASan the emulated GPU adds as tensor cores do and has a GPU's NaN; under TSan its sums are exact.
  if(FOREBAY_CUDA_EMULATED AND FOREBAY_SANITIZE MATCHES "address")
    set_property(TEST ${name} PROPERTY ENVIRONMENT FOREBAY_EMULATION_NAN=gpu FOREBAY_EMULATION_TRUNCATED_PRODUCTS=8)
  endif()
endfunction()

# forebay_share(<test> <share> [<target>...]): the test is one of those that `scripts/test` runs without arguments, and these
# targets are what it needs. The share (programs, library, store or package: what the test says works) is a label.
function(forebay_share test share)
  set_property(TEST ${test} APPEND PROPERTY LABELS ${share} share)
  if(NOT TARGET shares)
    add_custom_target(shares)
  endif()
  if(ARGN)
    add_dependencies(shares ${ARGN})
  endif()
endfunction()

# forebay_pytest(<name> SOURCES x_test.py... LABELS e2e torch [ON_GPU]): runs pytest on these files, or on single
# tests of them (x_test.py::test_y), in the Python environment of the tests (build/test-venv, made by scripts/test;
# skipped where it is missing). The tests find the programs through FOREBAY_BIN. ON_GPU: where a GPU is emulated, and on
# it, with the tests of core modules; but not under TSan, which takes ten times as long.
function(forebay_pytest name)
  cmake_parse_arguments(ARG "ON_GPU" "TIMEOUT" "SOURCES;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  set(environment "FOREBAY_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  if(ARG_ON_GPU)
    if(NOT FOREBAY_CUDA_EMULATED OR FOREBAY_SANITIZE STREQUAL "thread")
      return()
    endif()
    add_dependencies(core_tests forebay)
    forebay_core_part(part)
    add_dependencies(core_tests_part${part} forebay)
    list(APPEND ARG_LABELS core core_part${part})
    list(APPEND environment FOREBAY_DEVICE=cuda)
  endif()
  list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/run_pytest.sh ${ARG_SOURCES})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "${environment}")
endfunction()
