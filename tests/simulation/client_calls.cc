// SPDX-License-Identifier: Apache-2.0
// The calls of a simulated client: what gRPC and the session server would do with them.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "tests/simulation/client.h"

namespace gpumemd::simulation {
namespace {

using gpumem::internal::LeaseBook;

absl::string_view View(const Secret& token) {
  return {reinterpret_cast<const char*>(token.data()), token.size()};
}

std::vector<LeaseId> Ids(const std::vector<uint64_t>& numbers) {
  std::vector<LeaseId> ids;
  for (const uint64_t number : numbers) ids.push_back(LeaseId{number});
  return ids;
}

}  // namespace

void Client::Connect(Daemon& daemon) {
  Process& process = *process_;
  DropConnection();
  process.op = std::make_unique<Op>();
  Op& op = *process.op;
  op.kind = CallKind::kConnect;
  op.answer = std::make_shared<Answer>();
  op.connection = std::make_shared<Connection>();
  const std::shared_ptr<Answer> answer = op.answer;
  const ConnectionPtr connection = op.connection;
  connection->pid = pid();
  connection->full_until = process.full_until;
  answer->connection = connection;
  const auto done = [&daemon, answer, connection](absl::Status status) {
    answer->status = std::move(status);
    answer->there = !connection->cut && !daemon.dead();
    connection->cut |= daemon.dead();
  };
  if (process.session == SessionId{}) {
    daemon.Run([&daemon, answer, connection, done, tenant = tenant_, details = process.details] {
      if (daemon.dead()) return done(absl::OkStatus());
      auto session = daemon.broker().OpenSession(tenant, details);
      if (!session.ok()) return done(session.status());
      connection->session = session->id;
      answer->secret = session->token;
      daemon.Connect(connection);
      daemon.Pause("welcome");
      if (connection->cut) daemon.broker().SocketClosed(session->id);
      done(absl::OkStatus());
    });
    return;
  }
  connection->session = process.session;
  connection->reconciled = false;
  const LeaseBook::Statement statement = process.book.MakeStatement();
  op.number = statement.number;
  daemon.Run([&daemon, answer, connection, done, token = process.token,
              leases = Ids(statement.lease_ids), requests = statement.request_ids,
              peer = process.details.peer] {
    if (daemon.dead()) return done(absl::OkStatus());
    auto resumed = daemon.broker().Resume(View(token), peer);
    if (!resumed.ok()) return done(resumed.status());
    daemon.Connect(connection);
    daemon.Pause("welcome");
    auto unknown = daemon.broker().Reconcile(View(token), leases, requests);
    if (!unknown.ok()) return done(unknown.status());
    connection->reconciled = true;
    answer->ids = *std::move(unknown);
    daemon.Pause("reconciled");
    done(absl::OkStatus());
  });
}

void Client::Send(Daemon& daemon) {
  Process& process = *process_;
  Op& op = *process.op;
  op.connection = process.connection;
  op.answer = std::make_shared<Answer>();
  if (op.kind == CallKind::kRelease) {
    // A statement has told the daemon meanwhile that they are no longer held.
    if (op.connection->statement > op.pending.statement) {
      op.answer->there = true;
      return;
    }
  }
  if (op.kind == CallKind::kSuspend) {
    for (LeaseId id : op.leases) {
      const auto held = process.held.find(id);
      if (held == process.held.end()) continue;  // lost with a daemon before the call was repeated
      held->second.memory.reset();               // unmapped first
      held->second.state = Held::State::kSuspended;
    }
  }
  const auto call = [&](auto body) {
    daemon.Serve(op.connection, process.token,
                 [&daemon, answer = op.answer, connection = op.connection,
                  body = std::move(body)](absl::StatusOr<Broker::Call> begun) mutable {
                   if (!begun.ok()) {
                     answer->status = begun.status();
                   } else {
                     Broker::Call held_call = *std::move(begun);
                     answer->status = body(daemon, held_call, *answer);
                   }
                   daemon.Pause("answer");
                   answer->there = !connection->cut && !daemon.dead();
                   connection->cut |= daemon.dead();
                 });
  };
  const auto deliver = [&daemon, connection = op.connection](const Handover& handover,
                                                             bool may_block) {
    return daemon.Deliver(connection, handover, may_block);
  };
  switch (op.kind) {
    case CallKind::kAcquire:
    case CallKind::kResume: {
      auto acquisition = std::make_shared<Broker::Acquisition>();
      acquisition->session = process.session;
      acquisition->spec = op.acquire;
      acquisition->wait_until = surroundings_.now + op.wait;
      acquisition->release_deadline = surroundings_.now + Broker::kDisposalWait;
      acquisition->deliver = deliver;
      return call(
          [acquisition, connection = op.connection](Daemon& to, Broker::Call&, Answer& answer) {
            Broker::Progress progress =
                to.Await<Broker::Acquisition, Broker::Progress>(connection, acquisition);
            if (progress.leases.ok()) answer.leases = *std::move(progress.leases);
            return progress.leases.status();
          });
    }
    case CallKind::kAttach: {
      auto attachment = std::make_shared<Broker::Attachment>();
      attachment->session = process.session;
      attachment->spec = op.attach;
      attachment->wait_until = op.attach.version > 0 || op.attach.waits
                                   ? surroundings_.now + op.wait
                                   : surroundings_.now;
      attachment->deliver = deliver;
      return call(
          [attachment, connection = op.connection](Daemon& to, Broker::Call&, Answer& answer) {
            Broker::AttachProgress progress =
                to.Await<Broker::Attachment, Broker::AttachProgress>(connection, attachment);
            if (progress.attached.ok()) {
              answer.leases = std::move(progress.attached->leases);
              answer.claimed = progress.attached->claimed;
              answer.tenant = progress.attached->publication.tenant;
              answer.version = progress.attached->publication.version;
            }
            return progress.attached.status();
          });
    }
    case CallKind::kOpen:
      return call([ticket = op.ticket.secret, id = op.booked->id(), deliver,
                   revocable = revocable()](Daemon& to, Broker::Call& begun, Answer& answer) {
        auto leases =
            to.broker().Open(begun, {ticket}, revocable, id,
                             [&](const Handover& handover) { return deliver(handover, true); });
        if (leases.ok()) answer.leases = *std::move(leases);
        return leases.status();
      });
    case CallKind::kShare:
      return call([lease = op.leases.front(), scope = op.scope](Daemon& to, Broker::Call& begun,
                                                                Answer& answer) {
        auto ticket = to.broker().Share(begun, lease, scope);
        if (ticket.ok()) answer.secret = *ticket;
        return ticket.status();
      });
    case CallKind::kRelease:
      return call([pending = op.pending, statement = op.connection->statement](
                      Daemon& to, Broker::Call& begun, Answer&) {
        for (const uint64_t claim : pending.claims) to.broker().ReleaseClaim(begun, claim);
        if (pending.lease_ids.empty() && pending.request_ids.empty()) return absl::OkStatus();
        const std::vector<LeaseId> ids = Ids(pending.lease_ids);
        absl::Status released = to.broker().Release(begun, ids, pending.request_ids);
        if (!absl::IsNotFound(released) || statement == 0) return released;
        // One of them has ended with the earlier daemon: each by itself.
        for (LeaseId id : ids) {
          absl::Status one = to.broker().Release(begun, {id}, pending.request_ids);
          if (!one.ok() && !absl::IsNotFound(one)) return one;
        }
        return absl::OkStatus();
      });
    case CallKind::kPublish:
      return call([spec = op.publish, metadata = op.metadata](Daemon& to, Broker::Call& begun,
                                                              Answer& answer) {
        const auto version = to.broker().Publish(begun, spec, metadata);
        if (version.ok()) answer.version = *version;
        return version.status();
      });
    case CallKind::kUnpublish:
      return call(
          [name = op.attach.name, number = op.number](Daemon& to, Broker::Call& begun, Answer&) {
            return to.broker().Unpublish(begun, name, number).status();
          });
    case CallKind::kPrepare:
      return call([leases = op.leases](Daemon& to, Broker::Call& begun, Answer&) {
        return to.broker().suspensions().Prepare(begun, leases).status();
      });
    case CallKind::kSuspend:
      return call([leases = op.leases](Daemon& to, Broker::Call& begun, Answer&) {
        return to.broker().suspensions().Suspend(begun, leases, 0).status();
      });
    case CallKind::kAskRevoked:
      return call([](Daemon& to, Broker::Call& begun, Answer& answer) {
        for (LeaseId id : to.broker().RevokedLeases(begun).leases) answer.ids.push_back(id);
        return absl::OkStatus();
      });
    case CallKind::kConnect:
      break;
  }
}

}  // namespace gpumemd::simulation
