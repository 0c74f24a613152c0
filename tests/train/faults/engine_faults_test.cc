// Every transfer and flush of a training run fails in every way: the run ends with the right error
// or does without the transfer, and goes on from its last commit to the bits of a run that was
// never disturbed. Nothing leaks, nothing hangs.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/tests/aio/engine_fixture.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

struct FaultKind {
  const char* name;
  FaultEffect effect = FaultEffect::kError;
  int error_number = EIO;
  bool for_ever = false;
};
constexpr FaultKind kFaultKinds[] = {
    {"EIO"},
    {"ENOSPC", FaultEffect::kError, ENOSPC},
    {"EINVAL", FaultEffect::kError, EINVAL},
    {"ENODEV", FaultEffect::kError, ENODEV},
    {"EAGAIN", FaultEffect::kError, EAGAIN},
    {"EAGAIN-for-ever", FaultEffect::kError, EAGAIN, true},
    {"EINTR", FaultEffect::kError, EINTR},
    {"EINTR-for-ever", FaultEffect::kError, EINTR, true},
    {"short", FaultEffect::kShort},
    {"nothing", FaultEffect::kNothing},
    {"nothing-for-ever", FaultEffect::kNothing, EIO, true},
};

// What the command line would end with. A flush that failed is never tried again; a read that gives
// nothing is the end of a file that must be longer.
ExitCode ExpectedExit(IoKind kind, const FaultKind& fault) {
  if (kind == IoKind::kFlush) return ExitCode::kStorage;
  if (fault.effect == FaultEffect::kShort) return ExitCode::kOk;
  if (fault.effect == FaultEffect::kNothing && kind == IoKind::kRead) return ExitCode::kCorrupt;
  const bool passes = fault.effect == FaultEffect::kNothing || fault.error_number == EAGAIN ||
                      fault.error_number == EINTR;
  return passes && !fault.for_ever ? ExitCode::kOk : ExitCode::kStorage;
}

// What an error names beside the file.
std::string ExpectedWord(const FaultKind& fault) {
  if (fault.effect == FaultEffect::kNothing) return "bytes at";
  // An interrupted call has no error of its own to tell.
  return fault.error_number == EINTR ? "" : ErrnoText(fault.error_number);
}

std::string NameOfCall(const CallName& call) {
  const char* const kinds[] = {"read", "write", "flush"};
  return fmt::format("{} {} {} {}", kinds[static_cast<int>(call.kind)], call.file,
                     call.offset_bytes, call.nth);
}

struct Setting {
  const char* name;
  Under under = Under::kSimulatedDisk;
  bool roomy = false;
  bool resumed = false;     // the process that fails goes on with a run that another one began
  bool striped = false;     // two folders
  bool speculates = false;  // in a roomy run of some layers, which live in RAM
  bool delays = false;      // --delay_update_from=2 --commit_every=2
  bool spills_activations = false;
};
void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}
constexpr Setting kSettings[] = {
    {"SimulatedDisk"},
    {"SimulatedDiskRoomy", Under::kSimulatedDisk, true},
    {"SimulatedDiskResumed", Under::kSimulatedDisk, false, true},
    {"SimulatedDiskTwoFolders", Under::kSimulatedDisk, false, false, true},
    {"SimulatedDiskTwoFoldersResumed", Under::kSimulatedDisk, false, true, true},
    {.name = "SimulatedDiskSpeculative", .speculates = true},
    {.name = "SimulatedDiskRoomySpeculative", .roomy = true, .speculates = true},
    {.name = "SimulatedDiskDelayed", .delays = true},
    {.name = "SimulatedDiskRoomyDelayedResumed", .roomy = true, .resumed = true, .delays = true},
    {.name = "SimulatedDiskActivations", .spills_activations = true},
    {.name = "SimulatedDiskTwoFoldersActivationsResumed",
     .resumed = true,
     .striped = true,
     .spills_activations = true},
    {"Threads", Under::kThreads},
    {"ThreadsTwoFolders", Under::kThreads, false, false, true},
    {"IoUring", Under::kIoUring},
    {"Libaio", Under::kLibaio},
};

