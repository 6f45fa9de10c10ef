// SPDX-License-Identifier: Apache-2.0
// Tenants under the client's: gpumem_client_…_tenant, gpumem_tenant_list_….
#include "gpumem/tenant.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/client.h"
#include "gpumem/gpumem.h"

using gpumem::c_api::AnyNull;
using gpumem::c_api::Call;
using gpumem::c_api::CheckIndex;
using gpumem::c_api::NullError;
using gpumem::c_api::Read;
using gpumem::c_api::Text;
using gpumem::c_api::Write;

struct gpumem_tenant_list {
  const std::vector<gpumem::MadeTenant> tenants;
};

namespace {

struct Limits {
  gpumem::TenantLimits set;
  std::vector<std::string> clear;
};

// Takes a limit over, as the header says.
template <typename T, typename Field>
void Take(T value, const char* name, Field* field, Limits* limits) {
  if (value == static_cast<T>(-1)) {
    limits->clear.emplace_back(name);
  } else if (value != 0) {
    *field = value;
  }
}

absl::StatusOr<Limits> ToLimits(const gpumem_tenant_limits* from) {
  auto c = Read(from);
  if (!c.ok()) return c.status();
  Limits limits;
  gpumem::TenantLimits& set = limits.set;
  Take(c->limit_bytes, "limit_bytes", &set.limit_bytes, &limits);
  Take(c->total_limit_bytes, "total_limit_bytes", &set.total_limit_bytes, &limits);
  Take(c->pinned_limit_bytes, "pinned_limit_bytes", &set.pinned_limit_bytes, &limits);
  Take(c->tier_limit_bytes, "tier_limit_bytes", &set.tier_limit_bytes, &limits);
  Take(c->max_segments, "max_segments", &set.max_segments, &limits);
  Take(c->max_sessions, "max_sessions", &set.max_sessions, &limits);
  Take(c->max_waiting, "max_waiting", &set.max_waiting, &limits);
  if (c->has_priority != 0) set.priority = c->priority;
  if (c->has_preload_mode != 0) {
    if (c->preload_mode != GPUMEM_PRELOAD_ACCOUNT && c->preload_mode != GPUMEM_PRELOAD_BROKER) {
      return absl::InvalidArgumentError(absl::StrCat("there is no preload mode ", c->preload_mode));
    }
    set.preload = c->preload_mode == GPUMEM_PRELOAD_BROKER ? gpumem::PreloadMode::kBroker
                                                           : gpumem::PreloadMode::kAccount;
  }
  if (c->device_limit_count > 0 && AnyNull(c->device_limits)) return NullError("device_limits");
  for (size_t i = 0; i < c->device_limit_count; ++i) {
    const gpumem_device_limit& limit = c->device_limits[i];
    if (AnyNull(limit.device_uuid)) return NullError("device_uuid");
    set.device_limits[limit.device_uuid] = limit.limit_bytes;
  }
  return limits;
}

}  // namespace

extern "C" {

int gpumem_client_create_tenant(gpumem_client* client, const gpumem_tenant_options* options,
                                const gpumem_tenant_limits* limits, gpumem_tenant_name* name) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client) || AnyNull(name)) return NullError("client or name");
    auto c = Read(options);
    if (!c.ok()) return c.status();
    absl::StatusOr<Limits> read = ToLimits(limits);
    if (!read.ok()) return read.status();
    gpumem_tenant_name written = {};
    // Before there is a tenant whose name the caller would not learn.
    if (absl::Status writable = Write(written, name); !writable.ok()) return writable;
    auto made = client->client->CreateTenant(
        {.name = Text(c->name), .limits = read->set, .lasting = c->lasting != 0});
    if (!made.ok()) return made.status();
    made->copy(written.text, sizeof(written.text) - 1);
    return Write(written, name);
  });
}

int gpumem_client_update_tenant(gpumem_client* client, const char* tenant,
                                const gpumem_tenant_limits* limits) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client) || AnyNull(tenant)) return NullError("client or tenant");
    absl::StatusOr<Limits> read = ToLimits(limits);
    if (!read.ok()) return read.status();
    return client->client->UpdateTenant(tenant, read->set, read->clear);
  });
}

int gpumem_client_end_tenant(gpumem_client* client, const char* tenant,
                             gpumem_tenant_remains* remains) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client) || AnyNull(tenant)) return NullError("client or tenant");
    auto left = client->client->EndTenant(tenant);
    if (!left.ok()) return left.status();
    if (remains == nullptr) return absl::OkStatus();
    uint64_t bytes = 0;
    for (const auto& [uuid, charged] : left->device_bytes) bytes += charged;
    return Write({.charged_bytes = bytes, .sessions = left->sessions, .gone = left->gone ? 1 : 0},
                 remains);
  });
}

int gpumem_client_list_tenants(gpumem_client* client, gpumem_tenant_list** tenants, size_t* count) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client) || AnyNull(tenants)) return NullError("client or tenants");
    auto list = client->client->ListTenants();
    if (!list.ok()) return list.status();
    *tenants = new gpumem_tenant_list{*std::move(list)};
    if (count != nullptr) *count = (*tenants)->tenants.size();
    return absl::OkStatus();
  });
}

int gpumem_tenant_list_get(const gpumem_tenant_list* tenants, size_t index,
                           gpumem_made_tenant* tenant) {
  return Call([&]() -> absl::Status {
    if (AnyNull(tenants)) return NullError("tenants");
    absl::Status status = CheckIndex(index, tenants->tenants.size(), "tenant");
    if (!status.ok()) return status;
    const gpumem::MadeTenant& of = tenants->tenants[index];
    return Write({.name = of.name.c_str(),
                  .created_ms = static_cast<uint64_t>(absl::ToUnixMillis(of.created)),
                  .charged_bytes = of.charged_bytes,
                  .sessions = of.sessions,
                  .lasting = of.lasting ? 1 : 0,
                  .ending = of.ending ? 1 : 0},
                 tenant);
  });
}

int gpumem_tenant_list_destroy(gpumem_tenant_list* tenants) {
  return Call([&] {
    delete tenants;
    return absl::OkStatus();
  });
}

}  // extern "C"
