// SPDX-License-Identifier: Apache-2.0
// CDI files: what a container of a claim gets from gpumem (Container Device Interface).
//
// A claim is a device of the kind `gpumem.dev/claim`. GPUs are NVIDIA's CDI devices, which stand
// beside it in the answer to the kubelet: their device nodes and libraries are not ours to know.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem::kubernetes {

inline constexpr char kCdiKind[] = "gpumem.dev/claim";
inline constexpr char kCdiFolder[] = "/var/run/cdi";

// Returns the name of a claim's CDI device: "gpumem.dev/claim=UID". Requires IsUid(uid).
std::string CdiDeviceOf(absl::string_view claim_uid);

// Returns the specification of a claim's CDI device, in JSON: the folder of gpumemd's sockets,
// read-only, and the environment that libgpumem reads. `runtime_dir` is that folder on the node.
//   INVALID_ARGUMENT  the uid is none, or the folder is no absolute path without "." and ".."
absl::StatusOr<std::string> CdiSpecOf(absl::string_view claim_uid, absl::string_view runtime_dir);

// The folder in which container runtimes look for CDI files.
class CdiFolder {
 public:
  explicit CdiFolder(std::string path) : path_(std::move(path)) {}

  // Writes a claim's file, in place of an earlier one. Runtimes see the old file or the whole new
  // one.
  //   INVALID_ARGUMENT  the uid is none
  //   others            of the file system
  absl::Status Write(absl::string_view claim_uid, absl::string_view spec) const;

  // Removes a claim's file. It is no error if there is none. Statuses as Write.
  absl::Status Remove(absl::string_view claim_uid) const;

  // Returns the uids of the claims that have a file. Other files do not count. Empty if the folder
  // cannot be read.
  std::set<std::string> Claims() const;

  // Returns the path of a claim's file.
  std::string PathOf(absl::string_view claim_uid) const;

 private:
  const std::string path_;
};

}  // namespace gpumem::kubernetes
