// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/device_plugin/unit_rounds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace gpumem::kubernetes {
namespace {

// Pauses of Prepare() between rounds, for what no peer tells of.
constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(2);
// Between the starts of rounds. Each costs the API server a list, and containers that wait ask for
// rounds at different moments: without it one would follow the other while a pod stays unknown.
constexpr absl::Duration kApart = absl::Milliseconds(250);

// True if another round may help soon.
bool IsOpen(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsFailedPrecondition(status) ||
         absl::IsDeadlineExceeded(status);
}

}  // namespace

UnitRounds::UnitRounds(const UnitRoundsOptions& options, UnitBoard* board,
                       std::function<void(absl::string_view)> say)
    : options_(options),
      board_(board),
      log_(std::move(say)),
      api_server_(options.node.api_server),
      daemon_(options.node.daemon) {}

absl::Status UnitRounds::Round() { return RoundFromNow(/*at_once=*/false).status; }

UnitRounds::Result UnitRounds::RoundFromNow(bool at_once) {
  absl::Duration pause;
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t wanted = begun_ + 1;
    const auto ready = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !running_ || ended_ >= wanted;
    };
    mutex_.Await(absl::Condition(&ready));
    if (ended_ >= wanted) return last_;
    running_ = true;
    pause = std::min(kApart, begun_at_ + kApart - absl::Now());  // the clock may be set back
  }
  absl::SleepFor(pause);
  {
    // Only now: calls that came meanwhile share this round.
    absl::MutexLock lock(&mutex_);
    ++begun_;
    begun_at_ = absl::Now();
  }
  Result result = MakeRound(at_once);
  absl::MutexLock lock(&mutex_);
  last_ = result;
  running_ = false;
  ended_ = begun_;
  return result;
}

std::set<std::string> UnitRounds::HeldGpus() const {
  std::set<std::string> uuids;
  absl::MutexLock lock(&mutex_);
  for (const DevicePod& pod : listed_) {
    for (const std::string& id : pod.ids) {
      if (const auto unit = ParseId(id); unit.ok()) uuids.insert(unit->uuid);
    }
  }
  return uuids;
}

void UnitRounds::SetUnits(const absl::StatusOr<v1::GetStatusResponse>& status) {
  const std::optional<UnitList> earlier = board_->Get();
  auto units = status.ok() ? UnitsOf(status->devices(), options_.step)
                           : absl::StatusOr<UnitList>(status.status());
  if (status.ok()) log_.SayOnce("units", units.ok() ? "" : std::string(units.status().message()));
  if (units.ok()) {
    away_.reset();
    board_->Set(earlier.has_value() ? WithLost(*std::move(units), *earlier, HeldGpus()) : *units);
    return;
  }
  if (!away_.has_value()) away_ = absl::Now();
  if (earlier.has_value() && absl::Now() - *away_ >= options_.grace) {
    board_->Set(Unhealthy(*earlier));
  }
}

absl::StatusOr<std::vector<DevicePod>> UnitRounds::AskKubelet() const {
  return ListDevicePods(
      options_.node.kubelet_socket,
      [&](absl::string_view resource) { return HasUnits(resource, options_.resource); },
      options_.node.timeout);
}

absl::StatusOr<std::vector<DevicePod>> UnitRounds::ListPods() {
  auto pods = AskKubelet();
  log_.SayOnce("kubelet", pods.ok() ? "" : std::string(pods.status().message()));
  if (!pods.ok()) return pods;
  absl::MutexLock lock(&mutex_);
  listed_ = *pods;
  return pods;
}

absl::StatusOr<PodNames> UnitRounds::ListNames() {
  const auto pods = api_server_.Pods(options_.node.node);
  log_.SayOnce("API server", pods.ok() ? "" : std::string(pods.status().message()));
  if (!pods.ok()) return pods.status();
  log_.SayOnce("lists of the API server", absl::StrJoin(pods->problems, "; "));
  return NamesOf(pods->pods);
}

