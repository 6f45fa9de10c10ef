// SPDX-License-Identifier: Apache-2.0
// Segments and events: gpumem_client_acquire…, _open…, _create_event, gpumem_segment_…,
// gpumem_event_….
#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/client.h"
#include "gpumem/gpumem.h"

using gpumem::c_api::AnyNull;
using gpumem::c_api::Call;
using gpumem::c_api::InfoOf;
using gpumem::c_api::NullError;
using gpumem::c_api::Read;
using gpumem::c_api::Text;
using gpumem::c_api::Texts;
using gpumem::c_api::Time;
using gpumem::c_api::Timeout;
using gpumem::c_api::ToKind;
using gpumem::c_api::ToOptions;
using gpumem::c_api::Write;

namespace {

static_assert(GPUMEM_SCOPE_TENANT == static_cast<int>(gpumem::TicketScope::kTenant));
static_assert(GPUMEM_SCOPE_ANY == static_cast<int>(gpumem::TicketScope::kAny));
static_assert(sizeof(gpumem_handle) == std::tuple_size_v<gpumem::Handle>);

absl::StatusOr<gpumem::AcquireOptions> ToAcquireOptions(const gpumem_acquire_options* from) {
  auto c = Read(from);
  if (!c.ok()) return c.status();
  auto kind = ToKind(c->kind);
  if (!kind.ok()) return kind.status();
  auto map_devices = Texts(c->map_devices, c->map_device_count);
  if (!map_devices.ok()) return map_devices.status();
  gpumem::AcquireOptions options{.bytes = c->bytes,
                                 .device = Text(c->device),
                                 .kind = *kind,
                                 .map_devices = *std::move(map_devices),
                                 .address = c->address,
                                 .presses_others = c->without_pressure == 0,
                                 .wait = Time(c->wait_ms),
                                 .revocable = c->revocable != 0,
                                 .timeout = Timeout(c->timeout_ms),
                                 .tag = Text(c->tag),
                                 .scratch = c->scratch != 0};
  if (c->cancel != nullptr) options.cancel = c->cancel->token;
  return options;
}

// Returns the first `count` of them, all or none; the others are destroyed.
template <typename Handle, typename Object>
absl::Status HandOut(absl::StatusOr<std::vector<Object>> objects, size_t count, Handle** to) {
  if (!objects.ok()) return objects.status();
  std::vector<std::unique_ptr<Handle>> made;
  for (size_t i = 0; i < count && i < objects->size(); ++i) {
    made.emplace_back(new Handle{std::move((*objects)[i])});
  }
  for (std::unique_ptr<Handle>& handle : made) *to++ = handle.release();
  return absl::OkStatus();
}

absl::Status Give(const absl::StatusOr<gpumem::Handle>& handle, gpumem_handle* to) {
  if (!handle.ok()) return handle.status();
  std::memcpy(to->bytes, handle->data(), handle->size());
  return absl::OkStatus();
}

absl::Status Give(const absl::StatusOr<int>& fd, int* to) {
  if (!fd.ok()) return fd.status();
  *to = *fd;
  return absl::OkStatus();
}

absl::Status Give(absl::StatusOr<gpumem::Event> event, gpumem_event** to) {
  if (!event.ok()) return event.status();
  *to = new gpumem_event{*std::move(event)};
  return absl::OkStatus();
}

}  // namespace

extern "C" {

int gpumem_cancel_token_create(gpumem_cancel_token** token) {
  return Call([&]() -> absl::Status {
    if (AnyNull(token)) return NullError("token");
    *token = new gpumem_cancel_token;
    return absl::OkStatus();
  });
}

int gpumem_cancel_token_cancel(gpumem_cancel_token* token) {
  return Call([&]() -> absl::Status {
    if (AnyNull(token)) return NullError("token");
    token->token.Cancel();
    return absl::OkStatus();
  });
}

int gpumem_cancel_token_is_cancelled(const gpumem_cancel_token* token, int* cancelled) {
  return Call([&]() -> absl::Status {
    if (AnyNull(token, cancelled)) return NullError("token or cancelled");
    *cancelled = token->token.cancelled();
    return absl::OkStatus();
  });
}

int gpumem_cancel_token_destroy(gpumem_cancel_token* token) {
  return Call([&] {
    delete token;
    return absl::OkStatus();
  });
}

int gpumem_client_acquire(gpumem_client* client, const gpumem_acquire_options* options,
                          gpumem_segment** segment) {
  return gpumem_client_acquire_many(client, options, 1, segment);
}

int gpumem_client_acquire_many(gpumem_client* client, const gpumem_acquire_options* options,
                               size_t count, gpumem_segment** segments) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, segments)) return NullError("client or segments");
    auto acquire = ToAcquireOptions(options);
    if (!acquire.ok()) return acquire.status();
    const int many = static_cast<int>(std::min<size_t>(count, INT_MAX));
    return HandOut(client->client->AcquireMany(*acquire, many), count, segments);
  });
}

int gpumem_client_open(gpumem_client* client, const char* ticket,
                       const gpumem_open_options* options, gpumem_segment** segment) {
  return gpumem_client_open_many(client, &ticket, 1, options, segment);
}

