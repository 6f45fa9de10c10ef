// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/feed.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands/connection.h"
#include "client/web/feed/accounts.h"
#include "client/web/feed/compact.h"
#include "client/web/feed/connect.h"
#include "client/web/feed/engine.h"
#include "client/web/feed/history.h"

namespace gpumem::web {
namespace {

constexpr absl::Duration kSnapshotAge = absl::Milliseconds(100);
constexpr absl::Duration kOverviewAge = absl::Seconds(2);
constexpr absl::Duration kHistoryTime = absl::Seconds(5);
// Of the daemon, for an answer without it.
constexpr absl::Duration kHistoryInterval = absl::Seconds(10), kHistoryKept = absl::Hours(1);

class Handle final : public Subscription {
 public:
  explicit Handle(std::shared_ptr<Subscriber> subscriber) : subscriber_(std::move(subscriber)) {}
  ~Handle() override { subscriber_->End(); }

 private:
  const std::shared_ptr<Subscriber> subscriber_;
};

v1::GetHistoryResponse EmptyHistory(absl::Time now) {
  v1::GetHistoryResponse history;
  history.set_interval_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(kHistoryInterval)));
  history.set_since_unix_ms(absl::ToUnixMillis(now - kHistoryKept));
  history.set_now_unix_ms(absl::ToUnixMillis(now));
  return history;
}

// Appends the members of an overview that need a state.
void AppendTotals(const cli::Snapshot& state, std::string* json) {
  *json += ",\"version\":";
  AppendQuoted(state.status.version(), json);
  *json += ",\"daemon\":\"ok\",\"devices\":[";
  bool first = true;
  for (const v1::Device& device : state.status.devices()) {
    absl::StrAppend(json, first ? "" : ",", "{\"index\":", device.index(), ",\"uuid\":");
    first = false;
    AppendQuoted(device.device_uuid(), json);
    *json += ",\"name\":";
    AppendQuoted(device.name(), json);
    absl::StrAppend(json, ",\"capacity_bytes\":", device.capacity_bytes(),
                    ",\"charged_bytes\":", device.charged_bytes(), "}");
  }
  absl::StrAppend(json, "],\"tenants\":", state.status.tenants(),
                  ",\"sessions\":", state.status.sessions(),
                  ",\"waiting\":", state.waiting.waiting_size());
}

}  // namespace

Feed::Feed(Options options)
    : options_(std::move(options)),
      engine_(std::make_unique<Engine>(Engine::Options{
          .runtime_dir = options_.runtime_dir,
          .interval = options_.interval,
          .has_account = options_.has_account ? options_.has_account : AccountsOfSystem()})) {}

Feed::~Feed() = default;

std::unique_ptr<Subscription> Feed::Subscribe(const Viewer& viewer,
                                              std::function<void(Message)> send) {
  auto subscriber = std::make_shared<Subscriber>(viewer, std::move(send));
  auto handle = std::make_unique<Handle>(subscriber);
  engine_->Add(std::move(subscriber));
  return handle;
}

absl::StatusOr<Message> Feed::Snapshot(const Viewer& viewer) {
  Message json;
  const absl::Status status = engine_->WithState(kSnapshotAge, [&](Views& views) {
    const absl::StatusOr<View*> view = views.Of(viewer);
    if (view.ok()) json = (*view)->Json();
    return view.status();
  });
  if (!status.ok()) return status;
  return json;
}

absl::StatusOr<std::string> Feed::History(const Viewer& viewer, const std::string& device,
                                          const std::vector<std::string>& tenants) {
  std::optional<VisibleTenants> visible;
  absl::Time asked;
  absl::Status status = engine_->WithState(kOverviewAge, [&](Views& views) {
    const absl::StatusOr<View*> view = views.Of(viewer);
    if (view.ok() && (*view)->visible() != nullptr) visible = *(*view)->visible();
    asked = views.time();
    return view.status();
  });
  const VisibleTenants* of_these = visible ? &*visible : nullptr;
  if (status.ok()) status = CheckVisible(tenants, of_these);
  if (!status.ok()) return status;

  v1::GetHistoryRequest request;
  request.set_device_uuid(device);
  // A viewer who sees little costs the daemon little.
  const std::vector<std::string> named = visible ? TenantsWithHistory(tenants, *visible) : tenants;
  if (visible && named.empty()) return HistoryText(EmptyHistory(asked), of_these);
  *request.mutable_tenants() = {named.begin(), named.end()};

  // A connection for each call: an hour of all tenants may take long, and holds up no other.
  auto admin = ConnectDaemon(options_.runtime_dir, kHistoryTime);
  if (!admin.ok()) return admin.status();
  auto history = cli::Call(**admin, &v1::Admin::Stub::GetHistory, request);
  if (absl::IsNotFound(history.status()) && tenants.empty() && !named.empty()) {
    // One of them has ended since.
    request.clear_tenants();
    history = cli::Call(**admin, &v1::Admin::Stub::GetHistory, request);
  }
  if (absl::IsUnimplemented(history.status())) {
    return absl::UnimplementedError(
        "this gpumemd keeps no history: it is older than gpumem-web; update it");
  }
  if (!history.ok()) return history.status();
  return HistoryText(*history, of_these);
}

std::string Feed::Overview() {
  std::string json = "{\"node\":";
  AppendQuoted(options_.node, &json);
  const absl::Status status = engine_->WithState(kOverviewAge, [&](Views& views) {
    AppendTotals(views.state(), &json);
    return absl::OkStatus();
  });
  if (!status.ok()) {
    json +=
        ",\"version\":\"\",\"daemon\":\"lost\",\"devices\":[],\"tenants\":0,\"sessions\":0,"
        "\"waiting\":0";
  }
  return json + "}";
}

}  // namespace gpumem::web
