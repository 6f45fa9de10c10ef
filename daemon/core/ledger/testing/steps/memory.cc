// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/memory.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {

absl::Status MarkLost(Course& course) {
  std::vector<SegmentId> lost = model::ContextBound(course.model, course.chance.Below(2));
  if (course.chance.In100(20))
    std::erase_if(lost, [&](SegmentId) { return course.chance.In100(50); });
  if (course.chance.In100(5)) lost.push_back(SegmentId{course.chance.Below(1000000)});
  std::erase_if(lost, [&](SegmentId id) {  // numbers that meet others' segments by chance
    return course.ledger.state().segments.contains(id) &&
           !IsContextBound(course.ledger.look().Describe({.segment = id}).kind);
  });
  course.ledger.segments().MarkLost(lost);
  model::MarkLost(course.model, lost);
  if (!lost.empty()) course.Cover("lost");
  return course.After(absl::OkStatus(), "MarkLost ", lost.size());
}

absl::Status TakeDoomed(Course& course) {
  const std::vector<SegmentId> doomed = Drain(course.ledger.effects().doomed);
  return course.After(model::TakeDoomed(course.model, doomed), "TakeDoomed -> ", doomed.size());
}

absl::Status Destroyed(Course& course) {
  if (course.model.in_destruction.empty()) return absl::OkStatus();
  const SegmentId segment = course.chance.Of(course.model.in_destruction);
  course.ledger.Destroyed(segment);
  model::Destroyed(course.model, segment);
  if (course.ledger.state().segments.contains(segment)) {
    return absl::InternalError("destroyed, and still there");
  }
  return course.After(absl::OkStatus(), "Destroyed ", ToInt(segment));
}

absl::Status DestroyAll(Course& course) {
  if (absl::Status taken = TakeDoomed(course); !taken.ok()) return taken;
  while (!course.model.in_destruction.empty()) {
    if (absl::Status destroyed = Destroyed(course); !destroyed.ok()) return destroyed;
  }
  return absl::OkStatus();
}

absl::Status DriverIsFull(Course& course) {
  if (course.model.sessions.empty()) return absl::OkStatus();
  const SessionId session = course.chance.Of(course.model.sessions).first;
  const size_t device = course.chance.Below(course.devices.size());
  const uint64_t bytes = 1 + course.chance.Below(20);
  if (course.chance.In100(50)) {
    const bool answer = course.ledger.operations().MakeRoomOnDevice(session, device, bytes);
    return course.After(model::MakeRoomOnDevice(course.model, session, device, bytes, answer),
                        "MakeRoomOnDevice ", ToInt(session), " ", bytes, " on ",
                        course.devices[device].uuid, " -> ", answer);
  }
  const absl::Status answer =
      course.ledger.operations().DriverDenial(session, device, bytes, "OUT_OF_MEMORY");
  return course.After(model::DriverDenial(course.model, session, device, bytes, answer),
                      "DriverDenial ", ToInt(session), " -> ", course.Describe(answer));
}

absl::Status Trim(Course& course) {
  const std::string tenant = course.chance.In100(50) ? "" : course.chance.Tenant();
  const std::string device = course.chance.In100(50)  ? ""
                             : course.chance.In100(5) ? "elsewhere"
                                                      : course.chance.Device();
  const uint64_t keep = course.chance.In100(50) ? 0 : course.chance.Below(20);
  const auto answer = course.ledger.segments().Trim(tenant, device, keep);
  if (answer.ok() && !answer->empty()) course.Cover("trimmed");
  return course.After(model::Trim(course.model, tenant, device, keep, answer), "Trim \"", tenant,
                      "\" \"", device, "\" to ", keep, " -> ", course.Describe(answer.status()));
}

}  // namespace gpumemd::steps
