// A run folder with the records of four steps, as `train` wrote them, but for rounder numbers.
#pragma once

#include <string>

#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {

inline constexpr char kRecordedMetrics[] =
    R"({"step":0,"eval_loss":5.75}
{"step":1,"loss":5.5,"grad_norm":3.5,"lr":0.001,"tokens":128,"step_s":0.5,"tokens_per_s":256.0,"compute_s":0.3,"io_wait_s":0.2,"waits":{"other":0.0,"weights":0.15,"state":0.05,"update":0.0,"write":0.0,"device":0.0,"hand_over":0.0,"activations":0.0,"commit":0.0,"export":0.0},"optimizer_s":0.0,"read_bytes":300000,"write_bytes":0,"host_peak_bytes":104857600,"rss_bytes":26214400}
{"step":2,"loss":5.0,"grad_norm":3.0,"lr":0.0008,"tokens":128,"step_s":0.25,"tokens_per_s":512.0,"compute_s":0.125,"io_wait_s":0.125,"waits":{"other":0.025,"weights":0.05,"state":0.0,"update":0.0,"write":0.0,"device":0.0,"hand_over":0.0,"activations":0.0,"commit":0.05,"export":0.0},"optimizer_s":0.01,"read_bytes":1000000,"write_bytes":1250000,"host_peak_bytes":125829120,"rss_bytes":27262976,"eval_loss":5.125}
{"step":3,"loss":null,"grad_norm":null,"lr":0.0006,"tokens":128,"loss_scale":65536.0,"skipped":true,"step_s":0.2,"tokens_per_s":640.0,"compute_s":0.2,"io_wait_s":0.0,"waits":{"other":0.0,"weights":0.0,"state":0.0,"update":0.0,"write":0.0,"device":0.0,"hand_over":0.0,"activations":0.0,"commit":0.0,"export":0.0},"optimizer_s":0.0,"read_bytes":1000000,"write_bytes":0,"host_peak_bytes":125829120,"rss_bytes":27262976}
{"step":4,"loss":4.5,"grad_norm":2.5,"lr":0.0004,"tokens":128,"step_s":1.0,"tokens_per_s":128.0,"compute_s":0.5,"io_wait_s":0.5,"waits":{"other":0.0,"weights":0.0,"state":0.0,"update":0.0,"write":0.5,"device":0.0,"hand_over":0.0,"activations":0.0,"commit":0.0,"export":0.0},"optimizer_s":0.01,"read_bytes":1000000,"write_bytes":2500000,"host_peak_bytes":125829120,"rss_bytes":27262976,"eval_loss":5.25}
)";

class RecordedRun {
 public:
  explicit RecordedRun(const std::string& name = "book") : folder_(scratch_.Path(name)) {
    const RunPaths paths(folder_);
    FOREBAY_CHECK(MakeDirectories(folder_).ok());
    const Json run_json = {{"format", kRunFormat},  {"state", kRunReady},
                           {"stores", {"swap"}},    {"store_uuid", std::string(32, 'a')},
                           {"model", "source"},     {"fingerprint", {{"steps", 6}}},
                           {"files", Json::array()}};
    FOREBAY_CHECK(WriteRunJson(paths, run_json).ok());
    Set("data", "batch", 2);
    Set("data", "seq", 64);
    Set("data", "accum", 1);
    Set("model", "model", "/models/<b>&\"tiny\"");
    Set("optim", "lr", 0.001);
    Write(paths.plan, Json({{"host_bytes", 134217728},
                            {"ram_budget_bytes", 1073741824},
                            {"read_bytes_per_step", 1000000},
                            {"write_bytes_per_step", 1000000},
                            {"durability", "step"},
                            {"forecast", {{"step_s", 0.2}, {"tokens_per_s", 640.0}}},
                            {"rated_tbw", 600.0}})
                          .dump());
    Write(paths.metrics, kRecordedMetrics);
  }

  // A setting in resolved_config.json.
  void Set(const std::string& section, const std::string& name, const Json& value) {
    config_[section][name] = {{"value", value}, {"origin", "flag"}};
    Write(RunPaths(folder_).resolved_config, config_.dump());
  }
  static void Write(const std::string& path, const std::string& text) {
    FOREBAY_CHECK(WriteFileAtomically(path, text).ok());
  }

  const std::string& folder() const { return folder_; }
  RunPaths paths() const { return RunPaths(folder_); }

 private:
  const TemporaryFolder scratch_;
  const std::string folder_;
  Json config_ = Json::object();
};

}  // namespace forebay
