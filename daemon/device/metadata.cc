// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/metadata.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

absl::Status Failed(const char* call) {
  const int error = errno;
  const std::string message = absl::StrCat("cannot keep the metadata of a publication: ",
                                           absl::ErrnoToStatus(error, call).message());
  switch (error) {
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(
          absl::StrCat(message, "; raise the daemon's limit of open files"));
    case ENOMEM:
    case ENOSPC:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

absl::StatusOr<Metadata> Metadata::Make(absl::string_view bytes) {
  if (bytes.empty()) return Metadata(gpumem::UniqueFd(), 0);
  gpumem::UniqueFd fd(memfd_create("gpumem metadata", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Failed("memfd_create");
  for (size_t written = 0; written < bytes.size();) {
    const ssize_t n = write(fd.get(), bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("write");
    written += static_cast<size_t>(n);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
    return Failed("F_ADD_SEALS");
  }
  return Metadata(std::move(fd), bytes.size());
}

absl::StatusOr<std::string> Metadata::Read() const {
  std::string bytes(bytes_, '\0');
  for (size_t read = 0; read < bytes.size();) {
    const ssize_t n =
        pread(fd_.get(), bytes.data() + read, bytes.size() - read, static_cast<off_t>(read));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("pread");
    if (n == 0) return absl::InternalError("the metadata of a publication is shorter than it was");
    read += static_cast<size_t>(n);
  }
  return bytes;
}

}  // namespace gpumemd
