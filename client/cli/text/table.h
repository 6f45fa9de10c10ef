// SPDX-License-Identifier: Apache-2.0
// Tables for people: columns as wide as their widest cell, separated by two blanks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/cli/text/printable.h"  // re-exported: Printable

namespace gpumem::cli {

// No limit of the line length: output to files and pipes is never truncated.
inline constexpr size_t kAnyWidth = SIZE_MAX;

// A cell that has no value.
inline constexpr char kNone[] = "-";
inline std::string OrNone(const std::string& text) { return text.empty() ? kNone : text; }

// How tables are printed.
struct Layout {
  Layout(size_t width = kAnyWidth, bool with_headers = true,  // NOLINT: a width is a layout
         bool with_details = false)
      : columns(width), headers(with_headers), details(with_details) {}
  size_t columns;
  bool headers;  // false: without the line of the columns' names
  bool details;  // with the columns of details
};

enum class Align { kLeft, kRight };

struct Column {
  std::string header;
  Align align = Align::kLeft;
  size_t least = 0;     // minimum width of truncated cells if space is short; 0: never truncated
  int optional = 0;     // dropped if that is not enough, the highest first; 0: never dropped
  bool detail = false;  // only shown in layouts with details
};

// Returns a column of -o wide.
inline Column Detail(std::string header, Align align = Align::kLeft) {
  return {.header = std::move(header), .align = align, .detail = true};
}

class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // Requires as many cells as there are columns.
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.empty(); }

  // Returns the header and the rows without trailing blanks. Columns of details are left out unless
  // the layout has them. Lines have at most `layout.columns`
  // characters, as far as the table's columns permit; truncated cells end in '~'. Characters that a
  // terminal would act on become '?': names are untrusted.
  std::vector<std::string> ToLines(Layout layout = {}) const;
  // As ToLines, each line ended by a newline.
  std::string ToString(Layout layout = {}) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Returns the number of characters; each UTF-8 sequence counts as one.
size_t WidthOf(absl::string_view text);

// Returns the first `width` characters of `text`; the last is '~' if text was cut off.
std::string Shortened(absl::string_view text, size_t width);

// Returns `text` in lines of at most `width` characters, broken at blanks if possible.
std::vector<std::string> Wrapped(absl::string_view text, size_t width);

}  // namespace gpumem::cli
