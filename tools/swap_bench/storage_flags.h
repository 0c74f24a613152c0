// The flags that `step` and `tune` share: on what disk, in what file, by which engine.
#pragma once

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "forebay/aio/engine.h"
#include "forebay/base/format.h"
#include "forebay/tools/swap_bench/flag_reader.h"

namespace forebay {

class StorageFlags {
 public:
  void Declare(CLI::App& app) {
    app.add_option("--engine", engine_text_,
                   "how bytes are moved; what cannot be used here steps down (default: auto)")
        ->type_name("auto|io_uring|libaio|threads|buffered")
        ->take_last();
    app.add_flag("--engine_strict", strict, "stop instead of stepping down to a lesser engine");
    app.add_option("--size", size_text_,
                   "of the file that is made on each folder (default: 4G); tune takes 64M or more, "
                   "step 16 tiles of state (160M, with --layout=fp32 128M) or what the store takes")
        ->type_name("SIZE")
        ->take_last();
    app.add_option("--seed", seed_text_, "of its contents (default: 1)")
        ->type_name("N")
        ->take_last();
  }
  // After the parse.
  void Read(FlagReader& reader) {
    reader.TakeWord("engine", engine_text_, EngineWords(), engine);
    reader.Take("size", ParseSize(size_text_), size_bytes);
    reader.TakeNumber("seed", seed_text_, seed);
  }

  EngineKind engine = EngineKind::kAuto;
  bool strict = false;
  int64_t size_bytes = 0;
  uint64_t seed = 1;

 private:
  std::string engine_text_ = "auto";
  std::string size_text_ = "4G";
  std::string seed_text_ = "1";
};

}  // namespace forebay
