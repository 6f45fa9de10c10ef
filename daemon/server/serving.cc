// SPDX-License-Identifier: Apache-2.0
// The server's sockets, sessions and gRPC services, and the limits of these.
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/core/broker/views.h"
#include "daemon/server/server.h"
#include "daemon/transport/meter/activity.h"
#include "daemon/transport/peer/peer.h"
#include "daemon/transport/polling/callback_queue.h"
#include "daemon/transport/polling/quiet_grpc.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

// The largest request is a Publish of 1 MiB of metadata and 4096 leases; of operators' SetPods,
// which PodBounds bounds.
constexpr int kMaxRequestBytes = (1 << 20) + 128 * 1024;
constexpr int kMaxAdminRequestBytes = 5 << 20;
constexpr int kMaxStreamsPerConnection = 256;
constexpr int kReadChunkBytes = 8 * 1024;
constexpr int kHandshakeTimeoutMs = 5000;
// For the services that keep a thread for each call: Admin and, from gRPC, reflection.
constexpr int kMaxThreads = 64;
// Of one viewer: all event streams (EventStreams::kMost), and a few calls beside them, which take
// the broker's mutex one after another.
constexpr int kMaxViewThreads = 24;
// Memory quota of gRPC for one operator; and for the sessions of one uid and tenant, of which some
// 50 can publish at a time with the largest request.
constexpr size_t kMaxAdminTransportBytes = size_t{256} << 20;
constexpr size_t kMaxApiTransportBytes = size_t{64} << 20;
// Of one viewer: requests are small.
constexpr size_t kMaxViewTransportBytes = size_t{64} << 20;
constexpr int kMaxViewRequestBytes = 128 * 1024;
constexpr uint32_t kMaxViewConnections = 512;
constexpr uint32_t kMaxViewConnectionsPerUid = 128;

// `transport_bytes` are this server's alone.
void SetLimits(grpc::ServerBuilder& builder, const char* name, size_t transport_bytes,
               int max_request_bytes, int max_threads = kMaxThreads) {
  grpc::ResourceQuota quota(name);
  quota.Resize(transport_bytes).SetMaxThreads(max_threads);
  builder.SetResourceQuota(quota);
  // Not one for each core, which may be more than there may be threads.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetMaxReceiveMessageSize(max_request_bytes);
  // gRPC would decompress a request, to a thousand times its size, before it looks at this limit.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
}

// Leaves out the service of reflection, which gRPC's library adds to every server as soon as it is
// linked. Its methods are synchronous. The server would have a thread that takes its turn in
// waiting for sockets, and must hand the calls of sessions to other threads.
class WithoutPlugins final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
  }
};

// GrpcListener::Started of the operators' and the viewers' servers.
void SetServing(grpc::Server& server) {
  server.GetHealthCheckService()->SetServingStatus(true);
  server.GetHealthCheckService()->SetServingStatus("gpumem.v1.Admin", true);
}

// After a stall of the daemon each tool of an operator may give up its call at once.
ConnectedUsersOptions UsersOfAdminSocket() {
  ConnectedUsersOptions users;
  users.frames.max_resets = GrpcListenerOptions().max_connections_per_uid;
  return users;
}

// Returns GrpcListenerOptions::admits for root, the daemon's user and the members of `groups`, also
// if the socket's mode would admit others. `else_why` is the reason for them.
std::function<absl::Status(int, const PeerIdentity&)> AdmitsGroups(
    std::vector<std::optional<gid_t>> groups, const char* else_why) {
  return [groups = std::move(groups), else_why](int socket, const PeerIdentity& peer) {
    const bool is_member = std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
      return group && Matches({.gid = *group}, peer);
    });
    if (peer.uid != 0 && peer.uid != geteuid() && !is_member) {
      return absl::PermissionDeniedError(else_why);
    }
    // Root in a container is not therefore an operator of the machine.
    return CheckPidNamespace(socket);
  };
}

// Returns GrpcListenerOptions::on_refused: records it in the audit, as `call`.
std::function<void(const PeerIdentity&, const absl::Status&)> AuditsAs(const char* call,
                                                                       AuditSink* audit) {
  return [call, audit](const PeerIdentity& peer, const absl::Status& why) {
    audit->Record({.time = absl::Now(),
                   .event = AuditEvent::kRefused,
                   .pid = peer.pid,
                   .uid = peer.uid,
                   .call = call,
                   .why = std::string(why.message())});
  };
}

}  // namespace

