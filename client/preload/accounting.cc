// SPDX-License-Identifier: Apache-2.0
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "client/preload/accountant.h"
#include "client/preload/accounting.h"
#include "client/preload/books.h"
#include "client/preload/brokered.h"
#include "client/preload/brokered/pool.h"
#include "client/preload/credit.h"
#include "client/preload/elf.h"
#include "client/preload/gate.h"
#include "client/preload/lock.h"
#include "client/preload/nvml.h"
#include "client/preload/pool.h"
#include "client/preload/vmm/brokered_vmm.h"

namespace gpumem::preload {
namespace {

constexpr const char kPlugin[] = "libgpumem-accountant.so";

enum class State { kClosed, kOpen, kRefusing, kForked };

struct Device {
  GpumemDeviceId id;
  Credit credit;
  // The plug-in has said so once: nothing is charged any more.
  std::atomic<bool> unlimited{false};
  Mutex context_mutex;
  std::atomic<bool> has_context{false};
  uint64_t context = 0;  // its reservation, or 0 where none is accounted
  GpumemBrokeredDevice* brokered = nullptr;
};

std::atomic<State> g_state{State::kClosed};
Mutex g_open_mutex;
Mutex g_plugin_mutex;
bool g_plugin_tried = false;                     // under g_plugin_mutex
const GpumemAccountant* g_accountant = nullptr;  // then constant
std::atomic<const GpumemBroker*> g_broker{nullptr};
Device g_devices[kMaxDevices];
int g_device_count = 0;

Answer Acquire(void* self, uint64_t bytes, bool may_wait, uint64_t* id) {
  Device* device = static_cast<Device*>(self);
  Answer answer = static_cast<Answer>(g_accountant->acquire(&device->id, bytes, may_wait, id));
  if (answer == Answer::kUnlimited) device->unlimited.store(true, std::memory_order_relaxed);
  return answer;
}

void Release(void*, uint64_t id) { g_accountant->release(id); }

// Chooses the plug-in: the one that the environment names, or the one beside this library.
void* OpenPlugin() {
  const char* path = secure_getenv("GPUMEM_PRELOAD_ACCOUNTANT");
  if (path != nullptr && *path != '\0') return OpenLibrary(path, RTLD_NOW | RTLD_LOCAL);
  LoadedObject self;
  if (!FindObjectOf(reinterpret_cast<const void*>(&OpenPlugin), &self)) return nullptr;
  size_t folder = static_cast<size_t>(BaseName(self.path) - self.path);
  if (folder + sizeof(kPlugin) > sizeof(self.path)) return nullptr;
  memcpy(self.path + folder, kPlugin, sizeof(kPlugin));
  return OpenLibrary(self.path, RTLD_NOW | RTLD_LOCAL);
}

const GpumemAccountant* LoadAccountant() {
  void* plugin = OpenPlugin();
  auto search = reinterpret_cast<void* (*)(void*, const char*)>(RealDlsym());
  if (plugin == nullptr || search == nullptr) return nullptr;
  auto open =
      reinterpret_cast<decltype(&gpumem_accountant_open)>(search(plugin, "gpumem_accountant_open"));
  if (open == nullptr) return nullptr;
  const GpumemAccountant* accountant = open(GPUMEM_ACCOUNTANT_VERSION);
  if (accountant == nullptr || accountant->version != GPUMEM_ACCOUNTANT_VERSION ||
      accountant->size < sizeof(GpumemAccountant)) {
    return nullptr;
  }
  return accountant;
}

void ListDevices(const Driver& driver) {
  const char* text = secure_getenv("GPUMEM_PRELOAD_CHUNK");
  uint64_t chunk = text == nullptr ? 0 : strtoull(text, nullptr, 10);
  if (chunk == 0) chunk = Credit::kDefaultChunk;
  int count = 0;
  if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
  g_device_count = count < kMaxDevices ? count : kMaxDevices;
  for (int i = 0; i < g_device_count; ++i) {
    CUuuid uuid = {};
    if (driver.cuDeviceGetUuid_v2(&uuid, i) != CUDA_SUCCESS) driver.cuDeviceGetUuid(&uuid, i);
    memcpy(g_devices[i].id.bytes, uuid.bytes, sizeof(uuid.bytes));
    g_devices[i].credit.Init({&Acquire, &Release, &g_devices[i]}, chunk);
  }
}

int MakeRoom(const GpumemDeviceId* id) {
  for (int i = 0; i < g_device_count; ++i) {
    if (memcmp(g_devices[i].id.bytes, id->bytes, sizeof(id->bytes)) != 0) continue;
    Credit& credit = g_devices[i].credit;
    TrimDefaultPool(RealDriver(), i);
    const bool settled = SettleBooks(i);
    const uint64_t before = credit.shared_bytes() + credit.spare_bytes();
    credit.Trim();
    return settled || credit.shared_bytes() + credit.spare_bytes() < before;
  }
  return 0;
}

int Synchronize(const GpumemDeviceId* id) {
  const Driver& driver = RealDriver();
  uint64_t context = 0;
  int device = -1;
  return CurrentContext(driver, &context, &device) && PrimaryOf(device) == context &&
         device < g_device_count &&
         memcmp(g_devices[device].id.bytes, id->bytes, sizeof(id->bytes)) == 0 &&
         driver.cuCtxSynchronize() == CUDA_SUCCESS;
}

// Requires that the devices are listed.
void OpenBroker() {
  static constexpr GpumemPreload kPreload = {
      .close_gate = [](uint64_t timeout_ms) -> int { return CloseGate(timeout_ms); },
      .open_gate = &OpenGate,
      .own_thread =
          [] {
            PassGate();
            Entry::PassOn();
          },
      .gate_passes = &GatePasses,
      .synchronize = &Synchronize,
      .make_room = &MakeRoom,
      .synchronize_all = []() -> int { return SynchronizeContexts(RealDriver()) == CUDA_SUCCESS; },
      .detach_physical = &DetachPhysical,
      .attach_physical = &AttachPhysical,
  };
  if (g_accountant->broker == nullptr) return;
  const GpumemBroker* broker = g_accountant->broker(&kPreload);
  if (broker == nullptr) return;
  for (int i = 0; i < g_device_count; ++i) g_devices[i].brokered = broker->device(&g_devices[i].id);
  UseGate(broker->wanted);
  g_broker.store(broker, std::memory_order_release);
}

// In the child, locks that other threads held stay locked. The driver's and the plug-in's state is
// the parent's, and so are all reservations.
void AfterFork() {
  AbandonNvml();
  g_plugin_mutex.Reset();
  // Most programs have nothing to do with CUDA.
  if (!AbandonDriver() && !g_plugin_tried) return;
  g_open_mutex.Reset();
  if (g_plugin_tried) {
    g_state.store(State::kForked);
    g_accountant = nullptr;
    g_broker.store(nullptr);
  }
  for (Device& device : g_devices) {
    device.credit.Abandon();
    device.context_mutex.Reset();
    device.has_context.store(false);
    device.context = 0;
  }
  AbandonBooks();
}

__attribute__((constructor)) void WatchForks() { pthread_atfork(nullptr, nullptr, &AfterFork); }

void Complain() {
  static constexpr char kText[] =
      "libgpumem-preload: no connection to the accounting of device memory; every request for "
      "device memory is refused\n";
  if (write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) return;
}

// Loads the plug-in at the first call. Null if there is none.
const GpumemAccountant* OpenAccountant() {
  MutexLock lock(&g_plugin_mutex);
  if (g_plugin_tried) return g_accountant;
  g_plugin_tried = true;
  g_accountant = LoadAccountant();
  if (g_accountant == nullptr) Complain();
  return g_accountant;
}

State Open(const Driver& driver) {
  State state = g_state.load(std::memory_order_acquire);
  if (state != State::kClosed) return state;
  int count = 0;
  // Before cuInit() nothing is decided: the driver refuses the call by itself.
  if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) return State::kClosed;
  MutexLock lock(&g_open_mutex);
  state = g_state.load(std::memory_order_acquire);
  if (state != State::kClosed) return state;
  state = OpenAccountant() == nullptr ? State::kRefusing : State::kOpen;
  ListDevices(driver);
  if (state == State::kOpen) OpenBroker();
  g_state.store(state, std::memory_order_release);
  return state;
}

CUresult ResultOf(Answer answer) {
  switch (answer) {
    case Answer::kOk:
    case Answer::kUnlimited:
      return CUDA_SUCCESS;
    case Answer::kNoMemory:
    case Answer::kGone:
      break;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Returns the device to charge, or null with what to answer instead.
Device* DeviceToCharge(int device, CUresult* result) {
  State state = g_state.load(std::memory_order_acquire);
  if (state == State::kClosed) state = Open(RealDriver());
  *result = CUDA_SUCCESS;  // the driver refuses the call by itself
  if (state == State::kClosed) return nullptr;
  if (state == State::kOpen && device >= 0 && device < g_device_count) {
    bool unlimited = g_devices[device].unlimited.load(std::memory_order_relaxed);
    return unlimited ? nullptr : &g_devices[device];
  }
  if (state == State::kRefusing) *result = CUDA_ERROR_OUT_OF_MEMORY;
  if (state == State::kForked) *result = CUDA_ERROR_NOT_INITIALIZED;
  return nullptr;
}

}  // namespace

uint64_t ChargedSize(uint64_t bytes) {
  uint64_t unit = bytes < (uint64_t{1} << 20) ? Credit::kUnit : Credit::kLargePage;
  uint64_t rounded = (bytes + unit - 1) / unit * unit;
  return rounded < bytes ? bytes : rounded;
}

CUresult OpenAccounting(int device) {
  CUresult result;
  DeviceToCharge(device, &result);
  return result;
}

CUresult Reserve(int device, uint64_t bytes, Charge* charge) {
  *charge = Charge();
  CUresult result;
  Device* owner = DeviceToCharge(device, &result);
  if (owner == nullptr) return result;
  uint64_t id = 0;
  Answer answer = owner->credit.Take(bytes, &id);
  if (answer == Answer::kNoMemory && SettleBooks(device)) answer = owner->credit.Take(bytes, &id);
  if (answer == Answer::kNoMemory) {
    id = 0;
    TrimBrokered(device);
    answer = owner->credit.TakeWaiting(bytes);
  }
  if (answer == Answer::kOk) *charge = {bytes, id, device};
  return ResultOf(answer);
}

void Refund(const Charge& charge) {
  if (charge.device < 0 || g_state.load(std::memory_order_acquire) != State::kOpen) return;
  g_devices[charge.device].credit.Give(charge.bytes, charge.reservation);
}

CUresult ReserveShared(int device, uint64_t bytes) {
  CUresult result;
  Device* owner = DeviceToCharge(device, &result);
  if (owner == nullptr || bytes == 0) return result;
  return ResultOf(owner->credit.TakeShared(bytes));
}

CUresult ReserveWaiting(int device, uint64_t bytes) {
  CUresult result;
  Device* owner = DeviceToCharge(device, &result);
  if (owner == nullptr || bytes == 0) return result;
  TrimBrokered(device);
  return ResultOf(owner->credit.TakeWaiting(bytes));
}

void RefundShared(int device, uint64_t bytes) {
  if (bytes == 0 || g_state.load(std::memory_order_acquire) != State::kOpen) return;
  if (g_devices[device].unlimited.load(std::memory_order_relaxed)) return;
  g_devices[device].credit.GiveShared(bytes);
}

void ChargeAnyway(int device, uint64_t bytes) {
  CUresult result;
  Device* owner = DeviceToCharge(device, &result);
  if (owner != nullptr) owner->credit.Owe(bytes);
}

CUresult EnsureContext(int device) {
  CUresult result;
  Device* owner = DeviceToCharge(device, &result);
  if (owner == nullptr || owner->has_context.load(std::memory_order_acquire)) return result;
  MutexLock lock(&owner->context_mutex);
  if (owner->has_context.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  uint64_t id = 0;
  Answer answer = static_cast<Answer>(g_accountant->acquire_context(&owner->id, &id));
  if (answer == Answer::kUnlimited) owner->unlimited.store(true, std::memory_order_relaxed);
  if (answer != Answer::kOk) return ResultOf(answer);
  owner->context = id;
  owner->has_context.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

void RefundContext(int device) {
  if (g_state.load(std::memory_order_acquire) != State::kOpen) return;
  if (device < 0 || device >= g_device_count) return;
  Device& owner = g_devices[device];
  MutexLock lock(&owner.context_mutex);
  if (!owner.has_context.exchange(false)) return;
  g_accountant->release(owner.context);
}

const GpumemBroker* Broker() { return g_broker.load(std::memory_order_acquire); }

GpumemBrokeredDevice* BrokeredDevice(int device) {
  if (Broker() == nullptr || device < 0 || device >= g_device_count) return nullptr;
  return g_devices[device].brokered;
}

int DeviceCount() { return g_device_count; }

bool LimitOf(int device, uint64_t* limit, uint64_t* free_bytes) {
  CUresult result;
  Device* owner = DeviceToCharge(device, &result);
  if (owner == nullptr) return false;
  if (g_accountant->info(&owner->id, limit, free_bytes) != GPUMEM_ACCOUNTANT_OK) return false;
  // What the process has reserved and not used is free to it.
  int64_t credit = owner->credit.available();
  uint64_t more = (credit > 0 ? static_cast<uint64_t>(credit) : 0) + owner->credit.spare_bytes() +
                  UnusedBrokered(device);
  uint64_t less = credit < 0 ? static_cast<uint64_t>(-credit) : 0;
  *free_bytes = *free_bytes > UINT64_MAX - more ? UINT64_MAX : *free_bytes + more;
  *free_bytes = *free_bytes > less ? *free_bytes - less : 0;
  return true;
}

// True for nvidia-smi, and where the variable says so.
static bool LooksWithoutCuda() {
  const char* const asked = getenv("GPUMEM_PRELOAD_NVML");
  return strcmp(program_invocation_short_name, "nvidia-smi") == 0 ||
         (asked != nullptr && *asked == '1');
}

int DeviceInUse(const unsigned char (&uuid)[16]) {
  if (g_state.load(std::memory_order_acquire) != State::kOpen) return -1;
  for (int i = 0; i < g_device_count; ++i) {
    if (memcmp(g_devices[i].id.bytes, uuid, sizeof(uuid)) == 0) return i;
  }
  return -1;
}

bool LimitOfUuid(const unsigned char (&uuid)[16], uint64_t* limit, uint64_t* free_bytes) {
  // With CUDA in use, the device's credit counts as free.
  if (int device = DeviceInUse(uuid); device >= 0) return LimitOf(device, limit, free_bytes);
  // The plug-in has threads, and a child after fork() cannot use it. A program that looks at NVML
  // before it forks workers which use CUDA must not open it.
  if (!LooksWithoutCuda()) return false;
  const GpumemAccountant* accountant = OpenAccountant();
  if (accountant == nullptr) return false;
  GpumemDeviceId id;
  memcpy(id.bytes, uuid, sizeof(uuid));
  return accountant->info(&id, limit, free_bytes) == GPUMEM_ACCOUNTANT_OK;
}

}  // namespace gpumem::preload

#endif  // GPUMEM_PRELOAD_BUILT
