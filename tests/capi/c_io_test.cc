// The disk engine and its memory through c.h: any address, offset and length, on any file system;
// and what must not happen is an error with a message.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/base/file.h"
#include "forebay/capi/c.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Answer {
  int32_t code = FOREBAY_OK;
  std::string text;
};

template <typename Call>
Answer AnswerOf(const Call& call) {
  char* message = nullptr;
  Answer answer;
  answer.code = call(&message);
  if (message != nullptr) answer.text = message;
  forebay_free(message);
  EXPECT_EQ(answer.code == FOREBAY_OK, answer.text.empty());
  return answer;
}

class Io {
 public:
  explicit Io(int32_t engine = FOREBAY_ENGINE_AUTO, int64_t block_bytes = 0) {
    forebay_io_options options = {};
    options.struct_size = sizeof(options);
    options.engine = engine;
    options.block_bytes = block_bytes;
    created = AnswerOf([&](char** m) { return forebay_io_create(&options, &io_, m); });
  }
  ~Io() { forebay_io_destroy(io_); }

  Answer Submit(forebay_io_request request, uint64_t* ticket = nullptr) {
    request.struct_size = sizeof(request);
    uint64_t unused = 0;
    uint64_t* const to = ticket == nullptr ? &unused : ticket;
    return AnswerOf([&](char** m) { return forebay_io_submit(io_, &request, to, m); });
  }
  Answer Wait(uint64_t ticket) {
    return AnswerOf([&](char** m) { return forebay_io_wait(io_, ticket, m); });
  }
  Answer WaitAll(int64_t* num_ended = nullptr) {
    return AnswerOf([&](char** m) { return forebay_io_wait_all(io_, num_ended, m); });
  }
  // Starts a request and waits for it.
  Answer Run(const forebay_io_request& request) {
    uint64_t ticket = 0;
    const Answer answer = Submit(request, &ticket);
    return answer.code == FOREBAY_OK ? Wait(ticket) : answer;
  }

  Answer created;

 private:
  forebay_io* io_ = nullptr;
};

forebay_io_request RequestOf(bool is_write, const std::string& path, int64_t offset_bytes,
                             void* data, size_t num_bytes) {
  forebay_io_request request = {};
  request.is_write = is_write ? 1 : 0;
  request.path = path.data();
  request.path_length = path.size();
  request.offset_bytes = offset_bytes;
  request.data = data;
  request.num_bytes = num_bytes;
  return request;
}

