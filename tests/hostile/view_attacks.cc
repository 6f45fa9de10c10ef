// SPDX-License-Identifier: Apache-2.0
// Attacks through the view socket, by viewers and by users who are none.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/door.h"

namespace gpumem::hostile {
namespace {

constexpr char kWatchEvents[] = "/gpumem.v1.Admin/WatchEvents";

// All connections that the socket has for one user have more streams than there are.
constexpr int kStreamsOfEach = 4;

std::string Method(const char* name) { return absl::StrCat("/gpumem.v1.Admin/", name); }

}  // namespace

// Takes all connections and event streams, reads none of them, asks for the longest answers, and
// makes calls that change something.
Tally ViewStorm(const Orders& orders) {
  Tally tally;
  v1::WatchEventsRequest watch;
  watch.set_past(true);
  watch.set_follow(true);
  const auto watched = std::make_shared<const std::string>(GrpcMessage(watch.SerializeAsString()));
  std::deque<std::unique_ptr<Http2Client>> held;
  while (!Over(orders)) {
    absl::StatusOr<UniqueFd> socket = Dial(orders.runtime_dir, "view.sock");
    if (!socket.ok()) {
      Pause();
      continue;
    }
    auto client = std::make_unique<Http2Client>(*std::move(socket), /*token=*/"");
    for (const char* name :
         {"Drain", "SetPods", "Trim", "Reload", "SuspendSession", "SetQuota", "Trace"}) {
      tally["changed"] += client->Call(Method(name), "", Patience(orders)).ok() ? 1 : 0;
      ++tally["tried"];
    }
    for (const char* name : {"GetHistory", "ListSegments", "ListSessions", "ListTenants"}) {
      tally["shown"] += client->Call(Method(name), "", Patience(orders)).ok() ? 1 : 0;
    }
    if (client->closed()) {
      ++tally["turned_away"];
      // Makes room for another, of those that its user may have.
      if (!held.empty()) held.pop_front();
      Pause();
      continue;
    }
    for (int i = 0; i < kStreamsOfEach; ++i) client->Begin(kWatchEvents, watched);
    client->Run([] { return false; }, absl::Now() + absl::Milliseconds(1));
    held.push_back(std::move(client));
    ++tally["connections"];
  }
  return tally;
}

// Begins as many calls as there may be on each of several connections, and closes them all at once
// when it gets no further one. The calls have no answer by then: their requests are not finished.
Tally ViewHangUp(const Orders& orders) {
  constexpr size_t kConnections = 128;
  constexpr uint32_t kCalls = 250;
  const std::string method = Method("ListTenants");
  const auto nothing = std::make_shared<const std::string>();
  Tally tally;
  while (!Over(orders)) {
    std::vector<std::unique_ptr<Http2Client>> lines;
    while (lines.size() < kConnections && !Over(orders)) {
      absl::StatusOr<UniqueFd> socket = Dial(orders.runtime_dir, "view.sock");
      if (!socket.ok()) break;
      auto client = std::make_unique<Http2Client>(*std::move(socket), /*token=*/"");
      for (uint32_t i = 0; i < kCalls; ++i) client->Begin(method, nothing, /*end=*/false);
      // The daemon has begun the others when it answers this one.
      const bool begun = client->Call(method, "", Patience(orders)).ok();
      lines.push_back(std::move(client));
      if (!begun) break;
      tally["calls"] += kCalls;
    }
    ++tally["times"];
    if (lines.size() < 2) Pause();  // earlier ones have yet to be closed
  }
  return tally;
}

}  // namespace gpumem::hostile
