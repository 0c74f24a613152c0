// Texts of others (paths, settings, names) inside documents of other formats, and the numbers on
// the axes of charts there.
#pragma once

#include <string>
#include <string_view>

namespace forebay {

// As text or as an attribute in quotes of XML and HTML has it. Control characters, which XML has no
// spelling for, become "?".
std::string XmlEscaped(std::string_view text);
// A field as RFC 4180 has it.
std::string CsvField(std::string_view text);
// 1, 2 or 5 times a power of ten, such that about five steps reach `span`. Requires: span > 0.
double RoundStep(double span);

}  // namespace forebay
