// SPDX-License-Identifier: Apache-2.0
// The actor's own side: executes each line.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "common/cuda/device_copy.h"
#include "common/mapping/mapping.h"
#include "common/unix_channel.h"
#include "gpumem/publication.h"
#include "tests/contract/actor.h"
#include "tests/contract/actor_identity.h"
#include "tests/contract/actor_words.h"
#include "tests/support/pattern.h"

namespace gpumem::contract {
namespace {

using testing::Memory;
using Words = std::vector<std::string>;

// A status's code and words, or the words of an answer with its descriptor.
struct Answer {
  absl::Status status;
  std::string words;
  int fd = -1;  // borrowed
};

Answer Failed(absl::Status status) { return {.status = std::move(status)}; }

template <typename T>
Answer FailedOr(const absl::StatusOr<T>& value, const std::function<std::string()>& words) {
  if (!value.ok()) return Failed(value.status());
  return {.words = words()};
}

Kind KindNamed(absl::string_view name) {
  for (Kind kind : {Kind::kVmm, Kind::kMempool, Kind::kIpc, Kind::kPinned}) {
    if (KindName(kind) == name) return kind;
  }
  return Kind::kDefault;
}

// The leases that the daemon said were lost, one word of it after another.
class LostLeases {
 public:
  void Add(const SegmentsLost& lost) {
    absl::MutexLock lock(&mutex_);
    news_.push_back(lost.lease_ids);
  }
  absl::StatusOr<std::vector<uint64_t>> Next() {
    absl::MutexLock lock(&mutex_);
    const auto told = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !news_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&told), absl::Seconds(20))) {
      return absl::DeadlineExceededError("the daemon says nothing of lost segments");
    }
    std::vector<uint64_t> next = std::move(news_.front());
    news_.erase(news_.begin());
    return next;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::vector<uint64_t>> news_ ABSL_GUARDED_BY(mutex_);
};

// Maps memory by its raw handle.
absl::StatusOr<std::unique_ptr<Mapping>> MapRaw(Kind kind, bool cuda, const std::string& device,
                                                uint64_t bytes, const std::string& data, int fd,
                                                const std::string& runtime_dir) {
  ExportData export_data = {};
  std::copy_n(data.begin(), std::min(data.size(), export_data.size()), export_data.begin());
  const MapRequest request = {.fd = fd, .bytes = bytes};
  MapOptions options;
  if (cuda) options.device_uuids = {device};
  absl::StatusOr<Mappings> mappings;
  switch (kind) {
    case Kind::kIpc:
      return cuda ? OpenCudaIpc(device, export_data, bytes, options)
                  : OpenHostIpc(runtime_dir, export_data, bytes, options);
    case Kind::kMempool: {
      auto pool = cuda ? ImportCudaPool(device, fd) : ImportHostPool(runtime_dir, fd);
      if (!pool.ok()) return pool.status();
      return (*pool)->Open(export_data, bytes, options);
    }
    case Kind::kPinned:
      mappings = MapPinned({request}, {});
      break;
    default:
      mappings = cuda ? MapCuda({request}, options) : MapHost({request}, options);
  }
  if (!mappings.ok()) return mappings.status();
  return std::move(mappings->front());
}

class Role {
 public:
  explicit Role(std::string runtime_dir) : runtime_dir_(std::move(runtime_dir)) {}

  Answer Do(const Words& words, int fd) {
    const std::string& verb = words[0];
    if (verb == "see") {
      setenv("CUDA_VISIBLE_DEVICES", words.at(1).c_str(), 1);
      return {};
    }
    if (verb == "connect") return Connect(words.at(1));
    if (verb == "open-raw") return OpenRaw(words, fd);
    if (verb == "write" || verb == "expect" || verb == "expect-zero" || verb == "try-write") {
      return Touch(verb, words.at(1), words.size() > 2 ? words[2] : "0");
    }
    if (client_ == nullptr) return Failed(absl::FailedPreconditionError("not connected"));
    if (verb == "acquire") return Acquire(words);
    if (verb == "open") return Open(words);
    if (verb == "attach") return Attach(words);
    if (verb == "unpublish") return Failed(client_->Unpublish(words.at(1)).status());
    if (verb == "watch") return Watch();
    if (verb == "await-lost") {
      auto lost = lost_.Next();
      return FailedOr(lost, [&] { return absl::StrJoin(*lost, " "); });
    }
    if (verb.find("event") != std::string::npos || verb == "record") return DoEvent(words);
    return DoSegment(words);
  }

 private:
  Answer Connect(const std::string& tenant) {
    auto client =
        Client::Connect({.runtime_dir = runtime_dir_, .tenant = tenant, .name = "contract"});
    if (!client.ok()) return Failed(client.status());
    client_ = *std::move(client);
    return {};
  }

