// SPDX-License-Identifier: Apache-2.0
#include "tests/contract/contract.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumem::contract {
namespace {

using testing::DaemonProcess;
using testing::Eventually;

std::string Tenant(const char* name, const std::string& keys) {
  return absl::StrCat("[[tenant]]\nname = \"", name, "\"\n", keys, "[[rule]]\ntenant = \"", name,
                      "\"\ndefault = true\n");
}

std::string Config(const std::string& backend) {
  return absl::StrCat("[host]\ndevices = 2\ndevice_bytes = \"256MiB\"\n",
                      Tenant(kOwner, "max_retained = 0\n"), Tenant(kOther, "max_retained = 0\n"),
                      Tenant(kKeeper, ""),
                      Tenant(kSmall, absl::StrCat("max_retained = 0\nlimit = ", SmallLimit(backend),
                                                  "\npinned_limit = ", kSmallPinnedLimit, "\n")));
}

// By backend. Null: this machine has none.
std::map<std::string, std::unique_ptr<DaemonProcess>>& Daemons() {
  static auto* const daemons = new std::map<std::string, std::unique_ptr<DaemonProcess>>;
  return *daemons;
}
// Why the latest start of a daemon failed.
std::string why_no_daemon;

DaemonProcess* DaemonOf(const std::string& backend) {
  const auto it = Daemons().find(backend);
  if (it != Daemons().end()) return it->second.get();
  auto daemon = DaemonProcess::Start({.backend = backend, .config = Config(backend)});
  if (!daemon.ok()) why_no_daemon = daemon.status().ToString();
  return (Daemons()[backend] = daemon.ok() ? *std::move(daemon) : nullptr).get();
}

const std::string& CachedWhyNot(Identity identity) {
  static auto* const reasons = new std::map<Identity, std::string>;
  const auto it = reasons->find(identity);
  if (it != reasons->end()) return it->second;
  return (*reasons)[identity] = WhyNot(identity);
}

bool Makes(const v1::Device& device, Kind kind) {
  // In both enums the kinds are in this order, after that which stands for none.
  const int number = static_cast<int>(kind);
  for (const int made : device.kinds()) {
    if (made == number) return true;
  }
  return false;
}

}  // namespace

std::string PlaceName(const ::testing::TestParamInfo<Place>& info) {
  return absl::StrCat(info.param.backend, "_", std::string(KindName(info.param.kind)));
}

std::string SharingName(const ::testing::TestParamInfo<SharingParam>& info) {
  const Place& place = std::get<0>(info.param);
  return absl::StrCat(place.backend, "_", std::string(KindName(place.kind)), "_",
                      IdentityName(std::get<1>(info.param)));
}

std::vector<Place> PlacesOf(const std::string& backend) {
  std::vector<Place> places;
  for (Kind kind : {Kind::kVmm, Kind::kMempool, Kind::kIpc, Kind::kPinned}) {
    places.push_back({.backend = backend, .kind = kind});
  }
  return places;
}

std::vector<Place> ContextPlacesOf(const std::string& backend) {
  std::vector<Place> places;
  for (const Place& place : PlacesOf(backend)) {
    if (place.context_bound()) places.push_back(place);
  }
  return places;
}

// Some granules of every kind.
uint64_t SmallLimit(const std::string& backend) { return (backend == "host" ? 8 : 128) * kMiB; }

void ContractTest::StopDaemons() { Daemons().clear(); }

void ContractTest::StartOn(const std::string& backend, Kind kind, Daemon whose) {
  backend_ = backend;
  daemon_ = DaemonOf(backend);
  if (whose == Daemon::kOwn && daemon_ != nullptr) {
    auto own = DaemonProcess::Start({.backend = backend, .config = Config(backend)});
    ASSERT_OK(own);
    own_daemon_ = *std::move(own);
    daemon_ = own_daemon_.get();
  }
  if (daemon_ == nullptr) {
    if (backend != "host") GTEST_SKIP() << "no such backend here: " << why_no_daemon;
    GTEST_FAIL() << why_no_daemon;
  }
  admin_ = v1::Admin::NewStub(testing::ChannelTo(daemon_->Socket("admin.sock")));
  if (kind != Kind::kDefault && DeviceFor(kind).device_uuid().empty()) {
    if (backend != "host") GTEST_SKIP() << "no device here makes kind " << KindName(kind);
    GTEST_FAIL() << "no device of the host backend makes kind " << KindName(kind);
  }
  if (kind == Kind::kDefault) return;
  const v1::Device device = DeviceFor(kind);
  const bool own_steps = kind == Kind::kMempool && device.pool_granularity_bytes() > 0;
  granule_ = own_steps ? device.pool_granularity_bytes() : device.granularity_bytes();
  bytes_ = 2 * granule_;
}

void ContractTest::TearDown() {
  if (daemon_ == nullptr || own_daemon_ != nullptr || IsSkipped()) return;
  Trim("");
  EXPECT_TRUE(Eventually([this] { return AsBefore(); })) << daemon_->Log();
  // A daemon that one test has broken must not fail those after it.
  if (HasFailure()) Daemons().erase(backend_);
}

