// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/identity/pods.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/kubernetes/names.h"

namespace gpumemd {
namespace {

constexpr size_t kMostTag = 32;  // of an owner and a revision, as of owners of tenants

bool IsTag(const std::string& text) {
  return !text.empty() && text.size() <= kMostTag &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_isprint(c); });
}

// Returns why the pod makes no sense, or "".
std::string ProblemOf(const PodFacts& pod) {
  if (!gpumem::IsPodUid(pod.uid)) return "a pod's uid is no UUID";
  const auto problem = [&](absl::string_view what) {
    return absl::StrCat("pod ", pod.uid, ": ", what);
  };
  if (!gpumem::IsDnsLabel(pod.name_space)) return problem("its namespace is none");
  if (!gpumem::IsDnsSubdomain(pod.name)) return problem("its name is none");
  if (!pod.service_account.empty() && !gpumem::IsDnsSubdomain(pod.service_account)) {
    return problem("its service account is none");
  }
  for (const auto& [key, value] : pod.labels) {
    if (!gpumem::IsLabelKey(key) || !gpumem::IsLabelValue(value)) return problem("a label is none");
  }
  const bool named = std::all_of(pod.claims.begin(), pod.claims.end(), gpumem::IsDnsSubdomain);
  return named ? "" : problem("the name of a claim is none");
}

size_t BytesOf(const PodFacts& pod) {
  size_t bytes = 0;
  const auto add = [&](const std::string& text) { bytes += text.size() + gpumem::kBytesOfText; };
  for (const std::string* const text :
       {&pod.uid, &pod.name_space, &pod.name, &pod.service_account}) {
    add(*text);
  }
  for (const auto& [key, value] : pod.labels) {
    add(key);
    add(value);
  }
  for (const std::string& claim : pod.claims) add(claim);
  return bytes;
}

}  // namespace

absl::string_view NameOf(PodFact fact) {
  switch (fact) {
    case PodFact::kNamespace:
      return "namespace";
    case PodFact::kName:
      return "pod_name";
    case PodFact::kServiceAccount:
      return "service_account";
    case PodFact::kClaim:
      return "claim";
    case PodFact::kLabel:
      return "label";
  }
  return "";
}

std::vector<std::string> ValuesOf(const PodFacts& pod, PodFact fact, const std::string& label) {
  switch (fact) {
    case PodFact::kNamespace:
      return {pod.name_space};
    case PodFact::kName:
      return {pod.name};
    case PodFact::kServiceAccount:
      if (pod.service_account.empty()) return {};
      return {pod.service_account};
    case PodFact::kClaim:
      return {pod.claims.begin(), pod.claims.end()};
    case PodFact::kLabel: {
      const auto value = pod.labels.find(label);
      if (value == pod.labels.end()) return {};
      return {value->second};
    }
  }
  return {};
}

absl::Status PodBook::Check(absl::Span<const PodFacts> pods) const {
  if (pods.size() > bounds_.pods) {
    return absl::ResourceExhaustedError(
        absl::StrCat(pods.size(), " pods; a list has at most ", bounds_.pods));
  }
  size_t bytes = 0;
  for (const PodFacts& pod : pods) {
    if (const std::string problem = ProblemOf(pod); !problem.empty()) {
      return absl::InvalidArgumentError(problem);
    }
    const size_t more = BytesOf(pod);
    if (more > bounds_.pod_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("pod ", pod.uid, " has ", more,
                                                       " bytes of facts; at most ",
                                                       bounds_.pod_bytes, " are kept"));
    }
    bytes += more;
  }
  if (bytes > bounds_.list_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes of facts; of a list at most ",
                                                     bounds_.list_bytes, " are kept"));
  }
  return absl::OkStatus();
}

absl::Status PodBook::Set(const std::string& owner, const std::string& revision,
                          std::vector<PodFacts> pods) {
  if (!IsTag(owner) || !IsTag(revision)) {
    return absl::InvalidArgumentError(
        absl::StrCat("owner and revision are 1 to ", kMostTag, " printable characters"));
  }
  if (absl::Status checked = Check(pods); !checked.ok()) return checked;
  const auto by_uid = [](const PodFacts& a, const PodFacts& b) { return a.uid < b.uid; };
  std::sort(pods.begin(), pods.end(), by_uid);
  for (size_t i = 1; i < pods.size(); ++i) {
    if (pods[i].uid == pods[i - 1].uid) {
      return absl::InvalidArgumentError(absl::StrCat("two pods have the uid ", pods[i].uid));
    }
  }
  List list = {.owner = owner, .revision = revision};
  for (PodFacts& pod : pods) {
    list.pods.push_back(std::make_shared<const PodFacts>(std::move(pod)));
  }

  absl::MutexLock lock(&mutex_);
  const auto old = std::find_if(lists_.begin(), lists_.end(),
                                [&](const List& known) { return known.owner == owner; });
  if (old == lists_.end() && !list.pods.empty() && lists_.size() >= bounds_.owners) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "pods of ", lists_.size(), " owners are known: the most; an empty list ends an owner's"));
  }
  if (old != lists_.end()) lists_.erase(old);
  if (!list.pods.empty()) lists_.push_back(std::move(list));
  auto known = std::make_shared<KnownPods>();
  for (const List& each : lists_) {
    for (const auto& pod : each.pods) known->pods_[pod->uid] = pod;
  }
  known_ = std::move(known);
  return absl::OkStatus();
}

std::shared_ptr<const KnownPods> PodBook::known() const {
  absl::MutexLock lock(&mutex_);
  return known_;
}

std::vector<PodBook::List> PodBook::lists() const {
  absl::MutexLock lock(&mutex_);
  return lists_;
}

}  // namespace gpumemd
