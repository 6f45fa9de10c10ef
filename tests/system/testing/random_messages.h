// SPDX-License-Identifier: Apache-2.0
// Random messages from a seed: fields of every type, and bytes that are nearly a message.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/testing/random.h"

namespace gpumem::testing {

// Fills messages. Remembers leases and tickets that it was told of, for values that mean something.
class RandomMessages {
 public:
  explicit RandomMessages(Random* random) : random_(*random) {}

  // True: the next messages are sensible ones, so that there is something to break.
  void set_polite(bool polite) { polite_ = polite; }
  bool polite() const { return polite_; }
  void AddLease(uint64_t lease) { leases_.push_back(lease); }
  void AddTicket(std::string ticket) { tickets_.push_back(std::move(ticket)); }
  // Forgets the older half of many leases and tickets: they have mostly been released.
  void ForgetOld();

  // Sets about two of three fields, at random.
  void Fill(google::protobuf::Message* message, int depth = 0);
  // Returns `bytes` with a few bits, bytes and parts changed.
  std::string Mangled(std::string bytes);
  uint64_t Number();

 private:
  std::string Text(const google::protobuf::FieldDescriptor* field);
  std::string Ticket();
  void Set(google::protobuf::Message* message, const google::protobuf::Reflection* reflection,
           const google::protobuf::FieldDescriptor* field, int depth);
  void Add(google::protobuf::Message* message, const google::protobuf::Reflection* reflection,
           const google::protobuf::FieldDescriptor* field, int depth);

  Random& random_;
  bool polite_ = false;
  std::vector<uint64_t> leases_;
  std::vector<std::string> tickets_;
};

}  // namespace gpumem::testing
