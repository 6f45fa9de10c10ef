#include "daemon/device/contract_peer.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/device_copy.h"
#include "common/mapping.h"
#include "common/unix_channel.h"

namespace gpumemd {
namespace {

using gpumem::DeviceCopier;
using gpumem::Mapping;
using gpumem::UniqueFd;
using gpumem::UnixMessage;

constexpr char kPeerFlag[] = "--serve-as-contract-peer";
constexpr int kPeerSocket = 3;
// Making a first CUDA context on a busy machine takes seconds.
constexpr absl::Duration kPatience = absl::Seconds(120);
constexpr uint64_t kChunkBytes = 8 << 20;

// The word at `index` of the pattern of `seed` (SplitMix64's output function).
uint64_t PatternWord(uint64_t seed, uint64_t index) {
  uint64_t word = seed + (index + 1) * 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// The peer's side: does what each message says.
class Server {
 public:
  // The descriptor to send with the answer, if any.
  absl::StatusOr<UniqueFd> Do(UnixMessage message) {
    const std::vector<std::string> words = absl::StrSplit(message.bytes, ' ');
    uint64_t number = 0;
    if (words.size() >= 2 && !absl::SimpleAtoi(words[1], &number)) {
      return absl::InvalidArgumentError(message.bytes);
    }
    if (words[0] == "keep") {
      kept_ = std::move(message.fds.at(0));
      return UniqueFd();
    }
    if (words[0] == "give-back") return std::move(kept_);
    if (words[0] == "map") {
      return Map(words.at(3), number, words.at(2) == "ro", message.fds);
    }
    if (words[0] == "unmap") {
      mappings_.clear();
      return UniqueFd();
    }
    if (words[0] == "write") return Write([number](uint64_t i) { return PatternWord(number, i); });
    if (words[0] == "expect") {
      return Expect([number](uint64_t i) { return PatternWord(number, i); });
    }
    if (words[0] == "expect-zeros") return Expect([](uint64_t) { return 0; });
    return absl::InvalidArgumentError(message.bytes);
  }

 private:
  absl::StatusOr<UniqueFd> Map(const std::string& device_uuid, uint64_t bytes, bool read_only,
                               const std::vector<UniqueFd>& fds) {
    mappings_.clear();
    device_uuid_ = device_uuid;
    std::vector<gpumem::MapRequest> requests;
    for (const UniqueFd& fd : fds) requests.push_back({.fd = fd.get(), .bytes = bytes});
    absl::StatusOr<std::vector<std::unique_ptr<Mapping>>> mappings =
        OnHost() ? gpumem::MapHost(requests, read_only)
                 : gpumem::MapCuda(device_uuid, requests, read_only);
    if (!mappings.ok()) return mappings.status();
    mappings_ = *std::move(mappings);
    const char* next = Base();
    for (const std::unique_ptr<Mapping>& mapping : mappings_) {
      if (mapping->data() != next || mapping->size() != bytes) {
        return absl::InternalError("the mappings do not follow one another without a gap");
      }
      next += bytes;
    }
    return UniqueFd();
  }

  template <typename WordAt>
  absl::StatusOr<UniqueFd> Write(WordAt word_at) {
    return ForEachChunk([&](char* mapped, uint64_t first_word, std::vector<uint64_t>& words) {
      for (size_t i = 0; i < words.size(); ++i) words[i] = word_at(first_word + i);
      return copier_->CopyIn(mapped, words.data(), words.size() * sizeof(uint64_t));
    });
  }

  template <typename WordAt>
  absl::StatusOr<UniqueFd> Expect(WordAt word_at) {
    return ForEachChunk([&](char* mapped, uint64_t first_word, std::vector<uint64_t>& words) {
      absl::Status status = copier_->CopyOut(words.data(), mapped, words.size() * sizeof(uint64_t));
      if (!status.ok()) return status;
      for (size_t i = 0; i < words.size(); ++i) {
        const uint64_t wanted = word_at(first_word + i);
        if (words[i] == wanted) continue;
        return absl::DataLossError(absl::StrCat("at byte ", (first_word + i) * sizeof(uint64_t),
                                                " there is ", absl::Hex(words[i], absl::kZeroPad16),
                                                ", not ", absl::Hex(wanted, absl::kZeroPad16)));
      }
      return absl::OkStatus();
    });
  }

  template <typename Work>
  absl::StatusOr<UniqueFd> ForEachChunk(Work work) {
    if (mappings_.empty()) return absl::FailedPreconditionError("nothing is mapped");
    if (copier_ == nullptr) {  // late: mapping has to work without a CUDA context
      absl::StatusOr<std::unique_ptr<DeviceCopier>> copier =
          OnHost() ? DeviceCopier::ForHost() : DeviceCopier::ForCuda(device_uuid_);
      if (!copier.ok()) return copier.status();
      copier_ = *std::move(copier);
    }
    const uint64_t total = mappings_.size() * mappings_.front()->size();
    std::vector<uint64_t> words;
    for (uint64_t at = 0; at < total; at += kChunkBytes) {
      words.resize(std::min(kChunkBytes, total - at) / sizeof(uint64_t));
      absl::Status status = work(Base() + at, at / sizeof(uint64_t), words);
      if (!status.ok()) return status;
    }
    return UniqueFd();
  }

  bool OnHost() const { return absl::StartsWith(device_uuid_, "HOST-"); }
  char* Base() const { return static_cast<char*>(mappings_.front()->data()); }

  std::string device_uuid_;
  std::vector<std::unique_ptr<Mapping>> mappings_;
  std::unique_ptr<DeviceCopier> copier_;
  UniqueFd kept_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ContractPeer>> ContractPeer::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), kPeerSocket);
  std::string program = "/proc/self/exe";
  std::string flag = kPeerFlag;
  char* const argv[] = {program.data(), flag.data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::ErrnoToStatus(error, "posix_spawn");
  return std::unique_ptr<ContractPeer>(new ContractPeer(pid, std::move(ours)));
}

ContractPeer::~ContractPeer() { Kill(); }

void ContractPeer::Kill() {
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
}

absl::Status ContractPeer::Ask(absl::string_view command, absl::Span<const int> fds,
                               UniqueFd* answer) {
  const absl::Time deadline = absl::Now() + kPatience;
  absl::Status sent = gpumem::SendMessage(socket_.get(), command, fds, deadline);
  if (!sent.ok()) return sent;
  absl::StatusOr<UnixMessage> received = gpumem::ReceiveMessage(socket_.get(), deadline);
  if (!received.ok()) return received.status();
  // "CODE MESSAGE".
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(received->bytes, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code)) return absl::InternalError(received->bytes);
  if (answer != nullptr && !received->fds.empty()) *answer = std::move(received->fds.front());
  return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
}

absl::Status ContractPeer::Map(const DeviceInfo& device, absl::Span<const int> fds, uint64_t bytes,
                               bool read_only) {
  return Ask(absl::StrCat("map ", bytes, read_only ? " ro " : " rw ", device.uuid), fds);
}

absl::Status ContractPeer::Unmap() { return Ask("unmap"); }

absl::Status ContractPeer::WritePattern(uint64_t seed) { return Ask(absl::StrCat("write ", seed)); }

absl::Status ContractPeer::ExpectPattern(uint64_t seed) {
  return Ask(absl::StrCat("expect ", seed));
}

absl::Status ContractPeer::ExpectZeros() { return Ask("expect-zeros"); }

absl::Status ContractPeer::Keep(int fd) { return Ask("keep", {fd}); }

absl::StatusOr<UniqueFd> ContractPeer::GiveBack() {
  UniqueFd fd;
  absl::Status status = Ask("give-back", {}, &fd);
  if (!status.ok()) return status;
  return fd;
}

std::optional<int> RunAsContractPeer(int argc, char** argv) {
  if (argc != 2 || strcmp(argv[1], kPeerFlag) != 0) return std::nullopt;
  const UniqueFd socket(kPeerSocket);
  Server server;
  while (true) {
    absl::StatusOr<UnixMessage> message =
        gpumem::ReceiveMessage(socket.get(), absl::InfiniteFuture());
    if (absl::IsUnavailable(message.status())) return 0;
    if (!message.ok()) return 1;
    const absl::StatusOr<UniqueFd> done = server.Do(*std::move(message));
    std::vector<int> fds;
    if (done.ok() && done->valid()) fds.push_back(done->get());
    const std::string answer =
        absl::StrCat(static_cast<int>(done.status().code()), " ", done.status().message());
    if (!gpumem::SendMessage(socket.get(), answer, fds, absl::InfiniteFuture()).ok()) return 1;
  }
}

}  // namespace gpumemd
