// SPDX-License-Identifier: Apache-2.0
// A process of a soak's load: it does a random operation of libgpumem, pauses, and does the next.
//
// It tells its parent each second, on kParentChannel (tests/support/child.h):
//
//   ready                       it is connected
//   did held=BYTES NAME=N ...   what it holds now, and how often it did what since the last time. A
//                               name with "-refused" counts refusals that the operation allows
//   wrong WORDS                 what must not happen; it goes on
//   ended                       it has released everything, and ends
//
// Any message of its parent has it end in order.
#pragma once

#include <string>
#include <vector>

namespace gpumem::soak {

// {ROLE, RUNTIME_DIR, MAILBOX, TENANT, SEED, PAUSE_MS}. The mailbox is a folder in which workers
// leave tickets for each other. The roles:
//   mixed   all operations
//   served  an operator may suspend and demote its memory
//   spot    revocable memory, given back when it is revoked
// Returns the process's exit code.
int RunWorker(const std::vector<std::string>& args);

// The operations of role "mixed", and what the others count.
const std::vector<std::string>& WorkerOperations();

}  // namespace gpumem::soak
