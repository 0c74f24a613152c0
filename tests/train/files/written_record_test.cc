#include "forebay/train/files/written_record.h"

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/train/files/committed_trainer.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr MostWritten kMost = {.making_bytes = 500, .step_bytes = 30};

class WrittenRecordTest : public testing::Test {
 protected:
  static CommitInfo Commit(int64_t step, Json trainer) {
    CommitInfo committed;
    committed.step = step;
    committed.trainer = std::move(trainer);
    return committed;
  }
  void Write(const std::string& path, const std::string& text) {
    ASSERT_EQ(WriteFileAtomically(path, text), absl::OkStatus());
  }
  void Record(const WrittenRecord& record) {
    ASSERT_EQ(WriteWrittenRecord(paths_.written, record), absl::OkStatus());
  }

  const TemporaryFolder folder_;
  const RunPaths paths_{folder_.path()};
};

TEST_F(WrittenRecordTest, IsReadAsItWasWritten) {
  EXPECT_EQ(*ReadWrittenRecord(paths_.written), std::nullopt);
  const WrittenRecord record = {.bytes = 1'710'000'000'000, .step = 3, .ended = true};
  Record(record);
  EXPECT_EQ(*ReadWrittenRecord(paths_.written), record);
}

TEST_F(WrittenRecordTest, WhatIsNoneIsAnErrorThatNamesTheFile) {
  for (const char* text : {"[]", R"({"written_bytes":-1,"step":1,"ended":true})",
                           R"({"written_bytes":1e30,"step":1,"ended":true})",
                           R"({"written_bytes":1,"step":1,"ended":1})"}) {
    SCOPED_TRACE(text);
    Write(paths_.written, text);
    EXPECT_THAT(MessageOf(ReadWrittenRecord(paths_.written).status()),
                HasSubstr("written.json' is damaged"));
    // A record that is lost stops no run.
    EXPECT_EQ(WrittenBefore(paths_, Commit(1, {{kWrittenBytesKey, 700}}), kMost), 730);
  }
}

TEST_F(WrittenRecordTest, OfASessionThatEndedIsExact) {
  Write(paths_.metrics, "{\"step\":1,\"write_bytes\":7}\n{\"step\":2,\"write_bytes\":9}\n");
  Record({.bytes = 750, .step = 1, .ended = true});
  EXPECT_EQ(WrittenBefore(paths_, Commit(1, {{kWrittenBytesKey, 700}}), kMost), 750);
  // The one that the store was made with.
  EXPECT_EQ(WrittenBefore(paths_, Commit(0, Json::object()), kMost), 750);
  // Then a version that keeps no record went on.
  EXPECT_EQ(WrittenBefore(paths_, Commit(1, {{kWrittenBytesKey, 800}}), kMost), 800 + 30 + 9);
}

TEST_F(WrittenRecordTest, OfASessionThatWasCutOffHasItsStepsOnTop) {
  Write(paths_.metrics, "{\"step\":1,\"write_bytes\":7}\n{\"step\":2,\"write_bytes\":9}\n");
  EXPECT_EQ(WrittenBefore(paths_, Commit(1, Json::object()), kMost), 500 + 30 + 7 + 9);
  Record({.bytes = 750, .step = 1, .ended = false});
  EXPECT_EQ(WrittenBefore(paths_, Commit(1, {{kWrittenBytesKey, 700}}), kMost), 750 + 30 + 9);
  EXPECT_EQ(WrittenBefore(paths_, Commit(2, {{kWrittenBytesKey, 790}}), kMost), 790 + 30);
}

}  // namespace
}  // namespace forebay
