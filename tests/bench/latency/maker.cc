// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/latency/maker.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/cuda/device_copy.h"
#include "common/cuda/driver.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "tests/bench/bed.h"
#include "tests/bench/latency/latency.h"

namespace gpumem::bench {
namespace {

using testing::Child;
using testing::Hear;
using testing::kParentChannel;
using testing::Say;

// The steps of MakeCudaMemory (daemon/device/cuda_memory.h), apart.
struct Made {
  UniqueFd fd;
  absl::Duration create, export_, release;
};
using Make = std::function<Made(uint64_t bytes)>;

Made MakeHost(uint64_t bytes) {
  Made made;
  UniqueFd fd;
  made.create = Time([&] {
    fd = UniqueFd(memfd_create("maker", MFD_CLOEXEC));
    OrDie(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 ? absl::OkStatus()
                                                              : absl::InternalError("ftruncate"),
          "create");
  });
  made.export_ = Time([&] { made.fd = UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); });
  made.release = Time([&] { fd.reset(); });
  return made;
}

#if GPUMEM_WITH_CUDA
Made MakeCuda(const CudaDriver& driver, CUdevice device, uint64_t bytes) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int capable = 0;
  driver.cuDeviceGetAttribute(&capable, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                              device);
  properties.allocFlags.gpuDirectRDMACapable = capable != 0 ? 1 : 0;
  const auto check = [&](CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) OrDie(driver.Error(result, call), call);
  };
  Made made;
  CUmemGenericAllocationHandle handle = 0;
  made.create =
      Time([&] { check(driver.cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate"); });
  int fd = -1;
  made.export_ = Time([&] {
    check(driver.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                              0),
          "cuMemExportToShareableHandle");
  });
  made.fd = UniqueFd(fd);
  made.release = Time([&] { check(driver.cuMemRelease(handle), "cuMemRelease"); });
  return made;
}
#endif

Make MakeFor(bool cuda, const std::string& uuid) {
#if GPUMEM_WITH_CUDA
  if (cuda) {
    const CudaDriver* const driver = OrDie(CudaDriver::Get(), "driver");
    const CUdevice device = OrDie(driver->FindDevice(uuid), "device");
    return [driver, device](uint64_t bytes) { return MakeCuda(*driver, device, bytes); };
  }
#endif
  if (cuda) OrDie(absl::UnavailableError("built without CUDA"), uuid);
  return MakeHost;
}

void Spin(absl::Duration time) {
  const absl::Time end = absl::Now() + time;
  while (absl::Now() < end) {
  }
}

// The driver clears 1 GiB in some 15 ms at most (an H200, driver 580: 70 GiB in less than 1 s).
void LetClear(uint64_t freed_bytes, bool cuda) {
  if (!cuda) return;
  absl::SleepFor(absl::Milliseconds(50) +
                 absl::Milliseconds(20) * (static_cast<double>(freed_bytes) / kGiB));
  Spin(absl::Milliseconds(2));  // wakes the CPU
}

// One experiment; adds its times.
void TryOnce(const Conditions& it, const Make& make, bool cuda, Steps& steps) {
  std::vector<UniqueFd> before;
  for (int i = 0; i < it.freed; ++i) before.push_back(make(it.freed_bytes).fd);
  LetClear(it.bytes, cuda);  // the last experiment's
  const auto free = [&] { steps.free.Add(Time([&] { before.clear(); })); };
  std::atomic<bool> goes = false, freeing = false;
  std::thread freer;
  using Freer = Conditions::Freer;
  if (it.freer == Freer::kSelf) free();
  if (it.freer == Freer::kThread) std::thread(free).join();
  if (it.freer == Freer::kDuring) {
    freer = std::thread([&] {
      while (!goes) {
      }
      freeing = true;
      free();
    });
  }
  it.spins ? Spin(it.pause) : absl::SleepFor(it.pause);
  goes = true;
  while (it.freer == Freer::kDuring && !freeing) {
  }
  if (it.little) make(2 * kMiB).fd.reset();
  Made made;
  if (it.new_thread) {
    std::thread([&] { made = make(it.bytes); }).join();
  } else {
    made = make(it.bytes);
  }
  if (freer.joinable()) freer.join();
  steps.create.Add(made.create);
  steps.export_.Add(made.export_);
  steps.release.Add(made.release);
  made.fd.reset();
  LetClear(it.freed_bytes * static_cast<uint64_t>(it.freed), cuda);
}

// Sent as numbers, in this order.
std::string Encode(const Conditions& it, int times) {
  return absl::StrCat(it.bytes, " ", it.freed_bytes, " ", it.freed, " ", static_cast<int>(it.freer),
                      " ", absl::ToInt64Nanoseconds(it.pause), " ", it.spins ? 1 : 0, " ",
                      it.new_thread ? 1 : 0, " ", it.little ? 1 : 0, " ", times);
}

absl::StatusOr<std::vector<double>> Numbers(absl::string_view text) {
  std::vector<double> numbers;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!absl::SimpleAtod(word, &numbers.emplace_back())) return absl::InternalError(text);
  }
  return numbers;
}

}  // namespace

int RunMaker(const std::vector<std::string>& args) {
  const bool cuda = args.at(0) == "cuda";
  const std::string& uuid = args.at(1);
  const Make make = MakeFor(cuda, uuid);
  std::unique_ptr<DeviceCopier> context;
  if (cuda && args.at(2) == "context") context = OrDie(DeviceCopier::ForCuda(uuid), "context");
  while (true) {
    const absl::StatusOr<UnixMessage> order =
        ReceiveMessage(kParentChannel, absl::InfiniteFuture());
    if (!order.ok()) return 0;
    const std::vector<double> words = OrDie(Numbers(order->bytes), "order");
    if (words.size() != 9) return 2;
    const Conditions conditions = {.bytes = static_cast<uint64_t>(words[0]),
                                   .freed_bytes = static_cast<uint64_t>(words[1]),
                                   .freed = static_cast<int>(words[2]),
                                   .freer = static_cast<Conditions::Freer>(words[3]),
                                   .pause = absl::Nanoseconds(words[4]),
                                   .spins = words[5] != 0,
                                   .new_thread = words[6] != 0,
                                   .little = words[7] != 0};
    Steps steps;
    for (int i = 0; i < static_cast<int>(words[8]); ++i) TryOnce(conditions, make, cuda, steps);
    std::string answer;
    for (const Samples* each : {&steps.create, &steps.export_, &steps.release, &steps.free}) {
      absl::StrAppend(&answer, each->size(), " ");
      for (const double us : each->values()) absl::StrAppend(&answer, us, " ");
    }
    Say(kParentChannel, answer);
  }
}

Maker::Maker(bool with_context)
    : child_(Child::Self({"--role", "maker", OnGpu() ? "cuda" : "host", bed->device.uuid,
                          with_context ? "context" : "bare"})) {}

absl::StatusOr<Steps> Maker::Try(const Conditions& conditions, int times) {
  Say(child_.channel(), Encode(conditions, times));
  const std::string answer = Hear(child_.channel());
  const absl::StatusOr<std::vector<double>> words = Numbers(answer);
  if (!words.ok()) return words.status();
  Steps steps;
  size_t next = 0;
  for (Samples* each : {&steps.create, &steps.export_, &steps.release, &steps.free}) {
    if (next >= words->size()) return absl::InternalError(answer);
    const auto count = static_cast<size_t>((*words)[next++]);
    if (count > words->size() - next) return absl::InternalError(answer);
    for (size_t i = 0; i < count; ++i) each->AddValue((*words)[next++]);
  }
  return steps;
}

}  // namespace gpumem::bench
