// Huge pages set aside for a test, as an administrator does it. Needs root.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace forebay {

class ReservedHugePages {
 public:
  explicit ReservedHugePages(int64_t num_pages) : before_(Read("nr_hugepages")) {
    std::ofstream(Path("nr_hugepages")) << before_ + num_pages;
  }
  ~ReservedHugePages() { std::ofstream(Path("nr_hugepages")) << before_; }
  ReservedHugePages(const ReservedHugePages&) = delete;
  ReservedHugePages& operator=(const ReservedHugePages&) = delete;

  // Those that nobody uses or was promised.
  static int64_t NumFree() { return Read("free_hugepages") - Read("resv_hugepages"); }

 private:
  static std::string Path(const char* name) {
    return std::string("/sys/kernel/mm/hugepages/hugepages-2048kB/") + name;
  }
  static int64_t Read(const char* name) {
    int64_t value = 0;
    std::ifstream(Path(name)) >> value;
    return value;
  }

  const int64_t before_;
};

}  // namespace forebay
