// SPDX-License-Identifier: Apache-2.0
// gpumemctl's output for people. Pure: turns the daemon's answers into text. A trailing '*' marks
// values that operators set, over the configuration. Sizes are exact bytes if `exact`. Empty lists
// say so in words. Tables obey `layout` (table.h); without headers there are no titles and notes
// around them either.
#pragma once

#include <string>
#include <vector>

#include "client/cli/text/table.h"
#include "client/cli/views/device_list.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem::cli {

using PoolList = std::vector<v1::PoolInfo>;

std::string StatusView(const v1::GetStatusResponse& status, bool exact, Layout layout = {});
// With the peer matrix below, if there are several GPUs.
std::string DevicesView(const DeviceList& devices, bool exact, Layout layout = {});
std::string SessionsView(const v1::ListSessionsResponse& response, bool exact, Layout layout = {});
// Lists the requests that wait for memory, and their causes; empty if there are none.
std::string WaitingView(const v1::ListWaitingResponse& response, const DeviceList& devices,
                        bool exact, Layout layout = {});
// Returns the obstacle of a waiting request: "memory of serving (6.00 GiB)".
std::string WaitsFor(const v1::Denial& denial, bool exact);
std::string SegmentsView(const v1::ListSegmentsResponse& response, const DeviceList& devices,
                         bool exact, Layout layout = {});
std::string StateWord(v1::SegmentInfo::State state);
std::string PublicationsView(const v1::ListPublicationsResponse& response, bool exact,
                             Layout layout = {});
std::string UnpublishedView(const std::string& name, const v1::UnpublishResponse& response);
std::string PoolsView(const PoolList& pools, const DeviceList& devices, bool exact,
                      Layout layout = {});
std::string TenantsView(const v1::ListTenantsResponse& response, bool exact, Layout layout = {});
// Of tenants that were made at run time alone.
std::string MadeTenantsView(const v1::ListTenantsResponse& response, bool exact,
                            Layout layout = {});
std::string EndedTenantView(const std::string& tenant, const v1::EndTenantResponse& held,
                            bool exact);
// Returns the maker of a tenant in a few words: "slurm", "operator", "session 12", or "uid 1000" if
// it outlives the session.
std::string MakerOf(const v1::MadeTenant& made);
std::string QuotaView(const v1::GetQuotaResponse& response, const DeviceList& devices, bool exact,
                      Layout layout = {});
// What a tenant has used, once for each time that it was made.
std::string UsageView(const v1::GetTenantUsageResponse& response, const DeviceList& devices,
                      bool exact, Layout layout = {});
std::string ReloadView(const v1::ReloadResponse& response);

// Describes the identity that the daemon assigns to the caller, and why; `daemon` names the daemon.
std::string WhoAmIView(const v1::WhoAmIResponse& response, const std::string& daemon);

}  // namespace gpumem::cli
