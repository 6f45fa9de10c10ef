// SPDX-License-Identifier: Apache-2.0
// The documents of all viewers. Viewers that see the same share one. Without I/O but for
// the look-up of accounts that it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/views/snapshot.h"
#include "client/web/feed/compact.h"
#include "client/web/feed/document.h"
#include "client/web/feed/feed_source.h"
#include "client/web/feed/privacy.h"
#include "client/web/feed/viewer.h"

namespace gpumem::web {

struct ViewKey {
  Sees sees = Sees::kNone;
  uid_t uid = 0;  // of kOwn and kNone; else 0

  bool operator==(const ViewKey&) const = default;
  bool operator<(const ViewKey& other) const {
    return std::tie(sees, uid) < std::tie(other.sees, other.uid);
  }
};

// Returns the view of a viewer, by the daemon's setting of [privacy]. UNSPECIFIED, as of daemons
// that do not report it, is as OWN, the default.
ViewKey KeyOf(const Viewer& viewer, v1::HoldersShown shown);

// A document, as it changes.
class View {
 public:
  explicit View(ViewKey key, bool has_account) : key_(key), has_account_(has_account) {}

  const ViewKey& key() const { return key_; }
  // One more for each change; 0 before the first document.
  uint64_t number() const { return number_; }
  // The document, as JSON and as a server-sent event.
  Message Json();
  Message SnapshotEvent();
  // The change from the document before; null of the first.
  const Message& change_event() const { return change_; }
  // Null if the viewer sees all tenants.
  const VisibleTenants* visible() const { return visible_ ? &*visible_ : nullptr; }

 private:
  friend class Views;
  // Replaces the document.
  void Set(Document document, absl::Time now);

  const ViewKey key_;
  const bool has_account_;  // Views::HasAccount
  uint64_t number_ = 0;
  uint64_t state_ = 0;  // the number of the state that it shows
  absl::Time time_;     // of that state
  absl::Time used_;
  Document document_;
  std::optional<VisibleTenants> visible_;
  Message change_, json_, snapshot_;  // made when first asked for
};

class Views {
 public:
  // The maximum number of views; those that do not depend on the uid always get in. Each costs a
  // pass over the state.
  static constexpr size_t kMost = 64;
  // Of these, the maximum for uids without an account: one user may have thousands of those.
  static constexpr size_t kMostWithoutAccount = 16;
  // A view without use for so long is forgotten when others are added.
  static constexpr absl::Duration kKept = absl::Seconds(10);

  // Returns true if the uid is that of a user of this system.
  using HasAccount = std::function<bool(uid_t)>;
  explicit Views(HasAccount has_account = [](uid_t) { return true; })
      : has_account_(std::move(has_account)) {}

  // Replaces the state by the daemon's answer of `now`.
  void Set(cli::Snapshot state, absl::Time now);
  // Forgets the state and all views.
  void Clear();

  bool empty() const { return state_ == nullptr; }
  // Requires that there is a state, as the functions below.
  const cli::Snapshot& state() const { return *state_; }
  absl::Time time() const { return times_.now(); }

  // Returns the viewer's view, up to date. Valid until the next call of a function here.
  //   RESOURCE_EXHAUSTED  too many users look at the same time
  absl::StatusOr<View*> Of(const Viewer& viewer);

 private:
  void Update(View& view);
  void ForgetUnused();
  bool HasRoomFor(bool with_account) const;

  const HasAccount has_account_;
  std::unique_ptr<const cli::Snapshot> state_;
  uint64_t state_number_ = 0;
  std::optional<Privacy> privacy_;  // of state_, when first needed
  StableTimes times_;
  std::map<ViewKey, View> views_;
};

}  // namespace gpumem::web
