// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/override_store.h"

#include <fcntl.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/quota_proto.h"
#include "proto/gpumem/v1/state.pb.h"

namespace gpumemd {

namespace v1 = gpumem::v1;
using gpumem::UniqueFd;

namespace {

constexpr char kFile[] = "overrides.txt";
constexpr char kNewFile[] = "overrides.txt.new";
constexpr char kBrokenFile[] = "overrides.txt.broken";
constexpr char kLock[] = "lock";
constexpr char kHeader[] =
    "# Written by gpumemd: the quotas that operators have set. Change them with\n"
    "# gpumemctl quota set and gpumemctl quota unset; gpumemd reads them when it starts.\n";
constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int kMostLevels = 32;

absl::Status Failed(absl::string_view what, const std::string& path, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", what, " ", path, " (", std::strerror(error), ")"));
}

// Takes the errors that protobuf would write to stderr; keeps the first.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat("line ", line + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::StatusOr<Overrides> Parse(const std::string& text) {
  v1::State state;
  google::protobuf::TextFormat::Parser parser;
  FirstError error;
  parser.RecordErrorsTo(&error);
  parser.SetRecursionLimit(kMostLevels);
  if (!parser.ParseFromString(text, &state)) return absl::InvalidArgumentError(error.text());
  Overrides overrides;
  for (const v1::QuotaOverride& proto : state.overrides()) {
    absl::StatusOr<QuotaOverride> override = FromProto(proto);
    if (!override.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(override.status().message(), " (tenant \"", proto.tenant(), "\")"));
    }
    if (absl::Status right = CheckRemembered(proto.tenant(), *override); !right.ok()) return right;
    if (!overrides.emplace(proto.tenant(), *std::move(override)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tenant \"", proto.tenant(), "\" is there twice"));
    }
  }
  return overrides;
}

absl::Status WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return absl::ErrnoToStatus(errno, "");
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

}  // namespace

OverrideStore::OverrideStore(std::string dir)
    : dir_(std::move(dir)), file_(absl::StrCat(dir_, "/", kFile)) {
  usable_ = OpenFolder();
  if (usable_.ok()) usable_ = Read();
  if (usable_.ok()) return;
  notices_.push_back(absl::StrCat(
      "quotas cannot be changed while the daemon runs, because the changes cannot be stored: ",
      usable_.message()));
}

absl::Status OverrideStore::OpenFolder() {
  if (dir_.empty()) {
    return absl::FailedPreconditionError(
        "there is no state folder, because HOME is not set; name one (--state-dir)");
  }
  std::error_code ignored;  // mkdir tells
  std::filesystem::create_directories(std::filesystem::path(dir_).parent_path(), ignored);
  if (mkdir(dir_.c_str(), 0700) != 0 && errno != EEXIST) {
    return Failed("make the state folder", dir_, errno);
  }
  folder_.reset(open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat found;
  if (!folder_.valid() || fstat(folder_.get(), &found) != 0) {
    return Failed("open the state folder", dir_, errno);
  }
  // A user who may write to it could change the tenants' quotas.
  if (found.st_uid != geteuid() || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("other users may write to the state folder ", dir_,
                     "; use one that belongs to the daemon's user alone (chmod 700)"));
  }
  lock_.reset(openat(folder_.get(), kLock, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_.valid()) return Failed("write to the state folder", dir_, errno);
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("another daemon uses the state folder ", dir_,
                     "; give each daemon a separate one (--state-dir)"));
  }
  return absl::OkStatus();
}

absl::Status OverrideStore::Read() {
  UniqueFd fd(openat(folder_.get(), kFile, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() && errno == ENOENT) return absl::OkStatus();
  absl::Status wrong;
  if (!fd.valid()) wrong = absl::ErrnoToStatus(errno, "it cannot be opened");
  std::string text;
  char buffer[4096];
  while (wrong.ok()) {
    const ssize_t got = read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) wrong = absl::ErrnoToStatus(errno, "it cannot be read");
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxBytes) wrong = absl::InvalidArgumentError("it is larger than 64 MiB");
  }
  if (wrong.ok()) {
    absl::StatusOr<Overrides> parsed = Parse(text);
    if (parsed.ok()) {
      remembered_ = *std::move(parsed);
      return absl::OkStatus();
    }
    wrong = parsed.status();
  }
  // Kept for people; and nothing that is written from now on destroys it.
  if (renameat(folder_.get(), kFile, folder_.get(), kBrokenFile) != 0) {
    const int error = errno;
    return absl::FailedPreconditionError(absl::StrCat(file_, " cannot be used (", wrong.message(),
                                                      "), nor put aside (", std::strerror(error),
                                                      ")"));
  }
  notices_.push_back(absl::StrCat("the quotas that operators set are NOT in force: ", file_,
                                  " cannot be used (", wrong.message(), "); it is kept as ", dir_,
                                  "/", kBrokenFile));
  return absl::OkStatus();
}

absl::Status OverrideStore::Save(const Overrides& overrides) {
  if (!usable_.ok()) return usable_;
  v1::State state;
  for (const auto& [tenant, override] : overrides)
    *state.add_overrides() = ToProto(tenant, override);
  std::string text;
  if (!google::protobuf::TextFormat::PrintToString(state, &text)) {
    return absl::FailedPreconditionError("the overrides cannot be written as text");
  }
  UniqueFd fd(
      openat(folder_.get(), kNewFile, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid() || !WriteAll(fd.get(), absl::StrCat(kHeader, text)).ok() ||
      fsync(fd.get()) != 0 || renameat(folder_.get(), kNewFile, folder_.get(), kFile) != 0) {
    return Failed("write", file_, errno);
  }
  // The file is in place, even if this fails; it concerns only a power cut.
  (void)fsync(folder_.get());
  return absl::OkStatus();
}

}  // namespace gpumemd
