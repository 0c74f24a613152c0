#include "forebay/tools/ram_flag.h"

#include <optional>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/train/options/option_table.h"

namespace forebay {

void RamFlag::Declare(CLI::App& app) {
  app.add_option("--ram", text_, "refuse to start where that needs more memory (default: no limit)")
      ->type_name("SIZE");
}

absl::StatusOr<int64_t> RamFlag::Read() const {
  if (text_.empty()) return 0;
  // The same row of the table as for training checks it.
  const OptionSpec* spec = FindOption("ram");
  const std::optional<Json> value = spec->parse(text_);
  TrainOptions options;
  if (value.has_value() && spec->set(*value, options)) return options.ram_bytes;
  return UsageError(fmt::format("--ram is '{}'; allowed: {}", text_, spec->allowed));
}

}  // namespace forebay
