// SPDX-License-Identifier: Apache-2.0
// Reads tables of a TOML document and remembers the first mistake in it.
//
// The reading code stays a plain list of fields: a field with an error keeps its default, and
// Mistakes::status() reports it at the end. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <toml.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gpumemd {

// Maximum nesting of arrays, inline tables and dotted keys of a configuration.
inline constexpr size_t kMostTomlLevels = 32;

// Returns the line, from 1, on which a text nests deeper than kMostTomlLevels; nullopt: none does.
// Reads anything. Brackets in strings and comments do not count.
std::optional<size_t> FirstLineTooDeep(absl::string_view text);

// Returns the line, from 1, of the first byte that is not part of a UTF-8 sequence; nullopt: the
// whole text is UTF-8, as TOML requires.
std::optional<size_t> FirstLineNotUtf8(absl::string_view text);

// Keeps the mistake that stands first in the file.
class Mistakes {
 public:
  explicit Mistakes(absl::string_view file) : file_(file) {}

  // "FILE:LINE: KEY: MESSAGE"
  void Add(const toml::value& where, absl::string_view key, absl::string_view message);
  void AddAt(uint64_t line, absl::string_view key, absl::string_view message);

  // Returns OK, or INVALID_ARGUMENT with the first mistake.
  absl::Status status() const;

  const std::string& file() const { return file_; }

 private:
  std::string file_;
  std::optional<std::pair<uint64_t, std::string>> first_;  // line, sentence
};

// The syntax of a value of type T.
template <typename T>
struct Form {
  std::string noun;      // completes "VALUE is not …"
  std::string expected;  // completes "expected …"
  std::function<std::optional<T>(const toml::value&)> read;
};

// Returns a value as an error message shows it.
std::string Shown(const toml::value& value);

// Returns the member of `known` that `word` probably means; empty if none is near.
std::string Nearest(absl::string_view word, const std::set<std::string>& known);

// One table. Read every key that it may have, then call Finish().
class TableReader {
 public:
  // `name` is the path of the table in messages: "tenant.device"; empty for the document.
  TableReader(const toml::value& table, std::string name, Mistakes* mistakes);

  // Returns the value of `key`, or null. Marks the key as known.
  const toml::value* Find(const std::string& key);

  // Reads `key`, if it is present and well formed, into `out` (a T or an optional of it).
  template <typename T, typename Out>
  void Read(const std::string& key, const Form<T>& form, Out* out) {
    const toml::value* value = Find(key);
    if (value == nullptr) return;
    std::optional<T> read = form.read(*value);
    if (read) {
      *out = *std::move(read);
    } else {
      Complain(
          *value, key,
          absl::StrCat(Shown(*value), " is not ", form.noun, " (expected ", form.expected, ")"));
    }
  }

  // As Read(), but its absence is a mistake.
  template <typename T, typename Out>
  void Require(const std::string& key, const Form<T>& form, Out* out) {
    if (Find(key) == nullptr) {
      Complain(table_, key, absl::StrCat("missing (expected ", form.expected, ")"));
    }
    Read(key, form, out);
  }

  // Returns the table `key`, or null. `[key]`.
  const toml::value* Table(const std::string& key);
  // The tables `key`. `[[key]]`.
  std::vector<const toml::value*> Tables(const std::string& key);

  void Complain(const toml::value& where, const std::string& key, absl::string_view message);

  // Reports the keys that were not read.
  void Finish();

 private:
  std::string PathOf(const std::string& key) const;

  const toml::value& table_;
  std::string name_;
  Mistakes* mistakes_;
  std::set<std::string> known_;
};

}  // namespace gpumemd