int gpumem_client_open_many(gpumem_client* client, const char* const* tickets, size_t count,
                            const gpumem_open_options* options, gpumem_segment** segments) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, segments)) return NullError("client or segments");
    auto open = ToOptions(options);
    if (!open.ok()) return open.status();
    auto texts = Texts(tickets, count);
    if (!texts.ok()) return texts.status();
    return HandOut(client->client->OpenMany(*texts, *open), count, segments);
  });
}

int gpumem_segment_release(gpumem_segment* segment) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment)) return absl::OkStatus();
    const std::unique_ptr<gpumem_segment> owned(segment);
    return owned->segment.Release();
  });
}

int gpumem_segment_release_async(gpumem_segment* segment) {
  return Call([&]() -> absl::Status {
    delete segment;
    return absl::OkStatus();
  });
}

int gpumem_segment_get_info(const gpumem_segment* segment, gpumem_segment_info* info) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment)) return NullError("segment");
    return Write(InfoOf(segment->segment), info);
  });
}

int gpumem_segment_share(gpumem_segment* segment, int32_t scope, const char** ticket) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment, ticket)) return NullError("segment or ticket");
    if (scope != GPUMEM_SCOPE_TENANT && scope != GPUMEM_SCOPE_ANY) {
      return absl::InvalidArgumentError(absl::StrCat("there is no ticket scope ", scope));
    }
    auto shared = segment->segment.Share(static_cast<gpumem::TicketScope>(scope));
    if (!shared.ok()) return shared.status();
    // A lease has one ticket for each scope: text returned earlier stays valid.
    std::string& kept = segment->tickets[static_cast<size_t>(scope)];
    if (kept != shared->value) kept = std::move(shared->value);
    *ticket = kept.c_str();
    return absl::OkStatus();
  });
}

int gpumem_segment_get_ipc_handle(const gpumem_segment* segment, gpumem_handle* handle) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment, handle)) return NullError("segment or handle");
    return Give(segment->segment.ipc_handle(), handle);
  });
}

int gpumem_segment_get_export_data(const gpumem_segment* segment, gpumem_handle* data) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment, data)) return NullError("segment or data");
    return Give(segment->segment.export_data(), data);
  });
}

int gpumem_segment_get_pool_fd(const gpumem_segment* segment, int* fd) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment, fd)) return NullError("segment or fd");
    return Give(segment->segment.pool_fd(), fd);
  });
}

int gpumem_segment_get_fd(gpumem_segment* segment, int* fd) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment, fd)) return NullError("segment or fd");
    return Give(segment->segment.fd(), fd);
  });
}

int gpumem_client_create_event(gpumem_client* client, const gpumem_event_options* options,
                               gpumem_event** event) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, event)) return NullError("client or event");
    auto c = Read(options);
    if (!c.ok()) return c.status();
    return Give(client->client->CreateEvent(
                    {.name = Text(c->name),
                     .segment = c->segment == nullptr ? nullptr : &c->segment->segment,
                     .device = Text(c->device)}),
                event);
  });
}

int gpumem_client_open_event(gpumem_client* client, const char* name, gpumem_event** event) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, name, event)) return NullError("client, name or event");
    return Give(client->client->OpenEvent(name), event);
  });
}

int gpumem_client_open_events(gpumem_client* client, const gpumem_segment* segment,
                              gpumem_event** events, size_t capacity, size_t* count) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, segment, count)) return NullError("client, segment or count");
    if (capacity > 0 && AnyNull(events)) return NullError("events");
    auto opened = client->client->OpenEvents(segment->segment);
    const size_t how_many = opened.ok() ? opened->size() : 0;
    absl::Status status = HandOut(std::move(opened), capacity, events);
    if (status.ok()) *count = how_many;
    return status;
  });
}

int gpumem_event_record(gpumem_event* event, void* stream) {
  return Call([&] { return AnyNull(event) ? NullError("event") : event->event.Record(stream); });
}

int gpumem_event_wait(gpumem_event* event, void* stream) {
  return Call([&] { return AnyNull(event) ? NullError("event") : event->event.Wait(stream); });
}

int gpumem_event_synchronize(gpumem_event* event) {
  return Call([&] { return AnyNull(event) ? NullError("event") : event->event.Synchronize(); });
}

int gpumem_event_is_done(const gpumem_event* event, int* done) {
  return Call([&]() -> absl::Status {
    if (AnyNull(event, done)) return NullError("event or done");
    auto is_done = event->event.Done();
    if (is_done.ok()) *done = *is_done;
    return is_done.status();
  });
}

int gpumem_event_get_handle(const gpumem_event* event, gpumem_handle* handle) {
  return Call([&]() -> absl::Status {
    if (AnyNull(event, handle)) return NullError("event or handle");
    return Give(event->event.handle(), handle);
  });
}

int gpumem_event_get_cuda_event(const gpumem_event* event, void** cuda_event) {
  return Call([&]() -> absl::Status {
    if (AnyNull(event, cuda_event)) return NullError("event or cuda_event");
    *cuda_event = event->event.event();
    return absl::OkStatus();
  });
}

int gpumem_event_destroy(gpumem_event* event) {
  return Call([&] {
    delete event;
    return absl::OkStatus();
  });
}

}  // extern "C"
