// SPDX-License-Identifier: Apache-2.0
// The objects that fake API servers have, as etcd keeps them: it outlives the servers.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace gpumem::kubernetes {

class FakeStore {
 public:
  struct Object {
    std::string name_space;  // empty: of the cluster
    std::string name;
    std::string text;  // JSON, with its version
  };
  struct Event {
    uint64_t version = 0;
    std::string resource;
    std::string type;
    std::string text;  // JSON of the object
  };
  struct Part {
    std::vector<std::string> objects;
    std::string next;
    uint64_t version = 0;
  };

  // Makes these the objects of a resource, "resourceclaims" or "resourceslices", with the events
  // from those before. Texts are JSON; one without a name gets one.
  void Set(const std::string& resource, const std::vector<std::string>& texts);
  void SetClaims(const std::vector<std::string>& texts) { Set("resourceclaims", texts); }
  void SetSlices(const std::vector<std::string>& texts) { Set("resourceslices", texts); }
  // Creates or replaces an object. Returns its new text; nullopt if it exists, does not exist, or
  // has another version than that of the text.
  std::optional<std::string> Create(const std::string& resource, const std::string& text);
  std::optional<std::string> Replace(const std::string& resource, const std::string& name,
                                     const std::string& text);
  std::optional<std::string> Get(const std::string& resource, const std::string& name_space,
                                 const std::string& name) const;
  std::vector<std::string> All(const std::string& resource) const;
  Part List(const std::string& resource, size_t begin, size_t most) const;

  // The version of resource.k8s.io that the objects have.
  void SetGroupVersion(const std::string& version);
  std::string group_version() const;

  // Returns the events after a version, waiting for some until then; nullopt: they are forgotten.
  std::optional<std::vector<Event>> EventsAfter(const std::string& resource, uint64_t version,
                                                absl::Time until) const;
  // Forgets all events.
  void Compact();
  uint64_t version() const;
  // How often an object was created or replaced by a client.
  int writes() const;

 private:
  using Key = std::pair<std::string, std::string>;  // namespace, name
  std::string Put(const std::string& resource, const Key& key, const std::string& text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Delete(const std::string& resource, const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, std::map<Key, Object>> objects_ ABSL_GUARDED_BY(mutex_);
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> last_ ABSL_GUARDED_BY(mutex_);  // event of each resource
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t forgotten_ ABSL_GUARDED_BY(mutex_) = 0;  // events up to this version
  std::string group_version_ ABSL_GUARDED_BY(mutex_) = "v1";
  int writes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumem::kubernetes
