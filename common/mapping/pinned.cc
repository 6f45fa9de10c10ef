// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/context.h"
#include "common/mapping/mapping.h"

#if GPUMEM_WITH_CUDA

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gpumem {
namespace {

// Host memory that CUDA knows: every device of the process reads and writes it by its host
// address (unified addressing), and copies to and from it do not wait for the host.
class RegisteredMapping : public Mapping {
 public:
  RegisteredMapping(std::shared_ptr<const CudaContext> context, std::unique_ptr<Mapping> memory)
      : Mapping(memory->data(), memory->size()),
        context_(std::move(context)),
        memory_(std::move(memory)) {}
  // Only a driver that ends with its process can fail here, and then the kernel frees everything.
  ~RegisteredMapping() override {
    context_->Call([&] { return context_->driver().cuMemHostUnregister(memory_->data()); });
  }
  bool registered() const override { return true; }

 private:
  const std::shared_ptr<const CudaContext> context_;
  const std::unique_ptr<Mapping> memory_;
};

absl::StatusOr<CUdevice> RegisteringDevice(const CudaDriver& driver, const MapOptions& options) {
  for (const std::string& uuid : options.device_uuids) {
    absl::StatusOr<CUdevice> device = driver.FindDevice(uuid);
    if (!device.ok()) return device.status();
  }
  return options.device_uuids.empty() ? driver.devices().front().handle
                                      : driver.FindDevice(options.device_uuids.front());
}

// Number of addresses that are tried besides the first.
constexpr size_t kOtherAddresses = 16;

// All, or as many as the driver takes.
CUresult Register(const std::shared_ptr<const CudaContext>& context, unsigned int flags,
                  Mappings* mappings) {
  for (std::unique_ptr<Mapping>& mapping : *mappings) {
    const CUresult result = context->Call([&] {
      return context->driver().cuMemHostRegister_v2(mapping->data(), mapping->size(), flags);
    });
    if (result != CUDA_SUCCESS) return result;
    mapping = std::make_unique<RegisteredMapping>(context, std::move(mapping));
  }
  return CUDA_SUCCESS;
}

}  // namespace

absl::StatusOr<Mappings> MapPinned(absl::Span<const MapRequest> requests,
                                   const MapOptions& options) {
  MapOptions on_host = options;
  on_host.device_uuids.clear();
  absl::StatusOr<const CudaDriver*> loaded = CudaDriver::Get();
  // A caller that names GPUs wants them to use the memory; otherwise an ordinary buffer will do.
  if (!loaded.ok() && !options.device_uuids.empty()) return loaded.status();
  if (!loaded.ok()) return MapHost(requests, on_host);
  const CudaDriver& driver = **loaded;
  absl::StatusOr<CUdevice> device = RegisteringDevice(driver, options);
  if (!device.ok()) return device.status();
  absl::StatusOr<std::shared_ptr<const CudaContext>> context = CudaContext::Retain(driver, *device);
  if (!context.ok()) return context.status();

  const unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                             (options.read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0u);
  // The driver can take free addresses for used ones: those of IPC memory whose owner died before
  // it was closed (docs/design.md, under "not promised"). They stay mapped while others are tried.
  std::vector<Mappings> refused;
  while (true) {
    absl::StatusOr<Mappings> mappings = MapHost(requests, on_host);
    if (!mappings.ok()) return mappings.status();
    const CUresult result = Register(*context, flags, &*mappings);
    if (result == CUDA_SUCCESS) return mappings;
    if (result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED || options.address != nullptr ||
        refused.size() == kOtherAddresses) {
      return driver.Error(result, "registering host memory with CUDA");
    }
    refused.push_back(*std::move(mappings));
  }
}

}  // namespace gpumem

#else

namespace gpumem {

absl::StatusOr<Mappings> MapPinned(absl::Span<const MapRequest> requests,
                                   const MapOptions& options) {
  if (!options.device_uuids.empty()) return CudaDriver::Get().status();
  return MapHost(requests, options);
}

}  // namespace gpumem

#endif
