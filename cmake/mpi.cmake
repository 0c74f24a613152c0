# Plugins for the MPIs that are found: Open MPI and MPICH, one or both (Debian installs them side by side, as
# mpicc.openmpi and mpicc.mpich; elsewhere mpicc is the one there is). Nothing else is linked with an MPI, and without one
# the build is complete but for them.
option(FOREBAY_MPI "Build the plugins for the MPIs that are found" ON)

# forebay_mpi_plugin(<family> <mpicc>): bin/libforebay_mpi_<family>.so. Warnings are no errors there, as the headers are
# the MPI's.
function(forebay_mpi_plugin family mpicc)
  set(plugin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/libforebay_mpi_${family}.so)
  set(source ${PROJECT_SOURCE_DIR}/collective/mpi/mpi_plugin.c)
  add_custom_command(OUTPUT ${plugin}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
    COMMAND ${CMAKE_COMMAND} -E env OMPI_CC=${CMAKE_C_COMPILER} MPICH_CC=${CMAKE_C_COMPILER}
            ${mpicc} -std=c11 -O2 -Wall -Wextra -shared -fPIC ${source} -o ${plugin}
    DEPENDS ${source} ${PROJECT_SOURCE_DIR}/collective/mpi/mpi_plugin.h
    COMMENT "Compiling the plugin for ${family} with ${mpicc}" VERBATIM)
  add_custom_target(forebay_mpi_${family} ALL DEPENDS ${plugin})
  install(FILES ${plugin} DESTINATION lib/forebay)
  message(STATUS "MPI: a plugin for ${family}, by ${mpicc}")
endfunction()

# An MPI that has no name of its own in PATH: which family it is of.
function(forebay_plain_mpicc family)
  find_program(FOREBAY_MPICC mpicc)
  if(NOT FOREBAY_MPICC)
    return()
  endif()
  execute_process(COMMAND ${FOREBAY_MPICC} --showme:version RESULT_VARIABLE is_other OUTPUT_QUIET ERROR_QUIET)
  if(is_other)
    set(plain mpich)
  else()
    set(plain openmpi)
  endif()
  if(family STREQUAL plain)
    set(FOREBAY_MPICC_${family} ${FOREBAY_MPICC} CACHE FILEPATH "mpicc of ${family}" FORCE)
  endif()
endfunction()

if(FOREBAY_MPI)
  foreach(family openmpi mpich)
    find_program(FOREBAY_MPICC_${family} mpicc.${family})
    if(NOT FOREBAY_MPICC_${family})
      forebay_plain_mpicc(${family})
    endif()
    if(FOREBAY_MPICC_${family})
      forebay_mpi_plugin(${family} ${FOREBAY_MPICC_${family}})
    else()
      message(STATUS "MPI: no ${family} found; its plugin is skipped")
    endif()
  endforeach()
endif()
