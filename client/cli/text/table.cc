// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/table.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpumem::cli {
namespace {

constexpr size_t kGap = 2;

// A UTF-8 sequence is one character: its continuation bytes do not count.
bool BeginsCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

size_t LineWidth(const std::vector<size_t>& shown, const std::vector<size_t>& widths) {
  size_t width = shown.empty() ? 0 : kGap * (shown.size() - 1);
  for (size_t i : shown) width += widths[i];
  return width;
}

}  // namespace

size_t WidthOf(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), BeginsCharacter));
}

std::string Shortened(absl::string_view text, size_t width) {
  if (WidthOf(text) <= width) return std::string(text);
  if (width == 0) return "";
  size_t characters = 0;
  size_t end = 0;
  while (end < text.size() && !(BeginsCharacter(text[end]) && characters == width - 1)) {
    if (BeginsCharacter(text[end])) ++characters;
    ++end;
  }
  return absl::StrCat(text.substr(0, end), "~");
}

std::vector<std::string> Wrapped(absl::string_view text, size_t width) {
  std::vector<std::string> lines;
  std::string line;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!line.empty() && WidthOf(line) + 1 + WidthOf(word) > width) {
      lines.push_back(std::exchange(line, ""));
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  lines.push_back(std::move(line));
  return lines;
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& column : columns_) column.header = Printable(column.header);
}

void Table::AddRow(std::vector<std::string> cells) {
  assert(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::vector<std::string> Table::ToLines(Layout layout) const {
  const size_t columns = layout.columns;
  std::vector<size_t> natural;
  std::vector<size_t> shown;
  for (size_t i = 0; i < columns_.size(); ++i) {
    size_t width = WidthOf(columns_[i].header);
    for (const auto& row : rows_) width = std::max(width, WidthOf(row[i]));
    natural.push_back(width);
    if (layout.details || !columns_[i].detail) shown.push_back(i);
  }
  std::vector<size_t> widths = natural;
  while (true) {
    widths = natural;
    // The widest column that may be truncated is reduced first.
    while (LineWidth(shown, widths) > columns) {
      size_t* widest = nullptr;
      for (size_t i : shown) {
        if (columns_[i].least == 0 || widths[i] <= columns_[i].least) continue;
        if (widest == nullptr || widths[i] > *widest) widest = &widths[i];
      }
      if (widest == nullptr) break;
      --*widest;
    }
    if (LineWidth(shown, widths) <= columns) break;
    const auto dispensable = std::max_element(shown.begin(), shown.end(), [&](size_t a, size_t b) {
      return columns_[a].optional < columns_[b].optional;
    });
    if (dispensable == shown.end() || columns_[*dispensable].optional == 0) break;
    shown.erase(dispensable);
  }

  std::vector<std::string> lines;
  auto add_line = [&](auto cell_of) {
    std::string line;
    for (size_t i : shown) {
      const std::string cell = Shortened(cell_of(i), widths[i]);
      const std::string padding(widths[i] - WidthOf(cell), ' ');
      if (i != shown.front()) line += std::string(kGap, ' ');
      absl::StrAppend(&line, columns_[i].align == Align::kRight ? padding : "", cell,
                      columns_[i].align == Align::kLeft ? padding : "");
    }
    lines.emplace_back(absl::StripTrailingAsciiWhitespace(line));
  };
  if (layout.headers) {
    add_line([&](size_t i) -> const std::string& { return columns_[i].header; });
  }
  for (const auto& row : rows_) add_line([&](size_t i) -> const std::string& { return row[i]; });
  return lines;
}

std::string Table::ToString(Layout layout) const {
  std::string text;
  for (const std::string& line : ToLines(layout)) absl::StrAppend(&text, line, "\n");
  return text;
}

}  // namespace gpumem::cli
