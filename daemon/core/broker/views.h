// SPDX-License-Identifier: Apache-2.0
// What operators and the metrics see of the broker. Long lists are read in parts, and the broker's
// mutex is free between them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/inspect/measures.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/quota/quota.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Thread-safe. Empty names of tenants and devices mean all of them.
class BrokerViews {
 public:
  // `broker` must outlive this.
  explicit BrokerViews(const Broker* broker) : broker_(*broker) {}

  struct DeviceView {
    uint32_t index = 0;
    DeviceInfo info;
    uint64_t charged = 0;
    uint64_t driver_free = 0;  // 0: the driver does not say, or was not asked
    pid_t context_pid = 0;     // 0: no process has a context on it for the broker
    pid_t copier_pid = 0;      // likewise, of the one that copies to and from the host tier
  };
  std::vector<DeviceView> Devices(bool ask_driver) const;
  struct Counts {
    size_t sessions = 0, tenants = 0, segments = 0;
    bool draining = false;
    HoldersShown holders_shown = HoldersShown::kOwn;  // to workers
  };
  Counts Count() const;
  // For the metrics: one moment of the ledger. Asks no driver. Holds the mutex for one pass over
  // the tenants.
  Measures Measure() const;
  absl::StatusOr<TenantView> GetTenant(absl::string_view tenant) const;
  std::vector<TenantView> ListTenants() const;
  absl::StatusOr<std::vector<SessionView>> ListSessions(absl::string_view tenant) const;
  absl::StatusOr<std::vector<SegmentView>> ListSegments(absl::string_view tenant,
                                                        absl::string_view device) const;
  HoldersView ListHolders(std::optional<SegmentId> only) const;
  absl::StatusOr<std::vector<WaiterView>> ListWaiting(absl::string_view tenant,
                                                      absl::string_view device) const;
  absl::Status CheckInvariants() const;
  absl::StatusOr<std::vector<PublicationView>> ListPublications(absl::string_view tenant) const;
  struct PublicationContents {
    PublicationView view;
    std::string metadata;
    std::vector<uint64_t> segment_bytes;
  };
  // Returns the newest version of "TENANT/NAME".
  //   NOT_FOUND, INVALID_ARGUMENT, and statuses of Metadata::Read
  absl::StatusOr<PublicationContents> GetPublication(absl::string_view full_name) const;

 private:
  const Broker& broker_;
};

inline BrokerViews Broker::views() const { return BrokerViews(this); }

}  // namespace gpumemd
