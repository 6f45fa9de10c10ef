// What gpumemctl prints for people. Pure: answers of the daemon in, text out.
// A trailing '*' marks what operators set, over what the configuration says. Sizes are exact bytes
// where `exact`. Empty lists say so in words.
#pragma once

#include <string>
#include <vector>

#include "client/cli/connection.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::cli {

using PoolList = std::vector<v1::PoolInfo>;

std::string StatusView(const v1::GetStatusResponse& status, bool exact);
// With the peer matrix below, where there are several GPUs.
std::string DevicesView(const DeviceList& devices, bool exact);
std::string SessionsView(const v1::ListSessionsResponse& response, bool exact);
// Who waits for memory, and for what; empty where nobody does.
std::string WaitingView(const v1::ListWaitingResponse& response, const DeviceList& devices,
                        bool exact);
std::string SegmentsView(const v1::ListSegmentsResponse& response, const DeviceList& devices,
                         bool exact);
std::string PublicationsView(const v1::ListPublicationsResponse& response, bool exact);
std::string UnpublishedView(const std::string& name, const v1::UnpublishResponse& response);
std::string PoolsView(const PoolList& pools, const DeviceList& devices, bool exact);
std::string TenantsView(const v1::ListTenantsResponse& response, bool exact);
std::string QuotaView(const v1::GetQuotaResponse& response, const DeviceList& devices, bool exact);
std::string ReloadView(const v1::ReloadResponse& response);

// Whom the daemon takes the caller for, and why; `daemon` says which one.
std::string WhoAmIView(const v1::WhoAmIResponse& response, const std::string& daemon);

// One look of `top`: the tenants and sessions that hold most come first.
std::string TopView(const v1::GetStatusResponse& status, v1::ListTenantsResponse tenants,
                    v1::ListSessionsResponse sessions, bool exact);

}  // namespace gpumem::cli