// True if nothing is charged, no session is connected, and no context is kept.
bool ContractTest::AsBefore() {
  v1::GetStatusResponse status;
  const auto got = admin_->GetStatus(testing::ContextWith().get(), v1::GetStatusRequest(), &status);
  if (!got.ok() || status.sessions() != 0 || status.segments() != 0) return false;
  for (const v1::Device& device : status.devices()) {
    if (device.charged_bytes() != 0 || device.context_pid() != 0) return false;
  }
  return true;
}

std::unique_ptr<Client> ContractTest::Connect(const std::string& tenant) {
  auto client = daemon_->Connect(tenant, "contract");
  EXPECT_OK(client);
  return client.ok() ? *std::move(client) : nullptr;
}

std::unique_ptr<Actor> ContractTest::StartActor(Identity identity, const std::string& tenant) {
  auto actor = std::make_unique<Actor>(identity, daemon_->runtime_dir());
  EXPECT_OK(actor->Connect(tenant));
  return actor;
}

std::vector<v1::Device> ContractTest::Devices() {
  const auto broker =
      v1::Broker::NewStub(testing::ChannelOfSession(daemon_->Socket("session.sock")));
  v1::ListDevicesResponse list;
  const auto got =
      broker->ListDevices(testing::ContextWith().get(), v1::ListDevicesRequest(), &list);
  EXPECT_TRUE(got.ok()) << got.error_message();
  return {list.devices().begin(), list.devices().end()};
}

v1::Device ContractTest::DeviceFor(Kind kind) {
  for (v1::Device& device : Devices()) {
    if (Makes(device, kind)) return std::move(device);
  }
  return {};
}

uint64_t ContractTest::Charged(const std::string& tenant) {
  v1::GetQuotaRequest request;
  request.set_tenant(tenant);
  v1::GetQuotaResponse quota;
  const auto got = admin_->GetQuota(testing::ContextWith().get(), request, &quota);
  EXPECT_TRUE(got.ok()) << got.error_message();
  uint64_t bytes = 0;
  for (const v1::DeviceUsage& device : quota.usage().devices()) bytes += device.charged_bytes();
  return bytes;
}

bool ContractTest::EventuallyCharged(uint64_t bytes, const std::string& tenant) {
  return Eventually([&] { return Charged(tenant) == bytes; });
}

void ContractTest::Trim(const std::string& tenant) {
  v1::TrimRequest request;
  request.set_tenant(tenant);
  v1::TrimResponse response;
  const auto got = admin_->Trim(testing::ContextWith().get(), request, &response);
  EXPECT_TRUE(got.ok()) << got.error_message();
}

void DeviceNames::SetUp() {
  StartOn(GetParam(), Kind::kDefault, Daemon::kOwn);
  if (IsSkipped() || HasFatalFailure()) return;
  client_ = Connect();
  ASSERT_NE(client_, nullptr);
  auto devices = client_->Devices();
  ASSERT_OK(devices);
  for (DeviceInfo& device : *devices) {
    if (device.kinds.front() != Kind::kPinned) devices_.push_back(std::move(device));
  }
}

void DeviceNames::TearDown() {
  client_.reset();
  NodeContract::TearDown();
}

absl::StatusOr<std::string> DeviceNames::Get(const std::string& name, Kind kind) {
  auto segment = client_->Acquire({.bytes = bytes_, .device = name, .kind = kind});
  if (!segment.ok()) return segment.status();
  return segment->device_uuid();
}

std::unique_ptr<Pool> PoolContract::MakePool(PoolOptions options, const std::string& tenant) {
  options.kind = kind();
  options.device = DeviceFor(kind()).device_uuid();
  auto pool = Pool::Create(Connect(tenant), options);
  EXPECT_OK(pool);
  return pool.ok() ? *std::move(pool) : nullptr;
}

std::vector<Kind> ContextSegments::OtherKinds() {
  std::vector<Kind> kinds;
  for (Kind kind : {Kind::kVmm, Kind::kPinned}) {
    if (!DeviceFor(kind).device_uuid().empty()) kinds.push_back(kind);
  }
  return kinds;
}

void SharingSegments::SetUp() {
  if (const std::string& why = CachedWhyNot(identity()); !why.empty()) GTEST_SKIP() << why;
  StartOn(place().backend, kind());
}

void SharingSegments::TearDown() {
  maker_.reset();
  ContractTest::TearDown();
}

void SharingSegments::ExpectReleased() {
  if (!place().kept_by_pool()) {
    EXPECT_TRUE(EventuallyCharged(0)) << Charged();
    return;
  }
  // TearDown sees that it comes back once these processes have ended.
  EXPECT_EQ(Charged(), bytes_) << "those who have its pool open keep it";
}

std::shared_ptr<Actor> SharingSegments::Opener() {
  if (identity() == Identity::kSameProcess) return maker_;
  return StartActor(identity());
}

void SharingSegments::Make() {
  if (maker_ == nullptr) maker_ = StartActor();
  auto made = maker_->Acquire("made", {.kind = kind(), .bytes = bytes_});
  ASSERT_OK(made);
  made_ = *made;
  ASSERT_EQ(made_.size, bytes_);
  ASSERT_OK(maker_->Write("made", kSeed));
  auto ticket = maker_->Share("made");
  ASSERT_OK(ticket);
  ticket_ = *ticket;
}

}  // namespace gpumem::contract
