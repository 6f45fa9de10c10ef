// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/testing/contract_peer_server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"

namespace gpumemd {
namespace {

using gpumem::DeviceCopier;
using gpumem::ImportedPool;
using gpumem::Mapping;
using gpumem::UniqueFd;

constexpr uint64_t kChunkBytes = 8 << 20;

bool OnHost(const SharedMemory& memory) { return !absl::StartsWith(memory.device_uuid, "GPU-"); }

// The word at `index` of the pattern of `seed` (SplitMix64's output function).
uint64_t PatternWord(uint64_t seed, uint64_t index) {
  uint64_t word = seed + (index + 1) * 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// Parses "map KIND UUID RUNTIME_DIR BYTES POOL DATA rw"; absent values are "-".
absl::StatusOr<SharedMemory> Parse(const std::vector<std::string>& words,
                                   const std::vector<UniqueFd>& fds) {
  int kind = 0;
  SharedMemory memory;
  if (words.size() != 8 || !absl::SimpleAtoi(words[1], &kind) ||
      !absl::SimpleAtoi(words[4], &memory.bytes) || !absl::SimpleAtoi(words[5], &memory.pool_id)) {
    return absl::InvalidArgumentError("not a description of memory");
  }
  memory.kind = static_cast<Kind>(kind);
  memory.device_uuid = words[2];
  memory.runtime_dir = words[3];
  for (const UniqueFd& fd : fds) memory.fds.push_back(fd.get());
  if (words[6] != "-") {
    const std::string bytes = absl::HexStringToBytes(words[6]);
    memory.data.emplace();
    std::memcpy(memory.data->data(), bytes.data(), std::min(bytes.size(), memory.data->size()));
  }
  return memory;
}

// As a session of a client imports a pool: once in a process.
absl::StatusOr<std::shared_ptr<ImportedPool>> ImportOnce(const SharedMemory& memory) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto& imported = *new std::map<uint64_t, std::weak_ptr<ImportedPool>>();
  absl::MutexLock lock(&mutex);
  if (std::shared_ptr<ImportedPool> pool = imported[memory.pool_id].lock()) return pool;
  if (memory.fds.size() != 1) return absl::InvalidArgumentError("no descriptor of the pool");
  absl::StatusOr<std::shared_ptr<ImportedPool>> pool =
      OnHost(memory) ? gpumem::ImportHostPool(memory.runtime_dir, memory.fds.front())
                     : gpumem::ImportCudaPool(memory.device_uuid, memory.fds.front());
  if (pool.ok()) imported[memory.pool_id] = *pool;
  return pool;
}

}  // namespace

absl::StatusOr<UniqueFd> PeerServer::Do(gpumem::UnixMessage message) {
  const std::vector<std::string> words = absl::StrSplit(message.bytes, ' ');
  const std::string& verb = words[0];
  if (verb == "hello") return UniqueFd();
  if (verb == "keep") {
    kept_ = std::move(message.fds.at(0));
    return UniqueFd();
  }
  if (verb == "give-back") return std::move(kept_);
  absl::Status status;
  if (verb == "map" || verb == "map-again") {
    const absl::StatusOr<SharedMemory> memory = Parse(words, message.fds);
    if (!memory.ok()) return memory.status();
    status = verb == "map" ? Map(*memory, words[7] == "ro") : MapAgain(*memory);
  } else if (verb == "unmap") {
    mappings_.clear();
  } else if (verb == "expect-zeros") {
    status = Expect([](uint64_t) { return uint64_t{0}; });
  } else {
    uint64_t seed = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[1], &seed)) {
      return absl::InvalidArgumentError(message.bytes);
    }
    const auto word_at = [seed](uint64_t i) { return PatternWord(seed, i); };
    status = verb == "write"    ? Write(word_at)
             : verb == "expect" ? Expect(word_at)
                                : absl::InvalidArgumentError(message.bytes);
  }
  if (!status.ok()) return status;
  return UniqueFd();
}

