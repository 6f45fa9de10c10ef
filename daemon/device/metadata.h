// SPDX-License-Identifier: Apache-2.0
// The metadata of a publication: immutable bytes in a memfd. Their descriptor can be handed to the
// process that keeps the daemon's descriptors while it restarts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace gpumemd {

// Thread-safe.
class Metadata {
 public:
  // Copies the bytes into a memfd, close-on-exec, which is then sealed against every change
  // (F_ADD_SEALS, fcntl(2)). Empty bytes need no memfd.
  //   RESOURCE_EXHAUSTED  no memory or descriptors left
  //   INTERNAL            any other error of the system
  static absl::StatusOr<Metadata> Make(absl::string_view bytes);

  // Takes ownership of such a memfd; `bytes` is its size.
  Metadata(gpumem::UniqueFd fd, uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  int fd() const { return fd_.get(); }  // -1: there are no bytes
  uint64_t bytes() const { return bytes_; }

  // Returns the bytes.
  //   RESOURCE_EXHAUSTED  no memory left
  //   INTERNAL            any other error of the system
  absl::StatusOr<std::string> Read() const;

 private:
  gpumem::UniqueFd fd_;
  uint64_t bytes_;
};

}  // namespace gpumemd
