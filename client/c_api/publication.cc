// SPDX-License-Identifier: Apache-2.0
// Publications: gpumem_client_publish, _attach, _attach_or_claim, _unpublish, _list_publications,
// gpumem_attachment_…, gpumem_claim_…, gpumem_publication_list_….
#include "gpumem/publication.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/gpumem.h"

using gpumem::c_api::AnyNull;
using gpumem::c_api::Bytes;
using gpumem::c_api::Call;
using gpumem::c_api::CheckIndex;
using gpumem::c_api::GiveNumber;
using gpumem::c_api::InfoOf;
using gpumem::c_api::NullError;
using gpumem::c_api::Read;
using gpumem::c_api::Text;
using gpumem::c_api::Texts;
using gpumem::c_api::Time;
using gpumem::c_api::TimeOrNone;
using gpumem::c_api::Timeout;
using gpumem::c_api::ToAccess;
using gpumem::c_api::ToMilliseconds;
using gpumem::c_api::Write;

struct gpumem_attachment {
  gpumem::Attachment attachment;
};

struct gpumem_claim {
  gpumem::Claim claim;
};

struct gpumem_publication_list {
  const std::vector<gpumem::PublicationInfo> publications;
};

namespace {

absl::StatusOr<gpumem::PublishOptions> ToPublishOptions(const gpumem_publish_options* from) {
  auto c = Read(from);
  if (!c.ok()) return c.status();
  auto metadata = Bytes(c->metadata, c->metadata_bytes, "metadata");
  if (!metadata.ok()) return metadata.status();
  auto access = ToAccess(c->access);
  if (!access.ok()) return access.status();
  auto content_id = Bytes(c->content_id, c->content_id_bytes, "content_id");
  if (!content_id.ok()) return content_id.status();
  return gpumem::PublishOptions{.content_id = *std::move(content_id),
                                .metadata = *std::move(metadata),
                                .access = *access,
                                .ephemeral = c->ephemeral != 0,
                                .expire_after = TimeOrNone(c->expire_after_ms),
                                .timeout = Timeout(c->timeout_ms)};
}

// `no_wait`: the meaning of a wait of 0.
absl::StatusOr<gpumem::AttachOptions> ToAttachOptions(const gpumem_attach_options* from,
                                                      absl::Duration no_wait) {
  auto c = Read(from);
  if (!c.ok()) return c.status();
  auto map_devices = Texts(c->map_devices, c->map_device_count);
  if (!map_devices.ok()) return map_devices.status();
  gpumem::AttachOptions options;
  options.wait_for_version = c->wait_for_version;
  options.wait = c->wait_ms == 0 ? no_wait : Time(c->wait_ms);
  if (c->cancel != nullptr) options.cancel = c->cancel->token;
  options.read_only = c->writable == 0;
  options.map_devices.assign(map_devices->begin(), map_devices->end());
  options.address = c->address;
  options.revocable = c->revocable != 0;
  options.timeout = Timeout(c->timeout_ms);
  return options;
}

// INVALID_ARGUMENT, OUT_OF_RANGE, or FAILED_PRECONDITION if the segment was taken out.
template <typename Attachment>
absl::Status CheckSegment(Attachment* attachment, size_t index) {
  if (AnyNull(attachment)) return NullError("attachment");
  const auto segments = attachment->attachment.segments();
  absl::Status status = CheckIndex(index, segments.size(), "segment");
  if (!status.ok() || segments[index].valid()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("segment ", index, " was taken out of the attachment: use the taken segment"));
}

}  // namespace

extern "C" {

int gpumem_client_publish(gpumem_client* client, const char* name,
                          const gpumem_segment* const* segments, size_t count,
                          const gpumem_publish_options* options, uint64_t* version) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, name)) return NullError("client or name");
    if (segments == nullptr && count > 0) return NullError("segments");
    auto publish = ToPublishOptions(options);
    if (!publish.ok()) return publish.status();
    std::vector<const gpumem::Segment*> list;
    for (size_t i = 0; i < count; ++i) {
      if (AnyNull(segments[i])) return NullError(absl::StrCat("segment ", i, " of ", count));
      list.push_back(&segments[i]->segment);
    }
    return GiveNumber(client->client->Publish(name, absl::MakeConstSpan(list), *publish), version);
  });
}

int gpumem_client_unpublish(gpumem_client* client, const char* name, uint64_t* version) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, name)) return NullError("client or name");
    return GiveNumber(client->client->Unpublish(name), version);
  });
}

int gpumem_client_attach(gpumem_client* client, const char* name,
                         const gpumem_attach_options* options, gpumem_attachment** attachment) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, name, attachment)) return NullError("client, name or attachment");
    auto attach = ToAttachOptions(options, /*no_wait=*/absl::InfiniteDuration());
    if (!attach.ok()) return attach.status();
    auto attached = client->client->Attach(name, *attach);
    if (!attached.ok()) return attached.status();
    *attachment = new gpumem_attachment{*std::move(attached)};
    return absl::OkStatus();
  });
}

