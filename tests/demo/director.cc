// SPDX-License-Identifier: Apache-2.0
#include "tests/demo/director.h"

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "tests/demo/process.h"
#include "tests/demo/stage.h"
#include "tests/demo/workers.h"

namespace gpumem::demo {
namespace {

using nlohmann::json;

// Two tenants, both for this user: a worker names the one that it wants.
std::string Configuration() {
  return absl::StrCat(R"([host]
devices = 2
device_bytes = "256MiB"

[[tenant]]
name = "training"
limit = ")",
                      kTrainingLimit / kMiB, R"(MiB"

[[tenant]]
name = "inference"
limit = ")",
                      kInferenceLimit / kMiB, R"(MiB"
max_retained = 0            # what it releases goes back to the driver at once

[[rule]]
tenant = "training"
uid = )",
                      geteuid(), R"(

[[rule]]
tenant = "inference"
uid = )",
                      geteuid(), "\n");
}

// (a), (b)
void ShareMemory(Stage& stage) {
  stage.Title("A producer acquires, fills and hands over");
  auto producer = stage.StartWorker("producer");
  const std::vector<std::string> tickets = stage.FollowUntilReady("producer", *producer);
  stage.Check(tickets.size() == kProducerSegments, "a ticket for each segment came over the pipe");
  stage.Show({"ps"});
  stage.Show({"segments"});

  stage.Title("A consumer, another process, opens the same memory");
  auto consumer = stage.StartWorker("consumer");
  for (const std::string& ticket : tickets) consumer->WriteLine(ticket);
  stage.FollowUntilReady("consumer", *consumer);
  stage.Show({"ps"});
  stage.Show({"segments"});
  json segments = stage.Ask({"segments"})["segments"];
  stage.Check(segments.size() == kProducerSegments, "there are still as many segments as before");
  bool shared = true;
  for (const json& segment : segments) {
    shared &= segment["leases"] == 2 && segment["session_ids"].size() == 2;
  }
  stage.Check(shared, "each is leased by two sessions");
  stage.Check(stage.Ask({"quota", "get", kTraining})["usage"]["charged_bytes"] ==
                  kProducerSegments * kProducerSegmentBytes,
              absl::StrCat("tenant training is charged once, with ",
                           FormatBytes(kProducerSegments * kProducerSegmentBytes)));

  stage.Title("The producer reads what the consumer wrote back");
  producer->WriteLine("go");
  stage.FollowUntilReady("producer", *producer);
  consumer->WriteLine("go");
  stage.Check(consumer->Wait(absl::Now() + kTimeout) == 0, "the consumer ends");
  producer->WriteLine("go");
  stage.FollowUntilReady("producer", *producer);
  stage.Show({"quota", "get", kTraining});
  json usage = stage.Ask({"quota", "get", kTraining})["usage"]["devices"][0];
  stage.Check(usage["leased_bytes"] == 0, "nothing is leased any more");
  stage.Check(usage["retained_bytes"] == kProducerSegments * kProducerSegmentBytes,
              "the tenant's pool keeps the segments for reuse");
  stage.Show({"trim", "--tenant", kTraining});
  stage.Check(stage.Ask({"segments"})["segments"].empty(), "trimmed, they are gone");
  producer->WriteLine("go");
  stage.Check(producer->Wait(absl::Now() + kTimeout) == 0, "the producer ends");
}

// (c)
void MeetTheLimit(Stage& stage) {
  stage.Title("A third asks for more than its tenant's limit");
  auto greedy = stage.StartWorker("greedy");
  stage.FollowUntilReady("greedy", *greedy);
  stage.Show({"quota", "get", kInference});
  stage.Check(stage.Ask({"quota", "get", kInference})["usage"]["denials"] == 2,
              "the daemon counted two denials");
  // The same from the shell, with an exit code for scripts.
  stage.Show({"hold", "--size", "1MiB", "--for", "1s", "--as", kInference}, 5);
  greedy->WriteLine("go");
  stage.Check(greedy->Wait(absl::Now() + kTimeout) == 0, "greedy ends");
}

// Waits until tenant inference is charged nothing; returns how long it took.
absl::Duration WaitUntilFree(Client& client) {
  const absl::Time start = absl::Now();
  while (true) {
    ThrowIfInterrupted();
    absl::StatusOr<Usage> usage = client.GetUsage();
    if (!usage.ok()) throw Failure(usage.status().ToString());
    const absl::Duration passed = absl::Now() - start;
    if (usage->charged_bytes == 0) return passed;
    if (passed > kTimeout) throw Failure("the bytes of a dead process do not come back");
  }
}

