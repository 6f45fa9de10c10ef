// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/views.h"

#include <utility>

namespace gpumem::web {

ViewKey KeyOf(const Viewer& viewer, v1::HoldersShown shown) {
  if (viewer.sees_all) return {.sees = Sees::kOperator};
  switch (shown) {
    case v1::HOLDERS_SHOWN_ALL:
      return {.sees = Sees::kAll};
    case v1::HOLDERS_SHOWN_UNSPECIFIED:
    case v1::HOLDERS_SHOWN_OWN:
      return {.sees = Sees::kOwn, .uid = viewer.uid};
    default:  // a setting of a newer daemon may be stricter than OWN
      return {.sees = Sees::kNone, .uid = viewer.uid};
  }
}

Message View::Json() {
  if (json_ == nullptr) {
    json_ = std::make_shared<const std::string>(DocumentText(document_, number_, time_));
  }
  return json_;
}

Message View::SnapshotEvent() {
  if (snapshot_ == nullptr) {
    snapshot_ = std::make_shared<const std::string>(ServerSentEvent("snapshot", *Json()));
  }
  return snapshot_;
}

void View::Set(Document document, absl::Time now) {
  const bool first = number_ == 0;
  // The texts have the time, which readers need to compute ages, also if nothing else has changed.
  time_ = now;
  json_ = snapshot_ = nullptr;
  std::optional<std::string> change;
  if (!first) change = ChangeText(document_, document, number_ + 1, now);
  if (!first && !change) return;
  ++number_;
  document_ = std::move(document);
  change_ =
      change ? std::make_shared<const std::string>(ServerSentEvent("change", *change)) : nullptr;
}

void Views::Set(cli::Snapshot state, absl::Time now) {
  privacy_.reset();
  state_ = std::make_unique<const cli::Snapshot>(std::move(state));
  ++state_number_;
  times_.Begin(now);
}

void Views::Clear() {
  privacy_.reset();
  state_.reset();
  views_.clear();
  times_ = StableTimes();
}

absl::StatusOr<View*> Views::Of(const Viewer& viewer) {
  const ViewKey key = KeyOf(viewer, state_->status.holders_shown());
  auto found = views_.find(key);
  if (found == views_.end()) {
    ForgetUnused();
    const bool of_uid = key.sees == Sees::kOwn || key.sees == Sees::kNone;
    // The look-up may take long: not where the answer makes no difference.
    const bool has_account = !of_uid || views_.size() >= kMost || has_account_(key.uid);
    if (of_uid && !HasRoomFor(has_account)) {
      return absl::ResourceExhaustedError(
          "too many users look at this node at the same time; try again later");
    }
    found = views_.try_emplace(key, key, has_account).first;
  }
  View& view = found->second;
  view.used_ = times_.now();
  if (view.state_ != state_number_) Update(view);
  return &view;
}

bool Views::HasRoomFor(bool with_account) const {
  if (views_.size() >= kMost) return false;
  if (with_account) return true;
  size_t others = 0;
  for (const auto& [key, view] : views_) others += view.has_account_ ? 0 : 1;
  return others < kMostWithoutAccount;
}

void Views::Update(View& view) {
  view.state_ = state_number_;
  const absl::string_view sees = WordOf(view.key().sees);
  if (view.key().sees == Sees::kOperator) {
    return view.Set(MakeDocument(*state_, sees, times_), times_.now());
  }
  if (view.key().sees == Sees::kAll) {
    return view.Set(MakeDocument(WithoutOperatorsFacts(*state_), sees, times_), times_.now());
  }
  if (!privacy_) privacy_.emplace(*state_);
  view.visible_ = privacy_->Visible(view.key().sees, view.key().uid);
  view.Set(MakeDocument(privacy_->Filtered(*view.visible_), sees, times_), times_.now());
}

void Views::ForgetUnused() {
  for (auto it = views_.begin(); it != views_.end();) {
    const View& view = it->second;
    // A view with subscribers shows the last state, or is about to be updated from it.
    const bool in_use = view.state_ + 1 >= state_number_;
    it = !in_use && view.used_ + kKept < times_.now() ? views_.erase(it) : std::next(it);
  }
}

}  // namespace gpumem::web
