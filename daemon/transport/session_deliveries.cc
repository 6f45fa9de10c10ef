// SPDX-License-Identifier: Apache-2.0
// The session server's Deliveries: descriptors of leases and pools, sent to a session's socket.
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unix_channel.h"
#include "daemon/log/log.h"
#include "daemon/transport/session_server.h"
#include "proto/gpumem/v1/session.pb.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
namespace v1 = gpumem::v1;

// The rest of a message is for the lists of ids: 253 leases, each in two lists, and the pools.
constexpr size_t kMaxDescriptionBytes = gpumem::kMaxMessageBytes - 16 * 1024;

// One message.
struct DeliveryPart {
  v1::Delivery delivery;
  std::vector<int> fds;
};

// Returns one part at least. Pool descriptors go into one part: a call makes no more than fit.
std::vector<DeliveryPart> PartsOf(uint64_t delivery_id, const Broker::Handover& handover) {
  std::vector<DeliveryPart> parts(1);
  for (const Broker::Handover::Item& item : handover.items) {
    if (parts.back().delivery.lease_ids_size() == static_cast<int>(kMaxSegmentsPerCall)) {
      parts.emplace_back();
    }
    DeliveryPart& part = parts.back();
    part.delivery.add_lease_ids(ToInt(item.lease.lease));
    if (item.fd < 0) continue;
    part.delivery.add_fd_lease_ids(ToInt(item.lease.lease));
    part.fds.push_back(item.fd);
  }
  for (const ExportedPool& pool : handover.pools) {
    parts.back().delivery.add_pool_ids(pool.id);
    parts.back().fds.push_back(pool.fd);
  }
  if (handover.memory_page >= 0) {
    parts.back().delivery.set_memory_page(true);
    parts.back().fds.push_back(handover.memory_page);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].delivery.set_delivery_id(delivery_id);
    if (parts.size() == 1) continue;
    parts[i].delivery.set_part(static_cast<uint32_t>(i));
    parts[i].delivery.set_parts(static_cast<uint32_t>(parts.size()));
  }
  return parts;
}

}  // namespace

void SessionServer::Reconciled(SessionId session) {
  if (const ConnectionPtr connection = FindSession(session); connection != nullptr) {
    connection->reconciled = true;
  }
}

absl::StatusOr<std::shared_ptr<void>> SessionServer::ClaimLane(SessionId session) {
  const ConnectionPtr connection = FindSession(session);
  if (connection == nullptr) return absl::UnavailableError("the session's socket is closed");
  std::shared_ptr<std::atomic<bool>> has_lane = connection->has_lane;
  if (has_lane->exchange(true)) {
    return absl::AlreadyExistsError("the session's connection has a Converse stream already");
  }
  return std::shared_ptr<void>(has_lane.get(), [has_lane](void*) { *has_lane = false; });
}

absl::Status SessionServer::Deliver(SessionId session, uint64_t delivery_id,
                                    const Broker::Handover& handover, bool may_wait,
                                    const v1::Delivery* description) {
  ConnectionPtr connection;
  std::shared_ptr<const UniqueFd> socket;
  {
    absl::MutexLock lock(&mutex_);
    auto it = sessions_.find(session);
    if (it != sessions_.end()) {
      connection = it->second;
      socket = connection->socket;
    }
  }
  if (socket == nullptr) return absl::UnavailableError("the session's socket is closed");
  if (!connection->reconciled) {
    return absl::UnavailableError("the connection of this call has ended");
  }
  std::vector<DeliveryPart> parts = PartsOf(delivery_id, handover);
  std::optional<absl::MutexLock> one_after_another;
  if (parts.size() == 1 && description != nullptr &&
      description->ByteSizeLong() <= kMaxDescriptionBytes) {
    parts.front().delivery.MergeFrom(*description);
  }
  if (parts.size() > 1) {
    if (!may_wait) return absl::DeadlineExceededError("the delivery takes several messages");
    one_after_another.emplace(&connection->parts_mutex);
  }
  const absl::Time until = may_wait ? absl::Now() + options_.send_timeout : absl::InfinitePast();
  for (const DeliveryPart& part : parts) {
    v1::ServerMessage message;
    *message.mutable_delivery() = part.delivery;
    absl::Status sent =
        gpumem::SendMessage(socket->get(), message.SerializeAsString(), part.fds, until);
    if (may_wait && absl::IsDeadlineExceeded(sent)) {
      LogLimited(spdlog::level::warn, "sessions that do not read their sockets",
                 connection->peer.identity.uid, "session {} does not read its socket: dropped",
                 ToInt(session));
      shutdown(socket->get(), SHUT_RDWR);  // the serving thread sees it and ends the session
      return absl::ResourceExhaustedError(
          "the client does not read its session socket; its session is ended");
    }
    if (!sent.ok()) return sent;
    handover.partly_sent = parts.size() > 1;
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
