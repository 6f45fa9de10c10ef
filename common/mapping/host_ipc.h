// SPDX-License-Identifier: Apache-2.0
// The host backend's stand-in for CUDA's export data: the contents of the 64 bytes, and how they
// open memory.
//
// Kind ipc: the owner listens on a SEQPACKET socket in the daemon's folder. A process that opens
// memory connects and sends the 64 bytes. The owner sends the memory's descriptor back, or "gone",
// and closes. So memory can be opened only while its owner lives and keeps it, as with CUDA. The
// owner never waits for a peer.
//
// Kind mempool: each allocation of a pool is opened in the same way, on the same socket. The pool's
// descriptor is an empty memfd, sealed at that size: it stands for the pool, by its inode, and no
// process can put memory into it. An allocation is a separate memfd, sealed at the size that its
// tenant is charged for.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/export_data.h"

namespace gpumem {

struct HostIpcHandle {
  static constexpr uint64_t kMagic = 0x63706974736f6867;  // "ghostipc"
  uint64_t magic = kMagic;
  uint32_t device_index = 0;
  uint32_t unused = 0;
  std::array<uint8_t, 32> secret = {};  // random: the key to the memory
  std::array<uint8_t, 16> zeros = {};
};

struct HostPoolData {
  static constexpr uint64_t kMagic = 0x6c6f6f7074736f68;  // "hostpool"
  uint64_t magic = kMagic;
  uint64_t inode = 0;  // of the pool's descriptor
  uint32_t device_index = 0;
  uint32_t unused = 0;
  std::array<uint8_t, 32> secret = {};  // random: the key to the memory
  std::array<uint8_t, 8> zeros = {};
};

template <typename Data>
ExportData ToExportData(const Data& data) {
  static_assert(sizeof(Data) == sizeof(ExportData));
  ExportData bytes;
  std::memcpy(bytes.data(), &data, sizeof(data));
  return bytes;
}

// Returns nothing if the bytes are of another type.
template <typename Data>
std::optional<Data> FromExportData(const ExportData& bytes) {
  static_assert(sizeof(Data) == sizeof(ExportData));
  Data data;
  std::memcpy(static_cast<void*>(&data), bytes.data(), sizeof(data));
  if (data.magic != Data::kMagic) return std::nullopt;
  return data;
}

// Returns the path of the socket on which the owner of a host device's ipc and mempool memory
// answers.
inline std::string HostIpcSocket(absl::string_view runtime_dir, uint32_t device_index) {
  return absl::StrCat(runtime_dir, "/host-ipc-", device_index, ".sock");
}

// The owner's messages with a descriptor, and without one.
inline constexpr absl::string_view kHostIpcOpened = "opened";
inline constexpr absl::string_view kHostIpcGone = "gone";

}  // namespace gpumem
