// SPDX-License-Identifier: Apache-2.0
// The preload's plug-in (client/preload/accountant.h): charges what the process allocates to its
// tenant, as leases of kind driver.
//
// It uses the C functions of libgpumem.so alone, so that the program's own C++ libraries meet no
// second copy of ours. Environment (docs/reference/environment.md):
//   GPUMEM_PRELOAD_WAIT_MS   how long a request that is refused at last waits in the daemon's queue
//   GPUMEM_PRELOAD_CONTEXT   bytes that are reserved for a CUDA context before it is made
#include "client/preload/accountant.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/preload/accountant/broker.h"
#include "gpumem/gpumem.h"

namespace gpumem::preload {
namespace {

// A context takes 518 to 528 MiB of an H100 or H200 (driver 580.159). What it takes beyond this,
// the daemon learns from the driver and charges afterwards, also above the limit. With a smaller
// figure a tenant at its limit would always end up above it.
constexpr uint64_t kContextBytes = uint64_t{544} << 20;
// Where the daemon offers no page: for how long an answer about free memory holds, unless this
// process reserves or releases.
constexpr absl::Duration kInfoHolds = absl::Milliseconds(5);
constexpr uint64_t kCallTimeoutMs = 30'000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// Returns the 32 hexadecimal digits of a device's name: "GPU-1b2c…" without prefix and dashes.
std::string DigitsOf(absl::string_view uuid) {
  const size_t dash = uuid.find('-');
  std::string digits;
  for (const char c : uuid.substr(dash == absl::string_view::npos ? 0 : dash + 1)) {
    if (c != '-') digits.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
  }
  return digits;
}

std::string DigitsOf(const GpumemDeviceId& device) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(device.bytes), sizeof(device.bytes)));
}

// The session of this process. Never destroyed: threads of the program may allocate until the end.
class Session {
 public:
  // Returns null without a daemon, or where its rules refuse this process. Says why on stderr.
  static Session* Open() {
    const gpumem_connect_options options = {.struct_size = sizeof(options)};
    gpumem_client* client = nullptr;
    if (gpumem_client_connect(&options, &client) != GPUMEM_OK) {
      std::fprintf(stderr, "gpumem: %s; this process gets no GPU memory\n", gpumem_last_error());
      return nullptr;
    }
    auto* const session = new Session(client);
    const bool read = session->ReadDevices();
    if (read && !session->uuids_.empty()) return session;
    std::fprintf(
        stderr, "gpumem: %s; this process gets no GPU memory\n",
        read ? "the daemon is older than charges for programs like this" : gpumem_last_error());
    delete session;
    gpumem_client_destroy(client);
    return nullptr;
  }

  int Acquire(const GpumemDeviceId& device, uint64_t bytes, bool may_wait, uint64_t* id) {
    const std::string* const uuid = Find(device);
    if (uuid == nullptr) {
      if (!told_foreign_.exchange(true)) {
        std::fprintf(stderr, "gpumem: the daemon does not serve GPU %s: it is not limited\n",
                     DigitsOf(device).c_str());
      }
      return GPUMEM_ACCOUNTANT_UNLIMITED;
    }
    gpumem_acquire_options options = {.struct_size = sizeof(options)};
    options.bytes = bytes;
    options.device = uuid->c_str();
    options.kind = GPUMEM_KIND_DRIVER;
    options.timeout_ms = kCallTimeoutMs;
    options.wait_ms = may_wait ? wait_ms_ : 0;
    gpumem_segment* segment = nullptr;
    const int status = gpumem_client_acquire(client_, &options, &segment);
    if (status == GPUMEM_RESOURCE_EXHAUSTED || status == GPUMEM_INVALID_ARGUMENT)
      return GPUMEM_ACCOUNTANT_NO_MEMORY;  // the latter: more than the device has
    if (status != GPUMEM_OK) {
      TellOnce(gpumem_last_error());
      return GPUMEM_ACCOUNTANT_GONE;
    }
    Forget();
    // The handle's address is the id.
    *id = reinterpret_cast<uintptr_t>(segment);
    return GPUMEM_ACCOUNTANT_OK;
  }

