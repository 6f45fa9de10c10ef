// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/api_server.h"

#include <httplib.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/kubernetes/api/cache.h"
#include "client/kubernetes/api/json_reader.h"
#include "client/kubernetes/api/line_splitter.h"
#include "client/kubernetes/api/objects.h"
#include "common/kubernetes/names.h"

namespace gpumem::kubernetes {
namespace {

constexpr size_t kMostToken = 64 << 10;
constexpr size_t kMostMessage = 200;
constexpr size_t kMostRefusal = 64 << 10;
constexpr int kPart = 500;           // items of each part of a list
constexpr int kMostParts = 1000;     // of a list
constexpr int kShortestWatch = 300;  // seconds
constexpr const char* kVersions[] = {"v1", "v1beta2", "v1beta1"};

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string token(kMostToken + 1, '\0');
  file.read(token.data(), static_cast<std::streamsize>(token.size()));
  if (file.bad() || file.gcount() <= 0) {
    return absl::UnauthenticatedError(absl::StrCat("no token can be read from ", path));
  }
  token.resize(static_cast<size_t>(file.gcount()));
  absl::StripAsciiWhitespace(&token);
  const bool valid = !token.empty() && token.size() <= kMostToken &&
                     std::all_of(token.begin(), token.end(),
                                 [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (!valid) return absl::UnauthenticatedError(absl::StrCat(path, " has no token"));
  return token;
}

// Returns the error of an answer, with the message of its Status object.
absl::Status ErrorOf(int code, const std::string& path, const std::string& body) {
  std::string message = absl::StrCat("the API server answers ", path, " with ", code);
  const auto status = ParseJson(body, kMostText, kMostDepth);
  if (status.ok()) {
    const std::string reason = Text(*status, "message", 4096);
    if (!reason.empty()) absl::StrAppend(&message, ": ", reason.substr(0, kMostMessage));
  }
  switch (code) {
    case 400:
    case 422:
      return absl::InvalidArgumentError(message);
    case 401:
      return absl::UnauthenticatedError(message);
    case 403:
      return absl::PermissionDeniedError(message);
    case 404: {
      // That an object is not there, and not that a version or resource is unknown.
      const bool object = status.ok() && !Text(Object(*status, "details"), "name", 4096).empty();
      return object ? absl::NotFoundError(message) : absl::UnimplementedError(message);
    }
    case 409:
    case 410:
      return absl::AbortedError(message);
    case 429:
      return absl::UnavailableError(message);
    default:
      return code >= 500 ? absl::UnavailableError(message) : absl::UnknownError(message);
  }
}

absl::Status ErrorOf(const ApiServerOptions& options, httplib::Error error, long verified) {
  switch (error) {
    case httplib::Error::SSLLoadingCerts:
      return absl::UnavailableError("the CA bundle of the API server cannot be read");
    case httplib::Error::SSLServerVerification:
      return absl::UnavailableError(absl::StrCat("the API server's certificate is not valid: ",
                                                 verified == X509_V_OK
                                                     ? "it is another host's"
                                                     : X509_verify_cert_error_string(verified)));
    default:
      return absl::UnavailableError(absl::StrCat("no answer from the API server, ", options.host,
                                                 " port ", options.port, " (",
                                                 httplib::to_string(error), ")"));
  }
}

}  // namespace

absl::StatusOr<ApiServerOptions> ParseUrl(absl::string_view url) {
  const absl::Status error =
      absl::InvalidArgumentError(absl::StrCat("\"", url, "\" is not https://HOST[:PORT]"));
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, "https://")) return error;
  absl::ConsumeSuffix(&rest, "/");
  ApiServerOptions options;
  absl::string_view port;
  bool has_port = false;
  if (absl::ConsumePrefix(&rest, "[")) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(rest, absl::MaxSplits(']', 1));
    options.host = std::string(parts.first);
    port = parts.second;
    has_port = absl::ConsumePrefix(&port, ":");
    if (!absl::StrContains(rest, ']') || (!has_port && !port.empty())) return error;
  } else {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(rest, absl::MaxSplits(':', 1));
    options.host = std::string(parts.first);
    port = parts.second;
    has_port = absl::StrContains(rest, ':');
  }
  const bool valid = !options.host.empty() &&
                     std::all_of(options.host.begin(), options.host.end(), [](unsigned char c) {
                       return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == ':';
                     });
  if (!valid) return error;
  if (has_port &&
      (!absl::SimpleAtoi(port, &options.port) || options.port < 1 || options.port > 65535)) {
    return error;
  }
  return options;
}

