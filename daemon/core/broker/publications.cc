// SPDX-License-Identifier: Apache-2.0
// Publications, and an Attach from its beginning to its answer. It may wait for hours for a future
// version; no thread waits with it.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/denial.h"
#include "daemon/core/failpoint.h"

namespace gpumemd {

absl::StatusOr<uint64_t> Broker::Publish(const Call& call, const PublishSpec& spec,
                                         absl::string_view bytes) {
  PublishSpec sized = spec;
  sized.metadata_bytes = bytes.size();
  // Metadata that is too large is not copied; the ledger refuses it.
  absl::StatusOr<Metadata> metadata =
      Metadata::Make(bytes.size() > kMaxMetadataBytes ? absl::string_view() : bytes);
  if (!metadata.ok()) return metadata.status();
  auto kept = std::make_shared<const Metadata>(*std::move(metadata));
  if (continuity_ != nullptr) {
    // Before the journal needs it.
    {
      TimedLock lock(&mutex_);
      sized.id = ledger_.publications().NewId();
    }
    Failpoint("publish-before");
    if (kept->fd() >= 0) continuity_->Keep(sized.id, kept->fd());
    Failpoint("publish-kept");
  }
  absl::StatusOr<Publications::Published> published;
  {
    Update update(this);
    published = ledger_.publications().Publish(call.session(), sized);
    if (!published.ok()) Denied(call.session(), "publish", published.status()).IgnoreError();
    if (published.ok() && !published->again) metadata_.emplace(published->id, kept);
  }
  Failpoint("publish-after");
  const bool made = published.ok() && !published->again;
  if (continuity_ != nullptr && !made && kept->fd() >= 0) continuity_->LetGo(sized.id);
  if (!published.ok()) return published.status();
  return published->version;
}

absl::StatusOr<uint64_t> Broker::Unpublish(const Call& call, absl::string_view name,
                                           uint64_t request_id) {
  Update update(this);
  return ledger_.publications().Unpublish(call.session(), name, request_id);
}

absl::StatusOr<std::vector<PublicationView>> Broker::ListAttachable(
    const Call& call, absl::string_view tenant) const {
  std::vector<PublicationView> views;
  for (std::optional<LedgerState::PublicationName> next{std::in_place}; next.has_value();) {
    TimedLock lock(&mutex_);
    absl::StatusOr<std::optional<LedgerState::PublicationName>> after =
        ledger_.look().ListAttachable(call.session(), tenant, *next, kListedAtOnce, views);
    if (!after.ok()) return after.status();
    next = *std::move(after);
  }
  return views;
}

Broker::AttachProgress Broker::Advance(const std::shared_ptr<Attachment>& attachment,
                                       bool may_block) {
  using State = Progress::State;
  Attachment& it = *attachment;
  while (it.bring_back != nullptr) {
    Progress progress = Advance(it.bring_back, may_block);
    if (progress.state != State::kAnswered) return {progress.state, progress.leases.status()};
    TimedLock lock(&mutex_);
    it.bring_back.reset();
    // If it has ended meanwhile, there may be a later version.
    if (!progress.leases.ok() && !absl::IsNotFound(progress.leases.status())) {
      return {State::kAnswered, ForAttach(it, progress.leases.status())};
    }
  }
  Operation operation;
  Attached attached;
  std::shared_ptr<const Metadata> metadata;
  bool brings_back = false;
  {
    Update update(this);
    ledger_.swaps().Active(it.session);
    absl::StatusOr<bool> may = MayBegin(it);
    if (!may.ok() && it.spec.claims)
      ledger_.publications().claims().Refused(it.session, it.spec.request_id);
    if (!may.ok()) return {State::kAnswered, may.status()};
    if (!*may) return {State::kWaits, absl::UnavailableError("it waits")};
    absl::StatusOr<Admission> admission;
    if (auto regrant = ledger_.reconciliation().RegrantAttach(it.session, it.spec.request_id)) {
      admission = Admission{.operation = std::move(regrant)};
    } else {
      admission = ledger_.operations().BeginAttach(it.session, it.spec, leases_at_once_);
    }
    if (!admission.ok()) {
      if (it.spec.claims) ledger_.publications().claims().Refused(it.session, it.spec.request_id);
      return {State::kAnswered, Denied(it.session, "attach", admission.status())};
    }
    if (admission->claimed) {
      attached.claimed = true;
      return {State::kAnswered, std::move(attached)};
    }
    if (admission->suspended) {
      BringBackFor(*attachment, *admission->suspended);
      brings_back = true;
    } else if (admission->waiter) {
      it.waiter = admission->waiter;
      attaching_.Add(*it.waiter, attachment, it.wait_until);
      times_changed_ = true;
      return {State::kWaits, absl::UnavailableError("it waits")};
    }
    if (!brings_back) {
      operation = *std::move(admission->operation);
      attached.publication = *ledger_.look().GetPublication(*operation.publication);
      metadata = metadata_.at(*operation.publication);
    }
  }
  if (brings_back) return Advance(attachment, may_block);
  while (!operation.regrant && operation.exposed < operation.items.size()) {
    absl::Status exposed;
    {
      Update update(this);
      exposed = ledger_.operations().Expose(operation, leases_at_once_);
    }
    if (exposed.ok()) continue;
    Abort(operation, /*handed_over=*/false);
    return {State::kAnswered, exposed};
  }
  absl::StatusOr<std::string> bytes = metadata->Read();
  if (!bytes.ok()) {
    Abort(operation, /*handed_over=*/false);
    return {State::kAnswered, bytes.status()};
  }
  attached.metadata = *std::move(bytes);
  HandedOver handed = HandOver(
      operation, [&](const Handover& handover) { return it.deliver(handover, may_block); },
      may_block);
  if (handed.outcome == HandedOver::Outcome::kWouldBlock) {
    return {State::kNeedsAThread, handed.leases.status()};
  }
  if (!handed.leases.ok()) return {State::kAnswered, handed.leases.status()};
  if (absl::Status kept = Keep(it, *handed.leases); !kept.ok()) return {State::kAnswered, kept};
  attached.leases = *std::move(handed.leases);
  return {State::kAnswered, std::move(attached)};
}

void Broker::ReleaseClaim(const Call& call, uint64_t request_id) {
  Update update(this);
  ledger_.publications().claims().Release(call.session(), request_id);
}

void Broker::BringBackFor(Attachment& attachment, PublicationId publication) const {
  auto bring_back = std::make_shared<Acquisition>();
  bring_back->session = attachment.session;
  bring_back->spec = {.waits = attachment.spec.waits, .publication = publication};
  bring_back->wait_until = attachment.wait_until;
  bring_back->release_deadline = std::min(attachment.wait_until, now_() + kDisposalWait);
  bring_back->deliver = [](const Handover&, bool) { return absl::OkStatus(); };
  bring_back->resume = attachment.resume;
  attachment.bring_back = std::move(bring_back);
}

absl::Status Broker::ForAttach(const Attachment& attachment, absl::Status refused) const {
  const std::optional<Denial> why = DenialOf(refused);
  if (!why || ledger_.look().TenantOf(attachment.session).value_or("") == why->tenant) {
    return refused;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("publication ", attachment.spec.name,
                   " is suspended, and there is no room for its tenant's memory at present"));
}

void Broker::ResumeAttaches() {
  for (WaiterId waiter : Drain(ledger_.effects().attachable)) {
    Resume(attaching_.Take(waiter), absl::OkStatus());
  }
}

void Broker::DropEndedPublications() {
  for (PublicationId id : Drain(ledger_.effects().ended_publications)) {
    ended_metadata_.emplace_back(id, metadata_.extract(id).mapped());
  }
  // Makes the clock's thread look at it anew.
  times_changed_ |= ledger_.publications().NextExpiry() < watched_expiry_;
}

void Broker::EndOverduePublications(absl::Time now) {
  ledger_.publications().Expire(leases_at_once_);  // the clock's thread soon ends the rest
  while (const std::optional<WaiterId> waiter = attaching_.FirstDue(now)) {
    absl::Status expired = ledger_.publications().waiters().EndWait(*waiter, /*expired=*/true);
    Resume(attaching_.Take(*waiter), std::move(expired));
  }
}

}  // namespace gpumemd
