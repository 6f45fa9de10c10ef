// SPDX-License-Identifier: Apache-2.0
// The descriptors that the keeper keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/unique_fd.h"

namespace gpumemd::keeper {

// In the order of storing. Not thread-safe.
class StoredFds {
 public:
  // execve(2) takes no environment string longer than this (MAX_ARG_STRLEN), and the daemon gets
  // the names as one.
  static constexpr size_t kMaxNamesBytes = 128 * 1024 - sizeof("LISTEN_FDNAMES=");

  explicit StoredFds(size_t max_fds) : max_fds_(max_fds) {}

  // Adds a descriptor; names may repeat. False if there is no room: the descriptor is then closed.
  bool Add(std::string_view name, gpumem::UniqueFd fd);
  // Closes all of this name; returns their number.
  size_t Remove(const std::string& name);

  size_t size() const { return fds_.size(); }
  bool empty() const { return fds_.empty(); }
  // Return the descriptors' numbers, and their names with ':' between them.
  std::vector<int> Numbers() const;
  std::string Names() const;

 private:
  struct Stored {
    std::string name;
    gpumem::UniqueFd fd;
  };

  const size_t max_fds_;
  uint64_t next_ = 0;
  size_t names_bytes_ = 0;  // with what separates them
  std::map<uint64_t, Stored> fds_;
  std::unordered_map<std::string, std::vector<uint64_t>> by_name_;  // keys in fds_
};

}  // namespace gpumemd::keeper
