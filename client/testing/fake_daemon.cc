// SPDX-License-Identifier: Apache-2.0
#include "client/testing/fake_daemon.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "common/unique_fd.h"

namespace gpumem::internal {
namespace {

// Returns other memory with the same bytes.
UniqueFd CopyOf(int memory, uint64_t bytes) {
  UniqueFd copy(::memfd_create("segment", MFD_CLOEXEC));
  std::vector<char> contents(bytes);
  if (::ftruncate(copy.get(), static_cast<off_t>(bytes)) < 0 ||
      ::pread(memory, contents.data(), bytes, 0) != static_cast<ssize_t>(bytes) ||
      ::pwrite(copy.get(), contents.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
    abort();
  }
  return copy;
}

}  // namespace

size_t OpenFds() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

size_t OpenMemoryFds() {
  size_t count = 0;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    const std::string file = std::filesystem::read_symlink(fd, closed).string();
    if (absl::StrContains(file, "memfd:")) ++count;
  }
  return count;
}

FakeDaemon::FakeDaemon(Script script) : script_(std::move(script)) {
  char name[] = "/tmp/fake-daemon-XXXXXX";
  runtime_dir_ = ::mkdtemp(name);
  Serve();
}

FakeDaemon::~FakeDaemon() {
  Crash();
  std::filesystem::remove_all(runtime_dir_);
}

bool FakeDaemon::HasFd(const v1::Lease& lease) {
  return lease.kind() == v1::KIND_VMM || lease.kind() == v1::KIND_PINNED ||
         lease.kind() == v1::KIND_HOST;
}

std::vector<v1::Lease> FakeDaemon::GrantedFor(uint64_t session, uint64_t request) {
  std::vector<v1::Lease> leases;
  if (request == 0) return leases;
  std::lock_guard lock(mutex_);
  for (const auto& [id, held] : leases_) {
    if (held.session == session && held.request == request) leases.push_back(held.lease);
  }
  return leases;
}

void FakeDaemon::SetOwner(const std::vector<v1::Lease>& leases, uint64_t session,
                          uint64_t request) {
  std::lock_guard lock(mutex_);
  for (const v1::Lease& lease : leases) {
    leases_.at(lease.lease_id()).session = session;
    leases_.at(lease.lease_id()).request = request;
  }
}

grpc::Status FakeDaemon::Grant(uint64_t session, const v1::AcquireRequest& request,
                               v1::AcquireResponse* response) {
  const std::vector<v1::Lease> leases = GrantSilently(session, request, response);
  std::vector<int> fds;
  for (const v1::Lease& lease : leases) fds.push_back(Memory(lease));
  Deliver(session, response->delivery_id(), leases, fds);
  return grpc::Status::OK;
}

std::vector<v1::Lease> FakeDaemon::GrantSilently(uint64_t session,
                                                 const v1::AcquireRequest& request,
                                                 v1::AcquireResponse* response) {
  const uint64_t bytes = (request.bytes() + kGranularity - 1) / kGranularity * kGranularity;
  const v1::Kind kind = request.kind() == v1::KIND_UNSPECIFIED ? v1::KIND_VMM : request.kind();
  std::vector<v1::Lease> leases = GrantedFor(session, request.request_id());
  if (leases.empty()) {
    for (uint32_t i = 0; i < std::max(request.count(), 1u); ++i) {
      leases.push_back(NewLease(bytes, kind, request.revocable()));
    }
    SetOwner(leases, session, request.request_id());
  }
  for (const v1::Lease& lease : leases) *response->add_leases() = lease;
  response->set_delivery_id(NewDeliveryId());
  return leases;
}

v1::Lease FakeDaemon::NewLease(uint64_t bytes, v1::Kind kind, bool revocable) {
  v1::Lease lease;
  lease.set_kind(kind);
  UniqueFd fd;
  if (HasFd(lease)) {
    fd.reset(::memfd_create("segment", MFD_CLOEXEC));
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) < 0) abort();
  }
  std::lock_guard lock(mutex_);
  lease.set_lease_id(next_lease_++);
  lease.set_segment_id(lease.lease_id() + 1000);
  const bool pinned = kind == v1::KIND_PINNED || kind == v1::KIND_HOST;
  lease.set_device_uuid(pinned ? kPinnedDevice : kDevice);
  if (!grant_on_.empty()) lease.set_device_uuid(grant_on_);
  lease.set_size_bytes(bytes);
  lease.set_tenant("testers");
  lease.set_revocable(revocable);
  leases_[lease.lease_id()] = {.lease = lease, .memory = std::move(fd)};
  return lease;
}

int FakeDaemon::Memory(const v1::Lease& lease) {
  std::lock_guard lock(mutex_);
  const auto found = leases_.find(lease.lease_id());
  return found == leases_.end() ? -1 : found->second.memory.get();
}

grpc::Status FakeDaemon::CheckHeld(uint64_t session, absl::Span<const uint64_t> ids) {
  std::lock_guard lock(mutex_);
  for (const uint64_t id : ids) {
    const auto found = leases_.find(id);
    if (found == leases_.end() || found->second.session != session) {
      return {grpc::StatusCode::NOT_FOUND, "the session has no such lease"};
    }
  }
  return grpc::Status::OK;
}

