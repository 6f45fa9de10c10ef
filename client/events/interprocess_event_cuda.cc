// SPDX-License-Identifier: Apache-2.0
#include "client/events/interprocess_event.h"
#include "common/cuda/context.h"
#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumem::internal {
namespace {

// Returns INTERNAL for any failure once there is an event.
absl::Status EventError(const CudaDriver& driver, CUresult result, absl::string_view what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(driver.Error(result, what).message());
}

class CudaEvent : public InterprocessEvent {
 public:
  // Takes ownership of `event`.
  CudaEvent(std::shared_ptr<const CudaContext> context, CUevent event)
      : context_(std::move(context)), event_(event) {}
  // Only a driver that is unloading with its process fails here.
  ~CudaEvent() override {
    context_->Call([&] { return driver().cuEventDestroy_v2(event_); });
  }

  // A null stream is the default stream of the current context, which is the event's.
  absl::Status Record(void* stream) override {
    const CUresult result = context_->Call(
        [&] { return driver().cuEventRecord(event_, static_cast<CUstream>(stream)); });
    absl::Status status = EventError(driver(), result, "recording the event");
    if (result == CUDA_ERROR_INVALID_HANDLE && stream != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(status.message(),
                       ": the stream belongs to another device than the event, or is invalid"));
    }
    return status;
  }
  absl::Status Wait(void* stream) override {
    return Run("making the stream wait for the event", [&] {
      return driver().cuStreamWaitEvent(static_cast<CUstream>(stream), event_,
                                        CU_EVENT_WAIT_DEFAULT);
    });
  }
  absl::Status Synchronize() override {
    return Run("waiting for the event", [&] { return driver().cuEventSynchronize(event_); });
  }
  absl::StatusOr<bool> Done() override {
    const CUresult result = context_->Call([&] { return driver().cuEventQuery(event_); });
    if (result == CUDA_ERROR_NOT_READY) return false;
    if (absl::Status status = EventError(driver(), result, "querying the event"); !status.ok()) {
      return status;
    }
    return true;
  }
  void* event() const override { return event_; }
  bool needs_its_maker() const override { return true; }
  void set_handle(const Handle& handle) { handle_ = handle; }

 private:
  const CudaDriver& driver() const { return context_->driver(); }

  template <typename Work>
  absl::Status Run(absl::string_view what, Work work) const {
    return EventError(driver(), context_->Call(std::move(work)), what);
  }

  const std::shared_ptr<const CudaContext> context_;
  CUevent event_;
};

// The error of creating an event, or of opening one.
absl::Status NewEventError(const CudaDriver& driver, CUresult result, absl::string_view what) {
  absl::Status error = driver.Error(result, what);
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::ResourceExhaustedError(
          absl::StrCat(error.message(),
                       "; a process can have about 4000 interprocess events: destroy some, or use "
                       "one event for several purposes"));
    case CUDA_ERROR_MAP_FAILED:
      return absl::PermissionDeniedError(absl::StrCat(
          error.message(), ": CUDA shares interprocess events only between processes of one user"));
    default:
      return error;
  }
}

absl::StatusOr<std::shared_ptr<const CudaContext>> ContextOf(const CudaDriver& driver,
                                                             const std::string& device_uuid,
                                                             CUdevice device) {
  int supported = 0;
  // A driver older than CUDA 12 does not know the attribute, and supports them.
  if (driver.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, device) ==
          CUDA_SUCCESS &&
      supported == 0) {
    return absl::UnimplementedError(absl::StrCat(
        "the device ", device_uuid,
        " has no interprocess events; tell the other process after cudaStreamSynchronize instead"));
  }
  return CudaContext::Retain(driver, device);
}

}  // namespace

absl::StatusOr<std::shared_ptr<InterprocessEvent>> MakeCudaEvent(const std::string& device_uuid) {
  absl::StatusOr<const CudaDriver*> loaded = CudaDriver::Get();
  if (!loaded.ok()) return loaded.status();
  const CudaDriver& driver = **loaded;
  absl::StatusOr<CUdevice> device = driver.FindDevice(device_uuid);
  if (!device.ok()) return device.status();
  absl::StatusOr<std::shared_ptr<const CudaContext>> context =
      ContextOf(driver, device_uuid, *device);
  if (!context.ok()) return context.status();
  CUevent event = nullptr;
  const CUresult result = (*context)->Call([&] {
    return driver.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  });
  if (result != CUDA_SUCCESS) {
    return NewEventError(driver, result,
                         absl::StrCat("creating an interprocess event on ", device_uuid));
  }
  auto made = std::make_shared<CudaEvent>(*context, event);
  CUipcEventHandle name = {};
  absl::Status status = (*context)->Run("exporting an event's interprocess handle",
                                        [&] { return driver.cuIpcGetEventHandle(&name, event); });
  if (!status.ok()) return status;
  Handle handle;
  static_assert(sizeof(name) == std::tuple_size_v<Handle>);
  std::memcpy(handle.data(), &name, sizeof(name));
  made->set_handle(handle);
  return made;
}

absl::StatusOr<std::shared_ptr<InterprocessEvent>> OpenCudaEvent(const std::string& device_uuid,
                                                                 const Handle& handle) {
  absl::StatusOr<const CudaDriver*> loaded = CudaDriver::Get();
  if (!loaded.ok()) return loaded.status();
  const CudaDriver& driver = **loaded;
  // If the process does not see the event's device, any other device opens it as well.
  const CUdevice device = driver.FindDevice(device_uuid).value_or(driver.devices().front().handle);
  absl::StatusOr<std::shared_ptr<const CudaContext>> context =
      ContextOf(driver, device_uuid, device);
  if (!context.ok()) return context.status();
  CUipcEventHandle name;
  std::memcpy(&name, handle.data(), sizeof(name));
  CUevent event = nullptr;
  const CUresult result =
      (*context)->Call([&] { return driver.cuIpcOpenEventHandle(&event, name); });
  if (result != CUDA_SUCCESS) {
    return NewEventError(driver, result,
                         absl::StrCat("opening an interprocess event of ", device_uuid));
  }
  auto opened = std::make_shared<CudaEvent>(*std::move(context), event);
  opened->set_handle(handle);
  return opened;
}

}  // namespace gpumem::internal

#else

namespace gpumem::internal {

absl::StatusOr<std::shared_ptr<InterprocessEvent>> MakeCudaEvent(const std::string&) {
  return CudaDriver::Get().status();
}

absl::StatusOr<std::shared_ptr<InterprocessEvent>> OpenCudaEvent(const std::string&,
                                                                 const Handle&) {
  return CudaDriver::Get().status();
}

}  // namespace gpumem::internal

#endif
