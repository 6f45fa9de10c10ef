// SPDX-License-Identifier: Apache-2.0
#include "tests/support/crash_load.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"

namespace gpumem::testing {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr uint64_t kWeightsStamp = 1000;

struct Held {
  Segment segment;
  uint64_t stamp = 0;
};

// A client that acquires, shares, opens, publishes, attaches and releases until it is told to stop.
// It checks that no other client's words appear in its memory. Returns an empty string on success.
std::string Work(const std::unique_ptr<Client>* client, int number, const std::atomic<bool>& stop,
                 std::atomic<uint64_t>& done) {
  std::mt19937_64 random(static_cast<uint64_t>(number));
  std::vector<Held> held;
  const auto check = [&](const Held& each) {
    return HasStamp(each.segment.data(), each.segment.size(), each.stamp)
               ? std::string()
               : absl::StrCat("somebody else wrote to lease ", each.segment.lease_id());
  };
  while (!stop) {
    const uint64_t die = random() % 10;
    if (die < 4 && held.size() < 8) {
      auto segment = (*client)->Acquire({.bytes = (1 + random() % 2) * 2 * kMiB});
      if (!segment.ok()) return absl::StrCat("acquire: ", segment.status().ToString());
      Held next{*std::move(segment), random()};
      Stamp(next.segment.data(), next.segment.size(), next.stamp);
      held.push_back(std::move(next));
    } else if (die < 6 && !held.empty()) {
      const Held& one = held[random() % held.size()];
      auto ticket = one.segment.Share();
      if (!ticket.ok()) return absl::StrCat("share: ", ticket.status().ToString());
      auto opened = (*client)->Open(ticket->value);
      if (!opened.ok()) return absl::StrCat("open: ", opened.status().ToString());
      if (!HasStamp(opened->data(), opened->size(), one.stamp)) return "opened another's memory";
    } else if (die == 6 && !held.empty()) {
      const Held& one = held[random() % held.size()];
      const std::string name = absl::StrCat("of-", getpid(), "-", number);
      auto version = (*client)->Publish(name, absl::MakeConstSpan(&one.segment, 1),
                                        {.metadata = absl::StrCat(one.stamp)});
      if (!version.ok()) return absl::StrCat("publish: ", version.status().ToString());
      auto attached = (*client)->Attach(name);
      if (!attached.ok()) return absl::StrCat("attach: ", attached.status().ToString());
      if (attached->version() != *version || attached->metadata() != absl::StrCat(one.stamp)) {
        return absl::StrCat("attached to version ", attached->version(), " instead of ", *version);
      }
      const Segment& copy = attached->segments().at(0);
      if (!HasStamp(copy.data(), copy.size(), one.stamp)) return "attached to another's memory";
    } else if (!held.empty()) {
      const size_t which = random() % held.size();
      if (std::string wrong = check(held[which]); !wrong.empty()) return wrong;
      std::swap(held[which], held.back());
      absl::Status released = held.back().segment.Release();
      if (!released.ok()) return absl::StrCat("release: ", released.ToString());
      held.pop_back();
    }
    ++done;
  }
  for (Held& each : held) {
    if (std::string wrong = check(each); !wrong.empty()) return wrong;
    if (absl::Status released = each.segment.Release(); !released.ok()) {
      return absl::StrCat("release: ", released.ToString());
    }
  }
  const std::string name = absl::StrCat("of-", getpid(), "-", number);
  (*client)->Unpublish(name).IgnoreError();  // it may have published nothing
  return "";
}

}  // namespace

ConnectOptions PatientOptions(const std::string& runtime_dir) {
  return {.runtime_dir = runtime_dir, .timeout = kTimeout};
}

void Stamp(void* data, uint64_t size, uint64_t stamp) {
  for (uint64_t at : {uint64_t{0}, size / 2, size - 8}) {
    std::memcpy(static_cast<char*>(data) + at, &stamp, 8);
  }
}
bool HasStamp(const void* data, uint64_t size, uint64_t stamp) {
  for (uint64_t at : {uint64_t{0}, size / 2, size - 8}) {
    uint64_t found = 0;
    std::memcpy(&found, static_cast<const char*>(data) + at, 8);
    if (found != stamp) return false;
  }
  return true;
}

absl::Status PublishWeights(Client& client, std::vector<Segment>& segments) {
  for (uint64_t i = 0; i < 60; ++i) {
    auto segment = client.Acquire({.bytes = 2 * kMiB});
    if (!segment.ok()) return segment.status();
    Stamp(segment->data(), segment->size(), kWeightsStamp + i);
    segments.push_back(*std::move(segment));
  }
  return client.Publish("weights", segments, {.metadata = std::string(100000, 'm')}).status();
}

absl::Status CheckWeights(Client& client) {
  auto attached = client.Attach("weights");
  if (!attached.ok()) return attached.status();
  if (attached->metadata() != std::string(100000, 'm')) {
    return absl::DataLossError("the metadata is not as it was");
  }
  if (attached->segments().size() != 60) {
    return absl::DataLossError(absl::StrCat(attached->segments().size(), " segments of 60"));
  }
  for (size_t i = 0; i < 60; ++i) {
    const Segment& segment = attached->segments()[i];
    if (HasStamp(segment.data(), segment.size(), kWeightsStamp + i)) continue;
    return absl::DataLossError(absl::StrCat("segment ", i, " is not as it was"));
  }
  return absl::OkStatus();
}

void HearAtLast() {
  char word[64];
  (void)!read(kParentChannel, word, sizeof(word));
}

int RunCrashLoad(const std::string& runtime_dir, int clients) {
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> done = 0;
  std::vector<std::string> wrong(static_cast<size_t>(clients));
  std::vector<std::unique_ptr<Client>> connected;
  for (int i = 0; i < clients; ++i) {
    auto client = Client::Connect(PatientOptions(runtime_dir));
    if (!client.ok()) return 1;
    connected.push_back(*std::move(client));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    const auto which = static_cast<size_t>(i);
    threads.emplace_back([&, i, which] { wrong[which] = Work(&connected[which], i, stop, done); });
  }
  Say(kParentChannel, "working");
  HearAtLast();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::string words;
  for (const std::string& each : wrong) absl::StrAppend(&words, each.empty() ? "" : each + "; ");
  Say(kParentChannel, words.empty() ? absl::StrCat("well ", done > 0 ? "done" : "idle") : words);
  HearAtLast();  // it lives until it is told
  return 0;
}

}  // namespace gpumem::testing
