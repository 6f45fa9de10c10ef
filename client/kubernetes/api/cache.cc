// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/cache.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gpumem::kubernetes {
namespace {

constexpr size_t kMostToken = 16384;
constexpr size_t kMostVersion = 256;
constexpr size_t kMostMessage = 200;
constexpr size_t kMostWord = 253;
constexpr int64_t kGone = 410;

bool IsOfKind(const Json& object, absl::string_view kind) {
  return Text(object, "kind", kMostWord) == kind &&
         absl::StartsWith(Text(object, "apiVersion", kMostWord), "resource.k8s.io/");
}

absl::Status ErrorOf(const Json& status) {
  const Json& code = Member(status, "code");
  const std::string reason = Text(status, "reason", kMostWord);
  const std::string message = absl::StrCat("the API server ends the watch: ",
                                           Text(status, "message", 4096).substr(0, kMostMessage));
  const bool gone = (code.is_number_integer() && code.get<int64_t>() == kGone) ||
                    reason == "Expired" || reason == "Gone";
  return gone ? absl::AbortedError(message) : absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<ListPart> ParseListPart(absl::string_view text, absl::string_view kind) {
  auto list = ParseJson(text, kMostText, kMostDepth);
  if (!list.ok()) return list.status();
  const std::string list_kind = absl::StrCat(kind, "List");
  if (!IsOfKind(*list, list_kind)) {
    return absl::InvalidArgumentError(absl::StrCat("it is no ", list_kind, " of resource.k8s.io"));
  }
  const Json& items = Member(*list, "items");
  if (!items.is_array() && !items.is_null()) {
    return absl::InvalidArgumentError("its items are none");
  }
  if (items.size() > kMostItems) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has ", items.size(), " items; at most ", kMostItems, " are read"));
  }
  ListPart part;
  const Json& metadata = Object(*list, "metadata");
  part.version = Text(metadata, "resourceVersion", kMostVersion);
  if (part.version.empty()) return absl::InvalidArgumentError("the list has no version");
  part.next = Text(metadata, "continue", kMostToken);
  const Json& stated = Member(metadata, "continue");
  if (part.next.empty() && stated.is_string() && !stated.get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError("its token of the next part is none");
  }
  part.list = *std::move(list);
  return part;
}

absl::StatusOr<Event> ParseEvent(absl::string_view line, absl::string_view kind) {
  auto json = ParseJson(line, kMostText, kMostDepth);
  if (!json.ok()) return json.status();
  const std::string type = Text(*json, "type", kMostWord);
  const Json& object = Object(*json, "object");
  if (type == "ERROR") return ErrorOf(object);
  Event event;
  if (type == "ADDED" || type == "MODIFIED") {
    event.type = Event::Type::kPut;
  } else if (type == "DELETED") {
    event.type = Event::Type::kDelete;
  } else if (type != "BOOKMARK") {
    return absl::InvalidArgumentError("the watch has an event of an unknown type");
  }
  if (!IsOfKind(object, kind)) {
    return absl::InvalidArgumentError(absl::StrCat("the watch tells of what is no ", kind));
  }
  event.version = Text(Object(object, "metadata"), "resourceVersion", kMostVersion);
  if (event.version.empty()) return absl::InvalidArgumentError("an event has no version");
  if (event.type != Event::Type::kBookmark) event.object = std::move((*json)["object"]);
  return event;
}

std::string KeyOf(const Json& object) {
  const Json& metadata = Object(object, "metadata");
  return absl::StrCat(Text(metadata, "namespace", kMostWord), "/",
                      Text(metadata, "name", kMostWord));
}

}  // namespace gpumem::kubernetes
