#include "common/cuda_driver.h"
#include "common/mapping.h"

#if GPUMEM_WITH_CUDA

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gpumem {
namespace {

// Errors of destructors go unreported: what can fail there is a driver that is going
// away with its process, and then the kernel gives everything back.

// A reserved range of device addresses.
class AddressRange {
 public:
  AddressRange(const CudaDriver& driver, CUdeviceptr base, uint64_t bytes)
      : driver_(driver), base_(base), bytes_(bytes) {}
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange() { driver_.cuMemAddressFree(base_, bytes_); }

  CUdeviceptr base() const { return base_; }

 private:
  const CudaDriver& driver_;
  const CUdeviceptr base_;
  const uint64_t bytes_;
};

class CudaMapping : public Mapping {
 public:
  CudaMapping(const CudaDriver& driver, std::shared_ptr<const AddressRange> range, CUdeviceptr at,
              uint64_t bytes)
      : Mapping(reinterpret_cast<void*>(at), bytes), driver_(driver), range_(std::move(range)) {}
  ~CudaMapping() override { driver_.cuMemUnmap(reinterpret_cast<CUdeviceptr>(data()), size()); }

 private:
  const CudaDriver& driver_;
  const std::shared_ptr<const AddressRange> range_;  // outlives what is mapped in it
};

// An error that the driver gives for what it was asked, not for its own state.
absl::Status InvalidArgument(const absl::Status& error) {
  return absl::InvalidArgumentError(error.message());
}

// Maps the memory behind `request.fd` at `at`.
absl::Status MapAt(const CudaDriver& driver, CUdeviceptr at, const MapRequest& request) {
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<intptr_t>(request.fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result != CUDA_SUCCESS) {
    const absl::Status error =
        driver.Error(result, absl::StrCat("importing descriptor ", request.fd));
    // "Unknown" is what driver 580 says of a descriptor that is none of its own.
    const bool not_memory = result == CUDA_ERROR_INVALID_VALUE ||
                            result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_UNKNOWN;
    return not_memory ? InvalidArgument(error) : error;
  }
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

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Mapping>>> MapCuda(const std::string& device_uuid,
                                                              absl::Span<const MapRequest> requests,
                                                              bool read_only) {
  if (requests.empty()) return absl::InvalidArgumentError("nothing to map: no descriptors");
  uint64_t total = 0;
  for (const MapRequest& request : requests) {
    if (request.fd < 0 || request.bytes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot map descriptor ", request.fd, " as ", request.bytes, " bytes"));
    }
    if (request.bytes > std::numeric_limits<uint64_t>::max() - total) {
      return absl::ResourceExhaustedError("the memory to map exceeds the range of addresses");
    }
    total += request.bytes;
  }
  absl::StatusOr<const CudaDriver*> loaded = CudaDriver::Get();
  if (!loaded.ok()) return loaded.status();
  const CudaDriver& driver = **loaded;
  absl::StatusOr<CUdevice> device = driver.FindDevice(device_uuid);
  if (!device.ok()) return device.status();

  CUdeviceptr base = 0;
  CUresult result = driver.cuMemAddressReserve(&base, total, 0, 0, 0);
  if (result != CUDA_SUCCESS) {
    const absl::Status error =
        driver.Error(result, absl::StrCat("reserving addresses for ", total, " bytes"));
    return result == CUDA_ERROR_INVALID_VALUE ? InvalidArgument(error) : error;
  }
  const auto range = std::make_shared<const AddressRange>(driver, base, total);

  std::vector<std::unique_ptr<Mapping>> mappings;
  mappings.reserve(requests.size());
  CUdeviceptr next = base;
  for (const MapRequest& request : requests) {
    if (absl::Status status = MapAt(driver, next, request); !status.ok()) return status;
    mappings.push_back(std::make_unique<CudaMapping>(driver, range, next, request.bytes));
    next += request.bytes;
  }

  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = *device;
  access.flags = read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  // Once for the whole range: this is the slow call of the three.
  result = driver.cuMemSetAccess(base, total, &access, 1);
  if (result != CUDA_SUCCESS) {
    return driver.Error(result,
                        absl::StrCat("opening ", total, " bytes for the device ", device_uuid));
  }
  return mappings;
}

}  // namespace gpumem

#else

namespace gpumem {

absl::StatusOr<std::vector<std::unique_ptr<Mapping>>> MapCuda(const std::string&,
                                                              absl::Span<const MapRequest>, bool) {
  return CudaDriver::Get().status();
}

}  // namespace gpumem

#endif
