// SPDX-License-Identifier: Apache-2.0
// For tests of the pool's engine: a GPU whose streams run when the test lets them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/stream_api.h"

namespace gpumem::internal {

// A GPU with CUDA's rules of order. Work of a stream runs in order of submission, and after the
// work that the stream was made to wait for. The legacy stream and the blocking ones wait for each
// other. A die chooses among the streams that can run. It detects if a block's memory is reused or
// released before the work of its earlier user is done.
class FakeGpu {
 public:
  explicit FakeGpu(uint64_t seed) : random_(seed) {}

  // Streams are blocking unless passed to this.
  void MakeNonBlocking(Stream stream) { non_blocking_.insert(stream); }
  void SetCapturing(Stream stream, bool capturing) {
    capturing ? (void)capturing_.insert(stream) : (void)capturing_.erase(stream);
  }

  // Submits work with exclusive use of a block's memory from its beginning to its end.
  void Use(const Block& block, Stream stream) {
    const uint64_t stamp = ++last_stamp_;
    for (const bool end : {false, true}) {
      Submit(stream, {.at = reinterpret_cast<uintptr_t>(block.data),
                      .bytes = block.bytes,
                      .stamp = stamp,
                      .end = end});
    }
  }
  // Detects pending work that would use the released memory.
  void Unmap(uintptr_t at, uint64_t bytes) {
    for (const auto& [stream, ops] : queues_) {
      for (const Op& op : ops) {
        if (op.at < at + bytes && at < op.at + op.bytes) ++violations_;
      }
    }
  }
  // cudaStreamWaitEvent on an event that was recorded just now.
  void UserWait(Stream waiting, Stream awaited) { Wait(waiting, Record(awaited)); }

  // Runs one operation, if any can run.
  bool Step() {
    std::vector<std::deque<Op>*> ready;
    for (auto& [stream, ops] : queues_) {
      if (!ops.empty() && CanRun(ops.front())) ready.push_back(&ops);
    }
    if (ready.empty()) return false;
    std::deque<Op>& ops = *ready[random_() % ready.size()];
    Run(ops.front());
    ops.pop_front();
    return true;
  }
  void Finish() {
    while (Step()) {
    }
  }
  bool Idle() const {
    return std::all_of(queues_.begin(), queues_.end(),
                       [](const auto& entry) { return entry.second.empty(); });
  }
  uint64_t violations() const { return violations_; }
  uint64_t waits() const { return waits_; }
  size_t events() const { return events_; }

  uint64_t Record(Stream stream) {
    const uint64_t event = ++last_op_;
    Submit(stream, {.event = event});
    return event;
  }
  void Wait(Stream stream, uint64_t event) {
    ++waits_;
    Submit(stream, {.after = {event}});
  }
  bool Happened(uint64_t event) const { return done_.contains(event); }

 private:
  friend class FakeStreams;
  struct Op {
    uint64_t id = 0;
    std::vector<uint64_t> after;  // other operations
    uint64_t event = 0;           // its id, of a record
    uintptr_t at = 0;
    uint64_t bytes = 0;
    uint64_t stamp = 0;
    bool end = false;
  };

  // Each thread has a separate per-thread default stream.
  static Stream Real(Stream stream) {
    if (stream == nullptr) return LegacyStream();
    static thread_local char mine;
    return stream == PerThreadStream() ? &mine : stream;
  }
  void Submit(Stream stream, Op op) {
    stream = Real(stream);
    op.id = op.event != 0 ? op.event : ++last_op_;
    if (stream == LegacyStream()) {
      for (const auto& [other, last] : last_of_) {
        if (!non_blocking_.contains(other)) op.after.push_back(last);
      }
    } else if (!non_blocking_.contains(stream)) {
      if (auto legacy = last_of_.find(LegacyStream()); legacy != last_of_.end()) {
        op.after.push_back(legacy->second);
      }
    }
    last_of_[stream] = op.id;
    queues_[stream].push_back(std::move(op));
  }
  bool CanRun(const Op& op) const {
    return std::all_of(op.after.begin(), op.after.end(),
                       [this](uint64_t id) { return done_.contains(id); });
  }
  void Run(const Op& op) {
    done_.insert(op.id);
    constexpr uint64_t kUnit = 512;
    for (uint64_t offset = 0; offset < op.bytes; offset += kUnit) {
      uint64_t& stamp = stamps_[op.at + offset];
      if (op.end && stamp != op.stamp) {
        ++violations_;
        return;
      }
      stamp = op.stamp;
      if (offset > 64 * kUnit) break;  // enough to detect it
    }
    if (op.bytes > 0) stamps_[op.at + op.bytes - kUnit] = op.stamp;
  }

  std::mt19937_64 random_;
  std::map<Stream, std::deque<Op>> queues_;
  std::map<Stream, uint64_t> last_of_;
  std::set<Stream> non_blocking_;
  std::set<Stream> capturing_;
  std::set<uint64_t> done_;
  std::map<uintptr_t, uint64_t> stamps_;
  uint64_t last_op_ = 0;
  uint64_t last_stamp_ = 0;
  uint64_t violations_ = 0;
  uint64_t waits_ = 0;
  size_t events_ = 0;  // recorded by the pool and not dropped
};

// The engine's view of it. `lie`: reports all events as completed, so that the GPU must object.
class FakeStreams : public StreamApi {
 public:
  explicit FakeStreams(FakeGpu* gpu, bool lie = false) : gpu_(gpu), lie_(lie) {}
  absl::StatusOr<bool> IsBlocking(Stream stream) override {
    if (stream == reinterpret_cast<Stream>(0xbad)) {
      return absl::InvalidArgumentError("the stream belongs to another device than the pool");
    }
    return !gpu_->non_blocking_.contains(stream);
  }
  bool IsFree(Stream stream) override { return CheckFree(stream).ok(); }
  absl::Status CheckFree(Stream stream) override {
    if (stream == AnyStream()) ++gpu_->violations_;  // not a stream of CUDA
    const bool implicit =
        stream == LegacyStream() &&
        std::any_of(gpu_->capturing_.begin(), gpu_->capturing_.end(),
                    [this](Stream other) { return !gpu_->non_blocking_.contains(other); });
    if (!implicit && !gpu_->capturing_.contains(stream)) return absl::OkStatus();
    return absl::FailedPreconditionError("the stream is being captured into a graph");
  }
  absl::StatusOr<EventHandle> Record(Stream stream) override {
    if (absl::Status status = CheckFree(stream); !status.ok()) return status;
    ++gpu_->events_;
    return reinterpret_cast<EventHandle>(gpu_->Record(stream));
  }
  absl::StatusOr<bool> Done(EventHandle event) override {
    return lie_ || gpu_->Happened(reinterpret_cast<uint64_t>(event));
  }
  absl::Status Synchronize(EventHandle event) override {
    while (!gpu_->Happened(reinterpret_cast<uint64_t>(event))) {
      if (!gpu_->Step()) return absl::InternalError("it waits for ever");
    }
    return absl::OkStatus();
  }
  absl::Status SynchronizeDevice() override {
    gpu_->Finish();
    return absl::OkStatus();
  }
  absl::Status Wait(Stream stream, EventHandle event) override {
    if (absl::Status status = CheckFree(stream); !status.ok()) return status;
    if (!lie_) gpu_->Wait(stream, reinterpret_cast<uint64_t>(event));
    return absl::OkStatus();
  }
  void Drop(EventHandle) override { --gpu_->events_; }

 private:
  FakeGpu* const gpu_;
  const bool lie_;
};

}  // namespace gpumem::internal
