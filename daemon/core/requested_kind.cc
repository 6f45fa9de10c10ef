// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/requested_kind.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/kind.h"

namespace gpumemd {

absl::StatusOr<std::optional<Kind>> RequestedKind(int number) {
  if (number == 0) return std::nullopt;
  if (const gpumem::KindTraits* const row = gpumem::FindKind(number)) {
    if (gpumem::IsAcquirable(*row)) return row->kind;
    return absl::UnimplementedError(
        absl::StrCat("segments of kind ", row->name,
                     " cannot be acquired: they are the contents of suspended memory"));
  }
  const std::string known = absl::AsciiStrToUpper(gpumem::ListKinds(", ", " and "));
  return absl::UnimplementedError(absl::StrCat("this daemon does not know segments of kind ",
                                               number, "; it knows ",
                                               absl::StrReplaceAll(known, {{" AND ", " and "}})));
}

}  // namespace gpumemd
