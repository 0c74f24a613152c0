#include "forebay/base/process/start_thread.h"

#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<std::thread> StartThread(std::string_view purpose, std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return EnvironmentError(
        fmt::format("no thread could be started for {} ({}): the user or the container has as many "
                    "as it may, or no memory is left for its stack. Raise the limit ('ulimit -u', "
                    "'ulimit -v', or pids.max of the container), or end other programs",
                    purpose, error.what()));
  }
}

}  // namespace forebay
