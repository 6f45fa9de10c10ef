// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/denial.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/denial.h"
#include "daemon/core/denial_proto.h"

namespace gpumemd {

namespace v1 = gpumem::v1;

absl::Span<const Denial::Cause> DenialCauses() {
  static const auto* causes = [] {
    auto* all = new std::vector<Denial::Cause>;
    for (int i = v1::Denial::Cause_MIN; i <= v1::Denial::Cause_MAX; ++i) {
      if (i == v1::Denial::CAUSE_UNSPECIFIED || !v1::Denial::Cause_IsValid(i)) continue;
      all->push_back(static_cast<Denial::Cause>(i));
    }
    return all;
  }();
  return *causes;
}

std::string NameOf(Denial::Cause cause) {
  const std::string name = v1::Denial::Cause_Name(ToProto(cause));
  return absl::StrReplaceAll(absl::AsciiStrToLower(absl::StripPrefix(name, "CAUSE_")),
                             {{"_", "-"}});
}

v1::Denial::Cause ToProto(Denial::Cause cause) {
  return static_cast<v1::Denial::Cause>(static_cast<int>(cause));
}

v1::Denial ToProto(const Denial& denial) {
  v1::Denial proto;
  proto.set_cause(ToProto(denial.cause));
  proto.set_tenant(denial.tenant);
  proto.set_device_uuid(denial.device_uuid);
  proto.set_asked(denial.asked);
  proto.set_used(denial.used);
  proto.set_limit(denial.limit);
  proto.set_help(denial.help);
  proto.set_limited_tenant(denial.limited_tenant);
  proto.set_queued_at(ToProto(denial.queued_at));
  for (const Denial::Holder& holder : denial.holders) {
    v1::Denial::Holder& added = *proto.add_holders();
    added.set_tenant(holder.tenant);
    added.set_used(holder.used);
  }
  return proto;
}

absl::Status DenialError(const Denial& denial) { return gpumem::DenialError(ToProto(denial)); }

std::optional<Denial> DenialOf(const absl::Status& status) {
  const std::optional<v1::Denial> proto = gpumem::DenialOf(status);
  if (!proto) return std::nullopt;
  Denial denial{.cause = static_cast<Denial::Cause>(static_cast<int>(proto->cause())),
                .tenant = proto->tenant(),
                .device_uuid = proto->device_uuid(),
                .asked = proto->asked(),
                .used = proto->used(),
                .limit = proto->limit(),
                .help = proto->help(),
                .limited_tenant = proto->limited_tenant()};
  for (const v1::Denial::Holder& holder : proto->holders()) {
    denial.holders.push_back({holder.tenant(), holder.used()});
  }
  denial.queued_at = static_cast<Denial::Cause>(static_cast<int>(proto->queued_at()));
  return denial;
}

}  // namespace gpumemd
