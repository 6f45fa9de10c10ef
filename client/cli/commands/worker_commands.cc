// SPDX-License-Identifier: Apache-2.0
// The commands that connect as an ordinary worker.
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands/caution.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/output.h"
#include "client/cli/commands/worker_session.h"
#include "client/cli/effects/effects.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
absl::Status Run(const DevicesCommand&, const GlobalOptions& options) {
  auto session = ConnectAsWorker(options, "");
  if (!session.ok()) return session.status();
  auto response = (*session)->ListDevices((*session)->Deadline({}));
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response))
                     : DevicesView({response->devices().begin(), response->devices().end()},
                                   options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

absl::Status Run(const WhoamiCommand& command, const GlobalOptions& options) {
  auto session = ConnectAsWorker(options, command.as);
  if (!session.ok()) return session.status();
  auto response = (*session)->WhoAmI((*session)->Deadline({}));
  if (!response.ok()) return response.status();
  const v1::Welcome& welcome = (*session)->welcome();
  if (options.json) {
    Json json = ToJson(*response);
    json["session_id"] = welcome.session_id();
    json["daemon_version"] = welcome.daemon_version();
    json["runtime_dir"] = options.runtime_dir;
    Print(Document(json));
  } else {
    Print(WhoAmIView(*response, absl::StrCat("gpumemd ", welcome.daemon_version(), " at ",
                                             options.runtime_dir)));
  }
  return absl::OkStatus();
}

absl::Status Run(const PublicationsCommand& command, const GlobalOptions& options) {
  auto session = ConnectAsWorker(options, "");
  if (!session.ok()) return session.status();
  v1::ListPublicationsRequest request;
  request.set_tenant(command.tenant);
  auto response = (*session)->ListPublications(request, (*session)->Deadline({}));
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response))
                     : PublicationsView(*response, options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

absl::Status Run(const UnpublishCommand& command, const GlobalOptions& options) {
  if (absl::StrContains(command.name, '/')) return RunUnpublishOf(command, options);
  auto session = ConnectAsWorker(options, "");
  if (!session.ok()) return session.status();
  const auto effects = [&]() -> absl::StatusOr<Effects> {
    auto list =
        (*session)->ListPublications(v1::ListPublicationsRequest(), (*session)->Deadline({}));
    if (!list.ok()) return list.status();
    auto ends =
        UnpublishEffects(command.name, (*session)->welcome().tenant(), *list, options.exact);
    if (ends.ok()) ends->takes = false;  // the tenant's own
    return ends;
  };
  absl::StatusOr<bool> proceed = Proceed(command.caution, "unpublish", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  v1::UnpublishRequest request;
  request.set_name(command.name);
  auto response = (*session)->Unpublish(request, (*session)->Deadline({}));
  if (!response.ok()) return response.status();
  Print(options.json ? Document(ToJson(*response)) : UnpublishedView(command.name, *response));
  return absl::OkStatus();
}

absl::Status Run(const QuotaGetCommand& command, const GlobalOptions& options) {
  if (!command.tenant.empty()) return RunQuotaOf(command.tenant, options);
  auto session = ConnectAsWorker(options, "");
  if (!session.ok()) return session.status();
  auto response = (*session)->GetUsage((*session)->Deadline({}));
  if (!response.ok()) return response.status();
  const v1::Welcome& welcome = (*session)->welcome();
  // The changes by operators are not shown to every worker.
  v1::GetQuotaResponse quota;
  *quota.mutable_quota() = response->quota();
  *quota.mutable_usage() = response->usage();
  Print(options.json ? Document(QuotaJson(quota, /*knows_overridden=*/false))
                     : QuotaView(quota, {welcome.devices().begin(), welcome.devices().end()},
                                 options.exact, LayoutFor(options)));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
