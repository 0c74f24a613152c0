#include "forebay/collective/job_secret.h"

#include <sys/stat.h>

#include <map>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSecret = "0123456789abcdef";

absl::StatusOr<std::string> Read(const std::map<std::string, std::string>& variables) {
  return ReadJobSecret([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(JobSecret, IsThatOfTheVariableOrTheFileOrNone) {
  EXPECT_EQ(Read({}).value(), "");
  EXPECT_EQ(Read({{"FOREBAY_JOB_SECRET", kSecret}}).value(), kSecret);
  const TemporaryFolder folder;
  const std::string path = JoinPath(folder.path(), "secret");
  ASSERT_EQ(WriteFileAtomically(path, std::string(kSecret) + "\r\n"), absl::OkStatus());
  EXPECT_EQ(Read({{"FOREBAY_JOB_SECRET_FILE", path}}).value(), kSecret);
}

TEST(JobSecret, OneThatIsEmptyOrShortIsRefusedWithoutBeingTold) {
  for (const char* const secret : {"", "  \n", "hunter2hunter2"}) {
    const absl::Status status = Read({{"FOREBAY_JOB_SECRET", secret}}).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << secret;
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("FOREBAY_JOB_SECRET has "), HasSubstr("openssl"),
                                         Not(HasSubstr("hunter2"))));
  }
}

TEST(JobSecret, BothAreOneTooMany) {
  EXPECT_THAT(
      MessageOf(
          Read({{"FOREBAY_JOB_SECRET", kSecret}, {"FOREBAY_JOB_SECRET_FILE", "/x"}}).status()),
      HasSubstr("are both set"));
}

TEST(JobSecret, AFileThatOthersMayOpenIsRefused) {
  const TemporaryFolder folder;
  const std::string path = JoinPath(folder.path(), "secret");
  ASSERT_EQ(WriteFileAtomically(path, kSecret), absl::OkStatus());
  for (const mode_t mode : {0640, 0604, 0620}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const absl::Status status = Read({{"FOREBAY_JOB_SECRET_FILE", path}}).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr(path), HasSubstr("'chmod 600'"), Not(HasSubstr(kSecret))));
  }
}

TEST(JobSecret, WhatIsNoFileWithASecretIsNamed) {
  const TemporaryFolder folder;
  const auto message_of = [](const std::string& path) {
    return MessageOf(Read({{"FOREBAY_JOB_SECRET_FILE", path}}).status());
  };
  EXPECT_THAT(message_of(folder.path()), HasSubstr("is no plain file"));
  EXPECT_THAT(message_of(JoinPath(folder.path(), "none")),
              AllOf(HasSubstr("FOREBAY_JOB_SECRET_FILE"), HasSubstr("none")));
  const std::string pipe = JoinPath(folder.path(), "pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(message_of(pipe), HasSubstr("is no plain file"));
  const std::string empty = JoinPath(folder.path(), "empty");
  ASSERT_EQ(WriteFileAtomically(empty, "\n"), absl::OkStatus());
  EXPECT_THAT(message_of(empty), HasSubstr("has 0 characters"));
}

}  // namespace
}  // namespace forebay
