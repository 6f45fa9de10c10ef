// SPDX-License-Identifier: Apache-2.0
// Suspended segments and pools, and demoted segments: gpumem_client_suspend, gpumem_pool_suspend,
// gpumem_client_demote, and so on.
#include "gpumem/suspend.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
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
using gpumem::c_api::OfProgram;
using gpumem::c_api::Read;
using gpumem::c_api::Time;
using gpumem::c_api::Timeout;
using gpumem::c_api::ToMilliseconds;

namespace {

static_assert(GPUMEM_SUSPENSION_OPERATOR == static_cast<int>(gpumem::SuspensionCause::kOperator));
static_assert(GPUMEM_SUSPENSION_MEMORY_NEEDED ==
              static_cast<int>(gpumem::SuspensionCause::kMemoryNeeded));
static_assert(GPUMEM_SUSPENSION_IDLE == static_cast<int>(gpumem::SuspensionCause::kIdle));

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

// Returns an empty function for null.
std::function<absl::Status()> ToQuiesce(int (*quiesce)(void*), void* context) {
  if (quiesce == nullptr) return nullptr;
  return [quiesce, context] { return OfProgram(quiesce(context), "quiesce"); };
}

gpumem::SuspendOptions ToSuspend(const gpumem_suspend_options& c) {
  return {.quiesce = ToQuiesce(c.quiesce, c.context), .timeout = Timeout(c.timeout_ms)};
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
    options.pause = [&c] { return OfProgram(c.pause(c.context), "pause"); };
  }
  if (c.proceed != nullptr) options.proceed = [&c] { c.proceed(c.context); };
  if (c.longest_pause_ms != 0) options.longest_pause = Time(c.longest_pause_ms);
  if (c.cancel != nullptr) options.cancel = c.cancel->token;
  return options;
}

gpumem::Segment* ToCpp(gpumem_segment* segment) { return &segment->segment; }
gpumem::Pool* ToCpp(gpumem_pool* pool) { return pool->pool.get(); }

// Returns a function that returns the program's segments, or pools. A null one becomes null, which
// the library refuses. Empty for null.
template <typename Cpp, typename C>
std::function<std::vector<Cpp*>()> ToOffer(size_t (*offer)(void*, C* const**), void* context) {
  if (offer == nullptr) return nullptr;
  return [offer, context] {
    C* const* offered = nullptr;
    const size_t count = offer(context, &offered);
    std::vector<Cpp*> list;
    for (size_t i = 0; offered != nullptr && i < count; ++i) {
      list.push_back(offered[i] == nullptr ? nullptr : ToCpp(offered[i]));
    }
    return list;
  };
}

// Returns a function that tells the program a status. Empty for null.
std::function<void(const absl::Status&)> ToTell(void (*tell)(void*, int, const char*),
                                                void* context) {
  if (tell == nullptr) return nullptr;
  return [tell, context](const absl::Status& status) {
    tell(context, static_cast<int>(status.code()), std::string(status.message()).c_str());
  };
}

// Returns a function that calls the program's. Empty for null.
std::function<void()> ToCall(void (*call)(void*), void* context) {
  if (call == nullptr) return nullptr;
  return [call, context] { call(context); };
}

//   INVALID_ARGUMENT  `swappable` is not in enum gpumem_swappable
absl::StatusOr<gpumem::SuspensionHandlers> ToSuspensionHandlers(
    const gpumem_suspension_handlers& c) {
  if (c.swappable < GPUMEM_SWAPPABLE_BY_QUOTA || c.swappable > GPUMEM_SWAPPABLE_ALWAYS) {
    return absl::InvalidArgumentError(absl::StrCat("there is no gpumem_swappable ", c.swappable));
  }
  gpumem::SuspensionHandlers handlers = {.quiesce = ToQuiesce(c.quiesce, c.context),
                                         .resumed = ToCall(c.resumed, c.context),
                                         .failed = ToTell(c.failed, c.context),
                                         .done = ToCall(c.done, c.context),
                                         .ended = ToTell(c.ended, c.context)};
  handlers.segments = ToOffer<gpumem::Segment>(c.segments, c.context);
  handlers.pools = ToOffer<gpumem::Pool>(c.pools, c.context);
  handlers.demotable = ToOffer<gpumem::Segment>(c.demotable, c.context);
  if (c.pause != nullptr) {
    handlers.pause = [c] { return OfProgram(c.pause(c.context), "pause"); };
  }
  handlers.proceed = ToCall(c.proceed, c.context);
  if (c.suspended != nullptr) {
    handlers.suspended = [c](gpumem::SuspensionCause cause) {
      c.suspended(c.context, static_cast<int>(cause));
    };
  }
  if (c.serve != nullptr) {
    handlers.serve = [c](const gpumem::SuspensionRequest& request) {
      const gpumem_suspension_request asked = {
          .struct_size = sizeof(asked),
          .resume = request.resume ? 1 : 0,
          .cause = static_cast<int32_t>(request.cause),
          .tag = request.tag.c_str(),
          .left_ms = std::max<uint64_t>(ToMilliseconds(request.left), 1)};
      c.serve(c.context, &asked);
    };
  }
  if (c.swappable != GPUMEM_SWAPPABLE_BY_QUOTA) {
    handlers.swappable = c.swappable == GPUMEM_SWAPPABLE_ALWAYS;
  }
  return handlers;
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

int gpumem_client_serve_suspensions(gpumem_client* client,
                                    const gpumem_suspension_handlers* handlers,
                                    gpumem_watch** watch) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, watch)) return NullError("client or watch");
    auto c = Read(handlers);
    if (!c.ok()) return c.status();
    auto given = ToSuspensionHandlers(*c);
    if (!given.ok()) return given.status();
    auto made = std::make_unique<gpumem_watch>();
    auto served = client->client->ServeSuspensions(*std::move(given));
    if (!served.ok()) return served.status();
    made->watch = *std::move(served);
    *watch = made.release();
    return absl::OkStatus();
  });
}

int gpumem_client_report_activity(gpumem_client* client) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client)) return NullError("client");
    client->client->ReportActivity();
    return absl::OkStatus();
  });
}

}  // extern "C"
