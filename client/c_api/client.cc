// SPDX-License-Identifier: Apache-2.0
// Sessions and events of the daemon: gpumem_client_…, gpumem_pool_get_client,
// gpumem_device_list_…, gpumem_usage_…, gpumem_watch_….
#include "gpumem/client.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/gpumem.h"

using gpumem::c_api::AnyNull;
using gpumem::c_api::Call;
using gpumem::c_api::CheckIndex;
using gpumem::c_api::NullError;
using gpumem::c_api::Read;
using gpumem::c_api::Text;
using gpumem::c_api::Time;
using gpumem::c_api::ToMilliseconds;
using gpumem::c_api::Write;

struct gpumem_device_list {
  explicit gpumem_device_list(std::vector<gpumem::DeviceInfo> list) : devices(std::move(list)) {
    for (const gpumem::DeviceInfo& device : devices) {
      auto& numbers = kinds.emplace_back();
      for (const gpumem::Kind kind : device.kinds) numbers.push_back(static_cast<int32_t>(kind));
    }
  }

  const std::vector<gpumem::DeviceInfo> devices;
  std::vector<std::vector<int32_t>> kinds;  // of each device
};

struct gpumem_usage {
  const gpumem::Usage usage;
};

namespace {

static_assert(GPUMEM_BACKEND_CUDA == static_cast<int>(gpumem::Backend::kCuda));
static_assert(GPUMEM_BACKEND_HOST == static_cast<int>(gpumem::Backend::kHost));

int64_t CountOr(const std::optional<uint32_t>& count) { return count ? int64_t{*count} : -1; }

// Its text belongs to `quota`.
gpumem_quota ToC(const gpumem::Quota& quota) {
  return {.struct_size = sizeof(gpumem_quota),
          .limit_bytes = quota.limit_bytes.value_or(GPUMEM_UNLIMITED),
          .total_limit_bytes = quota.total_limit_bytes.value_or(GPUMEM_UNLIMITED),
          .pinned_limit_bytes = quota.pinned_limit_bytes.value_or(GPUMEM_UNLIMITED),
          .guarantee_bytes = quota.guarantee_bytes.value_or(0),
          .max_segments = CountOr(quota.max_segments),
          .max_sessions = CountOr(quota.max_sessions),
          .max_in_flight = CountOr(quota.max_in_flight),
          .max_waiting = CountOr(quota.max_waiting),
          .priority = quota.priority,
          .revocable = quota.revocable,
          .parent = quota.parent.c_str()};
}

gpumem::WatchHandlers ToHandlers(const gpumem_watch_handlers& c) {
  gpumem::WatchHandlers handlers;
  void* const context = c.context;
  if (c.segments_lost != nullptr) {
    handlers.segments_lost = [call = c.segments_lost, context](const gpumem::SegmentsLost& lost) {
      call(context, lost.lease_ids.data(), lost.lease_ids.size());
    };
  }
  if (c.draining != nullptr) {
    handlers.draining = [call = c.draining, context](bool draining) { call(context, draining); };
  }
  if (c.pressure_until != nullptr) {
    handlers.pressure = [call = c.pressure_until, context](const gpumem::Pressure& pressure) {
      call(context, pressure.device_uuid.c_str(), pressure.bytes,
           ToMilliseconds(pressure.deadline));
    };
  } else if (c.pressure != nullptr) {
    handlers.pressure = [call = c.pressure, context](const gpumem::Pressure& pressure) {
      call(context, pressure.device_uuid.c_str(), pressure.bytes);
    };
  }
  if (c.revocation != nullptr) {
    handlers.revocation = [call = c.revocation, context](const gpumem::Revocation& revocation) {
      call(context, revocation.lease_ids.data(), revocation.lease_ids.size(),
           ToMilliseconds(revocation.until_end));
    };
  }
  if (c.quota_changed != nullptr) {
    handlers.quota_changed = [call = c.quota_changed, context](const gpumem::Quota& quota) {
      const gpumem_quota told = ToC(quota);
      call(context, &told);
    };
  }
  if (c.ended != nullptr) {
    handlers.ended = [call = c.ended, context](const absl::Status& status) {
      call(context, static_cast<int>(status.code()), std::string(status.message()).c_str());
    };
  }
  return handlers;
}

}  // namespace

