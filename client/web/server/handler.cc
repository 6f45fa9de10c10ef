// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/handler.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/web/server/bundle.h"
#include "client/web/server/users/viewer_of_peer.h"
#include "common/version.h"

namespace gpumem::web {
namespace {

using Json = nlohmann::json;

std::string TextOf(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsPost(Route route) { return route == Route::kLinks || route == Route::kLogin; }

// True if the field Accept-Encoding names gzip.
bool AcceptsGzip(const std::string& field) {
  for (const absl::string_view coding : absl::StrSplit(field, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(coding, absl::MaxSplits(';', 1));
    if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(parts.first), "gzip")) continue;
    const std::string weight = absl::AsciiStrToLower(absl::StripAsciiWhitespace(parts.second));
    return weight != "q=0" && weight != "q=0.0" && weight != "q=0.00" && weight != "q=0.000";
  }
  return false;
}

Answer FileAnswer(const Request& request) {
  const File& file = *FindFile(PathOf(request.target));
  Answer answer;
  answer.type = std::string(file.type);
  answer.etag = std::string(file.etag);
  if (absl::StrContains(request.if_none_match, file.etag)) {
    answer.status = 304;
    return answer;
  }
  answer.gzip = AcceptsGzip(request.accept_encoding);
  answer.file = answer.gzip ? file.gzip : file.plain;
  return answer;
}

Answer MeAnswer(const Viewer& viewer, const std::string& node) {
  return JsonAnswer(TextOf({{"uid", viewer.uid},
                            {"user", NameOf(viewer.uid)},
                            {"sees", viewer.sees_all ? "all" : "some"},
                            {"node", node},
                            {"version", GPUMEM_VERSION}}));
}

// Returns the answer for an error of the feed. That the daemon does not admit this program is no
// fault of the request.
Answer FeedError(const absl::Status& error) {
  return absl::IsPermissionDenied(error) ? ErrorAnswer(503, error) : ErrorAnswer(error);
}

Answer SnapshotAnswer(const absl::StatusOr<Message>& snapshot) {
  if (!snapshot.ok()) return FeedError(snapshot.status());
  Answer answer;
  answer.body = *snapshot;
  return answer;
}

}  // namespace

std::optional<Viewer> Handler::Authenticate(const Caller& caller,
                                            const std::string& authorization) {
  if (caller.viewer.has_value()) return caller.viewer;
  absl::string_view key = authorization;
  if (!absl::StartsWithIgnoreCase(key, "Bearer ")) return std::nullopt;
  key.remove_prefix(sizeof("Bearer ") - 1);
  return logins_->Find(absl::StripAsciiWhitespace(key));
}

std::optional<Answer> Handler::Refuse(const std::optional<Viewer>& viewer, const Request& request,
                                      Route route) const {
  const bool reads = request.method == "GET" || request.method == "HEAD";
  const bool page = reads && route == Route::kFile && PathOf(request.target) == "/";
  switch (CheckSender(request.sender, facts_.hosts, page)) {
    case Sender::kAdmitted:
      break;
    case Sender::kWrongHost:
      return ErrorAnswer(
          421, absl::FailedPreconditionError("the request names another host; --host adds a name"));
    case Sender::kOtherSite:
      return ErrorAnswer(absl::PermissionDeniedError("the request is from another site's page"));
  }
  if (route == Route::kNone) return ErrorAnswer(absl::NotFoundError("there is no such path"));
  if (IsPost(route) ? request.method != "POST" : !reads) {
    Answer answer = ErrorAnswer(
        405, absl::UnimplementedError("this path does not support the request's method"));
    answer.allow = IsPost(route) ? "POST" : "GET, HEAD";
    return answer;
  }
  if (!viewer.has_value() && route != Route::kFile && route != Route::kLogin) {
    return ErrorAnswer(absl::UnauthenticatedError(
        "a login is needed: open a new link, which gpumemctl web prints"));
  }
  return std::nullopt;
}

Calls::Ticket Handler::Handle(const Caller& caller, const std::optional<Viewer>& viewer,
                              const Request& request, const Done& done) {
  const Route route = RouteOf(request.target);
  if (std::optional<Answer> refusal = Refuse(viewer, request, route)) {
    done(*std::move(refusal));
    return nullptr;
  }
  switch (route) {
    case Route::kFile:
      done(FileAnswer(request));
      return nullptr;
    case Route::kLogin:
      done(LoginAnswer(caller, request.body));
      return nullptr;
    case Route::kLinks:
      done(LinkAnswer(caller, *viewer));
      return nullptr;
    case Route::kPeers:
      done(JsonAnswer(facts_.peers == nullptr ? "[]" : facts_.peers()));
      return nullptr;
    case Route::kStream: {
      Answer answer;
      answer.type = "text/event-stream";
      answer.stream = viewer;
      done(std::move(answer));
      return nullptr;
    }
    default:
      return Ask(route, *viewer, request, done);
  }
}

Calls::Ticket Handler::Ask(Route route, const Viewer& viewer, const Request& request,
                           const Done& done) {
  HistoryQuery query;
  if (route == Route::kHistory) {
    absl::StatusOr<HistoryQuery> parsed = ParseHistoryQuery(request.target);
    if (!parsed.ok()) {
      done(ErrorAnswer(parsed.status()));
      return nullptr;
    }
    query = *std::move(parsed);
  }
  Calls* const calls = route == Route::kMe ? names_ : calls_;
  absl::StatusOr<Calls::Ticket> ticket =
      calls->Add(facts_.user_of(viewer.uid), [feed = feed_, node = facts_.node, route, viewer,
                                              query = std::move(query), done](Calls::Place place) {
        Answer answer;
        if (route == Route::kMe) {
          answer = MeAnswer(viewer, node);
        } else if (route == Route::kSnapshot) {
          answer = SnapshotAnswer(feed->Snapshot(viewer));
        } else if (route == Route::kHistory) {
          absl::StatusOr<std::string> history = feed->History(viewer, query.device, query.tenants);
          answer = history.ok() ? JsonAnswer(*std::move(history)) : FeedError(history.status());
        } else {
          answer = JsonAnswer(feed->Overview());
        }
        answer.place = std::move(place);
        done(std::move(answer));
      });
  if (ticket.ok()) return *std::move(ticket);
  done(ErrorAnswer(ticket.status()));
  return nullptr;
}

absl::StatusOr<std::string> Handler::NewLink(const Viewer& viewer) {
  if (facts_.origin.empty()) {
    return absl::FailedPreconditionError(
        "gpumem-web listens on no port, for which login links are");
  }
  absl::StatusOr<std::string> token = logins_->NewLink(viewer);
  if (!token.ok()) return token.status();
  return absl::StrCat(facts_.origin, "/#login=", *token);
}

Answer Handler::LinkAnswer(const Caller& caller, const Viewer& viewer) {
  if (!caller.viewer.has_value()) {
    return ErrorAnswer(
        absl::PermissionDeniedError("login links are given over the unix socket only"));
  }
  const absl::StatusOr<std::string> link = NewLink(viewer);
  if (!link.ok()) return ErrorAnswer(link.status());
  return JsonAnswer(
      TextOf({{"link", *link}, {"expires_s", absl::ToInt64Seconds(Logins::kLinkLives)}}));
}

Answer Handler::LoginAnswer(const Caller& caller, const std::string& body) {
  if (caller.viewer.has_value()) {
    return ErrorAnswer(absl::FailedPreconditionError("the unix socket needs no login"));
  }
  const Json request = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto token = request.is_object() ? request.find("token") : request.end();
  if (!request.is_object() || token == request.end() || !token->is_string()) {
    return ErrorAnswer(absl::InvalidArgumentError("a login is {\"token\": TEXT}"));
  }
  const std::optional<std::string> key = logins_->Redeem(token->get_ref<const std::string&>());
  if (!key.has_value()) {
    return ErrorAnswer(
        absl::UnauthenticatedError("the login link is not valid: it works once, for 60 seconds"));
  }
  return JsonAnswer(TextOf({{"key", *key}}));
}

}  // namespace gpumem::web
