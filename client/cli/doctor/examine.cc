#include "client/cli/doctor/examine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

// Descriptors that any process has: for libraries, the driver (some 30), and its files.
constexpr uint64_t kFilesOfItsOwn = 64;

using State = SocketFacts::State;

class Examiner {
 public:
  explicit Examiner(const Facts& facts) : facts_(facts) {}

  std::vector<Finding> All() {
    Daemon();
    Sockets();
    Kept();
    Driver();
    Files();
    Cgroups();
    PastTheBroker();
    return std::move(findings_);
  }

 private:
  void Say(const char* area, Level level, std::string text, std::string help = "") {
    findings_.push_back({area, level, std::move(text), std::move(help)});
  }

  State StateOf(const std::string& socket) const {
    for (const SocketFacts& each : facts_.sockets) {
      if (each.name == socket) return each.state;
    }
    return State::kMissing;
  }
  bool AnyOpen() const {
    return std::any_of(facts_.sockets.begin(), facts_.sockets.end(), [](const SocketFacts& each) {
      return each.state == State::kOpen || each.state == State::kDenied;
    });
  }

  void Daemon() {
    constexpr char kArea[] = "daemon";
    if (!AnyOpen()) {
      const bool stale =
          std::any_of(facts_.sockets.begin(), facts_.sockets.end(),
                      [](const SocketFacts& each) { return each.state == State::kNobodyListens; });
      Say(kArea, Level::kProblem,
          absl::StrCat("there is no daemon at ", facts_.runtime_dir,
                       stale                      ? ": its sockets are there, and nobody listens"
                       : facts_.runtime_dir_there ? ": the folder is there, the sockets are not"
                                                  : ": there is no such folder"),
          absl::StrCat("start one (systemctl start gpumemd, or gpumemd --runtime-dir ",
                       facts_.runtime_dir,
                       "), or say where it is (--runtime-dir, GPUMEM_RUNTIME_DIR)"));
      return;
    }
    if (!facts_.daemon) {
      if (StateOf("admin.sock") == State::kOpen) {
        Say(kArea, Level::kProblem,
            absl::StrCat("the daemon at ", facts_.runtime_dir,
                         " does not tell how it is: ", facts_.admin_error),
            "look into its log (journalctl -u gpumemd)");
      } else {
        Say(kArea, Level::kUnseen, "how the daemon is: this user may not use the admin socket",
            "sudo gpumemctl doctor, or be a member of its admin group");
      }
    } else {
      const DaemonFacts& daemon = *facts_.daemon;
      Say(kArea, Level::kOk,
          absl::StrCat("gpumemd ", daemon.version, " answers at ", facts_.runtime_dir, " (pid ",
                       daemon.pid, ", up ", Age(daemon.uptime_ms), ", backend ",
                       daemon.cuda ? "cuda" : "host", ")"));
      if (daemon.draining) {
        Say(kArea, Level::kWarning, "it is draining: it admits nothing new",
            "gpumemctl drain --resume, when the maintenance is over");
      }
      for (const std::string& notice : daemon.notices) {
        Say(kArea, Level::kWarning, absl::StrCat("it says: ", notice));
      }
    }
    const std::string version = facts_.daemon ? facts_.daemon->version : facts_.worker.version;
    if (version.empty()) return;
    if (version == facts_.cli_version) {
      Say(kArea, Level::kOk, absl::StrCat("gpumemctl is of the same version, ", version));
    } else {
      Say(kArea, Level::kWarning,
          absl::StrCat("gpumemctl is of version ", facts_.cli_version, ", the daemon of ", version),
          "install both from the same release, and restart the daemon");
    }
  }

  void Sockets() {
    constexpr char kArea[] = "sockets";
    if (!AnyOpen()) return;  // reported already
    for (const SocketFacts& socket : facts_.sockets) {
      const std::string what = absl::StrCat(
          socket.name, socket.mode.empty() ? "" : absl::StrCat(" (", socket.mode, ")"));
      switch (socket.state) {
        case State::kOpen:
          Say(kArea, Level::kOk, absl::StrCat(what, " is open to this user"));
          break;
        case State::kDenied:
          if (socket.name == "admin.sock") {
            Say(kArea, Level::kOk,
                absl::StrCat(what, " is closed to this user, as it is to all but operators"));
          } else {
            Say(kArea, Level::kProblem,
                absl::StrCat(what, " is closed to this user: no worker of theirs gets memory"),
                "be a member of the socket's group, or change session_socket_mode in [daemon] of "
                "the "
                "configuration");
          }
          break;
        case State::kMissing:
          Say(kArea, Level::kProblem, absl::StrCat(what, " is missing"),
              "restart the daemon, and see what deletes files there");
          break;
        case State::kNobodyListens:
          Say(kArea, Level::kProblem, absl::StrCat("nobody listens at ", what),
              "restart the daemon; another one may have been started in the same folder");
          break;
      }
    }
    const WorkerFacts& worker = facts_.worker;
    if (StateOf("session.sock") != State::kOpen) return;
    if (!worker.error.empty()) {
      Say(kArea, Level::kProblem, absl::StrCat("no session for this user: ", worker.error),
          "gpumemctl whoami says more");
    } else {
      Say(kArea, Level::kOk,
          absl::StrCat("this user's processes are tenant ", worker.tenant, ", by ", worker.rule));
    }
  }

