// SPDX-License-Identifier: Apache-2.0
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
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "tests/demo/process.h"
#include "tests/support/pattern.h"

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

using testing::CheckZero;
using testing::MemoryOf;

// Every segment has a separate seed for each writer, to detect a mix-up of two.
uint64_t SeedOf(size_t segment) { return 1000 + segment; }
uint64_t AnswerTo(uint64_t seed) { return ~seed; }

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

// (a) Acquires, fills, hands over; later checks the consumer's writes.
void Produce() {
  auto client = ConnectAs(kTraining, "producer");
  auto segments = Require(client->AcquireMany({.bytes = kProducerSegmentBytes}, kProducerSegments),
                          absl::StrCat("acquires ", kProducerSegments, " segments of ",
                                       FormatBytes(kProducerSegmentBytes), " in one call"));
  RequireAll(
      segments, [](const Segment& segment, uint64_t) { return CheckZero(MemoryOf(segment)); },
      "sees that every byte of the new memory is zero");
  RequireAll(
      segments,
      [](const Segment& segment, uint64_t seed) { return testing::Fill(MemoryOf(segment), seed); },
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
        return testing::Check(MemoryOf(segment), AnswerTo(seed));
      },
      "finds the consumer's answer in every byte");
  WaitForGo();  // until the director has looked
  absl::Status released;
  for (Segment& segment : segments) released.Update(segment.Release());
  Require(released, "releases its leases");
  WaitForGo();
}

// (b) Opens the producer's memory, checks it, and writes back.
void Consume() {
  auto client = ConnectAs(kTraining, "consumer");
  std::vector<std::string> tickets;
  for (int i = 0; i < kProducerSegments; ++i) tickets.push_back(ReadLine());
  auto segments = Require(client->OpenMany(tickets), "opens all of them in one call");
  RequireAll(
      segments,
      [](const Segment& segment, uint64_t seed) { return testing::Check(MemoryOf(segment), seed); },
      "finds the producer's words in every byte");
  RequireAll(
      segments,
      [](const Segment& segment, uint64_t seed) {
        return testing::Fill(MemoryOf(segment), AnswerTo(seed));
      },
      "writes words of its own over each");
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

// (d) Holds all memory that its tenant may have, and writes to it.
void Hold() {
  auto client = ConnectAs(kInference, "holder");
  auto segment = Require(client->Acquire({.bytes = kInferenceLimit}),
                         absl::StrCat("acquires ", FormatBytes(kInferenceLimit)));
  Require(CheckZero(MemoryOf(segment)), "sees that every byte of it is zero");
  Require(testing::Fill(MemoryOf(segment), 1), "writes to every byte of it");
  WaitForGo();
}

std::string KindOf(const Segment& segment) {
  return absl::StrCat("kind ", std::string(KindName(segment.kind())));
}

// (e) Acquires memory of this kind, fills it, hands it over; later checks the answer.
void MakeOfKind(Kind kind) {
  auto client = ConnectAs(kTraining, "maker");
  auto segment = Require(
      client->Acquire({.bytes = kKindBytes, .kind = kind}),
      absl::StrCat("acquires ", FormatBytes(kKindBytes), " of kind ", std::string(KindName(kind))));
  Require(CheckZero(MemoryOf(segment)), "sees that every byte of it is zero");
  Require(testing::Fill(MemoryOf(segment), SeedOf(0)), "fills it");
  if (kind == Kind::kIpc) {
    const Handle handle = Require(segment.ipc_handle(), "gets its 64-byte handle");
    const absl::string_view bytes(reinterpret_cast<const char*>(handle.data()), 16);
    Tell(absl::StrCat("say ", absl::BytesToHexString(bytes), "... ",
                      segment.backend() == Backend::kCuda
                          ? "opens it in programs that do not know gpumem: CuPy, Numba, PyTorch"
                          : "stands in for a cudaIpcMemHandle_t on this backend"));
  }
  Tell("ticket " + Require(segment.Share(), "gets a ticket for it").value);
  WaitForGo();  // until the other has written
  Require(testing::Check(MemoryOf(segment), AnswerTo(SeedOf(0))),
          "finds the other's answer in every byte");
  Require(segment.Release(), "releases it");
  WaitForGo();
}

void OpenOfKind() {
  auto client = ConnectAs(kTraining, "opener");
  auto segment = Require(client->Open(ReadLine()), "opens it by its ticket");
  Require(testing::Check(MemoryOf(segment), SeedOf(0)),
          absl::StrCat("finds the maker's words in every byte of ", KindOf(segment)));
  Require(testing::Fill(MemoryOf(segment), AnswerTo(SeedOf(0))), "writes its own over them");
  WaitForGo();
}

// (f) One's GPU work waits for another's, without a word between the two processes' hosts.
void Record() {
  auto client = ConnectAs(kTraining, "recorder");
  auto segment = Require(client->Acquire({.bytes = kKindBytes}),
                         absl::StrCat("acquires ", FormatBytes(kKindBytes)));
  Event filled =
      Require(client->CreateEvent({.name = "filled"}), "makes an event with the name \"filled\"");
  Require(testing::Fill(MemoryOf(segment), SeedOf(1)), "fills its memory");
  Require(filled.Record(nullptr), "records the event behind that, on its stream");
  Tell("ticket " + Require(segment.Share(), "gets a ticket").value);
  WaitForGo();  // until the other has waited: the event ends with this session
  WaitForGo();
}

void WaitForEvent() {
  auto client = ConnectAs(kTraining, "waiter");
  auto segment = Require(client->Open(ReadLine()), "opens the memory by its ticket");
  Event filled = Require(client->OpenEvent("filled"), "opens the event by its name");
  Require(filled.Wait(nullptr), "lets its stream wait for it");
  Require(filled.Synchronize(), "waits until that is through");
  Require(testing::Check(MemoryOf(segment), SeedOf(1)), "finds the recorder's words in every byte");
  WaitForGo();
}

void Play(const std::string& role) {
  if (role == "producer") return Produce();
  if (role == "consumer") return Consume();
  if (role == "greedy") return BeGreedy();
  if (role == "holder") return Hold();
  for (Kind kind : {Kind::kIpc, Kind::kMempool, Kind::kPinned}) {
    if (role == absl::StrCat("maker-", std::string(KindName(kind)))) return MakeOfKind(kind);
  }
  if (role == "opener") return OpenOfKind();
  if (role == "recorder") return Record();
  if (role == "waiter") return WaitForEvent();
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
