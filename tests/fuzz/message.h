// SPDX-License-Identifier: Apache-2.0
// Protobuf messages by structure: which fields are set, and to what, is read from an input's bytes.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/testing/fuzz/input.h"

namespace gpumem::testing {

// Values that mean something to the daemon, because it has said them.
struct KnownValues {
  std::vector<uint64_t> numbers;   // leases, segments, versions
  std::vector<std::string> texts;  // tickets, names
};

// Sets fields. Each level of a message begins with one bit for each field, which says whether it is
// set. Waits are short, so that no input is slow.
void FillMessage(FuzzInput& input, google::protobuf::Message* message,
                 const KnownValues& known = {});

}  // namespace gpumem::testing
