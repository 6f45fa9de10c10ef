// SPDX-License-Identifier: Apache-2.0
#include "client/preload/accountant/broker.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/preload/accountant/blocks.h"
#include "client/preload/accountant/brokered_device.h"
#include "client/preload/accountant/physical.h"
#include "client/preload/accountant/suspender.h"
#include "client/preload/accountant/ticket_exchange.h"

namespace gpumem::preload {
namespace {

// CUDA's legacy default stream (driver_types.h). Stands for no stream at all.
void* const kIdleStream = reinterpret_cast<void*>(1);

// A block of another process, open in this one.
struct Opened {
  gpumem_shared_block* block = nullptr;
  uint64_t address = 0;
  int times = 0;
};

using HandleBytes = std::array<unsigned char, sizeof(GpumemIpcHandle)>;

HandleBytes BytesOf(const GpumemIpcHandle& handle) { return std::to_array(handle.bytes); }

// Never destroyed: threads of the program may use it until the end.
class MemoryBroker {
 public:
  MemoryBroker(gpumem_client* client, uint64_t wait_ms, FindDevice find,
               const GpumemPreload& preload)
      : client_(client),
        wait_ms_(wait_ms),
        find_(std::move(find)),
        preload_(preload),
        physical_(client, wait_ms, preload),
        suspender_(
            client, preload, [this] { return Pools(); }, &physical_) {}

  int Start() { return suspender_.Start(); }
  void Wanted() { suspender_.Wanted(); }
  PhysicalMemory& physical() { return physical_; }

  int CreatePhysical(const GpumemBrokeredDevice& device, uint64_t bytes, bool may_wait,
                     GpumemPhysical** physical, uint64_t* address) {
    const auto make_room = [&] {
      const bool made = preload_.make_room(&device.id) != 0;
      return TrimPools(device) || made;
    };
    const int answer = physical_.Create(device.uuid, bytes, may_wait, make_room, physical, address);
    if (answer == GPUMEM_ACCOUNTANT_GONE) Tell();
    return answer;
  }

  GpumemBrokeredDevice* Device(const GpumemDeviceId& id) {
    const std::string* const uuid = find_(id);
    if (uuid == nullptr) return nullptr;
    absl::MutexLock lock(&mutex_);
    GpumemBrokeredDevice*& device = devices_[*uuid];
    if (device == nullptr)
      device = new GpumemBrokeredDevice{.id = id, .uuid = *uuid, .preload = &preload_};
    return device;
  }

  void Prepare(GpumemBrokeredDevice* device, bool of_streams) {
    (void)(of_streams ? StreamPoolOf(device) : PoolOf(device));
  }

  int Allocate(GpumemBrokeredDevice* device, uint64_t bytes, uint64_t* address) {
    gpumem_pool* const pool = PoolOf(device);
    if (pool == nullptr) return GPUMEM_ACCOUNTANT_GONE;
    gpumem_block block = {};
    const int answer = AnswerOf(pool, [&] { return AllocateIdle(*device, pool, bytes, &block); });
    if (answer != GPUMEM_ACCOUNTANT_OK) return Told(answer);
    *address = reinterpret_cast<uintptr_t>(block.data);
    blocks_.Put(*address, {.bytes = bytes, .owner = device});
    return GPUMEM_ACCOUNTANT_OK;
  }

  int AllocateOnStream(GpumemBrokeredDevice* device, uint64_t bytes, void* stream,
                       uint64_t* address) {
    gpumem_pool* const pool = StreamPoolOf(device);
    if (pool == nullptr) return GPUMEM_ACCOUNTANT_GONE;
    void* data = nullptr;
    const int answer =
        AnswerOf(pool, [&] { return device->stream_memory.Allocate(pool, bytes, stream, &data); });
    if (answer == GPUMEM_ACCOUNTANT_UNLIMITED) return answer;  // the stream is being captured
    if (answer != GPUMEM_ACCOUNTANT_OK) return Told(answer);
    *address = reinterpret_cast<uintptr_t>(data);
    blocks_.Put(*address, {.bytes = bytes, .owner = device, .stream_ordered = true});
    return GPUMEM_ACCOUNTANT_OK;
  }

  bool Free(uint64_t address) {
    return Free(address, [](GpumemBrokeredDevice& device, const Blocks::Block& block, void* data) {
             gpumem_pool* const pool = PoolOfBlock(block);
             return !block.stream_ordered && device.preload->synchronize(&device.id) != 0
                        ? gpumem_pool_free_pointer(pool, data, kIdleStream)
                        : gpumem_pool_free_synchronized(pool, data);
           }) > 0;
  }