  void Kept() {
    constexpr char kArea[] = "restart";
    if (!facts_.daemon) {
      if (AnyOpen()) Say(kArea, Level::kUnseen, "whether memory would outlive the daemon");
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
                       " segments and publications: they would be lost with the daemon"),
          kMorePlaces);
    } else if (facts_.daemon->store_full && facts_.daemon->keeps_memory) {
      Say(kArea, Level::kWarning,
          "the service manager's store is full: it keeps what it has, and has no place for further "
          "segments",
          kMorePlaces);
    }
    if (!facts_.daemon->keeps_memory) {
      if (some_unkept) return;  // reported already
      Say(kArea, Level::kWarning,
          "nothing keeps the memory over the daemon's death: all segments and publications would "
          "be lost with it",
          "run it as a systemd service with FileDescriptorStoreMax=, or by gpumem-keeper -- "
          "gpumemd …");
      return;
    }
    const bool keeper = absl::StrContains(facts_.process.parent, "gpumem-keeper");
    Say(kArea, Level::kOk,
        absl::StrCat(
            keeper ? "gpumem-keeper" : "systemd", " keeps the memory over the daemon's death",
            keeper || facts_.process.unit.empty() ? ""
                                                  : absl::StrCat(" (", facts_.process.unit, ")")));
    if (facts_.daemon->generation > 1) {
      Say(kArea, Level::kOk,
          absl::StrCat("this daemon is number ", facts_.daemon->generation,
                       " on this memory, which has outlived the others (journalctl -u gpumemd says "
                       "why they ended)"));
    }
    const UnitFacts& unit = facts_.unit;
    if (!unit.store_max || !unit.store_now) return;
    const bool full = *unit.store_now * 10 >= *unit.store_max * 9;
    Say(kArea, full ? Level::kWarning : Level::kOk,
        absl::StrCat("the FD store has ", *unit.store_now, " of ", *unit.store_max,
                     " places in use"),
        full ? "raise FileDescriptorStoreMax= in the unit" : "");
  }

  void Driver() {
    constexpr char kArea[] = "driver";
    const DriverFacts& driver = facts_.driver;
    if (driver.module.empty() && driver.files.empty()) {
      if (facts_.daemon && facts_.daemon->cuda) {
        Say(kArea, Level::kProblem,
            "the daemon uses GPUs, and no NVIDIA driver can be seen from here",
            "in a container: start it with the GPUs and /dev/nvidia* in it");
      } else if (facts_.daemon) {
        Say(kArea, Level::kOk,
            "no NVIDIA driver; the daemon hands out host memory, and needs none");
      } else {
        Say(kArea, Level::kWarning, "no NVIDIA driver: a daemon here would hand out host memory",
            "install the driver where there is a GPU");
      }
      return;
    }
    if (facts_.daemon && !facts_.daemon->cuda && facts_.daemon->cuda_toolkit == "") {
      Say(kArea, Level::kProblem,
          "the daemon was built without CUDA: it hands out host memory, and never uses the GPU of "
          "this machine",
          "install packages that were built with the CUDA toolkit: gpumemd --version says which "
          "these are");
    }
    if (!driver.built_in) {
      Say(kArea, Level::kWarning, "this gpumemctl was built without CUDA",
          "build it where the CUDA toolkit is");
    } else if (!driver.cuda_error.empty()) {
      Say(kArea, Level::kProblem, absl::StrCat("CUDA does not work here: ", driver.cuda_error),
          "nvidia-smi shows whether the driver works; in a container, /proc has to be mounted");
    }
    if (!driver.nvml_error.empty()) {
      Say(kArea, Level::kProblem, absl::StrCat("NVML does not work here: ", driver.nvml_error),
          "after an update of the driver: restart the machine, or load its module again");
    } else {
      Say(kArea, Level::kOk,
          absl::StrCat("driver ", driver.version.empty() ? "of unknown version" : driver.version,
                       driver.cuda_version.empty() ? "" : ", CUDA " + driver.cuda_version));
    }
    if (!driver.module.empty() && !driver.version.empty() && driver.module != driver.version) {
      Say(kArea, Level::kProblem,
          absl::StrCat("the kernel's module is of version ", driver.module, ", the libraries of ",
                       driver.version),
          "restart the machine, or load the module again");
    }
    for (const GpuFacts& gpu : driver.gpus) {
      if (!gpu.persistent) {
        Say(kArea, Level::kUnseen,
            absl::StrCat("persistence mode of ", gpu.uuid, ": ", gpu.unknown));
      } else if (*gpu.persistent) {
        Say(kArea, Level::kOk, absl::StrCat("persistence mode is on for ", gpu.uuid));
      } else {
        Say(kArea, Level::kWarning,
            absl::StrCat("persistence mode is off for ", gpu.uuid,
                         ": the driver may tear it down, with the memory kept on it, while no "
                         "process uses it"),
            "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1");
      }
    }
    std::vector<std::string> closed;
    for (const DeviceFile& file : driver.files) {
      if (!file.usable) closed.push_back(absl::StrCat(file.path, " (", file.mode, ")"));
    }
    if (!closed.empty()) {
      Say(kArea, Level::kProblem,
          absl::StrCat("this user may not use ", absl::StrJoin(closed, ", ")),
          "be a member of the files' group, or let the driver make them for all "
          "(NVreg_DeviceFileMode=0666)");
    } else if (!driver.files.empty()) {
      Say(kArea, Level::kOk,
          absl::StrCat("this user may use ", Counted(driver.files.size(), "device file"),
                       " (/dev/nvidia*)"));
    }
  }

  void Files() {
    constexpr char kArea[] = "files";
    const uint64_t largest = facts_.daemon ? facts_.daemon->largest_publication : 0;
    const uint64_t needed = largest + kFilesOfItsOwn;
    const std::string limit = absl::StrCat("processes of this user may have ", facts_.files_soft,
                                           " descriptors (at most ", facts_.files_hard, ")");
    if (facts_.files_soft >= needed) {
      Say(kArea, Level::kOk,
          largest == 0 ? limit
                       : absl::StrCat(limit, ", enough to attach to ",
                                      facts_.daemon->largest_publication_name, " (",
                                      Counted(largest, "segment"), ")"));
    } else if (largest == 0) {
      Say(kArea, Level::kWarning, absl::StrCat(limit, ", which is few: each segment is one"),
          "ulimit -n 65536, or LimitNOFILE= in the worker's unit");
    } else {
      Say(kArea, Level::kWarning,
          absl::StrCat(limit, ", too few to attach to ", facts_.daemon->largest_publication_name,
                       " (", Counted(largest, "segment"), ", each of which is one)"),
          absl::StrCat("ulimit -n ", 2 * needed, ", or LimitNOFILE= in the worker's unit"));
    }
    if (!facts_.daemon) return;
    const ProcessFacts& process = facts_.process;
    if (!process.files_limit) {
      Say(kArea, Level::kUnseen, "how many descriptors the daemon may have",
          "mount /proc of the daemon's PID namespace");
      return;
    }
    // A segment needs one descriptor, a session some three.
    const uint64_t used = process.files_open.value_or(facts_.daemon->segments +
                                                      3 * facts_.daemon->sessions + kFilesOfItsOwn);
    const bool few = used * 10 >= *process.files_limit * 8;
    Say(kArea, few ? Level::kWarning : Level::kOk,
        absl::StrCat("the daemon has ", process.files_open ? "" : "about ", used, " of ",
                     *process.files_limit, " descriptors open"),
        few ? "raise LimitNOFILE= in its unit" : "");
  }

  void Cgroups() {
    constexpr char kArea[] = "cgroups";
    switch (facts_.cgroups) {
      case CgroupLayout::kUnified:
        Say(kArea, Level::kOk, "one hierarchy (cgroup v2)");
        break;
      case CgroupLayout::kHybrid:
      case CgroupLayout::kLegacy:
        Say(kArea, Level::kWarning,
            absl::StrCat(facts_.cgroups == CgroupLayout::kHybrid ? "hierarchies of v1 beside v2"
                                                                 : "hierarchies of v1",
                         ": where they disagree on a process, rules by unit, container, pod or job "
                         "do not match it"),
            "boot with systemd.unified_cgroup_hierarchy=1, where such rules are used");
        break;
      case CgroupLayout::kUnknown:
        Say(kArea, Level::kUnseen, "the layout: /sys/fs/cgroup cannot be read");
        break;
    }
    if (!facts_.worker.cgroup_unknown.empty()) {
      Say(kArea, Level::kWarning,
          absl::StrCat("the daemon does not know the cgroup of this process (",
                       facts_.worker.cgroup_unknown, "): no rule by cgroup matches it"),
          "gpumemctl whoami says more; the daemon needs /proc of this process's PID namespace or "
          "one above it (hostPID)");
    }
  }

  void PastTheBroker() {
    constexpr char kArea[] = "past the broker";
    if (!facts_.daemon) {
      if (AnyOpen()) Say(kArea, Level::kUnseen, "memory that was not asked of the daemon");
      return;
    }
    const DaemonFacts& daemon = *facts_.daemon;
    if (daemon.foreign_processes > 0) {
      Say(kArea, Level::kWarning,
          absl::StrCat(daemon.foreign_processes,
                       daemon.foreign_processes == 1 ? " process uses " : " processes use ",
                       daemon.foreign_bytes == 0 ? "a device" : Size(daemon.foreign_bytes, false),
                       " without a session"),
          "gpumemctl status names them");
    }
    if (daemon.unbrokered_bytes > 0) {
      Say(kArea, Level::kWarning,
          absl::StrCat("processes with a session have taken ", Size(daemon.unbrokered_bytes, false),
                       " with cudaMalloc and the like"),
          "gpumemctl ps shows who ([unbrokered] in the configuration says what to do about it)");
    }
    if (daemon.foreign_processes == 0 && daemon.unbrokered_bytes == 0) {
      Say(kArea, Level::kOk, "nobody is seen to use memory that was not asked of the daemon");
    }
  }

  const Facts& facts_;
  std::vector<Finding> findings_;
};

