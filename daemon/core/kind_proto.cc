#include "daemon/core/kind_proto.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace v1 = gpumem::v1;

v1::Kind ToProto(Kind kind) {
  switch (kind) {
    case Kind::kVmm:
      return v1::KIND_VMM;
    case Kind::kMempool:
      return v1::KIND_MEMPOOL;
    case Kind::kIpc:
      return v1::KIND_IPC;
    case Kind::kPinned:
      return v1::KIND_PINNED;
  }
  return v1::KIND_UNSPECIFIED;
}

absl::StatusOr<std::optional<Kind>> FromProto(v1::Kind kind) {
  switch (kind) {
    case v1::KIND_UNSPECIFIED:
      return std::nullopt;
    case v1::KIND_VMM:
      return Kind::kVmm;
    case v1::KIND_MEMPOOL:
      return Kind::kMempool;
    case v1::KIND_IPC:
      return Kind::kIpc;
    case v1::KIND_PINNED:
      return Kind::kPinned;
    default:
      return absl::UnimplementedError(absl::StrCat("this daemon does not know segments of kind ",
                                                   static_cast<int>(kind),
                                                   "; it knows VMM, MEMPOOL, IPC and PINNED"));
  }
}

}  // namespace gpumemd
