// SPDX-License-Identifier: Apache-2.0
// A file that is written completely or not at all.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace gpumem::cli {

// Written under a temporary name in the same folder, and renamed by Commit(). Without Commit() the
// destructor leaves no file. "-" is stdout, which gets the bytes at once. Used by one thread.
class OutputFile {
 public:
  //   ALREADY_EXISTS  the file exists, and `replace` is false
  //   NOT_FOUND, PERMISSION_DENIED, …  the error of the system
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path, bool replace);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  //   RESOURCE_EXHAUSTED  the file system is full
  //   DATA_LOSS           the disk's error
  absl::Status Write(absl::string_view bytes);

  // Ends the writing. DATA_LOSS: some disks report failed writes only now.
  absl::Status Finish();

  // Requires Finish().
  //   ALREADY_EXISTS  such a file was created meanwhile
  absl::Status Commit();

 private:
  OutputFile(std::string path, std::string temporary, UniqueFd fd, bool replace);
  int fd() const;

  const std::string path_;
  std::string temporary_;  // empty: nothing to remove
  UniqueFd fd_;
  const bool replace_;
};

}  // namespace gpumem::cli