  Answer Keep(const std::string& name, absl::StatusOr<Segment> segment) {
    if (!segment.ok()) return Failed(segment.status());
    const Segment& kept = segments_[name] = *std::move(segment);
    return {.words = absl::StrCat(kept.lease_id(), " ", kept.size(), " ",
                                  reinterpret_cast<uintptr_t>(kept.data()),
                                  kept.reused() ? " reused " : " new ", kept.device_uuid())};
  }

  Answer Acquire(const Words& words) {
    AcquireOptions options = {.bytes = std::stoull(words.at(3)), .kind = KindNamed(words.at(2))};
    options.address = reinterpret_cast<void*>(std::stoull(words.at(4)));
    if (!words.at(5).empty()) options.map_devices = {words[5]};
    users_[words[1]] = words[5];
    return Keep(words[1], client_->Acquire(options));
  }

  Answer Open(const Words& words) {
    OpenOptions options = {.read_only = words.at(3) == "ro"};
    options.address = reinterpret_cast<void*>(std::stoull(words.at(4)));
    if (!words.at(5).empty()) options.map_devices = {words[5]};
    users_[words[1]] = words[5];
    return Keep(words[1], client_->Open(words.at(2), options));
  }

  Answer Attach(const Words& words) {
    auto attached = client_->Attach(words.at(2), {.read_only = words.at(3) == "ro"});
    if (!attached.ok()) return Failed(attached.status());
    const Attachment& kept = attachments_[words[1]] = *std::move(attached);
    return {.words = absl::StrCat(kept.version())};
  }

  Answer DoSegment(const Words& words) {
    if (words[0] == "release" && attachments_.count(words.at(1)) > 0) {
      Answer answer = {.status = attachments_.at(words[1]).Release()};
      attachments_.erase(words[1]);
      return answer;
    }
    const auto it = segments_.find(words.at(1));
    if (it == segments_.end()) return Failed(absl::InternalError("no memory " + words[1]));
    Segment& segment = it->second;
    if (words[0] == "share") {
      auto ticket = segment.Share(words.at(2) == "any" ? TicketScope::kAny : TicketScope::kTenant);
      return FailedOr(ticket, [&] { return ticket->value; });
    }
    if (words[0] == "publish") {
      auto version = client_->Publish(words.at(2), {&segment}, {});
      return FailedOr(version, [&] { return absl::StrCat(*version); });
    }
    if (words[0] == "release") {
      Answer answer = {.status = segment.Release()};
      segments_.erase(it);
      return answer;
    }
    if (words[0] == "raw") return Raw(segment);
    return Failed(absl::InternalError(words[0]));
  }

  static Answer Raw(Segment& segment) {
    const auto hex = [](const Handle& handle) {
      return absl::BytesToHexString(
          absl::string_view(reinterpret_cast<const char*>(handle.data()), handle.size()));
    };
    if (segment.kind() == Kind::kIpc) {
      auto handle = segment.ipc_handle();
      return FailedOr(handle, [&] { return hex(*handle); });
    }
    const bool pool = segment.kind() == Kind::kMempool;
    absl::StatusOr<int> fd = pool ? segment.pool_fd() : segment.fd();
    if (!fd.ok()) return Failed(fd.status());
    Answer answer = {.fd = *fd};
    if (pool) {
      auto data = segment.export_data();
      if (!data.ok()) return Failed(data.status());
      answer.words = hex(*data);
    }
    return answer;
  }

  Answer OpenRaw(const Words& words, int fd) {
    const bool cuda = words.at(3) == "cuda";
    const Kind kind = KindNamed(words.at(2));
    const uint64_t bytes = std::stoull(words.at(5));
    auto mapping =
        MapRaw(kind, cuda, words.at(4), bytes,
               words.size() > 6 ? absl::HexStringToBytes(words[6]) : "", fd, runtime_dir_);
    if (!mapping.ok()) return Failed(mapping.status());
    raw_[words[1]] = {.mapping = *std::move(mapping),
                      .backend = cuda && kind != Kind::kPinned ? Backend::kCuda : Backend::kHost,
                      .device_uuid = words[4]};
    return {};
  }

  absl::StatusOr<Memory> Find(const std::string& name) const {
    if (const auto it = segments_.find(name); it != segments_.end()) {
      Memory memory = testing::MemoryOf(it->second);
      if (const std::string& user = users_.at(name); !user.empty()) memory.device_uuid = user;
      return memory;
    }
    if (const auto it = attachments_.find(name); it != attachments_.end()) {
      return testing::MemoryOf(it->second.segments()[0]);
    }
    if (const auto it = raw_.find(name); it != raw_.end()) {
      return Memory{.backend = it->second.backend,
                    .device_uuid = it->second.device_uuid,
                    .data = it->second.mapping->data(),
                    .size = it->second.mapping->size()};
    }
    return absl::InternalError("no memory " + name);
  }

