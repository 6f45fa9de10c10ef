// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/journal/image.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

using journal::Change;
using journal::Counters;
using journal::Op;

// Returns the image's map for objects of a type.
auto& MapOf(auto& image, const journal::Session&) { return image.sessions; }
auto& MapOf(auto& image, const journal::Segment&) { return image.segments; }
auto& MapOf(auto& image, const journal::Lease&) { return image.leases; }
auto& MapOf(auto& image, const journal::Exposure&) { return image.exposures; }
auto& MapOf(auto& image, const journal::PoolImport&) { return image.pool_imports; }
auto& MapOf(auto& image, const journal::Publication&) { return image.publications; }
auto& MapOf(auto& image, const journal::PublicationItem&) { return image.publication_items; }
auto& MapOf(auto& image, const journal::IpcEvent&) { return image.ipc_events; }
auto& MapOf(auto& image, const journal::Answer&) { return image.answers; }
auto& MapOf(auto& image, const journal::TierExtent&) { return image.tier_extents; }
auto& MapOf(auto& image, const journal::PublicationContent&) { return image.publication_contents; }
auto& MapOf(auto& image, const journal::Claim&) { return image.claims; }
auto& MapOf(auto& image, const journal::MadeTenant&) { return image.made_tenants; }
auto& MapOf(auto& image, const journal::MadeTenantQuota&) { return image.made_tenant_quotas; }
auto& MapOf(auto& image, const journal::MadeTenantDevice&) { return image.made_tenant_devices; }
auto& MapOf(auto& image, const journal::MadeTenantUse&) { return image.made_tenant_uses; }

template <typename Visit>
void ForEachMap(const JournalImage& image, Visit visit) {
  visit(image.sessions), visit(image.segments), visit(image.leases), visit(image.exposures),
      visit(image.pool_imports), visit(image.publications), visit(image.publication_items),
      visit(image.ipc_events), visit(image.answers), visit(image.tier_extents),
      visit(image.publication_contents), visit(image.claims), visit(image.made_tenants),
      visit(image.made_tenant_quotas), visit(image.made_tenant_devices),
      visit(image.made_tenant_uses);
}

// Names an object in a sentence.
std::string NameOf(const journal::Lease& lease) { return absl::StrCat("lease ", ToInt(lease.id)); }
std::string NameOf(const journal::Exposure& exposure) {
  return absl::StrCat("the exposure of session ", ToInt(exposure.session), " to segment ",
                      ToInt(exposure.segment));
}
std::string NameOf(const journal::PoolImport& import) {
  return absl::StrCat("the pool on device ", import.device_uuid.view(), " that session ",
                      ToInt(import.session), " has open");
}
std::string NameOf(const journal::Publication& publication) {
  return absl::StrCat("publication ", ToInt(publication.id));
}
std::string NameOf(const journal::PublicationItem& item) {
  return absl::StrCat("item ", item.index, " of publication ", ToInt(item.publication));
}
std::string NameOf(const journal::IpcEvent& event) {
  return absl::StrCat("event ", ToInt(event.id));
}
std::string NameOf(const journal::TierExtent& extent) {
  return absl::StrCat("extent ", extent.index, " of segment ", ToInt(extent.segment));
}
std::string NameOf(const journal::PublicationContent& content) {
  return absl::StrCat("the content id of publication ", ToInt(content.publication));
}
std::string NameOf(const journal::Claim& claim) {
  return absl::StrCat("the claim by request ", claim.request_id);
}
std::string NameOf(const journal::MadeTenantQuota& quota) {
  return absl::StrCat("the quota of made tenant ", ToInt(quota.id));
}
std::string NameOf(const journal::MadeTenantDevice& device) {
  return absl::StrCat("device ", device.index, " of made tenant ", ToInt(device.tenant));
}
std::string NameOf(const journal::MadeTenantUse& use) {
  return absl::StrCat("the use of device ", use.device_uuid.view(), " by made tenant ",
                      ToInt(use.tenant));
}
std::string NameOf(const journal::Answer& answer) {
  return absl::StrCat("the answer to request ", answer.request_id);
}

template <typename Map>
absl::Status Find(const Map& map, typename Map::key_type id, absl::string_view type,
                  const auto& from) {
  if (map.contains(id)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the journal contradicts itself: ", NameOf(from),
                                          " refers to ", type, " ", ToInt(id),
                                          ", which is not in it"));
}

}  // namespace

