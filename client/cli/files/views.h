// SPDX-License-Identifier: Apache-2.0
// The output of publish, fetch and verify. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/text/json.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {

struct TransferredFile {
  std::string name;  // without a folder
  uint64_t bytes = 0;
  std::optional<std::string> xxh128;  // of a file that is one array of bytes
};

struct Transferred {
  std::string publication;  // as the user named it
  std::string tenant;
  uint64_t version = 0;
  std::vector<TransferredFile> files;
  uint64_t arrays = 0;  // as many as there are files: the files are arrays of bytes
  absl::Duration took;
};

// kUnknown: there is no checksum to compare with.
enum class VerifiedState { kSame, kDifferent, kUnknown };

// An array, or the header of a file.
struct VerifiedArray {
  std::string name;
  uint64_t bytes = 0;
  std::string xxh128;  // of the memory
  VerifiedState state = VerifiedState::kUnknown;
};

struct VerifiedFile {
  std::string name;
  uint64_t bytes = 0;
  std::vector<VerifiedArray> arrays;  // with the header
};

struct Verified {
  std::string publication;
  std::string tenant;
  uint64_t version = 0;
  // One without a name: arrays that came from no file.
  std::vector<VerifiedFile> files;
  absl::Duration took;
};

uint64_t BytesOf(const std::vector<TransferredFile>& files);

// The worst state of its arrays.
VerifiedState StateOf(const VerifiedFile& file);

std::string PublishedView(const Transferred& published, bool exact);
std::string FetchedView(const Transferred& fetched, const std::string& out, bool exact);
// A row for each file; its arrays only if their states differ from each other, or with details.
std::string VerifiedView(const Verified& verified, bool exact, Layout layout = {});

Json PublishedJson(const Transferred& published);
Json FetchedJson(const Transferred& fetched, const std::string& out);
Json VerifiedJson(const Verified& verified);

}  // namespace gpumem::cli
