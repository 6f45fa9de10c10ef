// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/floors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/unix_channel.h"
#include "daemon/device/devices.h"
#include "tests/bench/bed.h"

namespace gpumem::bench {
namespace {

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

// The owner's side, in a separate process.
class Owner {
 public:
  Owner(bool cuda, std::string device_uuid) : cuda_(cuda), device_uuid_(std::move(device_uuid)) {
    absl::StatusOr<gpumemd::Devices> devices =
        gpumemd::OpenDevices({.backend = cuda ? gpumemd::Backend::kCuda : gpumemd::Backend::kHost,
                              .pinned_bytes = uint64_t{256} << 30,
                              .host_devices = 1,
                              .host_device_bytes = uint64_t{256} << 30});
    status_ = devices.status();
    if (devices.ok()) devices_ = std::move(devices->devices);
  }

  absl::Status Drop() {
    held_.clear();
    absl::Status status;
    for (const BareCuda::Address address : ipc_) status.Update(bare_->Free(address));
    for (const BareCuda::Address address : pooled_) status.Update(bare_->FreeInPool(address));
    ipc_.clear();
    pooled_.clear();
    return status;
  }

  // Returns the data that opens it, beside the descriptors.
  absl::StatusOr<std::string> Make(absl::string_view kind, uint64_t bytes, int count) {
    if (absl::Status dropped = Drop(); !dropped.ok()) return dropped;
    if (cuda_ && (kind == "ipc" || kind == "mempool")) return MakeBare(kind == "ipc", bytes);
    for (int i = 0; i < count; ++i) {
      gpumemd::Device* const device = Find(kind == "pinned");
      if (device == nullptr)
        return absl::NotFoundError(absl::StrCat("no device ", status_.message()));
      auto made =
          device->Create({.kind = kind == "pinned" ? gpumemd::Kind::kPinned : gpumemd::Kind::kVmm,
                          .bytes = bytes});
      if (!made.ok()) return made.status();
      held_.push_back(*std::move(made));
    }
    return "";
  }

  absl::StatusOr<UniqueFd> PoolFd() {
    if (absl::Status status = NeedBare(); !status.ok()) return status;
    return bare_->PoolFd();
  }

  std::vector<int> fds() const {
    std::vector<int> fds;
    for (const auto& allocation : held_) fds.push_back(allocation->fd());
    return fds;
  }

