// Memory that processes take from a device past the broker (cudaMalloc): how much, and whose.
//
// Pure: what the driver says of processes and what the broker knows of sessions come in, uses come
// out (unbrokered_monitor.h asks the one and tells the other).
//
// What is exact: whose process it is. Sessions are looked up before the driver is asked, start
// times after it, so that whoever has both a session's pid and its start time was there in
// between. A pid that was used again is nobody's of ours.
//
// What is not: how much. The driver counts a process's CUDA context and what its libraries take
// for themselves, too, so `allowance` is taken off, for each device. Bytes are
// - too few by up to the allowance, where a process needs less of it, and for managed memory,
//   which the driver need not count;
// - too many where its context and libraries need more;
// - where the driver counts what is mapped of the broker's memory (Inputs::mapped), too few by
//   what the process was given and has not mapped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "daemon/core/ids.h"

namespace gpumemd {

// A process as the driver and /proc describe it.
struct DeviceProcess {
  std::string device_uuid;
  pid_t pid = 0;                  // 0: of another PID namespace, or unknown
  uint64_t start_time = 0;        // read after the driver was asked; 0: it is gone, or unknown
  std::optional<uint64_t> bytes;  // absent: the driver does not say
  std::string command;
};

// A session as the broker knows it.
struct SessionProcess {
  SessionId session{};
  std::string tenant;
  pid_t pid = 0;
  uint64_t start_time = 0;
};

struct UnbrokeredUse {
  SessionId session{};  // of those that the process has as this tenant, the first
  std::string tenant;
  std::string device_uuid;
  pid_t pid = 0;
  uint64_t start_time = 0;
  std::string command;
  uint64_t bytes = 0;  // above zero
};

struct Unbrokered {
  // By session and device. A process that is several tenants' counts at each of them, so that
  // none is a place to hide what it takes.
  std::vector<UnbrokeredUse> uses;
  // Processes without a session, with all that the driver counts.
  std::vector<DeviceProcess> foreign;
};

struct UnbrokeredInputs {
  absl::Span<const DeviceProcess> processes;
  absl::Span<const SessionProcess> sessions;  // as they were before the driver was asked
  // Bytes of the broker's that a process may have mapped, by pid and device: where the driver
  // counts those, too.
  std::map<std::pair<pid_t, std::string>, uint64_t> mapped;
  uint64_t allowance = 0;
};

Unbrokered FindUnbrokered(const UnbrokeredInputs& inputs);

// Which uses are above the tolerance for longer than a moment: in two samples, one after the
// other. Memory that is just changing hands must be nobody's undoing.
class UnbrokeredOffenders {
 public:
  struct Change {
    std::vector<UnbrokeredUse> began, ended;  // with the bytes of now, and of before
  };
  // The next sample.
  Change Observe(absl::Span<const UnbrokeredUse> uses, uint64_t tolerance);
  bool Contains(const UnbrokeredUse& use) const;

 private:
  // Process, tenant, device: a process that connects anew remains who it is.
  using Key = std::tuple<pid_t, uint64_t, std::string, std::string>;
  struct Entry {
    UnbrokeredUse use;
    int samples = 0;  // one after the other
  };
  static Key KeyOf(const UnbrokeredUse& use) {
    return {use.pid, use.start_time, use.tenant, use.device_uuid};
  }
  std::map<Key, Entry> above_;
};

}  // namespace gpumemd
