// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/testing/fake_store.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumem::kubernetes {
namespace {

using nlohmann::json;

json Parse(const std::string& text) {
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string MemberOf(const json& object, const char* name) {
  const json metadata = object.value("metadata", json::object());
  return metadata.value(name, "");
}

}  // namespace

std::string FakeStore::Put(const std::string& resource, const Key& key, const std::string& text) {
  json object = Parse(text);
  auto& all = objects_[resource];
  const bool is_new = !all.contains(key);
  ++version_;
  object["apiVersion"] = absl::StrCat("resource.k8s.io/", group_version_);
  object["kind"] = resource == "resourceclaims" ? "ResourceClaim" : "ResourceSlice";
  object["metadata"]["name"] = key.second;
  object["metadata"]["resourceVersion"] = absl::StrCat(version_);
  std::string stored = object.dump();
  all[key] = {key.first, key.second, stored};
  events_.push_back({version_, resource, is_new ? "ADDED" : "MODIFIED", stored});
  last_[resource] = version_;
  return stored;
}

void FakeStore::Delete(const std::string& resource, const Key& key) {
  auto& all = objects_[resource];
  const auto object = all.find(key);
  if (object == all.end()) return;
  json last = Parse(object->second.text);
  last["metadata"]["resourceVersion"] = absl::StrCat(++version_);
  events_.push_back({version_, resource, "DELETED", last.dump()});
  last_[resource] = version_;
  all.erase(object);
}

void FakeStore::Set(const std::string& resource, const std::vector<std::string>& texts) {
  absl::MutexLock lock(&mutex_);
  std::map<Key, std::string> wanted;
  for (size_t i = 0; i < texts.size(); ++i) {
    const json object = Parse(texts[i]);
    std::string name = MemberOf(object, "name");
    if (name.empty()) name = absl::StrCat("object-", i);
    wanted[Key(MemberOf(object, "namespace"), name)] = texts[i];
  }
  std::set<Key> gone;
  for (const auto& [key, object] : objects_[resource]) {
    if (!wanted.contains(key)) gone.insert(key);
  }
  for (const Key& key : gone) Delete(resource, key);
  for (const auto& [key, text] : wanted) {
    const auto old = objects_[resource].find(key);
    if (old != objects_[resource].end()) {
      json before = Parse(old->second.text), now = Parse(text);
      for (json* const object : {&before, &now}) {
        object->erase("kind");
        object->erase("apiVersion");
        (*object)["metadata"].erase("resourceVersion");
        (*object)["metadata"].erase("name");
      }
      if (before == now) continue;
    }
    Put(resource, key, text);
  }
}

std::optional<std::string> FakeStore::Create(const std::string& resource, const std::string& text) {
  const json object = Parse(text);
  absl::MutexLock lock(&mutex_);
  const Key key(MemberOf(object, "namespace"), MemberOf(object, "name"));
  if (objects_[resource].contains(key)) return std::nullopt;
  ++writes_;
  return Put(resource, key, text);
}

std::optional<std::string> FakeStore::Replace(const std::string& resource, const std::string& name,
                                              const std::string& text) {
  const json object = Parse(text);
  absl::MutexLock lock(&mutex_);
  const Key key(MemberOf(object, "namespace"), name);
  const auto old = objects_[resource].find(key);
  if (old == objects_[resource].end()) return std::nullopt;
  if (MemberOf(object, "resourceVersion") != MemberOf(Parse(old->second.text), "resourceVersion")) {
    return std::nullopt;
  }
  ++writes_;
  return Put(resource, key, text);
}

std::optional<std::string> FakeStore::Get(const std::string& resource,
                                          const std::string& name_space,
                                          const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  const auto all = objects_.find(resource);
  if (all == objects_.end()) return std::nullopt;
  const auto object = all->second.find(Key(name_space, name));
  if (object == all->second.end()) return std::nullopt;
  return object->second.text;
}

std::vector<std::string> FakeStore::All(const std::string& resource) const {
  return List(resource, 0, SIZE_MAX).objects;
}

FakeStore::Part FakeStore::List(const std::string& resource, size_t begin, size_t most) const {
  absl::MutexLock lock(&mutex_);
  Part part;
  part.version = version_;
  const auto all = objects_.find(resource);
  if (all == objects_.end()) return part;
  size_t at = 0;
  for (const auto& [key, object] : all->second) {
    if (at >= begin && part.objects.size() < most) part.objects.push_back(object.text);
    ++at;
  }
  const size_t end = begin + part.objects.size();
  if (end < all->second.size()) part.next = absl::StrCat(end);
  return part;
}

void FakeStore::SetGroupVersion(const std::string& version) {
  absl::MutexLock lock(&mutex_);
  group_version_ = version;
}
std::string FakeStore::group_version() const {
  absl::MutexLock lock(&mutex_);
  return group_version_;
}

std::optional<std::vector<FakeStore::Event>> FakeStore::EventsAfter(const std::string& resource,
                                                                    uint64_t version,
                                                                    absl::Time until) const {
  absl::MutexLock lock(&mutex_);
  const auto has_news = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto last = last_.find(resource);
    return version < forgotten_ || (last != last_.end() && last->second > version);
  };
  mutex_.AwaitWithDeadline(absl::Condition(&has_news), until);
  if (version < forgotten_) return std::nullopt;
  std::vector<Event> events;
  for (const Event& event : events_) {
    if (event.version > version && event.resource == resource) events.push_back(event);
  }
  return events;
}

void FakeStore::Compact() {
  absl::MutexLock lock(&mutex_);
  events_.clear();
  forgotten_ = ++version_;
}
uint64_t FakeStore::version() const {
  absl::MutexLock lock(&mutex_);
  return version_;
}
int FakeStore::writes() const {
  absl::MutexLock lock(&mutex_);
  return writes_;
}

}  // namespace gpumem::kubernetes
