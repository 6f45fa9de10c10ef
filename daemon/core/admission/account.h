// SPDX-License-Identifier: Apache-2.0
// Charges: bytes held against a tenant on a device.
//
// Accounting is by ownership. A segment owns exactly one Charge from the moment its bytes are
// reserved until the driver has them back. The Charge adds its bytes to the tenant's account, and
// to all accounts above that: those of the tenant's ancestors, and the device's, which is the root.
// It moves them between states as the segment changes, and refunds them when it is destroyed. No
// other code adds or subtracts, so an early return cannot lose a byte: it destroys the Charge.
//
// A charge counts in full in every state. The states differ in how the bytes come back:
// - At will: retained.
// - Soon, without action of a holder: releasing.
// - Only if the holders give them up: held (leased, lingering, pending). The tenant may still reuse
//   lingering segments of a pool.
//
// Held bytes are firm or revocable. Revocable bytes can be taken back after a notice.
//
// Each account also has a need: the bytes that are firmly held, or may have to be because they are
// guaranteed. While the need of a device's account is within its capacity, every guarantee can be
// kept without taking firm memory from any tenant.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "daemon/core/admission/revocable_charges.h"
#include "daemon/core/admission/usage.h"
#include "daemon/core/ids.h"

namespace gpumemd {

enum class SegmentState {
  kPending,   // being created or handed over
  kLeased,    // at least one lease
  kRetained,  // no lease and no mapping: kept for reuse, given up first
  // No lease, but a live process may still map it or has its pool open.
  kLingering,
  kReleasing,  // on its way back to the driver
};
inline constexpr size_t kSegmentStates = 5;

// Bytes and segments in each state, of a tenant and those under it.
class Account {
 public:
  uint64_t bytes(SegmentState state) const { return bytes_[Index(state)]; }
  uint64_t segments(SegmentState state) const { return segments_[Index(state)]; }
  uint64_t charged() const { return charged_; }
  uint64_t segments() const { return count_; }
  uint64_t peak() const { return peak_; }
  // Returns the use as of the last change of charged(). It has the time since then only in
  // ByteNsUntil().
  DeviceUse use() const { return meter_.Use(charged_, peak_); }
  // Returns the integral of charged() over time, until now.
  uint64_t byte_seconds() const { return ByteSeconds(use().ByteNsUntil(meter_.Now())); }
  UsageMeter& meter() { return meter_; }
  // Begins the figures anew.
  void ForgetUse() {
    meter_.Forget();
    peak_ = charged_;
  }
  // Goes on from the use that an earlier daemon has recorded.
  void GoOnFrom(const DeviceUse& use) {
    meter_.GoOnFrom(use, charged_);
    peak_ = std::max(peak_, use.peak);
  }

  uint64_t held() const {
    return bytes(SegmentState::kPending) + bytes(SegmentState::kLeased) +
           bytes(SegmentState::kLingering);
  }
  uint64_t revocable() const { return revocable_; }  // of the held bytes
  uint64_t revoking() const { return revoking_; }    // of the revocable bytes: being taken back
  uint64_t firm() const { return held() - revocable_; }
  // Returns the charges that a request with priority may take back: those of the revocable ones
  // that a process holds, without those that are being taken back or could not be.
  const RevocableCharges& to_revoke() const { return to_revoke_; }

  // Grows with every change of the account, of those under it and of their guarantees, and with
  // MarkChanged.
  uint64_t version() const { return version_; }

  uint64_t guarantee() const { return guarantee_; }
  // Returns the bytes that must be available to it, whatever happens.
  uint64_t need() const { return need_; }
  // Returns the need with `firm` more bytes firmly held.
  uint64_t NeedWith(uint64_t firm) const {
    return std::max(guarantee_, own_firm_ + needs_below_ + firm);
  }
  // Returns the need if no bytes were held: the need of the guarantees alone. LeastNeedWith() adds
  // `firm` bytes of the account's tenant.
  uint64_t least_need() const { return least_need_; }
  uint64_t LeastNeedWith(uint64_t firm) const {
    return std::max(guarantee_, least_needs_below_ + firm);
  }
  uint64_t least_needs_below() const { return least_needs_below_; }
  // Returns the part of the need that is not held yet.
  uint64_t unused_guarantee() const { return need_ - own_firm_ - needs_below_; }
  // Returns the sum of this over the account and all above it: the bytes that it can have without
  // raising any account's need.
  uint64_t unused_guarantees() const {
    uint64_t bytes = 0;
    for (const Account* each = this; each != nullptr; each = each->parent_) {
      bytes += each->unused_guarantee();
    }
    return bytes;
  }

  // Of a device's account: bytes that are free by the charges, and that the driver does not have.
  uint64_t elsewhere() const { return elsewhere_; }
  void SetElsewhere(uint64_t bytes) {
    ++version_;
    elsewhere_ = bytes;
  }