extern "C" {

int gpumem_client_connect(const gpumem_connect_options* options, gpumem_client** client) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client)) return NullError("client");
    auto c = Read(options);
    if (!c.ok()) return c.status();
    gpumem::ConnectOptions connect = {
        .runtime_dir = Text(c->runtime_dir), .tenant = Text(c->tenant), .name = Text(c->name)};
    if (c->timeout_ms != 0) connect.timeout = Time(c->timeout_ms);
    connect.reconnect = c->no_reconnect == 0;
    connect.wait = c->no_wait == 0;
    auto connected = gpumem::Client::Connect(connect);
    if (!connected.ok()) return connected.status();
    *client = new gpumem_client{*std::move(connected)};
    return absl::OkStatus();
  });
}

int gpumem_client_destroy(gpumem_client* client) {
  return Call([&] {
    delete client;
    return absl::OkStatus();
  });
}

int gpumem_pool_get_client(const gpumem_pool* pool, gpumem_client** client) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool) || AnyNull(client)) return NullError("pool or client");
    *client = new gpumem_client{pool->client};
    return absl::OkStatus();
  });
}

int gpumem_client_get_info(const gpumem_client* client, gpumem_client_info* info) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client)) return NullError("client");
    const gpumem::Client& of = *client->client;
    return Write({.tenant = of.tenant().c_str(),
                  .rule = of.rule().c_str(),
                  .daemon_version = of.daemon_version().c_str(),
                  .session_id = of.session_id()},
                 info);
  });
}

int gpumem_client_list_devices(gpumem_client* client, gpumem_device_list** devices, size_t* count) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, devices)) return NullError("client or devices");
    auto list = client->client->Devices();
    if (!list.ok()) return list.status();
    *devices = new gpumem_device_list(*std::move(list));
    if (count != nullptr) *count = (*devices)->devices.size();
    return absl::OkStatus();
  });
}

int gpumem_device_list_get(const gpumem_device_list* devices, size_t index, gpumem_device* device) {
  return Call([&]() -> absl::Status {
    if (AnyNull(devices)) return NullError("devices");
    absl::Status status = CheckIndex(index, devices->devices.size(), "device");
    if (!status.ok()) return status;
    const gpumem::DeviceInfo& of = devices->devices[index];
    return Write({.uuid = of.uuid.c_str(),
                  .name = of.name.c_str(),
                  .pci_bus_id = of.pci_bus_id.c_str(),
                  .backend = static_cast<int32_t>(of.backend),
                  .capacity_bytes = of.capacity_bytes,
                  .charged_bytes = of.charged_bytes,
                  .granularity_bytes = of.granularity_bytes,
                  .pool_granularity_bytes = of.pool_granularity_bytes,
                  .driver_free_bytes = of.driver_free_bytes,
                  .kinds = devices->kinds[index].data(),
                  .kind_count = devices->kinds[index].size(),
                  .peer_count = of.peers.size()},
                 device);
  });
}

int gpumem_device_list_get_peer(const gpumem_device_list* devices, size_t index, size_t peer_index,
                                gpumem_peer* peer) {
  return Call([&]() -> absl::Status {
    if (AnyNull(devices)) return NullError("devices");
    absl::Status status = CheckIndex(index, devices->devices.size(), "device");
    if (!status.ok()) return status;
    const std::vector<gpumem::PeerAccess>& peers = devices->devices[index].peers;
    status = CheckIndex(peer_index, peers.size(), "peer");
    if (!status.ok()) return status;
    const gpumem::PeerAccess& of = peers[peer_index];
    return Write({.uuid = of.uuid.c_str(),
                  .access = of.access,
                  .native_atomics = of.native_atomics,
                  .performance_rank = of.performance_rank},
                 peer);
  });
}

