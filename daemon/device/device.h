// What the broker asks of a device: make a segment, and let go of it again.
//
// A Device is one GPU, or a share of host memory that stands in for one. It keeps
// no accounts: quotas and charges are the ledger's (daemon/core). It refuses only
// what the driver refuses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gpumemd {

// How a segment is made and shared.
enum class Kind {
  kVmm,  // one driver allocation behind one file descriptor
};

enum class Backend { kCuda, kHost };

struct DeviceInfo {
  std::string uuid;  // names the device everywhere: "GPU-…" or "HOST-…"
  std::string name;
  Backend backend = Backend::kHost;
  std::string pci_bus_id;          // empty on the host backend
  uint64_t capacity_bytes = 0;     // what may be handed out in all
  uint64_t granularity_bytes = 1;  // sizes given to Create are multiples of it
  std::vector<Kind> kinds;         // what Create accepts; the first is the default
};

// The memory of one segment. Its destructor gives the memory back to the driver
// once no importer holds it; that can take milliseconds and stall other
// processes' driver calls, so it runs on the broker's disposal thread.
class Allocation {
 public:
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  virtual ~Allocation() = default;

  // The descriptor that shares this memory: exported once, when it was made, and
  // open for as long as this object. Close-on-exec. Owned by this object.
  virtual int fd() const = 0;

 protected:
  Allocation() = default;
};

// Thread-safe. Calls may take tens of milliseconds: never make one under a lock.
class Device {
 public:
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  // Does not change after construction.
  virtual const DeviceInfo& info() const = 0;

  // Makes `bytes` of zeroed memory and exports it.
  //   INVALID_ARGUMENT    bytes is zero or no multiple of the granularity
  //   UNIMPLEMENTED       the device does not make this kind
  //   RESOURCE_EXHAUSTED  the driver has no memory (or descriptors) left
  //   INTERNAL            any other driver error, by its name
  virtual absl::StatusOr<std::unique_ptr<Allocation>> Create(Kind kind, uint64_t bytes) = 0;

  // Bytes free by the driver's own count, whoever uses the rest.
  //   UNAVAILABLE  the driver does not say (no NVML)
  virtual absl::StatusOr<uint64_t> DriverFreeBytes() const = 0;

 protected:
  Device() = default;
};

}  // namespace gpumemd
