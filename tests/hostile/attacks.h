// SPDX-License-Identifier: Apache-2.0
// The attacks. Each is a function that one process runs, without libgpumem, until its time is over,
// and that breaks the rules in one way.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace gpumem::hostile {

struct Orders {
  std::string runtime_dir;
  absl::Time deadline;
};

// The counts of an attack, by name: {"connections", 400}. Operations that the daemon refused or
// closed count, too.
using Tally = std::map<std::string, uint64_t>;

using Attack = Tally (*)(const Orders&);

// By the names that the table in attacks.cc has. Null: there is none of that name.
Attack FindAttack(const std::string& name);

}  // namespace gpumem::hostile
