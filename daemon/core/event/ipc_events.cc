// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/event/ipc_events.h"

namespace gpumemd {
namespace {

// Removes the event from a set of `index`, if it is there.
template <typename Index, typename Key>
void Forget(Index& index, const Key& key, IpcEventId id) {
  auto entry = index.find(key);
  if (entry == index.end()) return;
  entry->second.erase(id);
  if (entry->second.empty()) index.erase(entry);
}

}  // namespace

std::optional<IpcEventId> IpcEvents::Add(Event event) {
  if (!event.lease && by_name_.contains(std::pair(event.tenant, event.name))) return std::nullopt;
  const IpcEventId id{next_};
  Restore(id, std::move(event));
  return id;
}

void IpcEvents::Restore(IpcEventId id, Event event) {
  GoOnAfter(ToInt(id));
  if (event.lease) {
    by_segment_[event.segment].insert(id);
    by_lease_[*event.lease].insert(id);
  } else if (!event.name.empty()) {
    by_name_.emplace(std::pair(event.tenant, event.name), id);
  }
  by_session_[event.session].insert(id);
  ++by_books_[event.books];
  events_.emplace(id, std::move(event));
}

IpcEvents::Event* IpcEvents::FindByName(const std::string& tenant, const std::string& name,
                                        IpcEventId* id) {
  auto it = by_name_.find(std::pair(tenant, name));
  if (it == by_name_.end()) return nullptr;
  *id = it->second;
  return &events_.at(it->second);
}

std::vector<std::pair<IpcEventId, IpcEvents::Event*>> IpcEvents::FindBySegment(SegmentId segment) {
  std::vector<std::pair<IpcEventId, Event*>> found;
  auto it = by_segment_.find(segment);
  if (it == by_segment_.end()) return found;
  for (IpcEventId id : it->second) found.emplace_back(id, &events_.at(id));
  return found;
}

const IpcEvents::Event* IpcEvents::Find(IpcEventId id) const {
  auto it = events_.find(id);
  return it == events_.end() ? nullptr : &it->second;
}

void IpcEvents::Remove(IpcEventId id) {
  auto it = events_.find(id);
  const Event& event = it->second;
  Forget(by_session_, event.session, id);
  if (auto books = by_books_.find(event.books); --books->second == 0) by_books_.erase(books);
  if (event.lease) {
    Forget(by_segment_, event.segment, id);
    Forget(by_lease_, *event.lease, id);
  } else {
    by_name_.erase(std::pair(event.tenant, event.name));
  }
  events_.erase(it);
}

std::optional<IpcEventId> IpcEvents::AnyOf(SessionId session) const {
  auto it = by_session_.find(session);
  if (it == by_session_.end()) return std::nullopt;
  return *it->second.begin();
}

void IpcEvents::MoveTo(SegmentId from, SegmentId to) {
  auto it = by_segment_.find(from);
  if (it == by_segment_.end()) return;
  absl::btree_set<IpcEventId> moved = std::move(it->second);
  by_segment_.erase(it);
  for (IpcEventId id : moved) events_.at(id).segment = to;
  by_segment_[to].merge(moved);
}

void IpcEvents::Swap(SegmentId one, SegmentId other) {
  const SegmentId neither{};
  MoveTo(one, neither);
  MoveTo(other, one);
  MoveTo(neither, other);
}

std::vector<IpcEventId> IpcEvents::LeaseEnded(LeaseId lease) {
  auto it = by_lease_.find(lease);
  if (it == by_lease_.end()) return {};
  std::vector<IpcEventId> hidden(it->second.begin(), it->second.end());
  for (IpcEventId id : hidden) Forget(by_segment_, events_.at(id).segment, id);
  by_lease_.erase(it);
  return hidden;
}

size_t IpcEvents::CountOf(SessionId session) const {
  auto it = by_session_.find(session);
  return it == by_session_.end() ? 0 : it->second.size();
}

size_t IpcEvents::CountOf(const std::string& books) const {
  auto it = by_books_.find(books);
  return it == by_books_.end() ? 0 : it->second;
}

size_t IpcEvents::CountBeside(SegmentId segment) const {
  auto it = by_segment_.find(segment);
  return it == by_segment_.end() ? 0 : it->second.size();
}

}  // namespace gpumemd