 private:
  absl::Status NeedBare() {
    if (bare_ != nullptr) return absl::OkStatus();
    auto bare = BareCuda::On(device_uuid_);
    if (!bare.ok()) return bare.status();
    bare_ = *std::move(bare);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> MakeBare(bool ipc, uint64_t bytes) {
    if (absl::Status status = NeedBare(); !status.ok()) return status;
    auto made = ipc ? bare_->MakeIpc(bytes) : bare_->MakeInPool(bytes);
    if (!made.ok()) return made.status();
    (ipc ? ipc_ : pooled_).push_back(made->address);
    return std::string(made->data.begin(), made->data.end());
  }

  gpumemd::Device* Find(bool pinned) const {
    for (const auto& device : devices_) {
      if (gpumemd::IsHostMemory(device->info()) != pinned) continue;
      if (pinned || !cuda_ || device->info().uuid == device_uuid_) return device.get();
    }
    return nullptr;
  }

  const bool cuda_;
  const std::string device_uuid_;
  absl::Status status_;
  std::vector<std::unique_ptr<gpumemd::Device>> devices_;
  std::unique_ptr<BareCuda> bare_;
  std::vector<std::unique_ptr<gpumemd::Allocation>> held_;
  std::vector<BareCuda::Address> ipc_, pooled_;
};

}  // namespace

BareOwner::BareOwner(Backend backend, const std::string& device_uuid)
    : child_(testing::Child::Self(
          {"--role", "bare-owner", backend == Backend::kCuda ? "cuda" : "host", device_uuid})) {}

absl::StatusOr<Handed> BareOwner::Ask(const std::string& what) {
  if (absl::Status sent = SendMessage(child_.channel(), what, {}, Soon()); !sent.ok()) return sent;
  absl::StatusOr<UnixMessage> answer = ReceiveMessage(child_.channel(), Soon());
  if (!answer.ok()) return answer.status();
  // "ok" and raw data, or the error in words.
  if (answer->bytes.rfind("ok", 0) != 0) return absl::InternalError(answer->bytes);
  Handed handed = {.fds = std::move(answer->fds)};
  std::copy_n(answer->bytes.begin() + 2, std::min(answer->bytes.size() - 2, handed.data.size()),
              handed.data.begin());
  return handed;
}

absl::Status BareOwner::Ping() { return Ask("ping").status(); }

absl::StatusOr<Handed> BareOwner::Make(Kind kind, uint64_t bytes, int count, bool send) {
  return Ask(absl::StrCat("make ", bytes, " ", count, " ", send ? 1 : 0, " ",
                          std::string(KindName(kind))));
}

absl::StatusOr<Handed> BareOwner::SendAgain() { return Ask("again"); }

absl::StatusOr<UniqueFd> BareOwner::PoolFd() {
  absl::StatusOr<Handed> handed = Ask("pool");
  if (!handed.ok()) return handed.status();
  if (handed->fds.empty()) return absl::InternalError("no descriptor came");
  return std::move(handed->fds.front());
}

absl::Status BareOwner::Drop() { return Ask("drop").status(); }

int RunBareOwner(const std::vector<std::string>& args) {
  Owner owner(args.at(0) == "cuda", args.at(1));
  while (true) {
    absl::StatusOr<UnixMessage> message = ReceiveMessage(3, absl::InfiniteFuture());
    if (!message.ok()) return 0;
    const std::vector<std::string> words = absl::StrSplit(message->bytes, ' ');
    absl::StatusOr<std::string> data = std::string();
    std::vector<int> fds;
    UniqueFd pool;
    uint64_t bytes = 0;
    int count = 0;
    if (words[0] == "drop") {
      if (absl::Status dropped = owner.Drop(); !dropped.ok()) data = dropped;
    } else if (words[0] == "pool") {
      auto fd = owner.PoolFd();
      if (!fd.ok()) data = fd.status();
      if (fd.ok()) pool = *std::move(fd);
      if (pool.valid()) fds.push_back(pool.get());
    } else if (words[0] == "again") {
      fds = owner.fds();
    } else if (words[0] == "make" && absl::SimpleAtoi(words.at(1), &bytes) &&
               absl::SimpleAtoi(words.at(2), &count)) {
      data = owner.Make(words.at(4), bytes, count);
      if (data.ok() && words[3] == "1") fds = owner.fds();
    }
    const std::string answer = data.ok() ? "ok" + *data : data.status().ToString();
    if (!SendMessage(3, answer, fds, Soon()).ok()) return 1;
  }
}

absl::StatusOr<std::unique_ptr<BareImporter>> BareImporter::For(Kind kind, const DeviceInfo& device,
                                                                BareOwner& owner) {
  std::unique_ptr<BareImporter> importer(new BareImporter(kind, device));
  const bool by_data = kind == Kind::kIpc || kind == Kind::kMempool;
  if (device.backend != Backend::kCuda || !by_data) return importer;
  auto cuda = BareCuda::On(device.uuid);
  if (!cuda.ok()) return cuda.status();
  importer->cuda_ = *std::move(cuda);
  if (kind == Kind::kMempool) {
    auto fd = owner.PoolFd();
    if (!fd.ok()) return fd.status();
    absl::Status imported = importer->cuda_->ImportPool(fd->get());
    if (!imported.ok()) return imported;
  }
  return importer;
}

absl::Status BareImporter::Open(const Handed& handed, uint64_t bytes) {
  if (by_data()) {
    auto address =
        kind_ == Kind::kIpc ? cuda_->OpenIpc(handed.data) : cuda_->OpenInPool(handed.data);
    if (address.ok()) address_ = *address;
    return address.status();
  }
  std::vector<MapRequest> requests;
  for (const UniqueFd& fd : handed.fds) requests.push_back({.fd = fd.get(), .bytes = bytes});
  absl::StatusOr<Mappings> mappings;
  if (kind_ == Kind::kPinned) {
    mappings = MapPinned(requests, {});
  } else if (device_.backend == Backend::kCuda) {
    mappings = MapCuda(requests, {.device_uuids = {device_.uuid}});
  } else {
    mappings = MapHost(requests, {});
  }
  if (!mappings.ok()) return mappings.status();
  mappings_ = *std::move(mappings);
  return absl::OkStatus();
}

absl::Status BareImporter::Close() {
  if (by_data()) {
    return kind_ == Kind::kIpc ? cuda_->CloseIpc(address_) : cuda_->CloseInPool(address_);
  }
  mappings_.clear();
  return absl::OkStatus();
}

std::function<void()> BareTrip(const DeviceInfo& device, UniqueFd memory, uint64_t bytes) {
  const bool cuda = device.backend == Backend::kCuda;
  auto fd = std::make_shared<const UniqueFd>(std::move(memory));
  MapOptions options;
  options.range =
      OrDie(cuda ? ReserveCudaAddresses(bytes) : ReserveHostAddresses(bytes), "reserve");
  options.address = reinterpret_cast<void*>(options.range->base());
  if (cuda) options.device_uuids = {device.uuid};
  return [cuda, fd, options, bytes] {
    const MapRequest request = {.fd = fd->get(), .bytes = bytes};
    // The answer's end unmaps it.
    OrDie(cuda ? MapCuda({request}, options) : MapHost({request}, options), "map");
  };
}

}  // namespace gpumem::bench
