// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/toml_reader.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"

namespace gpumemd {
namespace {

// Levenshtein's: how many letters to insert, remove or change.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, changed}));
    }
  }
  return row[b.size()];
}

// Returns the length of the UTF-8 sequence at the beginning of a text; 0: there is none. Refuses
// surrogates, numbers above 0x10ffff, and longer sequences than a number needs.
size_t Utf8Sequence(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2   ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0)) return 0;
  if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90)) return 0;
  return length;
}

}  // namespace

std::optional<size_t> FirstLineNotUtf8(absl::string_view text) {
  size_t line = 1;
  while (!text.empty()) {
    const size_t length = Utf8Sequence(text);
    if (length == 0) return line;
    if (text.front() == '\n') ++line;
    text.remove_prefix(length);
  }
  return std::nullopt;
}

std::optional<size_t> FirstLineTooDeep(absl::string_view text) {
  size_t line = 1, brackets = 0, dots = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') {
      ++line;
      dots = 0;
    } else if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (c == '"' || c == '\'') {
      const std::string quote(1, c), three(3, c);
      const bool is_long = text.substr(i, 3) == three;
      const std::string& end = is_long ? three : quote;
      for (i += end.size(); i < text.size() && text.substr(i, end.size()) != end; ++i) {
        if (text[i] == '\n' && !is_long) break;  // not closed: the parser reports it
        if (text[i] == '\\' && c == '"') ++i;
        if (i < text.size() && text[i] == '\n') ++line;
      }
      if (i < text.size() && text[i] == '\n') {
        ++line;
      } else {
        i += end.size() - 1;
      }
    } else if (c == '[' || c == '{') {
      ++brackets;
    } else if ((c == ']' || c == '}') && brackets > 0) {
      --brackets;
    } else if (c == '.') {
      ++dots;
    } else if (c == '=' || c == ',') {
      dots = 0;  // of the next key or value
    }
    if (brackets + dots > kMostTomlLevels) return line;
  }
  return std::nullopt;
}

void Mistakes::Add(const toml::value& where, absl::string_view key, absl::string_view message) {
  AddAt(where.location().line(), key, message);
}

void Mistakes::AddAt(uint64_t line, absl::string_view key, absl::string_view message) {
  if (first_ && first_->first <= line) return;
  first_.emplace(line, absl::StrCat(file_, ":", line, ": ", key, ": ", message));
}

absl::Status Mistakes::status() const {
  return first_ ? absl::InvalidArgumentError(first_->second) : absl::OkStatus();
}

std::string Shown(const toml::value& value) {
  if (value.is_string()) {
    return absl::StrCat("\"", absl::Utf8SafeCEscape(value.as_string().str), "\"");
  }
  if (value.is_integer()) return absl::StrCat(value.as_integer());
  if (value.is_floating()) return absl::StrCat(value.as_floating());
  if (value.is_boolean()) return value.as_boolean() ? "true" : "false";
  if (value.is_table()) return "a table";
  if (value.is_array()) return "an array";
  return "a date or time";
}

std::string Nearest(absl::string_view word, const std::set<std::string>& known) {
  std::string nearest;
  size_t best = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    size_t distance = EditDistance(word, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

TableReader::TableReader(const toml::value& table, std::string name, Mistakes* mistakes)
    : table_(table), name_(std::move(name)), mistakes_(mistakes) {}

const toml::value* TableReader::Find(const std::string& key) {
  known_.insert(key);
  const auto& entries = table_.as_table();
  auto found = entries.find(key);
  return found == entries.end() ? nullptr : &found->second;
}

const toml::value* TableReader::Table(const std::string& key) {
  const toml::value* value = Find(key);
  if (value == nullptr || value->is_table()) return value;
  Complain(*value, key,
           absl::StrCat(Shown(*value), " is not a table (expected [", PathOf(key), "])"));
  return nullptr;
}

std::vector<const toml::value*> TableReader::Tables(const std::string& key) {
  std::vector<const toml::value*> tables;
  const toml::value* value = Find(key);
  if (value == nullptr) return tables;
  std::string expected = absl::StrCat(" is not a list of tables (expected [[", PathOf(key),
                                      "]] in double brackets, once for each)");
  if (!value->is_array()) {
    Complain(*value, key, absl::StrCat(Shown(*value), expected));
    return tables;
  }
  for (const toml::value& element : value->as_array()) {
    if (element.is_table()) {
      tables.push_back(&element);
    } else {
      Complain(element, key, absl::StrCat("an array with ", Shown(element), expected));
    }
  }
  return tables;
}

void TableReader::Complain(const toml::value& where, const std::string& key,
                           absl::string_view message) {
  mistakes_->Add(where, PathOf(key), message);
}

void TableReader::Finish() {
  for (const auto& [key, value] : table_.as_table()) {
    if (known_.contains(key)) continue;
    std::string nearest = Nearest(key, known_);
    Complain(value, key,
             nearest.empty()
                 ? absl::StrCat("unknown key (known here: ", absl::StrJoin(known_, ", "), ")")
                 : absl::StrCat("unknown key (did you mean \"", nearest, "\"?)"));
  }
}

std::string TableReader::PathOf(const std::string& key) const {
  return name_.empty() ? key : absl::StrCat(name_, ".", key);
}

}  // namespace gpumemd
