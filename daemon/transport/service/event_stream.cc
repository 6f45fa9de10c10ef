// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/event_stream.h"

#include <set>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gpumemd {

namespace v1 = gpumem::v1;

namespace {

constexpr size_t kAtOnce = 256;
// Maximum delay of the end of a cancelled stream: gRPC's synchronous server reports it only when
// polled.
constexpr absl::Duration kLook = absl::Milliseconds(200);

bool IsEvent(const std::string& name) {
  for (const AuditKind& kind : AuditKinds()) {
    if (kind.name == name) return true;
  }
  return false;
}

}  // namespace

v1::EventRecord ToProto(const AuditRecord& record) {
  v1::EventRecord proto;
  proto.set_number(record.number);
  proto.set_time_unix_ns(static_cast<uint64_t>(absl::ToUnixNanos(record.time)));
  proto.set_event(std::string(NameOf(record.event)));
  proto.set_text(Tell(record));
  for (AuditField& field : FieldsOf(record)) {
    v1::EventField& out = *proto.add_fields();
    out.set_name(std::string(field.name));
    out.set_number(field.number);
    out.set_list(field.list);
    for (std::string& value : field.values) out.add_values(std::move(value));
  }
  return proto;
}

grpc::Status EventStreams::Serve(const v1::WatchEventsRequest& request,
                                 const std::function<bool()>& cancelled,
                                 const std::function<bool(const v1::EventRecord&)>& write) {
  const std::set<std::string> events(request.events().begin(), request.events().end());
  for (const std::string& name : events) {
    if (IsEvent(name)) continue;
    return {grpc::StatusCode::INVALID_ARGUMENT,
            absl::StrCat("there is no event \"", name.substr(0, 64),
                         "\" (docs/reference/audit.md lists all)")};
  }
  const absl::Cleanup leave = [this] { --streams_; };
  if (++streams_ > kMost) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat("there are ", kMost, " streams of events already; end one of them")};
  }
  const auto is_wanted = [&](const AuditRecord& record) {
    if (!events.empty() && !events.contains(std::string(NameOf(record.event)))) return false;
    return request.tenant().empty() || record.tenant == request.tenant() ||
           record.owner == request.tenant();
  };
  uint64_t next = request.past() ? 0 : ring_->next();
  uint64_t missed = 0;
  while (!cancelled()) {
    if (ended_) return {grpc::StatusCode::UNAVAILABLE, "the daemon ends"};
    const AuditRing::Batch batch = ring_->Read(next, kAtOnce);
    missed += batch.missed;
    next = batch.next;
    for (const AuditRecord& record : batch.records) {
      if (!is_wanted(record)) continue;
      v1::EventRecord proto = ToProto(record);
      proto.set_missed(std::exchange(missed, 0));
      if (!write(proto)) return grpc::Status::CANCELLED;
    }
    if (!batch.records.empty()) continue;
    if (!request.follow()) return grpc::Status::OK;
    ring_->Await(next, absl::Now() + kLook);
  }
  return grpc::Status::CANCELLED;
}

}  // namespace gpumemd