class EngineFaultsTest : public testing::TestWithParam<Setting> {
 protected:
  struct Case {
    CallName call;
    FaultKind fault;
    std::string name() const { return fmt::format("{} {}", NameOfCall(call), fault.name); }
  };

  void SetUp() override {
    std::printf("seed %llu\n", static_cast<unsigned long long>(FaultSeed()));
    const absl::Status status = RunOn({}, Options("undisturbed"), calls_);
    if (ExitCodeOf(status) == ExitCode::kEnvironment) GTEST_SKIP() << status;
    ASSERT_TRUE(status.ok()) << status;
    auto expected = ResultOf(folder_.Path("undisturbed"));
    ASSERT_TRUE(expected.ok()) << expected.status();
    expected_ = *std::move(expected);
    std::ranges::sort(calls_);
    if (GetParam().resumed) MakeBegun();
  }

  // Of a run from the start.
  TrainOptions Options(const std::string& name) const {
    const std::string out = folder_.Path(name);
    TrainOptions options = GetParam().striped ? task_.StripedRun(out)
                           : GetParam().roomy ? task_.RoomyRun(out)
                                              : task_.TightRun(out);
    if (GetParam().delays) task_.Delay(options);
    // The least memory that works without has room for them.
    if (GetParam().spills_activations) options.activations_tier = ActivationsTier::kNvme;
    if (GetParam().speculates) {
      options.gradients = GradientChoice::kSpeculate;
      options.ram_bytes += int64_t{1} << 20;  // weights are staged too
      if (GetParam().roomy) {
        options.speculate_layers = 2;
        options.clip = 1.6;  // the hopes of two steps come true, that of the third fails
      }
    }
    return options;
  }
  // Of the process that the cases are about, in a folder that is ready for it.
  TrainOptions PreparedOptions(const std::string& name) const {
    TrainOptions options = Options(name);
    options.resume = GetParam().resumed;
    if (options.resume) {
      std::filesystem::copy(folder_.Path("begun"), folder_.Path(name),
                            std::filesystem::copy_options::recursive);
    }
    return options;
  }

  // Trains on a disk with `faults`; what it was asked for goes to `calls`.
  absl::Status RunOn(FaultPlan faults, const TrainOptions& options, std::vector<CallName>& calls) {
    faults.folders = options.nvme;
    std::shared_ptr<FaultScript> script;
    TrainEnvironment environment;
    environment.open_engine = [&](const EngineOptions& engine_options,
                                  const std::vector<std::string>&) -> absl::StatusOr<OpenedEngine> {
      const EngineCase engine = {"", GetParam().under, engine_options, {}};
      FOREBAY_ASSIGN_OR_RETURN(EngineUnderTest made, MakeEngine(engine, faults));
      script = made.script;
      OpenedEngine opened;
      opened.engine = std::move(made.engine);
      opened.line = "a disk that fails";
      return opened;
    };
    absl::Status status = TrainToy(options, environment);
    if (script != nullptr) calls = script->calls();
    return status;
  }

  // A run that another process began, and the calls of the one that goes on with it.
  void MakeBegun() {
    TrainOptions options = Options("begun");
    options.stop_after = 1;
    ASSERT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
    ASSERT_TRUE(RunOn({}, PreparedOptions("continued"), calls_).ok());
    std::ranges::sort(calls_);
  }

  std::vector<FaultKind> KindsFor(const CallName& call) const {
    std::vector<FaultKind> kinds;
    for (const FaultKind& fault : kFaultKinds) {
      // A flush moves no bytes, so it has errors alone.
      if (call.kind != IoKind::kFlush || fault.effect == FaultEffect::kError)
        kinds.push_back(fault);
    }
    return kinds;
  }

  // Every call with every fault.
  std::vector<Case> AllCases() const {
    std::vector<Case> cases;
    for (const CallName& call : calls_) {
      for (const FaultKind& fault : KindsFor(call)) cases.push_back({call, fault});
    }
    return cases;
  }

