// SPDX-License-Identifier: Apache-2.0
// Suspended segments and pools: gpumem_client_suspend, gpumem_pool_suspend, and so on.
#include "gpumem/suspend.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/gpumem.h"
#include "gpumem/pool.h"

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

// Returns the options of a Suspend. Their quiesce refers to `c`.
gpumem::SuspendOptions ToSuspend(const gpumem_suspend_options& c) {
  gpumem::SuspendOptions options{.timeout = Timeout(c.timeout_ms)};
  if (c.quiesce != nullptr) options.quiesce = [&c] { return Quiesce(c); };
  return options;
}

gpumem::ResumeOptions ToResume(const gpumem_resume_options& c) {
  gpumem::ResumeOptions options{.wait = Time(c.wait_ms), .timeout = Timeout(c.timeout_ms)};
  if (c.cancel != nullptr) options.cancel = c.cancel->token;
  return options;
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
    return client->client->Suspend(*list, ToSuspend(*c));
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
    return client->client->Resume(*list, ToResume(*c));
  });
}

int gpumem_segment_is_suspended(const gpumem_segment* segment, int* suspended) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment, suspended)) return NullError("segment or suspended");
    *suspended = segment->segment.suspended() ? 1 : 0;
    return absl::OkStatus();
  });
}

int gpumem_pool_suspend(gpumem_pool* pool, const gpumem_suspend_options* options) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool)) return NullError("pool");
    auto c = Read(options);
    if (!c.ok()) return c.status();
    return pool->pool->Suspend(ToSuspend(*c));
  });
}

int gpumem_pool_resume(gpumem_pool* pool, const gpumem_resume_options* options) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool)) return NullError("pool");
    auto c = Read(options);
    if (!c.ok()) return c.status();
    return pool->pool->Resume(ToResume(*c));
  });
}

int gpumem_pool_is_suspended(const gpumem_pool* pool, int* suspended) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool, suspended)) return NullError("pool or suspended");
    *suspended = pool->pool->suspended() ? 1 : 0;
    return absl::OkStatus();
  });
}

}  // extern "C"
