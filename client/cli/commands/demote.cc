// SPDX-License-Identifier: Apache-2.0
// gpumemctl demote and promote.
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/commands/caution.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/views/effects.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

// How much longer than the session the daemon may take for its answer, which names the rest.
constexpr absl::Duration kMargin = absl::Seconds(2);

std::string View(const v1::DemoteSessionResponse& response, bool exact) {
  if (response.demoted_leases() == 0) return "Nothing to do: all is demoted already.\n";
  return absl::StrCat("Demoted ", Counted(response.demoted_leases(), "lease"), ": ",
                      Size(response.demoted_bytes(), exact), " in host memory.\n");
}

std::string View(const v1::PromoteSessionResponse& response, bool exact) {
  if (response.promoted_leases() == 0) return "Nothing to do: nothing is demoted.\n";
  return absl::StrCat("Promoted ", Counted(response.promoted_leases(), "lease"), ": ",
                      Size(response.promoted_bytes(), exact), " on the devices.\n");
}

template <typename Request, typename Response>
absl::Status Ask(AdminConnection& admin,
                 grpc::Status (Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                     Response*),
                 const DemoteCommand& command, absl::Duration timeout,
                 const GlobalOptions& options) {
  Request request;
  request.set_session_id(command.session);
  request.set_tag(command.tag);
  request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
  auto response = Call(admin, method, request);
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response)) : View(*response, options.exact));
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(const DemoteCommand& command, const GlobalOptions& options) {
  const absl::Duration timeout =
      std::max(options.timeout.value_or(kCallTimeout), absl::Milliseconds(1));
  auto admin = ConnectAdmin(options.runtime_dir, timeout + kMargin);
  if (!admin.ok()) return admin.status();
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto sessions = Call(**admin, &Admin::Stub::ListSessions, v1::ListSessionsRequest());
    if (!sessions.ok()) return sessions.status();
    return DemoteEffects(command.session, command.promote, command.tag, *sessions, options.exact);
  };
  absl::StatusOr<bool> proceed =
      Proceed(command.caution, command.promote ? "promote" : "demote", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  return command.promote ? Ask(**admin, &Admin::Stub::PromoteSession, command, timeout, options)
                         : Ask(**admin, &Admin::Stub::DemoteSession, command, timeout, options);
}

}  // namespace gpumem::cli
