// SPDX-License-Identifier: Apache-2.0
// Random messages of the protocol, with strings that break formats.
#pragma once

#include <google/protobuf/message.h>

#include <random>
#include <string>

#include "absl/time/time.h"

namespace gpumem::web {

// The time of documents in tests.
inline const absl::Time kNow = absl::FromUnixMillis(1'700'000'000'000);

// Returns a string that a program may give itself: of control characters, bytes that are no UTF-8,
// ends of scripts, lines and events, and of plain letters.
std::string HostileText(std::mt19937& random);

// Sets fields at random, also to zero, and a few elements of lists.
void FillRandom(google::protobuf::Message& message, std::mt19937& random);

}  // namespace gpumem::web
