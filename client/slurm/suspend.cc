// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/suspend.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/slurm/tenant.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::slurm {
namespace {

using v1::Admin;

constexpr size_t kMostAtATime = 32;  // at a time; the daemon has 64 threads for operators

// Returns the live sessions of the tenant and of those below it.
absl::StatusOr<std::vector<v1::SessionInfo>> SessionsOf(Daemon& daemon, const std::string& tenant) {
  auto tenants = daemon.Call(&Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!tenants.ok()) return tenants.status();
  auto sessions = daemon.Call(&Admin::Stub::ListSessions, v1::ListSessionsRequest());
  if (!sessions.ok()) return sessions.status();
  std::set<std::string> names = {tenant};
  // There are eight levels at most.
  for (int level = 0; level < 8; ++level) {
    for (const v1::TenantInfo& info : tenants->tenants()) {
      if (names.count(info.quota().parent()) > 0) names.insert(info.usage().tenant());
    }
  }
  std::vector<v1::SessionInfo> found;
  for (const v1::SessionInfo& session : sessions->sessions()) {
    if (session.state() == v1::SessionInfo::STATE_LIVE && names.count(session.tenant()) > 0) {
      found.push_back(session);
    }
  }
  return found;
}

// Makes one call for each session, side by side: processes of a parallel job may wait for one
// another. `bytes` reads an answer. Returns the sum, or the first error.
template <typename Request, typename Response, typename Bytes>
absl::StatusOr<uint64_t> AskAll(const Node& node, const std::vector<v1::SessionInfo>& sessions,
                                grpc::Status (Admin::Stub::*method)(grpc::ClientContext*,
                                                                    const Request&, Response*),
                                const Bytes& bytes) {
  std::vector<absl::StatusOr<uint64_t>> answers(sessions.size(), uint64_t{0});
  std::atomic<size_t> next = 0;
  const auto ask = [&] {
    Daemon daemon(node);
    for (size_t i = next++; i < sessions.size(); i = next++) {
      Request request;
      request.set_session_id(sessions[i].session_id());
      request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(node.patience)));
      auto response = daemon.Call(method, request);
      if (response.ok()) {
        answers[i] = bytes(*response);
      } else {
        answers[i] =
            absl::Status(response.status().code(),
                         absl::StrCat("pid ", sessions[i].pid(), " ", sessions[i].command(), ": ",
                                      response.status().message()));
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(sessions.size(), kMostAtATime); ++i) threads.emplace_back(ask);
  for (std::thread& thread : threads) thread.join();
  uint64_t sum = 0;
  for (const absl::StatusOr<uint64_t>& answer : answers) {
    if (!answer.ok()) return answer.status();
    sum += *answer;
  }
  return sum;
}

absl::StatusOr<uint64_t> ResumeAll(const Node& node, const std::vector<v1::SessionInfo>& sessions) {
  return AskAll(node, sessions, &Admin::Stub::ResumeSession,
                [](const v1::ResumeSessionResponse& it) { return it.resumed_bytes(); });
}

absl::Status SetGuaranteesAside(Daemon& daemon, const std::string& tenant) {
  v1::GetQuotaRequest get;
  get.set_tenant(tenant);
  auto quota = daemon.Call(&Admin::Stub::GetQuota, get);
  if (!quota.ok()) return quota.status();
  if (quota->quota().guarantees().empty()) return absl::OkStatus();
  // On top of the tenant's own, which come back when it is unset.
  v1::SetQuotaRequest request;
  request.set_tenant(tenant);
  for (const v1::DeviceGuarantee& guarantee : quota->quota().guarantees()) {
    request.mutable_quota()->add_guarantees()->set_device_uuid(guarantee.device_uuid());
  }
  return daemon.Call(&Admin::Stub::SetQuota, request).status();
}

}  // namespace

absl::StatusOr<uint64_t> SuspendMemory(const Node& node, const std::string& tenant) {
  Daemon daemon(node);
  const auto sessions = SessionsOf(daemon, tenant);
  if (!sessions.ok()) return sessions.status();
  std::vector<v1::SessionInfo> asked;
  std::vector<std::string> deaf;
  for (const v1::SessionInfo& session : *sessions) {
    if (session.leased_bytes() <= session.suspended_bytes()) continue;
    if (session.serves_suspension()) {
      asked.push_back(session);
    } else {
      deaf.push_back(absl::StrCat("pid ", session.pid(), " ", session.command()));
    }
  }
  if (!deaf.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("cannot suspend the memory of ",
                                                      absl::StrJoin(deaf, ", "),
                                                      ": the program does not serve suspensions"));
  }
  auto moved = AskAll(node, asked, &Admin::Stub::SuspendSession,
                      [](const v1::SuspendSessionResponse& it) { return it.moved_bytes(); });
  absl::Status failed = moved.status();
  if (failed.ok()) failed = SetGuaranteesAside(daemon, tenant);
  if (failed.ok()) return moved;
  (void)ResumeAll(node, asked);
  return failed;
}

absl::Status RestoreGuarantees(const Node& node, const std::string& tenant) {
  Daemon daemon(node);
  v1::GetQuotaRequest get;
  get.set_tenant(tenant);
  const auto quota = daemon.Call(&Admin::Stub::GetQuota, get);
  if (!quota.ok()) return quota.status();
  // A tenant without guarantees, or an earlier call that has failed later.
  const auto& overridden = quota->overridden();
  if (std::find(overridden.begin(), overridden.end(), "guarantees") == overridden.end()) {
    return absl::OkStatus();
  }
  return UnsetGuarantees(daemon, tenant);
}

absl::StatusOr<uint64_t> ResumeMemory(const Node& node, const std::string& tenant) {
  Daemon daemon(node);
  const auto sessions = SessionsOf(daemon, tenant);
  if (!sessions.ok()) return sessions.status();
  std::vector<v1::SessionInfo> asked;
  for (const v1::SessionInfo& session : *sessions) {
    if (session.suspended_bytes() > 0 && session.serves_suspension()) asked.push_back(session);
  }
  return ResumeAll(node, asked);
}

}  // namespace gpumem::slurm
