// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/events/interprocess_event.h"
#include "client/mapping/kind.h"
#include "client/mapping/placement.h"
#include "client/mapping/segment_state.h"
#include "client/mapping/visible_devices.h"
#include "client/session/abandon.h"
#include "client/session/session.h"
#include "client/session/ticket.h"
#include "gpumem/client.h"

namespace gpumem {

struct Event::State {
  State(std::shared_ptr<internal::Session> its_session,
        std::shared_ptr<internal::InterprocessEvent> its_event)
      : session(std::move(its_session)), event(std::move(its_event)) {}
  ~State();

  // Call if other processes may have the event.
  void KeepForOthers() {
    if (event->needs_its_maker()) session->Keep(std::move(event));
  }

  const std::shared_ptr<internal::Session> session;
  std::shared_ptr<internal::InterprocessEvent> event;
  std::optional<uint64_t> id;  // set if this process registered it with the daemon
};

Event::State::~State() {
  if (session->forked()) {
    internal::Abandon(std::move(event));
    return;
  }
  if (!id.has_value()) return;
  absl::StatusOr<v1::UnregisterIpcEventResponse> response = session->UnregisterIpcEvent(*id);
  // Without an answer, another process may have it.
  if (!response.ok() || response->handed_out()) KeepForOthers();
}

namespace {

using internal::InterprocessEvent;

absl::Status NoEvent() {
  return absl::FailedPreconditionError("this Event is empty: it was moved from, or never created");
}

absl::Status NotOurs() {
  return absl::InvalidArgumentError(
      "an event needs a segment that this Client has acquired or opened, and not released");
}

absl::StatusOr<Handle> ToHandle(const std::string& bytes) {
  Handle handle;
  if (bytes.size() != handle.size()) {
    return absl::InternalError(absl::StrCat("the daemon sent an event handle of ", bytes.size(),
                                            " bytes; this is a defect of gpumem"));
  }
  std::copy(bytes.begin(), bytes.end(), handle.begin());
  return handle;
}

using internal::IsGpu;

bool Makes(const v1::Device& device, v1::Kind kind) {
  return std::find(device.kinds().begin(), device.kinds().end(), kind) != device.kinds().end();
}

// Returns the default device of an event: the segment's, if it supports events and this process
// sees it; else the first GPU that this process sees.
absl::StatusOr<std::string> DefaultDevice(const v1::Welcome& welcome, const Segment* segment) {
  if (!internal::HasGpus(welcome)) {
    for (const v1::Device& device : welcome.devices()) {
      const bool beside = segment == nullptr || internal::TraitsOf(segment->kind()).host_memory ||
                          segment->device_uuid() == device.device_uuid();
      if (beside && Makes(device, v1::KIND_VMM)) return device.device_uuid();
    }
    return absl::UnimplementedError("the daemon has no device that supports events");
  }
  if (segment != nullptr && segment->backend() == Backend::kCuda &&
      internal::CheckVisible(segment->device_uuid()).ok()) {
    return segment->device_uuid();
  }
  absl::StatusOr<std::vector<std::string>> visible =
      internal::VisibleMakers(welcome, Kind::kDefault);
  if (!visible.ok()) return visible.status();
  return visible->front();
}

// Converts to a request's error: the daemon itself runs.
absl::Status RequestError(const absl::Status& status) {
  return absl::IsUnavailable(status) ? absl::UnimplementedError(status.message()) : status;
}

absl::StatusOr<std::shared_ptr<InterprocessEvent>> MakeHostEvent(Client& client,
                                                                 const std::string& device_uuid,
                                                                 TicketScope scope) {
  absl::StatusOr<Segment> memory =
      client.Acquire({.bytes = 1, .device = device_uuid, .kind = Kind::kVmm});
  if (!memory.ok()) return memory.status();
  absl::StatusOr<Ticket> ticket = memory->Share(scope);
  if (!ticket.ok()) return ticket.status();
  absl::StatusOr<std::string> bytes = internal::ParseTicket(ticket->value);
  if (!bytes.ok()) return bytes.status();
  return internal::MakeHostEvent(*std::move(memory), *bytes);
}

// The handles of the CUDA events that any Client of this process created.
struct MadeHere {
  absl::Mutex mutex;
  std::set<Handle> handles ABSL_GUARDED_BY(mutex);
};

MadeHere& AllMadeHere() {
  static auto* const all = new MadeHere;
  return *all;
}

// Records a CUDA event's handle as long as the event lives.
std::shared_ptr<InterprocessEvent> Remembered(std::shared_ptr<InterprocessEvent> event) {
  struct Memory {
    explicit Memory(std::shared_ptr<InterprocessEvent> of) : event(std::move(of)) {
      MadeHere& all = AllMadeHere();
      absl::MutexLock lock(&all.mutex);
      all.handles.insert(event->handle());
    }
    ~Memory() {
      MadeHere& all = AllMadeHere();
      absl::MutexLock lock(&all.mutex);
      all.handles.erase(event->handle());
    }
    const std::shared_ptr<InterprocessEvent> event;
  };
  auto memory = std::make_shared<Memory>(std::move(event));
  InterprocessEvent* const it = memory->event.get();
  return {std::move(memory), it};
}

bool IsMadeHere(const v1::IpcEvent& event) {
  const absl::StatusOr<Handle> handle = ToHandle(event.handle());
  if (!handle.ok()) return false;
  MadeHere& all = AllMadeHere();
  absl::MutexLock lock(&all.mutex);
  return all.handles.contains(*handle);
}

absl::StatusOr<std::shared_ptr<InterprocessEvent>> MakeEvent(Client& client,
                                                             const v1::Welcome& welcome,
                                                             const std::string& device_uuid,
                                                             TicketScope scope) {
  if (!IsGpu(welcome, device_uuid)) return MakeHostEvent(client, device_uuid, scope);
  absl::StatusOr<std::shared_ptr<InterprocessEvent>> event = internal::MakeCudaEvent(device_uuid);
  if (!event.ok()) return event.status();
  return Remembered(*std::move(event));
}

absl::StatusOr<std::shared_ptr<InterprocessEvent>> OpenShared(Client& client,
                                                              const v1::Welcome& welcome,
                                                              const v1::IpcEvent& event) {
  absl::StatusOr<Handle> handle = ToHandle(event.handle());
  if (!handle.ok()) return handle.status();
  if (IsGpu(welcome, event.device_uuid())) {
    auto opened = internal::OpenCudaEvent(event.device_uuid(), *handle);
    if (!opened.ok()) return RequestError(opened.status());
    return opened;
  }
  absl::StatusOr<std::string> ticket = internal::HostEventTicket(*handle);
  if (!ticket.ok()) return absl::InternalError(ticket.status().message());
  absl::StatusOr<Segment> memory = client.Open(internal::FormatTicket(*ticket));
  if (!memory.ok()) return memory.status();
  return internal::MakeHostEvent(*std::move(memory), *ticket);
}

}  // namespace

Event::Event() = default;
Event::Event(std::unique_ptr<State> state) : state_(std::move(state)) {}
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;
Event::~Event() = default;

absl::Status Event::Record(void* stream) {
  if (!valid()) return NoEvent();
  if (absl::Status status = state_->session->CheckProcess(); !status.ok()) return status;
  return state_->event->Record(stream);
}

absl::Status Event::Wait(void* stream) {
  if (!valid()) return NoEvent();
  if (absl::Status status = state_->session->CheckProcess(); !status.ok()) return status;
  return state_->event->Wait(stream);
}

absl::Status Event::Synchronize() {
  if (!valid()) return NoEvent();
  if (absl::Status status = state_->session->CheckProcess(); !status.ok()) return status;
  return state_->event->Synchronize();
}

absl::StatusOr<bool> Event::Done() const {
  if (!valid()) return NoEvent();
  if (absl::Status status = state_->session->CheckProcess(); !status.ok()) return status;
  return state_->event->Done();
}

const Handle& Event::handle() const {
  static const Handle none = {};
  return valid() ? state_->event->handle() : none;
}

void* Event::event() const { return valid() ? state_->event->event() : nullptr; }

absl::StatusOr<Event> Client::CreateEvent(const EventOptions& options) {
  if (options.name.empty() == (options.segment == nullptr)) {
    return absl::InvalidArgumentError(
        "an event needs a name or a segment: set one of the two in EventOptions");
  }
  if (absl::Status status = session_->CheckProcess(); !status.ok()) return status;
  v1::RegisterIpcEventRequest request;
  if (options.segment == nullptr) {
    request.set_name(options.name);
  } else if (options.segment->valid() && options.segment->state_->session == session_) {
    request.set_lease_id(options.segment->lease_id());
  } else {
    return NotOurs();
  }
  const v1::Welcome& welcome = session_->welcome();
  absl::StatusOr<std::string> uuid = options.device.empty()
                                         ? DefaultDevice(welcome, options.segment)
                                         : internal::DeviceUuid(welcome, options.device);
  if (!uuid.ok()) return RequestError(uuid.status());
  const TicketScope scope = options.segment == nullptr ? TicketScope::kTenant : TicketScope::kAny;
  absl::StatusOr<std::shared_ptr<InterprocessEvent>> event =
      MakeEvent(*this, welcome, *uuid, scope);
  if (!event.ok()) return RequestError(event.status());
  auto state = std::make_unique<Event::State>(session_, *std::move(event));
  request.set_device_uuid(*uuid);
  const Handle& handle = state->event->handle();
  request.set_handle(std::string(handle.begin(), handle.end()));
  request.set_request_id(session_->NewRequestId());
  absl::StatusOr<v1::RegisterIpcEventResponse> response =
      session_->RegisterIpcEvent(request, session_->Deadline(std::nullopt));
  if (absl::IsDeadlineExceeded(response.status()) || absl::IsUnavailable(response.status())) {
    state->KeepForOthers();  // the daemon may have registered it
  }
  if (!response.ok()) return response.status();
  state->id = response->event_id();
  return Event(std::move(state));
}

absl::StatusOr<Event> Client::OpenEvent(absl::string_view name) {
  v1::GetIpcEventsRequest request;
  request.set_name(std::string(name));
  absl::StatusOr<v1::GetIpcEventsResponse> response =
      session_->GetIpcEvents(request, session_->Deadline(std::nullopt));
  if (!response.ok()) return response.status();
  if (response->events_size() != 1) {
    return absl::InternalError(absl::StrCat("the daemon found ", response->events_size(),
                                            " events of one name; this is a defect of gpumem"));
  }
  if (response->events(0).session_id() == session_id() || IsMadeHere(response->events(0))) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this process created the event ", name,
        ": CUDA opens an event only in other processes; use the Event that CreateEvent returned"));
  }
  absl::StatusOr<std::shared_ptr<InterprocessEvent>> event =
      OpenShared(*this, session_->welcome(), response->events(0));
  if (!event.ok()) return event.status();
  return Event(std::make_unique<Event::State>(session_, *std::move(event)));
}

