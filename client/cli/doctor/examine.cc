// SPDX-License-Identifier: Apache-2.0
// What doctor finds about the daemon.
#include "client/cli/doctor/examine.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/doctor/examiner.h"
#include "client/cli/text/format.h"

namespace gpumem::cli {

using State = SocketFacts::State;

std::vector<Finding> Examiner::All() {
  Daemon();
  Sockets();
  Kept();
  Driver();
  Files();
  Cgroups();
  PastTheBroker();
  return std::move(findings_);
}

State Examiner::StateOf(const std::string& socket) const {
  for (const SocketFacts& each : facts_.sockets) {
    if (each.name == socket) return each.state;
  }
  return State::kMissing;
}

bool Examiner::AnyOpen() const {
  return std::any_of(facts_.sockets.begin(), facts_.sockets.end(), [](const SocketFacts& each) {
    return each.state == State::kOpen || each.state == State::kDenied;
  });
}

void Examiner::Daemon() {
  constexpr char kArea[] = "daemon";
  if (!AnyOpen()) {
    const bool stale =
        std::any_of(facts_.sockets.begin(), facts_.sockets.end(),
                    [](const SocketFacts& each) { return each.state == State::kNobodyListens; });
    Say(kArea, Level::kProblem,
        absl::StrCat("there is no daemon at ", facts_.runtime_dir,
                     stale                      ? ": its sockets exist, but no process listens"
                     : facts_.runtime_dir_there ? ": the folder exists, but has no sockets"
                                                : ": the folder does not exist"),
        absl::StrCat("start one (systemctl start gpumemd, or gpumemd --runtime-dir ",
                     facts_.runtime_dir,
                     "), or name its folder (--runtime-dir, GPUMEM_RUNTIME_DIR)"));
    return;
  }
  if (!facts_.daemon) {
    if (StateOf("admin.sock") == State::kOpen) {
      Say(kArea, Level::kProblem,
          absl::StrCat("the daemon at ", facts_.runtime_dir,
                       " does not report its state: ", facts_.admin_error),
          "read its log (journalctl -u gpumemd)");
    } else {
      Say(kArea, Level::kUnseen, "the daemon's state: this user may not use the admin socket",
          "run sudo gpumemctl doctor, or join the daemon's admin group");
    }
  } else {
    const DaemonFacts& daemon = *facts_.daemon;
    Say(kArea, Level::kOk,
        absl::StrCat("gpumemd ", daemon.version, " answers at ", facts_.runtime_dir, " (pid ",
                     daemon.pid, ", up ", Age(daemon.uptime_ms), ", backend ",
                     daemon.cuda ? "cuda" : "host", ")"));
    if (daemon.draining) {
      Say(kArea, Level::kWarning, "the daemon is draining: it admits no new sessions or requests",
          "run gpumemctl undrain after the maintenance");
    }
    for (const std::string& notice : daemon.notices) {
      Say(kArea, Level::kWarning, absl::StrCat("the daemon reports: ", notice));
    }
  }
  const std::string version = facts_.daemon ? facts_.daemon->version : facts_.worker.version;
  if (version.empty()) return;
  if (version == facts_.cli_version) {
    Say(kArea, Level::kOk, absl::StrCat("gpumemctl has the same version, ", version));
  } else {
    Say(kArea, Level::kWarning,
        absl::StrCat("gpumemctl has version ", facts_.cli_version, ", the daemon ", version),
        "install both from the same release, and restart the daemon");
  }
}

void Examiner::Sockets() {
  constexpr char kArea[] = "sockets";
  if (!AnyOpen()) return;  // reported already
  for (const SocketFacts& socket : facts_.sockets) {
    const std::string what =
        absl::StrCat(socket.name, socket.mode.empty() ? "" : absl::StrCat(" (", socket.mode, ")"));
    switch (socket.state) {
      case State::kOpen:
        Say(kArea, Level::kOk, absl::StrCat(what, " is open to this user"));
        break;
      case State::kDenied:
        if (socket.name == "admin.sock") {
          Say(kArea, Level::kOk,
              absl::StrCat(what, " is closed to this user: it is for operators"));
        } else {
          Say(kArea, Level::kProblem,
              absl::StrCat(what, " is closed to this user: its workers get no memory"),
              "be a member of the socket's group, or change session_socket_mode in [daemon] of "
              "the "
              "configuration");
        }
        break;
      case State::kMissing:
        Say(kArea, Level::kProblem, absl::StrCat(what, " is missing"),
            "restart the daemon, and find the program that deletes files there");
        break;
      case State::kNobodyListens:
        Say(kArea, Level::kProblem, absl::StrCat("no process listens at ", what),
            "restart the daemon; another one may have been started in the same folder");
        break;
    }
  }
  const WorkerFacts& worker = facts_.worker;
  if (StateOf("session.sock") != State::kOpen) return;
  if (!worker.error.empty()) {
    Say(kArea, Level::kProblem, absl::StrCat("no session for this user: ", worker.error),
        "see gpumemctl whoami");
  } else {
    Say(kArea, Level::kOk,
        absl::StrCat("this user's processes are tenant ", worker.tenant, ", by ", worker.rule));
  }
}

void Examiner::Kept() {
  constexpr char kArea[] = "restart";
  if (!facts_.daemon) {
    if (AnyOpen()) Say(kArea, Level::kUnseen, "whether memory outlives the daemon");
    return;
  }
  constexpr char kMorePlaces[] =
      "raise FileDescriptorStoreMax= in the unit (or --max-fds of gpumem-keeper), and restart "
      "the service once no segment is unkept: a restart loses those. [daemon] when_store_full "
      "says what happens to further ones";
  const bool some_unkept = facts_.daemon->unkept_segments > 0;
  if (some_unkept) {
    Say(kArea, Level::kProblem,
        absl::StrCat("the service manager's store ",
                     facts_.daemon->store_full ? "has no place for " : "did not take ",
                     facts_.daemon->unkept_segments,
                     " segments and publications: a restart of the daemon loses them"),
        kMorePlaces);
  } else if (facts_.daemon->store_full && facts_.daemon->keeps_memory) {
    Say(kArea, Level::kWarning,
        "the service manager's store is full: it keeps its content, and has no place for further "
        "segments",
        kMorePlaces);
  }
  if (!facts_.daemon->keeps_memory) {
    if (some_unkept) return;  // reported already
    Say(kArea, Level::kWarning,
        "nothing keeps the memory when the daemon dies: all segments and publications would be "
        "lost",
        "run it as a systemd service with FileDescriptorStoreMax=, or by gpumem-keeper -- "
        "gpumemd …");
    return;
  }
  const bool keeper = absl::StrContains(facts_.process.parent, "gpumem-keeper");
  Say(kArea, Level::kOk,
      absl::StrCat(keeper ? "gpumem-keeper" : "systemd", " keeps the memory when the daemon dies",
                   keeper || facts_.process.unit.empty()
                       ? ""
                       : absl::StrCat(" (", facts_.process.unit, ")")));
  if (facts_.daemon->generation > 1) {
    Say(kArea, Level::kOk,
        absl::StrCat("this daemon is number ", facts_.daemon->generation,
                     " on this memory, which outlived the others (journalctl -u gpumemd has the "
                     "reasons)"));
  }
  const UnitFacts& unit = facts_.unit;
  if (!unit.store_max || !unit.store_now) return;
  const bool full = *unit.store_now * 10 >= *unit.store_max * 9;
  Say(kArea, full ? Level::kWarning : Level::kOk,
      absl::StrCat("the FD store has ", *unit.store_now, " of ", *unit.store_max, " places in use"),
      full ? "raise FileDescriptorStoreMax= in the unit" : "");
}

void Examiner::PastTheBroker() {
  constexpr char kArea[] = "past the broker";
  if (!facts_.daemon) {
    if (AnyOpen()) Say(kArea, Level::kUnseen, "memory past the broker");
    return;
  }
  const DaemonFacts& daemon = *facts_.daemon;
  if (daemon.foreign_processes > 0) {
    Say(kArea, Level::kWarning,
        absl::StrCat(daemon.foreign_processes,
                     daemon.foreign_processes == 1 ? " process uses " : " processes use ",
                     daemon.foreign_bytes == 0 ? "a device" : Size(daemon.foreign_bytes, false),
                     " without a session"),
        "see gpumemctl status");
  }
  if (daemon.unbrokered_bytes > 0) {
    Say(kArea, Level::kWarning,
        absl::StrCat("processes with a session have allocated ",
                     Size(daemon.unbrokered_bytes, false), " with cudaMalloc and the like"),
        "see gpumemctl ps; [unbrokered] in the configuration sets the reaction");
  }
  if (daemon.foreign_processes == 0 && daemon.unbrokered_bytes == 0) {
    Say(kArea, Level::kOk, "no process is seen using memory past the broker");
  }
}

std::vector<Finding> Examine(const Facts& facts) { return Examiner(facts).All(); }

size_t CountOf(const std::vector<Finding>& findings, Level level) {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [level](const Finding& finding) { return finding.level == level; }));
}

}  // namespace gpumem::cli
