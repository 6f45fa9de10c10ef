// Where the daemon's sockets are, and its state.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gpumem {

inline constexpr char kSessionSocket[] = "session.sock";
inline constexpr char kAdminSocket[] = "admin.sock";

// Metadata of every Broker call: the session's token.
inline constexpr char kTokenMetadata[] = "gpumem-session-token-bin";

// 2: Welcome carries the session's gRPC connection. 1: gRPC had a separate socket.
inline constexpr uint32_t kProtocolVersion = 2;

// Where a daemon puts its sockets when it is told nothing: $GPUMEM_RUNTIME_DIR, else
// /run/gpumem for root, $XDG_RUNTIME_DIR/gpumem for others, /tmp/gpumem-UID without.
std::string DaemonRuntimeDir();

// Where a daemon keeps what it remembers over restarts when it is told nothing:
// $STATE_DIRECTORY (systemd.exec(5)), else /var/lib/gpumem for root, $XDG_STATE_HOME/gpumem for
// others, ~/.local/state/gpumem without. Empty: there is no such place.
std::string DaemonStateDir();

// Where a client looks when it is told nothing: $GPUMEM_RUNTIME_DIR, else the first of
// the folders above (this user's own, then /run/gpumem) that holds a session socket,
// else /run/gpumem.
std::string ClientRuntimeDir();

// "DIR/NAME".
std::string SocketPath(absl::string_view runtime_dir, absl::string_view name);

}  // namespace gpumem
