// Charges: bytes held against a tenant on a device.
//
// Accounting is by ownership. A segment owns exactly one Charge from the moment its
// bytes are reserved until the driver has them back. The Charge adds its bytes to the
// tenant's account and to the device's total when it is made, moves them between states
// as the segment changes, and refunds them when it is destroyed. No other code adds or
// subtracts, so an early return cannot lose a byte: it destroys the Charge.
//
// A charge counts in full in every state. What differs is what can be had back at will
// (retained), what comes back on its own soon (releasing), and what only its holders can
// give up (leased, lingering, pending), though its tenant may reuse what lingers for a pool.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpumemd {

enum class SegmentState {
  kPending,    // being created or handed over
  kLeased,     // at least one lease
  kRetained,   // leased by nobody, mapped by nobody: kept for reuse, given up first
  kLingering,  // leased by nobody, but a process that may still map it or has its pool open lives
  kReleasing,  // on its way back to the driver
};
inline constexpr size_t kSegmentStates = 5;

// Bytes and segments in each state.
class Account {
 public:
  uint64_t bytes(SegmentState state) const { return bytes_[Index(state)]; }
  uint64_t segments(SegmentState state) const { return segments_[Index(state)]; }
  uint64_t charged() const { return charged_; }
  uint64_t segments() const { return count_; }
  uint64_t peak() const { return peak_; }

 private:
  friend class Charge;
  static size_t Index(SegmentState state) { return static_cast<size_t>(state); }

  void Add(SegmentState state, uint64_t bytes) {
    bytes_[Index(state)] += bytes;
    ++segments_[Index(state)];
    charged_ += bytes;
    ++count_;
    peak_ = std::max(peak_, charged_);
  }
  void Remove(SegmentState state, uint64_t bytes) {
    bytes_[Index(state)] -= bytes;
    --segments_[Index(state)];
    charged_ -= bytes;
    --count_;
  }
  void Move(SegmentState from, SegmentState to, uint64_t bytes) {
    bytes_[Index(from)] -= bytes;
    --segments_[Index(from)];
    bytes_[Index(to)] += bytes;
    ++segments_[Index(to)];
  }

  std::array<uint64_t, kSegmentStates> bytes_{};
  std::array<uint64_t, kSegmentStates> segments_{};
  uint64_t charged_ = 0;
  uint64_t count_ = 0;
  uint64_t peak_ = 0;
};

// Move-only. Both accounts must outlive it.
class Charge {
 public:
  Charge() = default;
  Charge(Account* tenant, Account* device, uint64_t bytes)
      : tenant_(tenant), device_(device), bytes_(bytes) {
    tenant_->Add(state_, bytes_);
    device_->Add(state_, bytes_);
  }
  Charge(Charge&& other) noexcept { *this = std::move(other); }
  Charge& operator=(Charge&& other) noexcept {
    if (this == &other) return *this;
    Refund();
    tenant_ = std::exchange(other.tenant_, nullptr);
    device_ = std::exchange(other.device_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    state_ = other.state_;
    return *this;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() { Refund(); }

  SegmentState state() const { return state_; }
  uint64_t bytes() const { return bytes_; }

  void MoveTo(SegmentState state) {
    if (tenant_ == nullptr || state == state_) return;
    tenant_->Move(state_, state, bytes_);
    device_->Move(state_, state, bytes_);
    state_ = state;
  }

 private:
  void Refund() {
    if (tenant_ == nullptr) return;
    tenant_->Remove(state_, bytes_);
    device_->Remove(state_, bytes_);
    tenant_ = nullptr;
  }

  Account* tenant_ = nullptr;
  Account* device_ = nullptr;
  uint64_t bytes_ = 0;
  SegmentState state_ = SegmentState::kPending;
};

}  // namespace gpumemd
