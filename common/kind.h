// SPDX-License-Identifier: Apache-2.0
// The kinds of segments. kKindTable has a row of properties for each. Code decides by these
// properties. It compares kinds only to create or open memory of one particular kind.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace gpumem {

// How a segment is made and shared. The protocol, the journal, gpumem::Kind (gpumem/types.h) and
// enum gpumem_kind (gpumem/gpumem_segment.h) have the same numbers. The numbers never change. 0 is
// no kind.
enum class SegmentKind {
  kVmm = 1,      // one driver allocation behind one file descriptor
  kMempool = 2,  // an allocation from its tenant's CUDA memory pool (cudaMemPool_t)
  kIpc = 3,      // a cudaMalloc allocation, opened by a CUDA IPC handle
  kPinned = 4,   // host memory behind one file descriptor
  kTier = 5,     // contents of suspended memory, in the host tier; no session can open it
  kHost = 6,     // host memory behind one file descriptor, which GPUs map by address
  kDriver = 7,   // memory that its process allocates from its CUDA driver: charged, and no more
};

// What another process needs to open a segment.
enum class Sharing {
  kNone,        // not at all: no session can acquire or open it
  kDescriptor,  // a file descriptor for this segment alone
  kPool,        // the descriptor of its pool, and 64 bytes: a cudaMemPoolPtrExportData
  kIpcHandle,   // 64 bytes: a cudaIpcMemHandle_t
  kUnshared,    // nothing: the process's CUDA driver makes the memory
};

struct KindTraits {
  SegmentKind kind = {};
  const char* name = "unknown";  // in configuration, JSON and metrics, and on command lines
  Sharing sharing = Sharing::kNone;
  // Host memory. It has a limit separate from the limits of devices.
  bool host_memory = false;
  // Ordinary memory of a process, which each process registers with CUDA.
  bool registered = false;
  // Exists in a CUDA context of the daemon, and is lost with that context.
  bool context_bound = false;
  // Part of its tenant's memory pool. It stays charged until all processes that opened part of the
  // pool have ended.
  bool pooled = false;
  // May be revoked from its holders.
  bool revocable = false;
  // May be suspended: its contents can move to the host tier and back.
  bool suspendable = false;
  // May be shared with any tenant. False: what opens this segment also opens others of its tenant.
  bool any_tenant = false;
  // May be part of a publication.
  bool publishable = false;
  // The process chooses the address of a mapping, so several segments can form one range. Mappings
  // can also be read-only.
  bool contiguous = false;
  // A mapping can move to another address. Registered memory cannot: CUDA knows it by its address.
  bool movable = false;
  // One mapping serves several devices of a process.
  bool many_devices = false;
  // The daemon charges the memory, and does not make it: the process's own driver does. The charge
  // ends when the process says that it has freed the memory, or has ended. Nothing is retained.
  bool charge_only = false;
};

// One row for each kind, in the order of the kinds' numbers. FindKind and IndexOf rely on it.
inline constexpr KindTraits kKindTable[] = {
    {.kind = SegmentKind::kVmm,
     .name = "vmm",
     .sharing = Sharing::kDescriptor,
     .host_memory = false,
     .context_bound = false,
     .pooled = false,
     .revocable = true,
     .suspendable = true,
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
     .registered = true,
     .context_bound = false,
     .pooled = false,
     .revocable = true,
     .any_tenant = true,
     .publishable = true,
     .contiguous = true,
     .movable = false,
     .many_devices = true},
    {.kind = SegmentKind::kTier, .name = "tier", .sharing = Sharing::kNone, .host_memory = true},
    {.kind = SegmentKind::kHost,
     .name = "host",
     .sharing = Sharing::kDescriptor,
     .host_memory = true,
     .context_bound = false,
     .pooled = false,
     .revocable = true,
     .any_tenant = true,
     .publishable = false,
     .contiguous = true,
     .movable = true,
     .many_devices = true},
    {.kind = SegmentKind::kDriver,
     .name = "driver",
     .sharing = Sharing::kUnshared,
     .revocable = true,
     .charge_only = true},
};

// Returns the position of a kind in kKindTable. Requires a kind that has a row.
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

inline constexpr KindTraits kNoKind;  // has none of the properties

// Returns the row of a kind; kNoKind if the table has no row for it.
constexpr const KindTraits& TraitsOf(SegmentKind kind) {
  const KindTraits* const row = FindKind(static_cast<int>(kind));
  return row != nullptr ? *row : kNoKind;
}

// True if programs can acquire segments of the kind. Of the others they see nothing.
constexpr bool IsAcquirable(const KindTraits& row) { return row.sharing != Sharing::kNone; }

// True if programs can acquire segments of the kind, and get memory by it.
constexpr bool GivesMemory(const KindTraits& row) { return IsAcquirable(row) && !row.charge_only; }

// Returns the names of the kinds that give programs memory and that have `property`; null: of all
// of these kinds. `separator` stands between the names, but `last` before the last one: "vmm, ipc
// or pinned".
inline std::string ListKinds(std::string_view separator, std::string_view last,
                             bool KindTraits::*property = nullptr) {
  std::string names;
  const char* pending = nullptr;  // the latest name: not appended until the next one, or the end
  for (const KindTraits& row : kKindTable) {
    if (!GivesMemory(row) || (property != nullptr && !(row.*property))) continue;
    if (pending != nullptr) names.append(names.empty() ? "" : separator).append(pending);
    pending = row.name;
  }
  if (pending != nullptr) names.append(names.empty() ? "" : last).append(pending);
  return names;
}

}  // namespace gpumem
