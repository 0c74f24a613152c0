// docs/options.md lists every option just as the table has it. If this fails, paste the printed
// block between the two markers.
#include "fmt/format.h"
#include "forebay/base/file.h"
#include "forebay/train/options/lr_schedule_table.h"
#include "forebay/train/options/option_table.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

// In a table of Markdown, a bar separates cells.
std::string Cell(std::string_view text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell += '\\';
    cell += c;
  }
  return cell;
}

std::string ExpectedBlock() {
  std::string block =
      "| flag | section | value | default | allowed | what it does |\n|---|---|---|---|---|---|\n";
  for (const OptionSpec& spec : OptionTable()) {
    block += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", GivenAs(spec), spec.section,
                         Cell(spec.is_switch() ? "switch" : spec.value_name),
                         Cell(spec.default_text), Cell(spec.allowed), Cell(spec.help));
  }
  return block;
}

// What stands between the two markers of `name` in docs/options.md.
std::string BlockOf(const std::string& name) {
  const auto doc = ReadWholeFile(JoinPath(FOREBAY_SOURCE_DIR, "docs/options.md"), 1 << 20);
  if (!doc.ok()) return doc.status().ToString();
  const std::string begin_mark = fmt::format("<!-- {}: begin -->\n", name);
  const size_t begin = doc->find(begin_mark);
  const size_t end = doc->find(fmt::format("<!-- {}: end -->\n", name));
  if (begin == std::string::npos || end == std::string::npos) return "there are no such markers";
  return doc->substr(begin + begin_mark.size(), end - begin - begin_mark.size());
}

TEST(OptionsDoc, ListsEveryOptionAsTheTableHasIt) {
  EXPECT_EQ(BlockOf("options"), ExpectedBlock());
}

TEST(OptionsDoc, ListsEveryScheduleAsTheTableHasIt) {
  std::string expected =
      "| `--schedule` | what it does | `--schedule_args`, with their defaults |\n|---|---|---|\n";
  for (const LrScheduleSpec& spec : LrScheduleTable()) {
    std::string args;
    for (const LrScheduleArgSpec& arg : spec.args) {
      args += fmt::format("{}`{}`: {}", args.empty() ? "" : "; ", arg.name, arg.default_text);
    }
    expected += fmt::format("| `{}` | {} | {} |\n", spec.name, spec.help, args);
  }
  EXPECT_EQ(BlockOf("schedules"), expected);
}

}  // namespace
}  // namespace forebay
