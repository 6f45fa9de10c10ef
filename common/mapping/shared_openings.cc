// SPDX-License-Identifier: Apache-2.0
#include "common/mapping/shared_openings.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumem {

class SharedOpenings::Share : public Mapping {
 public:
  Share(std::shared_ptr<SharedOpenings> of, const ExportData& key, const Opening& opening)
      : Mapping(opening.data(), opening.bytes()), of_(std::move(of)), key_(key) {}
  ~Share() override { of_->Drop(key_); }

 private:
  const std::shared_ptr<SharedOpenings> of_;
  const ExportData key_;
};

absl::StatusOr<std::unique_ptr<Mapping>> SharedOpenings::Get(const ExportData& key, uint64_t bytes,
                                                             Open open) {
  absl::MutexLock lock(&mutex_);
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    absl::StatusOr<std::unique_ptr<Opening>> opening = open();
    if (!opening.ok()) return opening.status();
    found = entries_.emplace(key, Entry{.opening = *std::move(opening)}).first;
  }
  Entry& entry = found->second;
  if (entry.opening->bytes() != bytes) {
    absl::Status refused = absl::InvalidArgumentError(
        absl::StrCat("the export data is of ", entry.opening->bytes(), " bytes, not of ", bytes,
                     "; only all of it can be opened"));
    if (entry.shares == 0) entries_.erase(found);
    return refused;
  }
  ++entry.shares;
  return std::make_unique<Share>(shared_from_this(), key, *entry.opening);
}

void SharedOpenings::Drop(const ExportData& key) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  if (--found->second.shares == 0) entries_.erase(found);
}

absl::Status CheckOpenOptions(const MapOptions& options) {
  if (options.read_only) {
    return absl::UnimplementedError(
        "memory of kinds ipc and mempool cannot be mapped read-only; acquire it with kind vmm");
  }
  if (options.address != nullptr) {
    return absl::UnimplementedError(
        "memory of kinds ipc and mempool cannot be mapped at a requested address; acquire it with "
        "kind vmm");
  }
  return absl::OkStatus();
}

}  // namespace gpumem
