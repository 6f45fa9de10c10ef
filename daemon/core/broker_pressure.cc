// Who is asked to give memory back when somebody is denied it.
#include <algorithm>
#include <utility>

#include "common/denial.h"
#include "daemon/core/broker.h"

namespace gpumemd {
namespace {

// Who is denied over and over must not keep its neighbours busy: it presses them less and less
// often, until it has been quiet for a while.
constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr absl::Duration kQuiet = absl::Seconds(3);

}  // namespace

absl::Status Broker::Denied(const AcquireSpec& spec, absl::Status denial) {
  const std::optional<gpumem::v1::Denial> why = gpumem::DenialOf(denial);
  if (!why || observer_ == nullptr || spec.without_pressure) return denial;
  Pressure pressure = {.tenant = {}, .device_uuid = why->device_uuid()};
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
  absl::erase_if(pressed_, [now](const auto& entry) {
    return entry.second.last + kQuiet <= now || entry.second.last > now;  // the clock was set
  });
  const auto [entry, first] =
      pressed_.try_emplace({why->tenant(), pressure.device_uuid}, Pressed{now, kFirstPause});
  if (!first) {
    Pressed& pressed = entry->second;
    if (now < pressed.last + pressed.pause) return denial;
    pressed = {now, std::min(2 * pressed.pause, kLongestPause)};
  }
  observer_->Pressed(pressure);
  return denial;
}

}  // namespace gpumemd
