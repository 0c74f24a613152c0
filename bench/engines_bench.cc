// The I/O engines beside each other on one file, in turn, because disks and machines drift:
//   build/bench_bin/engines_bench FOLDER|FILE [GiB] [block KiB] [rounds] [in flight MiB]
// In a folder it makes a file of its own; a file that is named is only read, and not written to.
// Prints for every engine and kind of load the median GB/s of the rounds with least and most, and
// the CPU time of the whole process for each GB. "mixed" is half reads, half writes, in alternation
// as the engine's queues arrange it. Not for: comparisons with other programs.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/buffer_registration.h"
#include "forebay/aio/engine.h"
#include "forebay/base/clock.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/bench/positional_arguments.h"
#include "forebay/memory/host_buffer.h"

namespace forebay {
namespace {

struct Settings {
  std::string path;  // a folder, or the file to read
  int64_t file_bytes = 0;
  int64_t block_bytes = 0;  // 0: the engine's own
  int rounds = 0;
  int64_t in_flight_bytes = 0;
};

struct Load {
  const char* name;
  bool reads;
  bool writes;
};
constexpr Load kLoads[] = {{"read", true, false}, {"write", false, true}, {"mixed", true, true}};

// As long as a tile's state in the default layout.
constexpr int64_t kOpBytes = int64_t{10} << 20;
constexpr int kNumOps = 12;

double CpuSeconds() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "engines_bench: %s\n", MessageOf(status).c_str());
  std::exit(static_cast<int>(ExitCodeOf(status)));
}

struct Contender {
  std::string name;
  std::unique_ptr<Engine> engine;
  BufferRegistration registration;
  int file = -1;
  std::vector<double> gb_per_s[3];
  double cpu_s[3] = {};
  double gb[3] = {};
};

struct Pass {
  double seconds = 0;
  double bytes = 0;
};

// Goes through the file once; ops are kept in flight as the trainer does, each waited for in its
// turn and then used again.
Pass RunLoad(Contender& contender, const Load& load, const HostBuffer& memory, int64_t file_bytes) {
  const int64_t num_ops = file_bytes / kOpBytes;
  std::vector<IoOp> ops(kNumOps);
  Pass pass;
  const Stopwatch watch;
  for (int64_t i = 0; i < num_ops + kNumOps; ++i) {
    IoOp& op = ops[static_cast<size_t>(i % kNumOps)];
    Require(contender.engine->Wait(op));
    if (i >= num_ops) continue;
    op.kind = load.reads && (!load.writes || i % 2 == 0) ? IoKind::kRead : IoKind::kWrite;
    op.io_class = op.kind == IoKind::kRead ? IoClass::kPrefetch : IoClass::kWriteBack;
    op.file = contender.file;
    op.offset_bytes = i * kOpBytes;
    op.buffer = memory.bytes().subspan(static_cast<size_t>(i % kNumOps * kOpBytes),
                                       static_cast<size_t>(kOpBytes));
    contender.engine->Submit(op);
    pass.bytes += static_cast<double>(kOpBytes);
  }
  if (load.writes) Require(contender.engine->Flush(contender.file));
  pass.seconds = watch.Seconds();
  return pass;
}

absl::StatusOr<Contender> Make(const Settings& settings, const std::string& name,
                               const HostBuffer& memory, const std::string& path, bool read_only) {
  EngineOptions options;
  options.block_bytes = settings.block_bytes;
  options.max_in_flight_bytes = settings.in_flight_bytes;
  Contender contender;
  contender.name = name;
  absl::StatusOr<std::unique_ptr<Engine>> engine;
  if (name.starts_with("io_uring")) {
    engine = CreateIoUringEngine(options);
  } else if (name == "libaio") {
    engine = CreateLibaioEngine(options);
  } else {
    options.num_threads = std::atoi(name.c_str() + name.find(' '));
    engine = CreateThreadsEngine(options);
  }
  if (!engine.ok()) return engine.status();
  contender.engine = *std::move(engine);
  if (name == "io_uring, registered") {
    contender.registration = BufferRegistration(contender.engine.get(), memory.IoPieces(kOpBytes));
    FOREBAY_RETURN_IF_ERROR(contender.registration.status());
  }
  FOREBAY_ASSIGN_OR_RETURN(DirectFile file, OpenDirectFile(path, {.read_only = read_only}));
  if (!file.direct) std::printf("no direct I/O here: %s\n", file.why_not_direct.c_str());
  contender.file = contender.engine->AddFile(std::move(file.fd), path);
  return contender;
}