void FakeDaemon::SuspendLeases(absl::Span<const uint64_t> ids) {
  std::lock_guard lock(mutex_);
  for (const uint64_t id : ids) leases_.at(id).suspended = true;
  reservation_ = 0;
}

void FakeDaemon::ResumeLeases(uint64_t session, absl::Span<const uint64_t> ids,
                              v1::ResumeResponse* response) {
  std::vector<v1::Lease> leases;
  std::vector<int> fds;
  {
    std::lock_guard lock(mutex_);
    for (const uint64_t id : ids) {
      Held& held = leases_.at(id);
      if (std::exchange(held.suspended, false)) {
        held.lease.set_segment_id(held.lease.segment_id() + 1000);
        held.memory = CopyOf(held.memory.get(), held.lease.size_bytes());
      }
      leases.push_back(held.lease);
      fds.push_back(held.memory.get());
      *response->add_leases() = held.lease;
    }
  }
  response->set_delivery_id(NewDeliveryId());
  Deliver(session, response->delivery_id(), leases, fds);
}

grpc::Status FakeDaemon::Exchange(uint64_t session, const v1::ExchangeLeasesRequest& request) {
  std::vector<uint64_t> ids;
  for (const v1::ExchangeLeasesRequest::Pair& pair : request.pairs()) {
    ids.push_back(pair.lease_id());
    ids.push_back(pair.other_lease_id());
  }
  if (grpc::Status status = CheckHeld(session, ids); !status.ok()) return status;
  std::lock_guard lock(mutex_);
  std::vector<std::pair<Held*, Held*>> pairs;
  for (const v1::ExchangeLeasesRequest::Pair& pair : request.pairs()) {
    Held& one = leases_.at(pair.lease_id());
    Held& other = leases_.at(pair.other_lease_id());
    const bool done = one.lease.segment_id() == pair.other_segment_id() &&
                      other.lease.segment_id() == pair.segment_id();
    if (done) continue;
    if (one.lease.segment_id() != pair.segment_id() ||
        other.lease.segment_id() != pair.other_segment_id()) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "a lease is of another segment"};
    }
    pairs.emplace_back(&one, &other);
  }
  if (request.check_only()) return grpc::Status::OK;
  for (const auto& [one, other] : pairs) {
    std::swap(one->lease, other->lease);
    std::swap(one->memory, other->memory);
    const uint64_t id = one->lease.lease_id();
    one->lease.set_lease_id(other->lease.lease_id());
    other->lease.set_lease_id(id);
  }
  return grpc::Status::OK;
}

v1::Lease FakeDaemon::LeaseOf(uint64_t lease_id) {
  std::lock_guard lock(mutex_);
  return leases_.at(lease_id).lease;
}

std::set<uint64_t> FakeDaemon::suspended() {
  std::lock_guard lock(mutex_);
  std::set<uint64_t> ids;
  for (const auto& [id, held] : leases_) {
    if (held.suspended) ids.insert(id);
  }
  return ids;
}

uint64_t FakeDaemon::reservation() {
  std::lock_guard lock(mutex_);
  return reservation_;
}

void FakeDaemon::SetTenant(uint64_t lease_id, const std::string& tenant) {
  std::lock_guard lock(mutex_);
  leases_.at(lease_id).lease.set_tenant(tenant);
}

void FakeDaemon::SetKind(uint64_t lease_id, v1::Kind kind) {
  std::lock_guard lock(mutex_);
  leases_.at(lease_id).lease.set_kind(kind);
}

void FakeDaemon::GrantOn(const std::string& device_uuid) {
  std::lock_guard lock(mutex_);
  grant_on_ = device_uuid;
}

void FakeDaemon::ReplaceHandles(const std::string& bytes) {
  std::lock_guard lock(mutex_);
  for (auto& [id, registered] : events_) registered.event.set_handle(bytes);
}

void FakeDaemon::Tell(const v1::Event& event) {
  std::lock_guard lock(mutex_);
  told_.push_back(event);
  watches_changed_.notify_all();
}

void FakeDaemon::ForgetEvents() {
  std::lock_guard lock(mutex_);
  told_.clear();
}

void FakeDaemon::EndWatches(const grpc::Status& status) {
  std::lock_guard lock(mutex_);
  watches_end_ = status;
  watches_changed_.notify_all();
}

void FakeDaemon::KeepWatches() {
  std::lock_guard lock(mutex_);
  watches_end_.reset();
}

void FakeDaemon::AwaitWatches(size_t count) {
  std::unique_lock lock(mutex_);
  watches_changed_.wait(lock, [&] { return watches_ == count; });
}

void FakeDaemon::LoseLease(uint64_t lease_id) {
  std::lock_guard lock(mutex_);
  leases_.erase(lease_id);
  leases_changed_.notify_all();
}

uint64_t FakeDaemon::granted() {
  std::lock_guard lock(mutex_);
  return next_lease_ - 1;
}

size_t FakeDaemon::live_leases(std::optional<size_t> awaited) {
  std::unique_lock lock(mutex_);
  if (awaited.has_value()) {
    leases_changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return leases_.size() == *awaited; });
  }
  return leases_.size();
}

size_t FakeDaemon::live_events() {
  std::lock_guard lock(mutex_);
  return events_.size();
}

}  // namespace gpumem::internal
