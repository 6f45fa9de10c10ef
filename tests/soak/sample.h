// SPDX-License-Identifier: Apache-2.0
// The figures of one moment of a soak, and their table as a file of comma-separated values.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpumem/types.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"

namespace gpumem::soak {

// By name. A figure that could not be read is absent: a daemon that was just killed has none.
using Figures = absl::btree_map<std::string, double>;

// Reads a process's memory, descriptors and threads under "NAME_rss", "NAME_anonymous", "NAME_pss"
// (bytes), "NAME_fds" and "NAME_threads".
void AddProcess(const std::string& name, pid_t pid, Figures& figures);
// Returns how many threads of each name a process has, as "8 gpumemd, 2 grpc_global_tim".
std::string ThreadsOf(pid_t pid);
// Sums up the memory of the children of a process under "NAME_rss" and "NAME_anonymous".
void AddChildren(const std::string& name, pid_t pid, Figures& figures);
// Reads what heap.c has told of a process under "NAME_heap": the bytes in use of its heap.
void AddHeap(const std::string& name, pid_t pid, const std::string& prefix, Figures& figures);
// Reads the bytes and the live records of a daemon's journal under "journal_bytes" and
// "journal_records". The daemon writes meanwhile: a copy that is torn has no records.
void AddJournal(pid_t daemon, Figures& figures);
// Asks the daemon under "generation", "sessions", "segments", "charged_bytes" (of all devices),
// "leases", "waiting" and "publications".
void AddState(v1::Admin::Stub& admin, absl::Duration timeout, Figures& figures);

// Returns the columns of the table, in their order; the first is "seconds".
const std::vector<std::string>& Columns();
// Returns the lines of the table, without ends.
std::string HeaderLine();
std::string LineOf(const Figures& figures);
// Reads such a table.
//   INVALID_ARGUMENT  it is no such table
absl::StatusOr<std::vector<Figures>> ReadTable(const std::string& text);

}  // namespace gpumem::soak
