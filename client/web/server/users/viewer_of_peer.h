// SPDX-License-Identifier: Apache-2.0
// The user at the other end of a connection.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/web/feed/viewer.h"

namespace gpumem::web {

// Returns the user that connected a unix socket, as the kernel says. Root, the user of this process
// and the members of `groups` see all. For that, the process that connected has to live in the PID
// namespace of this one: root of a container is not root here. Before Linux 6.5 the process is
// identified by its pid alone.
//   others  as the operating system says
absl::StatusOr<Viewer> ViewerAt(int socket, const std::vector<gid_t>& groups);

// Returns the user of this process.
Viewer OwnViewer();

// Returns the groups' numbers. Leaves out names that do not exist.
std::vector<gid_t> GroupsOf(const std::vector<std::string>& names);

// True if the user has an account (passwd(5)). May block: a directory service may be asked.
//   UNAVAILABLE  that cannot be told now
absl::StatusOr<bool> HasAccount(uid_t uid);

// Returns the user's name, the uid if there is none. May block: a directory service may be asked.
std::string NameOf(uid_t uid);

}  // namespace gpumem::web
