// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumem::cli {
namespace {

constexpr char kStdout[] = "-";

absl::Status Exists(const std::string& path) {
  return absl::AlreadyExistsError(absl::StrCat(path, " exists: use --force to replace it"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path,
                                                               bool replace) {
  if (path == kStdout) {
    return std::unique_ptr<OutputFile>(new OutputFile(path, "", UniqueFd(), replace));
  }
  // Commit checks this, too, but only after the work.
  if (!replace && access(path.c_str(), F_OK) == 0) return Exists(path);
  std::string temporary = absl::StrCat(path, ".gpumemctl-", getpid());
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", temporary));
  return std::unique_ptr<OutputFile>(
      new OutputFile(path, std::move(temporary), std::move(fd), replace));
}

OutputFile::OutputFile(std::string path, std::string temporary, UniqueFd fd, bool replace)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      fd_(std::move(fd)),
      replace_(replace) {}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

int OutputFile::fd() const { return fd_.valid() ? fd_.get() : STDOUT_FILENO; }

absl::Status OutputFile::Write(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(fd(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int error = errno;
      const std::string what = absl::StrCat("cannot write ", path_ == kStdout ? "stdout" : path_);
      if (error == ENOSPC || error == EDQUOT) return absl::ErrnoToStatus(error, what);
      return absl::DataLossError(
          absl::StrCat(what, ": ", absl::ErrnoToStatus(error, "").message()));
    }
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Finish() {
  if (!fd_.valid() || close(fd_.release()) == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("cannot write ", path_, ": ", absl::ErrnoToStatus(errno, "").message()));
}

absl::Status OutputFile::Commit() {
  if (temporary_.empty()) return absl::OkStatus();
  if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(),
                replace_ ? 0 : RENAME_NOREPLACE) != 0) {
    // Some file systems, NFS among them, do not support that flag.
    if (errno == EINVAL && !replace_) {
      if (link(temporary_.c_str(), path_.c_str()) == 0) return absl::OkStatus();
    }
    if (errno == EEXIST) return Exists(path_);
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot rename a temporary file to ", path_));
  }
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace gpumem::cli
