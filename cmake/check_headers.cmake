# forebay_check_headers(<module>...): compiles every header of these folders alone, so that a header that
# leans on what its includer happened to include fails the build. Files named *-inl.h are bodies for
# Highway to include once per CPU target, no headers.
function(forebay_check_headers)
  set(sources "")
  set(libraries "")
  foreach(module ${ARGN})
    if(NOT TARGET forebay_${module})
      continue()
    endif()
    list(APPEND libraries forebay_${module})
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
         ${PROJECT_SOURCE_DIR}/${module}/*.h)
    list(FILTER headers EXCLUDE REGEX "-inl\\.h$")
    if(NOT FOREBAY_CUDA_EMULATED)  # they include CUDA's, as no other header does
      list(FILTER headers EXCLUDE REGEX "^device/(kernel\\.h|cuda_error\\.h|emulation/)")
    endif()
    foreach(header ${headers})
      set(source ${PROJECT_BINARY_DIR}/headers_alone/${header}.cc)
      # Twice: an include guard that does not guard fails too.
      set(contents "#include \"forebay/${header}\"\n#include \"forebay/${header}\"\n")
      file(CONFIGURE OUTPUT ${source} CONTENT "${contents}" @ONLY)
      list(APPEND sources ${source})
    endforeach()
  endforeach()
  if(sources)
    add_library(forebay_headers_alone OBJECT ${sources})
    target_link_libraries(forebay_headers_alone PRIVATE ${libraries})
    target_compile_options(forebay_headers_alone PRIVATE -O0 -g0)
  endif()
endfunction()
