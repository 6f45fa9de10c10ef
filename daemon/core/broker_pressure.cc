// Who is asked to give memory back when somebody is denied it.
#include <utility>

#include "common/denial.h"
#include "daemon/core/broker.h"

namespace gpumemd {
namespace {

// Who is denied over and over must not keep its neighbours busy.
constexpr absl::Duration kPressEvery = absl::Milliseconds(20);

}  // namespace

absl::Status Broker::Denied(SessionId session, absl::Status denial) {
  const std::optional<gpumem::v1::Denial> why = gpumem::DenialOf(denial);
  if (!why || observer_ == nullptr) return denial;
  Pressure pressure = {.asker = session, .device_uuid = why->device_uuid()};
  switch (why->cause()) {
    case gpumem::v1::Denial::CAUSE_DEVICE_LIMIT:
    case gpumem::v1::Denial::CAUSE_TOTAL_LIMIT:
      pressure.tenant = why->tenant();
      break;
    case gpumem::v1::Denial::CAUSE_CAPACITY:
    case gpumem::v1::Denial::CAUSE_DRIVER:
      break;
    default:
      return denial;  // of counts
  }
  if (why->asked() > why->limit()) return denial;  // nobody could make room for that
  // The driver has none left, whatever the limit says.
  const bool none_left = why->cause() == gpumem::v1::Denial::CAUSE_DRIVER;
  pressure.bytes = none_left ? why->asked() : why->used() + why->asked() - why->limit();
  const absl::Time now = now_();
  absl::erase_if(pressed_, [now](const auto& entry) { return entry.second + kPressEvery <= now; });
  if (!pressed_.try_emplace({pressure.tenant, pressure.device_uuid}, now).second) return denial;
  observer_->Pressed(pressure);
  return denial;
}

}  // namespace gpumemd