  int FreeOnStream(uint64_t address, void* stream) {
    return Free(address,
                [stream](GpumemBrokeredDevice& device, const Blocks::Block& block, void* data) {
                  if (!block.stream_ordered) device.ordered.store(true, std::memory_order_release);
                  return gpumem_pool_free_pointer(PoolOfBlock(block), data, stream);
                });
  }

  // `free` is called with the device, the block and its address. Returns 1, 0 if there is no block,
  // and -1 if `free` fails.
  template <typename FreeBlock>
  int Free(uint64_t address, FreeBlock free) {
    // Taken first: after the free, another thread may get the same address.
    const std::optional<Blocks::Block> block = blocks_.Take(address, /*owned=*/true);
    if (!block.has_value()) return 0;
    if (!block->stream_ordered) exchange_.Withdraw(address);
    void* const data = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
    auto* const device = static_cast<GpumemBrokeredDevice*>(block->owner);
    if (block->stream_ordered) device->stream_memory.CountFree(block->bytes);
    if (free(*device, *block, data) == GPUMEM_OK) return 1;
    if (block->stream_ordered) device->stream_memory.Count(block->bytes);
    blocks_.Put(address, *block);
    return -1;
  }

  void ForgetStream(void* stream) {
    // The pool would ask the driver about it later, which reads its memory.
    for (GpumemBrokeredDevice* const device : Devices()) {
      gpumem_pool* const pool = device->pool.load(std::memory_order_acquire);
      if (pool != nullptr && device->ordered.load(std::memory_order_acquire))
        (void)gpumem_pool_forget_stream(pool, stream);
      if (gpumem_pool* const ordered = device->stream_memory.pool())
        (void)gpumem_pool_forget_stream(ordered, stream);
    }
  }

  std::optional<Blocks::Found> Find(uint64_t address) const { return blocks_.Find(address); }

  bool Share(uint64_t base, GpumemIpcHandle* handle) {
    const std::optional<Blocks::Found> found = blocks_.Find(base);
    if (!found.has_value() || found->block.owner == nullptr || found->block.stream_ordered)
      return false;
    const gpumem_block block = {
        .data = reinterpret_cast<void*>(static_cast<uintptr_t>(found->base)),
        .bytes = found->block.bytes};
    auto* const device = static_cast<GpumemBrokeredDevice*>(found->block.owner);
    gpumem_pool* const pool = device->pool.load(std::memory_order_acquire);
    std::string ticket(1024, '\0');
    size_t length = 0;
    int status = gpumem_pool_share(pool, &block, ticket.data(), ticket.size(), &length);
    if (status == GPUMEM_OUT_OF_RANGE) {
      ticket.resize(length);
      status = gpumem_pool_share(pool, &block, ticket.data(), ticket.size(), &length);
    }
    if (status != GPUMEM_OK) return false;
    ticket.resize(length - 1);
    const absl::StatusOr<GpumemIpcHandle> offered = exchange_.Offer(base, ticket);
    if (offered.ok()) *handle = *offered;
    return offered.ok();
  }

  bool Open(const GpumemBrokeredDevice& device, const GpumemIpcHandle& handle, uint64_t* address) {
    const auto key = std::pair(BytesOf(handle), &device);
    const char* const user = device.uuid.c_str();
    gpumem_open_options options = {.struct_size = sizeof(options)};
    options.map_devices = &user;
    options.map_device_count = 1;
    absl::MutexLock lock(&opening_);
    Opened& opened = opened_[key];
    if (opened.times == 0) {
      gpumem_block block = {};
      const absl::StatusOr<std::string> ticket = TicketExchange::Fetch(handle);
      if (!ticket.ok() ||
          gpumem_client_open_block(client_, ticket->c_str(), &options, &opened.block) !=
              GPUMEM_OK ||
          gpumem_shared_block_get(opened.block, &block) != GPUMEM_OK) {
        opened_.erase(key);
        return false;
      }
      opened.address = reinterpret_cast<uintptr_t>(block.data);
      blocks_.Put(opened.address, {.bytes = block.bytes});
    }
    ++opened.times;
    *address = opened.address;
    return true;
  }

  bool Close(uint64_t address) {
    absl::MutexLock lock(&opening_);
    for (auto it = opened_.begin(); it != opened_.end(); ++it) {
      if (it->second.address != address) continue;
      if (--it->second.times > 0) return true;
      (void)blocks_.Take(address, /*owned=*/false);
      (void)gpumem_shared_block_destroy(it->second.block);
      opened_.erase(it);
      return true;
    }
    return false;
  }

