// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu_work.h"

#if GPUMEM_WITH_CUDA

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/expect_status.h"

namespace gpumem::testing {
namespace {

// One thread that waits for a word of the host to be other than 0.
constexpr char kHold[] = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry hold(.param .u64 word) {
  .reg .u64 %address;
  .reg .u32 %value;
  .reg .pred %closed;
  ld.param.u64 %address, [word];
again:
  ld.volatile.u32 %value, [%address];
  setp.eq.u32 %closed, %value, 0;
  @%closed bra again;
  ret;
}
)";

CUstream Of(Stream stream) { return static_cast<CUstream>(stream); }
CUdeviceptr AddressOf(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

template <typename Work>
void GpuWork::Do(const char* what, Work work) const {
  EXPECT_OK(context_->Run(what, std::move(work)));
}

GpuWork::GpuWork(const std::string& device_uuid)
    : driver_(*CudaDriver::Get().value()),
      context_(CudaContext::Retain(driver_, driver_.FindDevice(device_uuid).value()).value()) {
  Do("cuModuleLoadData", [&] { return driver_.cuModuleLoadData(&module_, kHold); });
  Do("cuModuleGetFunction", [&] { return driver_.cuModuleGetFunction(&hold_, module_, "hold"); });
  hold_words_ = NewWords(kMostHolds);
  // The driver loads a call's code at the first call, and may wait for all streams then. So this
  // happens while no stream is held.
  void* const memory = NewMemory(16 << 20);
  uint32_t* const word = NewWords(1);
  void* const stream = NewStream();
  void* const other = NewStream();
  for (uint64_t bytes : {4, 512, 64 << 10, 2 << 20, 16 << 20}) Set(memory, 0, bytes, stream);
  Set(word, 0, sizeof(*word), stream);
  CopyWord(word, memory, stream);
  MakeWait(other, stream);
  {
    Hold hold(*this, other);
    hold.Release();
  }
  SynchronizeAll();
  // Few streams have a queue of the GPU each; more of them would wait for each other's work.
  EndStream(stream);
  EndStream(other);
}

GpuWork::~GpuWork() {
  SynchronizeAll();
  absl::MutexLock lock(&mutex_);
  const auto end_all = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    CUresult first = driver_.cuModuleUnload(module_);
    const auto note = [&first](CUresult result) {
      if (first == CUDA_SUCCESS) first = result;
    };
    for (CUstream stream : streams_) note(driver_.cuStreamDestroy_v2(stream));
    for (uint32_t* words : words_) note(driver_.cuMemFreeHost(words));
    for (CUdeviceptr memory : memory_) note(driver_.cuMemFree_v2(memory));
    return first;
  };
  Do("ending streams and memory", end_all);
}

Stream GpuWork::NewStream(unsigned flags) {
  CUstream stream = nullptr;
  Do("cuStreamCreate", [&] { return driver_.cuStreamCreate(&stream, flags); });
  absl::MutexLock lock(&mutex_);
  streams_.push_back(stream);
  return stream;
}

void GpuWork::EndStream(Stream stream) {
  Do("cuStreamDestroy", [&] { return driver_.cuStreamDestroy_v2(Of(stream)); });
  absl::MutexLock lock(&mutex_);
  streams_.erase(std::find(streams_.begin(), streams_.end(), Of(stream)));
}

uint32_t* GpuWork::NewWords(size_t count) {
  void* words = nullptr;
  Do("cuMemHostAlloc", [&] {
    return driver_.cuMemHostAlloc(&words, count * sizeof(uint32_t), CU_MEMHOSTALLOC_PORTABLE);
  });
  if (words == nullptr) return nullptr;
  memset(words, 0, count * sizeof(uint32_t));
  absl::MutexLock lock(&mutex_);
  words_.push_back(static_cast<uint32_t*>(words));
  return words_.back();
}

void* GpuWork::NewMemory(uint64_t bytes) {
  CUdeviceptr memory = 0;
  Do("cuMemAlloc", [&] { return driver_.cuMemAlloc_v2(&memory, bytes); });
  absl::MutexLock lock(&mutex_);
  memory_.push_back(memory);
  return reinterpret_cast<void*>(memory);
}

void GpuWork::Set(void* data, uint32_t value, uint64_t bytes, Stream stream) {
  Do("cuMemsetD32Async", [&] {
    return driver_.cuMemsetD32Async(AddressOf(data), value, bytes / sizeof(value), Of(stream));
  });
}

void GpuWork::CopyWord(uint32_t* to, const void* from, Stream stream) {
  Do("cuMemcpyDtoHAsync",
     [&] { return driver_.cuMemcpyDtoHAsync_v2(to, AddressOf(from), sizeof(*to), Of(stream)); });
}

void GpuWork::MakeWait(Stream waiting, Stream awaited) {
  Do("an event between two streams", [&] {
    CUevent event = nullptr;
    CUresult result = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) return result;
    result = driver_.cuEventRecord(event, Of(awaited));
    if (result == CUDA_SUCCESS) result = driver_.cuStreamWaitEvent(Of(waiting), event, 0);
    // It lives on in the driver until it has happened.
    const CUresult destroyed = driver_.cuEventDestroy_v2(event);
    return result != CUDA_SUCCESS ? result : destroyed;
  });
}

