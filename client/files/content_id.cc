// SPDX-License-Identifier: Apache-2.0
#include "client/files/content_id.h"

// The functions of OpenSSL 3 that it calls modern read the machine's configuration and load modules
// into the program; these only compute.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/files/parallel.h"

namespace gpumem::internal {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{4} << 20;
// Bytes are hashed while they are in the processor's cache.
constexpr uint64_t kReadAtOnce = uint64_t{256} << 10;

class Sha256 {
 public:
  Sha256() { SHA256_Init(&state_); }
  void Update(absl::string_view bytes) { SHA256_Update(&state_, bytes.data(), bytes.size()); }
  std::string Finish() {
    std::string hash(SHA256_DIGEST_LENGTH, '\0');
    SHA256_Final(reinterpret_cast<unsigned char*>(hash.data()), &state_);
    return hash;
  }

 private:
  SHA256_CTX state_;
};

uint64_t ChunksOf(const FileReader& file) { return (file.bytes() + kChunkBytes - 1) / kChunkBytes; }

absl::StatusOr<std::string> HashChunk(FileReader& file, uint64_t chunk, std::vector<char>& buffer) {
  Sha256 hash;
  const uint64_t end = std::min(file.bytes(), (chunk + 1) * kChunkBytes);
  for (uint64_t at = chunk * kChunkBytes; at < end; at += kReadAtOnce) {
    const uint64_t bytes = std::min(kReadAtOnce, end - at);
    absl::Status status = file.Read(at, bytes, buffer.data());
    if (!status.ok()) return status;
    hash.Update({buffer.data(), bytes});
  }
  return hash.Finish();
}

// Returns the hashes of the files, each computed from its chunks by several threads.
absl::StatusOr<std::vector<std::string>> HashFiles(absl::Span<FileReader* const> files,
                                                   absl::FunctionRef<absl::Status()> poll) {
  struct Chunk {
    size_t file;
    uint64_t index;
  };
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < files.size(); ++i) {
    for (uint64_t index = 0; index < ChunksOf(*files[i]); ++index) chunks.push_back({i, index});
  }
  std::vector<std::string> hashes(chunks.size());
  std::atomic<size_t> next = 0;
  Parallel parallel;
  const auto work = [&]() -> absl::Status {
    std::vector<char> buffer(kReadAtOnce);
    while (!parallel.stopped()) {
      const size_t i = next++;
      if (i >= chunks.size()) break;
      auto hash = HashChunk(*files[chunks[i].file], chunks[i].index, buffer);
      if (!hash.ok()) return hash.status();
      hashes[i] = *std::move(hash);
    }
    return absl::OkStatus();
  };
  absl::Status status = parallel.Run(chunks.size(), work, poll);
  if (!status.ok()) return status;
  std::vector<std::string> of_files;
  size_t at = 0;
  for (FileReader* file : files) {
    Sha256 hash;
    for (uint64_t i = 0; i < ChunksOf(*file); ++i) hash.Update(hashes[at++]);
    of_files.push_back(hash.Finish());
  }
  return of_files;
}

}  // namespace

absl::StatusOr<std::string> ContentId(absl::Span<FileReader* const> files, const HashCache& cache,
                                      absl::FunctionRef<absl::Status()> poll) {
  std::vector<std::string> hashes(files.size());
  std::vector<size_t> unknown;
  std::vector<FileReader*> to_hash;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto known = cache.Find(files[i]->before());
    if (known.has_value()) {
      hashes[i] = absl::HexStringToBytes(*known);
    } else {
      unknown.push_back(i);
      to_hash.push_back(files[i]);
    }
  }
  const absl::Time begun = absl::Now();
  auto hashed = HashFiles(to_hash, poll);
  if (!hashed.ok()) return hashed.status();
  for (size_t i = 0; i < unknown.size(); ++i) {
    if (absl::Status status = to_hash[i]->CheckUnchanged(); !status.ok()) return status;
    cache.Keep(to_hash[i]->before(), begun, absl::BytesToHexString((*hashed)[i]));
    hashes[unknown[i]] = std::move((*hashed)[i]);
  }
  std::vector<size_t> order(files.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::make_pair(files[a]->name(), hashes[a]) <
           std::make_pair(files[b]->name(), hashes[b]);
  });
  Sha256 content;
  content.Update("gpumem-content/1\n");
  for (const size_t i : order) {
    content.Update(absl::StrCat(files[i]->bytes(), " ", files[i]->name()));
    content.Update({"\0", 1});
    content.Update(hashes[i]);
  }
  return content.Finish();
}

}  // namespace gpumem::internal
