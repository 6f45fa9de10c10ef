#include "tests/bench/floors.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/unix_channel.h"
#include "daemon/device/devices.h"

namespace gpumem::bench {
namespace {

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

}  // namespace

BareOwner::BareOwner(Backend backend, const std::string& device_uuid)
    : child_(testing::Child::Self(
          {"--role", "bare-owner", backend == Backend::kCuda ? "cuda" : "host", device_uuid})) {}

absl::StatusOr<std::vector<UniqueFd>> BareOwner::Ask(const std::string& what) {
  if (absl::Status sent = SendMessage(child_.channel(), what, {}, Soon()); !sent.ok()) return sent;
  absl::StatusOr<UnixMessage> answer = ReceiveMessage(child_.channel(), Soon());
  if (!answer.ok()) return answer.status();
  if (answer->bytes != "ok") return absl::InternalError(answer->bytes);
  return std::move(answer->fds);
}

absl::Status BareOwner::Ping() { return Ask("ping").status(); }

absl::StatusOr<std::vector<UniqueFd>> BareOwner::Make(uint64_t bytes, int count, bool send) {
  return Ask(absl::StrCat("make ", bytes, " ", count, " ", send ? 1 : 0));
}

absl::Status BareOwner::Drop() { return Ask("drop").status(); }

int RunBareOwner(const std::vector<std::string>& args) {
  const bool cuda = args.at(0) == "cuda";
  absl::StatusOr<gpumemd::Devices> devices =
      gpumemd::OpenDevices({.backend = cuda ? gpumemd::Backend::kCuda : gpumemd::Backend::kHost,
                            .host_devices = 1,
                            .host_device_bytes = uint64_t{256} << 30});
  gpumemd::Device* device = nullptr;
  for (size_t i = 0; devices.ok() && i < devices->devices.size(); ++i) {
    if (!cuda || devices->devices[i]->info().uuid == args.at(1)) device = devices->devices[i].get();
  }
  std::vector<std::unique_ptr<gpumemd::Allocation>> held;
  while (true) {
    absl::StatusOr<UnixMessage> message = ReceiveMessage(3, absl::InfiniteFuture());
    if (!message.ok()) return 0;
    const std::vector<std::string> words = absl::StrSplit(message->bytes, ' ');
    std::string answer = device == nullptr ? devices.status().ToString() + " no device" : "ok";
    std::vector<int> fds;
    if (words[0] != "ping") held.clear();
    uint64_t bytes = 0;
    int count = 0;
    if (answer == "ok" && words[0] == "make" && absl::SimpleAtoi(words[1], &bytes) &&
        absl::SimpleAtoi(words[2], &count)) {
      for (int i = 0; i < count && answer == "ok"; ++i) {
        auto made = device->Create(gpumemd::Kind::kVmm, bytes);
        if (!made.ok()) answer = made.status().ToString();
        if (made.ok()) held.push_back(*std::move(made));
      }
      if (words[3] == "1") {
        for (const auto& allocation : held) fds.push_back(allocation->fd());
      }
    }
    if (!SendMessage(3, answer, fds, Soon()).ok()) return 1;
  }
}

absl::StatusOr<std::vector<std::unique_ptr<Mapping>>> Map(Backend backend,
                                                          const std::string& device_uuid,
                                                          const std::vector<UniqueFd>& fds,
                                                          uint64_t bytes) {
  std::vector<MapRequest> requests;
  for (const UniqueFd& fd : fds) requests.push_back({.fd = fd.get(), .bytes = bytes});
  return backend == Backend::kCuda ? MapCuda(device_uuid, requests, /*read_only=*/false)
                                   : MapHost(requests, /*read_only=*/false);
}

}  // namespace gpumem::bench
