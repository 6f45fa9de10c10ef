// SPDX-License-Identifier: Apache-2.0
#include "client/cli/doctor/findings_view.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

const char* Word(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
    case Level::kUnseen:
      return "unseen";
  }
  return "";
}

Style StyleOf(Level level) {
  switch (level) {
    case Level::kOk:
      return Style::kGood;
    case Level::kWarning:
      return Style::kWarning;
    case Level::kProblem:
      return Style::kBad;
    case Level::kUnseen:
      return Style::kDim;
  }
  return Style::kPlain;
}

}  // namespace

std::vector<Line> DoctorView(const std::vector<Finding>& findings, size_t columns) {
  constexpr size_t kIndent = 11;  // behind "  warning  "
  const size_t width = std::max<size_t>(std::min<size_t>(columns, 100), 2 * kIndent) - kIndent;
  std::vector<Line> lines;
  std::string area;
  for (const Finding& finding : findings) {
    if (finding.area != area) lines.emplace_back(finding.area, Style::kBold);
    area = finding.area;
    bool first = true;
    for (const std::string& part : Wrapped(finding.text, width)) {
      const std::string word = first ? Word(finding.level) : "";
      Line line("  ");
      line.Add(word, StyleOf(finding.level)).Add(std::string(kIndent - 2 - word.size(), ' '));
      lines.push_back(std::move(line.Add(part)));
      first = false;
    }
    if (finding.help.empty()) continue;
    first = true;
    for (const std::string& part : Wrapped(finding.help, width - 3)) {
      Line line(std::string(kIndent, ' '));
      lines.push_back(std::move(line.Add(first ? "-> " : "   ").Add(part, Style::kBold)));
      first = false;
    }
  }
  const size_t problems = CountOf(findings, Level::kProblem);
  const size_t warnings = CountOf(findings, Level::kWarning);
  lines.emplace_back();
  Line sum(absl::StrCat(CountOf(findings, Level::kOk), " ok, "));
  sum.Add(Counted(warnings, "warning"), warnings > 0 ? Style::kWarning : Style::kPlain);
  sum.Add(", ").Add(Counted(problems, "problem"), problems > 0 ? Style::kBad : Style::kPlain);
  sum.Add(absl::StrCat(", ", CountOf(findings, Level::kUnseen), " not seen"));
  lines.push_back(std::move(sum));
  return lines;
}

Json DoctorJson(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"area", finding.area},
                    {"level", Word(finding.level)},
                    {"text", finding.text},
                    {"help", finding.help}});
  }
  Json json = Json::object();
  json["findings"] = std::move(list);
  json["problems"] = CountOf(findings, Level::kProblem);
  json["warnings"] = CountOf(findings, Level::kWarning);
  json["unseen"] = CountOf(findings, Level::kUnseen);
  return json;
}

}  // namespace gpumem::cli
