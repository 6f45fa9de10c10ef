// SPDX-License-Identifier: Apache-2.0
// gpumemd of this node, as the parts of gpumem-slurm call it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/commands/connection.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"

namespace gpumem::slurm {

struct Node {
  std::string runtime_dir;
  std::string parent;       // of tenants that are made; empty: none
  absl::Duration patience;  // of a whole call, a daemon that restarts meanwhile included
};

// Calls of the daemon that survive its restarts: each of them may be made twice.
class Daemon {
 public:
  explicit Daemon(const Node& node)
      : runtime_dir_(node.runtime_dir), deadline_(absl::Now() + node.patience) {}

  absl::Time deadline() const { return deadline_; }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                        const Request&, Response*),
                                const Request& request) {
    while (true) {
      absl::Status status = Connect();
      if (status.ok()) {
        absl::StatusOr<Response> response = cli::Call(*admin_, method, request);
        if (response.ok()) return response;
        status = response.status();
      }
      // The daemon is gone, or does not answer in its step's time.
      if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
      admin_ = nullptr;
      if (absl::Now() + kPause >= deadline_) return absl::UnavailableError(status.message());
      absl::SleepFor(kPause);
    }
  }

 private:
  static constexpr absl::Duration kPause = absl::Milliseconds(100);
  static constexpr absl::Duration kStep = absl::Seconds(10);

  absl::Status Connect() {
    if (admin_ != nullptr) return absl::OkStatus();
    const absl::Duration left = std::max(deadline_ - absl::Now(), absl::Seconds(1));
    auto admin = cli::ConnectAdmin(runtime_dir_, left + kStep);
    if (!admin.ok()) return admin.status();
    admin_ = *std::move(admin);
    return absl::OkStatus();
  }

  const std::string runtime_dir_;
  const absl::Time deadline_;
  std::unique_ptr<cli::AdminConnection> admin_;
};

}  // namespace gpumem::slurm
