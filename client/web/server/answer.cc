// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/answer.h"

#include <boost/beast/http/status.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumem::web {
namespace {

// Everything comes from here; the page may not be in a frame of another, and no other site may read
// anything.
constexpr absl::string_view kSafety =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Frame-Options: DENY\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n";

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

}  // namespace

Answer ErrorAnswer(const absl::Status& error) {
  return ErrorAnswer(HttpStatusOf(error.code()), error);
}

Answer ErrorAnswer(int status, const absl::Status& error) {
  const nlohmann::json document = {{"error",
                                    {{"code", absl::StatusCodeToString(error.code())},
                                     {"message", std::string(error.message())}}}};
  // Messages of the daemon may quote bytes that are no UTF-8.
  Answer answer =
      JsonAnswer(document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  answer.status = status;
  return answer;
}

Answer JsonAnswer(std::string document) {
  Answer answer;
  answer.body = std::make_shared<const std::string>(std::move(document));
  return answer;
}

std::string HeadOf(const Answer& answer, bool keep_alive, std::optional<size_t> length) {
  namespace http = boost::beast::http;
  const auto reason = http::obsolete_reason(http::int_to_status(answer.status));
  std::string head =
      absl::StrCat("HTTP/1.1 ", answer.status, " ", absl::string_view(reason.data(), reason.size()),
                   "\r\nContent-Type: ", answer.type, "\r\n", kSafety);
  if (length.has_value()) absl::StrAppend(&head, "Content-Length: ", *length, "\r\n");
  if (!keep_alive) absl::StrAppend(&head, "Connection: close\r\n");
  if (answer.etag.empty()) {
    absl::StrAppend(&head, "Cache-Control: no-store\r\n");
  } else {
    absl::StrAppend(
        &head, "Cache-Control: no-cache\r\nVary: Accept-Encoding\r\nETag: ", answer.etag, "\r\n");
  }
  if (answer.gzip) absl::StrAppend(&head, "Content-Encoding: gzip\r\n");
  if (!answer.allow.empty()) absl::StrAppend(&head, "Allow: ", answer.allow, "\r\n");
  if (answer.status == 401) absl::StrAppend(&head, "WWW-Authenticate: Bearer\r\n");
  // Proxies pass messages on at once.
  if (answer.stream.has_value()) absl::StrAppend(&head, "X-Accel-Buffering: no\r\n");
  return absl::StrCat(head, "\r\n");
}

}  // namespace gpumem::web