absl::StatusOr<std::shared_ptr<ImportedPool>> PeerServer::Pool(const SharedMemory& memory) {
  std::shared_ptr<ImportedPool>& mine = pools_[memory.pool_id];
  if (mine != nullptr) return mine;
  absl::StatusOr<std::shared_ptr<ImportedPool>> pool = ImportOnce(memory);
  if (pool.ok()) mine = *pool;
  return pool;
}

absl::StatusOr<gpumem::Mappings> PeerServer::Open(const SharedMemory& memory, bool read_only) {
  gpumem::MapOptions options{.read_only = read_only};
  if (!OnHost(memory)) options.device_uuids = {memory.device_uuid};
  if (!IsContextBound(memory.kind)) {
    std::vector<gpumem::MapRequest> requests;
    for (const int fd : memory.fds) requests.push_back({.fd = fd, .bytes = memory.bytes});
    if (memory.kind == Kind::kPinned) return gpumem::MapPinned(requests, options);
    return OnHost(memory) ? gpumem::MapHost(requests, options) : gpumem::MapCuda(requests, options);
  }
  if (!memory.data.has_value()) return absl::InvalidArgumentError("no export data");
  absl::StatusOr<std::unique_ptr<Mapping>> mapping = absl::UnknownError("");
  if (memory.kind == Kind::kMempool) {
    const absl::StatusOr<std::shared_ptr<ImportedPool>> pool = Pool(memory);
    if (!pool.ok()) return pool.status();
    mapping = (*pool)->Open(*memory.data, memory.bytes, options);
  } else {
    mapping = OnHost(memory)
                  ? gpumem::OpenHostIpc(memory.runtime_dir, *memory.data, memory.bytes, options)
                  : gpumem::OpenCudaIpc(memory.device_uuid, *memory.data, memory.bytes, options);
  }
  if (!mapping.ok()) return mapping.status();
  gpumem::Mappings mappings;
  mappings.push_back(*std::move(mapping));
  return mappings;
}

absl::Status PeerServer::Map(const SharedMemory& memory, bool read_only) {
  mappings_.clear();
  if (memory.device_uuid != memory_.device_uuid) copier_.reset();
  memory_ = memory;
  absl::StatusOr<gpumem::Mappings> mappings = Open(memory, read_only);
  if (!mappings.ok()) return mappings.status();
  mappings_ = *std::move(mappings);
  const char* next = Base();
  for (const std::unique_ptr<Mapping>& mapping : mappings_) {
    if (mapping->data() != next || mapping->size() != memory.bytes) {
      return absl::InternalError("the mappings do not follow one another without a gap");
    }
    next += memory.bytes;
  }
  return absl::OkStatus();
}

absl::Status PeerServer::MapAgain(const SharedMemory& memory) {
  if (mappings_.empty()) return absl::FailedPreconditionError("nothing is mapped");
  const absl::StatusOr<gpumem::Mappings> again = Open(memory, /*read_only=*/false);
  if (!again.ok()) return again.status();
  if (again->front()->data() == Base()) return absl::OkStatus();
  return absl::AbortedError("it is at another address");
}

absl::Status PeerServer::Write(absl::FunctionRef<uint64_t(uint64_t)> word_at) {
  return ForEachChunk([&](char* mapped, uint64_t first_word, std::vector<uint64_t>& words) {
    for (size_t i = 0; i < words.size(); ++i) words[i] = word_at(first_word + i);
    return copier_->CopyIn(mapped, words.data(), words.size() * sizeof(uint64_t));
  });
}

absl::Status PeerServer::Expect(absl::FunctionRef<uint64_t(uint64_t)> word_at) {
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

absl::Status PeerServer::ForEachChunk(
    absl::FunctionRef<absl::Status(char* mapped, uint64_t first_word, std::vector<uint64_t>&)>
        work) {
  if (mappings_.empty()) return absl::FailedPreconditionError("nothing is mapped");
  if (copier_ == nullptr) {  // late: mapping has to work without a CUDA context
    absl::StatusOr<std::unique_ptr<DeviceCopier>> copier =
        OnHost(memory_) ? DeviceCopier::ForHost() : DeviceCopier::ForCuda(memory_.device_uuid);
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
  return absl::OkStatus();
}

}  // namespace gpumemd
