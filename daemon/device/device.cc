// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/device.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

absl::Status NoPool(const Device& device, absl::string_view tenant) {
  return absl::NotFoundError(
      absl::StrCat("tenant \"", tenant, "\" has no memory pool on ", device.info().uuid,
                   "; a pool exists while the tenant has segments of kind mempool"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Allocation>> Device::Adopt(const CreateSpec& spec,
                                                          gpumem::UniqueFd) {
  return absl::UnimplementedError(absl::StrCat(
      "the device ", info().uuid, " cannot restore a segment ", "of kind ", KindName(spec.kind)));
}

absl::Status Device::Copy(absl::Span<const CopyItem>) {
  return absl::UnimplementedError(
      absl::StrCat("the device ", info().uuid, " cannot copy to or from the host tier"));
}

absl::StatusOr<PoolStatus> Device::SetPool(absl::string_view tenant, const PoolChange&) {
  return NoPool(*this, tenant);
}

absl::StatusOr<PoolStatus> Device::TrimPool(absl::string_view tenant, uint64_t) {
  return NoPool(*this, tenant);
}

}  // namespace gpumemd