  // Counts a change on which waiting requests depend and that moves no bytes.
  void MarkChanged() {
    for (Account* each = this; each != nullptr; each = each->parent_) ++each->version_;
  }

  void SetGuarantee(uint64_t bytes) {
    ++version_;
    guarantee_ = bytes;
    UpdateNeed();
    UpdateLeastNeed();
  }

  // Moves the account, with all its charges, under another account; null: under none.
  void SetParent(Account* parent) {
    if (parent == parent_) return;
    const absl::Duration now = meter_.Now();
    for (Account* above = parent_; above != nullptr; above = above->parent_)
      above->Subtract(*this, now);
    if (parent_ != nullptr) {
      parent_->ChangeNeedsBelow(need_, 0);
      parent_->ChangeLeastNeedsBelow(least_need_, 0);
    }
    parent_ = parent;
    for (Account* above = parent_; above != nullptr; above = above->parent_)
      above->AddAll(*this, now);
    if (parent_ != nullptr) {
      parent_->ChangeNeedsBelow(0, need_);
      parent_->ChangeLeastNeedsBelow(0, least_need_);
    }
  }

 private:
  friend class Charge;
  static size_t Index(SegmentState state) { return static_cast<size_t>(state); }
  static bool IsHeld(SegmentState state) {
    return state != SegmentState::kRetained && state != SegmentState::kReleasing;
  }

  // A Charge's contribution to an account.
  struct Part {
    SegmentState state = SegmentState::kPending;
    uint64_t bytes = 0;
    bool revocable = false;
    bool revoking = false;
    bool stuck = false;
    bool ranked = false;  // `rank` is set
    ChargeRank rank;
    bool operator==(const Part&) const = default;
    uint64_t firm() const { return IsHeld(state) && !revocable ? bytes : 0; }
    bool may_be_revoked() const {
      return ranked && revocable && !revoking && !stuck &&
             (state == SegmentState::kLeased || state == SegmentState::kLingering);
    }
  };

  void Add(const Part& part) {
    const absl::Duration now = meter_.Now();
    for (Account* account = this; account != nullptr; account = account->parent_) {
      account->meter_.Advance(account->charged_, now);
      account->AddHere(part);
    }
    if (part.firm() == 0) return;
    own_firm_ += part.firm();
    UpdateNeed();
  }
  void Remove(const Part& part) {
    const absl::Duration now = meter_.Now();
    for (Account* account = this; account != nullptr; account = account->parent_) {
      account->meter_.Advance(account->charged_, now);
      account->RemoveHere(part);
    }
    if (part.firm() == 0) return;
    own_firm_ -= part.firm();
    UpdateNeed();
  }
  // Leaves the charged bytes as they are.
  void Change(const Part& from, const Part& to) {
    for (Account* account = this; account != nullptr; account = account->parent_) {
      account->RemoveHere(from);
      account->AddHere(to);
    }
    if (from.firm() == to.firm()) return;
    own_firm_ = own_firm_ - from.firm() + to.firm();
    UpdateNeed();
  }

  void AddHere(const Part& part) {
    ++version_;
    bytes_[Index(part.state)] += part.bytes;
    ++segments_[Index(part.state)];
    charged_ += part.bytes;
    ++count_;
    if (IsHeld(part.state) && part.revocable) {
      revocable_ += part.bytes;
      if (part.revoking) revoking_ += part.bytes;
    }
    if (part.may_be_revoked()) to_revoke_.Add(part.rank, part.bytes);
    peak_ = std::max(peak_, charged_);
  }
  void RemoveHere(const Part& part) {
    ++version_;
    bytes_[Index(part.state)] -= part.bytes;
    --segments_[Index(part.state)];
    charged_ -= part.bytes;
    --count_;
    if (IsHeld(part.state) && part.revocable) {
      revocable_ -= part.bytes;
      if (part.revoking) revoking_ -= part.bytes;
    }
    if (part.may_be_revoked()) to_revoke_.Remove(part.rank, part.bytes);
  }

  void AddAll(const Account& other, absl::Duration now) {
    if (other.count_ == 0) return;
    meter_.Advance(charged_, now);
    ++version_;
    for (size_t i = 0; i < kSegmentStates; ++i) {
      bytes_[i] += other.bytes_[i];
      segments_[i] += other.segments_[i];
    }
    charged_ += other.charged_;
    count_ += other.count_;
    revocable_ += other.revocable_;
    revoking_ += other.revoking_;
    to_revoke_.AddAll(other.to_revoke_);
    peak_ = std::max(peak_, charged_);
  }
  void Subtract(const Account& other, absl::Duration now) {
    if (other.count_ == 0) return;
    meter_.Advance(charged_, now);
    ++version_;
    for (size_t i = 0; i < kSegmentStates; ++i) {
      bytes_[i] -= other.bytes_[i];
      segments_[i] -= other.segments_[i];
    }
    charged_ -= other.charged_;
    count_ -= other.count_;
    revocable_ -= other.revocable_;
    revoking_ -= other.revoking_;
    to_revoke_.RemoveAll(other.to_revoke_);
  }

