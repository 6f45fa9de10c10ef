#include "tests/demo/workers.h"

#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/bytes.h"
#include "tests/demo/pattern.h"
#include "tests/demo/process.h"

namespace gpumem::demo {
namespace {

void Tell(const std::string& line) { std::cout << line << std::endl; }

void Require(bool held, const std::string& what) {
  if (!held) throw Failure(what);
  Tell("ok " + what);
}

void Require(const absl::Status& status, const std::string& what) {
  if (!status.ok()) throw Failure(absl::StrCat(what, ": ", status.ToString()));
  Tell("ok " + what);
}

template <typename T>
T Require(absl::StatusOr<T> value, const std::string& what) {
  Require(value.status(), what);
  return *std::move(value);
}

std::string ReadLine() {
  std::string line;
  if (!std::getline(std::cin, line)) throw Failure("the director has gone");
  return line;
}

void WaitForGo() {
  Tell("ready");
  if (ReadLine() != "go") throw Failure("the director said something else than go");
}

std::unique_ptr<Client> ConnectAs(const std::string& tenant, const std::string& name) {
  auto client = Require(Client::Connect({.tenant = tenant, .name = name}),
                        absl::StrCat("connects as tenant ", tenant));
  Require(client->tenant() == tenant, absl::StrCat("is billed as ", tenant));
  return client;
}

// Every segment has a seed of its own: a mix-up of two would be seen.
uint64_t SeedOf(size_t segment) { return 1000 + segment; }

using EachSegment = absl::Status (*)(const Segment& segment, uint64_t seed);

void RequireAll(const std::vector<Segment>& segments, EachSegment each, const std::string& what) {
  uint64_t bytes = 0;
  absl::Status status;
  for (size_t i = 0; i < segments.size(); ++i) {
    bytes += segments[i].size();
    status.Update(each(segments[i], SeedOf(i)));
  }
  Require(status,
          absl::StrCat(what, " (", segments.size(), " segments, ", FormatBytes(bytes), ")"));
}

// (a) Acquires, fills, hands over; later checks what the consumer wrote.
void Produce() {
  auto client = ConnectAs(kTraining, "producer");
  auto segments = Require(client->AcquireMany({.bytes = kProducerSegmentBytes}, kProducerSegments),
                          absl::StrCat("acquires ", kProducerSegments, " segments of ",
                                       FormatBytes(kProducerSegmentBytes), " in one call"));
  RequireAll(
      segments, [](const Segment& segment, uint64_t) { return CheckZero(segment); },
      "sees that every byte of the new memory is zero");
  RequireAll(
      segments,
      [](const Segment& segment, uint64_t seed) {
        return Fill(segment, seed, Writing::kProducers);
      },
      "fills all of it with words made from seeds");
  for (const Segment& segment : segments) {
    Tell("ticket " +
         Require(segment.Share(), absl::StrCat("gets a ticket for segment ", segment.segment_id()))
             .value);
  }
  WaitForGo();  // until the consumer has written
  RequireAll(
      segments,
      [](const Segment& segment, uint64_t seed) {
        return Check(segment, seed, Writing::kConsumers);
      },
      "finds the consumer's answer in every byte");
  WaitForGo();  // until the director has looked
  absl::Status released;
  for (Segment& segment : segments) released.Update(segment.Release());
  Require(released, "releases its leases");
  WaitForGo();
}

// (b) Opens what the producer made, checks it, and writes back.
void Consume() {
  auto client = ConnectAs(kTraining, "consumer");
  std::vector<std::string> tickets;
  for (int i = 0; i < kProducerSegments; ++i) tickets.push_back(ReadLine());
  auto segments = Require(client->OpenMany(tickets), "opens all of them in one call");
  RequireAll(
      segments,
      [](const Segment& segment, uint64_t seed) {
        return Check(segment, seed, Writing::kProducers);
      },
      "finds the producer's words in every byte");
  RequireAll(
      segments,
      [](const Segment& segment, uint64_t seed) {
        return Fill(segment, seed, Writing::kConsumers);
      },
      "writes the complement of each word back");
  WaitForGo();
}

// (c) Goes up to its tenant's limit, and finds that it ends exactly there.
void BeGreedy() {
  auto client = ConnectAs(kInference, "greedy");
  auto first = Require(client->Acquire({.bytes = 24 * kMiB}), "acquires 24 MiB");
  absl::Status refusal = client->Acquire({.bytes = 16 * kMiB}).status();
  Require(refusal.code() == absl::StatusCode::kResourceExhausted,
          absl::StrCat("is denied 16 MiB more: ", absl::StatusCodeToString(refusal.code())));
  Tell(absl::StrCat("say \"", refusal.message(), "\""));
  std::optional<Denial> denial = GetDenial(refusal);
  Require(denial.has_value(), "is told the reason as data, too");
  Require(denial->cause == Denial::Cause::kDeviceLimit && denial->tenant == kInference &&
              denial->device_uuid == first.device_uuid(),
          absl::StrCat("reads there: the limit of tenant ", denial->tenant, " on ",
                       denial->device_uuid));
  Require(
      denial->asked == 16 * kMiB && denial->used == 24 * kMiB && denial->limit == kInferenceLimit,
      absl::StrCat("reads there: asked ", denial->asked, " bytes, used ", denial->used, ", limit ",
                   denial->limit));
  auto rest = Require(client->Acquire({.bytes = 8 * kMiB}), "gets the 8 MiB that still fit");
  Require(client->Acquire({.bytes = 1}).status().code() == absl::StatusCode::kResourceExhausted,
          "is denied a single byte more");
  WaitForGo();
}

// (d) Holds all that its tenant may have, and writes to it.
void Hold() {
  auto client = ConnectAs(kInference, "holder");
  auto segment = Require(client->Acquire({.bytes = kInferenceLimit}),
                         absl::StrCat("acquires ", FormatBytes(kInferenceLimit)));
  Require(CheckZero(segment), "sees that every byte of it is zero");
  Require(Fill(segment, 1, Writing::kProducers), "writes to every byte of it");
  WaitForGo();
}

void Play(const std::string& role) {
  if (role == "producer") return Produce();
  if (role == "consumer") return Consume();
  if (role == "greedy") return BeGreedy();
  if (role == "holder") return Hold();
  throw Failure("there is no role " + role);
}

}  // namespace

int RunWorker(const std::string& role) {
  try {
    Play(role);
    return 0;
  } catch (const Failure& failure) {
    Tell(absl::StrCat("fail ", failure.what()));
    return 1;
  }
}

}  // namespace gpumem::demo
