// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/spank/option.h"

#include <cctype>
#include <charconv>
#include <map>
#include <string_view>

namespace gpumem::slurm {
namespace {

constexpr uint64_t kMaxMib = uint64_t{1} << 40;
constexpr uint64_t kMaxWaitMs = uint64_t{7} * 24 * 3600 * 1000;

// Takes the digits at the start of `text`. False if there are none, or too many.
bool TakeNumber(std::string_view* text, uint64_t* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

bool ParseSize(std::string_view text, uint64_t* mib) {
  uint64_t number = 0;
  if (!TakeNumber(&text, &number) || number == 0 || number > kMaxMib) return false;
  std::string unit;
  for (const char c : text) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (unit.size() == 3 && unit.substr(1) == "ib") unit.resize(1);
  if (unit == "k") {
    *mib = (number + 1023) / 1024;
  } else if (unit.empty() || unit == "m") {
    *mib = number;
  } else if (unit == "g") {
    *mib = number * 1024;
  } else if (unit == "t") {
    *mib = number * 1024 * 1024;
  } else {
    return false;
  }
  return *mib <= kMaxMib;
}

bool ParseTime(std::string_view text, uint64_t* ms) {
  static const std::map<std::string_view, uint64_t>& units =
      *new std::map<std::string_view, uint64_t>{
          {"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};
  uint64_t number = 0;
  if (!TakeNumber(&text, &number) || number > kMaxWaitMs) return false;
  const auto unit = units.find(text);
  if (unit == units.end()) return false;
  *ms = number * unit->second;
  return *ms <= kMaxWaitMs;
}

bool ParsePriority(std::string_view text, int* priority) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *priority);
  return error == std::errc() && end == text.data() + text.size() && *priority >= -1000 &&
         *priority <= 1000;
}

// Reads "KEY=VALUE". Returns the mistake.
std::string ParseKey(std::string_view text, Option* option) {
  const size_t equals = text.find('=');
  const std::string_view key = text.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  const std::string shown(value);
  if (key == "guarantee") {
    uint64_t mib = 0;
    if (value != "0" && !ParseSize(value, &mib)) {
      return "guarantee: \"" + shown + "\" is no size (expected one such as 10G)";
    }
    option->guarantee_mib = mib;
  } else if (key == "priority") {
    if (!ParsePriority(value, &option->priority)) {
      return "priority: \"" + shown + "\" is no number from -1000 to 1000";
    }
  } else if (key == "wait") {
    uint64_t ms = 0;
    if (!ParseTime(value, &ms)) {
      return "wait: \"" + shown + "\" is no time of a week at most (expected one such as 30s)";
    }
    option->wait_ms = ms;
  } else {
    return "unknown key \"" + std::string(key) + "\" (expected guarantee, priority or wait)";
  }
  return "";
}

}  // namespace

std::string ParseOption(const std::string& text, Option* option) {
  *option = {};
  std::string_view rest = text;
  for (bool first = true; first || !rest.empty(); first = false) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (first) {
      if (!ParseSize(part, &option->mib)) {
        return "\"" + std::string(part) + "\" is no size (expected one such as 40G)";
      }
    } else if (std::string wrong = ParseKey(part, option); !wrong.empty()) {
      return wrong;
    }
  }
  if (option->guarantee_mib.value_or(0) > option->mib) return "the guarantee is above the size";
  return "";
}

}  // namespace gpumem::slurm
