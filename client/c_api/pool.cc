// SPDX-License-Identifier: Apache-2.0
// gpumem_pool_….
#include "gpumem/pool.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/gpumem.h"

using gpumem::c_api::AnyNull;
using gpumem::c_api::Call;
using gpumem::c_api::GiveNumber;
using gpumem::c_api::NullError;
using gpumem::c_api::Read;
using gpumem::c_api::Text;
using gpumem::c_api::Texts;
using gpumem::c_api::Time;
using gpumem::c_api::ToKind;
using gpumem::c_api::ToMilliseconds;
using gpumem::c_api::ToOptions;
using gpumem::c_api::Write;

struct gpumem_shared_block {
  gpumem::SharedBlock block;
};

namespace {

static_assert(GPUMEM_POOL_ALLOCATE == static_cast<int>(gpumem::PoolEvent::What::kAllocate));
static_assert(GPUMEM_POOL_FREE == static_cast<int>(gpumem::PoolEvent::What::kFree));
static_assert(GPUMEM_POOL_GROW == static_cast<int>(gpumem::PoolEvent::What::kGrow));
static_assert(GPUMEM_POOL_SHRINK == static_cast<int>(gpumem::PoolEvent::What::kShrink));

absl::StatusOr<gpumem::ReusePolicy> ToPolicy(uint32_t reuse) {
  constexpr uint32_t kAll = GPUMEM_REUSE_SAME_STREAM | GPUMEM_REUSE_FOLLOW_EVENT_DEPENDENCIES |
                            GPUMEM_REUSE_ALLOW_OPPORTUNISTIC |
                            GPUMEM_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
  if (reuse == GPUMEM_REUSE_DEFAULT) return gpumem::ReusePolicy{};
  if ((reuse & ~kAll) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("there is no reuse policy ", reuse));
  }
  return gpumem::ReusePolicy{
      .follow_event_dependencies = (reuse & GPUMEM_REUSE_FOLLOW_EVENT_DEPENDENCIES) != 0,
      .allow_opportunistic = (reuse & GPUMEM_REUSE_ALLOW_OPPORTUNISTIC) != 0,
      .allow_internal_dependencies = (reuse & GPUMEM_REUSE_ALLOW_INTERNAL_DEPENDENCIES) != 0};
}

absl::StatusOr<gpumem::PoolOptions> ToPoolOptions(const gpumem_pool_options* from) {
  auto c = Read(from);
  if (!c.ok()) return c.status();
  auto kind = ToKind(c->kind);
  if (!kind.ok()) return kind.status();
  auto reuse = ToPolicy(c->reuse);
  if (!reuse.ok()) return reuse.status();
  auto map_devices = Texts(c->map_devices, c->map_device_count);
  if (!map_devices.ok()) return map_devices.status();
  gpumem::PoolOptions options = {
      .device = Text(c->device),
      .kind = *kind,
      .reuse = *reuse,
      .per_thread_default_stream = c->per_thread_default_stream != 0,
      .wait = Time(c->wait_ms),
      .gives_under_pressure = c->keeps_under_pressure == 0,
      .revocable = c->revocable != 0,
      .map_devices = *std::move(map_devices),
      .thread_caches = c->without_thread_caches == 0,
  };
  if (c->on_revocation != nullptr) {
    options.on_revocation = [call = c->on_revocation, context = c->revocation_context](
                                const gpumem::Revocation& revocation) {
      call(context, revocation.lease_ids.data(), revocation.lease_ids.size(),
           ToMilliseconds(revocation.until_end));
    };
  }
  if (c->limit_bytes != 0) options.limit_bytes = c->limit_bytes;
  if (c->release_threshold_bytes != 0) {
    options.release_threshold_bytes = c->release_threshold_bytes;
  }
  if (c->grow_bytes != 0) options.grow_bytes = c->grow_bytes;
  return options;
}

