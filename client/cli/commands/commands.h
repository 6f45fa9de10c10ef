// SPDX-License-Identifier: Apache-2.0
// The commands. A Run returns when its work is done or has failed. Results go to stdout; errors
// return a status whose message is for the user.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/cli/options/command_line.h"

namespace gpumem::cli {

// Through the admin socket.
absl::Status Run(const StatusCommand& command, const GlobalOptions& options);
absl::Status Run(const PsCommand& command, const GlobalOptions& options);
absl::Status Run(const SegmentsCommand& command, const GlobalOptions& options);
absl::Status Run(const QuotaListCommand& command, const GlobalOptions& options);
absl::Status Run(const QuotaSetCommand& command, const GlobalOptions& options);
absl::Status Run(const QuotaUnsetCommand& command, const GlobalOptions& options);
absl::Status Run(const TenantListCommand& command, const GlobalOptions& options);
absl::Status Run(const TenantCreateCommand& command, const GlobalOptions& options);
absl::Status Run(const TenantUpdateCommand& command, const GlobalOptions& options);
absl::Status Run(const TenantEndCommand& command, const GlobalOptions& options);
absl::Status Run(const PoolListCommand& command, const GlobalOptions& options);
absl::Status Run(const PoolSetCommand& command, const GlobalOptions& options);
absl::Status Run(const PoolTrimCommand& command, const GlobalOptions& options);
absl::Status Run(const TrimCommand& command, const GlobalOptions& options);
absl::Status Run(const SuspendCommand& command, const GlobalOptions& options);
absl::Status Run(const DemoteCommand& command, const GlobalOptions& options);
absl::Status Run(const DrainCommand& command, const GlobalOptions& options);
absl::Status Run(const ReloadCommand& command, const GlobalOptions& options);
absl::Status Run(const TopCommand& command, const GlobalOptions& options);
absl::Status Run(const MapCommand& command, const GlobalOptions& options);
absl::Status Run(const DescribeCommand& command, const GlobalOptions& options);
absl::Status Run(const EventsCommand& command, const GlobalOptions& options);
absl::Status Run(const TraceCommand& command, const GlobalOptions& options);

// Uses what this user may see of the machine, and of the daemon if there is one.
absl::Status Run(const DoctorCommand& command, const GlobalOptions& options);

// Through the socket of gpumem-web.
absl::Status Run(const WebCommand& command, const GlobalOptions& options);

// Without a daemon.
absl::Status Run(const TraceShowCommand& command, const GlobalOptions& options);
absl::Status Run(const CompletionCommand& command, const GlobalOptions& options);
absl::Status Run(const VersionCommand& command, const GlobalOptions& options);

// As a worker: requires no privilege.
absl::Status Run(const DevicesCommand& command, const GlobalOptions& options);
absl::Status Run(const WhoamiCommand& command, const GlobalOptions& options);
absl::Status Run(const HoldCommand& command, const GlobalOptions& options);
absl::Status Run(const RunCommand& command, const GlobalOptions& options);
absl::Status Run(const PublicationsCommand& command, const GlobalOptions& options);
absl::Status Run(const PublishCommand& command, const GlobalOptions& options);
absl::Status Run(const FetchCommand& command, const GlobalOptions& options);
absl::Status Run(const VerifyCommand& command, const GlobalOptions& options);

// As a worker; through the admin socket if the name contains a tenant.
absl::Status Run(const UnpublishCommand& command, const GlobalOptions& options);
absl::Status RunUnpublishOf(const UnpublishCommand& command, const GlobalOptions& options);
absl::Status Run(const UsageCommand& command, const GlobalOptions& options);
absl::Status Run(const QuotaGetCommand& command, const GlobalOptions& options);
absl::Status RunQuotaOf(const std::string& tenant, const GlobalOptions& options);

}  // namespace gpumem::cli