  void Drop(GpumemBrokeredDevice* device) {
    absl::MutexLock lock(&device->mutex);
    gpumem_pool* const pools[] = {device->pool.exchange(nullptr), device->stream_memory.Take()};
    for (const auto& [base, block] : blocks_.TakeAll(device)) {
      (void)gpumem_pool_free_synchronized(pools[block.stream_ordered ? 1 : 0],
                                          reinterpret_cast<void*>(static_cast<uintptr_t>(base)));
    }
    for (gpumem_pool* const pool : pools) (void)gpumem_pool_destroy(pool);
  }

 private:
  // Allocates memory without pending work. While all memory that was freed was idle then, the
  // caches of threads, which belong to streams, can be those of one stream.
  static int AllocateIdle(const GpumemBrokeredDevice& device, gpumem_pool* pool, uint64_t bytes,
                          gpumem_block* block) {
    if (!device.ordered.load(std::memory_order_acquire)) {
      const int status = gpumem_pool_allocate(pool, bytes, kIdleStream, block);
      if (status != GPUMEM_OK || !device.ordered.load(std::memory_order_acquire)) return status;
      // Another thread has meanwhile freed memory on a stream, and this may be a part of it.
      (void)gpumem_pool_free(pool, block, kIdleStream);
    }
    return gpumem_pool_allocate_synchronized(pool, bytes, block);
  }

  gpumem_pool* PoolOf(GpumemBrokeredDevice* device) {
    gpumem_pool* pool = device->pool.load(std::memory_order_acquire);
    if (pool != nullptr) return pool;
    absl::MutexLock lock(&device->mutex);
    pool = device->pool.load(std::memory_order_relaxed);
    if (pool != nullptr) return pool;
    pool = Made(MakePool(client_, device, UsersOf(*device), wait_ms_, /*of_streams=*/false));
    device->pool.store(pool, std::memory_order_release);
    return pool;
  }

  gpumem_pool* StreamPoolOf(GpumemBrokeredDevice* device) {
    if (gpumem_pool* const pool = device->stream_memory.pool()) return pool;
    return device->stream_memory.PoolOf([&] {
      return Made(MakePool(client_, device, UsersOf(*device), wait_ms_, /*of_streams=*/true));
    });
  }

  // Returns the process's GPUs that can use a device's memory. Each may, as in a program that has
  // called cuCtxEnablePeerAccess() for all of its contexts.
  std::vector<std::string> UsersOf(const GpumemBrokeredDevice& home) {
    std::vector<std::string> users = {home.uuid};
    const std::vector<GpumemBrokeredDevice*> seen = Devices();
    if (seen.size() == 1) return users;
    for (std::string& uuid : WithPeerAccess(client_, home.uuid)) {
      const auto is = [&](const GpumemBrokeredDevice* device) { return device->uuid == uuid; };
      if (std::any_of(seen.begin(), seen.end(), is)) users.push_back(std::move(uuid));
    }
    return users;
  }

  gpumem_pool* Made(gpumem_pool* pool) {
    if (pool == nullptr) Tell();
    return pool;
  }

  std::vector<GpumemBrokeredDevice*> Devices() {
    std::vector<GpumemBrokeredDevice*> devices;
    absl::MutexLock lock(&mutex_);
    for (const auto& [uuid, device] : devices_) devices.push_back(device);
    return devices;
  }

  std::vector<gpumem_pool*> Pools() {
    std::vector<gpumem_pool*> pools;
    for (const GpumemBrokeredDevice* const device : Devices()) {
      for (gpumem_pool* const pool : PoolsOf(*device)) pools.push_back(pool);
    }
    return pools;
  }

  int Told(int answer) {
    if (answer == GPUMEM_ACCOUNTANT_GONE || answer == GPUMEM_ACCOUNTANT_UNLIMITED) Tell();
    return answer;
  }

  void Tell() {
    if (told_.exchange(true)) return;
    std::fprintf(stderr, "gpumem: %s\n", gpumem_last_error());
  }

