// SPDX-License-Identifier: Apache-2.0
// A daemon under attack, and a bystander whose work must not suffer from it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/bytes.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/daemon_process.h"
#include "tests/support/wire.h"

namespace gpumem::testing {

// Tenants "good" (the default), "bad" and "other" on two devices of 256 MiB. This process
// may be any; "bad" may have 8 calls in flight.
extern const char kAttackConfig[];

// Does what clients do, over and over, in a separate thread: connects, acquires, shares, opens,
// releases.
class Bystander {
 public:
  explicit Bystander(const DaemonProcess* daemon);
  ~Bystander() { Stop(); }
  // Ends its work; returns the first error, "" if there was none.
  std::string Stop();
  int rounds() const { return rounds_; }
  // Blocks until it has done `rounds` more; false if it failed.
  bool WaitForMore(int rounds);

 private:
  void Work();
  absl::Status Round();

  const DaemonProcess* const daemon_;
  std::unique_ptr<Client> client_;
  std::atomic<int> rounds_ = 0;
  std::atomic<bool> working_ = true;
  absl::Notification stop_;
  absl::Mutex mutex_;
  std::string trouble_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Each test attacks; in the end the fixture sees to it that the bystander has not noticed,
// and that the daemon has as many sessions, bytes and descriptors as before.
class AttackTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({.config = kAttackConfig}); }
  void TearDown() override;
  void Start(const DaemonOptions& options);

  // Blocks until the bystander has done some more of its work.
  void ExpectBystanderWorks();

  WireSession Connect() { return WireSession(daemon_->Socket("session.sock")); }
  // A session of this tenant.
  WireSession Session(absl::string_view tenant = "bad");
  // Returns the daemon's answer to a client whose first packet this is; it closes after that.
  // Descriptors count as refused if the kernel does not even let them be sent (SO_PASSRIGHTS).
  absl::Status AnswerTo(absl::string_view packet, absl::Span<const int> fds = {});
  absl::Status AnswerTo(const v1::Hello& hello) { return AnswerTo(hello.SerializeAsString()); }
  // The daemon does nothing until it is sent SIGCONT.
  void StopDaemon();
  // The gRPC connection of another session, of tenant "other", that ends with the channel.
  std::shared_ptr<grpc::Channel> OtherChannel() {
    return ChannelOfSession(daemon_->Socket("session.sock"), "other");
  }
  std::unique_ptr<v1::Broker::Stub> NewBroker() { return v1::Broker::NewStub(OtherChannel()); }
  v1::GetStatusResponse Status();

  std::unique_ptr<DaemonProcess> daemon_;
  std::shared_ptr<grpc::Channel> admin_channel_;
  std::unique_ptr<Bystander> bystander_;

 private:
  // The daemon's resources while only the bystander's tenant uses it.
  struct Holdings {
    uint32_t sessions = 0, segments = 0;
    uint64_t charged = 0;
    int fds = 0;
    bool operator==(const Holdings&) const = default;
  };
  Holdings Look();
  Holdings before_;
};

}  // namespace gpumem::testing
