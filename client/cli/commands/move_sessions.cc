// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/move_sessions.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands/caution.h"
#include "client/cli/commands/connection.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

// The most sessions asked at a time. Those of one parallel job may wait for one another, so many;
// the daemon has 64 threads for all operators' calls.
constexpr size_t kMaxAsked = 32;

// What a session has answered.
struct Answer {
  std::string text;  // for people
  Json json;
};

std::string View(const v1::SuspendSessionResponse& response, bool exact) {
  if (response.suspended_leases() == 0) return "Nothing to do: all is suspended already.\n";
  std::string text =
      absl::StrCat("Suspended ", Counted(response.suspended_leases(), "lease"), ": moved ",
                   Size(response.moved_bytes(), exact), " to the host tier.\n");
  if (response.dropped_bytes() > 0) {
    absl::StrAppend(&text, "Dropped ", Size(response.dropped_bytes(), exact),
                    " of scratch memory.\n");
  }
  if (response.resident_bytes() > 0) {
    absl::StrAppend(&text, "Other sessions still use ", Size(response.resident_bytes(), exact),
                    ", which stays on its device.\n");
  }
  return text;
}

std::string View(const v1::ResumeSessionResponse& response, bool exact) {
  if (response.resumed_leases() == 0) return "Nothing to do: nothing is suspended.\n";
  return absl::StrCat("Resumed ", Counted(response.resumed_leases(), "lease"), ": ",
                      Size(response.resumed_bytes(), exact), " on the devices.\n");
}

std::string View(const v1::DemoteSessionResponse& response, bool exact) {
  if (response.demoted_leases() == 0) return "Nothing to do: all is demoted already.\n";
  return absl::StrCat("Demoted ", Counted(response.demoted_leases(), "lease"), ": ",
                      Size(response.demoted_bytes(), exact), " in host memory.\n");
}

std::string View(const v1::PromoteSessionResponse& response, bool exact) {
  if (response.promoted_leases() == 0) return "Nothing to do: nothing is demoted.\n";
  return absl::StrCat("Promoted ", Counted(response.promoted_leases(), "lease"), ": ",
                      Size(response.promoted_bytes(), exact), " on the devices.\n");
}

class Mover {
 public:
  Mover(AdminConnection* admin, SessionMove move, const std::string& tag,
        const GlobalOptions& options)
      : admin_(*admin), move_(move), tag_(tag), options_(options) {}

  absl::StatusOr<Answer> Move(uint64_t session) const {
    switch (move_) {
      case SessionMove::kSuspend:
        return Ask(&Admin::Stub::SuspendSession, session);
      case SessionMove::kResume:
        return Ask(&Admin::Stub::ResumeSession, session);
      case SessionMove::kDemote:
        return Ask(&Admin::Stub::DemoteSession, session);
      case SessionMove::kPromote:
        break;
    }
    return Ask(&Admin::Stub::PromoteSession, session);
  }

  // Returns the answers in the order of `sessions`.
  std::vector<absl::StatusOr<Answer>> Move(const std::vector<v1::SessionInfo>& sessions) const {
    std::vector<absl::StatusOr<Answer>> answers(sessions.size());
    std::atomic<size_t> next = 0;
    const auto ask = [&] {
      for (size_t i = next++; i < sessions.size(); i = next++) {
        answers[i] = Move(sessions[i].session_id());
      }
    };
    std::vector<std::thread> threads;
    for (size_t i = 0; i < std::min(sessions.size(), kMaxAsked); ++i) threads.emplace_back(ask);
    for (std::thread& thread : threads) thread.join();
    return answers;
  }

 private:
  template <typename Request, typename Response>
  absl::StatusOr<Answer> Ask(grpc::Status (Admin::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Response*),
                             uint64_t session) const {
    Request request;
    request.set_session_id(session);
    request.set_tag(tag_);
    request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(MoveTimeout(options_))));
    auto response = Call(admin_, method, request);
    if (!response.ok()) return response.status();
    return Answer{View(*response, options_.exact), ToJson(*response)};
  }

  AdminConnection& admin_;
  const SessionMove move_;
  const std::string& tag_;
  const GlobalOptions& options_;
};

