// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/copy_wire.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gpumemd {
namespace {

// A CopyPart without its descriptor and its extents.
struct PartHead {
  uint64_t segment_bytes = 0;
  uint64_t offset = 0;
  uint64_t extents = 0;
};

// Takes a struct from the beginning of `bytes`, which has as many.
template <typename Message>
Message Take(absl::string_view& bytes) {
  Message message;
  std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof(message));
  bytes.remove_prefix(sizeof(message));
  return message;
}

}  // namespace

absl::StatusOr<CopyMessage> EncodeCopy(const CopyBatch& batch) {
  ContextRequest request{.op = ContextOp::kStartCopy,
                         .direction = batch.direction,
                         .parts = static_cast<uint32_t>(batch.parts.size())};
  CopyMessage message;
  message.fds.push_back(batch.tier_fd);
  std::string heads, extents;
  for (const CopyPart& part : batch.parts) {
    message.fds.push_back(part.fd);
    request.extents += static_cast<uint32_t>(part.extents.size());
    const PartHead head{
        .segment_bytes = part.segment_bytes, .offset = part.offset, .extents = part.extents.size()};
    absl::StrAppend(&heads, Pack(head));
    for (const TierExtent& extent : part.extents) absl::StrAppend(&extents, Pack(extent));
  }
  message.bytes = absl::StrCat(Pack(request), heads, extents);
  if (message.bytes.size() > gpumem::kMaxMessageBytes ||
      message.fds.size() > gpumem::kMaxMessageFds) {
    return absl::InternalError(
        absl::StrCat("a batch of ", request.parts, " parts is too large for one message"));
  }
  return message;
}

absl::StatusOr<CopyBatch> DecodeCopy(const ContextRequest& request,
                                     const gpumem::UnixMessage& message) {
  const size_t expected =
      sizeof(request) + request.parts * sizeof(PartHead) + request.extents * sizeof(TierExtent);
  if (message.bytes.size() != expected || message.fds.size() != size_t{1} + request.parts) {
    return absl::InternalError("the request to copy is malformed");
  }
  absl::string_view heads = message.bytes;
  heads.remove_prefix(sizeof(request));
  absl::string_view extents = heads.substr(request.parts * sizeof(PartHead));
  CopyBatch batch{.direction = request.direction, .tier_fd = message.fds.front().get()};
  for (uint32_t i = 0; i < request.parts; ++i) {
    const auto head = Take<PartHead>(heads);
    if (head.extents > extents.size() / sizeof(TierExtent)) {
      return absl::InternalError("the request to copy has too few extents");
    }
    CopyPart part{
        .fd = message.fds[i + 1].get(), .segment_bytes = head.segment_bytes, .offset = head.offset};
    for (uint64_t k = 0; k < head.extents; ++k) part.extents.push_back(Take<TierExtent>(extents));
    batch.parts.push_back(std::move(part));
  }
  return batch;
}

}  // namespace gpumemd
