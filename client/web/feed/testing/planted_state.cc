// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/testing/planted_state.h"

#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gpumem::web {
namespace {

constexpr int kDevices = 2;

std::string DeviceName(uint64_t device) { return absl::StrCat("GPU-", device); }

}  // namespace

PlantedState::PlantedState(std::mt19937& random) {
  v1::GetStatusResponse& status = state_.status;
  status.set_version("1.0");
  for (int i = 0; i < kDevices; ++i) {
    v1::Device& device = *status.add_devices();
    device.set_device_uuid(DeviceName(static_cast<uint64_t>(i)));
    device.set_capacity_bytes(1ull << 40);
  }
  AddTenants(random);
  AddSessions(random);
  AddSegments(random);
  AddPublications(random);
  AddWaiting(random);
  // Facts for operators name tenants.
  const int any = AnyTenant(random);
  status.set_sessions(Number32(any));
  status.set_segments(Number32(any));
  status.set_unkept_segments(Number32(any));
  status.set_config_file(Text(any));
  status.add_notices(Text(any));
  v1::ForeignProcess& foreign = *status.add_foreign_processes();
  foreign.set_command(Text(any));
  foreign.set_bytes(Number(any));
}

std::string PlantedState::NameOf(int tenant) { return absl::StrCat("zq", tenant, "q"); }

std::string PlantedState::Text(int tenant) {
  return absl::StrCat("a\n", NameOf(tenant), "</script>", next_++);
}

uint64_t PlantedState::NumberOf(const std::set<int>& tenants) {
  const uint64_t number = 7'000'000'000'000ull + 1001ull * static_cast<uint64_t>(++next_);
  numbers_[absl::StrCat(number)] = tenants;
  return number;
}

uint64_t PlantedState::Number(int tenant) { return NumberOf({tenant}); }

uint32_t PlantedState::Number32(int tenant) {
  const uint32_t number = 1'100'000'000u + 1001u * static_cast<uint32_t>(++next_);
  numbers_[absl::StrCat(number)] = {tenant};
  return number;
}

int PlantedState::TopOf(int tenant) const {
  while (parents_[static_cast<size_t>(tenant)] >= 0) tenant = parents_[static_cast<size_t>(tenant)];
  return tenant;
}

std::set<int> PlantedState::Visible(uid_t uid, bool teams) const {
  const auto own = own_.find(uid);
  if (own == own_.end()) return {};
  if (!teams) return own->second;
  std::set<int> visible;
  for (int tenant = 0; tenant < static_cast<int>(parents_.size()); ++tenant) {
    for (const int mine : own->second) {
      if (TopOf(mine) == TopOf(tenant)) visible.insert(tenant);
    }
  }
  return visible;
}

std::set<int> PlantedState::Others(const std::set<int>& visible) const {
  std::set<int> others;
  for (int tenant = 0; tenant < static_cast<int>(parents_.size()); ++tenant) {
    if (!visible.contains(tenant)) others.insert(tenant);
  }
  return others;
}

void PlantedState::AddTenants(std::mt19937& random) {
  const int count = 4 + static_cast<int>(random() % 6);
  for (int i = 0; i < 4; ++i) uids_.push_back(Number32(-1));
  for (int tenant = 0; tenant < count; ++tenant) {
    parents_.push_back(tenant > 0 && random() % 2 == 0
                           ? static_cast<int>(random() % static_cast<unsigned>(tenant))
                           : -1);
  }
  std::vector<std::map<std::string, uint64_t>> charged(static_cast<size_t>(count));
  for (int tenant = count - 1; tenant >= 0; --tenant) {
    auto& total = charged[static_cast<size_t>(tenant)];
    for (uint64_t device = 0; device < kDevices; ++device) {
      if (random() % 4 == 0) continue;
      const uint64_t bytes = 1 + random() % 1'000'000;
      leased[{tenant, DeviceName(device)}] = bytes;
      total[DeviceName(device)] += bytes;
    }
    const int parent = parents_[static_cast<size_t>(tenant)];
    if (parent < 0) continue;
    for (const auto& [device, bytes] : total) charged[static_cast<size_t>(parent)][device] += bytes;
  }
  for (int tenant = 0; tenant < count; ++tenant) {
    v1::TenantInfo& info = *state_.tenants.add_tenants();
    info.mutable_usage()->set_tenant(NameOf(tenant));
    for (const auto& [device, bytes] : charged[static_cast<size_t>(tenant)]) {
      v1::DeviceUsage& usage = *info.mutable_usage()->add_devices();
      usage.set_device_uuid(device);
      usage.set_leased_bytes(bytes);
      usage.set_charged_bytes(bytes);
      usage.set_peak_bytes(Number(tenant));
      for (v1::Device& each : *state_.status.mutable_devices()) {
        if (each.device_uuid() != device || parents_[static_cast<size_t>(tenant)] >= 0) continue;
        each.set_charged_bytes(each.charged_bytes() + bytes);
      }
    }
    info.mutable_quota()->set_limit_bytes(Number(tenant));
    const int parent = parents_[static_cast<size_t>(tenant)];
    if (parent >= 0) info.mutable_quota()->set_parent(NameOf(parent));
    if (random() % 2 == 0) {
      v1::MadeTenant& made = *info.mutable_made();
      made.set_owner(Text(tenant));
      if (parent >= 0) made.set_parent(NameOf(parent));
      const uid_t uid = uids_[random() % uids_.size()];
      if (random() % 2 == 0) {
        made.set_user(uid);
      } else {
        made.set_uid(uid);
      }
      own_[uid].insert(tenant);
    }
  }
}

