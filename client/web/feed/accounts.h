// SPDX-License-Identifier: Apache-2.0
// Whether a uid is that of a user of this system.
#pragma once

#include <sys/types.h>

#include <functional>

namespace gpumem::web {

// Returns a function that is true if the uid has an entry among the system's users, or if that is
// not known. Uids of containers (/etc/subuid) have none: a user has many thousands of them. It
// remembers a bounded number of answers, for a minute. Not thread-safe.
std::function<bool(uid_t)> AccountsOfSystem();

}  // namespace gpumem::web
