// SPDX-License-Identifier: Apache-2.0
// The overviews of other nodes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/web/peers/fetch.h"
#include "client/web/peers/peer.h"

namespace gpumem::web {

// Fetches them at an interval while there are calls of Document(), on a separate thread.
class Peers {
 public:
  static constexpr size_t kMost = 64;

  struct Options {
    std::vector<Peer> peers;
    FetchLimits limits;
    absl::Duration interval = absl::Seconds(10);
    absl::Duration look = absl::Seconds(30);  // after the last Document()
    std::string ca_file;                      // empty: the system's certificate authorities
  };

  //   RESOURCE_EXHAUSTED   no thread, or no descriptor for its event loop
  //   INVALID_ARGUMENT     there are too many
  //   FAILED_PRECONDITION  the authorities' file cannot be read
  static absl::StatusOr<std::unique_ptr<Peers>> Start(Options options);
  // May block while a name is looked up.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Returns the state and the last overview of each peer, as a JSON document. Has them fetched.
  // Thread-safe, and does not block for a peer.
  std::string Document();

 private:
  class Loop;
  explicit Peers(std::unique_ptr<Loop> loop);
  const std::unique_ptr<Loop> loop_;
};

}  // namespace gpumem::web
