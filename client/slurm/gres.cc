// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/gres.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpumem::slurm {
namespace {

constexpr uint32_t kMostGpus = 1024;

// Adds the numbers of "0-1,3".
void AddNumbers(absl::string_view text, std::vector<uint32_t>* numbers) {
  for (absl::string_view range : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    uint32_t first = 0, last = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) continue;
    last = first;
    if (!ends.second.empty() && !absl::SimpleAtoi(ends.second, &last)) continue;
    for (uint32_t i = first; i <= last && i < kMostGpus; ++i) numbers->push_back(i);
  }
}

// Splits at commas outside of parentheses.
std::vector<absl::string_view> Parts(absl::string_view details) {
  std::vector<absl::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= details.size(); ++i) {
    const char c = i < details.size() ? details[i] : ',';
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c != ',' || (depth > 0 && i < details.size())) continue;
    parts.push_back(details.substr(begin, i - begin));
    begin = i + 1;
  }
  return parts;
}

}  // namespace

JobGres ParseGres(absl::string_view details, absl::string_view name) {
  JobGres gres;
  for (absl::string_view part : Parts(details)) {
    // "NAME[:TYPE][:COUNT]" or "NAME[:TYPE](CNT:COUNT)", then "(IDX:NUMBERS)".
    const size_t open = std::min(part.find('('), part.size());
    absl::string_view inside = part.substr(open);
    absl::ConsumePrefix(&inside, "(");
    absl::ConsumeSuffix(&inside, ")");
    const std::vector<absl::string_view> words = absl::StrSplit(part.substr(0, open), ':');
    const bool counts = words[0] == name;
    if (!counts && words[0] != "gpu") continue;
    uint64_t count = 0;
    if (absl::ConsumePrefix(&inside, "CNT:")) {
      if (!absl::SimpleAtoi(inside, &count)) count = 0;
    } else {
      if (!absl::SimpleAtoi(words.back(), &count)) count = 0;
      if (absl::ConsumePrefix(&inside, "IDX:")) AddNumbers(inside, &gres.gpus);
    }
    if (counts) gres.mib += count;
  }
  std::sort(gres.gpus.begin(), gres.gpus.end());
  gres.gpus.erase(std::unique(gres.gpus.begin(), gres.gpus.end()), gres.gpus.end());
  return gres;
}

}  // namespace gpumem::slurm
