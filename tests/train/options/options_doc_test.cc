// docs/cli.md lists every option just as the table has it. When this fails, paste the printed block
// between the two markers.
#include "fmt/format.h"
#include "forebay/base/file.h"
#include "forebay/train/option_table.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr std::string_view kBegin = "<!-- options: begin -->\n";
constexpr std::string_view kEnd = "<!-- options: end -->\n";

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
    block += fmt::format("| `--{}` | {} | {} | {} | {} | {} |\n", spec.name, spec.section,
                         Cell(spec.is_switch() ? "switch" : spec.value_name),
                         Cell(spec.default_text), Cell(spec.allowed), Cell(spec.help));
  }
  return block;
}

TEST(OptionsDoc, ListsEveryOptionAsTheTableHasIt) {
  const auto doc = ReadWholeFile(JoinPath(FOREBAY_SOURCE_DIR, "docs/cli.md"), 1 << 20);
  ASSERT_TRUE(doc.ok()) << doc.status();
  const size_t begin = doc->find(kBegin);
  const size_t end = doc->find(kEnd);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(doc->substr(begin + kBegin.size(), end - begin - kBegin.size()), ExpectedBlock());
}

}  // namespace
}  // namespace forebay
