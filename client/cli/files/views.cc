// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/views.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"

namespace gpumem::cli {
namespace {

// "2 files, 291 arrays, 10.00 GiB, in 3.2s (3.10 GiB/s)".
std::string Amount(const Transferred& transferred, bool exact) {
  const uint64_t bytes = BytesOf(transferred.files);
  const double seconds = std::max(absl::ToDoubleSeconds(transferred.took), 1e-6);
  const auto rate = static_cast<uint64_t>(static_cast<double>(bytes) / seconds);
  const bool of_arrays = transferred.arrays != transferred.files.size();
  return absl::StrCat(Counted(transferred.files.size(), "file"), ", ",
                      of_arrays ? absl::StrCat(Counted(transferred.arrays, "array"), ", ") : "",
                      Size(bytes, exact), exact ? " bytes" : "", ", in ",
                      absl::FormatDuration(absl::Trunc(transferred.took, absl::Milliseconds(1))),
                      " (", Size(rate, false), "/s)");
}

std::string Word(VerifiedState state) {
  switch (state) {
    case VerifiedState::kSame:
      return "ok";
    case VerifiedState::kDifferent:
      return "differs";
    case VerifiedState::kUnknown:
      break;
  }
  return "unknown";
}

// A file that is one array of bytes has the array's checksum.
bool IsOneArray(const VerifiedFile& file) {
  return file.arrays.size() == 1 && file.arrays[0].name == file.name;
}

Json FileJson(const TransferredFile& file) {
  Json json = Json::object();
  json["name"] = file.name;
  json["size_bytes"] = file.bytes;
  json["xxh128"] = nullptr;
  if (file.xxh128) json["xxh128"] = *file.xxh128;
  return json;
}

template <typename Of>
Json Head(const Of& of, uint64_t bytes) {
  Json json = Json::object();
  json["publication"] = of.publication;
  json["tenant"] = of.tenant;
  json["version"] = of.version;
  json["size_bytes"] = bytes;
  json["duration_ms"] = absl::ToInt64Milliseconds(of.took);
  return json;
}

Json TransferredJson(const Transferred& of) {
  Json json = Head(of, BytesOf(of.files));
  json["arrays"] = of.arrays;
  json["files"] = Json::array();
  for (const TransferredFile& file : of.files) json["files"].push_back(FileJson(file));
  return json;
}

Json ArrayJson(const VerifiedArray& array) {
  Json json = Json::object();
  json["name"] = array.name;
  json["size_bytes"] = array.bytes;
  json["xxh128"] = array.xxh128;
  json["state"] = Word(array.state);
  return json;
}

}  // namespace

uint64_t BytesOf(const std::vector<TransferredFile>& files) {
  uint64_t bytes = 0;
  for (const TransferredFile& file : files) bytes += file.bytes;
  return bytes;
}

VerifiedState StateOf(const VerifiedFile& file) {
  VerifiedState state = VerifiedState::kSame;
  for (const VerifiedArray& array : file.arrays) {
    if (array.state == VerifiedState::kDifferent) return VerifiedState::kDifferent;
    if (array.state == VerifiedState::kUnknown) state = VerifiedState::kUnknown;
  }
  return state;
}

std::string PublishedView(const Transferred& published, bool exact) {
  return absl::StrCat("Published ", Printable(published.publication), ", version ",
                      published.version, ": ", Amount(published, exact), ".\n");
}

std::string FetchedView(const Transferred& fetched, const std::string& out, bool exact) {
  return absl::StrCat("Fetched ", Printable(fetched.publication), ", version ", fetched.version,
                      ", to ", Printable(out), ": ", Amount(fetched, exact), ".\n");
}

std::string VerifiedView(const Verified& verified, bool exact, Layout layout) {
  Table table({{"NAME"}, {"SIZE", Align::kRight}, {"XXH128"}, {"STATE"}});
  for (const VerifiedFile& file : verified.files) {
    const VerifiedState state = StateOf(file);
    const bool one = IsOneArray(file);
    if (!file.name.empty()) {
      table.AddRow(
          {file.name, Size(file.bytes, exact), one ? file.arrays[0].xxh128 : kNone, Word(state)});
      if (one) continue;
    }
    for (const VerifiedArray& array : file.arrays) {
      const bool shown = layout.details || file.name.empty() ||
                         (state != VerifiedState::kSame && array.state != VerifiedState::kSame);
      if (!shown) continue;
      table.AddRow({absl::StrCat(file.name.empty() ? "" : "  ", array.name),
                    Size(array.bytes, exact), array.xxh128, Word(array.state)});
    }
  }
  return table.ToString(layout);
}

Json PublishedJson(const Transferred& published) { return TransferredJson(published); }

Json FetchedJson(const Transferred& fetched, const std::string& out) {
  Json json = TransferredJson(fetched);
  json["out"] = out;
  return json;
}

Json VerifiedJson(const Verified& verified) {
  uint64_t bytes = 0;
  for (const VerifiedFile& file : verified.files) bytes += file.bytes;
  Json json = Head(verified, bytes);
  json["files"] = Json::array();
  for (const VerifiedFile& file : verified.files) {
    Json of_file = Json::object();
    of_file["name"] = file.name;
    of_file["size_bytes"] = file.bytes;
    of_file["xxh128"] = nullptr;
    if (IsOneArray(file)) of_file["xxh128"] = file.arrays[0].xxh128;
    of_file["state"] = Word(StateOf(file));
    of_file["arrays"] = Json::array();
    for (const VerifiedArray& array : file.arrays) of_file["arrays"].push_back(ArrayJson(array));
    json["files"].push_back(std::move(of_file));
  }
  return json;
}

}  // namespace gpumem::cli
