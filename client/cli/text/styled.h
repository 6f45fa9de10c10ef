// Lines of text with colours, which stay what they are where there are none.
//
// Pure. Colours are the sixteen of ECMA-48 (SGR), which every terminal shows in its own way, and
// never say what the characters do not say, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumem::cli {

enum class Style {
  kPlain,
  kBold,
  kDim,
  kReverse,
  kGood,
  kWarning,
  kBad,
  // For one of several things; the next after the last is the first again (OneOf).
  kFirst,
  kSecond,
  kThird,
  kFourth,
  kFifth,
  kSixth,
  // The same as the ground of what is dark then.
  kFirstGround,
  kSecondGround,
  kThirdGround,
  kFourthGround,
  kFifthGround,
  kSixthGround,
};

// The style of the n-th of several things, and the same as its ground.
Style OneOf(size_t n);
Style GroundOf(size_t n);

class Line {
 public:
  Line() = default;
  // One span. Control characters are shown as '?'.
  explicit Line(absl::string_view text, Style style = Style::kPlain) { Add(text, style); }

  Line& Add(absl::string_view text, Style style = Style::kPlain);

  Line& Add(const Line& other);

  size_t width() const { return width_; }
  // Its first `columns` characters; every colour that it begins, it ends.
  std::string ToString(bool colour, size_t columns) const;

 private:
  std::vector<std::pair<std::string, Style>> spans_;
  size_t width_ = 0;
};

// Each ended by a newline.
std::string ToString(const std::vector<Line>& lines, bool colour, size_t columns);

// "[|||||     37%]", `width` characters in all: how much of `whole` is `part`, by length and by
// number. Green, from 75% yellow, from 90% red.
Line MeterOf(uint64_t part, uint64_t whole, size_t width);

}  // namespace gpumem::cli
