// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/driver.h"
#include "common/mapping/mapping.h"

#if GPUMEM_WITH_CUDA

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/mapping/address.h"
#include "common/mapping/cuda_opening.h"
#include "common/trace/span.h"

namespace gpumem {
namespace {

// Errors of destructors go unreported: only a driver that ends with its process can fail there, and
// then the kernel frees everything.

class CudaRange : public AddressRange {
 public:
  CudaRange(const CudaDriver& driver, CUdeviceptr base, uint64_t bytes)
      : AddressRange(base, bytes), driver_(driver) {}
  ~CudaRange() override {
    const trace::Span span("free addresses", bytes());
    const RelaxedCapture relaxed(driver_);
    driver_.cuMemAddressFree(base(), bytes());
  }

 private:
  const CudaDriver& driver_;
};

// The users of the memory, and their access.
struct Access {
  std::vector<CUmemAccessDesc> descriptions;
  std::vector<std::string> device_uuids;
  bool read_only = false;
};

class CudaMapping : public Mapping {
 public:
  CudaMapping(const CudaDriver& driver, std::shared_ptr<const AddressRange> range,
              std::shared_ptr<const Access> access, CUdeviceptr at, uint64_t bytes)
      : Mapping(reinterpret_cast<void*>(at), bytes),
        driver_(driver),
        range_(std::move(range)),
        access_(std::move(access)) {}
  ~CudaMapping() override {
    if (detached_) return;
    const trace::Span span("unmap", size());
    const RelaxedCapture relaxed(driver_);
    driver_.cuMemUnmap(at(), size());
  }

  absl::Span<const std::string> device_uuids() const override { return access_->device_uuids; }

  CUdeviceptr at() const { return reinterpret_cast<CUdeviceptr>(data()); }
  const CudaDriver& driver() const { return driver_; }
  const Access& access() const { return *access_; }

  const AddressRange* range() const { return range_.get(); }

  // Switches to `to`, where its memory is also mapped already. The caller has unmapped the old
  // address.
  void MoveTo(CUdeviceptr to, std::shared_ptr<const AddressRange> range) {
    Mapping::MoveTo(reinterpret_cast<void*>(to));
    range_ = std::move(range);
  }

 private:
  absl::StatusOr<Reserved> DetachMemory() override {
    const RelaxedCapture relaxed(driver_);
    const CUresult result = driver_.cuMemUnmap(at(), size());
    if (result != CUDA_SUCCESS) {
      return driver_.Error(result, absl::StrCat("unmapping ", size(), " bytes"));
    }
    detached_ = true;
    return Reserved{.bytes = size(),
                    .options = {.read_only = access_->read_only,
                                .address = data(),
                                .range = range_,
                                .device_uuids = access_->device_uuids}};
  }

