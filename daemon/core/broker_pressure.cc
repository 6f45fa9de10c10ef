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
  if (why && !spec.without_pressure) Press(*why, absl::InfiniteFuture());
  return denial;
}

void Broker::Press(const gpumem::v1::Denial& why, absl::Time until) {
  if (observer_ == nullptr) return;
  Pressure pressure = {.tenant = {}, .device_uuid = why.device_uuid(), .until = until};
  switch (why.cause()) {
    case gpumem::v1::Denial::CAUSE_DEVICE_LIMIT:
    case gpumem::v1::Denial::CAUSE_TOTAL_LIMIT:
      pressure.tenant = why.limited_tenant().empty() ? why.tenant() : why.limited_tenant();
      break;
    case gpumem::v1::Denial::CAUSE_CAPACITY:
    case gpumem::v1::Denial::CAUSE_GUARANTEES:
    case gpumem::v1::Denial::CAUSE_QUEUE:
    case gpumem::v1::Denial::CAUSE_DRIVER:
      break;
    default:
      return;  // of counts
  }
  if (why.asked() > why.limit()) return;  // nobody could make room for that
  // The driver has none left, whatever the limit says.
  const bool none_left = why.cause() == gpumem::v1::Denial::CAUSE_DRIVER;
  // Nor does it say how much is missing where it is not bytes that block, but what they are
  // claimed or guaranteed for.
  const uint64_t wanted = why.used() + why.asked();
  pressure.bytes = none_left || wanted <= why.limit() ? why.asked() : wanted - why.limit();
  const absl::Time now = now_();
  absl::erase_if(pressed_, [now](const auto& entry) {
    return entry.second.last + kQuiet <= now || entry.second.last > now;  // the clock was set
  });
  const auto [entry, first] =
      pressed_.try_emplace({why.tenant(), pressure.device_uuid}, Pressed{now, kFirstPause});
  if (!first) {
    Pressed& pressed = entry->second;
    if (now < pressed.last + pressed.pause) return;
    pressed = {now, std::min(2 * pressed.pause, kLongestPause)};
  }
  observer_->Pressed(pressure);
}

}  // namespace gpumemd
