// SPDX-License-Identifier: Apache-2.0
#include "common/kubernetes/names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace gpumem {
namespace {

constexpr size_t kMostDnsLabel = 63;
constexpr size_t kMostSubdomain = 253;

bool IsAlnum(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); }
bool IsUpper(char c) { return absl::ascii_isupper(static_cast<unsigned char>(c)); }
bool IsHex(char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)) && !IsUpper(c); }

// True if it begins and ends with a letter or digit, with '-', '_' and '.' in between.
bool IsQualifiedName(absl::string_view text) {
  return !text.empty() && text.size() <= kMostLabelValue && IsAlnum(text.front()) &&
         IsAlnum(text.back()) && std::all_of(text.begin(), text.end(), [](char c) {
           return IsAlnum(c) || c == '-' || c == '_' || c == '.';
         });
}

// True if it is a part of a DNS name, of any length.
bool IsPart(absl::string_view text) {
  return !text.empty() && text.front() != '-' && text.back() != '-' &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return (IsAlnum(c) && !IsUpper(c)) || c == '-'; });
}

}  // namespace

bool IsDnsLabel(absl::string_view text) { return text.size() <= kMostDnsLabel && IsPart(text); }

bool IsDnsSubdomain(absl::string_view text) {
  if (text.size() > kMostSubdomain) return false;
  for (const absl::string_view part : absl::StrSplit(text, '.')) {
    if (!IsPart(part)) return false;
  }
  return true;
}

bool IsLabelKey(absl::string_view key) {
  const size_t slash = key.find('/');
  if (slash == absl::string_view::npos) return IsQualifiedName(key);
  return IsDnsSubdomain(key.substr(0, slash)) && IsQualifiedName(key.substr(slash + 1));
}

bool IsLabelValue(absl::string_view value) { return value.empty() || IsQualifiedName(value); }

bool IsUid(absl::string_view text) {
  if (text.size() != 36) return false;
  for (const size_t dash : {8, 13, 18, 23}) {
    if (text[dash] != '-') return false;
  }
  return std::count(text.begin(), text.end(), '-') == 4 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c == '-' || IsHex(c); });
}

bool IsPodUid(absl::string_view text) {
  return IsUid(text) || (text.size() == 32 && std::all_of(text.begin(), text.end(), IsHex));
}

}  // namespace gpumem