  void ChangeNeedsBelow(uint64_t from, uint64_t to) {
    if (from == to) return;
    needs_below_ = needs_below_ - from + to;
    UpdateNeed();
  }
  void ChangeLeastNeedsBelow(uint64_t from, uint64_t to) {
    if (from == to) return;
    least_needs_below_ = least_needs_below_ - from + to;
    UpdateLeastNeed();
  }
  void UpdateLeastNeed() {
    const uint64_t before = least_need_;
    ++version_;
    least_need_ = std::max(guarantee_, least_needs_below_);
    if (least_need_ == before || parent_ == nullptr) return;
    parent_->ChangeLeastNeedsBelow(before, least_need_);
  }
  void UpdateNeed() {
    const uint64_t before = need_;
    ++version_;
    need_ = std::max(guarantee_, own_firm_ + needs_below_);
    if (need_ != before && parent_ != nullptr) parent_->ChangeNeedsBelow(before, need_);
  }

  std::array<uint64_t, kSegmentStates> bytes_{};
  std::array<uint64_t, kSegmentStates> segments_{};
  uint64_t version_ = 1;
  uint64_t elsewhere_ = 0;
  uint64_t charged_ = 0;
  uint64_t count_ = 0;
  uint64_t peak_ = 0;
  UsageMeter meter_;
  uint64_t revocable_ = 0;
  uint64_t revoking_ = 0;
  RevocableCharges to_revoke_;

  Account* parent_ = nullptr;
  uint64_t guarantee_ = 0;
  uint64_t own_firm_ = 0;     // without those held by tenants under it
  uint64_t needs_below_ = 0;  // of the accounts directly under it
  uint64_t need_ = 0;
  uint64_t least_needs_below_ = 0;
  uint64_t least_need_ = 0;
};

// Move-only. The account must outlive it.
class Charge {
 public:
  Charge() = default;
  // What ranks a charge among those that can be taken back. `priority` must outlive the charge, and
  // is read at each change of it.
  struct Owner {
    const int32_t* priority = nullptr;
    SegmentId segment{};
  };
  Charge(Account* account, uint64_t bytes, bool revocable = false)
      : Charge(account, bytes, revocable, Owner()) {}
  Charge(Account* account, uint64_t bytes, bool revocable, const Owner& owner)
      : account_(account),
        priority_(owner.priority),
        part_{.bytes = bytes,
              .revocable = revocable,
              .ranked = owner.priority != nullptr,
              .rank = {.segment = owner.segment}} {
    if (priority_ != nullptr) part_.rank.priority = *priority_;
    account_->Add(part_);
  }
  Charge(Charge&& other) noexcept { *this = std::move(other); }
  Charge& operator=(Charge&& other) noexcept {
    if (this == &other) return *this;
    Refund();
    account_ = std::exchange(other.account_, nullptr);
    priority_ = other.priority_;
    part_ = std::exchange(other.part_, {});
    return *this;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() { Refund(); }

  SegmentState state() const { return part_.state; }
  uint64_t bytes() const { return part_.bytes; }
  bool revocable() const { return part_.revocable; }
  bool revoking() const { return part_.revoking; }
  bool stuck() const { return part_.stuck; }

  // As Account::MarkChanged.
  void MarkChanged() {
    if (account_ != nullptr) account_->MarkChanged();
  }
  void MoveTo(SegmentState state) {
    Part to = part_;
    to.state = state;
    ChangeTo(to);
  }
  void SetRevocable(bool revocable) {
    Part to = part_;
    to.revocable = revocable;
    ChangeTo(to);
  }
  void SetRevoking(bool revoking) {
    Part to = part_;
    to.revoking = revoking;
    ChangeTo(to);
  }
  // The daemon tried to end the holders, and they still have it: no request counts on it any more.
  void SetStuck() {
    Part to = part_;
    to.stuck = true;
    ChangeTo(to);
  }
  // Ranks the charge anew, since its owner's priority has changed.
  void Rank() { ChangeTo(part_); }

 private:
  using Part = Account::Part;

  void ChangeTo(Part to) {
    if (account_ == nullptr) return;
    if (priority_ != nullptr) to.rank.priority = *priority_;
    if (to == part_) return;  // no reason to check waiting requests again
    account_->Change(part_, to);
    part_ = to;
  }
  void Refund() {
    if (account_ == nullptr) return;
    account_->Remove(part_);
    account_ = nullptr;
  }

  Account* account_ = nullptr;
  const int32_t* priority_ = nullptr;
  Part part_;
};

}  // namespace gpumemd
