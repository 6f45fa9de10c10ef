// SPDX-License-Identifier: Apache-2.0
// Shared by both ends of an actor's channel.
#pragma once

namespace gpumem::contract {

// ACTOR_FLAG IDENTITY RUNTIME_DIR starts this program as an actor.
inline constexpr char kActorFlag[] = "--contract-actor";

}  // namespace gpumem::contract
