// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/bare_cuda.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"
#include "common/cuda/dynamic_library.h"

namespace gpumem::bench {

#if GPUMEM_WITH_CUDA

// Not in common/cuda/driver.h, which has only the product's calls.
#define GPUMEM_BARE_CALLS(X)            \
  X(cuGetErrorName)                     \
  X(cuCtxSetCurrent)                    \
  X(cuMemAlloc_v2)                      \
  X(cuMemFree_v2)                       \
  X(cuIpcGetMemHandle)                  \
  X(cuIpcOpenMemHandle_v2)              \
  X(cuIpcCloseMemHandle)                \
  X(cuMemPoolCreate)                    \
  X(cuMemPoolExportToShareableHandle)   \
  X(cuMemPoolImportFromShareableHandle) \
  X(cuMemPoolExportPointer)             \
  X(cuMemPoolImportPointer)             \
  X(cuMemAllocFromPoolAsync)            \
  X(cuMemFreeAsync)                     \
  X(cuStreamCreate)                     \
  X(cuStreamSynchronize)                \
  X(cuCtxEnablePeerAccess)              \
  X(cuMemcpyDtoDAsync_v2)               \
  X(cuMemcpyDtoHAsync_v2)               \
  X(cuMemcpyHtoDAsync_v2)               \
  X(cuMemHostRegister_v2)               \
  X(cuMemHostUnregister)                \
  X(cuMemcpyPeerAsync)

namespace {

struct Calls {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares a member of that name.
#define GPUMEM_BARE_MEMBER(name) decltype(&::name) name = nullptr;
  GPUMEM_BARE_CALLS(GPUMEM_BARE_MEMBER)
#undef GPUMEM_BARE_MEMBER
};

absl::StatusOr<Calls> FindCalls() {
  absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Open("libcuda.so.1");
  if (!library.ok()) return library.status();
  Calls calls;
#define GPUMEM_BARE_FIND(name)                                 \
  if (!library->Find(#name, calls.name)) {                     \
    return absl::UnavailableError("the driver has no " #name); \
  }
  GPUMEM_BARE_CALLS(GPUMEM_BARE_FIND)
#undef GPUMEM_BARE_FIND
  return calls;
}

class Bare : public BareCuda {
 public:
  Bare(const CudaDriver& driver, const Calls& calls, CUdevice device)
      : driver_(driver), calls_(calls), device_(device) {}
  ~Bare() override {
    if (context_ != nullptr) driver_.cuDevicePrimaryCtxRelease_v2(device_);
  }

  absl::Status Begin() {
    absl::Status status =
        Say(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
    if (status.ok()) status = Use();
    if (status.ok()) {
      status = Say(calls_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    return status;
  }

  absl::StatusOr<Address> Alloc(uint64_t bytes) override {
    if (absl::Status status = Use(); !status.ok()) return status;
    CUdeviceptr address = 0;
    const CUresult result = calls_.cuMemAlloc_v2(&address, bytes);
    return Or(result, "cuMemAlloc", Address{address});
  }

  absl::StatusOr<Exported> MakeIpc(uint64_t bytes) override {
    absl::StatusOr<Address> address = Alloc(bytes);
    if (!address.ok()) return address.status();
    CUipcMemHandle handle;
    const CUresult result = calls_.cuIpcGetMemHandle(&handle, *address);
    return Or(result, "cuIpcGetMemHandle", Exporting(*address, handle));
  }

  absl::Status Free(Address address) override {
    if (absl::Status status = Use(); !status.ok()) return status;
    return Say(calls_.cuMemFree_v2(address), "cuMemFree");
  }

  absl::StatusOr<Address> OpenIpc(const Handle& data) override {
    if (absl::Status status = Use(); !status.ok()) return status;
    CUipcMemHandle handle;
    std::memcpy(&handle, data.data(), sizeof handle);
    CUdeviceptr address = 0;
    const CUresult result =
        calls_.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    return Or(result, "cuIpcOpenMemHandle", Address{address});
  }

  absl::Status CloseIpc(Address address) override {
    return Say(calls_.cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle");
  }

  absl::StatusOr<UniqueFd> PoolFd() override {
    if (absl::Status status = MakePool(); !status.ok()) return status;
    int fd = -1;
    const absl::Status status = Say(calls_.cuMemPoolExportToShareableHandle(
                                        &fd, pool_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                                    "cuMemPoolExportToShareableHandle");
    if (!status.ok()) return status;
    return UniqueFd(fd);
  }

  absl::StatusOr<Exported> MakeInPool(uint64_t bytes) override {
    if (absl::Status status = MakePool(); !status.ok()) return status;
    CUdeviceptr address = 0;
    absl::Status status = Say(calls_.cuMemAllocFromPoolAsync(&address, bytes, pool_, stream_),
                              "cuMemAllocFromPoolAsync");
    if (status.ok()) status = Wait();
    if (!status.ok()) return status;
    CUmemPoolPtrExportData data;
    const CUresult result = calls_.cuMemPoolExportPointer(&data, address);
    return Or(result, "cuMemPoolExportPointer", Exporting(address, data));
  }

  absl::Status FreeInPool(Address address) override { return FreeAndWait(address); }

  absl::Status ImportPool(int fd) override {
    if (absl::Status status = Use(); !status.ok()) return status;
    const auto handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    return Say(calls_.cuMemPoolImportFromShareableHandle(
                   &imported_, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
               "cuMemPoolImportFromShareableHandle");
  }

  absl::StatusOr<Address> OpenInPool(const Handle& data) override {
    if (absl::Status status = Use(); !status.ok()) return status;
    CUmemPoolPtrExportData exported;
    std::memcpy(&exported, data.data(), sizeof exported);
    CUdeviceptr address = 0;
    const CUresult result = calls_.cuMemPoolImportPointer(&address, imported_, &exported);
    return Or(result, "cuMemPoolImportPointer", Address{address});
  }

  absl::Status CloseInPool(Address address) override { return FreeAndWait(address); }

  absl::Status EnablePeer(BareCuda& other) override {
    if (absl::Status status = Use(); !status.ok()) return status;
    const CUresult result = calls_.cuCtxEnablePeerAccess(static_cast<Bare&>(other).context_, 0);
    if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return absl::OkStatus();
    return Say(result, "cuCtxEnablePeerAccess");
  }

  absl::Status Copy(Address to, Address from, uint64_t bytes, int times) override {
    return Repeat(times, [&] {
      return Say(calls_.cuMemcpyDtoDAsync_v2(to, from, bytes, stream_), "cuMemcpyDtoDAsync");
    });
  }

  absl::Status CopyFromPeer(Address to, Address from, BareCuda& owner, uint64_t bytes,
                            int times) override {
    CUcontext theirs = static_cast<Bare&>(owner).context_;
    return Repeat(times, [&] {
      return Say(calls_.cuMemcpyPeerAsync(to, context_, from, theirs, bytes, stream_),
                 "cuMemcpyPeerAsync");
    });
  }

  absl::Status Register(void* host, uint64_t bytes) override {
    if (absl::Status status = Use(); !status.ok()) return status;
    return Say(calls_.cuMemHostRegister_v2(host, bytes, 0), "cuMemHostRegister");
  }
  absl::Status Unregister(void* host) override {
    if (absl::Status status = Use(); !status.ok()) return status;
    return Say(calls_.cuMemHostUnregister(host), "cuMemHostUnregister");
  }
  absl::Status CopyOut(absl::Span<const HostCopy> copies) override {
    return ForEach(copies, [this](const HostCopy& copy) {
      return Say(calls_.cuMemcpyDtoHAsync_v2(copy.host, copy.memory, copy.bytes, stream_),
                 "cuMemcpyDtoHAsync");
    });
  }
  absl::Status CopyIn(absl::Span<const HostCopy> copies) override {
    return ForEach(copies, [this](const HostCopy& copy) {
      return Say(calls_.cuMemcpyHtoDAsync_v2(copy.memory, copy.host, copy.bytes, stream_),
                 "cuMemcpyHtoDAsync");
    });
  }

 private:
  absl::Status Say(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    const char* name = nullptr;
    calls_.cuGetErrorName(result, &name);
    return absl::InternalError(absl::StrCat(call, ": ", name != nullptr ? name : "unknown"));
  }
  template <typename T>
  absl::StatusOr<T> Or(CUresult result, const char* call, T value) const {
    if (result != CUDA_SUCCESS) return Say(result, call);
    return value;
  }
  template <typename Data>
  static Exported Exporting(Address address, const Data& data) {
    static_assert(sizeof data == sizeof(Handle));
    Exported exported = {.address = address};
    std::memcpy(exported.data.data(), &data, sizeof data);
    return exported;
  }

  absl::Status Use() { return Say(calls_.cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }
  absl::Status Wait() { return Say(calls_.cuStreamSynchronize(stream_), "cuStreamSynchronize"); }
  CUmemLocation Here() const { return {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_}; }

  absl::Status MakePool() {
    if (pool_ != nullptr) return Use();
    if (absl::Status status = Use(); !status.ok()) return status;
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    props.location = Here();
    return Say(calls_.cuMemPoolCreate(&pool_, &props), "cuMemPoolCreate");
  }

  absl::Status FreeAndWait(Address address) {
    absl::Status status = Use();
    if (status.ok()) status = Say(calls_.cuMemFreeAsync(address, stream_), "cuMemFreeAsync");
    return status.ok() ? Wait() : status;
  }

  template <typename Work>
  absl::Status ForEach(absl::Span<const HostCopy> copies, Work work) {
    absl::Status status = Use();
    for (size_t i = 0; i < copies.size() && status.ok(); ++i) status = work(copies[i]);
    const absl::Status waited = Wait();
    return status.ok() ? waited : status;
  }

  template <typename Work>
  absl::Status Repeat(int times, Work work) {
    absl::Status status = Use();
    for (int i = 0; i < times && status.ok(); ++i) status = work();
    return status.ok() ? Wait() : status;
  }

  const CudaDriver& driver_;
  const Calls calls_;
  const CUdevice device_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUmemoryPool pool_ = nullptr, imported_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BareCuda>> BareCuda::On(const std::string& device_uuid) {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<CUdevice> device = (*driver)->FindDevice(device_uuid);
  if (!device.ok()) return device.status();
  absl::StatusOr<Calls> calls = FindCalls();
  if (!calls.ok()) return calls.status();
  auto bare = std::make_unique<Bare>(**driver, *calls, *device);
  if (absl::Status status = bare->Begin(); !status.ok()) return status;
  return bare;
}

#else

absl::StatusOr<std::unique_ptr<BareCuda>> BareCuda::On(const std::string&) {
  return CudaDriver::Get().status();
}

#endif

}  // namespace gpumem::bench
