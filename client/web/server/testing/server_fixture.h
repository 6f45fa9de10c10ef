// SPDX-License-Identifier: Apache-2.0
// A server with a fake feed, on a unix socket and a TCP port.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/web/server/listener.h"
#include "client/web/server/server.h"
#include "client/web/server/testing/fake_feed.h"
#include "client/web/server/testing/raw_client.h"

namespace gpumem::web {

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/gpumem-web-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Serve(Server::Options options = {}, bool tcp = true) {
    std::vector<Listener> listeners;
    for (const std::string& text : {absl::StrCat("unix:", Path()), std::string("127.0.0.1:0")}) {
      if (!tcp && text[0] != 'u') continue;
      auto listener = Listen(text);
      ASSERT_TRUE(listener.ok()) << listener.status();
      if (!listener->origin.empty()) {
        ASSERT_TRUE(
            absl::SimpleAtoi(listener->where.substr(listener->where.find(':') + 1), &port_));
      }
      listeners.push_back(*std::move(listener));
    }
    options.node = "node1";
    options.now = [this] {
      absl::MutexLock lock(&mutex_);
      return now_;
    };
    auto server = Server::Start(std::move(listeners), &feed_, std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // Moves the clock of logins.
  void Advance(absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    now_ += time;
  }
  std::string Path() const { return dir_ + "/web.sock"; }
  RawClient Unix() const { return RawClient(Path()); }
  RawClient Tcp() const { return RawClient(static_cast<uint16_t>(port_)); }

  // For as many connections: each has two ends in this process.
  static bool HasDescriptors(rlim_t connections) {
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur >= 2 * connections + 100;
  }

  FakeFeed feed_;
  std::unique_ptr<Server> server_;
  int port_ = 0;

 private:
  std::string dir_;
  absl::Mutex mutex_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
};

}  // namespace gpumem::web
