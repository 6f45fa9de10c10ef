// SPDX-License-Identifier: Apache-2.0
// gpumemctl suspend and resume.
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/commands/caution.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/process/command.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/printable.h"
#include "client/cli/views/effects.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

// How much longer than the session the daemon may take for its answer, which names the rest.
constexpr absl::Duration kAnswerMargin = absl::Seconds(2);

template <typename Request>
Request RequestFor(const SuspendCommand& command, absl::Duration timeout) {
  Request request;
  request.set_session_id(command.session);
  request.set_tag(command.tag);
  request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
  return request;
}

std::string SuspendedView(const v1::SuspendSessionResponse& response, bool exact) {
  if (response.suspended_leases() == 0) return "Nothing to do: all is suspended already.\n";
  std::string text =
      absl::StrCat("Suspended ", Counted(response.suspended_leases(), "lease"), ": moved ",
                   Size(response.moved_bytes(), exact), " to the host tier.\n");
  if (response.dropped_bytes() > 0) {
    absl::StrAppend(&text, "Dropped ", Size(response.dropped_bytes(), exact),
                    " of scratch memory.\n");
  }
  if (response.resident_bytes() > 0) {
    absl::StrAppend(&text, "Other sessions still use ", Size(response.resident_bytes(), exact),
                    ", which stays on its device.\n");
  }
  return text;
}

std::string ResumedView(const v1::ResumeSessionResponse& response, bool exact) {
  if (response.resumed_leases() == 0) return "Nothing to do: nothing is suspended.\n";
  return absl::StrCat("Resumed ", Counted(response.resumed_leases(), "lease"), ": ",
                      Size(response.resumed_bytes(), exact), " on the devices.\n");
}

absl::Status RunForPublication(const SuspendCommand& command, const GlobalOptions& options,
                               AdminConnection& admin, absl::Duration timeout) {
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
  const absl::Duration timeout =
      std::max(options.timeout.value_or(kCallTimeout), absl::Milliseconds(1));
  auto admin = ConnectAdmin(options.runtime_dir, timeout + kAnswerMargin);
  if (!admin.ok()) return admin.status();
  if (!command.publication.empty()) return RunForPublication(command, options, **admin, timeout);
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto sessions = Call(**admin, &Admin::Stub::ListSessions, v1::ListSessionsRequest());
    if (!sessions.ok()) return sessions.status();
    return SuspendEffects(command.session, command.resume, command.tag, *sessions, options.exact);
  };
  absl::StatusOr<bool> proceed =
      Proceed(command.caution, command.resume ? "resume" : "suspend", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  if (command.resume) {
    auto response = Call(**admin, &Admin::Stub::ResumeSession,
                         RequestFor<v1::ResumeSessionRequest>(command, timeout));
    if (!response.ok()) return response.status();
    Print(options.json ? Document(ToJson(*response)) : ResumedView(*response, options.exact));
    return absl::OkStatus();
  }
  auto response = Call(**admin, &Admin::Stub::SuspendSession,
                       RequestFor<v1::SuspendSessionRequest>(command, timeout));
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response)) : SuspendedView(*response, options.exact));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
