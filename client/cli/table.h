// Tables for people: columns as wide as their widest cell, two blanks between them.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumem::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string header;
  Align align = Align::kLeft;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as there are columns.
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.empty(); }

  // The header and the rows, each line ended by a newline and without trailing blanks.
  // Characters that a terminal would act on are shown as '?': names come from others.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `text` with control characters replaced by '?'.
std::string Printable(absl::string_view text);

}  // namespace gpumem::cli
