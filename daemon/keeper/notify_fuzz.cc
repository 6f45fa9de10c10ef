// SPDX-License-Identifier: Apache-2.0
// Messages of a daemon to its keeper, and what the keeper keeps for them. Messages are separated by
// a zero.
#include <sys/eventfd.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "common/testing/fuzz/input.h"
#include "common/unique_fd.h"
#include "daemon/keeper/notify_message.h"
#include "daemon/keeper/stored_fds.h"

namespace gpumemd::keeper {
namespace {

constexpr size_t kMostFds = 20;

void CheckStored(const StoredFds& stored) {
  FUZZ_CHECK(stored.size() <= kMostFds);
  FUZZ_CHECK(stored.Numbers().size() == stored.size());
  const std::string names = stored.Names();
  FUZZ_CHECK(names.size() <= StoredFds::kMaxNamesBytes);
  size_t separators = 0;
  for (const char c : names) separators += c == ':' ? 1 : 0;
  FUZZ_CHECK(stored.empty() ? names.empty() : separators + 1 == stored.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view left(reinterpret_cast<const char*>(data), size);
  StoredFds stored(kMostFds);
  while (!left.empty()) {
    const size_t end = std::min(left.find('\0'), left.size());
    const NotifyMessage message = ParseNotifyMessage(left.substr(0, end));
    left.remove_prefix(std::min(end + 1, left.size()));
    FUZZ_CHECK(message.state.empty() || message.state.back() == '\n');
    // State that is passed on stores nothing there, and names no process.
    const NotifyMessage passed = ParseNotifyMessage(message.state);
    FUZZ_CHECK(passed.state == message.state && passed.ready == message.ready);
    FUZZ_CHECK(!passed.store && !passed.remove && !passed.barrier && passed.name == "stored");
    if (!IsFdName(message.name)) continue;
    const size_t before = stored.size();
    if (message.store) {
      const bool added = stored.Add(message.name, gpumem::UniqueFd(eventfd(0, EFD_CLOEXEC)));
      FUZZ_CHECK(stored.size() == before + (added ? 1 : 0));
    } else if (message.remove) {
      const size_t removed = stored.Remove(message.name);
      FUZZ_CHECK(stored.size() == before - removed);
    }
    CheckStored(stored);
  }
  return 0;
}

}  // namespace gpumemd::keeper
