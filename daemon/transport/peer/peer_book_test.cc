// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/peer_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "common/unique_fd.h"
#include "common/unix_channel.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class PeerBookTest : public ::testing::Test {
 protected:
  PeerBookTest() {
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    folder_ = mkdtemp(folder);
    listener_ = *gpumem::ListenUnix(folder_ + "/s", SOCK_STREAM, 0600);
  }
  ~PeerBookTest() override {
    unlink((folder_ + "/s").c_str());
    rmdir(folder_.c_str());
  }
  // Both ends of a connection.
  std::pair<UniqueFd, UniqueFd> Connect(bool named) {
    UniqueFd client =
        *gpumem::ConnectUnix(folder_ + "/s", SOCK_STREAM, absl::InfiniteFuture(), named);
    return {std::move(client), UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC))};
  }
  // As gRPC tells it.
  static std::string NameOf(int server) {
    sockaddr_un address{};
    socklen_t size = sizeof(address);
    EXPECT_EQ(getpeername(server, reinterpret_cast<sockaddr*>(&address), &size), 0);
    if (size <= sizeof(sa_family_t)) return "unix:";
    return "unix-abstract:" + std::string(address.sun_path + 1, size - sizeof(sa_family_t) - 1);
  }

  std::string folder_;
  UniqueFd listener_;
  PeerBook book_;
};

TEST_F(PeerBookTest, ANamedSocketIsFoundByItsName) {
  const auto one = Connect(true), other = Connect(true);
  ASSERT_NE(NameOf(one.second.get()), NameOf(other.second.get()));
  book_.Connected(1, one.second.get(), {.pid = 11, .uid = 1});
  book_.Connected(2, other.second.get(), {.pid = 22, .uid = 2});
  EXPECT_THAT(book_.Find(NameOf(one.second.get())),
              ElementsAre(AuditOperator{.uid = 1, .pid = 11}));
  EXPECT_THAT(book_.Find(NameOf(other.second.get())),
              ElementsAre(AuditOperator{.uid = 2, .pid = 22}));
  EXPECT_THAT(book_.Find("unix:"), IsEmpty());
}

TEST_F(PeerBookTest, AnUnnamedSocketIsAnyOfTheUnnamed) {
  const auto one = Connect(false), other = Connect(false), named = Connect(true);
  book_.Connected(1, one.second.get(), {.pid = 11, .uid = 1});
  book_.Connected(3, named.second.get(), {.pid = 33, .uid = 3});
  EXPECT_THAT(book_.Find("unix:"), ElementsAre(AuditOperator{.uid = 1, .pid = 11}));
  book_.Connected(2, other.second.get(), {.pid = 22, .uid = 2});
  EXPECT_THAT(book_.Find("unix:"), UnorderedElementsAre(AuditOperator{.uid = 1, .pid = 11},
                                                        AuditOperator{.uid = 2, .pid = 22}));
}

TEST_F(PeerBookTest, AnUnnamedSocketIsFoundAfterItsEnd) {
  const auto one = Connect(false), other = Connect(false);
  book_.Connected(1, one.second.get(), {.pid = 11, .uid = 1});
  book_.Ended(1);
  book_.Connected(2, other.second.get(), {.pid = 22, .uid = 2});
  EXPECT_EQ(book_.Find("unix:").size(), 2u);
  EXPECT_THAT(book_.Find("unix-abstract:none"), IsEmpty());
}

}  // namespace
}  // namespace gpumemd