void FillMemory(const HostBuffer& memory) {
  const CounterRng rng(1);
  const auto words = memory.As<uint64_t>();
  for (size_t i = 0; i < words.size(); ++i) words[i] = rng.Bits64(i);
}

void Print(const std::vector<Contender>& contenders, size_t num_loads) {
  std::printf("%-22s %-6s %8s %8s %8s %10s\n", "engine", "load", "GB/s", "least", "most",
              "CPU ms/GB");
  for (size_t load = 0; load < num_loads; ++load) {
    for (const Contender& c : contenders) {
      std::vector<double> sorted = c.gb_per_s[load];
      std::ranges::sort(sorted);
      std::printf("%-22s %-6s %8.2f %8.2f %8.2f %10.1f\n", c.name.c_str(), kLoads[load].name,
                  sorted[sorted.size() / 2], sorted.front(), sorted.back(),
                  c.cpu_s[load] * 1000 / c.gb[load]);
    }
  }
}

int Main(Settings settings) {
  const bool read_only = !std::filesystem::is_directory(settings.path);
  const std::string path =
      read_only ? settings.path : settings.path + "/engines_bench." + std::to_string(::getpid());
  if (read_only) settings.file_bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  MemoryBudget budget(0);
  auto memory = HostBuffer::Create(&budget, "bench", kNumOps * kOpBytes);
  Require(memory.status());
  FillMemory(*memory);
  if (!read_only) {
    Require(OpenDirectFile(path, {.create = true, .size_bytes = settings.file_bytes}).status());
  }
  std::vector<Contender> contenders;
  for (const char* name :
       {"io_uring, registered", "io_uring", "libaio", "threads 2", "threads 8"}) {
    auto contender = Make(settings, name, *memory, path, read_only);
    if (contender.ok()) {
      contenders.push_back(*std::move(contender));
    } else {
      std::printf("%s: %s\n", name, MessageOf(contender.status()).c_str());
    }
  }
  if (!read_only) {
    ::unlink(path.c_str());  // the engines have it open; nothing is left behind
    // Extents are allocated, but the first write also marks them as written.
    RunLoad(contenders[0], kLoads[1], *memory, settings.file_bytes);
  }
  const size_t num_loads = read_only ? 1 : std::size(kLoads);
  for (int round = 0; round < settings.rounds; ++round) {
    for (size_t load = 0; load < num_loads; ++load) {
      for (Contender& c : contenders) {
        const double cpu_before = CpuSeconds();
        const Pass pass = RunLoad(c, kLoads[load], *memory, settings.file_bytes);
        c.cpu_s[load] += CpuSeconds() - cpu_before;
        c.gb[load] += pass.bytes / 1e9;
        c.gb_per_s[load].push_back(pass.bytes / 1e9 / pass.seconds);
      }
    }
  }
  Print(contenders, num_loads);
  return 0;
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) {
  std::vector<forebay::bench::Number> numbers = {
      {.name = "GiB", .value = 1, .least = 0.125, .most = 1024, .multiple_of = 0},
      {.name = "block KiB; 0: the engine's own",
       .value = 0,
       .least = 0,
       .most = 1 << 20,
       .multiple_of = 4},
      {.name = "rounds", .value = 3, .least = 1, .most = 1000},
      {.name = "in flight MiB", .value = 32, .least = 1, .most = 1024}};
  forebay::Settings settings;
  settings.path = forebay::bench::ParseFolderAndNumbers(argc, argv, numbers, /*takes_file=*/true);
  settings.file_bytes = static_cast<int64_t>(numbers[0].value * (1 << 30)) & ~4095;
  settings.block_bytes = static_cast<int64_t>(numbers[1].value) << 10;
  settings.rounds = static_cast<int>(numbers[2].value);
  settings.in_flight_bytes = static_cast<int64_t>(numbers[3].value) << 20;
  return forebay::Main(settings);
}