std::string UrlOfPod() {
  const char* const host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* const port = std::getenv("KUBERNETES_SERVICE_PORT");
  if (host == nullptr || *host == '\0') return "";
  const bool brackets = absl::StrContains(host, ':');
  return absl::StrCat("https://", brackets ? "[" : "", host, brackets ? "]" : "", ":",
                      port == nullptr ? "443" : port);
}

void ApiServer::Cancel() {
  absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  for (httplib::SSLClient* const call : calls_) call->stop();
}

absl::Status ApiServer::Send(const Request& request) {
  const auto token = ReadToken(options_.token_file);
  if (!token.ok()) return token.status();
  httplib::SSLClient client(options_.host, options_.port);
  client.set_ca_cert_path(options_.ca_file);
  client.enable_server_certificate_verification(true);
  client.set_follow_location(false);
  client.set_connection_timeout(absl::ToChronoMicroseconds(options_.timeout));
  client.set_read_timeout(absl::ToChronoMicroseconds(request.silence));
  client.set_write_timeout(absl::ToChronoMicroseconds(options_.timeout));

  httplib::Request sent;
  sent.method = request.method;
  sent.path = request.path + request.query;
  sent.headers = {{"Authorization", absl::StrCat("Bearer ", *token)},
                  {"Accept", "application/json"},
                  {"Accept-Encoding", "identity"}};
  if (!request.body.empty()) sent.headers.emplace("Content-Type", "application/json");
  sent.body = request.body;
  const auto is_cancelled = [&] {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  };
  int status = 0;
  std::string refusal;  // the body of an error
  bool ended = false, too_late = false;
  sent.response_handler = [&](const httplib::Response& response) {
    status = response.status;
    if (status == 200 && request.on_open) request.on_open();
    return !is_cancelled();
  };
  sent.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    too_late = absl::Now() > request.deadline;
    if (too_late || is_cancelled()) return false;
    if (status == 200 || status == 201) {
      ended = !request.on_data(absl::string_view(data, size));
      return !ended;
    }
    refusal.append(data, std::min(size, kMostRefusal - refusal.size()));
    return true;
  };
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return absl::CancelledError("the call was cancelled");
    calls_.insert(&client);
  }
  const httplib::Result result = client.send(sent);
  {
    absl::MutexLock lock(&mutex_);
    calls_.erase(&client);
    if (cancelled_) return absl::CancelledError("the call was cancelled");
  }
  if (ended) return absl::OkStatus();
  if (too_late || (!result && absl::Now() > request.deadline)) {
    return absl::DeadlineExceededError(absl::StrCat("the API server has not answered ",
                                                    request.path, " in ",
                                                    absl::FormatDuration(options_.timeout)));
  }
  if (!result) return ErrorOf(options_, result.error(), client.get_openssl_verify_result());
  if (status != 200 && status != 201) return ErrorOf(status, request.path, refusal);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ApiServer::Send(const char* method, const std::string& path,
                                            const std::string& query, const std::string& body) {
  std::string answer;
  bool too_large = false;
  const absl::Status sent = Send({.method = method,
                                  .path = path,
                                  .query = query,
                                  .body = body,
                                  .silence = options_.timeout,
                                  .deadline = absl::Now() + options_.timeout,
                                  .on_open = nullptr,
                                  .on_data = [&](absl::string_view data) {
                                    too_large = answer.size() + data.size() > kMostText;
                                    if (!too_large) answer.append(data.data(), data.size());
                                    return !too_large;
                                  }});
  if (!sent.ok()) return sent;
  if (too_large) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the API server's answer to ", path, " is larger than ", kMostText, " bytes"));
  }
  return answer;
}

