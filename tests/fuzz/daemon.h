// SPDX-License-Identifier: Apache-2.0
// A daemon in the process of a fuzz target, so that the engine sees what inputs reach in it.
#pragma once

#include <memory>
#include <string>

#include "daemon/core/broker/views.h"
#include "daemon/server/server.h"

namespace gpumem::testing {

// Has memory that is guaranteed to it.
inline constexpr char kHonestTenant[] = "honest";

class FuzzDaemon {
 public:
  // Returns the process's daemon. Now and then it is a new one: this process never ends, so that
  // memory whose sessions are gone stays with the old one.
  static FuzzDaemon& ForInput();
  ~FuzzDaemon();
  FuzzDaemon(const FuzzDaemon&) = delete;
  FuzzDaemon& operator=(const FuzzDaemon&) = delete;

  const std::string& runtime_dir() const { return dir_; }
  gpumemd::BrokerViews views() const { return server_->views(); }
  std::string Socket(const std::string& name) const { return dir_ + "/" + name; }

  // Ends the process if an invariant of the daemon is broken, or a session is live or waits after
  // its client has gone. `others`: sessions that clients keep.
  void CheckAfterInput(size_t others) const;

 private:
  FuzzDaemon();

  std::string dir_;
  std::unique_ptr<gpumemd::Server> server_;
};

}  // namespace gpumem::testing
