// SPDX-License-Identifier: Apache-2.0
// The output of publish, fetch and verify. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/files/file_list.h"
#include "client/cli/text/json.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {

struct Transferred {
  std::string publication;  // as the user named it
  std::string tenant;
  uint64_t version = 0;
  std::vector<ListedFile> files;
  absl::Duration took;
};

struct Verified {
  enum class State { kSame, kDifferent, kUnknown };  // kUnknown: there is no checksum to compare
  ListedFile file;                                   // with the checksum of the memory
  State state = State::kUnknown;
};

uint64_t BytesOf(const std::vector<ListedFile>& files);

std::string PublishedView(const Transferred& published, bool exact);
std::string FetchedView(const Transferred& fetched, const std::string& out, bool exact);
std::string VerifiedView(const std::vector<Verified>& files, bool exact, Layout layout = {});

Json PublishedJson(const Transferred& published);
Json FetchedJson(const Transferred& fetched, const std::string& out);
Json VerifiedJson(const Transferred& read, const std::vector<Verified>& files);

}  // namespace gpumem::cli