bool GpuWork::IsDone(Stream stream) {
  bool done = true;
  Do("cuStreamQuery", [&] {
    const CUresult result = driver_.cuStreamQuery(Of(stream));
    if (result != CUDA_ERROR_NOT_READY) return result;
    done = false;
    return CUDA_SUCCESS;
  });
  return done;
}

void GpuWork::Synchronize(Stream stream) {
  Do("cuStreamSynchronize", [&] { return driver_.cuStreamSynchronize(Of(stream)); });
}

void GpuWork::SynchronizeAll() {
  Do("cuCtxSynchronize", [&] { return driver_.cuCtxSynchronize(); });
}

absl::Status GpuWork::Check(const void* data, uint32_t value, uint64_t bytes) {
  std::vector<uint32_t> words(bytes / sizeof(value));
  absl::Status copied = context_->Run("cuMemcpyDtoH", [&] {
    return driver_.cuMemcpyDtoH_v2(words.data(), AddressOf(data), bytes);
  });
  if (!copied.ok()) return copied;
  const auto other =
      std::find_if(words.begin(), words.end(), [value](uint32_t word) { return word != value; });
  if (other == words.end()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("word ", other - words.begin(), " is ", *other, ", not ", value));
}

void GpuWork::BeginCapture(Stream stream, CUstreamCaptureMode mode) {
  Do("cuStreamBeginCapture", [&] { return driver_.cuStreamBeginCapture_v2(Of(stream), mode); });
}

Hold::Hold(GpuWork& gpu, Stream stream) : word_(gpu.hold_words_ + gpu.holds_++) {
  EXPECT_LE(gpu.holds_, GpuWork::kMostHolds);
  uint32_t* word = word_;
  void* parameters[] = {&word};
  gpu.Do("cuLaunchKernel", [&] {
    return gpu.driver_.cuLaunchKernel(gpu.hold_, 1, 1, 1, 1, 1, 1, 0, Of(stream), parameters,
                                      nullptr);
  });
  watchdog_ = std::thread([this] {
    if (released_.WaitForNotificationWithTimeout(absl::Seconds(20))) return;
    ADD_FAILURE() << "something waited for work that is held back";
    Open();
  });
}

Hold::~Hold() {
  Release();
  watchdog_.join();
}

void Hold::Release() {
  if (released_.HasBeenNotified()) return;
  Open();
  released_.Notify();
}

void Hold::Open() { std::atomic_ref<uint32_t>(*word_).store(1, std::memory_order_release); }

Graph::Graph(GpuWork& gpu, Stream stream) : gpu_(gpu) {
  const CudaDriver& driver = gpu_.driver_;
  status_ = gpu_.context_->Run("cuStreamEndCapture",
                               [&] { return driver.cuStreamEndCapture(Of(stream), &graph_); });
  if (!status_.ok()) return;
  status_ = gpu_.context_->Run("cuGraphInstantiate", [&] {
    return driver.cuGraphInstantiateWithFlags(&executable_, graph_, 0);
  });
}

Graph::~Graph() {
  gpu_.Do("ending a graph", [&] {
    CUresult result = CUDA_SUCCESS;
    if (executable_ != nullptr) result = gpu_.driver_.cuGraphExecDestroy(executable_);
    if (graph_ == nullptr) return result;
    const CUresult destroyed = gpu_.driver_.cuGraphDestroy(graph_);
    return result != CUDA_SUCCESS ? result : destroyed;
  });
}

void Graph::Launch(Stream stream) {
  if (executable_ == nullptr) return;
  gpu_.Do("cuGraphLaunch", [&] { return gpu_.driver_.cuGraphLaunch(executable_, Of(stream)); });
}

}  // namespace gpumem::testing

#endif
