// SPDX-License-Identifier: Apache-2.0
// The command line as data. Parsing has no side effects: no socket, no output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "client/cli/views/snapshot.h"
#include "client/cli/views/top_view.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace CLI {
class App;
}

namespace gpumem::cli {

struct GlobalOptions {
  std::string runtime_dir;  // empty: ClientRuntimeDir()
  bool json = false;
  bool exact = false;  // sizes in bytes, not in GiB
  bool no_color = false;
};

// One struct for each command. Devices are named as the user typed them: the daemon's index, a UUID
// or a prefix of one.
struct StatusCommand {};
struct DevicesCommand {};
struct WhoamiCommand {
  std::string tenant;
};
struct QuotaGetCommand {
  std::string tenant;  // empty: the caller's own
};
struct QuotaListCommand {};
struct QuotaSetCommand {
  v1::SetQuotaRequest request;  // with devices as the user named them
};
struct QuotaUnsetCommand {
  v1::UnsetQuotaRequest request;
};
struct PsCommand {
  std::string tenant;
};
struct SegmentsCommand {
  std::string tenant;
  std::string device;
};
struct PublicationsCommand {
  std::string of_tenant;  // empty: all that the caller may attach to
};
struct PublishCommand {
  std::string name;
  std::vector<std::string> files;  // paths
  DeviceName device;
  Kind kind = Kind::kDefault;
  PublicationAccess access = PublicationAccess::kTenant;
  absl::Duration expire_after = absl::InfiniteDuration();
  bool checksum = true;
  std::string tenant;
};
struct FetchCommand {
  std::string name;
  std::string out;  // a path, "-" for stdout
  bool force = false;
  bool allow_dotfiles = false;
  std::string tenant;
};
struct VerifyCommand {
  std::string name;
  std::string tenant;
};
struct UnpublishCommand {
  std::string name;  // "TENANT/NAME": as an operator
};
struct PoolListCommand {
  std::string tenant;
  std::string device;
};
struct PoolSetCommand {
  v1::SetPoolRequest request;  // with the device as the user named it
};
struct PoolTrimCommand {
  v1::TrimPoolRequest request;  // the same
};
struct TrimCommand {
  std::string tenant;
  std::string device;
  uint64_t keep_bytes = 0;
};
struct DrainCommand {
  bool resume = false;
};
struct ReloadCommand {};
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
struct EventsCommand {
  v1::WatchEventsRequest request;
};
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
  std::string tenant;
  bool fill = false;
  absl::Duration wait = absl::ZeroDuration();  // for new segments
  bool revocable = false;
};

using Command =
    std::variant<StatusCommand, DevicesCommand, WhoamiCommand, QuotaGetCommand, QuotaListCommand,
                 QuotaSetCommand, QuotaUnsetCommand, PsCommand, SegmentsCommand,
                 PublicationsCommand, PublishCommand, FetchCommand, VerifyCommand, UnpublishCommand,
                 PoolListCommand, PoolSetCommand, PoolTrimCommand, TrimCommand, DrainCommand,
                 ReloadCommand, TopCommand, MapCommand, DescribeCommand, DoctorCommand,
                 EventsCommand, HoldCommand>;

struct CommandLine {
  GlobalOptions global;
  // Absent if there is nothing to run: help or version was requested, or the line is invalid.
  std::optional<Command> command;
  std::string text;   // the help or version
  std::string error;  // one sentence; not empty if the line is invalid
};

// `arguments` without the program's name.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments);

// Calls `use` with the parser, for output generated from it. The parser is destroyed afterwards.
void WithParser(absl::FunctionRef<void(const CLI::App&)> use);

}  // namespace gpumem::cli
