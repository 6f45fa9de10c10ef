#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/host_ipc.h"
#include "common/mapping.h"
#include "common/shared_openings.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"

namespace gpumem {
namespace {

// The owner answers at once, unless it is stopped. Meanwhile nobody in this process opens or
// closes memory of kind ipc.
constexpr absl::Duration kPatience = absl::Seconds(1);

class HostOpening : public Opening {
 public:
  explicit HostOpening(std::unique_ptr<Mapping> mapping)
      : Opening(mapping->data(), mapping->size()), mapping_(std::move(mapping)) {}

 private:
  const std::unique_ptr<Mapping> mapping_;
};

absl::Status OwnerGone() {
  return absl::NotFoundError(
      "the memory of kind ipc is not there: its owner has freed it or is gone");
}

absl::StatusOr<UniqueFd> AskOwner(const std::string& path, const ExportData& handle) {
  const absl::Time deadline = absl::Now() + kPatience;
  absl::StatusOr<UniqueFd> owner = ConnectUnix(path, SOCK_SEQPACKET, deadline);
  if (absl::IsUnavailable(owner.status())) return OwnerGone();
  if (!owner.ok()) return owner.status();
  const absl::string_view bytes(reinterpret_cast<const char*>(handle.data()), handle.size());
  absl::Status sent = SendMessage(owner->get(), bytes, {}, deadline);
  if (absl::IsUnavailable(sent)) return OwnerGone();
  if (!sent.ok()) return sent;
  absl::StatusOr<UnixMessage> answer = ReceiveMessage(owner->get(), deadline);
  if (absl::IsUnavailable(answer.status())) return OwnerGone();
  if (!answer.ok()) return answer.status();
  if (answer->bytes != kHostIpcOpened || answer->fds.size() != 1) return OwnerGone();
  return std::move(answer->fds.front());
}

SharedOpenings& OpenedIpc() {
  static const auto* const openings =
      new std::shared_ptr<SharedOpenings>(std::make_shared<SharedOpenings>());
  return **openings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mapping>> OpenHostIpc(const std::string& runtime_dir,
                                                     const ExportData& handle, uint64_t bytes,
                                                     const MapOptions& options) {
  if (absl::Status status = CheckOpenOptions(options); !status.ok()) return status;
  if (!options.device_uuids.empty()) {
    return absl::InvalidArgumentError("memory of the host backend is not opened for GPUs");
  }
  const std::optional<HostIpcHandle> parsed = FromExportData<HostIpcHandle>(handle);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError("the export data is no handle of kind ipc of the host");
  }
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<Opening>> {
    absl::StatusOr<UniqueFd> fd =
        AskOwner(HostIpcSocket(runtime_dir, parsed->device_index), handle);
    if (!fd.ok()) return fd.status();
    struct stat file = {};
    if (fstat(fd->get(), &file) != 0) return absl::ErrnoToStatus(errno, "fstat");
    const MapRequest whole{.fd = fd->get(), .bytes = static_cast<uint64_t>(file.st_size)};
    absl::StatusOr<Mappings> mappings = MapHost({whole}, {});
    if (!mappings.ok()) return mappings.status();
    return std::make_unique<HostOpening>(std::move(mappings->front()));
  };
  return OpenedIpc().Get(handle, bytes, open);
}

}  // namespace gpumem
