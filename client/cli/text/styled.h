// SPDX-License-Identifier: Apache-2.0
// Lines of text with optional colours.
//
// Pure. Colours are the sixteen of ECMA-48 (SGR), which each terminal displays differently. They
// never carry information that the characters do not carry, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumem::cli {

// When output has colours. kAuto: on a terminal that has them.
enum class ColorMode { kAuto, kAlways, kNever };

enum class Style {
  kPlain,
  kBold,
  kDim,
  kReverse,
  kGood,
  kWarning,
  kBad,
  // Distinguishes several items; after the last style comes the first again (OneOf).
  kFirst,
  kSecond,
  kThird,
  kFourth,
  kFifth,
  kSixth,
  // The same colours as backgrounds, with dark text.
  kFirstGround,
  kSecondGround,
  kThirdGround,
  kFourthGround,
  kFifthGround,
  kSixthGround,
};

// Returns the style of the n-th of several items, and the same as a background.
Style OneOf(size_t n);
Style GroundOf(size_t n);

class Line {
 public:
  Line() = default;
  // A line of one span. Control characters become '?'.
  explicit Line(absl::string_view text, Style style = Style::kPlain) { Add(text, style); }

  Line& Add(absl::string_view text, Style style = Style::kPlain);

  Line& Add(const Line& other);

  size_t width() const { return width_; }
  // Returns the first `columns` characters; each colour that begins there also ends there.
  std::string ToString(bool colour, size_t columns) const;

 private:
  std::vector<std::pair<std::string, Style>> spans_;
  size_t width_ = 0;
};

// Each line ends with a newline.
std::string ToString(const std::vector<Line>& lines, bool colour, size_t columns);

// Returns "[|||||     37%]", `width` characters in all: the share of `part` in `whole`, as a length
// and a number. Green, from 75% yellow, from 90% red.
Line MeterOf(uint64_t part, uint64_t whole, size_t width);

}  // namespace gpumem::cli
