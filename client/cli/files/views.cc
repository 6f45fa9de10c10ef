// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/views.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

// "2 files, 10.00 GiB, in 3.2s (3.10 GiB/s)".
std::string Amount(const Transferred& transferred, bool exact) {
  const uint64_t bytes = BytesOf(transferred.files);
  const double seconds = std::max(absl::ToDoubleSeconds(transferred.took), 1e-6);
  const auto rate = static_cast<uint64_t>(static_cast<double>(bytes) / seconds);
  return absl::StrCat(Counted(transferred.files.size(), "file"), ", ", Size(bytes, exact),
                      exact ? " bytes" : "", ", in ",
                      absl::FormatDuration(absl::Trunc(transferred.took, absl::Milliseconds(1))),
                      " (", Size(rate, false), "/s)");
}

std::string Word(Verified::State state) {
  switch (state) {
    case Verified::State::kSame:
      return "ok";
    case Verified::State::kDifferent:
      return "differs";
    case Verified::State::kUnknown:
      break;
  }
  return "unknown";
}

Json FileJson(const ListedFile& file) {
  Json json = Json::object();
  json["name"] = file.name;
  json["size_bytes"] = file.bytes;
  json["xxh128"] = nullptr;
  if (file.xxh128) json["xxh128"] = *file.xxh128;
  return json;
}

Json Head(const Transferred& of) {
  Json json = Json::object();
  json["publication"] = of.publication;
  json["tenant"] = of.tenant;
  json["version"] = of.version;
  json["size_bytes"] = BytesOf(of.files);
  json["duration_ms"] = absl::ToInt64Milliseconds(of.took);
  return json;
}

Json TransferredJson(const Transferred& of) {
  Json json = Head(of);
  json["files"] = Json::array();
  for (const ListedFile& file : of.files) json["files"].push_back(FileJson(file));
  return json;
}

}  // namespace

uint64_t BytesOf(const std::vector<ListedFile>& files) {
  uint64_t bytes = 0;
  for (const ListedFile& file : files) bytes += file.bytes;
  return bytes;
}

std::string PublishedView(const Transferred& published, bool exact) {
  return absl::StrCat("Published ", Printable(published.publication), ", version ",
                      published.version, ": ", Amount(published, exact), ".\n");
}

std::string FetchedView(const Transferred& fetched, const std::string& out, bool exact) {
  return absl::StrCat("Fetched ", Printable(fetched.publication), ", version ", fetched.version,
                      ", to ", Printable(out), ": ", Amount(fetched, exact), ".\n");
}

std::string VerifiedView(const std::vector<Verified>& files, bool exact, Layout layout) {
  Table table({{"FILE"}, {"SIZE", Align::kRight}, {"XXH128"}, {"STATE"}});
  for (const Verified& each : files) {
    table.AddRow({each.file.name, Size(each.file.bytes, exact), each.file.xxh128.value_or(kNone),
                  Word(each.state)});
  }
  return table.ToString(layout);
}

Json PublishedJson(const Transferred& published) { return TransferredJson(published); }

Json FetchedJson(const Transferred& fetched, const std::string& out) {
  Json json = TransferredJson(fetched);
  json["out"] = out;
  return json;
}

Json VerifiedJson(const Transferred& read, const std::vector<Verified>& files) {
  Json json = Head(read);
  json["files"] = Json::array();
  for (const Verified& each : files) {
    Json file = FileJson(each.file);
    file["state"] = Word(each.state);
    json["files"].push_back(std::move(file));
  }
  return json;
}

}  // namespace gpumem::cli
