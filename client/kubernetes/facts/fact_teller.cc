// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/facts/fact_teller.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/kubernetes/facts/facts.h"
#include "client/kubernetes/facts/pods_api.h"
#include "client/kubernetes/podresources.h"

namespace gpumem::kubernetes {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(500);

}  // namespace

FactTeller::FactTeller(const FactOptions& options, std::function<void(absl::string_view)> say)
    : options_(options),
      log_(std::move(say)),
      api_server_(options.api_server),
      daemon_(options.daemon) {}

absl::StatusOr<PodList> FactTeller::Pods() {
  std::string why;
  if (options_.source != FactSource::kApiServer) {
    auto pods = ListPodsOfKubelet(options_.pods_socket, options_.timeout);
    if (pods.ok() || options_.source == FactSource::kKubelet) return pods;
    why = absl::StrCat("; the kubelet: ", pods.status().message());
  }
  auto pods = api_server_.Pods(options_.node);
  if (pods.ok()) return pods;
  return absl::Status(pods.status().code(), absl::StrCat(pods.status().message(), why));
}

absl::StatusOr<bool> FactTeller::DaemonKnows(const std::string& revision) {
  const auto known = daemon_.Pods();
  if (!known.ok()) return known.status();
  for (const v1::PodFactsList& list : known->lists()) {
    if (list.owner() == options_.daemon.owner) return list.revision() == revision;
  }
  return revision.empty();
}

absl::Status FactTeller::TellOnce() {
  told_ = std::nullopt;
  Facts facts;
  if (options_.source != FactSource::kOff) {
    if (!options_.kubelet_socket.empty()) {
      // First: a pod that comes meanwhile is seen by HasChanged().
      auto names = ListPodNames(options_.kubelet_socket, options_.timeout);
      if (names.ok()) names_ = *std::move(names);
    }
    const auto pods = Pods();
    if (!pods.ok()) return pods.status();
    facts = FactsOf(pods->pods, options_.daemon.owner);
    facts.problems.insert(facts.problems.begin(), pods->problems.begin(), pods->problems.end());
    log_.SayOnce("facts of pods", absl::StrJoin(facts.problems, "; "));
  } else {
    facts = FactsOf({}, options_.daemon.owner);
  }
  // gpumemd does not keep an empty list.
  const std::string revision = facts.request.pods().empty() ? "" : facts.request.revision();
  const auto known = DaemonKnows(revision);
  absl::Status told = known.status();
  if (known.ok() && !*known) {
    told = daemon_.SetPods(facts.request);
    if (told.ok())
      log_.Say(absl::StrCat("gpumemd was told of ", facts.request.pods_size(), " pods"));
  }
  // A daemon that is away is told as soon as it is back.
  if (told.ok() || IsAway(told)) told_ = revision;
  return told;
}

absl::Status FactTeller::Tell() {
  const absl::Status told = TellOnce();
  if (options_.source != FactSource::kOff) log_.SayOnce("pods", std::string(told.message()));
  return told;
}

bool FactTeller::HasChanged() {
  if (!options_.kubelet_socket.empty()) {
    const auto names = ListPodNames(options_.kubelet_socket, options_.timeout);
    if (names.ok() && *names != names_) return true;
  }
  if (!told_) return false;  // the pause is for the peer that has failed
  const auto known = DaemonKnows(*told_);
  return known.ok() && !*known;
}

void FactTeller::Run(absl::Duration pause) {
  while (true) {
    const absl::Status told = Tell();
    // An older daemon knows no pods, and has none to forget.
    const bool ended = told.ok() || absl::IsUnimplemented(told);
    if (options_.source == FactSource::kOff && ended) return;
    const absl::Time next = absl::Now() + pause;
    do {
      absl::SleepFor(std::min(kLook, std::max(next - absl::Now(), absl::ZeroDuration())));
    } while (absl::Now() < next && (options_.source == FactSource::kOff || !HasChanged()));
  }
}

}  // namespace gpumem::kubernetes
