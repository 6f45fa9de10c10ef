// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/populate.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/start_thread.h"

namespace gpumemd {
namespace {

// Eight are slower than four: they stand in each other's way in the kernel.
constexpr size_t kThreads = 4;

// Since Linux 5.14; in the headers of newer systems.
constexpr int kPopulateWrite = 23;

// Returns 0 or the error. A kernel that does not know the call leaves the work to the first use.
int PopulateWindow(const TierFile::Window& window) {
  while (madvise(window.data, window.bytes, kPopulateWrite) != 0) {
    if (errno == EINVAL) return 0;
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

}  // namespace

Populating::Populating(const TierFile* file, std::vector<uint64_t> windows)
    : file_(*file), windows_(std::move(windows)), states_(windows_.size(), State::kNew) {
  while (helpers_.size() < std::min(kThreads, windows_.size())) {
    absl::StatusOr<std::thread> helper = gpumem::StartThread([this] { Work(); });
    if (!helper.ok()) break;  // Await() does it, then
    helpers_.push_back(*std::move(helper));
  }
}

Populating::~Populating() {
  {
    absl::MutexLock lock(&mutex_);
    next_ = windows_.size();
  }
  for (std::thread& helper : helpers_) helper.join();
}

absl::Status Populating::Await(size_t i) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (states_[i] == State::kBegun) {
        const auto ended = [this, i]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
          return states_[i] != State::kBegun;
        };
        mutex_.Await(absl::Condition(&ended));
      }
      if (states_[i] == State::kDone) return absl::OkStatus();
      if (error_ != 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat(absl::ErrnoToStatus(error_, "madvise").message(),
                         ": the machine has no memory left for the host tier"));
      }
    }
    // No helper has come to it yet.
    WorkOnNext();
  }
}

void Populating::Work() {
  while (WorkOnNext()) {
  }
}

bool Populating::WorkOnNext() {
  size_t i = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (next_ == windows_.size() || error_ != 0) return false;
    i = next_++;
    states_[i] = State::kBegun;
  }
  const int error = PopulateWindow(file_.window(windows_[i]));
  absl::MutexLock lock(&mutex_);
  states_[i] = error == 0 ? State::kDone : State::kFailed;
  if (error_ == 0) error_ = error;
  return true;
}

}  // namespace gpumemd
