// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/describe_view.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"
#include "client/cli/views/describer.h"
#include "client/cli/views/views.h"

namespace gpumem::cli {
namespace {

// The maximum of shown elements of a list that may have thousands.
constexpr size_t kLongest = 20;

}  // namespace

std::string Describer::Who(uint64_t session) const {
  const v1::SessionInfo* info = snapshot_.Session(session);
  if (info == nullptr) return absl::StrCat("session ", session, ", which has just ended");
  std::string who = absl::StrCat("session ", session, " of tenant ", info->tenant(), " (");
  if (!info->client_name().empty()) absl::StrAppend(&who, info->client_name(), ", ");
  if (!info->command().empty()) absl::StrAppend(&who, info->command(), ", ");
  absl::StrAppend(&who, "pid ", info->pid(), ")");
  if (info->state() == v1::SessionInfo::STATE_LINGERING) absl::StrAppend(&who, ", lingering");
  if (info->state() == v1::SessionInfo::STATE_AWAY) absl::StrAppend(&who, ", away");
  return who;
}

std::string Describer::What(uint64_t segment) const {
  const v1::SegmentInfo* info = snapshot_.Segment(segment);
  if (info == nullptr) return absl::StrCat("segment ", segment, ", which has just gone");
  return absl::StrCat("segment ", segment, " (", Bytes(info->size_bytes()), ", ",
                      Word(info->kind()), ", ", On(info->device_uuid()), ")");
}

std::string Describer::Traits(const v1::LeaseInfo& lease) {
  std::string text;
  if (lease.attached()) {
    absl::StrAppend(&text, ", attached through ",
                    lease.publication().empty() ? "a publication or version that has ended since"
                                                : absl::StrCat("publication ", lease.publication(),
                                                               ", version ", lease.version()));
  }
  if (!lease.tag().empty()) absl::StrAppend(&text, ", with tag ", lease.tag());
  if (lease.suspended()) absl::StrAppend(&text, ", suspended");
  if (lease.demoted()) absl::StrAppend(&text, ", demoted");
  if (lease.shared()) absl::StrAppend(&text, ", with a ticket for its tenant");
  if (lease.shared_to_any()) absl::StrAppend(&text, ", with a ticket for any tenant");
  return text;
}

std::string Describer::List(const std::string& heading, const std::vector<std::string>& lines,
                            const std::string& where_all) const {
  if (lines.empty()) return "";
  std::string text = absl::StrCat("\n", heading, ":\n");
  const size_t shown = lines.size() > kLongest + 1 ? kLongest : lines.size();
  for (size_t i = 0; i < shown; ++i) {
    const char* indent = "  ";
    for (const std::string& line : Wrapped(Printable(lines[i]), Width())) {
      absl::StrAppend(&text, indent, line, "\n");
      indent = "    ";  // further lines of the same object are indented
    }
  }
  if (shown < lines.size()) {
    absl::StrAppend(&text, "  and ", lines.size() - shown, " more",
                    where_all.empty() ? "" : absl::StrCat(" (", Printable(where_all), ")"), "\n");
  }
  return text;
}

std::string Describer::Paragraph(const std::string& text) const {
  std::string paragraph = "\n";
  for (const std::string& line : Wrapped(Printable(text), Width() + 4)) {
    absl::StrAppend(&paragraph, line, "\n");
  }
  return paragraph;
}

std::vector<std::string> Describer::WaitingLines(
    const std::function<bool(const v1::WaitingInfo&)>& of) const {
  std::vector<std::string> lines;
  for (const v1::WaitingInfo& waiting : snapshot_.waiting.waiting()) {
    if (!of(waiting)) continue;
    lines.push_back(absl::StrCat(
        Who(waiting.session_id()), ": ",
        waiting.count() == 1 ? "" : absl::StrCat(waiting.count(), " x "), Bytes(waiting.bytes()),
        " on ", On(waiting.device_uuid()), " since ", Age(waiting.age_ms()), ", at place ",
        waiting.position(), "; in its way: ", WaitsFor(waiting.blocked_by(), exact_)));
  }
  return lines;
}

std::string DescribeView(const Snapshot& snapshot, const Thing& thing, bool exact, Layout layout) {
  Describer describer(snapshot, exact, layout);
  switch (thing.what) {
    case Subject::kTenant:
      return describer.Tenant(thing.name);
    case Subject::kSession:
      return describer.Session(thing.id);
    case Subject::kLease:
      return describer.Lease(thing.id);
    case Subject::kSegment:
      return describer.Segment(thing.id);
    case Subject::kPublication:
      return describer.Publication(thing.name);
    case Subject::kDevice:
      return describer.Device(thing.name);
    case Subject::kAny:
      break;
  }
  return "";
}

}  // namespace gpumem::cli
