// Acts of publishers and attachers on a ledger in the model test, with random arguments, and the
// same on the model beside it.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model_steps.h"

namespace gpumemd {

class ModelPublishers : public ModelSteps {
 protected:
  using ModelSteps::ModelSteps;

  // Mostly segments that the session may publish; now and then others.
  absl::Status Publish() {
    const SessionId session = AnyHolder();
    PublishSpec spec = {.name = AnyPublicationName(),
                        .metadata_bytes = chance_.In100(1) ? kMaxMetadataBytes + chance_.Below(2)
                                                           : chance_.Below(40),
                        .to_any = chance_.In100(50),
                        .ephemeral = chance_.In100(40)};
    if (chance_.In100(50)) spec.expire_after = absl::Milliseconds(1 + chance_.Below(60));
    if (chance_.In100(60)) spec.request = 1 + chance_.Below(1000);
    if (chance_.In100(5) && last_publish_) spec = *last_publish_;  // as if the answer were lost
    const size_t count = chance_.In100(2) ? 0 : 1 + chance_.Below(3);
    for (const auto& [id, lease] : model_.leases()) {
      if (lease.session != session || spec.leases.size() >= count) continue;
      const auto kind = ledger_.look().Describe({.segment = lease.segment}).kind;
      if (IsContextBound(kind) && chance_.In100(95)) continue;
      spec.leases.push_back(id);
    }
    if (chance_.In100(2)) spec.leases.push_back(AnyLeaseOf(session));
    return Publish(session, spec);
  }
  absl::Status Publish(SessionId session, const PublishSpec& spec) {
    const auto answer = ledger_.Publish(session, spec);
    if (answer.ok()) {
      Met(answer->again         ? "published, and told so again"
          : answer->version > 1 ? "published again"
                                : "published");
      if (spec.request != 0) last_publish_ = spec;
    }
    return After(model_.Publish(session, spec, now_, answer), "Publish ", ToInt(session), " \"",
                 spec.name, "\" ", spec.leases.size(), " leases",
                 spec.ephemeral ? ", ephemeral" : "", " -> ",
                 answer.ok() ? absl::StrCat("version ", answer->version) : Tell(answer.status()));
  }

  // Within a call, as every request.
  absl::Status Attach() {
    AttachSpec spec = {.request_id = NewRequest()};
    const SessionId session = AnySession();
    const auto it = model_.sessions().find(session);
    spec.name = AnyPublicationName();
    if (chance_.In100(40)) spec.name = absl::StrCat(chance_.Tenant(), "/", spec.name);
    if (!model_.publications().empty() && chance_.In100(70)) {
      const auto& aim = chance_.Of(model_.publications());
      spec.name = absl::StrCat(aim.tenant, "/", aim.name);
      if (chance_.In100(30)) spec.version = aim.version + chance_.Below(2);
    } else if (chance_.In100(50)) {
      spec.version = 1 + chance_.Below(3);
    }
    spec.revocable = it != model_.sessions().end() && chance_.In100(90)
                         ? it->second.peer.pid % 2 == 0
                         : chance_.In100(50);
    if (it != model_.sessions().end() && it->second.live && it->second.calls == 0) {
      if (absl::Status called = BeginCall(session); !called.ok()) return called;
      if (CallsOf(session) == 0) return absl::OkStatus();  // it has too many
    }
    if (absl::Status asked = Attach(session, spec); !asked.ok()) return asked;
    if (CallsOf(session) == 0 || chance_.In100(10)) return absl::OkStatus();
    return EndCall(session);
  }
  absl::Status Attach(SessionId session, const AttachSpec& spec) {
    auto answer = ledger_.BeginAttach(session, spec, 1 + chance_.Below(3));
    while (answer.ok() && answer->operation &&
           answer->operation->exposed < answer->operation->items.size()) {
      Met("an attachment in parts");
      if (absl::Status sound = ledger_.CheckInvariants(); !sound.ok()) return sound;
      absl::Status exposed = ledger_.Expose(*answer->operation, 1 + chance_.Below(3));
      if (!exposed.ok()) return absl::InternalError(exposed.message());
    }
    std::string told = !answer.ok()        ? Tell(answer.status())
                       : answer->operation ? "attached"
                                           : "waits for a version";
    if (answer.ok()) Met(told);
    if (answer.ok() && answer->operation &&
        model_.OwnerOf(answer->operation->items[0].segment) !=
            model_.sessions().at(session).tenant) {
      Met("attached across tenants");
    }
    return After(model_.BeginAttach(session, spec, answer), "BeginAttach ", ToInt(session), " \"",
                 spec.name, "\" version ", spec.version, " -> ", told);
  }