absl::StatusOr<std::map<std::string, absl::Status>> UnitRounds::CarryOut(
    const Desired& desired, absl::Span<const PresentTenant> present, bool at_once) {
  const std::vector<Step> steps = Plan(desired, present, /*may_end=*/true);
  auto failed = steps_.Carry(steps, at_once);
  if (!failed.ok()) return failed;
  // Tenants that had ended are gone now, and those of their names can be made.
  std::vector<Step> makes;
  for (const Step& step : steps) {
    const auto wanted = desired.tenants.find(step.tenant);
    if (step.kind != Step::Kind::kEnd || wanted == desired.tenants.end()) continue;
    if (!failed->contains(step.tenant)) {
      makes.push_back({Step::Kind::kCreate, step.tenant, wanted->second});
    }
  }
  if (makes.empty()) return failed;
  auto more = steps_.Carry(makes, at_once);
  if (more.ok()) more->merge(*failed);
  return more;
}

UnitRounds::Result UnitRounds::MakeRound(bool at_once) {
  const auto status = daemon_.Status();
  SetUnits(status);
  const auto tenants =
      status.ok() ? daemon_.Tenants() : absl::StatusOr<v1::ListTenantsResponse>(status.status());
  log_.SayOnce("gpumemd", tenants.ok() ? "" : std::string(tenants.status().message()));
  if (!tenants.ok()) return {.status = tenants.status()};
  const std::optional<UnitList> units = board_->Get();
  if (!units.has_value()) return {.status = absl::FailedPreconditionError("no units are known")};

  auto listed = ListPods();
  if (!listed.ok()) return {.status = listed.status()};
  const auto present = PresentTenants(*tenants, options_.node.daemon.owner);
  HolderFacts facts{.before = &names_, .units = &*units, .known = known_};
  for (const PresentTenant& tenant : present) facts.tenants.insert(tenant.name);

  auto names = ListNames();
  if (!names.ok()) {
    return {names.status(), WithoutNames(*listed, present, known_, names.status()), true};
  }
  facts.listed = *listed;
  facts.after = &*names;
  Holders holders = HoldersOf(facts);
  if (holders.read_again) {
    names_ = *names;
    auto again = ListPods();
    auto newer = again.ok() ? ListNames() : absl::StatusOr<PodNames>(again.status());
    if (newer.ok()) {
      *listed = *std::move(again);
      *names = *std::move(newer);
      facts.listed = *listed;
      holders = HoldersOf(facts);
    }
  }
  log_.SayOnce("pods", absl::StrJoin(holders.desired.problems, "; "));

  const auto failed = CarryOut(holders.desired, present, at_once);
  if (!failed.ok()) return {.status = failed.status()};
  bool known = true;
  for (Holder& pod : holders.pods) {
    const auto failure = failed->find(pod.tenant);
    if (failure != failed->end()) pod.status = failure->second;
    known &= pod.status.ok();
  }

  // Names are remembered as long as tenants are there.
  std::map<std::string, PodName> remembered;
  const auto remember = [&](const std::string& tenant) {
    const auto origin = holders.desired.origins.find(tenant);
    const auto earlier = known_.find(tenant);
    if (earlier != known_.end()) remembered[tenant] = earlier->second;
    if (origin != holders.desired.origins.end()) {
      remembered[tenant] = {origin->second.name_space, origin->second.pod};
    }
  };
  for (const PresentTenant& tenant : present) remember(tenant.name);
  for (const auto& [tenant, quota] : holders.desired.tenants) remember(tenant);
  known_ = std::move(remembered);
  names_ = *std::move(names);
  absl::Status all = known && failed->empty()
                         ? absl::OkStatus()
                         : absl::FailedPreconditionError("some pods do not have their share");
  return {std::move(all), std::move(holders.pods), true};
}

absl::Status UnitRounds::Prepare(absl::Span<const std::string> ids,
                                 const std::function<bool()>& cancelled, absl::Time deadline) {
  for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const Result result = RoundFromNow(/*at_once=*/true);
    absl::Status status = result.status;
    if (result.pods_known) {
      const Holder* const pod = HolderOf(result.pods, ids);
      status = pod == nullptr ? absl::OkStatus() : pod->status;
      if (pod != nullptr && !status.ok()) {
        status = absl::Status(status.code(), absl::StrCat(pod->name.first, "/", pod->name.second,
                                                          ": ", status.message()));
      }
    }
    if (!IsOpen(status) || cancelled() || absl::Now() + pause >= deadline) return status;
    absl::SleepFor(pause);
  }
}

bool UnitRounds::PodsHaveChanged() const {
  const auto pods = AskKubelet();
  absl::MutexLock lock(&mutex_);
  return pods.ok() && *pods != listed_;
}

}  // namespace gpumem::kubernetes