void JournalImage::Apply(const Change& change) {
  std::visit(
      [&]<typename T>(const T& object) {
        if constexpr (std::is_same_v<T, Counters>) {
          counters.RaiseTo(object);
        } else if (change.op == Op::kErase) {
          MapOf(*this, object).erase(object.key());
        } else {
          MapOf(*this, object).insert_or_assign(object.key(), object);
          if constexpr (std::is_enum_v<typename T::Key>) {
            uint64_t& counter = *counters.Of(T::kType);
            counter = std::max(counter, ToInt(object.key()));
          }
        }
      },
      change.object);
}

absl::Status JournalImage::CheckReferences() const {
  const auto session = [&](SessionId id, const auto& from) {
    return Find(sessions, id, "session", from);
  };
  const auto segment = [&](SegmentId id, const auto& from) {
    return Find(segments, id, "segment", from);
  };
  for (const auto& [id, lease] : leases) {
    if (absl::Status found = session(lease.session, lease); !found.ok()) return found;
    if (absl::Status found = segment(lease.segment, lease); !found.ok()) return found;
  }
  for (const auto& [key, exposure] : exposures) {
    if (absl::Status found = session(exposure.session, exposure); !found.ok()) return found;
    if (absl::Status found = segment(exposure.segment, exposure); !found.ok()) return found;
  }
  for (const auto& [key, import] : pool_imports) {
    if (absl::Status found = session(import.session, import); !found.ok()) return found;
  }
  for (const auto& [id, publication] : publications) {
    if (publication.publisher == SessionId{}) continue;
    if (absl::Status found = session(publication.publisher, publication); !found.ok()) return found;
  }
  std::optional<journal::PublicationItem> before;
  for (const auto& [key, item] : publication_items) {
    if (absl::Status found = Find(publications, item.publication, "publication", item);
        !found.ok()) {
      return found;
    }
    if (absl::Status found = segment(item.segment, item); !found.ok()) return found;
    const bool next = before && before->publication == item.publication;
    const uint32_t expected = next ? before->index + 1 : 0;
    if (item.index != expected) {
      return absl::DataLossError(absl::StrCat("the journal contradicts itself: ", NameOf(item),
                                              " is in it without item ", expected));
    }
    before = item;
  }
  for (const auto& [id, event] : ipc_events) {
    if (absl::Status found = session(event.session, event); !found.ok()) return found;
    if (event.lease == LeaseId{}) continue;
    if (absl::Status found = Find(leases, event.lease, "lease", event); !found.ok()) return found;
  }
  for (const auto& [key, answer] : answers) {
    if (absl::Status found = session(answer.session, answer); !found.ok()) return found;
  }
  for (const auto& [id, content] : publication_contents) {
    if (absl::Status found = Find(publications, id, "publication", content); !found.ok())
      return found;
  }
  for (const auto& [key, claim] : claims) {
    if (absl::Status found = session(claim.session, claim); !found.ok()) return found;
  }
  for (const auto& [id, quota] : made_tenant_quotas) {
    if (absl::Status found = Find(made_tenants, id, "made tenant", quota); !found.ok())
      return found;
  }
  for (const auto& [key, device] : made_tenant_devices) {
    absl::Status found = Find(made_tenants, device.tenant, "made tenant", device);
    if (!found.ok()) return found;
  }
  for (const auto& [key, use] : made_tenant_uses) {
    if (absl::Status found = Find(made_tenants, use.tenant, "made tenant", use); !found.ok())
      return found;
  }
  for (const auto& [key, extent] : tier_extents) {
    if (absl::Status found = segment(extent.segment, extent); !found.ok()) return found;
  }
  return absl::OkStatus();
}

void JournalImage::ForEach(absl::FunctionRef<void(const journal::Object&)> visit) const {
  visit(counters);
  ForEachMap(*this, [&](const auto& map) {
    for (const auto& [key, object] : map) visit(object);
  });
}

size_t JournalImage::size() const {
  size_t all = 1;  // Counters
  ForEachMap(*this, [&](const auto& map) { all += map.size(); });
  return all;
}

}  // namespace gpumemd
