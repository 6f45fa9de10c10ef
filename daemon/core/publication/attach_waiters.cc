// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/publication/attach_waiters.h"

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/publication/claims.h"

namespace gpumemd {

WaiterId AttachWaiters::Add(records::AttachWaiter waiter) {
  const WaiterId id{state_.next_waiter++};
  records::Session& session = *state_.sessions.at(waiter.session);
  if (waiter.content_id.empty()) {
    of_names_.emplace(waiter.name, id);
  } else {
    of_contents_.emplace(waiter.contents(), id);
    session.contents_awaited.emplace(waiter.request_id, id);
  }
  state_.attach_waiters.emplace(id, std::move(waiter));
  session.attach_waiters.insert(id);
  Tenants::CountWaiting(*session.tenant, 1);
  --session.in_flight;
  --session.tenant->books->in_flight;
  return id;
}

void AttachWaiters::Remove(WaiterId id) {
  auto it = state_.attach_waiters.find(id);
  const records::AttachWaiter& waiter = it->second;
  records::Session& session = *state_.sessions.at(waiter.session);
  session.attach_waiters.erase(id);
  Tenants::CountWaiting(*session.tenant, -1);
  ++session.in_flight;
  ++session.tenant->books->in_flight;
  if (waiter.content_id.empty()) {
    of_names_.erase({waiter.name, id});
  } else {
    of_contents_.erase({waiter.contents(), id});
    session.contents_awaited.erase(waiter.request_id);
  }
  state_.attach_waiters.erase(it);
}

void AttachWaiters::Wake(WaiterId id) {
  Remove(id);
  effects_.attachable.push_back(id);
}

void AttachWaiters::WakeFor(const records::Publication& publication) {
  const Name name(publication.tenant->name, publication.name);
  for (auto it = of_names_.lower_bound({name, WaiterId{}});
       it != of_names_.end() && it->first == name;) {
    const WaiterId id = (it++)->second;
    const records::AttachWaiter& waiter = state_.attach_waiters.at(id);
    if (waiter.version <= publication.version &&
        state_.MayAttach(publication, *state_.sessions.at(waiter.session)->tenant)) {
      Wake(id);
    }
  }
  if (publication.content_id.empty()) return;
  const records::Contents contents{name.first, name.second, publication.content_id};
  while (const std::optional<WaiterId> id = FirstFor(contents)) Wake(*id);
}

std::optional<WaiterId> AttachWaiters::FirstFor(const records::Contents& contents) const {
  const auto it = of_contents_.lower_bound({contents, WaiterId{}});
  if (it == of_contents_.end() || it->first != contents) return std::nullopt;
  return it->second;
}

absl::Status AttachWaiters::EndWait(WaiterId id, bool expired) {
  const records::AttachWaiter waiter = state_.attach_waiters.at(id);
  Remove(id);
  return expired ? Expired(waiter) : GivenUp();
}

absl::Status AttachWaiters::Expired(const records::AttachWaiter& waiter) const {
  if (!waiter.content_id.empty()) return ClaimedByAnother(state_, waiter.contents());
  const records::Publication* found =
      state_.FindPublication(waiter.name, state_.sessions.at(waiter.session)->tenant);
  return absl::DeadlineExceededError(absl::StrCat(
      "version ", waiter.version, " of publication \"", waiter.name.second, "\" of tenant ",
      waiter.name.first, " was not published in time",
      found == nullptr ? absl::StrCat(": there is none of that name that this tenant may attach to")
                       : absl::StrCat("; the newest is ", found->version)));
}

void AttachWaiters::EndWaitsOf(const records::Session& session) {
  while (!session.attach_waiters.empty()) Wake(*session.attach_waiters.begin());
}

void AttachWaiters::EndAllWaits() {
  while (!state_.attach_waiters.empty()) Wake(state_.attach_waiters.begin()->first);
}

}  // namespace gpumemd
