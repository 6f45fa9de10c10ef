// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/facts/facts.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gpumem::kubernetes {
namespace {

constexpr size_t kMostProblems = 16;

// Calls `visit` with each text of the pod, in an order that is always the same.
template <typename Visitor>
void VisitTexts(const Pod& pod, const Visitor& visit) {
  for (const std::string* const text :
       {&pod.uid, &pod.name_space, &pod.name, &pod.service_account}) {
    visit(*text);
  }
  for (const auto& [key, value] : pod.labels) {
    visit(key);
    visit(value);
  }
  for (const std::string& claim : pod.claims) visit(claim);
}

size_t BytesOf(const Pod& pod) {
  size_t bytes = 0;
  VisitTexts(pod, [&](const std::string& text) { bytes += text.size() + kBytesOfText; });
  return bytes;
}

// FNV-1a. Names and values have no NUL; numbers of labels and claims keep their texts apart.
uint64_t HashOf(absl::Span<const Pod* const> pods) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](absl::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    hash *= 0x100000001b3;
  };
  for (const Pod* const pod : pods) {
    add(absl::StrCat(pod->labels.size(), " ", pod->claims.size()));
    VisitTexts(*pod, add);
  }
  return hash;
}

}  // namespace

Facts FactsOf(absl::Span<const Pod> pods, absl::string_view owner, const PodBounds& bounds) {
  Facts facts;
  std::vector<std::pair<size_t, const Pod*>> smallest_first;
  for (const Pod& pod : pods) {
    if (!pod.described || pod.phase == "Succeeded" || pod.phase == "Failed") continue;
    smallest_first.emplace_back(BytesOf(pod), &pod);
  }
  std::sort(smallest_first.begin(), smallest_first.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second->uid < b.second->uid;
  });
  std::vector<const Pod*> told;
  size_t bytes = 0;
  for (const auto& [more, pod] : smallest_first) {
    if (more <= bounds.pod_bytes && bytes + more <= bounds.list_bytes &&
        told.size() < bounds.pods) {
      bytes += more;
      told.push_back(pod);
    } else if (facts.problems.size() < kMostProblems) {
      facts.problems.push_back(DescribeProblem(*pod, "its facts are more than gpumemd keeps"));
    }
  }
  std::sort(told.begin(), told.end(), [](const Pod* a, const Pod* b) { return a->uid < b->uid; });
  facts.request.set_owner(std::string(owner));
  facts.request.set_revision(absl::StrFormat("%016x", HashOf(told)));
  for (const Pod* const pod : told) {
    v1::PodFacts& added = *facts.request.add_pods();
    added.set_uid(pod->uid);
    added.set_namespace_(pod->name_space);
    added.set_name(pod->name);
    added.set_service_account(pod->service_account);
    for (const auto& [key, value] : pod->labels) {
      v1::PodLabel& label = *added.add_labels();
      label.set_key(key);
      label.set_value(value);
    }
    for (const std::string& claim : pod->claims) added.add_claims(claim);
  }
  return facts;
}

}  // namespace gpumem::kubernetes
