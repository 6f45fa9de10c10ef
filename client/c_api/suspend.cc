// SPDX-License-Identifier: Apache-2.0
// Suspended segments and pools, and demoted segments: gpumem_client_suspend, gpumem_pool_suspend,
// gpumem_client_demote, and so on.
#include "gpumem/suspend.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/demote.h"
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

// Calls the program's function and converts its status. `name`: of the function.
absl::Status CallProgram(int (*function)(void*), void* context, const char* name) {
  const int code = function(context);
  if (code == GPUMEM_OK) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrCat("the program's ", name, " function returned ", code));
}

// Returns the options of a Suspend. Their quiesce refers to `c`.
gpumem::SuspendOptions ToSuspend(const gpumem_suspend_options& c) {
  gpumem::SuspendOptions options{.timeout = Timeout(c.timeout_ms)};
  if (c.quiesce != nullptr)
    options.quiesce = [&c] { return CallProgram(c.quiesce, c.context, "quiesce"); };
  return options;
}

gpumem::ResumeOptions ToResume(const gpumem_resume_options& c) {
  gpumem::ResumeOptions options{.wait = Time(c.wait_ms), .timeout = Timeout(c.timeout_ms)};
  if (c.cancel != nullptr) options.cancel = c.cancel->token;
  return options;
}

// Returns the options of a Demote. Their functions refer to `c`.
gpumem::DemoteOptions ToDemote(const gpumem_demote_options& c) {
  gpumem::DemoteOptions options{.wait = Time(c.wait_ms), .timeout = Timeout(c.timeout_ms)};
  if (c.pause != nullptr) {
    options.pause = [&c] { return CallProgram(c.pause, c.context, "pause"); };
  }
  if (c.proceed != nullptr) options.proceed = [&c] { c.proceed(c.context); };
  if (c.longest_pause_ms != 0) options.longest_pause = Time(c.longest_pause_ms);
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

int gpumem_client_demote(gpumem_client* client, gpumem_segment* const* segments, size_t count,
                         const gpumem_demote_options* options) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client)) return NullError("client");
    auto list = ToSegments(segments, count);
    if (!list.ok()) return list.status();
    auto c = Read(options);
    if (!c.ok()) return c.status();
    return client->client->Demote(*list, ToDemote(*c));
  });
}

int gpumem_client_promote(gpumem_client* client, gpumem_segment* const* segments, size_t count,
                          const gpumem_demote_options* options) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client)) return NullError("client");
    auto list = ToSegments(segments, count);
    if (!list.ok()) return list.status();
    auto c = Read(options);
    if (!c.ok()) return c.status();
    return client->client->Promote(*list, ToDemote(*c));
  });
}

int gpumem_segment_is_demoted(const gpumem_segment* segment, int* demoted) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment, demoted)) return NullError("segment or demoted");
    *demoted = segment->segment.demoted() ? 1 : 0;
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
