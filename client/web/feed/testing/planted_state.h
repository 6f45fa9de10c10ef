// SPDX-License-Identifier: Apache-2.0
// Random states in which each tenant's names and numbers can be told from all others' in a text.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "client/cli/views/snapshot.h"
#include "proto/gpumem/v1/event_record.pb.h"

namespace gpumem::web {

// The facts of a state that its privacy depends on, apart from the messages.
class PlantedState {
 public:
  explicit PlantedState(std::mt19937& random);

  const cli::Snapshot& state() const { return state_; }
  const std::vector<uid_t>& uids() const { return uids_; }
  // Returns the tenants of the user; with `teams` all of the user's teams.
  std::set<int> Visible(uid_t uid, bool teams) const;
  // Returns the tenants but these.
  std::set<int> Others(const std::set<int>& visible) const;
  static std::string NameOf(int tenant);

  // Returns a record about a tenant, whose fields and sentence name others, too.
  v1::EventRecord Event(std::mt19937& random);

  // Returns names and numbers in `text` that are of none of these tenants.
  std::set<std::string> Foreign(const std::string& text, const std::set<int>& visible) const;

  // The charge of each tenant on each device, without tenants under it.
  std::map<std::pair<int, std::string>, uint64_t> leased;
  // By tenant: of sessions, segments and publications.
  std::map<int, int> sessions, segments, publications;

 private:
  std::string Text(int tenant);   // that is this tenant's alone
  uint64_t Number(int tenant);    // the same
  uint32_t Number32(int tenant);  // the same
  uint64_t NumberOf(const std::set<int>& tenants);
  int AnyTenant(std::mt19937& random) const { return static_cast<int>(random() % parents_.size()); }
  int TopOf(int tenant) const;

  void AddTenants(std::mt19937& random);
  void AddSessions(std::mt19937& random);
  void AddSegments(std::mt19937& random);
  void AddPublications(std::mt19937& random);
  void AddWaiting(std::mt19937& random);
  v1::Denial Denial(int tenant, std::mt19937& random);

  cli::Snapshot state_;
  std::vector<int> parents_;  // -1: none
  std::vector<uid_t> uids_;
  std::map<uid_t, std::set<int>> own_;
  std::vector<std::pair<uint64_t, int>> session_ids_;  // with their tenants
  std::vector<std::pair<uint64_t, int>> segment_ids_;
  std::vector<std::pair<std::string, int>> publication_names_;
  std::map<std::string, std::set<int>> numbers_;  // decimal: the tenants that may know it
  int next_ = 0;
};

}  // namespace gpumem::web