absl::Status Give(const absl::StatusOr<gpumem::Block>& block, gpumem_block* to) {
  if (!block.ok()) return block.status();
  *to = {.data = block->data, .bytes = block->bytes};
  return absl::OkStatus();
}

gpumem::Block ToBlock(const gpumem_block& block) {
  return {.data = block.data, .bytes = block.bytes};
}

}  // namespace

extern "C" {

int gpumem_pool_create(gpumem_client* client, const gpumem_pool_options* options,
                       gpumem_pool** pool) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, pool)) return NullError("client or pool");
    auto wished = ToPoolOptions(options);
    if (!wished.ok()) return wished.status();
    auto created = gpumem::Pool::Create(client->client, *wished);
    if (!created.ok()) return created.status();
    *pool = new gpumem_pool{*std::move(created), /*is_default=*/false, client->client};
    return absl::OkStatus();
  });
}

int gpumem_pool_destroy(gpumem_pool* pool) {
  return Call([&]() -> absl::Status {
    if (pool != nullptr && pool->is_default) {
      return absl::FailedPreconditionError(
          "a default pool stays until the process ends: use gpumem_pool_free_all_blocks()");
    }
    delete pool;
    return absl::OkStatus();
  });
}

int gpumem_pool_allocate(gpumem_pool* pool, uint64_t bytes, void* stream, gpumem_block* block) {
  return Call([&] {
    if (AnyNull(pool, block)) return NullError("pool or block");
    return Give(pool->pool->Allocate(bytes, stream), block);
  });
}

int gpumem_pool_try_allocate(gpumem_pool* pool, uint64_t bytes, void* stream, gpumem_block* block) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool, block)) return NullError("pool or block");
    return Give(pool->pool->TryAllocate(bytes, stream), block);
  });
}

int gpumem_pool_allocate_synchronized(gpumem_pool* pool, uint64_t bytes, gpumem_block* block) {
  return Call([&] {
    if (AnyNull(pool, block)) return NullError("pool or block");
    return Give(pool->pool->AllocateSynchronized(bytes), block);
  });
}

int gpumem_pool_free(gpumem_pool* pool, const gpumem_block* block, void* stream) {
  return Call([&] {
    if (AnyNull(pool, block)) return NullError("pool or block");
    return pool->pool->Free(ToBlock(*block), stream);
  });
}

int gpumem_pool_try_free_pointer(gpumem_pool* pool, void* data, void* stream, int32_t* is_free) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool, data, is_free)) return NullError("pool, data or is_free");
    *is_free = pool->pool->TryFree(data, stream) ? 1 : 0;
    return absl::OkStatus();
  });
}

int gpumem_pool_free_pointer(gpumem_pool* pool, void* data, void* stream) {
  return Call([&] {
    if (AnyNull(pool, data)) return NullError("pool or data");
    return pool->pool->Free(data, stream);
  });
}

int gpumem_pool_free_synchronized(gpumem_pool* pool, void* data) {
  return Call([&] {
    if (AnyNull(pool, data)) return NullError("pool or data");
    return pool->pool->FreeSynchronized(data);
  });
}

int gpumem_pool_find(const gpumem_pool* pool, void* data, gpumem_block* block) {
  return Call([&] {
    if (AnyNull(pool, data, block)) return NullError("pool, data or block");
    return Give(pool->pool->Find(data), block);
  });
}

int gpumem_pool_share(gpumem_pool* pool, const gpumem_block* block, char* ticket, size_t capacity,
                      size_t* length) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool, block, length)) return NullError("pool, block or length");
    if (capacity > 0 && AnyNull(ticket)) return NullError("ticket");
    auto shared = pool->pool->Share(ToBlock(*block));
    if (!shared.ok()) return shared.status();
    *length = shared->value.size() + 1;
    if (*length > capacity) {
      return absl::OutOfRangeError(
          absl::StrCat("the ticket has ", *length, " bytes, and the buffer has ", capacity));
    }
    std::memcpy(ticket, shared->value.c_str(), *length);
    return absl::OkStatus();
  });
}

