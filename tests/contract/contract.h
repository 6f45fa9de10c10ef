// SPDX-License-Identifier: Apache-2.0
// The guarantees of the whole system for every kind of memory, on every backend, to any processes.
// One suite: a test program instantiates it for the places that must keep it (host_test.cc,
// tests/gpu), and calls RunAsActor and Stop in its main().
//
// One daemon serves all tests of a backend, and must be as it was after each: nothing charged, no
// session left. A test in which this process itself opens memory pools, which then stay open
// (daemon/core/ledger/pools.cc), has a separate daemon.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/pool.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"
#include "tests/contract/actor.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_denial.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem::contract {

// The tenants. Every process may choose any of them, whatever its uid.
inline constexpr char kOwner[] = "owner";    // keeps nothing for reuse
inline constexpr char kOther[] = "other";    // the same, for tests of two tenants
inline constexpr char kKeeper[] = "keeper";  // keeps what it releases
inline constexpr char kSmall[] = "small";    // may have SmallLimit() on each device
uint64_t SmallLimit(const std::string& backend);
inline constexpr uint64_t kSmallPinnedLimit = 4 * kMiB;

// A backend, and a kind of memory on it.
struct Place {
  std::string backend;  // "host" or "cuda"
  Kind kind = Kind::kVmm;

  bool context_bound() const { return kind == Kind::kIpc || kind == Kind::kMempool; }
  // True if released memory stays charged until its former holders have ended.
  bool kept_by_pool() const { return kind == Kind::kMempool; }
  // True if the mapper chooses the address, and may map it read-only.
  bool has_map_options() const { return !context_bound(); }
  // For GoogleTest's messages.
  friend void PrintTo(const Place& place, std::ostream* out) {
    *out << place.backend << " " << KindName(place.kind);
  }
};
std::string PlaceName(const ::testing::TestParamInfo<Place>& info);
std::vector<Place> PlacesOf(const std::string& backend);
std::vector<Place> ContextPlacesOf(const std::string& backend);  // those of kinds in a context

// The base of all tests: a daemon of the backend, and an observer's view of it.
class ContractTest : public ::testing::Test {
 public:
  // Ends the daemons that tests have started.
  static void StopDaemons();

 protected:
  // Skips the test where the machine has no such backend or, where `kind` is given, no
  // device for it. To be called in SetUp.
  enum class Daemon { kShared, kOwn };
  void StartOn(const std::string& backend, Kind kind = Kind::kDefault,
               Daemon whose = Daemon::kShared);
  void TearDown() override;

  testing::DaemonProcess& daemon() const { return *daemon_; }
  // A session of this process.
  std::unique_ptr<Client> Connect(const std::string& tenant = kOwner);
  std::unique_ptr<Actor> StartActor(Identity identity = Identity::kSameUser,
                                    const std::string& tenant = kOwner);

  // The daemon's own word on its devices, first of those that make the kind.
  v1::Device DeviceFor(Kind kind);
  std::vector<v1::Device> Devices();
  // Returns the tenant's charge, over all devices and host memory.
  uint64_t Charged(const std::string& tenant = kOwner);
  bool EventuallyCharged(uint64_t bytes, const std::string& tenant = kOwner);
  void Trim(const std::string& tenant);

  const std::string& backend() const { return backend_; }
  // The granularity of the test's kind, and the size of most segments.
  uint64_t granule_ = 2 * kMiB;
  uint64_t bytes_ = 2 * granule_;

 private:
  bool AsBefore();

  testing::DaemonProcess* daemon_ = nullptr;
  std::unique_ptr<testing::DaemonProcess> own_daemon_;  // null: it is the shared one
  std::string backend_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

class NodeContract : public ContractTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override { StartOn(GetParam()); }
};

// The devices, by their names.
class DeviceNames : public NodeContract {
 protected:
  void SetUp() override;
  void TearDown() override;
  // The device that memory comes from by that name.
  absl::StatusOr<std::string> Get(const std::string& name, Kind kind = Kind::kDefault);

  std::unique_ptr<Client> client_;
  std::vector<DeviceInfo> devices_;  // but for host memory
};

class KindContract : public ContractTest, public ::testing::WithParamInterface<Place> {
 protected:
  void SetUp() override {
    StartOn(GetParam().backend, kind(), kept_by_pool() ? Daemon::kOwn : Daemon::kShared);
  }
  Kind kind() const { return GetParam().kind; }
  bool kept_by_pool() const { return GetParam().kept_by_pool(); }
};

// The client's pool over the kind.
class PoolContract : public KindContract {
 protected:
  std::unique_ptr<Pool> MakePool(PoolOptions options = {}, const std::string& tenant = kOwner);
};

// The kinds that live in a context.
class ContextSegments : public KindContract {
 protected:
  pid_t ContextPid() { return DeviceFor(kind()).context_pid(); }
  // Returns kinds outside a context: those that the same device makes, and host memory.
  std::vector<Kind> OtherKinds();
};

// Memory of one GPU, used by another: for kinds of GPUs alone, so not in
// GPUMEM_INSTANTIATE_CONTRACT.
class PeerSegments : public KindContract {};

// Memory that `maker_` has made, and that openers of an identity open.
using SharingParam = std::tuple<Place, Identity>;
std::string SharingName(const ::testing::TestParamInfo<SharingParam>& info);

class SharingSegments : public ContractTest, public ::testing::WithParamInterface<SharingParam> {
 protected:
  void SetUp() override;
  void TearDown() override;

  const Place& place() const { return std::get<0>(GetParam()); }
  Kind kind() const { return place().kind; }
  Identity identity() const { return std::get<1>(GetParam()); }

  // The maker itself, or another process of the identity.
  std::shared_ptr<Actor> Opener();

  // Starts the maker if there is none. Lets it make memory, "made", of the pattern kSeed, and share
  // it.
  void Make();
  static constexpr uint64_t kSeed = 4711;
  // Expects that after the last release nothing is charged, except memory that a pool keeps for
  // processes that live and have had it.
  void ExpectReleased();

  std::shared_ptr<Actor> maker_;
  Held made_;
  std::string ticket_;
};

// The opener is another process than the maker.
class SharingWithOthers : public SharingSegments {};

}  // namespace gpumem::contract
