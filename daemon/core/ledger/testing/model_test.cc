// SPDX-License-Identifier: Apache-2.0
// Runs random operations with faults on the ledger. Compares each answer and each state with the
// naive model's (model/model.h). Nothing is sampled: after every call the test compares all of
// both, and checks the ledger's invariants. It also checks that no session waits for memory that is
// available, and that each record of the audit has the fields of its event. Two promises are probed
// now and then whatever the model says (steps/probes.h).
//
//   GPUMEM_MODEL_OPS   calls of the ledger in total; 1,000,000 if unset
//   GPUMEM_MODEL_SEED  of the first episode; each further one takes the next number. A failure
//                      names its episode's seed, with which that episode comes first.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/steps/course.h"
#include "daemon/core/ledger/testing/steps/operators.h"
#include "daemon/core/ledger/testing/steps/step_list.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

constexpr uint64_t kEpisode = 10000;  // calls; then all sessions end and a new ledger begins

// Cases that a long run meets many times.
constexpr const char* kCases[] = {
    "granted",
    "reused",
    "reused and fresh",
    "reused of a pool",
    "granted vmm",
    "granted mempool",
    "granted ipc",
    "granted pinned",
    "granted host",
    "demoted",
    "promoted",
    "granted where most is free",
    "granted as revocable",
    "granted of the tenant's kind",
    "opened across tenants",
    "opened as revocable",
    "shared again",
    "lost",
    "committed too late",
    "trimmed",
    "made in an open pool, and not handed over",
    "waits",
    "waits a moment",
    "revokes",
    "one of many gives up",
    "a session ends while many wait",
    "checked in slices",
    "waited, then granted",
    "waited, then ABORTED",
    "waited, then queue",
    "waited, then FAILED_PRECONDITION",
    "waited, then UNAVAILABLE",
    "asked to end for others",
    "killed for others",
    "a revocation lapses, or waits on",
    "crowded",
    "a guarantee is had at once",
    "a guarantee is had after a wait",
    "a large request is had after a wait",
    "a quota is set",
    "a session makes a tenant",
    "a session makes a lasting tenant",
    "an operator makes a tenant",
    "a made tenant is changed",
    "a made tenant's quota is overridden",
    "a tenant with an override is made",
    "a made tenant is ended",
    "an ended tenant has something",
    "a session replaces another",
    "a session outlives its socket",
    "a session outlives its process",
    "a session ends in parts",
    "a session ends over other calls",
    "waits while a session ends",
    "killed while a session ended",
    "a commit in parts",
    "events beside a lease",
    "event by name",
    "an event that was handed out ends",
    "killed",
    "killed during operations",
    "killed while somebody waited",
    "killed while memory went back",
    "killed during a revocation",
    "killed while draining",
    "killed before all had come back",
    "killed during a second handing over",
    "a session goes on",
    "an ended session goes on",
    "lost by a restart",
    "granted once more",
    "not granted once more",
    "a publication goes on",
    "a publication is lost by a restart",
    "attached once more",
    "resumed",
    "reconciled",
    "reconciled, but for some",
    "reconciled, and gave up what it had",
    "published",
    "published again",
    "published, and told so again",
    "attached",
    "attached across tenants",
    "waits for a version",
    "claimed",
    "waits for contents",
    "attached to contents",
    "a claim is passed on",
    "killed while contents were claimed",
    "waited to attach, and is called",
    "unpublished",
    "unpublished, and told so again",
    "an event, and told so again",
    "expired",
    "max-publications",
    "device-limit",
    "total-limit",
    "capacity",
    "driver",
    "guarantees",
    "queue",
    "max-segments",
    "max-sessions",
    "max-in-flight",
    "max-waiting",
    "daemon-limit",
    "unbrokered",
    "waited, then unbrokered",
    "UNAVAILABLE",
    "ABORTED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "INVALID_ARGUMENT",
    "UNIMPLEMENTED",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
};

// Returns the first error.
absl::Status RunEpisode(steps::Course& course, uint64_t calls) {
  steps::Chance& chance = course.chance;
  course.sound = chance.In100(75);
  const Revocations::Times times = {.grace = absl::Milliseconds(1 + chance.Below(30)),
                                    .kill_after = absl::Milliseconds(chance.Below(15))};
  course.ledger.revocations().SetTimes(times);
  course.model.times = times;
  if (absl::Status status = steps::Configure(course); !status.ok()) return status;
  while (course.calls < calls) {
    if (absl::Status status = steps::TakeStep(course); !status.ok()) return status;
  }
  return steps::EndAllSessions(course);
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST(LedgerModelTest, RandomOperationsWithFaults) {
  const uint64_t wanted = FromEnvironment("GPUMEM_MODEL_OPS", 1000000);
  uint64_t seed = FromEnvironment("GPUMEM_MODEL_SEED", 1);
  steps::Coverage coverage;
  uint64_t calls = 0;
  for (; calls < wanted; ++seed) {
    steps::Course course(seed, &coverage);
    const absl::Status status = RunEpisode(course, std::min(kEpisode, wanted - calls));
    ASSERT_TRUE(status.ok()) << "seed " << seed << ", call " << course.calls << ": "
                             << status.message() << "\nthe last calls:\n  " << course.LastCalls();
    calls += course.calls;
  }
  for (const auto& [what, times] : coverage) std::cout << "  " << times << " x " << what << "\n";
  if (calls < 500000) return;  // too few to have met every case
  for (const char* what : kCases) {
    EXPECT_GE(coverage[what], 50) << "hardly ever met: " << what;
  }
}

}  // namespace
}  // namespace gpumemd