absl::Status Server::Listen(std::vector<NamedFd> handed_over) {
  TakeOverGrpcTimers();
  StartCallbackThreads(config_.spin);
  const bool kept = manager_ != nullptr && manager_->keeper_pid() != 0;
  absl::StatusOr<Listeners> listeners = Listeners::Open(config_, std::move(handed_over), kept);
  if (!listeners.ok()) return listeners.status();
  listeners_ = *std::move(listeners);
  if (kept) {
    if (absl::Status stored = listeners_.KeepIn(*manager_); !stored.ok()) {
      spdlog::warn(
          "gpumem-keeper does not keep the sockets ({}): connections fail while a daemon restarts",
          std::string(stored.message()));
    }
  }
  if (!listeners_.notices.empty()) {
    device_notices_.insert(device_notices_.end(), listeners_.notices.begin(),
                           listeners_.notices.end());
    absl::MutexLock lock(&mutex_);
    for (const std::string& notice : listeners_.notices) {
      spdlog::warn("{}", notice);
      notices_.push_back(notice);
    }
  }

  absl::StatusOr<std::unique_ptr<HistorySampler>> history = HistorySampler::Start(broker_.get());
  if (!history.ok()) return history.status();
  history_ = *std::move(history);
  hub_.Own(std::make_unique<WatchHub>(broker_.get()));
  grpc::EnableDefaultHealthCheckService(true);
  // For operators.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  api_servers_ = std::make_unique<ApiServers>([this](grpc::ServerBuilder& builder) {
    SetLimits(builder, "api", kMaxApiTransportBytes, kMaxRequestBytes);
    builder.SetOption(std::make_unique<WithoutPlugins>());
    // Whatever a peer has sent, others have their turn after so much of it.
    for (const char* chunk : {GRPC_ARG_TCP_READ_CHUNK_SIZE, GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE,
                              GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE}) {
      builder.AddChannelArgument(chunk, kReadChunkBytes);
    }
    builder.RegisterService(broker_service_.get());
  });
  sessions_.Own(std::make_unique<SessionServer>(
      std::move(listeners_.session), broker_.get(), config_.rules,
      [this](SessionId ended) { hub_->SessionEnded(ended); },
      SessionServerOptions{.generation = continuity_ == nullptr ? 0 : continuity_->generation(),
                           .audit = audit_->sink(),
                           .pods = &pods_,
                           .connect_api = [this](uid_t uid, const std::string& tenant) {
                             return api_servers_->Connect(uid, tenant);
                           }}));
  const auto known = broker_->views().ListSessions("");
  for (const SessionView& view : *known) {
    auto survivor = survivors_.find(view.id);
    if (survivor == survivors_.end()) continue;
    sessions_->Adopt(view.id, std::move(survivor->second.peer), survivor->second.match);
  }
  survivors_.clear();
  broker_service_ = std::make_unique<BrokerService>(broker_.get(), sessions_.get(), hub_.get());
  ListenForOperators();
  ListenForViewers();
  sessions_->Start();
  if (absl::Status started = StartMonitor(); !started.ok()) return started;
  StartMetrics();
  admin_listener_->Start();
  view_listener_->Start();
  return absl::OkStatus();
}

AdminService::Hooks Server::ShowingHooks(EventStreams* events) {
  return {
      .fill_status = [this](gpumem::v1::GetStatusResponse& status) { FillStatus(status); },
      .history =
          [this](const gpumem::v1::GetHistoryRequest& request) { return history_->Read(request); },
      .events = events,
      .pods = &pods_};
}

void Server::ListenForOperators() {
  AdminService::Hooks hooks = ShowingHooks(&event_streams_);
  hooks.reload = [this](const std::vector<AuditOperator>& by) { return Reload(by); };
  hooks.check_reload = [this] { return CheckReload(); };
  hooks.who = [this](const std::string& peer) { return admin_peers_.Find(peer); };
  hooks.audit = audit_->sink();
  hooks.traces = &traces_;
  admin_service_ = std::make_unique<AdminService>(broker_.get(), quotas_.get(), std::move(hooks));
  admin_listener_ = std::make_unique<GrpcListener>(
      std::move(listeners_.admin),
      [service = admin_service_.get()](grpc::ServerBuilder& builder) {
        SetLimits(builder, "admin", kMaxAdminTransportBytes, kMaxAdminRequestBytes);
        builder.RegisterService(service);
      },
      SetServing,
      GrpcListenerOptions{
          .users = UsersOfAdminSocket(),
          .admits =
              AdmitsGroups({config_.admin_gid},
                           "the admin socket is for root, the daemon's user and its admin group"),
          .on_connected =
              [this](uint64_t connection, int socket, const PeerIdentity& peer) {
                admin_peers_.Connected(connection, socket, peer);
              },
          .on_ended = [this](uint64_t connection) { admin_peers_.Ended(connection); },
          .on_refused = AuditsAs("admin", audit_->sink())});
}

void Server::ListenForViewers() {
  view_service_ =
      std::make_unique<ViewService>(broker_.get(), quotas_.get(), ShowingHooks(&view_streams_));
  // Viewers share no limit with operators.
  view_listener_ = std::make_unique<GrpcListener>(
      std::move(listeners_.view),
      [service = view_service_.get()](grpc::ServerBuilder& builder) {
        SetLimits(builder, "view", kMaxViewTransportBytes, kMaxViewRequestBytes, kMaxViewThreads);
        builder.RegisterService(service);
      },
      SetServing,
      GrpcListenerOptions{
          .max_connections = kMaxViewConnections,
          .max_connections_per_uid = kMaxViewConnectionsPerUid,
          .admits = AdmitsGroups({config_.admin_gid, config_.view_gid},
                                 "the view socket is for root, the daemon's user, its view group "
                                 "and its admin group"),
          .on_refused = AuditsAs("view", audit_->sink())});
}

absl::Status Server::StartMonitor() {
  if (process_memory_ == nullptr) return absl::OkStatus();
  auto monitor = UnbrokeredMonitor::Start(
      broker_.get(), process_memory_,
      {.config = config_.unbrokered,
       .audit = audit_->sink(),
       .process_of = [sessions = sessions_.get()](SessionId id) { return sessions->ProcessOf(id); },
       .activity = [] { return ActivityWatch::count(); }});
  if (!monitor.ok()) return monitor.status();
  monitor_ = *std::move(monitor);
  return absl::OkStatus();
}

}  // namespace gpumemd
