// What a daemon says to its manager: sd_notify(3), sd_notify_barrier(3). FDPOLL= means nothing
// here: descriptors are never watched, as after FDPOLL=0.
#pragma once

#include <string>
#include <string_view>

namespace gpumemd::keeper {

struct NotifyMessage {
  bool store = false;    // FDSTORE=1
  bool remove = false;   // FDSTOREREMOVE=1
  bool barrier = false;  // BARRIER=1
  bool ready = false;    // READY=1
  std::string name;      // FDNAME=; "stored" where none is given, as systemd calls it
  std::string state;     // the lines that are about the daemon's state, to be passed on
};

// Reads anything: lines that mean nothing here are left out.
NotifyMessage ParseNotifyMessage(std::string_view text);

// Whether descriptors may have this name: 1 to 255 printable ASCII characters, no ':', which
// separates names in LISTEN_FDNAMES.
bool IsFdName(std::string_view name);

}  // namespace gpumemd::keeper