absl::StatusOr<std::string> ApiServer::Read(const std::string& path) {
  return Send("GET", path, /*query=*/"", /*body=*/"");
}
absl::Status ApiServer::Create(const std::string& path, const std::string& body) {
  return Send("POST", path, /*query=*/"", body).status();
}
absl::Status ApiServer::Replace(const std::string& path, const std::string& body) {
  return Send("PUT", path, /*query=*/"", body).status();
}

absl::Status ApiServer::InVersion(absl::FunctionRef<absl::Status(const std::string& group)> send) {
  std::string known;
  {
    absl::MutexLock lock(&mutex_);
    known = version_;
  }
  const auto send_to = [&](absl::string_view version) {
    return send(absl::StrCat("/apis/resource.k8s.io/", version, "/"));
  };
  if (!known.empty()) {
    absl::Status sent = send_to(known);
    if (!absl::IsUnimplemented(sent)) return sent;
  }
  // It was upgraded, or is not known yet.
  for (const char* const version : kVersions) {
    if (version == known) continue;
    absl::Status sent = send_to(version);
    if (absl::IsUnimplemented(sent)) continue;
    if (sent.ok() || absl::IsNotFound(sent)) {
      absl::MutexLock lock(&mutex_);
      version_ = version;
    }
    return sent;
  }
  return absl::UnimplementedError(
      "the API server has no dynamic resource allocation (resource.k8s.io/v1, v1beta2 or v1beta1)");
}

absl::Status ApiServer::List(
    const std::string& resource, const std::string& selector,
    absl::FunctionRef<absl::StatusOr<std::string>(absl::string_view)> on_part) {
  std::string next;
  int items = kPart;
  for (int part = 0; part < kMostParts; ++part) {
    std::string text;
    absl::Status read = InVersion([&](const std::string& group) -> absl::Status {
      httplib::Params parameters = {{"limit", absl::StrCat(items)}};
      if (!selector.empty()) parameters.emplace("fieldSelector", selector);
      if (!next.empty()) parameters.emplace("continue", next);
      auto answer = Send("GET", group + resource, httplib::append_query_params("", parameters),
                         /*body=*/"");
      if (!answer.ok()) return answer.status();
      text = *std::move(answer);
      return absl::OkStatus();
    });
    // Other users' objects may be large, and hide none of ours.
    if (absl::IsResourceExhausted(read) && items > 1) {
      items = std::max(1, items / 8);
      continue;
    }
    if (!read.ok()) return read;
    auto token = on_part(text);
    if (!token.ok()) {
      return absl::Status(token.status().code(),
                          absl::StrCat("the list of ", resource, ": ", token.status().message()));
    }
    if (token->empty()) return absl::OkStatus();
    next = *std::move(token);
    items = std::min(2 * items, kPart);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the cluster's list of ", resource, " has too many parts"));
}

absl::Status ApiServer::Watch(const std::string& resource, const std::string& selector,
                              const std::string& version, absl::FunctionRef<void()> on_open,
                              absl::FunctionRef<absl::Status(absl::string_view)> on_line) {
  absl::BitGen random;
  const int seconds = absl::Uniform(random, kShortestWatch, 2 * kShortestWatch);
  httplib::Params parameters = {{"watch", "true"},
                                {"allowWatchBookmarks", "true"},
                                {"resourceVersion", version},
                                {"timeoutSeconds", absl::StrCat(seconds)}};
  if (!selector.empty()) parameters.emplace("fieldSelector", selector);
  absl::Status failed;
  LineSplitter lines(kMostText);
  const absl::Status sent = InVersion([&](const std::string& group) {
    return Send({.method = "GET",
                 .path = group + resource,
                 .query = httplib::append_query_params("", parameters),
                 .body = "",
                 .silence = options_.silence,
                 .deadline = absl::InfiniteFuture(),
                 .on_open = on_open,
                 .on_data = [&](absl::string_view data) {
                   failed = lines.Add(data, on_line);
                   return failed.ok();
                 }});
  });
  return failed.ok() ? sent : failed;
}

}  // namespace gpumem::kubernetes
