// SPDX-License-Identifier: Apache-2.0
// Memory that processes allocate on a device without the broker (cudaMalloc): the amount and the
// owner.
//
// Pure: computes uses from the driver's facts about processes and the broker's facts about sessions
// (unbrokered_monitor.h reads the former and reports to the latter).
//
// The owner is exact. Sessions are looked up before the driver is asked, start times after it, so a
// process with both a session's pid and its start time was there in between. A reused pid matches
// no session.
//
// Memory of kind driver is brokered: the process has it charged, and it is subtracted.
//
// The amount is not exact. The driver also counts a process's CUDA context and its libraries'
// memory, so `allowance` is subtracted, for each device. Bytes are
// - too few by up to the allowance, if a process needs less of it, and for managed memory, which
//   the driver need not count;
// - too many if its context and libraries need more;
// - too few, if the driver counts mapped memory of the broker (Inputs::mapped), by memory that the
//   process was given and has not mapped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
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
  uint64_t start_time = 0;        // read after the driver was asked; 0: it has ended, or unknown
  std::optional<uint64_t> bytes;  // absent: the driver does not report it
  std::string command;
};

// A session as the broker knows it.
struct SessionProcess {
  SessionId session{};
  std::string tenant;
  pid_t pid = 0;
  uint64_t start_time = 0;
  // Charged to it for memory that its process allocates from the driver (kind driver), by device.
  std::map<std::string, uint64_t> driver_bytes;
  // Charged beyond that, for what the driver takes by itself (Overheads).
  std::map<std::string, uint64_t> overhead_bytes;
};

struct UnbrokeredUse {
  SessionId session{};  // the first of the process's sessions as this tenant
  std::string tenant;
  std::string device_uuid;
  pid_t pid = 0;
  uint64_t start_time = 0;
  std::string command;
  uint64_t bytes = 0;  // above zero
};

// What the driver takes for a process by itself, beyond the charges of kind driver.
struct OverheadUse {
  SessionId session{};  // the first of the process's sessions that have such a charge there
  std::string device_uuid;
  uint64_t bytes = 0;
  uint64_t charged = 0;  // as overhead now
};

struct Unbrokered {
  // By session and device. A process of several tenants counts at each of them, so that none can
  // hide its memory.
  std::vector<UnbrokeredUse> uses;
  // Processes without a session, with all bytes that the driver counts.
  std::vector<DeviceProcess> foreign;
  // Of each process and device with charges of kind driver, also 0: it replaces earlier ones.
  std::vector<OverheadUse> overheads;
};

struct UnbrokeredInputs {
  absl::Span<const DeviceProcess> processes;
  absl::Span<const SessionProcess> sessions;  // as they were before the driver was asked
  // Bytes of the broker's memory that a process may have mapped, by pid and device, if the driver
  // counts those, too.
  std::map<std::pair<pid_t, std::string>, uint64_t> mapped;
  uint64_t allowance = 0;
};

Unbrokered FindUnbrokered(const UnbrokeredInputs& inputs);

// Overheads that two looks agree on. Charges are read before the driver is asked, so a process that
// allocates or frees in between has a wrong overhead in one look.
class SteadyOverheads {
 public:
  // Replaces each of the overheads by the middle one of three: the last look's, this one's, and the
  // present charge. Removes those on devices for which the driver did not answer: these stay
  // charged.
  void Settle(std::vector<OverheadUse>& overheads, const std::set<std::string>& unanswered);

 private:
  using Key = std::pair<SessionId, std::string>;  // session, device
  std::map<Key, uint64_t> last_;
};

// The uses that exceed the tolerance in two consecutive samples. Memory that is just changing hands
// must not cause a reaction.
class UnbrokeredOffenders {
 public:
  struct Change {
    std::vector<UnbrokeredUse> began, ended;  // with their present bytes, and with their previous
                                              // bytes
  };
  // The next sample.
  Change Observe(absl::Span<const UnbrokeredUse> uses, uint64_t tolerance);
  bool Contains(const UnbrokeredUse& use) const;

 private:
  // Process, tenant, device: a process that reconnects keeps its key.
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
