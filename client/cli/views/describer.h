// SPDX-License-Identifier: Apache-2.0
// Describes one object of a snapshot in paragraphs. Pure; describe_view.h is its interface.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/device_list.h"
#include "client/cli/views/snapshot.h"

namespace gpumem::cli {

class Describer {
 public:
  // `snapshot` outlives this.
  Describer(const Snapshot& snapshot, bool exact, Layout layout)
      : snapshot_(snapshot), devices_(snapshot.devices()), exact_(exact), layout_(layout) {}

  // Each requires that the object is in the snapshot.
  // Of those that hold (describe_holders.cc).
  std::string Tenant(const std::string& name);
  std::string Session(uint64_t id);
  // Of memory (describe_memory.cc).
  std::string Lease(uint64_t id);
  std::string Segment(uint64_t id);
  std::string Publication(const std::string& name);
  std::string Device(const std::string& uuid);

 private:
  std::string Bytes(uint64_t bytes) const { return Size(bytes, exact_); }
  std::string On(const std::string& uuid) const {
    return absl::StrCat("device ", ShortDevice(devices_, uuid));
  }
  // "session 7 of tenant training (trainer-3, python3, pid 4242)"
  std::string Who(uint64_t session) const;
  // "segment 12 (64.00 MiB, vmm, device 0 GPU-…)"
  std::string What(uint64_t segment) const;
  // Returns the origin of the lease, and its other possible users.
  static std::string Traits(const v1::LeaseInfo& lease);
  // Returns the first line. Names of processes and clients are untrusted, here as in what follows.
  static std::string Title(const std::string& text) { return Printable(text) + "\n"; }
  // Returns "Heading:" and its lines, indented; only some of them if there are many.
  std::string List(const std::string& heading, const std::vector<std::string>& lines,
                   const std::string& where_all = "") const;
  std::string Paragraph(const std::string& text) const;
  // Returns the arrays that the described publication has.
  std::string Contents() const;
  // Returns the width of a line at the deepest indent; readable on wide terminals, too.
  size_t Width() const {
    const size_t columns = layout_.columns;
    return columns == kAnyWidth ? kAnyWidth - 4 : std::clamp<size_t>(columns, 24, 120) - 4;
  }
  // Returns a line for each waiting request that `of` selects.
  std::vector<std::string> WaitingLines(
      const std::function<bool(const v1::WaitingInfo&)>& of) const;

  const Snapshot& snapshot_;
  const DeviceList devices_;
  const bool exact_;
  const Layout layout_;
};

}  // namespace gpumem::cli
