// Maps shared memory, given by file descriptors or export data, into this process.
//
// Thread-safe. Sizes are bytes. Knows no daemon and no lease: whoever maps memory
// makes sure that it may.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/export_data.h"

namespace gpumem {

// One allocation, mapped. Its end unmaps it, in any thread; the caller makes sure
// that nothing uses the memory by then, GPU work included.
class Mapping {
 public:
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  virtual ~Mapping() = default;

  // Where it starts: an ordinary pointer on the host, else a device pointer.
  void* data() const { return data_; }
  uint64_t size() const { return size_; }
  // Whether GPUs can use it, too, where data() is an ordinary pointer (MapPinned).
  virtual bool registered() const { return false; }

 protected:
  Mapping(void* data, uint64_t size) : data_(data), size_(size) {}
  void MoveTo(void* data) { data_ = data; }

 private:
  void* data_;
  uint64_t size_;
};

// Addresses of this process that are kept for what the holder maps there (MapOptions::range).
// Its end gives them back; what is mapped there keeps it until then.
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

// For MapHost and MapPinned, and for MapCuda. `bytes` is a multiple of 2 MiB. Takes addresses
// alone, no memory.
//   RESOURCE_EXHAUSTED  there are not so many
//   UNAVAILABLE         for MapCuda: this process has no usable CUDA driver
absl::StatusOr<std::shared_ptr<const AddressRange>> ReserveHostAddresses(uint64_t bytes);
absl::StatusOr<std::shared_ptr<const AddressRange>> ReserveCudaAddresses(uint64_t bytes);

struct MapRequest {
  int fd = -1;         // borrowed: may be closed as soon as the call returns
  uint64_t bytes = 0;  // the whole allocation; a part cannot be mapped
};

struct MapOptions {
  // A write faults then. That guards against mistakes; it is no security boundary, since
  // whoever has the descriptor chooses.
  bool read_only = false;
  // Where the first allocation is to start; null: anywhere. A multiple of 2 MiB.
  void* address = nullptr;
  // Where set, `address` is in it, with so much behind it as is mapped, and nothing is mapped
  // there: its holder knows.
  std::shared_ptr<const AddressRange> range;
  // The GPUs that are to use the memory; not for memory of the host.
  std::vector<std::string> device_uuids;
};

using Mappings = std::vector<std::unique_ptr<Mapping>>;

// These three map every request, all or none, one after another without a gap in one range
// of addresses, and answer one Mapping per request, in order. The Mappings are
// independent of each other: each unmaps its own part, and the last one gives the
// range of addresses back.
//
// Statuses of all:
//   INVALID_ARGUMENT     no requests, or a descriptor is no shared memory of that size
//   FAILED_PRECONDITION  the wished address is taken
//   RESOURCE_EXHAUSTED   out of addresses or memory
//   INTERNAL             any other error, by its name

// Maps memfds.
absl::StatusOr<Mappings> MapHost(absl::Span<const MapRequest> requests, const MapOptions& options);

// Maps memfds and registers them with CUDA (cuMemHostRegister) where this process has a
// usable driver: registered() tells. Keeps the primary context of one of the process's
// devices then: the first of options.device_uuids, else the first that it sees.
absl::StatusOr<Mappings> MapPinned(absl::Span<const MapRequest> requests,
                                   const MapOptions& options);

// Maps exported driver allocations (kind vmm) for use by options.device_uuids, one at
// least. Needs no CUDA context and makes none.
//   UNAVAILABLE    this process has no usable CUDA driver; the sentence says why
//   NOT_FOUND      this process does not see a device (CUDA_VISIBLE_DEVICES)
//   UNIMPLEMENTED  the driver cannot map such memory, or a device has no peer access to it
absl::StatusOr<Mappings> MapCuda(absl::Span<const MapRequest> requests, const MapOptions& options);

// Put what MapHost or MapCuda has mapped elsewhere in this process: one behind the other from
// `address` on, in `range`, where nothing is mapped: its holder knows. What is in the memory stays;
// data() is its new address, and nobody uses either meanwhile. All were mapped for the same
// devices. All are moved, or none: whatever is wrong, each is where it was.
//   RESOURCE_EXHAUSTED  out of memory for the books
//   INVALID_ARGUMENT, INTERNAL  the system, or the driver, refuses
absl::Status MoveHost(absl::Span<Mapping* const> mappings,
                      const std::shared_ptr<const AddressRange>& range, void* address);
absl::Status MoveCuda(absl::Span<Mapping* const> mappings,
                      const std::shared_ptr<const AddressRange>& range, void* address);

// The next two open what others own by its export data. They are never mapped read-only
// or at a wished address: neither CUDA's IPC handles nor its pools can. To open the same
// memory again in one process gives the same addresses, counted.
//
// Statuses of all:
//   INVALID_ARGUMENT  not export data of memory of that size
//   NOT_FOUND         its owner has freed it or is gone; or this process does not see a
//                     device
//   UNIMPLEMENTED     the options ask for what this kind of memory cannot do
//   and those of MapCuda

// Opens memory of `device_uuid` by its cudaIpcMemHandle_t, for one device: that of
// options.device_uuids, else its own. Keeps the primary context of that device. CUDA gives the
// memory to one device for each opening; more than one is UNIMPLEMENTED.
absl::StatusOr<std::unique_ptr<Mapping>> OpenCudaIpc(const std::string& device_uuid,
                                                     const ExportData& handle, uint64_t bytes,
                                                     const MapOptions& options);
// The host backend's: asks the owner on its socket in `runtime_dir` (host_ipc.h).
absl::StatusOr<std::unique_ptr<Mapping>> OpenHostIpc(const std::string& runtime_dir,
                                                     const ExportData& handle, uint64_t bytes,
                                                     const MapOptions& options);

// Another process's memory pool. Thread-safe. What was opened from it keeps what it needs of
// it.
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
// imports a pool again gets the same one. Keeps the primary context of the device, or where this
// process does not see it, of the first that it sees.
absl::StatusOr<std::shared_ptr<ImportedPool>> ImportCudaPool(const std::string& device_uuid,
                                                             int fd);
// The host backend's: memory of the pool is opened on its owner's socket in `runtime_dir`
// (host_ipc.h).
absl::StatusOr<std::shared_ptr<ImportedPool>> ImportHostPool(const std::string& runtime_dir,
                                                             int fd);

}  // namespace gpumem
