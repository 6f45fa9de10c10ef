// SPDX-License-Identifier: Apache-2.0
// Maps shared memory, given by file descriptors or export data, into this process.
//
// Thread-safe. Sizes are bytes. Knows no daemon and no lease: the caller makes sure that it may map
// the memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/export_data.h"

namespace gpumem {

struct Reserved;

// One mapped allocation. The destructor unmaps it, in any thread. The caller makes sure that
// nothing uses the memory by then, GPU work included.
class Mapping {
 public:
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  virtual ~Mapping() = default;

  // Returns the start: an ordinary pointer on the host, else a device pointer.
  void* data() const { return data_; }
  uint64_t size() const { return size_; }
  // True if data() is an ordinary pointer that GPUs can use, too (MapPinned).
  virtual bool registered() const { return false; }
  // Returns the GPUs that it was mapped for (MapCuda). Empty for all other mappings.
  virtual absl::Span<const std::string> device_uuids() const { return {}; }

 protected:
  Mapping(void* data, uint64_t size) : data_(data), size_(size) {}
  void MoveTo(void* data) { data_ = data; }

 private:
  friend absl::StatusOr<Reserved> Detach(std::unique_ptr<Mapping>& mapping);
  // Implements Detach(). After a success the destructor unmaps nothing.
  virtual absl::StatusOr<Reserved> DetachMemory();

  void* data_;
  uint64_t size_;
};

// Addresses of this process that are reserved for the holder's mappings (MapOptions::range). The
// destructor returns them. Mappings in the range keep it until then.
class AddressRange {
 public:
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  virtual ~AddressRange() = default;

  uintptr_t base() const { return base_; }  // a multiple of 2 MiB
  uint64_t bytes() const { return bytes_; }

 protected:
  AddressRange(uintptr_t base, uint64_t bytes) : base_(base), bytes_(bytes) {}

