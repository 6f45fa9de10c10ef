// SPDX-License-Identifier: Apache-2.0
#include "common/mapping/host_owner.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/mapping/host_ipc.h"
#include "common/mapping/mapping.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"

namespace gpumem {
namespace {

// The owner answers at once, unless it is stopped. Meanwhile this process neither opens nor closes
// other memory of the kind (of kind mempool, of the pool).
constexpr absl::Duration kTimeout = absl::Seconds(1);

class HostOpening : public Opening {
 public:
  explicit HostOpening(std::unique_ptr<Mapping> mapping)
      : Opening(mapping->data(), mapping->size()), mapping_(std::move(mapping)) {}

 private:
  const std::unique_ptr<Mapping> mapping_;
};

// Returns the memory's descriptor. UNAVAILABLE if the owner is not there, or no longer has it.
absl::StatusOr<UniqueFd> AskOwner(const std::string& socket_path, const ExportData& data) {
  const absl::Time deadline = absl::Now() + kTimeout;
  absl::StatusOr<UniqueFd> owner = ConnectUnix(socket_path, SOCK_SEQPACKET, deadline);
  if (!owner.ok()) return owner.status();
  const absl::string_view bytes(reinterpret_cast<const char*>(data.data()), data.size());
  if (absl::Status sent = SendMessage(owner->get(), bytes, {}, deadline); !sent.ok()) return sent;
  absl::StatusOr<UnixMessage> answer = ReceiveMessage(owner->get(), deadline);
  if (!answer.ok()) return answer.status();
  if (answer->bytes != kHostIpcOpened || answer->fds.size() != 1) {
    return absl::UnavailableError("the owner of the memory has freed it");
  }
  return std::move(answer->fds.front());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Opening>> OpenFromOwner(const std::string& socket_path,
                                                       const ExportData& data,
                                                       absl::string_view kind) {
  absl::StatusOr<UniqueFd> fd = AskOwner(socket_path, data);
  if (absl::IsUnavailable(fd.status())) {
    return absl::NotFoundError(absl::StrCat(
        "the memory of kind ", kind, " no longer exists: its owner has freed it or has ended"));
  }
  if (!fd.ok()) return fd.status();
  struct stat file = {};
  if (fstat(fd->get(), &file) != 0) return absl::ErrnoToStatus(errno, "fstat");
  const MapRequest whole{.fd = fd->get(), .bytes = static_cast<uint64_t>(file.st_size)};
  absl::StatusOr<Mappings> mappings = MapHost({whole}, {});
  if (!mappings.ok()) return mappings.status();
  return std::make_unique<HostOpening>(std::move(mappings->front()));
}

}  // namespace gpumem