std::vector<char> Bytes(size_t num_bytes, uint64_t seed) {
  std::vector<char> bytes(num_bytes);
  CounterRng(seed).Fill(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::vector<char> ContentOf(const std::string& path) {
  std::vector<char> bytes(static_cast<size_t>(FileSize(path).value()));
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(PreadAll(fd.get(), std::as_writable_bytes(std::span(bytes)), 0, path).ok());
  return bytes;
}

class IoOfEachEngine : public testing::TestWithParam<int> {};

// A file and a copy of it in memory, at random places with random lengths, on a disk and in tmpfs.
TEST_P(IoOfEachEngine, MovesAnyRangeFromAndToAnyAddress) {
  Io io(GetParam(), 8192);
  if (io.created.code == FOREBAY_ENVIRONMENT) GTEST_SKIP() << io.created.text;
  ASSERT_EQ(io.created.code, FOREBAY_OK) << io.created.text;
  const CounterRng random(7);
  for (const std::string& parent :
       {std::filesystem::temp_directory_path().string(), std::string("/dev/shm")}) {
    if (!IsDirectory(parent)) continue;
    const TemporaryFolder folder{std::filesystem::path(parent)};
    const std::string path = folder.Path("file");
    constexpr size_t kBytes = 100'000;
    alignas(4096) static char memory[2 * kBytes];
    std::vector<char> expected;
    for (uint64_t i = 0; i < 60; ++i) {
      const auto words = random.Words(i);
      // Half of them at multiples of 512, as a disk wants them.
      const size_t unit = words[3] % 2 == 0 ? 1 : 512;
      const size_t offset = words[0] % kBytes / unit * unit;
      const size_t skip = words[1] % kBytes / unit * unit;
      const size_t size = words[2] % (i % 3 == 0 ? 700 : kBytes) / unit * unit;
      const std::vector<char> data = Bytes(size, i);
      if (size > 0) std::memcpy(memory + skip, data.data(), size);
      const Answer written = io.Run(RequestOf(true, path, offset, memory + skip, size));
      ASSERT_EQ(written.code, FOREBAY_OK) << written.text;
      if (size > 0 && expected.size() < offset + size) expected.resize(offset + size);
      std::ranges::copy(data, expected.begin() + static_cast<ptrdiff_t>(size > 0 ? offset : 0));
      ASSERT_EQ(ContentOf(path), expected) << offset << " " << skip << " " << size;
      std::memset(memory, 0x5a, sizeof(memory));
      const Answer read = io.Run(RequestOf(false, path, offset, memory + skip, size));
      if (offset + size > expected.size()) {
        EXPECT_EQ(read.code, FOREBAY_BAD_INPUT);
        continue;
      }
      ASSERT_EQ(read.code, FOREBAY_OK) << read.text;
      ASSERT_TRUE(size == 0 || std::memcmp(memory + skip, data.data(), size) == 0);
      for (const size_t i_beside :
           {skip + size, skip + size + 1, skip > 0 ? skip - 1 : skip + size}) {
        ASSERT_EQ(memory[i_beside], 0x5a);
      }
    }
  }
}

TEST_P(IoOfEachEngine, KeepsManyRequestsUnderWayFromSeveralThreads) {
  Io io(GetParam());
  if (io.created.code == FOREBAY_ENVIRONMENT) GTEST_SKIP() << io.created.text;
  const TemporaryFolder folder;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<char>> data;
        std::vector<uint64_t> tickets(12);
        for (size_t i = 0; i < tickets.size(); ++i) {
          data.push_back(Bytes(5000 + 512 * i, 100 * t + i));
          const std::string path = folder.Path(std::to_string(t) + "_" + std::to_string(i));
          EXPECT_EQ(
              io.Submit(RequestOf(true, path, 0, data[i].data(), data[i].size()), &tickets[i]).code,
              FOREBAY_OK);
        }
        for (const uint64_t ticket : tickets) EXPECT_EQ(io.Wait(ticket).code, FOREBAY_OK);
        for (size_t i = 0; i < tickets.size(); ++i) {
          const std::string path = folder.Path(std::to_string(t) + "_" + std::to_string(i));
          EXPECT_EQ(ContentOf(path), data[i]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(All, IoOfEachEngine,
                         testing::Values(FOREBAY_ENGINE_AUTO, FOREBAY_ENGINE_URING,
                                         FOREBAY_ENGINE_LIBAIO, FOREBAY_ENGINE_THREADS));

TEST(CIo, WaitsForAllAndCountsThem) {
  Io io;
  const TemporaryFolder folder;
  std::vector<char> data = Bytes(9000, 1);
  for (int i = 0; i < 5; ++i) {
    const std::string path = folder.Path(std::to_string(i));
    ASSERT_EQ(io.Submit(RequestOf(true, path, 0, data.data(), data.size())).code, FOREBAY_OK);
  }
  int64_t num_ended = 0;
  EXPECT_EQ(io.WaitAll(&num_ended).code, FOREBAY_OK);
  EXPECT_EQ(num_ended, 5);
  EXPECT_EQ(io.WaitAll(&num_ended).code, FOREBAY_OK);
  EXPECT_EQ(num_ended, 0);
  uint64_t ticket = 0;
  ASSERT_EQ(io.Submit(RequestOf(false, folder.Path("0"), 0, data.data(), 9000), &ticket).code,
            FOREBAY_OK);
  EXPECT_EQ(io.Wait(ticket).code, FOREBAY_OK);
  const Answer again = io.Wait(ticket);
  EXPECT_EQ(again.code, FOREBAY_USAGE);
  EXPECT_THAT(again.text, HasSubstr("Wait once"));
}

TEST(CIo, EndsWithRequestsUnderWay) {
  const TemporaryFolder folder;
  std::vector<char> data = Bytes(1 << 20, 1);
  {
    Io io;
    for (int i = 0; i < 3; ++i) {
      const std::string path = folder.Path(std::to_string(i));
      ASSERT_EQ(io.Submit(RequestOf(true, path, 0, data.data(), data.size())).code, FOREBAY_OK);
    }
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ContentOf(folder.Path(std::to_string(i))), data);
}

TEST(CIo, TakesADescriptorWhateverItsFlags) {
  const TemporaryFolder folder;
  Io io;
  for (const int flags : {O_WRONLY, O_RDWR | O_APPEND, O_WRONLY | O_DIRECT}) {
    const std::string path = folder.Path("f" + std::to_string(flags));
    const UniqueFd fd(::open(path.c_str(), flags | O_CREAT | O_CLOEXEC, 0600));
    if (!fd.valid()) continue;  // no O_DIRECT here
    std::vector<char> data = Bytes(4096, 3);
    for (size_t first = 0; first < data.size(); first += 512) {
      // From the end to the beginning: an append would show.
      const size_t at = data.size() - 512 - first;
      forebay_io_request request =
          RequestOf(true, "", static_cast<int64_t>(at), data.data() + at, 512);
      request.path = nullptr;
      request.fd = fd.get();
      ASSERT_EQ(io.Run(request).code, FOREBAY_OK);
    }
    EXPECT_EQ(ContentOf(path), data);
    EXPECT_NE(::fcntl(fd.get(), F_GETFD), -1);
  }
}

TEST(CIo, SaysWhatFailedAndLeavesTheRestAlone) {
  const TemporaryFolder folder;
  Io io;
  char data[4096] = {7};
  const auto answer = [&](const std::string& path, int64_t offset, size_t size, bool is_write) {
    return io.Run(RequestOf(is_write, path, offset, data, size));
  };
  Answer failed = answer(folder.Path("none"), 0, 10, false);
  EXPECT_EQ(failed.code, FOREBAY_BAD_INPUT);
  EXPECT_THAT(failed.text, HasSubstr("does not exist"));
  ASSERT_EQ(answer(folder.Path("file"), 0, 1000, true).code, FOREBAY_OK);
  failed = answer(folder.Path("file"), 1, 1000, false);
  EXPECT_EQ(failed.code, FOREBAY_BAD_INPUT);
  EXPECT_THAT(failed.text, HasSubstr("which has 1000 bytes"));
  EXPECT_EQ(answer(folder.path(), 0, 10, false).code, FOREBAY_USAGE);
  EXPECT_EQ(answer(folder.Path("none/file"), 0, 10, true).code, FOREBAY_STORAGE);
  EXPECT_EQ(answer(folder.Path("file"), -1, 10, true).code, FOREBAY_USAGE);
  EXPECT_EQ(answer(folder.Path("file"), INT64_MAX, 10, true).code, FOREBAY_USAGE);
  EXPECT_EQ(answer("", 0, 10, true).code, FOREBAY_USAGE);
  EXPECT_EQ(answer(std::string("a\0b", 3), 0, 10, true).code, FOREBAY_USAGE);
  EXPECT_EQ(io.Run(RequestOf(true, folder.Path("file"), 0, nullptr, 10)).code, FOREBAY_USAGE);
  forebay_io_request request = RequestOf(false, "", 0, data, 10);
  request.path = nullptr;
  request.fd = 1 << 20;
  EXPECT_NE(io.Run(request).code, FOREBAY_OK);
  int64_t num_ended = 7;
  EXPECT_EQ(io.WaitAll(&num_ended).code, FOREBAY_OK);
  EXPECT_EQ(num_ended, 0);
  EXPECT_EQ(data[0], 7);
  EXPECT_EQ(Io(4).created.code, FOREBAY_USAGE);
  EXPECT_EQ(Io(FOREBAY_ENGINE_AUTO, 1000).created.code, FOREBAY_USAGE);
}

TEST(CIo, TellsAWriteThatTheDiskRefuses) {
  const TemporaryFolder folder;
  Io io;
  std::vector<char> data = Bytes(1 << 20, 1);
  struct rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  struct rlimit small = old;
  small.rlim_cur = 1 << 19;
  std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Answer failed = io.Run(RequestOf(true, folder.Path("f"), 0, data.data(), data.size()));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(failed.code, FOREBAY_STORAGE);
  EXPECT_THAT(failed.text, HasSubstr("EFBIG"));
  EXPECT_EQ(io.Run(RequestOf(true, folder.Path("f"), 0, data.data(), data.size())).code,
            FOREBAY_OK);
}

TEST(CMemory, BeginsOnPagesAndKnowsWhatLiesInside) {
  forebay_memory* const memory = forebay_memory_create();
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{3'000'000}}) {
    void* data = nullptr;
    ASSERT_EQ(forebay_memory_allocate(memory, size, &data, nullptr), FOREBAY_OK);
    auto* const bytes = static_cast<char*>(data);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
    for (size_t i = 0; i < size; i += 1000) ASSERT_EQ(bytes[i], 0);
    if (size > 0) std::memset(bytes, 1, size);
    EXPECT_EQ(forebay_memory_contains(memory, bytes, size), 1);
    EXPECT_EQ(forebay_memory_contains(memory, bytes - 1, 2), 0);
    if (size > 1) {
      EXPECT_EQ(forebay_memory_contains(memory, bytes + 1, size - 1), 1);
      EXPECT_EQ(forebay_memory_contains(memory, bytes + 1, size), 0);
      EXPECT_EQ(forebay_memory_contains(memory, bytes, SIZE_MAX), 0);
      EXPECT_EQ(forebay_memory_free(memory, bytes + 1), 0);
    }
    EXPECT_EQ(forebay_memory_free(memory, bytes), 1);
    EXPECT_EQ(forebay_memory_free(memory, bytes), 0);
    EXPECT_EQ(forebay_memory_contains(memory, bytes, size), 0);
  }
  void* left = nullptr;
  ASSERT_EQ(forebay_memory_allocate(memory, 100, &left, nullptr), FOREBAY_OK);
  EXPECT_EQ(
      AnswerOf([&](char** m) { return forebay_memory_allocate(memory, SIZE_MAX, &left, m); }).code,
      FOREBAY_OUT_OF_MEMORY);
  char* note = nullptr;
  ASSERT_EQ(forebay_memory_note(memory, &note, nullptr), FOREBAY_OK);
  EXPECT_THAT(std::string(note), AnyOf("", HasSubstr("ulimit -l")));
  forebay_free(note);
  forebay_memory_destroy(memory);
  forebay_memory_destroy(nullptr);
}

}  // namespace
}  // namespace forebay
