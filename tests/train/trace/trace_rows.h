// A trace file, read back.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/json.h"
#include "gtest/gtest.h"

namespace forebay {

struct Span {
  std::string name;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  Json args;
  int64_t length_ns() const { return end_ns - begin_ns; }
};

struct TraceRows {
  std::map<std::pair<int, int>, std::vector<Span>> spans;  // by pid and tid
  std::map<std::pair<int, int>, std::string> names;
  int64_t num_dropped = -1;

  std::vector<Span> Named(const std::string& name) const {
    std::vector<Span> all;
    for (const auto& [row, its] : spans) {
      if (names.at(row).starts_with(name)) all.insert(all.end(), its.begin(), its.end());
    }
    return all;
  }
};

inline int64_t Ns(const Json& micros) {
  return std::llround(micros.get<double>() * 1e3);
}

inline TraceRows ReadTrace(const std::string& path) {
  TraceRows rows;
  const auto json = ReadJsonFile(path, int64_t{64} << 20);
  EXPECT_TRUE(json.ok()) << json.status();
  if (!json.ok()) return rows;
  rows.num_dropped = (*json)["otherData"]["events_dropped"].get<int64_t>();
  for (const Json& event : (*json)["traceEvents"]) {
    const std::pair row(event["pid"].get<int>(), event["tid"].get<int>());
    if (event["ph"] == "X") {
      const int64_t begin = Ns(event["ts"]);
      rows.spans[row].push_back({event["name"], begin, begin + Ns(event["dur"]), event["args"]});
    } else if (event["name"] == "thread_name") {
      rows.names[row] = event["args"]["name"];
    }
  }
  return rows;
}

}  // namespace forebay
