// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/notify_message.h"

#include <algorithm>

namespace gpumemd::keeper {
namespace {

constexpr std::string_view kName = "FDNAME=";
// Lines about the daemon's state, without those about processes and descriptors, which differ for
// the outer manager.
constexpr std::string_view kStates[] = {
    "READY=",    "RELOADING=",      "STOPPING=",           "STATUS=", "ERRNO=", "EXIT_STATUS=",
    "BUSERROR=", "MONOTONIC_USEC=", "EXTEND_TIMEOUT_USEC="};

}  // namespace

NotifyMessage ParseNotifyMessage(std::string_view text) {
  NotifyMessage message{.name = "stored"};
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line == "FDSTORE=1") message.store = true;
    if (line == "FDSTOREREMOVE=1") message.remove = true;
    if (line == "BARRIER=1") message.barrier = true;
    if (line == "READY=1") message.ready = true;
    if (line.substr(0, kName.size()) == kName) message.name = line.substr(kName.size());
    for (const std::string_view state : kStates) {
      if (line.substr(0, state.size()) != state) continue;
      message.state.append(line).push_back('\n');
    }
  }
  return message;
}

bool IsFdName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && std::all_of(name.begin(), name.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != ':';
  });
}

}  // namespace gpumemd::keeper