  Answer Touch(const std::string& verb, const std::string& name, const std::string& seed) {
    auto memory = Find(name);
    if (!memory.ok()) return Failed(memory.status());
    if (verb == "write") return Failed(testing::Fill(*memory, std::stoull(seed)));
    if (verb == "expect") return Failed(testing::Check(*memory, std::stoull(seed)));
    if (verb == "expect-zero") return Failed(testing::CheckZero(*memory));
    if (verb == "try-write") return Failed(TryWrite(*memory));
    return Failed(absl::InternalError(verb));
  }

  static absl::Status TryWrite(const Memory& memory) {
    const auto denied = [](bool written) {
      return written ? absl::OkStatus() : absl::PermissionDeniedError("mapped read-only");
    };
    if (memory.backend == Backend::kCuda) {
      auto copier = DeviceCopier::ForCuda(memory.device_uuid);
      if (!copier.ok()) return copier.status();
      return denied((*copier)->Fill(memory.data, 1, 4096).ok());
    }
    // The kernel writes in our name, and says EFAULT where we would get SIGSEGV.
    const UniqueFd zero(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    const ssize_t got = read(zero.get(), memory.data, 4096);
    if (got < 0 && errno != EFAULT) return absl::ErrnoToStatus(errno, "read");
    return denied(got > 0);
  }

  Answer DoEvent(const Words& words) {
    const std::string& verb = words[0];
    const std::string& name = words.at(1);
    if (verb == "create-event") return KeepEvent(name, client_->CreateEvent({.name = name}));
    if (verb == "open-event") return KeepEvent(name, client_->OpenEvent(name));
    if (verb == "create-event-beside") {
      return KeepEvent(name, client_->CreateEvent({.segment = &segments_[words.at(2)]}));
    }
    if (verb == "open-event-beside") {
      auto events = client_->OpenEvents(segments_[words.at(2)]);
      if (!events.ok()) return Failed(events.status());
      if (events->size() != 1) return Failed(absl::InternalError("not one event"));
      events_[name] = std::move(events->front());
      return {};
    }
    const auto it = events_.find(name);
    if (it == events_.end()) return Failed(absl::InternalError("no event " + name));
    if (verb == "record") return Failed(it->second.Record(nullptr));
    if (verb == "drop-event") {
      events_.erase(it);
      return {};
    }
    absl::Status status = it->second.Wait(nullptr);
    if (status.ok()) status = it->second.Synchronize();
    return Failed(status);
  }

  Answer KeepEvent(const std::string& name, absl::StatusOr<Event> event) {
    if (!event.ok()) return Failed(event.status());
    events_[name] = *std::move(event);
    return {};
  }

  Answer Watch() {
    auto watch = client_->StartWatch(
        {.segments_lost = [this](const SegmentsLost& lost) { lost_.Add(lost); }});
    if (!watch.ok()) return Failed(watch.status());
    watch_ = *std::move(watch);
    return {};
  }

  struct RawMemory {
    std::unique_ptr<Mapping> mapping;
    Backend backend = Backend::kHost;
    std::string device_uuid;
  };

  const std::string runtime_dir_;
  LostLeases lost_;
  std::unique_ptr<Client> client_;
  std::map<std::string, Segment> segments_;
  std::map<std::string, std::string> users_;  // GPUs by segment name; empty: the segment's
  std::map<std::string, RawMemory> raw_;
  std::map<std::string, Attachment> attachments_;
  std::map<std::string, Event> events_;
  std::unique_ptr<gpumem::Watch> watch_;  // destroyed before the objects that its handlers use
};

}  // namespace

std::optional<int> RunAsActor(int argc, char** argv) {
  if (argc != 4 || std::string(argv[1]) != kActorFlag) return std::nullopt;
  constexpr int kChannel = 3;
  const absl::Status become = BecomeIdentity(argv[2]);
  if (!become.ok()) {
    std::fprintf(stderr, "%s\n", become.ToString().c_str());
    return 1;
  }
  Role role(argv[3]);
  while (true) {
    auto message = ReceiveMessage(kChannel, absl::InfiniteFuture());
    if (!message.ok()) return absl::IsUnavailable(message.status()) ? 0 : 1;
    const Words words = absl::StrSplit(message->bytes, ' ');
    const Answer answer = role.Do(words, message->fds.empty() ? -1 : message->fds[0].get());
    std::vector<int> fds;
    if (answer.fd >= 0) fds.push_back(answer.fd);
    const std::string text =
        absl::StrCat(static_cast<int>(answer.status.code()), " ",
                     answer.status.ok() ? answer.words : std::string(answer.status.message()));
    if (!SendMessage(kChannel, text, fds, absl::Now() + absl::Seconds(60)).ok()) return 1;
  }
}

}  // namespace gpumem::contract