void PlantedState::AddSessions(std::mt19937& random) {
  for (unsigned i = random() % 12; i > 0; --i) {
    const int tenant = AnyTenant(random);
    const uid_t uid = uids_[random() % uids_.size()];
    v1::SessionInfo& session = *state_.sessions.add_sessions();
    session.set_session_id(Number(tenant));
    session.set_tenant(NameOf(tenant));
    session.set_uid(uid);
    session.set_gid(Number32(tenant));
    session.set_pid(static_cast<int32_t>(Number32(tenant)));
    session.set_client_name(Text(tenant));
    session.set_command(Text(tenant));
    session.set_cgroup(Text(tenant));
    session.set_rule(Text(tenant));
    session.set_leased_bytes(Number(tenant));
    own_[uid].insert(tenant);
    session_ids_.emplace_back(session.session_id(), tenant);
    ++sessions[tenant];
  }
  // Some tenants were made by a session, also of another tenant.
  for (v1::TenantInfo& info : *state_.tenants.mutable_tenants()) {
    if (!info.has_made() || session_ids_.empty() || random() % 2 == 0) continue;
    info.mutable_made()->set_session_id(session_ids_[random() % session_ids_.size()].first);
  }
}

void PlantedState::AddSegments(std::mt19937& random) {
  for (unsigned i = random() % 12; i > 0; --i) {
    const int tenant = AnyTenant(random);
    v1::SegmentInfo& segment = *state_.segments.add_segments();
    segment.set_segment_id(Number(tenant));
    segment.set_tenant(NameOf(tenant));
    segment.set_device_uuid(DeviceName(random() % kDevices));
    segment.set_size_bytes(Number(tenant));
    segment_ids_.emplace_back(segment.segment_id(), tenant);
    ++segments[tenant];
    for (unsigned j = session_ids_.empty() ? 0 : random() % 4; j > 0; --j) {
      const auto& [session, holder] = session_ids_[random() % session_ids_.size()];
      segment.add_session_ids(session);
      v1::LeaseInfo& lease = *state_.holders.add_leases();
      // Both see the lease, each without the other's side.
      lease.set_lease_id(NumberOf({tenant, holder}));
      lease.set_segment_id(segment.segment_id());
      lease.set_session_id(session);
      lease.set_tenant(NameOf(holder));
      lease.set_tag(Text(holder));
      if (random() % 2 == 0) {
        lease.set_attached(true);
        lease.set_publication(absl::StrCat(NameOf(tenant), "/", "name", next_++));
        lease.set_version(Number(tenant));
      }
    }
  }
}

void PlantedState::AddPublications(std::mt19937& random) {
  for (unsigned i = random() % 6; i > 0; --i) {
    const int tenant = AnyTenant(random);
    v1::PublicationInfo& publication = *state_.publications.add_publications();
    publication.set_tenant(NameOf(tenant));
    publication.set_name(Text(tenant));
    publication.set_version(Number(tenant));
    publication.set_bytes(Number(tenant));
    publication.set_publisher_client_name(Text(tenant));
    publication.set_publisher_pid(static_cast<int32_t>(Number32(tenant)));
    ++publications[tenant];
    publication_names_.emplace_back(absl::StrCat(publication.tenant(), "/", publication.name()),
                                    tenant);
    v1::PublishedSegments& published = *state_.holders.add_publications();
    published.set_tenant(publication.tenant());
    published.set_name(publication.name());
    published.set_version(publication.version());
    for (const auto& [segment, owner] : segment_ids_) {
      if (owner == tenant) published.add_segment_ids(segment);
    }
  }
}

