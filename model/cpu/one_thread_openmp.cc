#include "forebay/model/cpu/one_thread_openmp.h"

#include <dlfcn.h>

namespace forebay::cpu {
namespace {

// The OpenMP runtime is oneDNN's, whichever that is (libgomp in Debian); a build of oneDNN without
// OpenMP has none, and then there is nothing to confine. Linking to one by name could load a second
// runtime, whose setting oneDNN would not see.
struct OpenMp {
  void (*set_num_threads)(int) = nullptr;
  int (*get_max_threads)() = nullptr;
};

const OpenMp& Runtime() {
  static const OpenMp runtime = [] {
    OpenMp found;
    void* set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    void* get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    if (set != nullptr && get != nullptr) {
      found.set_num_threads = reinterpret_cast<void (*)(int)>(set);
      found.get_max_threads = reinterpret_cast<int (*)()>(get);
    }
    return found;
  }();
  return runtime;
}

}  // namespace

void ConfineOpenMpToThisThread() {
  if (Runtime().set_num_threads != nullptr) Runtime().set_num_threads(1);
}

OneThreadOpenMp::OneThreadOpenMp() {
  if (Runtime().get_max_threads != nullptr) previous_ = Runtime().get_max_threads();
  if (previous_ != 1) Runtime().set_num_threads(1);
}

OneThreadOpenMp::~OneThreadOpenMp() {
  if (previous_ != 1) Runtime().set_num_threads(previous_);
}

}  // namespace forebay::cpu
