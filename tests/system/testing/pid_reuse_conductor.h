// SPDX-License-Identifier: Apache-2.0
// Gives one number to two processes, over and over, while a daemon looks; and checks for whom the
// daemon takes them.
#pragma once

#include <sys/un.h>

#include <cstdint>
#include <memory>
#include <string>

#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/daemon_process.h"
#include "tests/support/live_cgroup.h"
#include "tests/support/wire.h"
#include "tests/system/testing/numbered_process.h"

namespace gpumem::testing {

class Conductor {
 public:
  explicit Conductor(int rounds) : rounds_(rounds) {}
  // Kills the processes, so that none is left in the groups, also after an error.
  ~Conductor() { Kill(); }

  // Returns the outcome: "done: …", "wrong: …", or why it cannot run.
  std::string Run();

 private:
  std::string Prepare();

  // The tenants that the two may be.
  std::string TenantOf(const Part& part) const;

  // By turns: the daemon looks when the second process has the first one's number already; and
  // it looks whenever it likes, and the first process says Hello itself.
  std::string RoundOfTwo(int round);

  // Compares WhoAmI's answer for a session with this part.
  std::string WhoIs(WireSession& session, const Part& part);

  // The first process holds memory when it dies. Another one has its number at once, and lives:
  // the memory comes back all the same.
  std::string RoundWithCharges();

  uint64_t ChargedTo(const std::string& tenant);

  // No session has the credentials of the one and the name of the other.
  std::string LookAtSessions();

  std::string LookAtTheEnd();

  const int rounds_;
  const std::string hello_ = HelloOf("").SerializeAsString();
  Part first_{"first", 1001, ""};
  Part second_{"second", 1002, ""};
  bool other_users_ = false;
  bool groups_ = false;
  std::unique_ptr<LiveCgroup> first_group_, second_group_;
  std::unique_ptr<DaemonProcess> daemon_;
  sockaddr_un address_{};
  std::unique_ptr<v1::Admin::Stub> admin_;
  int refused_ = 0, welcomed_ = 0, charged_ = 0;
};

}  // namespace gpumem::testing