const char* Word(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
    case Level::kUnseen:
      return "unseen";
  }
  return "";
}

Style StyleOf(Level level) {
  switch (level) {
    case Level::kOk:
      return Style::kGood;
    case Level::kWarning:
      return Style::kWarning;
    case Level::kProblem:
      return Style::kBad;
    case Level::kUnseen:
      return Style::kDim;
  }
  return Style::kPlain;
}

}  // namespace

std::vector<Finding> Examine(const Facts& facts) { return Examiner(facts).All(); }

size_t CountOf(const std::vector<Finding>& findings, Level level) {
  return static_cast<size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [level](const Finding& finding) { return finding.level == level; }));
}

std::vector<Line> DoctorView(const std::vector<Finding>& findings, size_t columns) {
  constexpr size_t kIndent = 11;  // behind "  warning  "
  const size_t width = std::max<size_t>(std::min<size_t>(columns, 100), 2 * kIndent) - kIndent;
  std::vector<Line> lines;
  std::string area;
  for (const Finding& finding : findings) {
    if (finding.area != area) lines.emplace_back(finding.area, Style::kBold);
    area = finding.area;
    bool first = true;
    for (const std::string& part : Wrapped(finding.text, width)) {
      const std::string word = first ? Word(finding.level) : "";
      Line line("  ");
      line.Add(word, StyleOf(finding.level)).Add(std::string(kIndent - 2 - word.size(), ' '));
      lines.push_back(std::move(line.Add(part)));
      first = false;
    }
    if (finding.help.empty()) continue;
    first = true;
    for (const std::string& part : Wrapped(finding.help, width - 3)) {
      Line line(std::string(kIndent, ' '));
      lines.push_back(std::move(line.Add(first ? "-> " : "   ").Add(part, Style::kBold)));
      first = false;
    }
  }
  const size_t problems = CountOf(findings, Level::kProblem);
  const size_t warnings = CountOf(findings, Level::kWarning);
  lines.emplace_back();
  Line sum(absl::StrCat(CountOf(findings, Level::kOk), " ok, "));
  sum.Add(Counted(warnings, "warning"), warnings > 0 ? Style::kWarning : Style::kPlain);
  sum.Add(", ").Add(Counted(problems, "problem"), problems > 0 ? Style::kBad : Style::kPlain);
  sum.Add(absl::StrCat(", ", CountOf(findings, Level::kUnseen), " not seen"));
  lines.push_back(std::move(sum));
  return lines;
}

Json DoctorJson(const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"area", finding.area},
                    {"level", Word(finding.level)},
                    {"text", finding.text},
                    {"help", finding.help}});
  }
  Json json = Json::object();
  json["findings"] = std::move(list);
  json["problems"] = CountOf(findings, Level::kProblem);
  json["warnings"] = CountOf(findings, Level::kWarning);
  json["unseen"] = CountOf(findings, Level::kUnseen);
  return json;
}

}  // namespace gpumem::cli