int gpumem_device_list_destroy(gpumem_device_list* devices) {
  return Call([&] {
    delete devices;
    return absl::OkStatus();
  });
}

int gpumem_client_get_usage(gpumem_client* client, gpumem_usage** usage) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, usage)) return NullError("client or usage");
    auto now = client->client->GetUsage();
    if (!now.ok()) return now.status();
    *usage = new gpumem_usage{*std::move(now)};
    return absl::OkStatus();
  });
}

int gpumem_usage_get_tenant(const gpumem_usage* usage, gpumem_tenant_usage* tenant) {
  return Call([&]() -> absl::Status {
    if (AnyNull(usage)) return NullError("usage");
    const gpumem::Usage& of = usage->usage;
    return Write(
        {.tenant = of.tenant.c_str(),
         .charged_bytes = of.charged_bytes,
         .segments = of.segments,
         .sessions = of.sessions,
         .device_count = of.devices.size(),
         .waiting = of.waiting,
         .preload_mode = of.preload == gpumem::PreloadMode::kBroker ? GPUMEM_PRELOAD_BROKER
                                                                    : GPUMEM_PRELOAD_ACCOUNT},
        tenant);
  });
}

int gpumem_usage_get_device(const gpumem_usage* usage, size_t index, gpumem_device_usage* device) {
  return Call([&]() -> absl::Status {
    if (AnyNull(usage)) return NullError("usage");
    absl::Status status = CheckIndex(index, usage->usage.devices.size(), "device");
    if (!status.ok()) return status;
    const gpumem::DeviceUsage& of = usage->usage.devices[index];
    return Write({.device_uuid = of.device_uuid.c_str(),
                  .leased_bytes = of.leased_bytes,
                  .retained_bytes = of.retained_bytes,
                  .lingering_bytes = of.lingering_bytes,
                  .charged_bytes = of.charged_bytes,
                  .limit_bytes = of.limit_bytes,
                  .peak_bytes = of.peak_bytes,
                  .guarantee_bytes = of.guarantee_bytes,
                  .borrowed_bytes = of.borrowed_bytes,
                  .waiting_bytes = of.waiting_bytes,
                  .waiting = of.waiting,
                  .revocable_bytes = of.revocable_bytes,
                  .obtainable_bytes = of.obtainable_bytes.value_or(GPUMEM_UNLIMITED),
                  .byte_seconds = of.byte_seconds},
                 device);
  });
}

int gpumem_usage_destroy(gpumem_usage* usage) {
  return Call([&] {
    delete usage;
    return absl::OkStatus();
  });
}

int gpumem_client_get_memory(gpumem_client* client, const char* device_uuid,
                             gpumem_memory* memory) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, device_uuid)) return NullError("client or device_uuid");
    const auto now = client->client->GetMemory(device_uuid);
    if (!now.ok()) return now.status();
    return Write({.limit_bytes = now->limit_bytes,
                  .free_bytes = now->free_bytes,
                  .from_page = now->from_page ? 1 : 0},
                 memory);
  });
}

int gpumem_client_start_watch(gpumem_client* client, const gpumem_watch_handlers* handlers,
                              gpumem_watch** watch) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, watch)) return NullError("client or watch");
    auto c = Read(handlers);
    if (!c.ok()) return c.status();
    auto made = std::make_unique<gpumem_watch>();
    auto started = client->client->StartWatch(ToHandlers(*c));
    if (!started.ok()) return started.status();
    made->watch = *std::move(started);
    *watch = made.release();
    return absl::OkStatus();
  });
}

int gpumem_watch_destroy(gpumem_watch* watch) {
  return Call([&] {
    delete watch;
    return absl::OkStatus();
  });
}

}  // extern "C"