  // One in `stride` of the calls, each with EIO and one other fault when `with_eio` says so, and
  // otherwise with one of them all.
  std::vector<Case> DrawnCases(uint64_t stride, bool with_eio) const {
    std::vector<Case> cases;
    const CounterRng rng(FaultSeed(), static_cast<uint64_t>(GetParam().under));
    for (size_t i = rng.Below(0, stride); i < calls_.size(); i += stride) {
      const std::vector<FaultKind> kinds = KindsFor(calls_[i]);
      // From call to call the next one, so that each comes up as often.
      const size_t turn = i / stride + rng.Below(1, 1000);
      if (with_eio) cases.push_back({calls_[i], kinds[0]});
      const size_t first = with_eio ? 1 : 0;
      cases.push_back({calls_[i], kinds[first + turn % (kinds.size() - first)]});
    }
    return cases;
  }

  void RunCases(std::vector<Case> cases) {
    if (const std::string only = OnlyCase(); !only.empty()) {
      cases = AllCases();
      std::erase_if(cases, [&](const Case& c) { return c.name() != only; });
      ASSERT_EQ(cases.size(), 1u) << "no case is named '" << only << "'";
    }
    CaseLimit limit(std::chrono::seconds(120));
    const Handles before = CountHandles();
    size_t num_never_made = 0;
    for (const Case& c : cases) {
      SCOPED_TRACE("repeat with: " + RepeatCommand(c.name()));
      limit.Begin(RepeatCommand(c.name()));
      bool made = false;
      for (int attempt = 0; attempt < 4 && !made && !HasFailure(); ++attempt) RunCase(c, made);
      num_never_made += made ? 0 : 1;
      ExpectNoMoreThan(before);
      ASSERT_FALSE(HasFailure()) << "the other cases were left out";
    }
    std::printf("%zu cases over %zu calls; %zu times the call was not made\n", cases.size(),
                calls_.size(), num_never_made);
    EXPECT_LE(num_never_made, cases.size() / 10);
  }

  // `made`: whether the run came to make the call. What is read ahead may depend on time.
  void RunCase(const Case& c, bool& made) {
    const TrainOptions options = PreparedOptions("run");
    FaultPlan faults;
    faults.fail_named = c.call;
    faults.fail_all_after = c.fault.for_ever;
    faults.effect = c.fault.effect;
    faults.error_number = c.fault.error_number;
    faults.seed = FaultSeed();
    std::vector<CallName> calls;
    const absl::Status status = RunOn(faults, options, calls);
    made = std::ranges::count(calls, c.call) == 1;
    const ExitCode expected_exit = ExpectedExit(c.call.kind, c.fault);
    // Records and checksums have a second copy.
    const bool is_spared = c.call.kind == IoKind::kRead && (c.call.file.ends_with("seals.fbs") ||
                                                            c.call.file.ends_with("commit.fbs"));
    // A full disk is found before the start, and at the end by the model.
    const bool does_not_fit =
        c.fault.error_number == ENOSPC && ExitCodeOf(status) == ExitCode::kDoesNotFit;
    EXPECT_EQ(does_not_fit ? ExitCode::kStorage : ExitCodeOf(status),
              made && !is_spared ? expected_exit : ExitCode::kOk)
        << status;
    if (!status.ok()) {
      EXPECT_TRUE(NamesFile(MessageOf(status), options, c.call.file)) << status;
      EXPECT_THAT(MessageOf(status), HasSubstr(ExpectedWord(c.fault)));
    }
    if (c.call.kind == IoKind::kFlush) ExpectLastFlush(calls, c.call);
    ExpectResumesTo(expected_, options, status);
    ASSERT_TRUE(RemoveTree(options.out).ok());
  }

  // Whether there is a quoted path of `file` in the folder that it is in: "1/weights.fbs" is in the
  // second of --nvme.
  static bool NamesFile(const std::string& message, const TrainOptions& options,
                        const std::string& file) {
    const size_t slash = file.find('/');
    const bool numbered = file.front() >= '0' && file.front() <= '9';
    const std::string start = "'" + (numbered ? options.nvme[std::stoul(file)] : options.out) + "/";
    const std::string end = "/" + (numbered ? file.substr(slash + 1) : file);
    for (size_t at = message.find(start); at != std::string::npos;
         at = message.find(start, at + 1)) {
      const size_t length = message.find('\'', at + 1) - at;
      if (message.substr(at, length).ends_with(end)) return true;
    }
    return false;
  }