  void Release(uint64_t id) {
    // On an error the lease ends with the next daemon's reconciliation, or with the process.
    (void)gpumem_segment_release_async(
        reinterpret_cast<gpumem_segment*>(static_cast<uintptr_t>(id)));
    Forget();
  }

  int AcquireContext(const GpumemDeviceId& device, uint64_t* id) {
    // 0 bytes cannot be acquired; the least is a granule of the device.
    return Acquire(device, std::max<uint64_t>(context_bytes_, 512), true, id);
  }

  int Info(const GpumemDeviceId& device, uint64_t* limit, uint64_t* free_bytes) {
    const std::string* const uuid = FindFast(device);
    if (uuid == nullptr) return GPUMEM_ACCOUNTANT_UNLIMITED;
    if (!has_page_.load(std::memory_order_relaxed)) {
      absl::MutexLock lock(&mutex_);
      const auto it = usages_.find(*uuid);
      if (!stale_ && it != usages_.end() && absl::Now() - it->second.asked < kInfoHolds) {
        *limit = it->second.limit;
        *free_bytes = it->second.free;
        return GPUMEM_ACCOUNTANT_OK;
      }
    }
    return Ask(*uuid, limit, free_bytes);
  }

  // Returns null in account mode.
  const GpumemBroker* Broker(const GpumemPreload& preload) const {
    if (!IsBrokered()) return nullptr;
    return StartBroker(
        client_, wait_ms_, [this](const GpumemDeviceId& id) { return FindFast(id); }, preload);
  }

 private:
  struct Usage {
    uint64_t limit = 0, free = 0;
    absl::Time asked = absl::InfinitePast();
  };

  explicit Session(gpumem_client* client)
      : client_(client),
        wait_ms_(FromEnvironment("GPUMEM_PRELOAD_WAIT_MS", 0)),
        context_bytes_(FromEnvironment("GPUMEM_PRELOAD_CONTEXT", kContextBytes)) {}

  // Reads which devices charge memory of kind driver.
  bool ReadDevices() {
    gpumem_device_list* devices = nullptr;
    size_t count = 0;
    if (gpumem_client_list_devices(client_, &devices, &count) != GPUMEM_OK) return false;
    for (size_t i = 0; i < count; ++i) {
      gpumem_device device = {.struct_size = sizeof(device)};
      if (gpumem_device_list_get(devices, i, &device) != GPUMEM_OK) continue;
      for (size_t kind = 0; kind < device.kind_count; ++kind) {
        if (device.kinds[kind] == GPUMEM_KIND_DRIVER) uuids_[DigitsOf(device.uuid)] = device.uuid;
      }
    }
    gpumem_device_list_destroy(devices);
    for (const auto& [digits, uuid] : uuids_) {
      GpumemDeviceId id = {};
      const std::string bytes = absl::HexStringToBytes(digits);
      if (bytes.size() != sizeof(id.bytes)) continue;
      std::memcpy(id.bytes, bytes.data(), sizeof(id.bytes));
      known_.emplace_back(id, uuid);
    }
    return true;
  }

  const std::string* Find(const GpumemDeviceId& device) const {
    const auto it = uuids_.find(DigitsOf(device));
    return it == uuids_.end() ? nullptr : &it->second;
  }

  bool IsBrokered() const {
    gpumem_usage* usage = nullptr;
    if (gpumem_client_get_usage(client_, &usage) != GPUMEM_OK) return false;
    gpumem_tenant_usage tenant = {.struct_size = sizeof(tenant)};
    const bool brokered = gpumem_usage_get_tenant(usage, &tenant) == GPUMEM_OK &&
                          tenant.preload_mode == GPUMEM_PRELOAD_BROKER;
    gpumem_usage_destroy(usage);
    return brokered;
  }