 private:
  const uintptr_t base_;
  const uint64_t bytes_;
};

// For MapHost and MapPinned, and for MapCuda. `bytes` is a multiple of 2 MiB. Reserves addresses
// only, no memory.
//   RESOURCE_EXHAUSTED  not enough addresses
//   UNAVAILABLE         for MapCuda: this process has no usable CUDA driver
absl::StatusOr<std::shared_ptr<const AddressRange>> ReserveHostAddresses(uint64_t bytes);
absl::StatusOr<std::shared_ptr<const AddressRange>> ReserveCudaAddresses(uint64_t bytes);

struct MapRequest {
  int fd = -1;         // borrowed: may be closed as soon as the call returns
  uint64_t bytes = 0;  // the whole allocation; a part cannot be mapped
};

struct MapOptions {
  // Makes writes fault. Guards against mistakes; no security boundary, since the holder of the
  // descriptor chooses.
  bool read_only = false;
  // Start of the first allocation; null: anywhere. A multiple of 2 MiB, unless `range` is set.
  void* address = nullptr;
  // If set, `address` and all that is mapped must lie in it, where nothing is mapped; the holder
  // guarantees that.
  std::shared_ptr<const AddressRange> range;
  // The GPUs that will use the memory; not for host memory.
  std::vector<std::string> device_uuids;
};

using Mappings = std::vector<std::unique_ptr<Mapping>>;

// These three map all requests or none, consecutively without a gap in one range of addresses. They
// return one Mapping per request, in order. The Mappings are independent of each other: each unmaps
// only its part, and the last one returns the range of addresses.
//
// Statuses of all:
//   INVALID_ARGUMENT     no requests, or a descriptor is no shared memory of that size
//   FAILED_PRECONDITION  the requested address is taken
//   RESOURCE_EXHAUSTED   out of addresses or memory
//   INTERNAL             any other error, by its name

// Maps memfds.
absl::StatusOr<Mappings> MapHost(absl::Span<const MapRequest> requests, const MapOptions& options);

// Maps memfds and registers them with CUDA (cuMemHostRegister) if this process has a usable driver;
// see registered(). Then keeps the primary context of one of the process's devices: the first of
// options.device_uuids, else the first that it sees.
absl::StatusOr<Mappings> MapPinned(absl::Span<const MapRequest> requests,
                                   const MapOptions& options);

// Maps exported driver allocations (kind vmm) for use by options.device_uuids, one at least. Needs
// and makes no CUDA context.
//   UNAVAILABLE    this process has no usable CUDA driver; the message says why
//   NOT_FOUND      this process does not see a device (CUDA_VISIBLE_DEVICES)
//   UNIMPLEMENTED  the driver cannot map such memory, or a device has no peer access to it
absl::StatusOr<Mappings> MapCuda(absl::Span<const MapRequest> requests, const MapOptions& options);

// Map the memory of mappings of MapHost or MapCuda once more, consecutively and as above, at
// options.address in options.range, or anywhere. It stays as long as either mapping.
//   CUDA: without options.device_uuids no device can use it; then it is quick, and only keeps the
//   memory
absl::StatusOr<Mappings> MapHostAgain(absl::Span<const Mapping* const> mappings,
                                      const MapOptions& options);
absl::StatusOr<Mappings> MapCudaAgain(absl::Span<const Mapping* const> mappings,
                                      const MapOptions& options);

// Move mappings of MapHost or MapCuda consecutively to `address` in `range`. The holder guarantees
// that nothing is mapped there and that no thread uses the old or new addresses meanwhile. Contents
// stay; data() is the new address. All must be mapped for the same devices. On an error none is
// moved.
//   RESOURCE_EXHAUSTED  out of memory for bookkeeping
//   INVALID_ARGUMENT, INTERNAL  the system, or the driver, refuses
absl::Status MoveHost(absl::Span<Mapping* const> mappings,
                      const std::shared_ptr<const AddressRange>& range, void* address);
absl::Status MoveCuda(absl::Span<Mapping* const> mappings,
                      const std::shared_ptr<const AddressRange>& range, void* address);

// Addresses whose memory was unmapped by Detach(). They stay reserved as long as options.range
// lives.
struct Reserved {
  uint64_t bytes = 0;
  // Maps memory at these addresses again: same address and same access, for MapHost or MapCuda.
  MapOptions options;
};

// Unmaps the memory of a mapping of MapHost or MapCuda, and keeps its addresses reserved. The
// caller makes sure that nothing uses the memory, GPU work included. Mappings that were mapped
// together are detached one by one. On success `mapping` is null; on an error it is unchanged.
//
// A use of the addresses until memory is mapped there again is an error of the program:
//   host memory  the process gets SIGSEGV
//   CUDA         copies and memsets fail at once; a kernel fails with an illegal address, and then
//                no CUDA call of the process succeeds any more
//
// Statuses:
//   UNIMPLEMENTED       another kind of mapping
//   RESOURCE_EXHAUSTED  out of memory for bookkeeping
//   INTERNAL            the driver refuses, by the error's name
absl::StatusOr<Reserved> Detach(std::unique_ptr<Mapping>& mapping);

// The next two open other processes' memory by its export data. They support neither read-only
// mappings nor requested addresses, since CUDA's IPC handles and pools do not. Opening the same
// memory again in one process returns the same addresses, with a reference count.
//
// Statuses of all:
//   INVALID_ARGUMENT  not export data of memory of that size
//   NOT_FOUND         its owner has freed it or is gone; or this process does not see a
//                     device
//   UNIMPLEMENTED     the options ask for what this kind of memory cannot do
//   and those of MapCuda

// Opens memory of `device_uuid` by its cudaIpcMemHandle_t, for one device: that of
// options.device_uuids, else `device_uuid`. Keeps the primary context of that device. CUDA gives
// the memory to one device for each opening; more than one is UNIMPLEMENTED.
absl::StatusOr<std::unique_ptr<Mapping>> OpenCudaIpc(const std::string& device_uuid,
                                                     const ExportData& handle, uint64_t bytes,
                                                     const MapOptions& options);
// The host backend's version: asks the owner on its socket in `runtime_dir` (host_ipc.h).
absl::StatusOr<std::unique_ptr<Mapping>> OpenHostIpc(const std::string& runtime_dir,
                                                     const ExportData& handle, uint64_t bytes,
                                                     const MapOptions& options);

// Another process's memory pool. Thread-safe. Memory opened from it keeps the parts of it that it
// needs.
class ImportedPool {
 public:
  ImportedPool(const ImportedPool&) = delete;
  ImportedPool& operator=(const ImportedPool&) = delete;
  virtual ~ImportedPool() = default;

  // Opens one allocation of the pool by its cudaMemPoolPtrExportData.
  virtual absl::StatusOr<std::unique_ptr<Mapping>> Open(const ExportData& data, uint64_t bytes,
                                                        const MapOptions& options) = 0;

 protected:
  ImportedPool() = default;
};

// Imports a pool of `device_uuid` by its descriptor, which may be closed then. A process that
// imports a pool again gets the same object. Keeps the primary context of the device, or if this
// process does not see it, of the first that it sees.
absl::StatusOr<std::shared_ptr<ImportedPool>> ImportCudaPool(const std::string& device_uuid,
                                                             int fd);
// The host backend's version: memory of the pool is opened on its owner's socket in `runtime_dir`
// (host_ipc.h).
absl::StatusOr<std::shared_ptr<ImportedPool>> ImportHostPool(const std::string& runtime_dir,
                                                             int fd);

}  // namespace gpumem
