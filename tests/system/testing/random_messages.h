// SPDX-License-Identifier: Apache-2.0
// Random messages from a seed: fields of every type, and bytes that are nearly a message.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gpumem::testing {

// The same numbers from the same seed on every machine (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t end) { return Next() % end; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  template <typename T>
  const T& Of(const std::vector<T>& values) {
    return values[Below(values.size())];
  }
  std::string Bytes(size_t most) {
    std::string bytes(Below(most + 1), '\0');
    for (char& c : bytes) c = static_cast<char>(Next());
    return bytes;
  }

 private:
  uint64_t state_;
};

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
