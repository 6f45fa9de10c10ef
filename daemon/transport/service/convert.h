// SPDX-License-Identifier: Apache-2.0
// Converts the ledger's values to the protocol's, and a few back.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/kind_proto.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/quota_proto.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumemd {

gpumem::v1::Backend ToProto(Backend backend);
gpumem::v1::Device ToProto(const BrokerViews::DeviceView& device);
gpumem::v1::Lease ToProto(const LeaseView& lease);
gpumem::v1::Usage ToProto(const TenantView& tenant);
gpumem::v1::MadeTenant ToProto(const MadeView& made);
gpumem::v1::EndTenantResponse ToProto(const BrokerTenants::Held& held);
gpumem::v1::GetTenantUsageResponse ToProto(const BrokerTenants::Uses& uses);
gpumem::v1::SessionInfo ToProto(const SessionView& session);
gpumem::v1::SegmentInfo ToProto(const SegmentView& segment);
gpumem::v1::ListHoldersResponse ToProto(const HoldersView& holders);
gpumem::v1::WaitingInfo ToProto(const WaiterView& waiter);
gpumem::v1::IpcEvent ToProto(const IpcEventView& event);
gpumem::v1::PoolInfo ToProto(const BrokerOperators::PoolView& pool);
// If `foreign`, omits fields reserved for its tenant and operators.
gpumem::v1::PublicationInfo ToProto(const PublicationView& publication, bool foreign = false);

//   INVALID_ARGUMENT  there is no such access
absl::StatusOr<PublishSpec> FromProto(const gpumem::v1::PublishRequest& request);

// Returns milliseconds as a duration; longer than a human era becomes infinite.
absl::Duration FromMilliseconds(uint64_t ms);

//   INVALID_ARGUMENT  nothing is to be changed
absl::StatusOr<PoolChange> FromProto(const gpumem::v1::SetPoolRequest& request);

}  // namespace gpumemd
