// SPDX-License-Identifier: Apache-2.0
// The kinds of segments. kKindTable has a row of properties for each: code asks the row, and
// compares kinds only to make or to open memory of that one kind.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace gpumem {

// How a segment is made and shared. The protocol, the journal, gpumem::Kind (gpumem/types.h) and
// enum gpumem_kind (gpumem/gpumem_segment.h) have the same numbers. They never change; 0 stands for
// none.
enum class SegmentKind {
  kVmm = 1,      // one driver allocation behind one file descriptor
  kMempool = 2,  // from its tenant's memory pool
  kIpc = 3,      // cudaMalloc
  kPinned = 4,   // host memory behind one file descriptor
};

// What another process opens a segment by.
enum class Sharing {
  kNone,
  kDescriptor,  // a file descriptor for this segment alone
  kPool,        // the descriptor of its pool, and 64 bytes: a cudaMemPoolPtrExportData
  kIpcHandle,   // 64 bytes: a cudaIpcMemHandle_t
};

struct KindTraits {
  SegmentKind kind = {};
  const char* name = "unknown";  // in configuration, JSON and metrics, and on command lines
  Sharing sharing = Sharing::kNone;
  // Host memory, which each process registers with CUDA. It has a limit separate from the limits of
  // devices.
  bool host_memory = false;
  // Lives in a CUDA context of the daemon, and is lost with it.
  bool context_bound = false;
  // Part of its tenant's memory pool. It stays charged until all processes that opened part of the
  // pool have ended.
  bool pooled = false;
  // May be revoked from its holders.
  bool revocable = false;
  // May be shared with any tenant. Else the means to open it would open more than this segment.
  bool any_tenant = false;
  // May be part of a publication.
  bool publishable = false;
  // Can be mapped read-only, and at a chosen address: several segments in one range.
  bool contiguous = false;
  // A mapping can move to another address. Host memory cannot: CUDA has registered its address.
  bool movable = false;
  // One mapping serves several devices of a process.
  bool many_devices = false;
};

// By number, from 1 on.
inline constexpr KindTraits kKindTable[] = {
    {.kind = SegmentKind::kVmm,
     .name = "vmm",
     .sharing = Sharing::kDescriptor,
     .host_memory = false,
     .context_bound = false,
     .pooled = false,
     .revocable = true,
     .any_tenant = true,
     .publishable = true,
     .contiguous = true,
     .movable = true,
     .many_devices = true},
    {.kind = SegmentKind::kMempool,
     .name = "mempool",
     .sharing = Sharing::kPool,
     .host_memory = false,
     .context_bound = true,
     .pooled = true,
     .revocable = false,
     .any_tenant = false,
     .publishable = false,
     .contiguous = false,
     .movable = false,
     .many_devices = true},
    {.kind = SegmentKind::kIpc,
     .name = "ipc",
     .sharing = Sharing::kIpcHandle,
     .host_memory = false,
     .context_bound = true,
     .pooled = false,
     .revocable = true,
     .any_tenant = true,
     .publishable = false,
     .contiguous = false,
     .movable = false,
     .many_devices = false},
    {.kind = SegmentKind::kPinned,
     .name = "pinned",
     .sharing = Sharing::kDescriptor,
     .host_memory = true,
     .context_bound = false,
     .pooled = false,
     .revocable = true,
     .any_tenant = true,
     .publishable = true,
     .contiguous = true,
     .movable = false,
     .many_devices = true},
};

// Returns the position of a kind in kKindTable.
constexpr size_t IndexOf(SegmentKind kind) { return static_cast<size_t>(kind) - 1; }

// Returns the row of the kind with this number; null if there is none.
constexpr const KindTraits* FindKind(int number) {
  const bool known = number >= 1 && static_cast<size_t>(number) <= std::size(kKindTable);
  return known ? &kKindTable[number - 1] : nullptr;
}

// Returns the row of the kind with this name; null if there is none.
constexpr const KindTraits* FindKind(std::string_view name) {
  for (const KindTraits& row : kKindTable) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

inline constexpr KindTraits kNoKind;

// Returns the row of a kind; kNoKind, which has none of the properties, for another number.
constexpr const KindTraits& TraitsOf(SegmentKind kind) {
  const KindTraits* const row = FindKind(static_cast<int>(kind));
  return row != nullptr ? *row : kNoKind;
}

// Returns the names of the kinds that have a property, or of all kinds: with `separator` between
// them, and with `last` before the last one.
inline std::string ListKinds(std::string_view separator, std::string_view last,
                             bool KindTraits::*property = nullptr) {
  std::string names;
  const char* pending = nullptr;
  for (const KindTraits& row : kKindTable) {
    if (property != nullptr && !(row.*property)) continue;
    if (pending != nullptr) names.append(names.empty() ? "" : separator).append(pending);
    pending = row.name;
  }
  if (pending != nullptr) names.append(names.empty() ? "" : last).append(pending);
  return names;
}

}  // namespace gpumem
