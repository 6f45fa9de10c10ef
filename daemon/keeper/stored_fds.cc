// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/stored_fds.h"

#include <utility>

namespace gpumemd::keeper {

bool StoredFds::Add(std::string_view name, gpumem::UniqueFd fd) {
  const size_t bytes = name.size() + 1;
  if (fds_.size() >= max_fds_ || names_bytes_ + bytes > kMaxNamesBytes) return false;
  names_bytes_ += bytes;
  by_name_[std::string(name)].push_back(next_);
  fds_.emplace(next_++, Stored{std::string(name), std::move(fd)});
  return true;
}

size_t StoredFds::Remove(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return 0;
  const std::vector<uint64_t> keys = std::move(found->second);
  by_name_.erase(found);
  for (const uint64_t key : keys) fds_.erase(key);
  names_bytes_ -= keys.size() * (name.size() + 1);
  return keys.size();
}

std::vector<int> StoredFds::Numbers() const {
  std::vector<int> numbers;
  numbers.reserve(fds_.size());
  for (const auto& [key, stored] : fds_) numbers.push_back(stored.fd.get());
  return numbers;
}

std::string StoredFds::Names() const {
  std::string names;
  names.reserve(names_bytes_);
  for (const auto& [key, stored] : fds_) {
    if (!names.empty()) names += ':';
    names += stored.name;
  }
  return names;
}

}  // namespace gpumemd::keeper
