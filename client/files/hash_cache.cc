// SPDX-License-Identifier: Apache-2.0
#include "client/files/hash_cache.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/unique_fd.h"

namespace gpumem::internal {
namespace {

constexpr absl::Duration kSettled = absl::Seconds(2);
constexpr size_t kHashDigits = 64;
constexpr size_t kMaxEntry = 256;  // bytes

// What changes whenever the file does.
std::string StateOf(const struct stat& file) {
  const auto time = [](const timespec& at) { return absl::StrCat(at.tv_sec, ".", at.tv_nsec); };
  return absl::StrCat(file.st_size, " ", time(file.st_mtim), " ", time(file.st_ctim), " ");
}

bool IsHash(absl::string_view text) {
  return text.size() == kHashDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

}  // namespace

HashCache HashCache::OfUser() {
  const char* cache = getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') {
    return HashCache(absl::StrCat(cache, "/gpumem/file-hashes"));
  }
  const char* home = getenv("HOME");
  if (home == nullptr || *home != '/') return HashCache("");
  return HashCache(absl::StrCat(home, "/.cache/gpumem/file-hashes"));
}

std::string HashCache::PathOf(const struct stat& file) const {
  return absl::StrCat(folder_, "/", major(file.st_dev), ":", minor(file.st_dev), "-", file.st_ino);
}

std::optional<std::string> HashCache::Find(const struct stat& file) const {
  if (folder_.empty()) return std::nullopt;
  const UniqueFd entry(open(PathOf(file).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat found = {};
  // Only this user could have written it.
  if (!entry.valid() || fstat(entry.get(), &found) != 0 || !S_ISREG(found.st_mode) ||
      found.st_uid != geteuid() || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return std::nullopt;
  }
  std::string text(kMaxEntry, '\0');
  const ssize_t bytes = read(entry.get(), text.data(), text.size());
  if (bytes < 0) return std::nullopt;
  absl::string_view rest = absl::string_view(text).substr(0, static_cast<size_t>(bytes));
  if (!absl::ConsumePrefix(&rest, StateOf(file)) || !absl::ConsumeSuffix(&rest, "\n") ||
      !IsHash(rest)) {
    return std::nullopt;
  }
  return std::string(rest);
}

void HashCache::Keep(const struct stat& file, absl::Time begun, absl::string_view hash) const {
  const absl::Time changed =
      std::max(absl::TimeFromTimespec(file.st_mtim), absl::TimeFromTimespec(file.st_ctim));
  if (folder_.empty() || begun < changed + kSettled) return;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  std::string temporary = absl::StrCat(folder_, "/.new-XXXXXX");
  const UniqueFd entry(mkostemp(temporary.data(), O_CLOEXEC));
  if (!entry.valid()) return;
  const std::string text = absl::StrCat(StateOf(file), hash, "\n");
  const bool written =
      write(entry.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!written || rename(temporary.c_str(), PathOf(file).c_str()) != 0) unlink(temporary.c_str());
}

}  // namespace gpumem::internal
