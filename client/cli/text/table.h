// Tables for people: columns as wide as their widest cell, two blanks between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/cli/text/printable.h"  // found as Printable from here, too

namespace gpumem::cli {

// No bound on the length of a line: what goes to files and pipes is never cut.
inline constexpr size_t kAnyWidth = SIZE_MAX;

enum class Align { kLeft, kRight };

struct Column {
  std::string header;
  Align align = Align::kLeft;
  size_t least = 0;  // its cells may be cut to so many characters where room is short; 0: never
  int optional = 0;  // left out where that is not enough, the highest first; 0: never
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as there are columns.
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.empty(); }

  // The header and the rows, without trailing blanks, and no longer than `columns` characters as
  // far as the table's columns permit that: cells that are cut end in '~'.
  // Characters that a terminal would act on are shown as '?': names come from others.
  std::vector<std::string> ToLines(size_t columns = kAnyWidth) const;
  // The same, each line ended by a newline.
  std::string ToString(size_t columns = kAnyWidth) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// In characters, taking each UTF-8 sequence for one.
size_t WidthOf(absl::string_view text);

// The first `width` characters of `text`, the last of them '~' where something is cut off.
std::string Shortened(absl::string_view text, size_t width);

// `text` in lines of at most `width` characters, broken at blanks where there are any.
std::vector<std::string> Wrapped(absl::string_view text, size_t width);

}  // namespace gpumem::cli