  // The kernel reports lost writes once: another flush of the file would say that all is well.
  static void ExpectLastFlush(const std::vector<CallName>& calls, const CallName& failed) {
    CallName next = failed;
    ++next.nth;
    EXPECT_EQ(std::ranges::count(calls, next), 0) << "a failed flush was tried again";
  }

  // The toy's few KB need no device but for the engines that need a real one.
  const TemporaryFolder folder_{GetParam().under == Under::kSimulatedDisk
                                    ? FolderInRam()
                                    : std::filesystem::temp_directory_path()};
  const ToyTask task_{folder_.path(), GetParam().spills_activations ? 3 : 2};
  std::vector<CallName> calls_;
  ToyResult expected_;
};

TEST_P(EngineFaultsTest, EveryRunWritesAndFlushesTheSame) {
  const auto without_reads = [](std::vector<CallName> calls) {
    std::erase_if(calls, [](const CallName& call) { return call.kind == IoKind::kRead; });
    std::ranges::sort(calls);
    std::vector<std::string> names;
    std::ranges::transform(calls, std::back_inserter(names), NameOfCall);
    return names;
  };
  for (int i = 0; i < 3; ++i) {
    std::vector<CallName> calls;
    ASSERT_TRUE(RunOn({.seed = static_cast<uint64_t>(i)}, PreparedOptions("run"), calls).ok());
    EXPECT_EQ(without_reads(calls), without_reads(calls_));
    ASSERT_TRUE(RemoveTree(folder_.Path("run")).ok());
  }
}

TEST_P(EngineFaultsTest, ARunHasCallsOfEveryKindAndNotTooMany) {
  EXPECT_LE(calls_.size(), GetParam().spills_activations ? 440u : 340u);
  const auto has = [&](IoKind kind, const std::string& file) {
    return std::ranges::any_of(
        calls_, [&](const CallName& call) { return call.kind == kind && call.file == file; });
  };
  const std::vector<std::string> folders =
      GetParam().striped ? std::vector<std::string>{"0/", "1/"} : std::vector<std::string>{""};
  for (const std::string& folder : folders) {
    for (const std::string file : {"weights.fbs", "state.fbs", "seals.fbs", "commit.fbs"}) {
      for (const IoKind kind : {IoKind::kRead, IoKind::kWrite, IoKind::kFlush}) {
        // Nothing is known of a new store that would have to be read.
        const bool is_read_back =
            GetParam().resumed || (file != "commit.fbs" && file != "seals.fbs");
        EXPECT_EQ(has(kind, folder + file), kind != IoKind::kRead || is_read_back) << file;
      }
    }
    const bool spills = !GetParam().roomy && !GetParam().speculates;
    EXPECT_EQ(has(IoKind::kWrite, folder + "gradients.fbs"), spills);
    EXPECT_EQ(has(IoKind::kRead, folder + "gradients.fbs"), spills);
  }
}

// A part of the calls, each with a fault: on the simulated disk one in so many, elsewhere fewer.
// Calls and faults are others in every run of the tests.
TEST_P(EngineFaultsTest, AFailedCallIsAnErrorOrNoneAndTheRunGoesOnToTheSameBits) {
  const bool simulated = GetParam().under == Under::kSimulatedDisk;
  const uint64_t one_in = FullSuite() ? (kUnderSanitizer ? 2 : 1) : kUnderSanitizer ? 16 : 3;
  RunCases(DrawnCases(simulated ? one_in : 6 * one_in, /*with_eio=*/false));
}

// Every call in every way on the simulated disk, where a device that says EAGAIN for ever takes no
// time; every call in two ways elsewhere.
TEST_P(EngineFaultsTest, SlowEveryCallFailsInEveryWay) {
  const bool simulated = GetParam().under == Under::kSimulatedDisk;
  RunCases(simulated ? AllCases() : DrawnCases(1, /*with_eio=*/true));
}

INSTANTIATE_TEST_SUITE_P(Disks, EngineFaultsTest, testing::ValuesIn(kSettings),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace forebay
