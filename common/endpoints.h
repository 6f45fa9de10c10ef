// SPDX-License-Identifier: Apache-2.0
// The locations of the daemon's sockets and state.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gpumem {

inline constexpr char kSessionSocket[] = "session.sock";
inline constexpr char kAdminSocket[] = "admin.sock";
inline constexpr char kViewSocket[] = "view.sock";

// Metadata of every Broker call: the session's token.
inline constexpr char kTokenMetadata[] = "gpumem-session-token-bin";

// 2: Welcome carries the session's gRPC connection. 1: gRPC had a separate socket.
inline constexpr uint32_t kProtocolVersion = 2;

// Returns the daemon's default folder for sockets: $GPUMEM_RUNTIME_DIR, else /run/gpumem for root,
// $XDG_RUNTIME_DIR/gpumem for others, /tmp/gpumem-UID without that.
std::string DaemonRuntimeDir();

// Returns the daemon's default folder for persistent state: $STATE_DIRECTORY (systemd.exec(5)),
// else /var/lib/gpumem for root, $XDG_STATE_HOME/gpumem for others, ~/.local/state/gpumem without
// that. Empty: there is no such place.
std::string DaemonStateDir();

// Returns the client's default folder for sockets: $GPUMEM_RUNTIME_DIR, else the first of the
// folders above (this user's own, then /run/gpumem) that holds a session socket, else /run/gpumem.
std::string ClientRuntimeDir();

// "DIR/NAME".
std::string SocketPath(absl::string_view runtime_dir, absl::string_view name);

}  // namespace gpumem
