#include "forebay/collective/job_secret.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

constexpr const char* kVariable = "FOREBAY_JOB_SECRET";
constexpr const char* kFileVariable = "FOREBAY_JOB_SECRET_FILE";
constexpr size_t kLeastSize = 16;
constexpr int64_t kMostBytes = 4096;

absl::StatusOr<std::string> CheckedSecret(std::string secret, const std::string& where) {
  secret.erase(secret.find_last_not_of(" \t\r\n") + 1);
  if (secret.size() >= kLeastSize) return secret;
  return UsageError(fmt::format(
      "{} has {} characters, and a secret that nobody guesses has {} or more. Make one by "
      "'openssl rand -hex 32', and give it to all ranks; without it ranks meet without a secret",
      where, secret.size(), kLeastSize));
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  const std::string where = fmt::format("{}: '{}'", kFileVariable, path);
  // A pipe would have the others wait for whoever writes into it.
  const absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY | O_NONBLOCK);
  if (!fd.ok()) return Annotate(fd.status(), kFileVariable);
  struct stat about = {};
  if (::fstat(fd->get(), &about) != 0) return StorageError(where, errno);
  if (!S_ISREG(about.st_mode) || about.st_size > kMostBytes) {
    return UsageError(
        fmt::format("{} is no plain file of at most {} bytes. Write the secret into one, with mode "
                    "600",
                    where, kMostBytes));
  }
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return UsageError(fmt::format(
        "{} has mode {:03o}: others than its owner may open it, who then can join the run. "
        "'chmod 600' it, and make another secret where they may have read it",
        where, about.st_mode & 0777));
  }
  std::string secret(static_cast<size_t>(about.st_size), '\0');
  FOREBAY_RETURN_IF_ERROR(PreadAll(fd->get(), std::as_writable_bytes(std::span(secret)), 0, path));
  return CheckedSecret(std::move(secret), where);
}

}  // namespace

absl::StatusOr<std::string> ReadJobSecret(const EnvironmentLookup& environment) {
  const std::optional<std::string> secret = environment(kVariable);
  const std::optional<std::string> file = environment(kFileVariable);
  if (secret.has_value() && file.has_value()) {
    return UsageError(
        fmt::format("{} and {} are both set. Unset one of them", kVariable, kFileVariable));
  }
  if (file.has_value()) return ReadSecretFile(*file);
  if (!secret.has_value()) return std::string();
  return CheckedSecret(*secret, kVariable);
}

}  // namespace forebay
