// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/who_am_i.h"

#include <string>

#include "daemon/transport/peer/peer_socket.h"

namespace gpumemd {

namespace v1 = gpumem::v1;

v1::WhoAmIResponse ToProto(const PeerIdentity& peer, const TenantMatch& match) {
  v1::WhoAmIResponse proto;
  proto.set_tenant(match.tenant);
  proto.set_rule(Printable(match.rule));
  proto.set_rule_number(static_cast<uint32_t>(match.rule_number));
  for (const PassedRule& rule : match.passed) {
    v1::PassedRule& added = *proto.add_passed();
    added.set_number(static_cast<uint32_t>(rule.number));
    added.set_condition(rule.condition);
    added.set_ambiguous(rule.ambiguous);
  }
  v1::Identity& identity = *proto.mutable_identity();
  identity.set_pid(peer.pid);
  identity.set_uid(peer.uid);
  identity.set_gid(peer.gid);
  for (const gid_t group : peer.groups) identity.add_groups(group);
  identity.set_cgroup(Printable(peer.cgroup.Value(CgroupFact::kPath)));
  identity.set_cgroup_unknown(Printable(peer.cgroup.unknown()));
  for (size_t i = 0; i < kCgroupFacts; ++i) {
    const auto fact = static_cast<CgroupFact>(i);
    const std::string ambiguity = peer.cgroup.Ambiguity(fact);
    const std::vector<std::string>& values = peer.cgroup.Values(fact);
    // The path has a separate field.
    if (ambiguity.empty() && (values.empty() || fact == CgroupFact::kPath)) continue;
    v1::CgroupFact& added = *identity.add_facts();
    added.set_name(std::string(NameOf(fact)));
    for (const std::string& value : values) added.add_values(Printable(value));
    added.set_ambiguity(Printable(ambiguity));
  }
  if (match.pod != nullptr) *identity.mutable_described_pod() = ToProto(*match.pod);
  return proto;
}

v1::PodFacts ToProto(const PodFacts& pod) {
  v1::PodFacts proto;
  proto.set_uid(pod.uid);
  proto.set_namespace_(pod.name_space);
  proto.set_name(pod.name);
  proto.set_service_account(pod.service_account);
  for (const auto& [key, value] : pod.labels) {
    v1::PodLabel& label = *proto.add_labels();
    label.set_key(key);
    label.set_value(value);
  }
  for (const std::string& claim : pod.claims) proto.add_claims(claim);
  return proto;
}

}  // namespace gpumemd