absl::StatusOr<std::vector<Event>> Client::OpenEvents(const Segment& segment) {
  if (absl::Status status = session_->CheckProcess(); !status.ok()) return status;
  if (!segment.valid() || segment.state_->session != session_) return NotOurs();
  v1::GetIpcEventsRequest request;
  request.set_lease_id(segment.lease_id());
  absl::StatusOr<v1::GetIpcEventsResponse> response =
      session_->GetIpcEvents(request, session_->Deadline(std::nullopt));
  if (!response.ok()) return response.status();
  std::vector<Event> events;
  absl::Status first_error;
  for (const v1::IpcEvent& event : response->events()) {
    if (event.session_id() == session_id() || IsMadeHere(event)) continue;
    absl::StatusOr<std::shared_ptr<InterprocessEvent>> opened =
        OpenShared(*this, session_->welcome(), event);
    first_error.Update(opened.status());
    if (!opened.ok()) continue;  // any session that leases the segment can register an invalid one
    events.push_back(Event(std::make_unique<Event::State>(session_, *std::move(opened))));
  }
  if (!events.empty()) return events;
  if (!first_error.ok()) return first_error;
  return absl::NotFoundError(
      absl::StrCat("no other process has created an event for segment ", segment.segment_id()));
}

}  // namespace gpumem
