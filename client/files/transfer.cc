// SPDX-License-Identifier: Apache-2.0
#include "client/files/transfer.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "client/files/parallel.h"
#include "client/files/tree_hash.h"

namespace gpumem::internal {
namespace {

static_assert(kChunkBytes == Staging::kPieceBytes);

// Bytes are hashed while they are in the processor's cache.
constexpr uint64_t kHashedAtOnce = uint64_t{256} << 10;

struct Chunk {
  size_t part = 0;
  uint64_t offset = 0;  // in its part
  uint64_t bytes = 0;
};

std::vector<Chunk> Cut(absl::Span<const Part> parts) {
  std::vector<Chunk> chunks;
  for (size_t part = 0; part < parts.size(); ++part) {
    uint64_t offset = 0;
    do {  // one chunk, if it is empty
      const uint64_t bytes = std::min(kChunkBytes, parts[part].bytes - offset);
      chunks.push_back({.part = part, .offset = offset, .bytes = bytes});
      offset += bytes;
    } while (offset < parts[part].bytes);
  }
  return chunks;
}

void* MappedOf(absl::Span<const Part> parts, const Chunk& chunk) {
  return static_cast<char*>(parts[chunk.part].mapped) + chunk.offset;
}

std::vector<std::string> Checksums(absl::Span<const Part> parts, absl::Span<const Chunk> chunks,
                                   absl::Span<const XXH128_hash_t> hashes) {
  std::vector<std::string> checksums;
  checksums.reserve(parts.size());
  for (size_t begin = 0; begin < chunks.size();) {
    size_t end = begin;
    while (end < chunks.size() && chunks[end].part == chunks[begin].part) ++end;
    checksums.push_back(TreeHash(hashes.subspan(begin, end - begin)));
    begin = end;
  }
  return checksums;
}

// Threads that take the chunks in order and copy each.
class Workers {
 public:
  // Copies a chunk through a slot of the thread's Staging, which is free.
  using Work = absl::FunctionRef<absl::Status(Staging&, int slot, size_t chunk)>;

  Workers(absl::Span<const Chunk> chunks, MakeStaging make_staging, Work work)
      : chunks_(chunks), make_staging_(make_staging), work_(work) {}

  absl::Status Run(OnProgress on_progress) {
    return parallel_.Run(
        chunks_.size(), [&] { return Chunks(); }, [&] { return on_progress(done_.load()); });
  }

 private:
  absl::Status Chunks() {
    absl::StatusOr<std::unique_ptr<Staging>> staging = make_staging_();
    if (!staging.ok()) return staging.status();
    for (int slot = 0; !parallel_.stopped(); slot = (slot + 1) % Staging::kSlots) {
      const size_t chunk = next_++;
      if (chunk >= chunks_.size()) break;
      absl::Status status = (*staging)->Finish(slot);
      if (status.ok()) status = work_(**staging, slot, chunk);
      if (!status.ok()) return status;
      done_ += chunks_[chunk].bytes;
    }
    for (int slot = 0; slot < Staging::kSlots; ++slot) {
      if (absl::Status status = (*staging)->Finish(slot); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const absl::Span<const Chunk> chunks_;
  const MakeStaging make_staging_;
  const Work work_;
  std::atomic<size_t> next_ = 0;
  std::atomic<uint64_t> done_ = 0;
  Parallel parallel_;
};

}  // namespace

absl::Status Load(absl::Span<const Part> parts, MakeStaging make_staging, OnProgress on_progress,
                  std::vector<std::string>* checksums) {
  const std::vector<Chunk> chunks = Cut(parts);
  std::vector<XXH128_hash_t> hashes(checksums == nullptr ? 0 : chunks.size());
  const auto load = [&](Staging& staging, int slot, size_t index) -> absl::Status {
    const Chunk& chunk = chunks[index];
    const Part& part = parts[chunk.part];
    void* const mapped = MappedOf(parts, chunk);
    char* const buffer = static_cast<char*>(staging.Buffer(slot, mapped));
    ChunkHash hash;
    for (uint64_t at = 0; at < chunk.bytes; at += kHashedAtOnce) {
      const uint64_t bytes = std::min(kHashedAtOnce, chunk.bytes - at);
      absl::Status status =
          part.file->Read(part.file_offset + chunk.offset + at, bytes, buffer + at);
      if (!status.ok()) return status;
      if (checksums != nullptr) hash.Update(buffer + at, bytes);
    }
    if (checksums != nullptr) hashes[index] = hash.Finish();
    return chunk.bytes == 0 ? absl::OkStatus() : staging.StartIn(slot, mapped, chunk.bytes);
  };
  absl::Status status = Workers(chunks, make_staging, load).Run(on_progress);
  if (status.ok() && checksums != nullptr) *checksums = Checksums(parts, chunks, hashes);
  return status;
}

absl::StatusOr<std::vector<std::string>> Hash(absl::Span<const Part> parts,
                                              MakeStaging make_staging, OnProgress on_progress) {
  const std::vector<Chunk> chunks = Cut(parts);
  std::vector<XXH128_hash_t> hashes(chunks.size());
  const auto hash_one = [&](Staging& staging, int slot, size_t index) -> absl::Status {
    const Chunk& chunk = chunks[index];
    void* const mapped = MappedOf(parts, chunk);
    ChunkHash hash;
    if (chunk.bytes > 0) {
      absl::Status status = staging.StartOut(slot, mapped, chunk.bytes);
      if (status.ok()) status = staging.Finish(slot);
      if (!status.ok()) return status;
      hash.Update(staging.Buffer(slot, mapped), chunk.bytes);
    }
    hashes[index] = hash.Finish();
    return absl::OkStatus();
  };
  absl::Status status = Workers(chunks, make_staging, hash_one).Run(on_progress);
  if (!status.ok()) return status;
  return Checksums(parts, chunks, hashes);
}

absl::StatusOr<std::vector<std::string>> Unload(
    absl::Span<const Part> parts, Staging& staging, OnProgress on_progress,
    absl::FunctionRef<absl::Status(absl::string_view)> use) {
  const std::vector<Chunk> chunks = Cut(parts);
  const auto slot_of = [](size_t chunk) { return static_cast<int>(chunk % Staging::kSlots); };
  std::vector<XXH128_hash_t> hashes(chunks.size());
  ChunkHash hash;
  size_t started = 0;
  uint64_t done = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (; started < std::min(chunks.size(), i + Staging::kSlots); ++started) {
      const Chunk& chunk = chunks[started];
      if (chunk.bytes == 0) continue;
      absl::Status status = staging.StartOut(slot_of(started), MappedOf(parts, chunk), chunk.bytes);
      if (!status.ok()) return status;
    }
    const Chunk& chunk = chunks[i];
    if (absl::Status status = staging.Finish(slot_of(i)); !status.ok()) return status;
    const absl::string_view bytes(
        static_cast<const char*>(staging.Buffer(slot_of(i), MappedOf(parts, chunk))), chunk.bytes);
    hash.Update(bytes.data(), bytes.size());
    hashes[i] = hash.Finish();
    if (absl::Status status = use(bytes); !status.ok()) return status;
    done += bytes.size();
    if (absl::Status status = on_progress(done); !status.ok()) return status;
  }
  return Checksums(parts, chunks, hashes);
}

}  // namespace gpumem::internal
