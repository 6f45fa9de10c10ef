// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/bystander.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unix_channel.h"
#include "gpumem/client.h"
#include "tests/support/child.h"
#include "tests/support/cut_streams.h"

namespace gpumem::hostile {
namespace {

constexpr absl::Duration kEvery = absl::Milliseconds(5);
constexpr uint64_t kBytes = 4096;
// A call that takes longer has failed.
constexpr absl::Duration kCallTime = absl::Seconds(10);

absl::Status AcquireAndRelease(Client& client, const std::string& device) {
  absl::StatusOr<Segment> segment = client.Acquire({.bytes = kBytes, .device = device});
  if (!segment.ok()) return segment.status();
  return segment->Release();
}

class Load {
 public:
  Load(Client* client, std::string device)
      : client_(client), device_(std::move(device)), thread_([this] { Work(); }) {}
  ~Load() {
    stopping_ = true;
    thread_.join();
  }

  // Waits for all requests that should have started by now.
  Latencies EndPhase() {
    absl::MutexLock lock(&mutex_);
    phase_ends_ = absl::Now();
    const auto is_over = [this] {
      mutex_.AssertReaderHeld();
      return next_ > phase_ends_;
    };
    mutex_.Await(absl::Condition(&is_over));
    return Latencies::Of(std::exchange(ms_, {}), std::exchange(failed_, 0),
                         std::exchange(first_error_, ""));
  }

 private:
  void Work() {
    absl::Time intended = absl::Now();
    while (!stopping_) {
      absl::SleepFor(intended - absl::Now());
      const absl::Status done = AcquireAndRelease(*client_, device_);
      const absl::Time now = absl::Now();
      absl::MutexLock lock(&mutex_);
      if (done.ok()) {
        ms_.push_back(absl::ToDoubleMilliseconds(now - intended));
        intended += kEvery;
      } else {
        // Requests that should have been made meanwhile would fail in the same way.
        if (first_error_.empty()) first_error_ = done.ToString();
        for (; intended <= now; intended += kEvery) ++failed_;
      }
      next_ = intended;
    }
  }

  Client* const client_;
  const std::string device_;
  std::atomic<bool> stopping_ = false;
  absl::Mutex mutex_;
  std::vector<double> ms_ ABSL_GUARDED_BY(mutex_);
  uint64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string first_error_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time phase_ends_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

Latencies Latencies::Of(std::vector<double> ms, uint64_t failed, std::string first_error) {
  Latencies result = {.calls = ms.size(), .failed = failed, .first_error = std::move(first_error)};
  if (ms.empty()) return result;
  std::sort(ms.begin(), ms.end());
  result.p50_ms = ms[ms.size() / 2];
  result.p99_ms = ms[ms.size() * 99 / 100];
  result.max_ms = ms.back();
  return result;
}

std::string Latencies::ToJson() const {
  return nlohmann::json{{"calls", calls},   {"failed", failed}, {"p50_ms", p50_ms},
                        {"p99_ms", p99_ms}, {"max_ms", max_ms}, {"first_error", first_error}}
      .dump();
}

absl::StatusOr<Latencies> Latencies::FromJson(absl::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("calls")) return absl::InvalidArgumentError(text);
  return Latencies{.calls = json.value("calls", uint64_t{0}),
                   .failed = json.value("failed", uint64_t{0}),
                   .p50_ms = json.value("p50_ms", 0.0),
                   .p99_ms = json.value("p99_ms", 0.0),
                   .max_ms = json.value("max_ms", 0.0),
                   .first_error = json.value("first_error", "")};
}

int RunBystander(const std::string& runtime_dir, const std::string& device) {
  using testing::kParentChannel;
  using testing::Say;
  auto client =
      Client::Connect({.runtime_dir = runtime_dir, .name = "bystander", .timeout = kCallTime});
  if (!client.ok()) {
    Say(kParentChannel, client.status().ToString());
    return 1;
  }
  Load load(client->get(), device);
  Say(kParentChannel, "ready");
  while (true) {
    const auto word = ReceiveMessage(kParentChannel, absl::InfiniteFuture());
    if (!word.ok()) return 1;
    if (word->bytes == "phase") {
      Say(kParentChannel, load.EndPhase().ToJson());
    } else if (word->bytes == "cut") {
      testing::CutStreams();
      Say(kParentChannel, "cut");
    } else {
      break;
    }
  }
  Say(kParentChannel, "stopped");
  return 0;
}

int RunNewcomer(const std::string& runtime_dir, const std::string& device) {
  const absl::Time start = absl::Now();
  auto client =
      Client::Connect({.runtime_dir = runtime_dir, .name = "newcomer", .timeout = kCallTime});
  absl::Status done = client.status();
  if (done.ok()) done = AcquireAndRelease(**client, device);
  testing::Say(
      testing::kParentChannel,
      done.ok() ? absl::StrCat(absl::ToDoubleMilliseconds(absl::Now() - start)) : done.ToString());
  return done.ok() ? 0 : 1;
}

}  // namespace gpumem::hostile
