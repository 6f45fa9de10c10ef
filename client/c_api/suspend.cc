// SPDX-License-Identifier: Apache-2.0
// Suspended segments: gpumem_client_suspend, _resume, gpumem_segment_is_suspended.
#include "gpumem/suspend.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/gpumem.h"

using gpumem::c_api::AnyNull;
using gpumem::c_api::Call;
using gpumem::c_api::NullError;
using gpumem::c_api::Read;
using gpumem::c_api::Time;
using gpumem::c_api::Timeout;

namespace {

//   INVALID_ARGUMENT  one of them is null
absl::StatusOr<std::vector<gpumem::Segment*>> ToSegments(gpumem_segment* const* segments,
                                                         size_t count) {
  if (segments == nullptr && count > 0) return NullError("segments");
  std::vector<gpumem::Segment*> list;
  for (size_t i = 0; i < count; ++i) {
    if (AnyNull(segments[i])) return NullError(absl::StrCat("segment ", i, " of ", count));
    list.push_back(&segments[i]->segment);
  }
  return list;
}

// Calls the program's function and converts its status.
absl::Status Quiesce(const gpumem_suspend_options& options) {
  const int code = options.quiesce(options.context);
  if (code == GPUMEM_OK) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrCat("the program's quiesce function returned ", code));
}

}  // namespace

extern "C" {

int gpumem_client_suspend(gpumem_client* client, gpumem_segment* const* segments, size_t count,
                          const gpumem_suspend_options* options) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client)) return NullError("client");
    auto list = ToSegments(segments, count);
    if (!list.ok()) return list.status();
    auto c = Read(options);
    if (!c.ok()) return c.status();
    gpumem::SuspendOptions suspend{.timeout = Timeout(c->timeout_ms)};
    if (c->quiesce != nullptr) suspend.quiesce = [&c] { return Quiesce(*c); };
    return client->client->Suspend(*list, suspend);
  });
}

int gpumem_client_resume(gpumem_client* client, gpumem_segment* const* segments, size_t count,
                         const gpumem_resume_options* options) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client)) return NullError("client");
    auto list = ToSegments(segments, count);
    if (!list.ok()) return list.status();
    auto c = Read(options);
    if (!c.ok()) return c.status();
    gpumem::ResumeOptions resume{.wait = Time(c->wait_ms), .timeout = Timeout(c->timeout_ms)};
    if (c->cancel != nullptr) resume.cancel = c->cancel->token;
    return client->client->Resume(*list, resume);
  });
}

int gpumem_segment_is_suspended(const gpumem_segment* segment, int* suspended) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment, suspended)) return NullError("segment or suspended");
    *suspended = segment->segment.suspended() ? 1 : 0;
    return absl::OkStatus();
  });
}

}  // extern "C"
