#include "forebay/base/errors.h"

#include <cerrno>

#include "forebay/base/check.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(Errors, EveryExitCodeHasItsError) {
  for (const ExitCode code :
       {ExitCode::kInternal, ExitCode::kUsage, ExitCode::kBadInput, ExitCode::kDoesNotFit,
        ExitCode::kStorage, ExitCode::kOutOfMemory, ExitCode::kNumerical, ExitCode::kCorrupt,
        ExitCode::kEnvironment, ExitCode::kRegressed, ExitCode::kInterrupted}) {
    EXPECT_EQ(ExitCodeOf(ErrorOf(code, "x")), code);
    EXPECT_EQ(MessageOf(ErrorOf(code, "x")), "x");
  }
}

TEST(Errors, EachKindCarriesItsExitCode) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), ExitCode::kOk);
  EXPECT_EQ(ExitCodeOf(UsageError("x")), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeOf(BadInputError("x")), ExitCode::kBadInput);
  EXPECT_EQ(ExitCodeOf(DoesNotFitError("x")), ExitCode::kDoesNotFit);
  EXPECT_EQ(ExitCodeOf(StorageError("x")), ExitCode::kStorage);
  EXPECT_EQ(ExitCodeOf(OutOfMemoryError("x")), ExitCode::kOutOfMemory);
  EXPECT_EQ(ExitCodeOf(NumericalError("x")), ExitCode::kNumerical);
  EXPECT_EQ(ExitCodeOf(CorruptError("x")), ExitCode::kCorrupt);
  EXPECT_EQ(ExitCodeOf(EnvironmentError("x")), ExitCode::kEnvironment);
  EXPECT_EQ(ExitCodeOf(RegressedError("x")), ExitCode::kRegressed);
  EXPECT_EQ(ExitCodeOf(InterruptedError("x")), ExitCode::kInterrupted);
}

TEST(Errors, ExitCodesAreTheDocumentedNumbers) {
  EXPECT_EQ(static_cast<int>(ExitCode::kUsage), 2);
  EXPECT_EQ(static_cast<int>(ExitCode::kBadInput), 3);
  EXPECT_EQ(static_cast<int>(ExitCode::kDoesNotFit), 4);
  EXPECT_EQ(static_cast<int>(ExitCode::kStorage), 5);
  EXPECT_EQ(static_cast<int>(ExitCode::kOutOfMemory), 6);
  EXPECT_EQ(static_cast<int>(ExitCode::kNumerical), 7);
  EXPECT_EQ(static_cast<int>(ExitCode::kCorrupt), 8);
  EXPECT_EQ(static_cast<int>(ExitCode::kEnvironment), 9);
  EXPECT_EQ(static_cast<int>(ExitCode::kInterrupted), 75);
}

TEST(Errors, AStatusMadeElsewhereIsAnInternalError) {
  EXPECT_EQ(ExitCodeOf(absl::InternalError("x")), ExitCode::kInternal);
}

TEST(Errors, AnnotateKeepsCodeAndExitCode) {
  const absl::Status annotated = Annotate(BadInputError("'a' is missing"), "model folder 'm'");
  EXPECT_EQ(MessageOf(annotated), "model folder 'm': 'a' is missing");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ExitCodeOf(annotated), ExitCode::kBadInput);
}

TEST(Errors, AnnotateLeavesSuccessAlone) {
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

TEST(Errors, StorageErrorNamesTheErrno) {
  EXPECT_EQ(MessageOf(StorageError("reading 'f' failed", EIO)),
            "reading 'f' failed: EIO (Input/output error)");
}

TEST(Errors, UnknownErrnoIsShownAsItsNumber) {
  EXPECT_EQ(ErrnoText(99999), "99999 (unknown error)");
}

TEST(Errors, AFullDiskIsToldFromOtherErrorsWhateverIsPutInFront) {
  const absl::Status full = StorageError("writing 'f' failed", ENOSPC, "Make room");
  EXPECT_EQ(MessageOf(full), "writing 'f' failed: ENOSPC (No space left on device). Make room");
  EXPECT_TRUE(IsOutOfSpace(Annotate(full, "--resume")));
  EXPECT_TRUE(IsOutOfSpace(StorageError("writing 'f' failed", EDQUOT)));
  EXPECT_FALSE(IsOutOfSpace(StorageError("writing 'f' failed", EIO)));
  EXPECT_FALSE(IsOutOfSpace(absl::OkStatus()));
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return UsageError("odd");
  return value / 2;
}
absl::StatusOr<int> Quarter(int value) {
  FOREBAY_ASSIGN_OR_RETURN(const int half, Half(value));
  FOREBAY_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}
absl::Status CheckQuarter(int value) {
  FOREBAY_RETURN_IF_ERROR(Quarter(value).status());
  return absl::OkStatus();
}

TEST(Errors, MacrosHandOnValuesAndErrors) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(MessageOf(Quarter(6).status()), "odd");
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_FALSE(CheckQuarter(7).ok());
}

TEST(CheckDeathTest, AFalseConditionAbortsAndNamesItself) {
  EXPECT_DEATH(FOREBAY_CHECK(1 + 1 == 3), "internal error: '1 \\+ 1 == 3' does not hold");
}

TEST(Check, ATrueConditionIsEvaluatedOnce) {
  int evaluations = 0;
  FOREBAY_CHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1);
}

}  // namespace
}  // namespace forebay