// Prints the answers of all sessions of a tenant. Returns the first error, with the number of
// sessions that have one.
absl::Status PrintAnswers(const std::vector<v1::SessionInfo>& sessions,
                          const std::vector<absl::StatusOr<Answer>>& answers,
                          const std::string& tenant, const GlobalOptions& options) {
  Json json = Json::object();
  json["tenant"] = tenant;
  json["sessions"] = Json::array();
  std::string text;
  absl::Status first;
  size_t failed = 0;
  for (size_t i = 0; i < sessions.size(); ++i) {
    const uint64_t session = sessions[i].session_id();
    const absl::Status& status = answers[i].status();
    Json entry = Json::object();
    entry["session_id"] = session;
    entry["pid"] = sessions[i].pid();
    entry["error"] = status.ok() ? Json() : ErrorJson(status)["error"];
    entry["answer"] = status.ok() ? answers[i]->json : Json();
    json["sessions"].push_back(std::move(entry));
    if (status.ok()) {
      absl::StrAppend(&text, "Session ", session, ", pid ", sessions[i].pid(), ": ",
                      answers[i]->text);
      continue;
    }
    absl::StrAppend(&text, "Session ", session, ", pid ", sessions[i].pid(),
                    ": failed: ", status.message(), "\n");
    if (failed++ == 0) first = status;
  }
  if (sessions.empty()) text = "Nothing to do: no session has memory for it.\n";
  Print(options.json ? Document(json) : text);
  if (failed == 0) return absl::OkStatus();
  return absl::Status(first.code(),
                      absl::StrCat(failed, " of ", Counted(sessions.size(), "session"),
                                   " failed; the first: ", first.message()));
}

absl::StatusOr<std::vector<v1::SessionInfo>> SessionsOf(AdminConnection& admin, SessionMove move,
                                                        const std::string& tenant) {
  auto tenants = Call(admin, &Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!tenants.ok()) return tenants.status();
  auto sessions = Call(admin, &Admin::Stub::ListSessions, v1::ListSessionsRequest());
  if (!sessions.ok()) return sessions.status();
  return SessionsToMove(move, tenant, *tenants, *sessions);
}

}  // namespace

absl::Duration MoveTimeout(const GlobalOptions& options) {
  return std::max(options.timeout.value_or(kCallTimeout), absl::Milliseconds(1));
}

absl::Status MoveSessions(SessionMove move, const SessionSelection& selection,
                          const Caution& caution, const GlobalOptions& options) {
  auto admin = ConnectAdmin(options.runtime_dir, MoveTimeout(options) + kMoveAnswerMargin);
  if (!admin.ok()) return admin.status();
  const std::string name(NameOf(move));
  const Mover mover(admin->get(), move, selection.tag, options);
  if (!selection.tenant.empty()) {
    const auto sessions = SessionsOf(**admin, move, selection.tenant);
    if (!sessions.ok()) return sessions.status();
    const auto effects = [&] {
      return SessionsMoveEffects(move, selection.tag, *sessions, options.exact);
    };
    absl::StatusOr<bool> proceed = Proceed(caution, name, effects, options);
    if (!proceed.ok() || !*proceed) return proceed.status();
    return PrintAnswers(*sessions, mover.Move(*sessions), selection.tenant, options);
  }
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto sessions = Call(**admin, &Admin::Stub::ListSessions, v1::ListSessionsRequest());
    if (!sessions.ok()) return sessions.status();
    return SessionMoveEffects(move, selection.session, selection.tag, *sessions, options.exact);
  };
  absl::StatusOr<bool> proceed = Proceed(caution, name, effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  const auto answer = mover.Move(selection.session);
  if (!answer.ok()) return answer.status();
  Print(options.json ? Document(answer->json) : answer->text);
  return absl::OkStatus();
}

}  // namespace gpumem::cli
