// SPDX-License-Identifier: Apache-2.0
#include "tests/support/attack.h"

#include <signal.h>
#include <sys/wait.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gpumem::testing {

const char kAttackConfig[] = R"(
[host]
devices = 2
device_bytes = "256MiB"
[tenant_defaults]
limit = "64MiB"
pinned_limit = "16MiB"
[[tenant]]
name = "good"
[[tenant]]
name = "bad"
max_in_flight = 8
[[tenant]]
name = "other"
[[rule]]
tenant = "good"
default = true
[[rule]]
tenant = "bad"
default = true
[[rule]]
tenant = "other"
default = true
)";

Bystander::Bystander(const DaemonProcess* daemon) : daemon_(daemon), thread_([this] { Work(); }) {}

std::string Bystander::Stop() {
  if (thread_.joinable()) {
    stop_.Notify();
    thread_.join();
  }
  client_.reset();
  absl::MutexLock lock(&mutex_);
  return trouble_;
}

bool Bystander::WaitForMore(int rounds) {
  const int wanted = rounds_ + rounds;
  return Eventually([&] { return rounds_ >= wanted || !working_; }) && rounds_ >= wanted;
}

void Bystander::Work() {
  do {
    if (absl::Status done = Round(); !done.ok()) {
      absl::MutexLock lock(&mutex_);
      trouble_ = absl::StrCat("round ", rounds_.load(), ": ", done.ToString());
      working_ = false;
      return;
    }
    ++rounds_;
    // A pause, so as not to take the processor from the attack.
  } while (!stop_.WaitForNotificationWithTimeout(absl::Milliseconds(2)));
}

absl::Status Bystander::Round() {
  auto fresh = Client::Connect({.runtime_dir = daemon_->runtime_dir(),
                                .tenant = "good",
                                .name = "bystander",
                                .timeout = kAnswerTime});
  if (!fresh.ok()) return fresh.status();
  if (client_ == nullptr) client_ = *std::move(fresh);
  auto segment = client_->Acquire({.bytes = 2 * kMiB});
  if (!segment.ok()) return segment.status();
  static_cast<char*>(segment->data())[5] = 42;
  auto ticket = segment->Share();
  if (!ticket.ok()) return ticket.status();
  auto opened = client_->Open(ticket->value);
  if (!opened.ok()) return opened.status();
  if (static_cast<char*>(opened->data())[5] != 42) return absl::DataLossError("other bytes");
  if (absl::Status released = opened->Release(); !released.ok()) return released;
  return segment->Release();
}

void AttackTest::Start(const DaemonOptions& options) {
  auto daemon = DaemonProcess::Start(options);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  daemon_ = *std::move(daemon);
  admin_channel_ = ChannelTo(daemon_->Socket("admin.sock"));
  // One of everything: gRPC keeps some threads and descriptors once it has needed them.
  for (int i = 0; i < 2; ++i) {
    Bystander first(daemon_.get());
    ASSERT_TRUE(first.WaitForMore(3)) << first.Stop();
  }
  // No client is connected: only the daemon itself holds anything.
  ASSERT_TRUE(Eventually([&] {
    const Holdings now = Look();
    return std::exchange(before_, now) == now && now.sessions == 0 && now.segments == 0;
  })) << Status().DebugString();
  bystander_ = std::make_unique<Bystander>(daemon_.get());
  ExpectBystanderWorks();
}

void AttackTest::TearDown() {
  if (bystander_ == nullptr) return;  // the test has ended its daemon itself
  ExpectBystanderWorks();
  EXPECT_EQ(bystander_->Stop(), "");
  Holdings now;
  EXPECT_TRUE(Eventually([&] {
    now = Look();
    return now.sessions == 0 && now.segments == 0 && now.charged == 0 && now.fds <= before_.fds;
  })) << now.sessions
      << " sessions, " << now.segments << " segments, " << now.charged << " bytes, and " << now.fds
      << " descriptors of " << before_.fds << " before";
}

void AttackTest::ExpectBystanderWorks() {
  EXPECT_TRUE(bystander_->WaitForMore(2)) << bystander_->Stop() << "\n" << daemon_->Log();
}

WireSession AttackTest::Session(absl::string_view tenant) {
  WireSession session = Connect();
  EXPECT_EQ(session.Greet(HelloOf(tenant)).ToString(), "OK");
  return session;
}

absl::Status AttackTest::AnswerTo(absl::string_view packet, absl::Span<const int> fds) {
  WireSession session = Connect();
  const absl::Status sent = session.Send(packet, fds);
  if (!fds.empty() && absl::IsPermissionDenied(sent)) {
    return absl::InvalidArgumentError("the kernel refuses file descriptors here");
  }
  EXPECT_TRUE(sent.ok()) << sent;
  absl::Status answer = session.Answer();
  EXPECT_TRUE(answer.ok() || session.Ended());
  return answer;
}

void AttackTest::StopDaemon() {
  daemon_->child().Signal(SIGSTOP);
  int status = 0;
  EXPECT_EQ(waitpid(daemon_->pid(), &status, WUNTRACED), daemon_->pid());
  EXPECT_TRUE(WIFSTOPPED(status));
}

v1::GetStatusResponse AttackTest::Status() {
  v1::GetStatusResponse response;
  const grpc::Status status =
      v1::Admin::NewStub(admin_channel_)->GetStatus(ContextWith().get(), {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

AttackTest::Holdings AttackTest::Look() {
  const v1::GetStatusResponse status = Status();
  Holdings now{.sessions = status.sessions(), .segments = status.segments()};
  for (const v1::Device& device : status.devices()) now.charged += device.charged_bytes();
  now.fds = daemon_->fds();
  return now;
}

}  // namespace gpumem::testing
