// SPDX-License-Identifier: Apache-2.0
#include "client/preload/credit.h"

#include <stdlib.h>

namespace gpumem::preload {
namespace {

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Larger requests could overflow the sums; no device has that much.
constexpr uint64_t kTooMuch = uint64_t{1} << 60;

}  // namespace

bool Credit::TakeFast(uint64_t bytes, uint64_t fresh) {
  const int64_t lack = static_cast<int64_t>(bytes) - static_cast<int64_t>(fresh);
  int64_t available = available_.load(std::memory_order_relaxed);
  while (available >= lack) {
    if (available_.compare_exchange_weak(available, available - lack, std::memory_order_acq_rel,
                                         std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

Answer Credit::Take(uint64_t bytes, uint64_t* id) {
  *id = 0;
  if (bytes < chunk_) return TakeShared(bytes);
  if (bytes > kTooMuch) return Answer::kNoMemory;
  if (available() < 0) {
    Answer covered = TakeShared(0);
    if (covered != Answer::kOk) return covered;
  }
  if (TakeSpare(RoundUp(bytes, kLargePage), id)) return Answer::kOk;
  Answer answer = Ask(RoundUp(bytes, kLargePage), id);
  if (answer != Answer::kNoMemory) return answer;
  // The rest at the source and the credit together may be enough.
  *id = 0;
  return TakeShared(bytes);
}

Answer Credit::TakeShared(uint64_t bytes) {
  if (bytes > kTooMuch) return Answer::kNoMemory;
  if (TakeFast(bytes)) return Answer::kOk;
  return TakeSlow(bytes);
}

Answer Credit::TakeSlow(uint64_t bytes) {
  // One thread asks at a time, so that many small requests at once do not each get a chunk.
  MutexLock lock(&mutex_);
  Answer answer = Answer::kOk;
  bool more = false;
  while (answer == Answer::kOk && !TakeFast(bytes)) {
    int64_t lack = static_cast<int64_t>(bytes) - available();
    if (lack <= 0) continue;  // another thread has given some back
    uint64_t need = RoundUp(static_cast<uint64_t>(lack), kUnit);
    uint64_t most = kLargestChunk * chunk_;
    uint64_t chunk = need < chunk_ ? chunk_ : RoundUp(need < most ? need : most, kLargePage);
    answer = AcquireChunk(chunk);
    if (answer == Answer::kNoMemory && need < chunk) answer = AcquireChunk(need);
    more = more || answer == Answer::kOk;
  }
  if (answer == Answer::kNoMemory && more) Shrink(0);
  return answer;
}

Answer Credit::TakeWaiting(uint64_t bytes) {
  if (bytes > kTooMuch) return Answer::kNoMemory;
  waiting_.fetch_add(1);
  Trim();
  Answer answer = Answer::kOk;
  Chunk chunk = {0, 0};
  while (answer == Answer::kOk && chunk.id == 0 && !TakeFast(bytes)) {
    int64_t lack = static_cast<int64_t>(bytes) - available();
    if (lack <= 0) continue;  // another thread has given some back
    chunk.bytes = RoundUp(static_cast<uint64_t>(lack), kUnit);
    answer = source_.acquire(source_.self, chunk.bytes, true, &chunk.id);
  }
  waiting_.fetch_sub(1);
  if (answer == Answer::kNoMemory && TakeFast(bytes)) return Answer::kOk;
  if (answer != Answer::kOk || chunk.id == 0) return answer;
  {
    MutexLock lock(&mutex_);
    if (!AddChunk(chunk)) return Answer::kNoMemory;
    if (TakeFast(bytes, chunk.bytes)) return Answer::kOk;
    available_.fetch_add(static_cast<int64_t>(chunk.bytes), std::memory_order_release);
  }
  // Others have taken of the credit meanwhile.
  return TakeSlow(bytes);
}

Answer Credit::AcquireChunk(uint64_t bytes) {
  Chunk chunk = {0, bytes};
  Answer answer = Ask(bytes, &chunk.id);
  if (answer != Answer::kOk) return answer;
  if (!AddChunk(chunk)) return Answer::kNoMemory;
  available_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_release);
  return Answer::kOk;
}

bool Credit::AddChunk(const Chunk& chunk) {
  if (count_ == capacity_) {
    size_t capacity = capacity_ == 0 ? 16 : capacity_ * 2;
    Chunk* chunks = static_cast<Chunk*>(realloc(chunks_, capacity * sizeof(Chunk)));
    if (chunks == nullptr) {
      source_.release(source_.self, chunk.id);
      return false;
    }
    chunks_ = chunks;
    capacity_ = capacity;
  }
  chunks_[count_++] = chunk;
  return true;
}

void Credit::Give(uint64_t bytes, uint64_t id) {
  if (id == 0) return GiveShared(bytes);
  const Chunk chunk = {id, RoundUp(bytes, kLargePage)};
  if (chunk.bytes <= 2 * chunk_ && waiting_.load() == 0) return KeepSpare(chunk);
  source_.release(source_.self, id);
}

Answer Credit::Ask(uint64_t bytes, uint64_t* id) {
  Answer answer = source_.acquire(source_.self, bytes, false, id);
  if (answer == Answer::kNoMemory && DropSpare()) {
    answer = source_.acquire(source_.self, bytes, false, id);
  }
  return answer;
}

bool Credit::TakeSpare(uint64_t bytes, uint64_t* id) {
  MutexLock lock(&spare_mutex_);
  if (spare_.id == 0 || spare_.bytes != bytes) return false;
  *id = spare_.id;
  spare_ = {0, 0};
  return true;
}

void Credit::KeepSpare(const Chunk& chunk) {
  Chunk before;
  {
    MutexLock lock(&spare_mutex_);
    before = spare_;
    spare_ = chunk;
  }
  if (before.id != 0) source_.release(source_.self, before.id);
}

bool Credit::DropSpare() {
  Chunk before;
  {
    MutexLock lock(&spare_mutex_);
    before = spare_;
    spare_ = {0, 0};
  }
  if (before.id != 0) source_.release(source_.self, before.id);
  return before.id != 0;
}

uint64_t Credit::spare_bytes() {
  MutexLock lock(&spare_mutex_);
  return spare_.bytes;
}

void Credit::GiveShared(uint64_t bytes) {
  int64_t available = available_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_release) +
                      static_cast<int64_t>(bytes);
  // Two free chunks stay, so that a program which frees and allocates in turn asks rarely. A thread
  // that waits at the source is granted only free memory.
  int64_t keep = waiting_.load() == 0 ? 2 * static_cast<int64_t>(chunk_) : 0;
  if (available <= keep) return;
  MutexLock lock(&mutex_);
  Shrink(keep);
  Exchange(keep);
}

void Credit::Owe(uint64_t bytes) {
  if (TakeShared(bytes) == Answer::kOk) return;
  available_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

void Credit::Trim() {
  DropSpare();
  MutexLock lock(&mutex_);
  Shrink(0);
}

void Credit::Shrink(int64_t keep) {
  for (size_t i = count_; i-- > 0 && available() > keep;) {
    // The credit is taken first: whatever other threads get meanwhile is still reserved.
    if (!TakeFast(chunks_[i].bytes)) continue;
    Chunk chunk = chunks_[i];
    chunks_[i] = chunks_[--count_];
    source_.release(source_.self, chunk.id);
  }
}

void Credit::Exchange(int64_t keep) {
  int64_t surplus = available() - keep;
  if (surplus < static_cast<int64_t>(chunk_)) return;
  for (size_t i = 0; i < count_; ++i) {
    uint64_t bytes = chunks_[i].bytes;
    if (bytes <= static_cast<uint64_t>(surplus)) continue;
    uint64_t less = RoundUp(bytes - static_cast<uint64_t>(surplus), kUnit);
    uint64_t id = 0;
    // At the limit this is refused; then the surplus stays until more is free.
    if (source_.acquire(source_.self, less, false, &id) != Answer::kOk) return;
    if (TakeFast(bytes - less)) {
      source_.release(source_.self, chunks_[i].id);
      chunks_[i] = {id, less};
    } else {
      source_.release(source_.self, id);
    }
    return;
  }
}

uint64_t Credit::shared_bytes() {
  MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (size_t i = 0; i < count_; ++i) bytes += chunks_[i].bytes;
  return bytes;
}

void Credit::Abandon() {
  mutex_.Reset();
  spare_mutex_.Reset();
  spare_ = {0, 0};
  available_.store(0, std::memory_order_relaxed);
  waiting_.store(0, std::memory_order_relaxed);
  chunks_ = nullptr;
  count_ = capacity_ = 0;
}

}  // namespace gpumem::preload
