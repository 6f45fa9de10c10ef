// SPDX-License-Identifier: Apache-2.0
// The syntax of Kubernetes' names, labels and uids of pods. Pure.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace gpumem {

inline constexpr size_t kMostLabelValue = 63;  // bytes

// True if the text is a DNS label: the name of a namespace. It has no '.' and no '_'.
bool IsDnsLabel(absl::string_view text);
// True if the text is a DNS subdomain: the name of most objects. It is then a safe part of a path.
bool IsDnsSubdomain(absl::string_view text);
// True if it is the key or the value of a label. A value may be empty.
bool IsLabelKey(absl::string_view key);
bool IsLabelValue(absl::string_view value);
// True if the text is a UUID in lower case, as Kubernetes' uids are. It is then a safe name of a
// tenant, a file and a CDI device.
bool IsUid(absl::string_view text);
// True if it is a uid or, as of static pods, 32 hexadecimal digits.
bool IsPodUid(absl::string_view text);

}  // namespace gpumem
