// How the host backend stands in for CUDA's export data: what its 64 bytes hold, and how memory
// of kind ipc is opened by them.
//
// Kind ipc: the owner listens on a SEQPACKET socket in the daemon's folder. Whoever opens memory
// connects and sends the 64 bytes; the owner sends the memory's descriptor back, or "gone", and
// closes. So memory can be opened only while its owner lives and keeps it, as with CUDA; and the
// owner never waits for anybody.
//
// Kind mempool: a pool is one large sparse memfd. At its start is a table with an entry for
// each possible beginning of an allocation: the number of the allocation that is there now, or
// zero.
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
  uint64_t inode = 0;   // of the pool's memfd
  uint64_t offset = 0;  // from kHostPoolHeaderBytes on
  uint64_t bytes = 0;
  uint64_t allocation = 0;  // its number, in the table while it lives
  std::array<uint8_t, 24> zeros = {};
};

inline constexpr uint64_t kHostPoolPageBytes = 4096;
inline constexpr uint64_t kHostPoolBytes = uint64_t{16} << 40;  // of addresses in it
// The table: 8 bytes for each page.
inline constexpr uint64_t kHostPoolHeaderBytes = kHostPoolBytes / kHostPoolPageBytes * 8;

// Where in the memfd the entry is for what begins at `offset`.
constexpr uint64_t HostPoolEntry(uint64_t offset) { return offset / kHostPoolPageBytes * 8; }

template <typename Data>
ExportData ToExportData(const Data& data) {
  static_assert(sizeof(Data) == sizeof(ExportData));
  ExportData bytes;
  std::memcpy(bytes.data(), &data, sizeof(data));
  return bytes;
}

// Nothing where the bytes are of something else.
template <typename Data>
std::optional<Data> FromExportData(const ExportData& bytes) {
  static_assert(sizeof(Data) == sizeof(ExportData));
  Data data;
  std::memcpy(static_cast<void*>(&data), bytes.data(), sizeof(data));
  if (data.magic != Data::kMagic) return std::nullopt;
  return data;
}

// Where the owner of a host device's memory of kind ipc answers.
inline std::string HostIpcSocket(absl::string_view runtime_dir, uint32_t device_index) {
  return absl::StrCat(runtime_dir, "/host-ipc-", device_index, ".sock");
}

// What comes with the descriptor, and without one.
inline constexpr absl::string_view kHostIpcOpened = "opened";
inline constexpr absl::string_view kHostIpcGone = "gone";

}  // namespace gpumem