  const CudaDriver& driver_;
  std::shared_ptr<const AddressRange> range_;  // outlives the mappings in it
  const std::shared_ptr<const Access> access_;
  bool detached_ = false;
};

// Converts a driver error that the arguments caused, not the driver's state.
absl::Status InvalidArgument(const absl::Status& error) {
  return absl::InvalidArgumentError(error.message());
}

// Maps the memory behind `request.fd` at `at`.
absl::Status MapAt(const CudaDriver& driver, CUdeviceptr at, const MapRequest& request) {
  CUmemGenericAllocationHandle handle = 0;
  trace::Span import("import", request.bytes);
  CUresult result = driver.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<intptr_t>(request.fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) {
    const absl::Status error =
        driver.Error(result, absl::StrCat("importing descriptor ", request.fd));
    // Driver 580 returns "unknown" for a descriptor that is not the driver's.
    const bool not_memory = result == CUDA_ERROR_INVALID_VALUE ||
                            result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_UNKNOWN;
    return not_memory ? InvalidArgument(error) : error;
  }
  import.End();
  const trace::Span map("map", request.bytes);
  result = driver.cuMemMap(at, request.bytes, 0, handle, 0);
  // The mapping, if there is one now, keeps the memory by itself.
  driver.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const absl::Status error = driver.Error(
      result, absl::StrCat("mapping descriptor ", request.fd, " as ", request.bytes, " bytes"));
  // "Not supported" is the driver's word for a part of an allocation.
  const bool wrong_size = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED;
  return wrong_size ? InvalidArgument(error) : error;
}

// Maps the memory of a mapping also at `at`.
CUresult MapSame(const CudaDriver& driver, CUdeviceptr at, const Mapping& mapping) {
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver.cuMemRetainAllocationHandle(&handle, mapping.data());
  if (result != CUDA_SUCCESS) return result;
  result = driver.cuMemMap(at, mapping.size(), 0, handle, 0);
  driver.cuMemRelease(handle);
  return result;
}

// Unmaps all of them. Those that adjoin in one range go with one call, which costs the driver about
// as much as the call for one of them.
void UnmapTogether(absl::Span<CudaMapping* const> mappings) {
  for (size_t i = 0; i < mappings.size();) {
    const CUdeviceptr begin = mappings[i]->at();
    CUdeviceptr end = begin;
    size_t next = i;
    for (; next < mappings.size() && mappings[next]->at() == end &&
           mappings[next]->range() == mappings[i]->range();
         ++next) {
      end += mappings[next]->size();
    }
    const CudaDriver& driver = mappings[i]->driver();
    const bool together = driver.cuMemUnmap(begin, end - begin) == CUDA_SUCCESS;
    for (; i < next; ++i) {
      if (!together) driver.cuMemUnmap(mappings[i]->at(), mappings[i]->size());
    }
  }
}

// Finds the device of the memory mapped at `at`.
bool FindLocation(const CudaDriver& driver, const void* at, CUdevice* device) {
  CUmemGenericAllocationHandle handle = 0;
  if (driver.cuMemRetainAllocationHandle(&handle, const_cast<void*>(at)) != CUDA_SUCCESS) {
    return false;
  }
  CUmemAllocationProp properties = {};
  const CUresult result = driver.cuMemGetAllocationPropertiesFromHandle(&properties, handle);
  driver.cuMemRelease(handle);
  *device = properties.location.id;
  return result == CUDA_SUCCESS && properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

// Explains why the driver refused `devices` the use of `mappings`: UNIMPLEMENTED if one of them has
// no peer access to the memory, else `error`.
absl::Status ExplainRefusal(const CudaDriver& driver, const Mappings& mappings,
                            absl::Span<const CUdevice> devices, const absl::Status& error) {
  for (const std::unique_ptr<Mapping>& mapping : mappings) {
    CUdevice home = 0;
    if (!FindLocation(driver, mapping->data(), &home)) continue;
    // The driver's number of a device that this process does not see.
    if (home < 0) {
      return absl::UnimplementedError(
          absl::StrCat(error.message(),
                       "; probably there is no peer access to the memory's device, which this "
                       "process does not see (CUDA_VISIBLE_DEVICES)"));
    }
    for (const CUdevice device : devices) {
      absl::Status access = CheckPeerAccess(driver, device, home);
      if (absl::IsUnimplemented(access)) return access;
    }
  }
  return error;
}

absl::StatusOr<std::shared_ptr<const AddressRange>> Reserve(const CudaDriver& driver, void* address,
                                                            uint64_t bytes) {
  const trace::Span span("reserve addresses", bytes);
  const auto wished = reinterpret_cast<CUdeviceptr>(address);
  CUdeviceptr base = 0;
  if (const CUresult result = driver.cuMemAddressReserve(&base, bytes, 0, wished, 0);
      result != CUDA_SUCCESS) {
    // The driver's error for an address beyond its range.
    if (wished != 0 && result == CUDA_ERROR_OUT_OF_MEMORY) return AddressTaken(address, bytes);
    const absl::Status error =
        driver.Error(result, absl::StrCat("reserving addresses for ", bytes, " bytes"));
    return result == CUDA_ERROR_INVALID_VALUE ? InvalidArgument(error) : error;
  }
  auto range = std::make_shared<const CudaRange>(driver, base, bytes);
  // The driver takes an address as a hint.
  if (wished != 0 && base != wished) return AddressTaken(address, bytes);
  return range;
}

// Maps memory of these sizes consecutively. `map` maps the part of a number at an address. Without
// devices in `options`, none has access.
absl::StatusOr<Mappings> MapParts(
    const CudaDriver& driver, absl::Span<const uint64_t> sizes, const MapOptions& options,
    absl::FunctionRef<absl::Status(CUdeviceptr at, size_t number)> map) {
  if (options.range == nullptr) {
    if (absl::Status status = CheckAddress(options.address); !status.ok()) return status;
  }
  uint64_t total = 0;
  for (const uint64_t bytes : sizes) {
    if (bytes > std::numeric_limits<uint64_t>::max() - total) {
      return absl::ResourceExhaustedError(
          "the sizes of the memory to map add up to more than 2^64 bytes");
    }
    total += bytes;
  }
  const RelaxedCapture relaxed(driver);
  absl::StatusOr<std::vector<CUdevice>> devices = FindCudaDevices(driver, options.device_uuids);
  if (!devices.ok()) return devices.status();
  absl::StatusOr<std::shared_ptr<const AddressRange>> range = options.range;
  if (options.range == nullptr) range = Reserve(driver, options.address, total);
  if (!range.ok()) return range.status();
  const CUdeviceptr base =
      options.range == nullptr ? (*range)->base() : reinterpret_cast<CUdeviceptr>(options.address);

  auto access = std::make_shared<Access>();
  access->device_uuids = options.device_uuids;
  access->read_only = options.read_only;
  std::vector<CUmemAccessDesc>& descriptions = access->descriptions;
  descriptions.resize(devices->size());
  for (size_t i = 0; i < descriptions.size(); ++i) {
    CUmemAccessDesc& one = descriptions[i];
    one.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    one.location.id = (*devices)[i];
    one.flags =
        options.read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  Mappings mappings;
  mappings.reserve(sizes.size());
  CUdeviceptr next = base;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (absl::Status status = map(next, i); !status.ok()) return status;
    mappings.push_back(std::make_unique<CudaMapping>(driver, *range, access, next, sizes[i]));
    next += sizes[i];
  }
  if (descriptions.empty()) return mappings;
  const trace::Span span("set access", total);
  // Once for the whole range and all devices: this is the slow call of the three.
  const CUresult result =
      driver.cuMemSetAccess(base, total, descriptions.data(), descriptions.size());
  if (result != CUDA_SUCCESS) {
    const absl::Status error = driver.Error(
        result, absl::StrCat("giving ", descriptions.size(), " device(s), the first of them ",
                             options.device_uuids.front(), ", access to ", total, " bytes"));
    return absl::IsResourceExhausted(error) ? error
                                            : ExplainRefusal(driver, mappings, *devices, error);
  }
  return mappings;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const AddressRange>> ReserveCudaAddresses(uint64_t bytes) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  const RelaxedCapture relaxed(**driver);
  return Reserve(**driver, nullptr, bytes);
}

absl::StatusOr<Mappings> MapCuda(absl::Span<const MapRequest> requests, const MapOptions& options) {
  if (requests.empty()) return absl::InvalidArgumentError("there are no descriptors to map");
  if (options.device_uuids.empty()) {
    return absl::InvalidArgumentError(
        "memory of kind vmm needs at least one device that uses it; name one in map_devices");
  }
  std::vector<uint64_t> sizes;
  for (const MapRequest& request : requests) {
    if (request.fd < 0 || request.bytes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot map descriptor ", request.fd, " as ", request.bytes, " bytes"));
    }
    sizes.push_back(request.bytes);
  }
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  return MapParts(**driver, sizes, options, [&](CUdeviceptr at, size_t number) {
    return MapAt(**driver, at, requests[number]);
  });
}

absl::StatusOr<Mappings> MapCudaAgain(absl::Span<const Mapping* const> mappings,
                                      const MapOptions& options) {
  if (mappings.empty()) return absl::InvalidArgumentError("there are no mappings to map again");
  std::vector<uint64_t> sizes;
  for (const Mapping* mapping : mappings) sizes.push_back(mapping->size());
  const CudaDriver& driver = static_cast<const CudaMapping*>(mappings.front())->driver();
  return MapParts(driver, sizes, options, [&](CUdeviceptr at, size_t number) {
    return driver.Error(MapSame(driver, at, *mappings[number]),
                        absl::StrCat("mapping ", sizes[number], " bytes again"));
  });
}

absl::Status MoveCuda(absl::Span<Mapping* const> mappings,
                      const std::shared_ptr<const AddressRange>& range, void* address) {
  std::vector<CudaMapping*> moved;
  for (Mapping* mapping : mappings) moved.push_back(static_cast<CudaMapping*>(mapping));
  const CudaDriver& driver = moved.front()->driver();
  const RelaxedCapture relaxed(driver);
  const auto base = reinterpret_cast<CUdeviceptr>(address);
  CUdeviceptr next = base;
  CUresult result = CUDA_SUCCESS;
  size_t mapped = 0;
  while (mapped < moved.size()) {
    result = MapSame(driver, next, *moved[mapped]);
    if (result != CUDA_SUCCESS) break;
    next += moved[mapped++]->size();
  }
  if (result == CUDA_SUCCESS) {
    const std::vector<CUmemAccessDesc>& access = moved.front()->access().descriptions;
    result = driver.cuMemSetAccess(base, next - base, access.data(), access.size());
  }
  next = base;
  if (result != CUDA_SUCCESS) {
    for (size_t i = 0; i < mapped; next += moved[i++]->size()) {
      driver.cuMemUnmap(next, moved[i]->size());
    }
    return driver.Error(result, absl::StrCat("moving ", moved.size(), " allocation(s)"));
  }
  UnmapTogether(moved);
  for (CudaMapping* mapping : moved) {
    mapping->MoveTo(next, range);
    next += mapping->size();
  }
  return absl::OkStatus();
}

}  // namespace gpumem

#else

namespace gpumem {

absl::StatusOr<Mappings> MapCuda(absl::Span<const MapRequest>, const MapOptions&) {
  return CudaDriver::Get().status();
}

absl::StatusOr<Mappings> MapCudaAgain(absl::Span<const Mapping* const>, const MapOptions&) {
  return CudaDriver::Get().status();
}

absl::Status MoveCuda(absl::Span<Mapping* const>, const std::shared_ptr<const AddressRange>&,
                      void*) {
  return CudaDriver::Get().status();
}

absl::StatusOr<std::shared_ptr<const AddressRange>> ReserveCudaAddresses(uint64_t) {
  return CudaDriver::Get().status();
}

}  // namespace gpumem

#endif
