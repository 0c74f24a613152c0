// The plugin of the MPI that started this process.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/collective/mpi/mpi_plugin.h"

namespace forebay {

// `family`: "openmpi" or "mpich". Looks for libforebay_mpi_<family>.so beside the program, in
// ../lib/forebay from there, and beside libforebay.so where this is in one; or else where
// FOREBAY_MPI_PLUGIN says. Never closed: an MPI does not survive that. EnvironmentError that says
// where it was looked for, and why it cannot be opened.
absl::StatusOr<const ForebayMpi*> LoadMpi(std::string_view family);

}  // namespace forebay
