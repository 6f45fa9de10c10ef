// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/styled.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

// Returns the parameters of SGR; empty for plain.
absl::string_view Code(Style style) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kBold:
      return "1";
    case Style::kDim:
      return "2";
    case Style::kReverse:
      return "7";
    case Style::kGood:
      return "32";
    case Style::kWarning:
      return "33";
    case Style::kBad:
      return "1;31";
    case Style::kFirst:
      return "36";
    case Style::kSecond:
      return "35";
    case Style::kThird:
      return "33";
    case Style::kFourth:
      return "32";
    case Style::kFifth:
      return "34";
    case Style::kSixth:
      return "31";
    case Style::kFirstGround:
      return "30;46";
    case Style::kSecondGround:
      return "30;45";
    case Style::kThirdGround:
      return "30;43";
    case Style::kFourthGround:
      return "30;42";
    case Style::kFifthGround:
      return "30;44";
    case Style::kSixthGround:
      return "30;41";
  }
  return "";
}

// Returns the bytes of the first `characters` characters.
absl::string_view FirstOf(absl::string_view text, size_t characters) {
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (characters-- == 0) return text.substr(0, i);
  }
  return text;
}

}  // namespace

Style OneOf(size_t n) {
  constexpr Style kAll[] = {Style::kFirst,  Style::kSecond, Style::kThird,
                            Style::kFourth, Style::kFifth,  Style::kSixth};
  return kAll[n % std::size(kAll)];
}

Style GroundOf(size_t n) {
  constexpr Style kAll[] = {Style::kFirstGround,  Style::kSecondGround, Style::kThirdGround,
                            Style::kFourthGround, Style::kFifthGround,  Style::kSixthGround};
  return kAll[n % std::size(kAll)];
}

Line& Line::Add(absl::string_view text, Style style) {
  std::string printable = Printable(text);
  width_ += WidthOf(printable);
  spans_.emplace_back(std::move(printable), style);
  return *this;
}

Line& Line::Add(const Line& other) {
  width_ += other.width_;
  spans_.insert(spans_.end(), other.spans_.begin(), other.spans_.end());
  return *this;
}

std::string Line::ToString(bool colour, size_t columns) const {
  std::string result;
  for (const auto& [text, style] : spans_) {
    if (columns == 0) break;
    const absl::string_view shown = FirstOf(text, columns);
    columns -= std::min(columns, WidthOf(text));
    if (!colour || Code(style).empty() || shown.empty()) {
      absl::StrAppend(&result, shown);
    } else {
      absl::StrAppend(&result, "\x1b[", Code(style), "m", shown, "\x1b[0m");
    }
  }
  return result;
}

std::string ToString(const std::vector<Line>& lines, bool colour, size_t columns) {
  std::string text;
  for (const Line& line : lines) absl::StrAppend(&text, line.ToString(colour, columns), "\n");
  return text;
}

Line MeterOf(uint64_t part, uint64_t whole, size_t width) {
  const std::string percent = Percent(part, whole);
  if (width < percent.size() + 3) return Line(percent);
  const size_t room = width - 2;
  const double share = whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  const auto full =
      static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(room)));
  std::string inside = std::string(full, '|') + std::string(room - full, ' ');
  inside.replace(room - percent.size(), percent.size(), percent);
  const Style style = share >= 0.9 ? Style::kBad : share >= 0.75 ? Style::kWarning : Style::kGood;
  Line line("[");
  const size_t coloured = std::min(full, room);
  line.Add(inside.substr(0, coloured), style).Add(inside.substr(coloured));
  line.Add("]");
  return line;
}

}  // namespace gpumem::cli
