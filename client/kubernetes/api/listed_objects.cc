// SPDX-License-Identifier: Apache-2.0
// ApiServer: claims and pods.
#include <httplib.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/kubernetes/api/api_server.h"
#include "client/kubernetes/api/cache.h"
#include "client/kubernetes/api/json_reader.h"
#include "client/kubernetes/api/objects.h"
#include "common/kubernetes/names.h"

namespace gpumem::kubernetes {
namespace {

constexpr int kPartOfPods = 100;     // items of each part of a list: pods are large
constexpr int kMostPodParts = 1000;  // of a list

}  // namespace

absl::StatusOr<std::vector<Claim>> ApiServer::Claims(absl::string_view driver) {
  Cache<Claim> cache(kClaimKind, [&](const Json& object) { return ReadClaim(object, driver); });
  cache.BeginList();
  const absl::Status listed = List("resourceclaims", /*selector=*/"",
                                   [&](absl::string_view text) { return cache.AddPart(text); });
  if (!listed.ok()) return listed;
  return std::vector<Claim>(cache.objects().begin(), cache.objects().end());
}

absl::StatusOr<Claim> ApiServer::ClaimOf(absl::string_view name_space, absl::string_view name,
                                         absl::string_view driver) {
  if (!IsDnsSubdomain(name_space) || !IsDnsSubdomain(name)) {
    return absl::InvalidArgumentError("it has no valid name");
  }
  std::string text;
  absl::Status read = InVersion([&](const std::string& group) -> absl::Status {
    auto answer = Read(absl::StrCat(group, "namespaces/", name_space, "/resourceclaims/", name));
    if (!answer.ok()) return answer.status();
    text = *std::move(answer);
    return absl::OkStatus();
  });
  const absl::Status none = absl::NotFoundError(
      absl::StrCat("the API server has no such claim with devices of ", driver));
  if (absl::IsNotFound(read)) return none;
  if (!read.ok()) return read;
  const auto object = ParseJson(text, kMostText, kMostDepth);
  if (!object.ok()) return object.status();
  if (Text(*object, "kind", kMostName) != kClaimKind) {
    return absl::InvalidArgumentError("the API server's answer is no claim");
  }
  auto claim = ReadClaim(*object, driver);
  if (!claim.has_value()) return none;
  return *std::move(claim);
}

absl::StatusOr<PodList> ApiServer::Pods(absl::string_view node) {
  // Pods that have ended stay until they are deleted: a cluster may have more of them than of
  // others.
  const std::string selector =
      absl::StrCat("spec.nodeName=", node, ",status.phase!=Succeeded,status.phase!=Failed");
  PodList whole;
  std::string next;
  int items = kPartOfPods;
  for (int part = 0; part < kMostPodParts; ++part) {
    httplib::Params parameters = {{"limit", absl::StrCat(items)}, {"fieldSelector", selector}};
    if (!next.empty()) parameters.emplace("continue", next);
    const auto text = Send("GET", "/api/v1/pods", httplib::append_query_params("", parameters),
                           /*body=*/"");
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
