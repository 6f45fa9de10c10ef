// SPDX-License-Identifier: Apache-2.0
// Writes that do not wait for a reader.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gpumemd {

enum class ReadyWrite {
  kDone,     // all of it is written
  kBlocked,  // the descriptor takes no more at the moment
  kFailed,   // errno says why
};

// Writes as much as `fd` takes without waiting, and removes that from `*rest`. A full pipe, socket
// or terminal does not block the caller, whether or not `fd` is non-blocking. A regular file is
// written as usual. A line of at most PIPE_BUF bytes goes into a pipe whole or not at all.
ReadyWrite WriteReady(int fd, absl::string_view* rest);

// As WriteReady(), and waits up to `time` for room. kBlocked: there was none in that time.
ReadyWrite WriteWithin(int fd, absl::string_view* rest, absl::Duration time);

}  // namespace gpumemd