  gpumem_client* const client_;
  const uint64_t wait_ms_;
  const FindDevice find_;
  const GpumemPreload preload_;
  PhysicalMemory physical_;
  Suspender suspender_;
  Blocks blocks_;
  TicketExchange exchange_;
  std::atomic<bool> told_ = false;
  absl::Mutex mutex_;
  std::map<std::string, GpumemBrokeredDevice*> devices_ ABSL_GUARDED_BY(mutex_);  // by UUID
  absl::Mutex opening_;  // held while others are asked
  // By handle, and the device that it was opened for.
  std::map<std::pair<HandleBytes, const GpumemBrokeredDevice*>, Opened> opened_
      ABSL_GUARDED_BY(opening_);
};

MemoryBroker* g_broker = nullptr;

constexpr GpumemStreamMemory kStreamTable = {
    .allocate =
        [](GpumemBrokeredDevice* device, uint64_t bytes, void* stream, uint64_t* address) {
          return g_broker->AllocateOnStream(device, bytes, stream, address);
        },
    .contains = [](uint64_t base) -> int {
      const std::optional<Blocks::Found> found = g_broker->Find(base);
      return found.has_value() && found->block.stream_ordered;
    },
    .get_figures = [](GpumemBrokeredDevice* device,
                      GpumemPoolFigures* figures) { *figures = device->stream_memory.Figures(); },
    .reset_high = [](GpumemBrokeredDevice* device,
                     int of_used) { device->stream_memory.ResetHigh(of_used != 0); },
    .trim = [](GpumemBrokeredDevice* device,
               uint64_t least_reserved) { device->stream_memory.Trim(least_reserved); },
    .set_reuse = [](GpumemBrokeredDevice* device,
                    uint32_t flags) { device->stream_memory.SetReuse(flags); },
};

constexpr GpumemBroker kTable = {
    .device = [](const GpumemDeviceId* id) { return g_broker->Device(*id); },
    .prepare = [](GpumemBrokeredDevice* device,
                  int of_streams) { g_broker->Prepare(device, of_streams != 0); },
    .allocate = [](GpumemBrokeredDevice* device, uint64_t bytes,
                   uint64_t* address) { return g_broker->Allocate(device, bytes, address); },
    .free = [](uint64_t address) -> int { return g_broker->Free(address); },
    .free_on_stream = [](uint64_t address,
                         void* stream) { return g_broker->FreeOnStream(address, stream); },
    .forget_stream = [](void* stream) { g_broker->ForgetStream(stream); },
    .find = [](uint64_t address, uint64_t* base, uint64_t* bytes) -> int {
      const std::optional<Blocks::Found> found = g_broker->Find(address);
      if (!found.has_value()) return 0;
      *base = found->base;
      *bytes = found->block.bytes;
      return 1;
    },
    .share = [](uint64_t base, GpumemIpcHandle* handle) -> int {
      return g_broker->Share(base, handle);
    },
    .is_shared = [](const GpumemIpcHandle* handle) -> int {
      return TicketExchange::IsOurs(*handle);
    },
    .open = [](GpumemBrokeredDevice* device, const GpumemIpcHandle* handle,
               uint64_t* address) -> int { return g_broker->Open(*device, *handle, address); },
    .close = [](uint64_t address) -> int { return g_broker->Close(address); },
    .unused = [](GpumemBrokeredDevice* device) { return UnusedOf(*device); },
    .held =
        [](GpumemBrokeredDevice* device) {
          return HeldBy(*device) + g_broker->physical().HeldOn(device->uuid);
        },
    .trim = [](GpumemBrokeredDevice* device) -> int { return TrimPools(*device); },
    .drop = [](GpumemBrokeredDevice* device) { g_broker->Drop(device); },
    .create_physical =
        [](GpumemBrokeredDevice* device, uint64_t bytes, int may_wait, GpumemPhysical** physical,
           uint64_t* address) {
          return g_broker->CreatePhysical(*device, bytes, may_wait != 0, physical, address);
        },
    .release_physical = [](GpumemPhysical* memory) { g_broker->physical().Release(memory); },
    .pin_physical = [](GpumemPhysical* memory) { g_broker->physical().Pin(memory); },
    .export_physical = [](GpumemPhysical* memory, int* fd) -> int {
      return g_broker->physical().Export(memory, fd);
    },
    .wanted = [] { g_broker->Wanted(); },
    .stream_memory = &kStreamTable,
};

}  // namespace

const GpumemBroker* StartBroker(gpumem_client* client, uint64_t wait_ms, FindDevice find,
                                const GpumemPreload& preload) {
  g_broker = new MemoryBroker(client, wait_ms, std::move(find), preload);
  if (g_broker->Start() == GPUMEM_OK) return &kTable;
  std::fprintf(stderr, "gpumem: %s; memory of this process cannot be suspended\n",
               gpumem_last_error());
  return &kTable;
}

}  // namespace gpumem::preload
