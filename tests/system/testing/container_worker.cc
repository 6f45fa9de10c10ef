// SPDX-License-Identifier: Apache-2.0
#include "tests/system/testing/container_worker.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/unix_channel.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"

namespace gpumem {
namespace {

class InContainer {
 public:
  std::string Do(const std::vector<std::string>& words) {
    const std::string& what = words[0];
    if (what == "pid") return absl::StrCat(getpid());
    if (what == "connect") return Connect();
    if (client_ == nullptr) return "not connected";
    if (what == "tenant") return client_->tenant();
    if (what == "acquire") return Acquire(words);
    if (what == "check") return Check(segments_);
    if (what == "publish") return Words(client_->Publish(words[1], segments_, kForAll).status());
    if (what == "attach") return Attach(words[1]);
    if (what == "charged") {
      const auto usage = client_->GetUsage();
      return usage.ok() ? absl::StrCat(usage->charged_bytes) : Words(usage.status());
    }
    return "what?";
  }

 private:
  static inline const PublishOptions kForAll = {.access = PublicationAccess::kAny};

  static std::string Words(const absl::Status& status) {
    return status.ok() ? "OK" : status.ToString();
  }
  std::string Connect() {
    auto client = Client::Connect({.timeout = absl::Seconds(20)});
    if (!client.ok()) return Words(client.status());
    client_ = *std::move(client);
    return "OK";
  }
  std::string Acquire(const std::vector<std::string>& words) {
    uint64_t mib = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &mib)) return "how much?";
    auto segment = client_->Acquire(
        {.bytes = mib * kMiB, .wait = words.size() > 2 ? absl::Minutes(1) : absl::ZeroDuration()});
    if (!segment.ok()) return Words(segment.status());
    Fill(*segment);
    segments_.push_back(*std::move(segment));
    return "OK";
  }
  // A number at the start of every page: by its place and by how large the segment is.
  static uint64_t Number(const Segment& segment, uint64_t at) { return segment.size() ^ (at * 3); }
  static void Fill(Segment& segment) {
    for (uint64_t at = 0; at < segment.size(); at += 4096) {
      const uint64_t number = Number(segment, at);
      std::memcpy(static_cast<char*>(segment.data()) + at, &number, sizeof(number));
    }
  }
  template <typename Segments>
  static std::string Check(const Segments& segments) {
    if (segments.empty()) return "nothing is there";
    for (const Segment& segment : segments) {
      for (uint64_t at = 0; at < segment.size(); at += 4096) {
        uint64_t number = 0;
        std::memcpy(&number, static_cast<const char*>(segment.data()) + at, sizeof(number));
        if (number != Number(segment, at)) return absl::StrCat("other bytes at ", at);
      }
    }
    return "OK";
  }
  std::string Attach(const std::string& name) {
    auto attached = client_->Attach(name);
    if (!attached.ok()) return Words(attached.status());
    return Check(std::as_const(*attached).segments());
  }

  std::unique_ptr<Client> client_;
  std::vector<Segment> segments_;
};

}  // namespace

int RunContainerWorker(const std::string& path) {
  auto channel = ConnectUnix(path, SOCK_SEQPACKET);
  if (!channel.ok()) return 1;
  InContainer worker;
  while (true) {
    const auto message = ReceiveMessage(channel->get(), absl::InfiniteFuture());
    if (!message.ok()) return 0;
    testing::Say(channel->get(), worker.Do(absl::StrSplit(message->bytes, ' ')));
  }
}

}  // namespace gpumem