int gpumem_client_open_block(gpumem_client* client, const char* ticket,
                             const gpumem_open_options* options, gpumem_shared_block** shared) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, ticket, shared)) return NullError("client, ticket or shared");
    auto open = ToOptions(options);
    if (!open.ok()) return open.status();
    auto opened = gpumem::OpenBlock(*client->client, ticket, *open);
    if (!opened.ok()) return opened.status();
    *shared = new gpumem_shared_block{*std::move(opened)};
    return absl::OkStatus();
  });
}

int gpumem_shared_block_get(const gpumem_shared_block* shared, gpumem_block* block) {
  return Call([&] {
    if (AnyNull(shared, block)) return NullError("shared or block");
    *block = {.data = shared->block.data(), .bytes = shared->block.bytes()};
    return absl::OkStatus();
  });
}

int gpumem_shared_block_get_info(const gpumem_shared_block* shared,
                                 gpumem_shared_block_info* info) {
  return Call([&] {
    if (AnyNull(shared)) return NullError("shared");
    const gpumem::SharedBlock& of = shared->block;
    return Write({.data = of.data(),
                  .bytes = of.bytes(),
                  .device_uuid = of.device_uuid().c_str(),
                  .kind = static_cast<int32_t>(of.kind()),
                  .backend = static_cast<int32_t>(of.backend())},
                 info);
  });
}

int gpumem_shared_block_destroy(gpumem_shared_block* shared) {
  return Call([&] {
    delete shared;
    return absl::OkStatus();
  });
}

int gpumem_pool_stream_waits(gpumem_pool* pool, void* waiting, void* awaited) {
  return Call([&] {
    return AnyNull(pool) ? NullError("pool") : pool->pool->StreamWaits(waiting, awaited);
  });
}

int gpumem_pool_forget_stream(gpumem_pool* pool, void* stream) {
  return Call([&] { return AnyNull(pool) ? NullError("pool") : pool->pool->ForgetStream(stream); });
}

int gpumem_pool_trim(gpumem_pool* pool, uint64_t keep_bytes, uint64_t* released) {
  return Call([&] {
    return AnyNull(pool) ? NullError("pool") : GiveNumber(pool->pool->Trim(keep_bytes), released);
  });
}

int gpumem_pool_free_all_blocks(gpumem_pool* pool, uint64_t* released) {
  return Call([&] {
    return AnyNull(pool) ? NullError("pool") : GiveNumber(pool->pool->FreeAllBlocks(), released);
  });
}

int gpumem_pool_free_all_blocks_of_stream(gpumem_pool* pool, void* stream, uint64_t* released) {
  return Call([&] {
    return AnyNull(pool) ? NullError("pool")
                         : GiveNumber(pool->pool->FreeAllBlocks(stream), released);
  });
}

int gpumem_pool_set_limit(gpumem_pool* pool, uint64_t bytes) {
  return Call([&] { return AnyNull(pool) ? NullError("pool") : pool->pool->SetLimit(bytes); });
}

int gpumem_pool_set_limit_fraction(gpumem_pool* pool, double fraction) {
  return Call(
      [&] { return AnyNull(pool) ? NullError("pool") : pool->pool->SetLimitFraction(fraction); });
}

int gpumem_pool_set_release_threshold(gpumem_pool* pool, uint64_t bytes) {
  return Call([&] {
    if (AnyNull(pool)) return NullError("pool");
    pool->pool->SetReleaseThreshold(bytes);
    return absl::OkStatus();
  });
}

int gpumem_pool_set_gives_under_pressure(gpumem_pool* pool, int gives) {
  return Call([&] {
    if (AnyNull(pool)) return NullError("pool");
    pool->pool->SetGivesUnderPressure(gives != 0);
    return absl::OkStatus();
  });
}

