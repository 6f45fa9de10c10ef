// SPDX-License-Identifier: Apache-2.0
// The state of a gpumemd, read from its view socket.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/web/feed/feed_source.h"
#include "client/web/feed/viewer.h"

namespace gpumem::web {

class Engine;

// Queries the daemon only while there are subscriptions or calls. While the daemon is away, it
// tries to connect again with back-off.
class Feed final : public FeedSource {
 public:
  struct Options {
    std::string runtime_dir;                     // the daemon's
    absl::Duration interval = absl::Seconds(1);  // between queries while there are subscriptions
    std::string node;                            // the node's name, for Overview()
    // True of uids of this system's users; null: asks the system.
    std::function<bool(uid_t)> has_account = nullptr;
  };

  explicit Feed(Options options);
  ~Feed() override;

  std::unique_ptr<Subscription> Subscribe(const Viewer& viewer,
                                          std::function<void(Message)> send) override;
  absl::StatusOr<Message> Snapshot(const Viewer& viewer) override;
  absl::StatusOr<std::string> History(const Viewer& viewer, const std::string& device,
                                      const std::vector<std::string>& tenants) override;
  std::string Overview() override;

 private:
  const Options options_;
  const std::unique_ptr<Engine> engine_;
};

}  // namespace gpumem::web
