// SPDX-License-Identifier: Apache-2.0
// Strings of a bounded length, as the journal's records hold them.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"

namespace gpumemd::journal {

// A string of at most kMost arbitrary bytes, inside the object.
template <size_t kMost>
class Text {
 public:
  static_assert(kMost <= 255);
  static constexpr size_t kMaxBytes = kMost;

  constexpr Text() = default;
  // Requires that the caller has checked the length: a truncated name would be another's name.
  template <std::convertible_to<absl::string_view> S>
  Text(const S& text) : Text(absl::string_view(text), 0) {}
  // Truncates a text that only people read.
  static Text Cut(absl::string_view text) { return text.substr(0, kMost); }

  absl::string_view view() const { return {bytes_.data(), size_}; }
  bool empty() const { return size_ == 0; }

  friend bool operator==(const Text& a, const Text& b) { return a.view() == b.view(); }
  friend std::strong_ordering operator<=>(const Text& a, const Text& b) {
    return a.view().compare(b.view()) <=> 0;
  }

 private:
  Text(absl::string_view text, int) : size_(static_cast<uint8_t>(text.size())) {
    if (text.size() > kMost) abort();
    std::copy(text.begin(), text.end(), bytes_.begin());
  }

  uint8_t size_ = 0;
  std::array<char, kMost> bytes_{};
};

}  // namespace gpumemd::journal
