// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api_server.h"

#include <httplib.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/kubernetes/json_reader.h"

namespace gpumem::kubernetes {
namespace {

constexpr size_t kMostToken = 64 << 10;
constexpr size_t kMostMessage = 200;
constexpr int kPart = 500;               // items of each part of a list
constexpr int kPartOfPods = 100;         // pods are large
constexpr int kMostParts = 400;          // of a list
constexpr size_t kMostClaims = 100'000;  // with devices of the driver
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
    case 404:
      return absl::NotFoundError(message);
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

absl::StatusOr<std::string> ApiServer::Get(const std::string& path, const std::string& selector,
                                           const std::string& next, int items) const {
  httplib::Params parameters = {{"limit", absl::StrCat(items)}};
  if (!selector.empty()) parameters.emplace("fieldSelector", selector);
  if (!next.empty()) parameters.emplace("continue", next);
  return Send("GET", path, httplib::append_query_params("", parameters), /*body=*/"");
}

absl::StatusOr<std::string> ApiServer::Read(const std::string& path) const {
  return Send("GET", path, /*query=*/"", /*body=*/"");
}
absl::Status ApiServer::Create(const std::string& path, const std::string& body) const {
  return Send("POST", path, /*query=*/"", body).status();
}
absl::Status ApiServer::Replace(const std::string& path, const std::string& body) const {
  return Send("PUT", path, /*query=*/"", body).status();
}

absl::StatusOr<std::string> ApiServer::Send(const char* method, const std::string& path,
                                            const std::string& query,
                                            const std::string& body) const {
  const auto token = ReadToken(options_.token_file);
  if (!token.ok()) return token.status();
  const absl::Time deadline = absl::Now() + options_.timeout;
  httplib::SSLClient client(options_.host, options_.port);
  client.set_ca_cert_path(options_.ca_file);
  client.enable_server_certificate_verification(true);
  client.set_follow_location(false);
  const auto timeout = absl::ToChronoMicroseconds(options_.timeout);
  client.set_connection_timeout(timeout);
  client.set_read_timeout(timeout);
  client.set_write_timeout(timeout);

  httplib::Request request;
  request.method = method;
  request.path = path + query;
  request.headers = {{"Authorization", absl::StrCat("Bearer ", *token)},
                     {"Accept", "application/json"},
                     {"Accept-Encoding", "identity"}};
  if (!body.empty()) request.headers.emplace("Content-Type", "application/json");
  request.body = body;
  std::string answer;
  bool too_large = false, too_late = false;
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    too_large = answer.size() + size > kMostText;
    too_late = absl::Now() > deadline;
    if (too_large || too_late) return false;
    answer.append(data, size);
    return true;
  };
  const httplib::Result result = client.send(request);
  if (too_large) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the API server's answer to ", path, " is larger than ", kMostText, " bytes"));
  }
  if (too_late || (!result && absl::Now() > deadline)) {
    return absl::DeadlineExceededError(absl::StrCat(
        "the API server has not answered ", path, " in ", absl::FormatDuration(options_.timeout)));
  }
  if (!result) return ErrorOf(options_, result.error(), client.get_openssl_verify_result());
  if (result->status != 200 && result->status != 201) {
    return ErrorOf(result->status, path, answer);
  }
  return answer;
}

absl::StatusOr<std::string> ApiServer::List(absl::string_view resource, const std::string& selector,
                                            const std::string& next) {
  const auto path = [&](absl::string_view version) {
    return absl::StrCat("/apis/resource.k8s.io/", version, "/", resource);
  };
  if (!version_.empty()) {
    auto part = Get(path(version_), selector, next, kPart);
    if (!absl::IsNotFound(part.status())) return part;
    version_.clear();  // it was upgraded
    if (!next.empty()) return absl::AbortedError(part.status().message());
  }
  for (const char* const version : kVersions) {
    auto part = Get(path(version), selector, next, kPart);
    if (part.ok()) version_ = version;
    if (!absl::IsNotFound(part.status())) return part;
  }
  return absl::NotFoundError(
      "the API server has no dynamic resource allocation (resource.k8s.io/v1, v1beta2 or v1beta1)");
}

absl::StatusOr<std::vector<Claim>> ApiServer::Claims(absl::string_view driver) {
  std::vector<Claim> claims;
  std::string next;
  for (int part = 0; part < kMostParts; ++part) {
    const auto text = List("resourceclaims", /*selector=*/"", next);
    if (!text.ok()) return text.status();
    auto list = ParseClaims(*text, driver);
    if (!list.ok()) {
      return absl::Status(list.status().code(),
                          absl::StrCat("the list of claims: ", list.status().message()));
    }
    std::move(list->claims.begin(), list->claims.end(), std::back_inserter(claims));
    if (claims.size() > kMostClaims) {
      return absl::ResourceExhaustedError("the cluster has too many claims");
    }
    if (list->next.empty()) return claims;
    next = std::move(list->next);
  }
  return absl::ResourceExhaustedError("the cluster's list of claims has too many parts");
}

absl::StatusOr<SliceList> ApiServer::Slices(absl::string_view node, absl::string_view driver) {
  const std::string selector = absl::StrCat("spec.nodeName=", node, ",spec.driver=", driver);
  const auto text = List("resourceslices", selector, /*next=*/"");
  if (!text.ok()) return text.status();
  auto list = ParseSlices(*text, driver);
  if (!list.ok()) {
    return absl::Status(list.status().code(),
                        absl::StrCat("the list of slices: ", list.status().message()));
  }
  // A node has far fewer slices than a part of the list holds.
  if (!list->next.empty()) return absl::ResourceExhaustedError("the node has too many slices");
  return list;
}

absl::StatusOr<PodList> ApiServer::Pods(absl::string_view node) const {
  const std::string selector = absl::StrCat("spec.nodeName=", node);
  PodList whole;
  std::string next;
  int items = kPartOfPods;
  for (int part = 0; part < kMostParts; ++part) {
    const auto text = Get("/api/v1/pods", selector, next, items);
    // Users make pods of 1 MiB and more: fewer of them fit.
    if (absl::IsResourceExhausted(text.status()) && items > 1) {
      items = std::max(items / 4, 1);
      continue;
    }
    if (!text.ok()) return text.status();
    auto list = ParsePods(*text);
    if (!list.ok()) {
      return absl::Status(list.status().code(),
                          absl::StrCat("the list of pods: ", list.status().message()));
    }
    std::move(list->pods.begin(), list->pods.end(), std::back_inserter(whole.pods));
    if (whole.problems.empty()) whole.problems = std::move(list->problems);
    if (whole.pods.size() > kMostPods) {
      return absl::ResourceExhaustedError("the node has too many pods");
    }
    next = std::move(list->next);
    if (next.empty()) {
      const auto order = [](const Pod& a, const Pod& b) { return a.uid < b.uid; };
      std::sort(whole.pods.begin(), whole.pods.end(), order);
      const auto same = [](const Pod& a, const Pod& b) { return a.uid == b.uid; };
      const auto twice = std::adjacent_find(whole.pods.begin(), whole.pods.end(), same);
      if (twice == whole.pods.end()) return whole;
      return absl::InvalidArgumentError(
          absl::StrCat("the list of pods: two pods have the uid ", twice->uid));
    }
  }
  return absl::ResourceExhaustedError("the node's list of pods has too many parts");
}

}  // namespace gpumem::kubernetes
