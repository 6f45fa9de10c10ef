// A file that is there whole, or not at all.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace gpumem::cli {

// Written beside its place under another name, and put there by Commit(). Its end without that
// leaves nothing. "-" is stdout, which gets the bytes at once. Used by one thread.
class OutputFile {
 public:
  //   ALREADY_EXISTS  there is such a file, and `replace` is not set
  //   NOT_FOUND, PERMISSION_DENIED, …  as the system says
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path, bool replace);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  //   RESOURCE_EXHAUSTED  the file system is full
  //   DATA_LOSS           the disk's error
  absl::Status Write(absl::string_view bytes);

  // No more is written. DATA_LOSS: some disks say only now what they could not write.
  absl::Status Finish();

  // After Finish().
  //   ALREADY_EXISTS  somebody has made such a file meanwhile
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