  absl::Status EndAttachWait() {
    if (model_.attach_waiters().empty()) return absl::OkStatus();
    const WaiterId waiter = chance_.Of(model_.attach_waiters()).first;
    const bool expired = chance_.In100(50);
    const absl::Status answer = ledger_.EndAttachWait(waiter, expired);
    return After(model_.EndAttachWait(waiter, expired, answer), "EndAttachWait ", ToInt(waiter),
                 " -> ", Tell(answer));
  }

  absl::Status Unpublish() {
    std::string name = AnyPublicationName();
    if (!model_.publications().empty() && chance_.In100(80)) {
      const auto& aim = chance_.Of(model_.publications());
      name = absl::StrCat(aim.tenant, "/", aim.name);
    }
    std::optional<SessionId> session;
    if (chance_.In100(80)) session = AnySession();
    uint64_t request = chance_.In100(60) ? 1 + chance_.Below(1000) : 0;
    if (chance_.In100(30) && last_unpublish_) {  // as if the answer were lost
      std::tie(session, request) = *last_unpublish_;
    }
    if (absl::Status ended = Unpublish(session, name, request); !ended.ok()) return ended;
    const bool asks_again = last_unpublish_ == std::pair(session, request) && chance_.In100(50);
    return asks_again ? Unpublish(session, name, request) : absl::OkStatus();
  }
  absl::Status Unpublish(std::optional<SessionId> session, const std::string& name,
                         uint64_t request) {
    const bool again = session && last_unpublish_ == std::pair(session, request);
    const auto answer =
        session ? ledger_.Unpublish(*session, name, request) : ledger_.Unpublish(name);
    if (answer.ok()) Met(again ? "unpublished, and told so again" : "unpublished");
    if (answer.ok() && session && request != 0) last_unpublish_ = std::pair(session, request);
    return After(model_.Unpublish(session, name, request, answer), "Unpublish \"", name, "\" -> ",
                 Tell(answer.status()));
  }
  absl::Status UnpublishAll() {
    while (!model_.publications().empty()) {
      const auto& aim = model_.publications().front();
      const std::string name = absl::StrCat(aim.tenant, "/", aim.name);
      const auto answer = ledger_.Unpublish(name);
      absl::Status ended =
          After(model_.Unpublish(std::nullopt, name, 0, answer), "Unpublish \"", name, "\"");
      if (!ended.ok()) return ended;
    }
    return absl::OkStatus();
  }

  absl::Status ExpirePublications() {
    const size_t before = model_.publications().size();
    ledger_.ExpirePublications();
    model_.ExpirePublications(now_);
    if (model_.publications().size() < before) Met("expired");
    return After(absl::OkStatus(), "ExpirePublications");
  }

 private:
  // One of few names, or an unused one.
  std::string AnyPublicationName() {
    if (chance_.In100(2)) {
      return chance_.In100(30)   ? ""
             : chance_.In100(50) ? "two words"
             : chance_.In100(50) ? std::string(65, 'x')
                                 : "/a";
    }
    return std::string(1, static_cast<char>('a' + chance_.Below(3)));
  }

  std::optional<PublishSpec> last_publish_;
  std::optional<std::pair<std::optional<SessionId>, uint64_t>> last_unpublish_;
};

}  // namespace gpumemd
