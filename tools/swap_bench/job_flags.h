// The flags of a benchmark job: one table, which is the command line, its help and docs/cli.md.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "forebay/measure/load/job.h"
#include "forebay/tools/swap_bench/flag_reader.h"

namespace forebay {

struct JobFlag {
  std::string name;        // without "--"
  std::string value;       // "SIZE"; "switch" takes none
  std::string by_default;  // "": nothing
  std::string help;
  bool in_sweep = true;  // also a flag of `sweep`
};
const std::vector<JobFlag>& JobFlagTable();

enum class JobUse : uint8_t { kRun, kSweep };

class JobFlags {
 public:
  explicit JobFlags(JobUse use) : use_(use) {}
  // Adds the positional DIR and the flags of the table. `this` must outlive the parse.
  void Declare(CLI::App& app);
  // What was given; call after the parse. UsageError naming every flag that is wrong.
  absl::StatusOr<Job> Read() const;
  // --percentiles.
  absl::StatusOr<std::vector<double>> Percentiles() const;

 private:
  void ReadTargets(FlagReader& reader, Job& job) const;
  void ReadLoad(FlagReader& reader, Job& job) const;
  void ReadQueue(FlagReader& reader, Job& job) const;  // how much is in flight
  void ReadTimes(FlagReader& reader, Job& job) const;
  const std::string& Text(const std::string& name) const { return texts_.at(name); }
  bool Given(const std::string& name) const { return options_.at(name)->count() > 0; }

  const JobUse use_;
  std::vector<std::string> directories_;
  std::map<std::string, std::string> texts_;  // by name; CLI11 writes here
  std::map<std::string, const CLI::Option*> options_;
};

// ---- For tests
// "DIR" or "DIR:WEIGHT".
JobTarget ParseTarget(std::string_view text);
// "read", "write", "mixed", "mixed=70", several with commas.
absl::StatusOr<std::vector<LoadKind>> ParseLoads(std::string_view text);
// "bw:2%/5s".
absl::StatusOr<SteadyRule> ParseSteady(std::string_view text);
// "5%" or "0.05".
absl::StatusOr<double> ParseShare(std::string_view text);

}  // namespace forebay