// (d)
void KillAHolder(Stage& stage) {
  stage.Title("A worker that holds memory is killed");
  auto observer =
      Client::Connect({.runtime_dir = stage.folder(), .tenant = kInference, .name = "observer"});
  if (!observer.ok()) throw Failure(observer.status().ToString());
  WaitUntilFree(**observer);  // greedy's process may have ended a moment before its charges

  auto holder = stage.StartWorker("holder");
  stage.FollowUntilReady("holder", *holder);
  stage.Show({"ps", "--tenant", kInference});
  stage.Show({"segments", "--tenant", kInference});
  stage.Check(stage.Ask({"quota", "get", kInference})["usage"]["charged_bytes"] == kInferenceLimit,
              "the tenant is at its limit");

  holder->Signal(SIGKILL);
  stage.Check(holder->Wait(absl::Now() + kTimeout) == 128 + SIGKILL,
              "the holder was killed, without a word to the daemon");
  const absl::Duration took = WaitUntilFree(**observer);
  stage.Check(took < absl::Seconds(5),
              absl::StrCat(FormatBytes(kInferenceLimit), " came back ",
                           absl::FormatDuration(absl::Trunc(took, absl::Microseconds(10))),
                           " after its process was reaped"));
  stage.Show({"quota", "list"});
  stage.Show({"segments"});

  stage.Say("  And the next may have all of it, without a trace of what was there:");
  auto next = stage.StartWorker("holder");
  stage.FollowUntilReady("holder", *next);
  next->WriteLine("go");
  stage.Check(next->Wait(absl::Now() + kTimeout) == 0, "the next holder ends");
}

// True if any device makes the kind.
bool IsMade(Stage& stage, const std::string& kind) {
  const json devices = stage.Ask({"devices"})["devices"];
  for (const json& device : devices) {
    for (const json& made : device["kinds"]) {
      if (made == kind) return true;
    }
  }
  return false;
}

// Two workers on one piece of memory: the first makes it, the second opens it by its ticket.
void PlayTwo(Stage& stage, const std::string& first_role, const std::string& second_role,
             const std::vector<std::string>& show) {
  auto first = stage.StartWorker(first_role);
  const std::vector<std::string> tickets = stage.FollowUntilReady(first_role, *first);
  stage.Check(tickets.size() == 1, "its ticket came over the pipe");
  auto second = stage.StartWorker(second_role);
  second->WriteLine(tickets.front());
  stage.FollowUntilReady(second_role, *second);
  stage.Show(show);
  second->WriteLine("go");
  stage.Check(second->Wait(absl::Now() + kTimeout) == 0, "the second ends");
  first->WriteLine("go");
  stage.FollowUntilReady(first_role, *first);
  first->WriteLine("go");
  stage.Check(first->Wait(absl::Now() + kTimeout) == 0, "the first ends");
}

// The daemon ends the process with its CUDA context a moment after the last such memory.
bool WaitUntilNoContext(Stage& stage) {
  for (const absl::Time start = absl::Now(); absl::Now() < start + kTimeout;) {
    ThrowIfInterrupted();
    bool context = false;
    const json devices = stage.Ask({"devices"})["devices"];
    for (const json& device : devices) {
      context |= device.value("context_pid", 0) != 0;
    }
    if (!context) return true;
  }
  return false;
}

// (e)
void ShowKinds(Stage& stage) {
  const struct {
    std::string kind, title;
    std::vector<std::string> show;
  } scenes[] = {
      {"ipc", "Kind ipc: memory that any CUDA program can open by 64 bytes", {"devices"}},
      {"mempool", "Kind mempool: memory from the tenant's pool of the driver", {"pool"}},
      {"pinned", "Kind pinned: host memory that every process registers with CUDA", {"segments"}},
  };
  for (const auto& [kind, title, show] : scenes) {
    stage.Title(title);
    if (!IsMade(stage, kind)) {
      stage.Say("  No device here makes it.");
      continue;
    }
    PlayTwo(stage, "maker-" + kind, "opener", show);
  }
  stage.Check(WaitUntilNoContext(stage), "with the last of them the daemon's context has gone");
}

// (f)
void ShowEvents(Stage& stage) {
  stage.Title("An event: one process's GPU work waits for another's");
  PlayTwo(stage, "recorder", "waiter", {"ps", "--tenant", kTraining});
}

}  // namespace

int RunDemo(const DemoOptions& options) {
  Stage stage(options);
  stage.Title("A daemon with two tenants");
  stage.Say(Configuration());
  stage.StartDaemon(Configuration());
  stage.Show({"status"});
  stage.Show({"quota", "list"});
  json status = stage.Ask({"status"});
  stage.Say(absl::StrCat("  The backend is ", status["backend"].get<std::string>(), "."));

  ShareMemory(stage);
  ShowKinds(stage);
  ShowEvents(stage);
  MeetTheLimit(stage);
  KillAHolder(stage);

  stage.Title("The daemon goes");
  stage.Show({"devices"});
  stage.StopDaemon();
  return stage.checks();
}

}  // namespace gpumem::demo
