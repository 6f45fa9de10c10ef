// SPDX-License-Identifier: Apache-2.0
// Connections on which an attack makes the bytes and sends them as fast as the daemon takes them.
#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tests/hostile/attacks.h"
#include "tests/hostile/door.h"

namespace gpumem::hostile {

// Makes the next bytes of one connection, whenever all before it is sent. May count in the
// tally.
using Source = absl::AnyInvocable<std::string(const Seat& seat, Tally& tally)>;

// Connects to the daemon in this runtime folder.
using Entrance = absl::FunctionRef<absl::StatusOr<Seat>(const std::string& runtime_dir)>;

// Keeps up to `connections` open for as long as ordered, each with another source, and drops
// the answers. One that the daemon closes is replaced. The tally has the connections,
// those refused and closed, and the bytes sent.
Tally SendOnMany(const Orders& orders, size_t connections, absl::FunctionRef<Source()> make_source,
                 Entrance connect = Knock);

}  // namespace gpumem::hostile
