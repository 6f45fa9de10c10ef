// SPDX-License-Identifier: Apache-2.0
#include "client/files/transfer.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "client/files/parallel.h"
#include "client/files/tree_hash.h"

namespace gpumem::internal {
namespace {

// A chunk goes through several slots: pinned memory takes long to get, so there is little of it.
static_assert(kChunkBytes % Staging::kPieceBytes == 0);

// As many as there are slots: all of them can be under way.
constexpr uint64_t kPiecesOfChunk = kChunkBytes / Staging::kPieceBytes;
static_assert(kPiecesOfChunk <= Staging::kSlots);
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

// The slots of a thread's Staging in turn.
class Slots {
 public:
  explicit Slots(Staging& staging) : staging_(staging) {}

  Staging& staging() { return staging_; }
  // Returns a slot without a copy under way.
  absl::StatusOr<int> Next() {
    slot_ = (slot_ + 1) % Staging::kSlots;
    absl::Status status = staging_.Finish(slot_);
    if (!status.ok()) return status;
    return slot_;
  }
  absl::Status FinishAll() {
    for (int i = 0; i < Staging::kSlots; ++i) {
      if (auto slot = Next(); !slot.ok()) return slot.status();
    }
    return absl::OkStatus();
  }

 private:
  Staging& staging_;
  int slot_ = -1;
};

// Threads that take the chunks in order and copy each.
class Workers {
 public:
  using Work = absl::FunctionRef<absl::Status(Slots&, size_t chunk)>;

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
    Slots slots(**staging);
    while (!parallel_.stopped()) {
      const size_t chunk = next_++;
      if (chunk >= chunks_.size()) break;
      if (absl::Status status = work_(slots, chunk); !status.ok()) return status;
      done_ += chunks_[chunk].bytes;
    }
    return slots.FinishAll();
  }

  const absl::Span<const Chunk> chunks_;
  const MakeStaging make_staging_;
  const Work work_;
  std::atomic<size_t> next_ = 0;
  std::atomic<uint64_t> done_ = 0;
  Parallel parallel_;
};

// Reads `bytes` bytes into the buffer, and hashes them unless `hash` is null.
absl::Status ReadPiece(FileReader& file, uint64_t file_offset, uint64_t bytes, char* buffer,
                       ChunkHash* hash) {
  for (uint64_t at = 0; at < bytes; at += kHashedAtOnce) {
    const uint64_t some = std::min(kHashedAtOnce, bytes - at);
    absl::Status status = file.Read(file_offset + at, some, buffer + at);
    if (!status.ok()) return status;
    if (hash != nullptr) hash->Update(buffer + at, some);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Load(absl::Span<const Part> parts, MakeStaging make_staging, OnProgress on_progress,
                  std::vector<std::string>* checksums) {
  const std::vector<Chunk> chunks = Cut(parts);
  std::vector<XXH128_hash_t> hashes(checksums == nullptr ? 0 : chunks.size());
  const auto load = [&](Slots& slots, size_t index) -> absl::Status {
    const Chunk& chunk = chunks[index];
    const Part& part = parts[chunk.part];
    ChunkHash hash;
    for (uint64_t at = 0; at < chunk.bytes; at += Staging::kPieceBytes) {
      const uint64_t bytes = std::min(Staging::kPieceBytes, chunk.bytes - at);
      void* const mapped = static_cast<char*>(MappedOf(parts, chunk)) + at;
      const absl::StatusOr<int> slot = slots.Next();
      if (!slot.ok()) return slot.status();
      absl::Status status = ReadPiece(*part.file, part.file_offset + chunk.offset + at, bytes,
                                      static_cast<char*>(slots.staging().Buffer(*slot, mapped)),
                                      checksums == nullptr ? nullptr : &hash);
      if (status.ok()) status = slots.staging().StartIn(*slot, mapped, bytes);
      if (!status.ok()) return status;
    }
    if (checksums != nullptr) hashes[index] = hash.Finish();
    return absl::OkStatus();
  };
  absl::Status status = Workers(chunks, make_staging, load).Run(on_progress);
  if (status.ok() && checksums != nullptr) *checksums = Checksums(parts, chunks, hashes);
  return status;
}

absl::StatusOr<std::vector<std::string>> Hash(absl::Span<const Part> parts,
                                              MakeStaging make_staging, OnProgress on_progress) {
  const std::vector<Chunk> chunks = Cut(parts);
  std::vector<XXH128_hash_t> hashes(chunks.size());
  const auto hash_one = [&](Slots& slots, size_t index) -> absl::Status {
    const Chunk& chunk = chunks[index];
    // All of a chunk is under way while its first piece is hashed.
    int started[kPiecesOfChunk] = {};
    Staging& staging = slots.staging();
    const auto piece = [&](uint64_t at) { return static_cast<char*>(MappedOf(parts, chunk)) + at; };
    for (uint64_t at = 0; at < chunk.bytes; at += Staging::kPieceBytes) {
      const absl::StatusOr<int> slot = slots.Next();
      if (!slot.ok()) return slot.status();
      started[at / Staging::kPieceBytes] = *slot;
      absl::Status status =
          staging.StartOut(*slot, piece(at), std::min(Staging::kPieceBytes, chunk.bytes - at));
      if (!status.ok()) return status;
    }
    ChunkHash hash;
    for (uint64_t at = 0; at < chunk.bytes; at += Staging::kPieceBytes) {
      const int slot = started[at / Staging::kPieceBytes];
      if (absl::Status status = staging.Finish(slot); !status.ok()) return status;
      hash.Update(staging.Buffer(slot, piece(at)),
                  std::min(Staging::kPieceBytes, chunk.bytes - at));
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
  struct Piece {
    size_t chunk;
    void* mapped;
    uint64_t bytes;
    bool last;  // of its chunk
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < chunks.size(); ++i) {
    uint64_t at = 0;
    do {  // one piece, if it is empty
      const uint64_t bytes = std::min(Staging::kPieceBytes, chunks[i].bytes - at);
      pieces.push_back({.chunk = i,
                        .mapped = static_cast<char*>(MappedOf(parts, chunks[i])) + at,
                        .bytes = bytes,
                        .last = at + bytes == chunks[i].bytes});
      at += bytes;
    } while (at < chunks[i].bytes);
  }
  const auto slot_of = [](size_t piece) { return static_cast<int>(piece % Staging::kSlots); };
  std::vector<XXH128_hash_t> hashes(chunks.size());
  ChunkHash hash;
  size_t started = 0;
  uint64_t done = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (; started < std::min(pieces.size(), i + Staging::kSlots); ++started) {
      const Piece& piece = pieces[started];
      if (piece.bytes == 0) continue;
      absl::Status status = staging.StartOut(slot_of(started), piece.mapped, piece.bytes);
      if (!status.ok()) return status;
    }
    const Piece& piece = pieces[i];
    if (absl::Status status = staging.Finish(slot_of(i)); !status.ok()) return status;
    const absl::string_view bytes(
        static_cast<const char*>(staging.Buffer(slot_of(i), piece.mapped)), piece.bytes);
    hash.Update(bytes.data(), bytes.size());
    if (piece.last) hashes[piece.chunk] = hash.Finish();
    if (absl::Status status = use(bytes); !status.ok()) return status;
    done += bytes.size();
    if (absl::Status status = on_progress(done); !status.ok()) return status;
  }
  return Checksums(parts, chunks, hashes);
}

}  // namespace gpumem::internal
