// SPDX-License-Identifier: Apache-2.0
// Known hashes of files, kept for the user across processes: $XDG_CACHE_HOME/gpumem/file-hashes, or
// ~/.cache/gpumem/file-hashes. An entry is a small file for each device and inode. It counts while
// the file's size and times are those of the entry; every write to a file changes its ctime.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gpumem::internal {

class HashCache {
 public:
  // Of the user's folder; empty if the user has none. Creates it with the first entry.
  static HashCache OfUser();
  explicit HashCache(std::string folder) : folder_(std::move(folder)) {}

  // Returns the hash (64 hexadecimal digits) of a file in this state.
  std::optional<std::string> Find(const struct stat& file) const;

  // Keeps the hash of a file that was in this state from `begun` until now. Ignores errors: the
  // cache only saves time. Keeps none of a file that was changed within two seconds before: a
  // further change might leave the times as they are, where the file system's clock is coarse.
  void Keep(const struct stat& file, absl::Time begun, absl::string_view hash) const;

 private:
  std::string PathOf(const struct stat& file) const;

  std::string folder_;  // empty: nothing is kept
};

}  // namespace gpumem::internal