int gpumem_client_attach_or_claim(gpumem_client* client, const char* name, const void* content_id,
                                  size_t content_id_bytes, const gpumem_attach_options* options,
                                  gpumem_attachment** attachment, gpumem_claim** claim) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, name, attachment, claim)) {
      return NullError("client, name, attachment or claim");
    }
    auto contents = Bytes(content_id, content_id_bytes, "content_id");
    if (!contents.ok()) return contents.status();
    auto attach = ToAttachOptions(options, /*no_wait=*/absl::ZeroDuration());
    if (!attach.ok()) return attach.status();
    auto found = client->client->AttachOrClaim(name, *contents, *attach);
    if (!found.ok()) return found.status();
    *attachment = nullptr;
    *claim = nullptr;
    if (found->claim.valid()) {
      *claim = new gpumem_claim{std::move(found->claim)};
    } else {
      *attachment = new gpumem_attachment{std::move(found->attachment)};
    }
    return absl::OkStatus();
  });
}

int gpumem_claim_get_info(const gpumem_claim* claim, gpumem_claim_info* info) {
  return Call([&]() -> absl::Status {
    if (AnyNull(claim)) return NullError("claim");
    return Write({.name = claim->claim.name().c_str(),
                  .content_id = claim->claim.content_id().data(),
                  .content_id_bytes = claim->claim.content_id().size()},
                 info);
  });
}

int gpumem_claim_release(gpumem_claim* claim) {
  return Call([&]() -> absl::Status {
    if (AnyNull(claim)) return absl::OkStatus();
    const std::unique_ptr<gpumem_claim> owned(claim);
    return owned->claim.Release();
  });
}

int gpumem_attachment_get_info(const gpumem_attachment* attachment, gpumem_attachment_info* info) {
  return Call([&]() -> absl::Status {
    if (AnyNull(attachment)) return NullError("attachment");
    const gpumem::Attachment& of = attachment->attachment;
    return Write({.data = of.data(),
                  .bytes = of.size(),
                  .version = of.version(),
                  .tenant = of.tenant().c_str(),
                  .metadata = of.metadata().data(),
                  .metadata_bytes = of.metadata().size(),
                  .segment_count = of.segments().size(),
                  .content_id = of.content_id().data(),
                  .content_id_bytes = of.content_id().size()},
                 info);
  });
}

int gpumem_attachment_get_segment(const gpumem_attachment* attachment, size_t index,
                                  gpumem_segment_info* info) {
  return Call([&]() -> absl::Status {
    if (absl::Status status = CheckSegment(attachment, index); !status.ok()) return status;
    return Write(InfoOf(attachment->attachment.segments()[index]), info);
  });
}

int gpumem_attachment_take_segment(gpumem_attachment* attachment, size_t index,
                                   gpumem_segment** segment) {
  return Call([&]() -> absl::Status {
    if (AnyNull(segment)) return NullError("segment");
    if (absl::Status status = CheckSegment(attachment, index); !status.ok()) return status;
    auto taken = std::make_unique<gpumem_segment>();
    taken->segment = std::move(attachment->attachment.segments()[index]);
    *segment = taken.release();
    return absl::OkStatus();
  });
}

int gpumem_attachment_release(gpumem_attachment* attachment) {
  return Call([&]() -> absl::Status {
    if (AnyNull(attachment)) return absl::OkStatus();
    const std::unique_ptr<gpumem_attachment> owned(attachment);
    return owned->attachment.Release();
  });
}

int gpumem_attachment_release_async(gpumem_attachment* attachment) {
  return Call([&]() -> absl::Status {
    delete attachment;
    return absl::OkStatus();
  });
}

int gpumem_client_list_publications(gpumem_client* client, const char* tenant,
                                    gpumem_publication_list** publications, size_t* count) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, publications)) return NullError("client or publications");
    auto list = client->client->ListPublications(Text(tenant));
    if (!list.ok()) return list.status();
    *publications = new gpumem_publication_list{*std::move(list)};
    if (count != nullptr) *count = (*publications)->publications.size();
    return absl::OkStatus();
  });
}

int gpumem_publication_list_get(const gpumem_publication_list* publications, size_t index,
                                gpumem_publication* publication) {
  return Call([&]() -> absl::Status {
    if (AnyNull(publications)) return NullError("publications");
    absl::Status status = CheckIndex(index, publications->publications.size(), "publication");
    if (!status.ok()) return status;
    const gpumem::PublicationInfo& of = publications->publications[index];
    return Write({.tenant = of.tenant.c_str(),
                  .name = of.name.c_str(),
                  .version = of.version,
                  .bytes = of.bytes,
                  .metadata_bytes = of.metadata_bytes,
                  .segments = of.segments,
                  .attached_sessions = of.attached_sessions,
                  .access = static_cast<int32_t>(of.access),
                  .ephemeral = of.ephemeral,
                  .age_ms = ToMilliseconds(of.age),
                  .expire_after_ms = ToMilliseconds(of.expire_after),
                  .expires_in_ms = ToMilliseconds(of.expires_in),
                  .publisher_session_id = of.publisher_session_id,
                  .publisher_name = of.publisher_name.c_str(),
                  .publisher_pid = of.publisher_pid,
                  .publisher_alive = of.publisher_alive,
                  .suspended_bytes = of.suspended_bytes,
                  .content_id = of.content_id.data(),
                  .content_id_bytes = of.content_id.size()},
                 publication);
  });
}

int gpumem_publication_list_destroy(gpumem_publication_list* publications) {
  return Call([&] {
    delete publications;
    return absl::OkStatus();
  });
}

}  // extern "C"
