# `cmake --install`: the C interface (libforebay.so, forebay/c.h, pkg-config), and the C++ libraries that
# programs with a model of their own use (find_package(forebay), forebay::offload or forebay::swap).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The headers that such programs include, and all that these include.
set(FOREBAY_PUBLIC_HEADERS
  aio/buffer_registration.h aio/engine.h aio/open_engine.h
  base/activity.h base/bfloat16.h base/check.h base/clock.h base/dtype.h base/errors.h base/file.h base/json.h base/process/parallel.h
  base/tensor_spec.h base/trace.h
  collective/communicator.h device/device.h memory/host_buffer.h memory/memory_budget.h memory/page_tally.h
  offload/commit_policy.h offload/create_store.h offload/divided_state.h offload/embedded/embedded_ranks.h offload/embedded/embedded_run.h offload/ranks/gathered_weights.h offload/ranks/gradient_sum.h
  offload/layer_session.h
  offload/machine_limits.h offload/offload_options.h offload/open_layers.h offload/plan.h offload/raw_tensors.h
  offload/spilled_activations.h
  optimizer/held_gradients.h optimizer/kernels/tile_update.h optimizer/kernels/update_rule.h
  optimizer/offloaded_optimizer.h optimizer/parameter_groups.h optimizer/tile_arithmetic.h
  step/access_queue.h step/activation_storage.h step/layer_compute.h step/layer_gradient.h step/layer_walk.h step/layer_window.h
  step/module_schedule.h step/operation.h step/param_source.h step/step_schedule.h step/window_buffers.h
  swap/records/commit_record.h swap/records/gradient_seals.h swap/session/tensor_session.h swap/store/store_access.h
  swap/store/store_state.h
  swap/store/tensor_store.h swap/store/transfer_buffer.h swap/tiles/inventory_parts.h swap/tiles/layout.h swap/tiles/placement.h swap/tiles/stripes.h
  swap/tiles/tile_map.h swap/tiles/tile_planes.h swap/tiles/tile_values.h swap/window/step_transfers.h
  swap/window/swapper.h swap/window/window.h)

set(libraries "")
foreach(module base device memory collective aio step swap optimizer offload)
  set_target_properties(forebay_${module} PROPERTIES EXPORT_NAME ${module})
  target_include_directories(forebay_${module} PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  list(APPEND libraries forebay_${module})
endforeach()
install(TARGETS ${libraries} EXPORT forebay_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS forebay_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS forebay swap-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/capi/c.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/forebay)
foreach(header ${FOREBAY_PUBLIC_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/forebay/${folder})
endforeach()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/forebay)
install(EXPORT forebay_targets NAMESPACE forebay:: DESTINATION ${package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/forebayConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/forebayConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/forebayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/forebayConfig.cmake ${PROJECT_BINARY_DIR}/forebayConfigVersion.cmake
        DESTINATION ${package_folder})
file(RELATIVE_PATH folder_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/forebay.pc.in ${PROJECT_BINARY_DIR}/forebay.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/forebay.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
