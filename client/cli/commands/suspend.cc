// SPDX-License-Identifier: Apache-2.0
// gpumemctl suspend, resume, demote and promote.
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/commands/caution.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/commands/move_sessions.h"
#include "client/cli/effects/effects.h"
#include "client/cli/effects/session_effects.h"
#include "client/cli/process/command.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/printable.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

template <typename Command>
absl::Status MoveSessions(SessionMove move, const Command& command, const GlobalOptions& options) {
  return MoveSessions(move, {command.session, command.tenant, command.tag}, command.caution,
                      options);
}

absl::Status RunForPublication(const SuspendCommand& command, const GlobalOptions& options) {
  const absl::Duration timeout = MoveTimeout(options);
  absl::StatusOr<std::unique_ptr<AdminConnection>> connection =
      ConnectAdmin(options.runtime_dir, timeout + kMoveAnswerMargin);
  if (!connection.ok()) return connection.status();
  AdminConnection& admin = **connection;
  const std::string& name = command.publication;
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto list = Call(admin, &Admin::Stub::ListPublications, v1::ListPublicationsRequest());
    if (!list.ok()) return list.status();
    return SuspendPublicationEffects(name, command.resume, *list, options.exact);
  };
  absl::StatusOr<bool> proceed =
      Proceed(command.caution, command.resume ? "resume" : "suspend", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  const auto moved = [&](absl::string_view verb, uint64_t segments, uint64_t bytes,
                         absl::string_view to) {
    if (segments == 0) return absl::StrCat("Nothing to do: all is ", to, " already.\n");
    return absl::StrCat(verb, Printable(name), ": moved ", Counted(segments, "segment"), ", ",
                        Size(bytes, options.exact), ", ", to, ".\n");
  };
  if (command.resume) {
    v1::ResumePublicationRequest request;
    request.set_name(name);
    request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
    auto response = Call(admin, &Admin::Stub::ResumePublication, request);
    if (!response.ok()) return response.status();
    Print(options.json ? Document(ToJson(*response))
                       : moved("Resumed ", response->resumed_segments(), response->resumed_bytes(),
                               "on the devices"));
    return absl::OkStatus();
  }
  v1::SuspendPublicationRequest request;
  request.set_name(name);
  auto response = Call(admin, &Admin::Stub::SuspendPublication, request);
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response))
                     : moved("Suspended ", response->moved_segments(), response->moved_bytes(),
                             "in the host tier"));
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(const SuspendCommand& command, const GlobalOptions& options) {
  if (command.process.has_value()) return RunOnProcess(command, options);
  if (!command.publication.empty()) return RunForPublication(command, options);
  return MoveSessions(command.resume ? SessionMove::kResume : SessionMove::kSuspend, command,
                      options);
}

absl::Status Run(const DemoteCommand& command, const GlobalOptions& options) {
  return MoveSessions(command.promote ? SessionMove::kPromote : SessionMove::kDemote, command,
                      options);
}

}  // namespace gpumem::cli
