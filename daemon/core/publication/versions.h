// SPDX-License-Identifier: Apache-2.0
// Remembers the last versions of names that are no longer published, so that the versions of each
// name only grow. The memory for it is bounded: the oldest names and tenants are summed up in one
// number.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace gpumemd {

namespace records {
struct Tenant;
}  // namespace records

class Versions {
 public:
  // Returns the version of the next publication of an unpublished name, and forgets the name.
  uint64_t TakeNext(records::Tenant& tenant, const std::string& name);
  // Records that the last publication of this name has ended.
  void Ended(records::Tenant& tenant, const std::string& name, uint64_t version);
  // Remembers the versions of a tenant that is about to be forgotten. Its later publications do not
  // show in the versions of others.
  void Keep(const records::Tenant& tenant);
  // Restores the remembered versions of a tenant that was made, perhaps again.
  void Recall(records::Tenant& tenant);
  // Records that forgotten names, of any tenant or of this one, had versions up to this one.
  void Forget(uint64_t version);
  void Forget(records::Tenant& tenant, uint64_t version);
  // Returns the highest version of all names that are not published.
  uint64_t highest() const { return highest_; }

 private:
  uint64_t highest_ = 0;
  uint64_t forgotten_ = 0;  // the highest version of tenants no longer in tenants_
  // Forgotten tenants, the oldest first, and the highest version of their names.
  std::map<uint64_t, std::pair<std::string, uint64_t>> tenants_;
  absl::flat_hash_map<std::string, uint64_t> places_;  // in tenants_, by name
  uint64_t next_place_ = 1;
};

}  // namespace gpumemd