int gpumem_pool_set_reuse(gpumem_pool* pool, uint32_t reuse) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool)) return NullError("pool");
    auto policy = ToPolicy(reuse);
    if (!policy.ok()) return policy.status();
    pool->pool->SetReusePolicy(*policy);
    return absl::OkStatus();
  });
}

int gpumem_pool_get_info(const gpumem_pool* pool, gpumem_pool_info* info) {
  return Call([&] {
    if (AnyNull(pool)) return NullError("pool");
    const gpumem::Pool& of = *pool->pool;
    return Write({.device_uuid = of.device_uuid().c_str(),
                  .kind = static_cast<int32_t>(of.kind()),
                  .backend = static_cast<int32_t>(of.backend()),
                  .limit_bytes = of.limit()},
                 info);
  });
}

int gpumem_pool_get_stats(const gpumem_pool* pool, gpumem_pool_stats* stats) {
  return Call([&] {
    if (AnyNull(pool)) return NullError("pool");
    const gpumem::PoolStats of = pool->pool->Stats();
    return Write({.reserved_bytes = of.reserved_bytes,
                  .used_bytes = of.used_bytes,
                  .free_bytes = of.free_bytes,
                  .used_blocks = of.used_blocks,
                  .free_blocks = of.free_blocks,
                  .segments = of.segments,
                  .reserved_peak_bytes = of.reserved_peak_bytes,
                  .used_peak_bytes = of.used_peak_bytes,
                  .allocations = of.allocations,
                  .frees = of.frees,
                  .growths = of.growths,
                  .reused_after_event = of.reused_after_event,
                  .dependencies = of.dependencies,
                  .out_of_memory = of.out_of_memory,
                  .given_under_pressure_bytes = of.given_under_pressure_bytes,
                  .moves = of.moves},
                 stats);
  });
}

int gpumem_pool_reset_peaks(gpumem_pool* pool) {
  return Call([&] {
    if (AnyNull(pool)) return NullError("pool");
    pool->pool->ResetPeaks();
    return absl::OkStatus();
  });
}

int gpumem_pool_get_mem_info(gpumem_pool* pool, uint64_t* free_bytes, uint64_t* total_bytes) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool, free_bytes, total_bytes)) {
      return NullError("pool, free_bytes or total_bytes");
    }
    auto info = pool->pool->MemGetInfo();
    if (!info.ok()) return info.status();
    *free_bytes = info->free_bytes;
    *total_bytes = info->total_bytes;
    return absl::OkStatus();
  });
}

int gpumem_pool_set_hook(gpumem_pool* pool,
                         void (*hook)(void* context, const gpumem_pool_event* event),
                         void* context) {
  return Call([&] {
    if (AnyNull(pool)) return NullError("pool");
    if (hook == nullptr) {
      pool->pool->SetHook(nullptr);
      return absl::OkStatus();
    }
    pool->pool->SetHook([hook, context](const gpumem::PoolEvent& event) {
      const gpumem_pool_event told = {.struct_size = sizeof(gpumem_pool_event),
                                      .what = static_cast<int32_t>(event.what),
                                      .data = event.data,
                                      .bytes = event.bytes,
                                      .stream = event.stream};
      hook(context, &told);
    });
    return absl::OkStatus();
  });
}

int gpumem_pool_set_out_of_memory_callback(gpumem_pool* pool,
                                           int (*callback)(void* context, uint64_t bytes),
                                           void* context) {
  return Call([&] {
    if (AnyNull(pool)) return NullError("pool");
    if (callback == nullptr) {
      pool->pool->SetOutOfMemoryCallback(nullptr);
    } else {
      pool->pool->SetOutOfMemoryCallback(
          [callback, context](uint64_t bytes) { return callback(context, bytes) != 0; });
    }
    return absl::OkStatus();
  });
}

}  // extern "C"
