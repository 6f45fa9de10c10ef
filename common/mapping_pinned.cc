#include "common/cuda_context.h"
#include "common/mapping.h"

#if GPUMEM_WITH_CUDA

#include <utility>

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
  // What can fail here is a driver that is going away with its process, and then the kernel
  // gives everything back.
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

}  // namespace

absl::StatusOr<Mappings> MapPinned(absl::Span<const MapRequest> requests,
                                   const MapOptions& options) {
  MapOptions on_host = options;
  on_host.device_uuids.clear();
  absl::StatusOr<const CudaDriver*> loaded = CudaDriver::Get();
  // Whoever names GPUs wants them to use the memory; else an ordinary buffer will do.
  if (!loaded.ok() && !options.device_uuids.empty()) return loaded.status();
  if (!loaded.ok()) return MapHost(requests, on_host);
  const CudaDriver& driver = **loaded;
  absl::StatusOr<CUdevice> device = RegisteringDevice(driver, options);
  if (!device.ok()) return device.status();
  absl::StatusOr<Mappings> mappings = MapHost(requests, on_host);
  if (!mappings.ok()) return mappings.status();
  absl::StatusOr<std::shared_ptr<const CudaContext>> context = CudaContext::Retain(driver, *device);
  if (!context.ok()) return context.status();

  const unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                             (options.read_only ? CU_MEMHOSTREGISTER_READ_ONLY : 0u);
  for (std::unique_ptr<Mapping>& mapping : *mappings) {
    const absl::Status status = (*context)->Run(
        absl::StrCat("registering ", mapping->size(), " bytes of host memory with CUDA"),
        [&] { return driver.cuMemHostRegister_v2(mapping->data(), mapping->size(), flags); });
    if (!status.ok()) return status;
    mapping = std::make_unique<RegisteredMapping>(*context, std::move(mapping));
  }
  return mappings;
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