v1::Denial PlantedState::Denial(int tenant, std::mt19937& random) {
  v1::Denial denial;
  denial.set_cause(v1::Denial::CAUSE_DEVICE_LIMIT);
  denial.set_tenant(NameOf(tenant));
  denial.set_device_uuid(DeviceName(0));
  denial.set_asked(Number(tenant));
  const int limited = random() % 2 == 0 ? tenant : AnyTenant(random);
  denial.set_used(Number(limited));
  denial.set_limit(Number(limited));
  if (limited != tenant) denial.set_limited_tenant(NameOf(limited));
  for (unsigned i = random() % 4; i > 0; --i) {
    const int holder = AnyTenant(random);
    v1::Denial::Holder& each = *denial.add_holders();
    each.set_tenant(NameOf(holder));
    each.set_used(Number(holder));
  }
  denial.set_help(
      absl::StrCat("ask for ", NameOf(random() % 2 == 0 ? limited : AnyTenant(random))));
  return denial;
}

void PlantedState::AddWaiting(std::mt19937& random) {
  for (unsigned i = session_ids_.empty() ? 0 : random() % 6; i > 0; --i) {
    const auto& [session, tenant] = session_ids_[random() % session_ids_.size()];
    v1::WaitingInfo& waiting = *state_.waiting.add_waiting();
    waiting.set_session_id(session);
    waiting.set_tenant(NameOf(tenant));
    waiting.set_device_uuid(DeviceName(random() % kDevices));
    waiting.set_bytes(Number(tenant));
    waiting.set_count(Number32(tenant));
    waiting.set_position(i);
    *waiting.mutable_blocked_by() = Denial(tenant, random);
  }
}

v1::EventRecord PlantedState::Event(std::mt19937& random) {
  v1::EventRecord record;
  record.set_number(1 + random() % 100);
  record.set_event("granted");
  record.set_missed(random() % 2 == 0 ? Number(AnyTenant(random)) : 0);
  const int tenant = AnyTenant(random);
  std::string text = "something";
  const auto add = [&](const char* name, const std::string& value, bool number = false) {
    v1::EventField& field = *record.add_fields();
    field.set_name(name);
    field.set_number(number);
    field.add_values(value);
    absl::StrAppend(&text, ", ", value);
  };
  const auto sometimes = [&] { return random() % 2 == 0; };
  if (random() % 8 > 0) add("tenant", NameOf(tenant));
  if (sometimes()) add("session", absl::StrCat(Number(tenant)), true);
  if (sometimes()) add("client", Text(tenant));
  if (sometimes()) add("bytes", absl::StrCat(Number(tenant)), true);
  const int owner = AnyTenant(random), limited = AnyTenant(random);
  if (sometimes()) {
    add("owner", NameOf(owner));
    add("segment", absl::StrCat(Number(owner)), true);
  }
  if (sometimes()) {
    add("limited", NameOf(limited));
    add("used", absl::StrCat(Number(limited)), true);
    add("limit", absl::StrCat(Number(limited)), true);
  }
  if (sometimes()) {
    const int publisher = AnyTenant(random);
    add("publication", absl::StrCat(NameOf(publisher), "/name"));
    add("version", absl::StrCat(Number(publisher)), true);
  }
  if (sometimes()) add("holder", absl::StrCat(Number(AnyTenant(random))), true);
  if (sometimes()) add("change", Text(AnyTenant(random)));
  if (sometimes()) add("by_uid", absl::StrCat(Number(AnyTenant(random))), true);
  if (sometimes()) add("added_later", Text(AnyTenant(random)));
  if (sometimes()) {
    const std::string why = Text(AnyTenant(random));
    v1::EventField& field = *record.add_fields();
    field.set_name("why");
    field.add_values(why);
    absl::StrAppend(&text, ": ", why);
  }
  record.set_text(text);
  return record;
}

std::set<std::string> PlantedState::Foreign(const std::string& text,
                                            const std::set<int>& visible) const {
  std::set<std::string> foreign;
  for (const int other : Others(visible)) {
    if (absl::StrContains(text, NameOf(other))) foreign.insert(NameOf(other));
  }
  for (size_t begin = 0; begin < text.size();) {
    if (isdigit(static_cast<unsigned char>(text[begin])) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size() && isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    const auto number = numbers_.find(text.substr(begin, end - begin));
    begin = end;
    if (number == numbers_.end() || number->second.contains(-1)) continue;
    bool known = false;
    for (const int tenant : number->second) known |= visible.contains(tenant);
    if (!known) foreign.insert(number->first);
  }
  return foreign;
}

}  // namespace gpumem::web
