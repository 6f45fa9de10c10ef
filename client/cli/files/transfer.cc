// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/transfer.h"

#include <algorithm>
#include <array>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "xxhash.h"

namespace gpumem::cli {
namespace {

// The number of parallel requests to a disk: one does not saturate a fast disk.
constexpr size_t kReaders = 4;

class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) { Reset(); }
  void Update(const void* bytes, uint64_t size) { XXH3_128bits_update(state_.get(), bytes, size); }
  // Returns the output of xxh128sum, and begins the next one.
  std::string Finish() {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    Reset();
    return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  void Reset() { XXH3_128bits_reset(state_.get()); }

  const std::unique_ptr<XXH3_state_t, Free> state_;
};

struct Piece {
  size_t file = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  void* mapped = nullptr;
  bool last = false;  // of its file
};

std::vector<Piece> Cut(absl::Span<const Placed> places) {
  std::vector<Piece> pieces;
  for (size_t file = 0; file < places.size(); ++file) {
    const Placed& place = places[file];
    for (uint64_t offset = 0; offset < place.bytes; offset += Staging::kPieceBytes) {
      const uint64_t bytes = std::min(Staging::kPieceBytes, place.bytes - offset);
      pieces.push_back({.file = file,
                        .offset = offset,
                        .bytes = bytes,
                        .mapped = static_cast<char*>(place.mapped) + offset,
                        .last = offset + bytes == place.bytes});
    }
  }
  return pieces;
}

int SlotOf(size_t piece) { return static_cast<int>(piece % Staging::kSlots); }

// Threads that read pieces into their slots, ahead by the number of slots.
class Readers {
 public:
  Readers(absl::Span<FileReader* const> files, absl::Span<const Piece> pieces, Staging& staging)
      : files_(files), pieces_(pieces), staging_(staging) {
    const size_t count = std::min(kReaders, pieces.size());
    for (size_t i = 0; i < count; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~Readers() {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  // Blocks until a piece is in its buffer.
  absl::Status Await(size_t piece) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return read_[SlotOf(piece)] == piece + 1 || !status_.ok();
    };
    mutex_.Await(absl::Condition(&there));
    return status_;
  }
  // Marks the buffers of all pieces before this one as free.
  void FreeBefore(size_t piece) {
    absl::MutexLock lock(&mutex_);
    free_before_ = piece;
  }

 private:
  void Work() {
    while (true) {
      size_t piece = 0;
      {
        absl::MutexLock lock(&mutex_);
        const auto may_go_on = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return ended_ || !status_.ok() || next_ == pieces_.size() ||
                 next_ < free_before_ + Staging::kSlots;
        };
        mutex_.Await(absl::Condition(&may_go_on));
        if (ended_ || !status_.ok() || next_ == pieces_.size()) return;
        piece = next_++;
      }
      const Piece& of = pieces_[piece];
      const absl::Status status =
          files_[of.file]->Read(of.offset, of.bytes, staging_.Buffer(SlotOf(piece), of.mapped));
      absl::MutexLock lock(&mutex_);
      status_.Update(status);
      read_[SlotOf(piece)] = piece + 1;
    }
  }

  const absl::Span<FileReader* const> files_;
  const absl::Span<const Piece> pieces_;
  Staging& staging_;
  absl::Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;         // to be read
  size_t free_before_ ABSL_GUARDED_BY(mutex_) = 0;  // see FreeBefore
  // By slot: the piece in it, counted from 1.
  std::array<size_t, Staging::kSlots> read_ ABSL_GUARDED_BY(mutex_) = {};
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first error
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::Status Load(absl::Span<FileReader* const> files, absl::Span<const Placed> places,
                  Staging& staging, OnProgress on_progress, std::vector<std::string>* checksums) {
  const std::vector<Piece> pieces = Cut(places);
  Readers readers(files, pieces, staging);
  Checksum checksum;
  uint64_t done = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (absl::Status status = readers.Await(i); !status.ok()) return status;
    if (absl::Status status = staging.StartIn(SlotOf(i), piece.mapped, piece.bytes); !status.ok()) {
      return status;
    }
    // In parallel with the copy.
    if (checksums != nullptr) {
      checksum.Update(staging.Buffer(SlotOf(i), piece.mapped), piece.bytes);
      if (piece.last) checksums->push_back(checksum.Finish());
    }
    if (i > 0) {
      if (absl::Status status = staging.Finish(SlotOf(i - 1)); !status.ok()) return status;
      readers.FreeBefore(i);
    }
    done += piece.bytes;
    if (absl::Status status = on_progress(done); !status.ok()) return status;
  }
  return pieces.empty() ? absl::OkStatus() : staging.Finish(SlotOf(pieces.size() - 1));
}

absl::StatusOr<std::string> Unload(const Placed& place, Staging& staging, OnProgress on_progress,
                                   absl::FunctionRef<absl::Status(absl::string_view)> use) {
  const std::vector<Piece> pieces = Cut({&place, 1});
  Checksum checksum;
  size_t started = 0;
  uint64_t done = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (; started < std::min(pieces.size(), i + Staging::kSlots); ++started) {
      const Piece& piece = pieces[started];
      absl::Status status = staging.StartOut(SlotOf(started), piece.mapped, piece.bytes);
      if (!status.ok()) return status;
    }
    const Piece& piece = pieces[i];
    if (absl::Status status = staging.Finish(SlotOf(i)); !status.ok()) return status;
    const absl::string_view bytes(static_cast<const char*>(staging.Buffer(SlotOf(i), piece.mapped)),
                                  piece.bytes);
    checksum.Update(bytes.data(), bytes.size());
    if (absl::Status status = use(bytes); !status.ok()) return status;
    done += bytes.size();
    if (absl::Status status = on_progress(done); !status.ok()) return status;
  }
  return checksum.Finish();
}

}  // namespace gpumem::cli