  // As Find, without a string to be made.
  const std::string* FindFast(const GpumemDeviceId& device) const {
    for (const auto& [id, uuid] : known_) {
      if (std::memcmp(id.bytes, device.bytes, sizeof(id.bytes)) == 0) return &uuid;
    }
    return nullptr;
  }

  // Reads the daemon's page, or calls it where there is none.
  int Ask(const std::string& uuid, uint64_t* limit, uint64_t* free_bytes) {
    // Before the call: what this process reserves during it makes the answer stale again.
    const bool stale = stale_.load(std::memory_order_relaxed) && stale_.exchange(false);
    gpumem_memory memory = {.struct_size = sizeof(memory)};
    const int status = gpumem_client_get_memory(client_, uuid.c_str(), &memory);
    if (status != GPUMEM_OK) {
      stale_ = true;
      return status == GPUMEM_NOT_FOUND ? GPUMEM_ACCOUNTANT_UNLIMITED : GPUMEM_ACCOUNTANT_GONE;
    }
    *limit = memory.limit_bytes;
    *free_bytes = memory.free_bytes;
    const bool from_page = memory.from_page != 0;
    if (has_page_.load(std::memory_order_relaxed) != from_page) has_page_ = from_page;
    if (from_page) return GPUMEM_ACCOUNTANT_OK;
    absl::MutexLock lock(&mutex_);
    if (stale) usages_.clear();
    usages_[uuid] = {.limit = *limit, .free = *free_bytes, .asked = absl::Now()};
    return GPUMEM_ACCOUNTANT_OK;
  }

  void Forget() { stale_ = true; }

  void TellOnce(const char* what) {
    if (told_.exchange(true)) return;
    std::fprintf(stderr, "gpumem: %s; this process gets no more GPU memory until then\n", what);
  }

  gpumem_client* const client_;
  const uint64_t wait_ms_;
  const uint64_t context_bytes_;
  std::unordered_map<std::string, std::string> uuids_;  // by their digits
  std::vector<std::pair<GpumemDeviceId, std::string>> known_;
  std::atomic<bool> told_ = false;
  std::atomic<bool> told_foreign_ = false;
  std::atomic<bool> stale_ = true;     // this process has reserved or released since
  std::atomic<bool> has_page_ = true;  // the daemon offers its page, as far as is known
  absl::Mutex mutex_;
  std::unordered_map<std::string, Usage> usages_ ABSL_GUARDED_BY(mutex_);  // by UUID
};

Session* g_session = nullptr;

}  // namespace
}  // namespace gpumem::preload

extern "C" const GpumemAccountant* gpumem_accountant_open(uint32_t version) {
  using gpumem::preload::g_session;
  using gpumem::preload::Session;
  if (version != GPUMEM_ACCOUNTANT_VERSION) return nullptr;
  g_session = Session::Open();
  if (g_session == nullptr) return nullptr;
  static constexpr GpumemAccountant kAccountant = {
      .version = GPUMEM_ACCOUNTANT_VERSION,
      .size = sizeof(GpumemAccountant),
      .acquire = [](const GpumemDeviceId* device, uint64_t bytes, int may_wait,
                    uint64_t* id) { return g_session->Acquire(*device, bytes, may_wait != 0, id); },
      .release = [](uint64_t id) { g_session->Release(id); },
      .acquire_context = [](const GpumemDeviceId* device,
                            uint64_t* id) { return g_session->AcquireContext(*device, id); },
      .info = [](const GpumemDeviceId* device, uint64_t* limit,
                 uint64_t* free_bytes) { return g_session->Info(*device, limit, free_bytes); },
      .broker = [](const GpumemPreload* preload) { return g_session->Broker(*preload); },
  };
  return &kAccountant;
}
