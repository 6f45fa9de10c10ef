// SPDX-License-Identifier: Apache-2.0
// Steps of publishers and attachers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

// Publishes mostly segments that the session may publish; now and then others.
absl::Status Publish(Course& course);
absl::Status Publish(Course& course, SessionId session, const PublishSpec& spec);

// Attaches, within a call as every request.
absl::Status Attach(Course& course);
absl::Status Attach(Course& course, SessionId session, const AttachSpec& spec);
absl::Status EndAttachWait(Course& course);
absl::Status Unpublish(Course& course);
absl::Status Unpublish(Course& course, std::optional<SessionId> session, const std::string& name,
                       uint64_t request);
absl::Status UnpublishAll(Course& course);
absl::Status ExpirePublications(Course& course);

}  // namespace gpumemd::steps
