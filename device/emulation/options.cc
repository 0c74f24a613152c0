#include "forebay/device/emulation/options.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace forebay::emulation {
namespace {

std::string_view Setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

template <typename Value>
void SetNumber(const char* name, Value& value) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return;
  char* end = nullptr;
  const unsigned long long number = std::strtoull(text, &end, 10);
  if (end == text || *end != 0) Die("%s is '%s', and has to be a number", name, text);
  value = static_cast<Value>(number);
}

Options FromEnvironment() {
  Options options;
  const std::string_view order = Setting("FOREBAY_EMULATION_ORDER");
  if (order == "ascending") {
    options.order = Order::kAscending;
  } else if (order == "descending") {
    options.order = Order::kDescending;
  } else if (!order.empty() && order != "random") {
    Die("FOREBAY_EMULATION_ORDER is neither ascending, descending nor random");
  }
  const std::string_view streams = Setting("FOREBAY_EMULATION_STREAMS");
  if (streams == "eager") {
    options.streams = StreamPace::kEager;
  } else if (streams == "lazy") {
    options.streams = StreamPace::kLazy;
  } else if (!streams.empty() && streams != "random") {
    Die("FOREBAY_EMULATION_STREAMS is neither eager, lazy nor random");
  }
  const std::string_view loss = Setting("FOREBAY_EMULATION_LOST_BY");
  if (loss == "ecc") {
    options.lost_by = Loss::kEcc;
  } else if (!loss.empty() && loss != "unavailable") {
    Die("FOREBAY_EMULATION_LOST_BY is neither ecc nor unavailable");
  }
  const std::string_view driver = Setting("FOREBAY_EMULATION_DRIVER");
  if (driver == "old" || driver == "none") {
    options.driver = driver == "old" ? Options::Driver::kOld : Options::Driver::kNone;
  } else if (!driver.empty()) {
    Die("FOREBAY_EMULATION_DRIVER is neither old nor none");
  }
  const std::string_view nan = Setting("FOREBAY_EMULATION_NAN");
  options.has_gpu_nans = nan == "gpu";
  if (!nan.empty() && nan != "gpu" && nan != "host") {
    Die("FOREBAY_EMULATION_NAN is neither gpu nor host");
  }
  SetNumber("FOREBAY_EMULATION_TRUNCATED_PRODUCTS", options.truncated_products);
  const int products = options.truncated_products;
  if (products != 0 && products != 4 && products != 8 && products != 16) {
    Die("FOREBAY_EMULATION_TRUNCATED_PRODUCTS is %d, and has to be 0, 4, 8 or 16", products);
  }
  SetNumber("FOREBAY_EMULATION_LOST_AFTER", options.lost_after);
  SetNumber("FOREBAY_EMULATION_SEED", options.seed);
  SetNumber("FOREBAY_EMULATION_GPU_BYTES", options.gpu_bytes);
  SetNumber("FOREBAY_EMULATION_NUM_GPUS", options.num_gpus);
  SetNumber("FOREBAY_EMULATION_GPU_NUMBER", options.gpu_number);
  SetNumber("FOREBAY_EMULATION_CAPABILITY", options.capability);
  SetNumber("FOREBAY_EMULATION_FASTEST_PRODUCT", options.fastest_product);
  SetNumber("FOREBAY_EMULATION_CUBLASLT", options.cublaslt_version);
  SetNumber("FOREBAY_EMULATION_TSAN_THREADS", options.most_tsan_threads);
  return options;
}

}  // namespace

Options& TheOptions() {
  static Options options = FromEnvironment();
  return options;
}

void Die(const char* format, ...) {
  std::fputs("emulated GPU: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

}  // namespace forebay::emulation
