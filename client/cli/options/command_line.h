// SPDX-License-Identifier: Apache-2.0
// The command line as data. Parsing has no side effects: no socket, no output.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "client/cli/text/styled.h"
#include "client/cli/views/snapshot.h"
#include "client/cli/views/top_view.h"
#include "gpumem/client.h"
#include "gpumem/files.h"
#include "gpumem/publication.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace CLI {
class App;
}

namespace gpumem::cli {

// The options that every command accepts.
struct GlobalOptions {
  std::string runtime_dir;  // empty: ClientRuntimeDir()
  bool json = false;
  bool wide = false;    // tables are not cut to the terminal
  bool headers = true;  // tables begin with the names of their columns
  bool exact = false;   // sizes in bytes, not in GiB
  ColorMode color = ColorMode::kAuto;
  std::optional<absl::Duration> timeout;  // of each request to the daemon
};

// The options of commands that take something from others.
struct Caution {
  bool dry_run = false;  // only show the effects
  bool yes = false;      // do not ask
};

// One struct for each command. Devices are named as the user typed them: the daemon's index, a
// UUID or a prefix of one, a PCI bus id.
struct StatusCommand {};
struct DevicesCommand {};
struct WhoamiCommand {
  std::string as;  // the tenant to request; empty: the daemon's choice
};
struct QuotaGetCommand {
  std::string tenant;  // empty: the caller's own
};
// What a tenant, or a Slurm job's tenant, has used.
struct UsageCommand {
  std::string tenant;  // empty: the caller's own
};
struct QuotaListCommand {};
struct QuotaSetCommand {
  v1::SetQuotaRequest request;  // with devices as the user named them
  Caution caution;
};
struct QuotaUnsetCommand {
  v1::UnsetQuotaRequest request;
  Caution caution;
};
// `own`: under the caller's own tenant, also if this user is an operator.
struct TenantListCommand {
  bool own = false;
};
struct TenantCreateCommand {
  v1::CreateTenantRequest request;  // with devices as the user named them
  bool own = false;
};
struct TenantUpdateCommand {
  v1::UpdateTenantRequest request;  // the same
  bool own = false;
};
struct TenantEndCommand {
  v1::EndTenantRequest request;
  bool own = false;
  Caution caution;
};
struct PsCommand {
  std::string tenant;
};
struct SegmentsCommand {
  std::string tenant;
  std::string device;
};
struct PublicationsCommand {
  std::string tenant;  // empty: all that the caller may attach to
};
struct PublishCommand {
  std::string name;
  std::vector<std::string> files;  // paths
  FileFormat format = FileFormat::kByName;
  DeviceName device;
  Kind kind = Kind::kDefault;
  PublicationAccess access = PublicationAccess::kTenant;
  absl::Duration expire_after = absl::InfiniteDuration();
  bool checksum = true;
  std::string as;  // as in WhoamiCommand
};
struct FetchCommand {
  std::string name;
  bool safetensors = false;  // as files of this format
  std::string out;           // a path, "-" for stdout
  bool force = false;
  bool allow_dotfiles = false;
  std::string as;  // as in WhoamiCommand
};
struct VerifyCommand {
  std::string name;
  std::string as;  // as in WhoamiCommand
};
struct UnpublishCommand {
  std::string name;  // "TENANT/NAME": as an operator
  Caution caution;
};
struct PoolListCommand {
  std::string tenant;
  std::string device;
};
struct PoolSetCommand {
  v1::SetPoolRequest request;  // with the device as the user named it
  Caution caution;
};
struct PoolTrimCommand {
  v1::TrimPoolRequest request;  // the same
  Caution caution;
};
struct TrimCommand {
  std::string tenant;
  std::string device;
  uint64_t keep_bytes = 0;
  Caution caution;
};
struct SuspendCommand {
  uint64_t session = 0;
  std::string tenant;             // instead of a session: all of this tenant and those below it
  std::string publication;        // "TENANT/NAME", instead of a session
  std::optional<pid_t> process;   // instead of a session: all of this process
  std::optional<uint64_t> bytes;  // of resume --process: what a restore needs on each device
  bool resume = false;            // the command is resume
  std::string tag;                // of the sessions: only leases with it; empty: all
  Caution caution;
};
struct DemoteCommand {
  uint64_t session = 0;
  std::string tenant;    // instead of a session: all of this tenant and those below it
  bool promote = false;  // the command is promote
  std::string tag;       // only leases with it; empty: all
  Caution caution;
};
struct DrainCommand {
  bool resume = false;  // undrain
  Caution caution;
};
struct ReloadCommand {
  Caution caution;
};
struct TopCommand {
  TopBy by = TopBy::kTenant;
  TopSort sort = TopSort::kSize;
  absl::Duration interval = absl::Seconds(1);
  std::optional<uint32_t> iterations;
};
struct MapCommand {
  std::string device;  // empty: all
  size_t rows = 4;     // of each device's picture
};
struct DescribeCommand {
  Subject subject = Subject::kAny;  // kAny: any that has the name
  std::string name;
};
struct DoctorCommand {};
struct WebCommand {
  std::string socket;  // of gpumem-web; empty: this user's own, else the system's
};
struct EventsCommand {
  v1::WatchEventsRequest request;
  absl::Time since = absl::InfinitePast();  // leaves out earlier records
};
// Records a trace of the daemon.
struct TraceCommand {
  v1::TraceRequest request;
  std::string out;                // a path, "-" for stdout
  bool force = false;             // replaces the file
  std::vector<std::string> with;  // traces of clients to append
};
struct TraceShowCommand {
  std::vector<std::string> files;
};
enum class Shell { kBash, kZsh, kFish };
struct CompletionCommand {
  Shell shell = Shell::kBash;
};
struct VersionCommand {};
struct HoldCommand {
  uint64_t bytes = 0;                // of each new segment; 0 to open tickets
  std::vector<std::string> tickets;  // to open instead of new segments
  Kind kind = Kind::kDefault;
  DeviceName device;
  std::vector<DeviceName> map_devices;
  int count = 1;
  bool read_only = false;                  // with tickets only
  bool show_handle = false;                // of kind ipc
  std::optional<absl::Duration> duration;  // absent: until a signal
  std::string as;                          // as in WhoamiCommand
  bool fill = false;
  absl::Duration wait = absl::ZeroDuration();  // for new segments
  bool revocable = false;
};
// How gpumem comes into the program: by the dynamic linker, or by the CUDA driver.
enum class RunVia { kPreload, kInjection };
struct RunCommand {
  std::vector<std::string> program;  // with its arguments
  std::string as;                    // as in WhoamiCommand
  std::string name;                  // of the run's tenant; empty: a new one
  std::optional<uint64_t> limit;     // of the run, on each GPU
  std::optional<PreloadMode> mode;   // of the run; absent: that of the tenant above
  uint64_t need = 0;                 // wait until so many bytes are free
  DeviceName device;                 // of `need`
  absl::Duration wait = absl::ZeroDuration();
  RunVia via = RunVia::kPreload;
  bool quiet = false;
};

using Command =
    std::variant<StatusCommand, DevicesCommand, WhoamiCommand, UsageCommand, QuotaGetCommand,
                 QuotaListCommand, QuotaSetCommand, QuotaUnsetCommand, TenantListCommand,
                 TenantCreateCommand, TenantUpdateCommand, TenantEndCommand, PsCommand,
                 SegmentsCommand, PublicationsCommand, PublishCommand, FetchCommand, VerifyCommand,
                 UnpublishCommand, PoolListCommand, PoolSetCommand, PoolTrimCommand, TrimCommand,
                 SuspendCommand, DemoteCommand, DrainCommand, ReloadCommand, TopCommand, MapCommand,
                 DescribeCommand, DoctorCommand, WebCommand, EventsCommand, HoldCommand, RunCommand,
                 CompletionCommand, VersionCommand, TraceCommand, TraceShowCommand>;

struct CommandLine {
  GlobalOptions global;
  // Absent if there is nothing to run: help or version was requested, or the line is invalid.
  std::optional<Command> command;
  std::string text;                   // the help or version
  std::string error;                  // one sentence; not empty if the line is invalid
  std::vector<std::string> warnings;  // one for each deprecated option that was given
};

// `arguments` without the program's name.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments);

// Calls `use` with the parser, for output generated from it. The parser is destroyed afterwards.
void WithParser(absl::FunctionRef<void(const CLI::App&)> use);

}  // namespace gpumem::cli
