// SPDX-License-Identifier: Apache-2.0
// Sends random and mangled messages of every type to all three sockets, from a seed.
#pragma once

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "tests/support/wire.h"
#include "tests/system/testing/random_messages.h"

namespace gpumem::testing {

class Fuzzer {
 public:
  Fuzzer(std::string dir, uint64_t seed);

  // Sends one random message, call or frame. Statuses that nothing may answer with are written to
  // `trouble()`.
  void Round();

  const std::string& trouble() const { return trouble_; }
  std::string Summary() const { return absl::StrJoin(answers_, " ", absl::PairFormatter("=")); }

 private:
  void Note(const std::string& what, const absl::Status& status, bool words = true);

  // --- The session socket --------------------------------------------------------------

  void Greet();

  // Returns the session for calls; a new one if there is none.
  std::string Token();

  // --- Calls -----------------------------------------------------------------------------

  void Call(const google::protobuf::MethodDescriptor* method);

  // Keeps an answer's values for later requests.
  void Learn(const std::string& method, const std::string& answer, const std::string& token);

  void Watch();

  // Now and then restores the quota that the fuzzer has reduced by SetQuota.
  void ResetQuota();

  // --- Frames ----------------------------------------------------------------------------

  void SendFrames();

  const std::string dir_;
  Random random_;
  RandomMessages messages_{&random_};
  const std::shared_ptr<grpc::Channel> api_, admin_;
  std::vector<const google::protobuf::MethodDescriptor*> methods_;
  std::unique_ptr<WireSession> session_;
  std::string stale_;
  std::map<std::string, int> answers_;
  std::string trouble_;
};

}  // namespace gpumem::testing
