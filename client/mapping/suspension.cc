// SPDX-License-Identifier: Apache-2.0
#include "client/mapping/suspension.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/mapping/kind.h"
#include "client/mapping/remapping.h"
#include "client/session/convert.h"
#include "common/cuda/synchronize.h"
#include "common/failpoint.h"
#include "common/mapping/mapping.h"
#include "common/unix_channel.h"
#include "gpumem/types.h"

namespace gpumem::internal {
namespace {

using State = Suspension::State;
using States = Suspension::States;

// Segments of one call of the protocol.
constexpr size_t kMaxAtOnce = 1024;
// Those that an older daemon resumes in one call.
constexpr size_t kMaxOfOlder = kMaxMessageFds;

// Returns how many segments one call resumes. Their descriptors come together, and are closed once
// the memory is mapped: a process that may have few gets fewer.
size_t MaxResumed() {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return kMaxOfOlder;
  return std::clamp<size_t>(files.rlim_cur / 2, kMaxOfOlder, kMaxAtOnce);
}

// True if fewer segments in one call may help: the daemon is older, or this process has not as many
// descriptors.
bool AreTooMany(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ||
         (absl::IsResourceExhausted(status) && !GetDenial(status).has_value());
}

// Returns how long a Resume in several calls holds the memory of the earlier ones while a later one
// waits. Then it gives all back and begins again: another process may hold a part, too, and wait
// for this one. One of the two has to hold on until the other has given back, which takes as long
// as a copy. So the times differ by chance, and grow with each attempt: the older request wins.
absl::Duration HoldTime(int attempt) {
  constexpr int kMostDoublings = 6;
  const absl::Duration least = absl::Milliseconds(250) * (1 << std::min(attempt, kMostDoublings));
  return least + least * (std::random_device()() % 1000) / 500;
}

template <typename Request>
Request RequestFor(absl::Span<State* const> states) {
  Request request;
  for (const State* state : states) request.add_lease_ids(state->mapped.lease.lease_id());
  return request;
}

// Returns the states in calls of at most so many: each of one device, by address.
std::vector<States> GroupsOf(const States& states, size_t most) {
  std::map<std::string, States> by_device;
  for (State* state : states) by_device[state->mapped.lease.device_uuid()].push_back(state);
  std::vector<States> groups;
  for (auto& [device, all] : by_device) {
    std::sort(all.begin(), all.end(), [](const State* a, const State* b) {
      return a->reserved->options.address < b->reserved->options.address;
    });
    for (size_t i = 0; i < all.size(); i += most) {
      const size_t end = std::min(all.size(), i + most);
      groups.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(i),
                          all.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  return groups;
}

// Maps fresh memory at the addresses of unmapped segments.
absl::Status MapResumed(absl::Span<State* const> states, absl::Span<const UniqueFd> fds) {
  absl::Status status =
      Remapping::MapReserved(states, [&](size_t first, size_t count, const MapOptions& options) {
        std::vector<MapRequest> requests;
        for (size_t i = first; i < first + count; ++i) {
          requests.push_back({.fd = fds[i].get(), .bytes = states[i]->reserved->bytes});
        }
        return states[first]->mapped.backend == Backend::kCuda ? MapCuda(requests, options)
                                                               : MapHost(requests, options);
      });
  if (status.ok()) return status;
  // The arguments are the daemon's and this library's, not the caller's.
  return absl::Status(
      absl::IsResourceExhausted(status) ? status.code() : absl::StatusCode::kInternal,
      absl::StrCat("cannot map resumed segments: ", status.message()));
}

}  // namespace

absl::StatusOr<Suspension> Suspension::Of(std::shared_ptr<Session> session,
                                          absl::Span<Segment* const> segments, bool suspended) {
  absl::StatusOr<States> states = Remapping::StatesOf(session, segments);
  if (!states.ok()) return states.status();
  for (const Segment* segment : segments) {
    if (!TraitsOf(segment->kind()).suspendable) {
      return absl::UnimplementedError(absl::StrCat(
          "a segment of kind ", KindName(segment->kind()), " cannot be suspended; kind ",
          KindName(Kind::kVmm), " can be", segment->demoted() ? ": promote it first" : ""));
    }
    if (segment->suspended() != suspended) {
      return absl::FailedPreconditionError(
          absl::StrCat("the segment of lease ", segment->lease_id(),
                       suspended ? " is not suspended" : " is suspended already: resume it first"));
    }
  }
  return Suspension(std::move(session), *std::move(states));
}

absl::Time Suspension::Deadline(std::optional<absl::Duration> timeout) const {
  return Remapping::Deadline(*session_, states_, timeout);
}

absl::Status Suspension::Quiesce(const SuspendOptions& options) const {
  if (options.quiesce) return options.quiesce();
  return SynchronizeDevices(Remapping::DevicesOf(states_));
}

absl::Status Suspension::Unmap(absl::Span<State* const> states) {
  for (State* state : states) {
    if (absl::Status status = Remapping::Unmap(state); !status.ok()) return status;
    Failpoint("client-suspend-unmapped");
  }
  return absl::OkStatus();
}

absl::Status Suspension::Suspend(const SuspendOptions& options) {
  const absl::Span<State* const> all = states_;
  for (size_t done = 0; done < all.size(); done += kMaxAtOnce) {
    const absl::Status status =
        SuspendPart(all.subspan(done, kMaxAtOnce), options, /*quiesces=*/done == 0);
    if (!status.ok()) return Undo(status, options.timeout);
  }
  return absl::OkStatus();
}

absl::Status Suspension::SuspendPart(absl::Span<State* const> part, const SuspendOptions& options,
                                     bool quiesces) {
  const absl::StatusOr<v1::PrepareSuspendResponse> prepared = session_->PrepareSuspend(
      RequestFor<v1::PrepareSuspendRequest>(part), session_->Deadline(options.timeout));
  if (!prepared.ok()) return prepared.status();
  absl::Status status = quiesces ? Quiesce(options) : absl::OkStatus();
  if (status.ok()) status = Unmap(part);
  if (!status.ok()) {
    session_->CancelSuspend(prepared->suspension_id());
    return status;
  }
  auto request = RequestFor<v1::SuspendRequest>(part);
  request.set_suspension_id(prepared->suspension_id());
  return session_->Suspend(request, Deadline(options.timeout)).status();
}

absl::Status Suspension::Undo(const absl::Status& error, std::optional<absl::Duration> timeout) {
  States unmapped;
  std::copy_if(states_.begin(), states_.end(), std::back_inserter(unmapped),
               [](const State* state) { return state->reserved.has_value(); });
  const absl::Status restored = Restore(
      unmapped, {.wait = absl::ZeroDuration(), .timeout = timeout, .disturbance = Disturbance()});
  if (restored.ok()) return error;
  absl::Status both(error.code(),
                    absl::StrCat(error.message(),
                                 "; the segments stay suspended, since they could not be mapped "
                                 "again: ",
                                 restored.message()));
  error.ForEachPayload([&both](absl::string_view type, const absl::Cord& payload) {
    both.SetPayload(type, payload);
  });
  return both;
}

absl::Status Suspension::Resume(absl::Duration wait, std::optional<absl::Duration> timeout,
                                const Disturbance& disturbance) {
  return Restore(states_, {.wait = wait, .timeout = timeout, .disturbance = disturbance});
}

absl::Status Suspension::Restore(const States& states, const Wait& wait) {
  size_t most = MaxResumed();
  std::vector<States> groups = GroupsOf(states, most);
  const absl::Time end = absl::Now() + wait.wait;
  Wait next = wait;  // of the next call
  for (int attempt = 0;; ++attempt) {
    States asked;
    absl::Status status;
    absl::Time asked_at;
    for (const States& group : groups) {
      asked.insert(asked.end(), group.begin(), group.end());
      asked_at = absl::Now();
      status = RestoreGroup(group, next);
      if (!status.ok()) break;
      next.wait = std::min(std::max(end - absl::Now(), absl::ZeroDuration()), HoldTime(attempt));
    }
    if (status.ok()) return status;
    // A refusal that comes at once would come again at once. The clocks may differ somewhat.
    const bool waited = absl::Now() - asked_at >= next.wait / 2;
    // The daemon may have resumed the last group, too: its answer may be lost.
    const bool all_back = PutBack(asked, wait.timeout);
    const bool held_some = asked.size() > groups.front().size();
    next.wait = end - absl::Now();
    if (most > kMaxOfOlder && states.size() > kMaxOfOlder && all_back && AreTooMany(status)) {
      most = kMaxOfOlder;
      groups = GroupsOf(states, most);
      next.wait = std::max(next.wait, absl::ZeroDuration());
      --attempt;  // nothing was waited for
      continue;
    }
    if (!held_some || !waited || !all_back || !absl::IsResourceExhausted(status) ||
        next.wait <= absl::ZeroDuration()) {
      return status;
    }
  }
}

absl::Status Suspension::RestoreGroup(const States& group, const Wait& wait) {
  auto request = RequestFor<v1::ResumeRequest>(group);
  request.set_wait_ms(ToWaitMs(wait.wait));
  const absl::StatusOr<Session::Resumed> resumed =
      session_->Resume(request, Deadline(wait.timeout) + wait.wait, wait.disturbance);
  if (!resumed.ok()) return resumed.status();
  for (size_t i = 0; i < group.size(); ++i) {
    if (resumed->leases[i].size_bytes() == group[i]->reserved->bytes) continue;
    return absl::InternalError(
        absl::StrCat("suspended ", group[i]->reserved->bytes, " bytes, the daemon resumed ",
                     resumed->leases[i].size_bytes(), "; this is a defect of gpumem"));
  }
  if (absl::Status status = MapResumed(group, resumed->fds); !status.ok()) return status;
  for (size_t i = 0; i < group.size(); ++i) {
    group[i]->mapped.lease.set_segment_id(resumed->leases[i].segment_id());
  }
  Failpoint("client-resumed");
  return absl::OkStatus();
}

bool Suspension::PutBack(const States& states, std::optional<absl::Duration> timeout) {
  States unmapped;
  for (State* state : states) {
    if (state->reserved.has_value() || Remapping::Unmap(state).ok()) unmapped.push_back(state);
  }
  // Without it the memory stays on the device until the next Resume or Release.
  const absl::Span<State* const> all = unmapped;
  for (size_t done = 0; done < all.size(); done += kMaxAtOnce) {
    const auto request = RequestFor<v1::SuspendRequest>(all.subspan(done, kMaxAtOnce));
    session_->SuspendAgain(request, Deadline(timeout)).IgnoreError();
  }
  return unmapped.size() == states.size();
}

}  // namespace gpumem::internal
