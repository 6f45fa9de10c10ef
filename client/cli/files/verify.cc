// SPDX-License-Identifier: Apache-2.0
// gpumemctl verify: compares a publication's memory with the checksums in its metadata.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/output.h"
#include "client/cli/files/publication_reader.h"
#include "client/cli/files/views.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"

namespace gpumem::cli {
namespace {

using internal::Contents;
using internal::Extent;

// The extents to check, and for each its place in the answer.
struct Plan {
  Verified verified;
  Extents extents;  // of all arrays of all files, in this order
  uint64_t bytes = 0;
};

void Add(const std::string& name, const Extent& extent, VerifiedFile& file, Plan& plan) {
  file.arrays.push_back({.name = name, .bytes = extent.bytes});
  plan.extents.push_back(&extent);
  plan.bytes += extent.bytes;
}

Plan PlanOf(const Contents& contents) {
  Plan plan;
  std::vector<bool> in_file(contents.arrays.size());
  for (const internal::PublishedFile& file : contents.files) {
    VerifiedFile verified{.name = file.name, .bytes = file.bytes};
    if (file.header.has_value()) {
      Add(absl::StrCat(file.name, " (header)"), *file.header, verified, plan);
    }
    for (size_t i = file.first_array; i < file.first_array + file.arrays; ++i) {
      Add(contents.arrays[i].name, contents.arrays[i].extent, verified, plan);
      in_file[i] = true;
    }
    plan.verified.files.push_back(std::move(verified));
  }
  VerifiedFile others;
  for (size_t i = 0; i < contents.arrays.size(); ++i) {
    if (in_file[i]) continue;
    Add(contents.arrays[i].name, contents.arrays[i].extent, others, plan);
    others.bytes += contents.arrays[i].extent.bytes;
  }
  if (!others.arrays.empty()) plan.verified.files.push_back(std::move(others));
  return plan;
}

// "1 of 2 files", or "3 of 291 arrays" if files have several.
std::string HowMany(const Verified& verified, VerifiedState state) {
  size_t files = 0;
  size_t arrays = 0;
  size_t all_arrays = 0;
  for (const VerifiedFile& file : verified.files) {
    files += StateOf(file) == state ? 1 : 0;
    all_arrays += file.arrays.size();
    for (const VerifiedArray& array : file.arrays) arrays += array.state == state ? 1 : 0;
  }
  if (all_arrays == verified.files.size()) {
    return absl::StrCat(files, " of ", Counted(verified.files.size(), "file"));
  }
  return absl::StrCat(arrays, " of ", Counted(all_arrays, "array"));
}

bool Any(const Verified& verified, VerifiedState state) {
  for (const VerifiedFile& file : verified.files) {
    for (const VerifiedArray& array : file.arrays) {
      if (array.state == state) return true;
    }
  }
  return false;
}

}  // namespace

absl::Status Run(const VerifyCommand& command, const GlobalOptions& options) {
  auto reader = PublicationReader::Attach(command.name, command.as, options);
  if (!reader.ok()) return reader.status();
  Plan plan = PlanOf((*reader)->contents());
  (*reader)->Begin(plan.bytes);
  auto hashes = (*reader)->Hash(plan.extents);
  if (!hashes.ok()) return hashes.status();
  (*reader)->End();

  Verified& verified = plan.verified;
  verified.publication = command.name;
  verified.tenant = (*reader)->attachment().tenant();
  verified.version = (*reader)->attachment().version();
  verified.took = (*reader)->Took();
  size_t at = 0;
  for (VerifiedFile& file : verified.files) {
    for (VerifiedArray& array : file.arrays) {
      array.xxh128 = (*hashes)[at];
      const auto& expected = plan.extents[at++]->xxh128;
      if (!expected.has_value()) continue;
      array.state = array.xxh128 == *expected ? VerifiedState::kSame : VerifiedState::kDifferent;
    }
  }
  Print(options.json ? Document(VerifiedJson(verified))
                     : VerifiedView(verified, options.exact, LayoutFor(options)));
  if (Any(verified, VerifiedState::kDifferent)) {
    // The document says it already.
    if (options.json) return Silent(Differs("the memory differs from what was published"));
    return Differs(absl::StrCat(HowMany(verified, VerifiedState::kDifferent),
                                ": the memory differs from what was published: a process has "
                                "written to it; publish it again"));
  }
  if (Any(verified, VerifiedState::kUnknown)) {
    return absl::FailedPreconditionError(
        "the publication has no checksums to compare with: publish it by gpumemctl publish, "
        "without --no-checksum");
  }
  return absl::OkStatus();
}

}  // namespace gpumem::cli
