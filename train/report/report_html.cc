#include "forebay/train/report/report_html.h"

#include <vector>

#include "fmt/format.h"
#include "forebay/base/markup.h"
#include "forebay/train/report/report_charts.h"
#include "forebay/train/report/report_style.h"

namespace forebay {
namespace {

// Loads nothing and runs nothing, whatever the texts of a run say.
constexpr char kPolicy[] = "default-src 'none'; style-src 'unsafe-inline'";

std::string PageSection(const std::string& title, const std::string& body) {
  return fmt::format("<section>\n<h2>{}</h2>\n{}</section>\n", title, body);
}

// A column for each run; nothing where there are no rows.
std::string TableSection(std::span<const ReportedRun> runs, const std::string& title,
                         const std::vector<ReportRow>& rows) {
  if (rows.empty()) return "";
  std::string body = "<table>\n";
  if (runs.size() > 1) {
    body += "<thead><tr><td></td>";
    for (const ReportedRun& run : runs) {
      body += fmt::format("<th scope=\"col\">{}</th>", XmlEscaped(run.record.name));
    }
    body += "</tr></thead>\n";
  }
  body += "<tbody>\n";
  for (const ReportRow& row : rows) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", XmlEscaped(row.name));
    for (const std::string& value : row.values) {
      body += fmt::format("<td>{}</td>", value.empty() ? "-" : XmlEscaped(value));
    }
    body += "</tr>\n";
  }
  return PageSection(title, body + "</tbody>\n</table>\n");
}

std::string NotesSection(std::span<const ReportedRun> runs) {
  std::string items;
  for (const ReportedRun& run : runs) {
    for (const std::string& note : run.record.notes) {
      const std::string whose = runs.size() > 1 ? run.record.name + ": " : "";
      items += fmt::format("<li>{}</li>\n", XmlEscaped(whose + note));
    }
  }
  return items.empty() ? "" : PageSection("Notes", "<ul class=\"notes\">\n" + items + "</ul>\n");
}

std::string FoldersOf(std::span<const ReportedRun> runs) {
  std::string text;
  for (const ReportedRun& run : runs) text += (text.empty() ? "" : ", ") + run.record.folder;
  return text;
}

}  // namespace

std::string ReportHtml(std::span<const ReportedRun> runs) {
  const std::string folders = XmlEscaped(FoldersOf(runs));
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>forebay report: {}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n"
      "<header>\n<h1>forebay report</h1>\n<p>{}</p>\n</header>\n",
      kPolicy, folders, kReportStyle, folders);
  page += NotesSection(runs);
  page += TableSection(runs, "Summary", SummaryRows(runs));
  page += TableSection(runs, "Settings that differ", DifferenceRows(runs));
  page += "<div class=\"charts\">\n" + DrawCharts(runs);
  page += TableSection(runs, "Where the time of the median step went", BreakdownRows(runs));
  return page + "</div>\n</main>\n</body>\n</html>\n";
}

}  // namespace forebay
