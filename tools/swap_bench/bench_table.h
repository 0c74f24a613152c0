// Results for people and for spreadsheets. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "forebay/measure/report/compare.h"
#include "forebay/measure/report/probe.h"
#include "forebay/measure/runs/run_job.h"
#include "forebay/measure/runs/sweep.h"

namespace forebay {

// The machine and the folders.
std::string MachineText(const BenchReport& report, const std::string& version);
// And how it was measured, a row for each run, and what all of it wrote.
std::string RunsText(const BenchReport& report, const std::string& version);
std::string NotesText(const std::vector<std::string>& warnings);
// Machine, folders, a row for each run, verdicts, notes.
std::string ReportText(const BenchReport& report, const std::string& version);
// A header and a row for each run; the columns are those of the JSON (docs/formats.md).
std::string ReportCsv(const BenchReport& report, std::span<const double> percentiles);

std::string SweepText(const SweepReport& sweep, const std::string& version);
std::string ProbeText(const ProbeReport& probe, const std::string& version);
// A header and a row for each engine on each folder.
std::string ProbeCsv(const ProbeReport& probe);

std::string ComparisonText(const ReportComparison& comparison);
std::string ComparisonCsv(const ReportComparison& comparison);
Json ComparisonToJson(const ReportComparison& comparison);

}  // namespace forebay
