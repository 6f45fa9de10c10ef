// SPDX-License-Identifier: Apache-2.0
// Kinds as the protocol has them.
#pragma once

#include <optional>

#include "common/kind.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem {

constexpr v1::Kind ToProto(SegmentKind kind) { return static_cast<v1::Kind>(kind); }

// Returns nullopt for KIND_UNSPECIFIED, and for a kind that a later release added.
constexpr std::optional<SegmentKind> FromProto(v1::Kind kind) {
  const KindTraits* const row = FindKind(static_cast<int>(kind));
  if (row == nullptr) return std::nullopt;
  return row->kind;
}

}  // namespace gpumem
