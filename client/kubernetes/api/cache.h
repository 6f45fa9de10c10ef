// SPDX-License-Identifier: Apache-2.0
// The objects of one kind that the API server has, as a list and then a watch tell. Pure.
//
// Texts are untrusted: their size, depth and counts are bounded. Of an object only what its reader
// returns is kept, and of an object that is none of ours nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/kubernetes/api/json_reader.h"

namespace gpumem::kubernetes {

// Bytes of a part of a list, of an object or of an event. etcd keeps objects of 1.5 MiB; the API
// server writes some of their characters as 6 bytes.
inline constexpr size_t kMostText = 12 << 20;
inline constexpr int kMostDepth = 64;
inline constexpr size_t kMostItems = 10'000;     // of a part of a list
inline constexpr size_t kMostObjects = 100'000;  // that are kept

// A part of a list of objects of resource.k8s.io.
struct ListPart {
  Json list;
  std::string next;     // the token of the next part; empty: this is the last one
  std::string version;  // of the list
};
//   INVALID_ARGUMENT    the text is no list of this kind
//   RESOURCE_EXHAUSTED  it is too large, too deep or too long
absl::StatusOr<ListPart> ParseListPart(absl::string_view text, absl::string_view kind);

// An event of a watch.
struct Event {
  enum class Type { kPut, kDelete, kBookmark };
  Type type = Type::kBookmark;
  Json object;  // of kPut and kDelete
  std::string version;
};
//   ABORTED             the API server has forgotten the version from which the watch goes on
//   UNAVAILABLE         it has another error
//   INVALID_ARGUMENT    the text is no event of this kind
//   RESOURCE_EXHAUSTED  it is too large or too deep
absl::StatusOr<Event> ParseEvent(absl::string_view line, absl::string_view kind);

// Returns "NAMESPACE/NAME".
std::string KeyOf(const Json& object);

// What a reflector (reflector.h) fills. After an error of AddPart or Apply the objects are those
// from before, and a new list is due.
class CacheFeed {
 public:
  virtual ~CacheFeed() = default;

  // Begins a list. The objects stay until its last part.
  virtual void BeginList() = 0;
  // Adds a part of the list, and returns the token of the next one; "": the list is complete now,
  // and replaces the objects. Statuses as ParseListPart, and
  //   RESOURCE_EXHAUSTED  more objects than kMostObjects are ours
  virtual absl::StatusOr<std::string> AddPart(absl::string_view text) = 0;
  // Applies a line of a watch. Statuses as ParseEvent, and RESOURCE_EXHAUSTED as AddPart.
  virtual absl::Status Apply(absl::string_view line) = 0;

  // Returns the version from which a watch goes on; empty before the first list.
  virtual const std::string& version() const = 0;
  // How often the objects have changed.
  virtual uint64_t changes() const = 0;
};

template <typename T>
class Cache final : public CacheFeed {
 public:
  // Returns the part of an object that the cache keeps; nullopt: none.
  using Reader = std::function<std::optional<T>(const Json& object)>;

  Cache(std::string kind, Reader read) : kind_(std::move(kind)), read_(std::move(read)) {}

  // Returns the objects, in any order.
  absl::Span<const T> objects() const { return now_.objects; }

  void BeginList() override {
    listed_ = Store();
    listed_version_.clear();
  }

  absl::StatusOr<std::string> AddPart(absl::string_view text) override {
    const auto part = ParseListPart(text, kind_);
    if (!part.ok()) return part.status();
    // A watch from the first part's version sees all that later parts may have missed.
    if (listed_version_.empty()) listed_version_ = part->version;
    for (const Json& item : Array(part->list, "items")) {
      std::optional<T> object = read_(item);
      if (!object.has_value()) continue;
      if (listed_.objects.size() == kMostObjects) return TooMany();
      listed_.Put(KeyOf(item), *std::move(object));
    }
    if (!part->next.empty()) return part->next;
    if (!known_ || !listed_.IsSame(now_)) ++changes_;
    now_ = std::move(listed_);
    listed_ = Store();
    version_ = std::move(listed_version_);
    known_ = true;
    return std::string();
  }

  absl::Status Apply(absl::string_view line) override {
    auto event = ParseEvent(line, kind_);
    if (!event.ok()) return event.status();
    if (event->type != Event::Type::kBookmark) {
      const std::string key = KeyOf(event->object);
      std::optional<T> object;
      if (event->type == Event::Type::kPut) object = read_(event->object);
      if (object.has_value()) {
        if (now_.objects.size() == kMostObjects && !now_.places.contains(key)) return TooMany();
        if (now_.Put(key, *std::move(object))) ++changes_;
      } else if (now_.Remove(key)) {
        ++changes_;
      }
    }
    version_ = std::move(event->version);
    return absl::OkStatus();
  }

  const std::string& version() const override { return version_; }
  uint64_t changes() const override { return changes_; }

 private:
  // Objects in one piece, and where each of them is.
  struct Store {
    std::vector<T> objects;
    std::vector<const std::string*> keys;  // of `places`
    std::map<std::string, size_t> places;

    // True if that changes anything.
    bool Put(const std::string& key, T object) {
      const auto [place, is_new] = places.try_emplace(key, objects.size());
      if (is_new) {
        objects.push_back(std::move(object));
        keys.push_back(&place->first);
        return true;
      }
      T& old = objects[place->second];
      if (old == object) return false;
      old = std::move(object);
      return true;
    }
    bool Remove(const std::string& key) {
      const auto place = places.find(key);
      if (place == places.end()) return false;
      const size_t gap = place->second, last = objects.size() - 1;
      if (gap != last) {
        objects[gap] = std::move(objects[last]);
        keys[gap] = keys[last];
        places.find(*keys[gap])->second = gap;
      }
      objects.pop_back();
      keys.pop_back();
      places.erase(place);
      return true;
    }
    bool IsSame(const Store& other) const {
      if (objects.size() != other.objects.size()) return false;
      for (const auto& [key, place] : places) {
        const auto theirs = other.places.find(key);
        if (theirs == other.places.end()) return false;
        if (objects[place] != other.objects[theirs->second]) return false;
      }
      return true;
    }
  };

  static absl::Status TooMany() {
    return absl::ResourceExhaustedError("the API server has too many objects of ours");
  }

  const std::string kind_;
  const Reader read_;
  Store now_;
  std::string version_;
  bool known_ = false;
  uint64_t changes_ = 0;
  Store listed_;  // of a list that is not complete yet
  std::string listed_version_;
};

}  // namespace gpumem::kubernetes
