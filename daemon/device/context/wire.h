// SPDX-License-Identifier: Apache-2.0
// Messages between a ContextProcess and its process. Both run this program, so a message is its
// struct's bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/device/context/context.h"

namespace gpumemd {

inline constexpr char kContextFlag[] = "--serve-as-gpumem-context";
inline constexpr int kContextSocket = 3;

enum class ContextOp : uint32_t {
  kCreateIpc,
  kAllocate,
  kFree,
  kCreatePool,
  kDestroyPool,
  kReadPool,
  kSetPool,
  kTrimPool,
  kStartCopy,  // its parts follow (copy_wire.h)
  kFinishCopies,
};

struct ContextRequest {
  ContextOp op = ContextOp::kFree;
  uint64_t memory = 0;
  uint64_t pool = 0;
  uint64_t bytes = 0;
  PoolChange change;
  CopyDirection direction = CopyDirection::kOut;
  uint32_t parts = 0;    // of a batch
  uint32_t extents = 0;  // of all parts
};

struct ContextAnswer {
  int32_t code = 0;
  char words[1024] = "";  // ends with a zero
  ExportData data = {};
  uint64_t max_bytes = 0;
  PoolNumbers numbers = {};

  absl::Status status() const { return absl::Status(static_cast<absl::StatusCode>(code), words); }
  void set_status(const absl::Status& status) {
    code = static_cast<int32_t>(status.code());
    // Not memcpy(): the message of an OK status may be a null pointer.
    words[status.message().copy(words, sizeof(words) - 1)] = '\0';
  }
};

template <typename Message>
absl::string_view Pack(const Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return {reinterpret_cast<const char*>(&message), sizeof(message)};
}

template <typename Message>
absl::StatusOr<Message> Unpack(absl::string_view bytes) {
  static_assert(std::is_trivially_copyable_v<Message>);
  Message message;
  if (bytes.size() != sizeof(message)) {
    return absl::InternalError("the context process sent an invalid message");
  }
  std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof(message));
  return message;
}

}  // namespace gpumemd
