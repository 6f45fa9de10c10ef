// SPDX-License-Identifier: Apache-2.0
// A daemon's messages to its manager: sd_notify(3), sd_notify_barrier(3). FDPOLL= is ignored:
// descriptors are never watched, as after FDPOLL=0.
#pragma once

#include <string>
#include <string_view>

namespace gpumemd::keeper {

struct NotifyMessage {
  bool store = false;    // FDSTORE=1
  bool remove = false;   // FDSTOREREMOVE=1
  bool barrier = false;  // BARRIER=1
  bool ready = false;    // READY=1
  std::string name;      // FDNAME=; "stored" if absent, as in systemd
  std::string state;     // the lines about the daemon's state, to be passed on
};

// Parses any text; ignores unknown lines.
NotifyMessage ParseNotifyMessage(std::string_view text);

// True if descriptors may have this name: 1 to 255 printable ASCII characters except ':', which
// separates names in LISTEN_FDNAMES.
bool IsFdName(std::string_view name);

}  // namespace gpumemd::keeper
