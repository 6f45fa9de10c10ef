// SPDX-License-Identifier: Apache-2.0
// The tenants that retain segments on one device, the richest first. So whose segments are given up
// next is known without a look at every tenant.
#pragma once

#include <cstdint>

#include "absl/container/btree_set.h"
#include "absl/strings/string_view.h"

namespace gpumemd {

namespace records {
struct Tenant;
}

class Retainers {
 public:
  // Notes that a tenant's retained bytes have changed. `name` is the tenant's, and lives as long.
  void Change(records::Tenant* tenant, absl::string_view name, uint64_t before, uint64_t after) {
    if (before > 0) tenants_.erase({before, name, tenant});
    if (after > 0) tenants_.insert({after, name, tenant});
  }
  // Add or remove all tenants of another list.
  void AddAll(const Retainers& other) {
    tenants_.insert(other.tenants_.begin(), other.tenants_.end());
  }
  void RemoveAll(const Retainers& other) {
    for (const Retainer& each : other.tenants_) tenants_.erase(each);
  }

  // Returns the tenant with the most retained bytes; of several, the first by name. Null: none.
  records::Tenant* richest() const { return tenants_.empty() ? nullptr : tenants_.begin()->tenant; }

  bool operator==(const Retainers&) const = default;

 private:
  struct Retainer {
    uint64_t bytes = 0;
    absl::string_view name;
    records::Tenant* tenant = nullptr;

    bool operator<(const Retainer& other) const {
      return bytes != other.bytes ? bytes > other.bytes : name < other.name;
    }
    bool operator==(const Retainer&) const = default;
  };

  absl::btree_set<Retainer> tenants_;
};

}  // namespace gpumemd
