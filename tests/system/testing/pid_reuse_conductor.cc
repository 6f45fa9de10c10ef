// SPDX-License-Identifier: Apache-2.0
#include "tests/system/testing/pid_reuse_conductor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "tests/support/child.h"

namespace gpumem::testing {

std::string Conductor::Run() {
  if (std::string why = Prepare(); !why.empty()) return why;
  for (int round = 0; round < rounds_; ++round) {
    std::string wrong = round % 10 == 9 ? RoundWithCharges() : RoundOfTwo(round);
    if (wrong.empty() && round % 100 == 0) wrong = LookAtSessions();
    if (!wrong.empty()) return absl::StrCat("wrong: in round ", round, ": ", wrong);
  }
  if (std::string wrong = LookAtTheEnd(); !wrong.empty()) return absl::StrCat("wrong: ", wrong);
  return absl::StrCat("done: ", rounds_, " rounds", other_users_ ? ", of several users" : "",
                      groups_ ? ", in several control groups" : "", "; ", refused_, " refused, ",
                      welcomed_, " welcomed, ", charged_, " with charges");
}

std::string Conductor::Prepare() {
  other_users_ = CanBeOtherUsers();
  const std::string slice =
      absl::StrCat("/gpumempids", getpid(), "x", absl::ToUnixMicros(absl::Now()), ".slice");
  auto first = LiveCgroup::Make("", slice + "/first.service");
  if (first.ok() && !InAUnit()) {
    auto second = LiveCgroup::Make("", slice + "/second.service");
    if (second.ok()) {
      first_group_ = *std::move(first);
      second_group_ = *std::move(second);
      first_.procs = first_group_->procs();
      second_.procs = second_group_->procs();
      groups_ = true;
    }
  }
  // Each of the two is a tenant by all of its properties; a mixture of both is "mixed".
  std::string config =
      "[[tenant]]\nname = \"first\"\n[[tenant]]\nname = \"second\"\n"
      "[[tenant]]\nname = \"mixed\"\n";
  const auto rule = [&](const char* tenant, const Part* user, const char* unit) {
    if (!other_users_ && unit == nullptr) return;
    absl::StrAppend(&config, "[[rule]]\ntenant = \"", tenant, "\"\n");
    if (other_users_) absl::StrAppend(&config, "gid = ", user->id, "\n");
    if (unit != nullptr) absl::StrAppend(&config, "unit = \"", unit, ".service\"\n");
  };
  rule("first", &first_, groups_ ? "first" : nullptr);
  rule("second", &second_, groups_ ? "second" : nullptr);
  if (groups_ && other_users_) {
    rule("mixed", &first_, "second");
    rule("mixed", &second_, "first");
  }
  absl::StrAppend(&config, "[[rule]]\ntenant = \"user-{uid}\"\ndefault = true\n");
  auto daemon = DaemonProcess::Start({.config = config, .flags = {"--host-device-bytes", "64MiB"}});
  if (!daemon.ok()) return absl::StrCat("wrong: ", daemon.status().ToString());
  daemon_ = *std::move(daemon);
  address_ = AddressOf(daemon_->Socket("session.sock"));
  admin_ = v1::Admin::NewStub(ChannelTo(daemon_->Socket("admin.sock")));

  const UniqueFd probe = NewEnd();
  if (Start(first_, other_users_, probe.get(), address_, {}) != kNumber) {
    return absl::StrCat("skip: this kernel gives out no number that is asked for: ",
                        strerror(errno));
  }
  if (!Reap()) return "wrong: the first process cannot be what it is to be";
  return "";
}

std::string Conductor::TenantOf(const Part& part) const {
  if (groups_ || other_users_) return part.name;
  return absl::StrCat("user-", geteuid());
}

std::string Conductor::RoundOfTwo(int round) {
  const bool stopped = round % 2 == 0;
  const Life short_life = stopped ? Life{} : Life{.hello = hello_, .yields = round % 50};
  if (stopped) {
    daemon_->child().Signal(SIGSTOP);
    // The signal is on its way until the daemon's threads have all stopped.
    siginfo_t how{};
    waitid(P_PID, static_cast<id_t>(daemon_->pid()), &how, WSTOPPED);
  }
  UniqueFd first_end = NewEnd(), second_end = NewEnd();
  const pid_t first = Start(first_, other_users_, first_end.get(), address_, short_life);
  if (first != kNumber || !Reap()) return "the first process failed";
  const pid_t second = Start(second_, other_users_, second_end.get(), address_, {.stays = true});
  const bool ready = second == kNumber && Connected(second_end.get());
  if (stopped) daemon_->child().Signal(SIGCONT);
  if (!ready) return "the second process failed";

  // A process that kept the first one's socket speaks in its name.
  WireSession of_first(std::move(first_end)), of_second(std::move(second_end));
  if (stopped) (void)of_first.Send(hello_);
  const absl::Status answer = of_first.Answer();
  if (answer.ok()) {
    ++welcomed_;
    if (stopped) return "a process that was gone before the daemon looked was welcomed";
    if (of_first.welcome().tenant() != TenantOf(first_)) {
      return absl::StrCat("the first process was billed as ", of_first.welcome().tenant());
    }
  } else {
    ++refused_;
  }
  const absl::Status alive = of_second.Greet(HelloOf(""));
  std::string wrong;
  if (!alive.ok()) {
    wrong = absl::StrCat("the second process was refused: ", alive.ToString());
  } else if (of_second.welcome().tenant() != TenantOf(second_)) {
    wrong = absl::StrCat("the second process was billed as ", of_second.welcome().tenant());
  } else {
    wrong = WhoIs(of_second, second_);
  }
  // The number lives on, and the session of the first one does not.
  if (wrong.empty() && answer.ok() && of_first.Answer().code() != absl::StatusCode::kCancelled) {
    wrong = "the first process is gone, and its session got no Goodbye";
  }
  Kill();
  return wrong;
}

std::string Conductor::WhoIs(WireSession& session, const Part& part) {
  auto who = CallBroker(*session.TakeBroker(), &v1::Broker::Stub::WhoAmI, v1::WhoAmIRequest(),
                        session.token());
  if (!who.ok()) return who.status().ToString();
  if (other_users_ && (who->identity().uid() != part.id || who->identity().gid() != part.id)) {
    return absl::StrCat("the user of the other one: ", who->ShortDebugString());
  }
  std::string unit;
  for (const v1::CgroupFact& fact : who->identity().facts()) {
    if (fact.name() == "unit" && fact.values_size() == 1) unit = fact.values(0);
  }
  if (groups_ && unit != absl::StrCat(part.name, ".service")) {
    return absl::StrCat("the group of the other one: ", who->ShortDebugString());
  }
  return "";
}

std::string Conductor::RoundWithCharges() {
  UniqueFd first_end = NewEnd(), second_end = NewEnd();
  if (Start(first_, other_users_, first_end.get(), address_, {.stays = true}) != kNumber ||
      !Connected(first_end.get())) {
    return "the first process failed";
  }
  WireSession of_first(std::move(first_end));
  if (absl::Status greeted = of_first.Greet(HelloOf("")); !greeted.ok()) {
    return absl::StrCat("the first process was refused: ", greeted.ToString());
  }
  v1::AcquireRequest acquire;
  acquire.set_bytes(kMiB);
  auto lease =
      CallBroker(*of_first.TakeBroker(), &v1::Broker::Stub::Acquire, acquire, of_first.token());
  if (!lease.ok()) return absl::StrCat("no memory: ", lease.status().ToString());
  if (ChargedTo(TenantOf(first_)) == 0) return "what the first process holds is not charged";
  Kill();
  std::string wrong;
  if (Start(second_, other_users_, second_end.get(), address_, {.stays = true}) != kNumber) {
    return "the second process failed";
  }
  if (!Eventually([&] { return ChargedTo(TenantOf(first_)) == 0; })) {
    wrong = "the first process is gone, and its charges are still there";
  }
  if (wrong.empty() && ChargedTo(TenantOf(second_)) != 0) wrong = "the second one is charged";
  Kill();
  ++charged_;
  return wrong;
}

uint64_t Conductor::ChargedTo(const std::string& tenant) {
  v1::GetQuotaRequest request;
  request.set_tenant(tenant);
  v1::GetQuotaResponse response;
  if (!admin_->GetQuota(ContextWith().get(), request, &response).ok()) return 0;
  return response.usage().charged_bytes();
}

std::string Conductor::LookAtSessions() {
  v1::ListSessionsResponse response;
  const grpc::Status status =
      admin_->ListSessions(ContextWith().get(), v1::ListSessionsRequest(), &response);
  if (!status.ok()) return status.error_message();
  for (const v1::SessionInfo& session : response.sessions()) {
    for (const Part* part : {&first_, &second_}) {
      const bool named = session.command() == part->name;
      if ((other_users_ && named != (session.uid() == part->id)) ||
          ((groups_ || other_users_) && named != (session.tenant() == part->name))) {
        return absl::StrCat("a mixture: ", session.ShortDebugString());
      }
    }
  }
  return "";
}

std::string Conductor::LookAtTheEnd() {
  for (const Part* part : {&first_, &second_}) {
    if (!Eventually([&] { return ChargedTo(TenantOf(*part)) == 0; })) {
      return absl::StrCat(part->name, " is still charged");
    }
  }
  v1::ListSessionsResponse response;
  if (!Eventually([&] {
        return admin_->ListSessions(ContextWith().get(), v1::ListSessionsRequest(), &response)
                   .ok() &&
               response.sessions_size() == 0;
      })) {
    return absl::StrCat("sessions are left: ", response.ShortDebugString());
  }
  return "";
}

}  // namespace gpumem::testing
