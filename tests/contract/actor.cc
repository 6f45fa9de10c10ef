// SPDX-License-Identifier: Apache-2.0
#include "tests/contract/actor.h"

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/unix_channel.h"
#include "tests/contract/actor_identity.h"
#include "tests/contract/actor_words.h"

namespace gpumem::contract {
namespace {

using testing::Child;
using Words = std::vector<std::string>;

// The first use of CUDA takes a process seconds on a busy machine.
constexpr absl::Duration kTimeout = absl::Seconds(90);

std::string Number(uint64_t number) { return absl::StrCat(number); }

}  // namespace

Actor::Actor(Identity identity, std::string runtime_dir)
    : child_(Child::Self({kActorFlag, IdentityName(identity), std::move(runtime_dir)})) {
  if (identity == Identity::kSameProcess) {
    std::cerr << "a process cannot be started as itself" << std::endl;
    std::abort();
  }
}

absl::StatusOr<Words> Actor::Ask(const Words& words, int fd, UniqueFd* answered_fd) {
  const absl::Time deadline = absl::Now() + kTimeout;
  std::vector<int> fds;
  if (fd >= 0) fds.push_back(fd);
  const std::string line = absl::StrJoin(words, " ");
  if (absl::Status sent = SendMessage(child_.channel(), line, fds, deadline); !sent.ok()) {
    return sent;
  }
  absl::StatusOr<UnixMessage> answer = ReceiveMessage(child_.channel(), deadline);
  if (!answer.ok()) return answer.status();
  if (answered_fd != nullptr && !answer->fds.empty()) *answered_fd = std::move(answer->fds[0]);
  // "CODE REST", where the rest are words, or the status's message.
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(answer->bytes, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code)) return absl::InternalError(answer->bytes);
  if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
  return Words(absl::StrSplit(parts.second, ' ', absl::SkipEmpty()));
}

absl::StatusOr<Held> Actor::AskForMemory(const Words& words) {
  absl::StatusOr<Words> answer = Ask(words);
  if (!answer.ok()) return answer.status();
  Held held;
  if (answer->size() != 5 || !absl::SimpleAtoi((*answer)[0], &held.lease_id) ||
      !absl::SimpleAtoi((*answer)[1], &held.size) ||
      !absl::SimpleAtoi((*answer)[2], &held.address)) {
    return absl::InternalError(absl::StrJoin(*answer, " "));
  }
  held.reused = (*answer)[3] == "reused";
  held.device_uuid = (*answer)[4];
  return held;
}

absl::Status Actor::See(const std::string& device_uuids) {
  return Ask({"see", device_uuids}).status();
}

absl::Status Actor::Connect(const std::string& tenant) { return Ask({"connect", tenant}).status(); }

absl::StatusOr<Held> Actor::Acquire(const std::string& name, const Wish& wish) {
  return AskForMemory({"acquire", name, std::string(KindName(wish.kind)), Number(wish.bytes),
                       Number(wish.address), wish.user});
}

absl::StatusOr<Held> Actor::Open(const std::string& name, const std::string& ticket,
                                 const Wish& wish) {
  return AskForMemory(
      {"open", name, ticket, wish.read_only ? "ro" : "rw", Number(wish.address), wish.user});
}

absl::StatusOr<std::string> Actor::Share(const std::string& name, TicketScope scope) {
  auto answer = Ask({"share", name, scope == TicketScope::kAny ? "any" : "tenant"});
  if (!answer.ok()) return answer.status();
  return answer->at(0);
}

absl::Status Actor::Release(const std::string& name) { return Ask({"release", name}).status(); }

absl::StatusOr<uint64_t> Actor::Publish(const std::string& name, const std::string& publication) {
  auto answer = Ask({"publish", name, publication});
  if (!answer.ok()) return answer.status();
  return std::stoull(answer->at(0));
}

absl::StatusOr<uint64_t> Actor::Attach(const std::string& name, const std::string& publication,
                                       bool read_only) {
  auto answer = Ask({"attach", name, publication, read_only ? "ro" : "rw"});
  if (!answer.ok()) return answer.status();
  return std::stoull(answer->at(0));
}

absl::Status Actor::Unpublish(const std::string& publication) {
  return Ask({"unpublish", publication}).status();
}

absl::StatusOr<RawHandle> Actor::Raw(const std::string& name) {
  RawHandle handle;
  auto answer = Ask({"raw", name}, -1, &handle.fd);
  if (!answer.ok()) return answer.status();
  if (!answer->empty()) handle.data = absl::HexStringToBytes(answer->at(0));
  return handle;
}

absl::Status Actor::CreateEvent(const std::string& event) {
  return Ask({"create-event", event}).status();
}
absl::Status Actor::CreateEventBeside(const std::string& event, const std::string& name) {
  return Ask({"create-event-beside", event, name}).status();
}
absl::Status Actor::OpenEvent(const std::string& event) {
  return Ask({"open-event", event}).status();
}
absl::Status Actor::OpenEventBeside(const std::string& event, const std::string& name) {
  return Ask({"open-event-beside", event, name}).status();
}
absl::Status Actor::Record(const std::string& event) { return Ask({"record", event}).status(); }
absl::Status Actor::AwaitEvent(const std::string& event) {
  return Ask({"await-event", event}).status();
}
absl::Status Actor::DropEvent(const std::string& event) {
  return Ask({"drop-event", event}).status();
}

absl::Status Actor::Watch() { return Ask({"watch"}).status(); }

absl::StatusOr<std::vector<uint64_t>> Actor::AwaitLost() {
  auto answer = Ask({"await-lost"});
  if (!answer.ok()) return answer.status();
  std::vector<uint64_t> leases;
  for (const std::string& word : *answer) {
    uint64_t lease = 0;
    if (!absl::SimpleAtoi(word, &lease)) return absl::InternalError(word);
    leases.push_back(lease);
  }
  return leases;
}

absl::Status Actor::Write(const std::string& name, uint64_t seed) {
  return Ask({"write", name, Number(seed)}).status();
}
absl::Status Actor::Expect(const std::string& name, uint64_t seed) {
  return Ask({"expect", name, Number(seed)}).status();
}
absl::Status Actor::ExpectZero(const std::string& name) {
  return Ask({"expect-zero", name}).status();
}
absl::Status Actor::TryWrite(const std::string& name) { return Ask({"try-write", name}).status(); }

absl::Status Actor::OpenRaw(const std::string& name, Kind kind, Backend backend,
                            const std::string& device_uuid, uint64_t bytes,
                            const RawHandle& handle) {
  return Ask({"open-raw", name, std::string(KindName(kind)),
              backend == Backend::kCuda ? "cuda" : "host", device_uuid, Number(bytes),
              absl::BytesToHexString(handle.data)},
             handle.fd.get())
      .status();
}

}  // namespace gpumem::contract
