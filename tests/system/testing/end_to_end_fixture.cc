// SPDX-License-Identifier: Apache-2.0
#include "tests/system/testing/end_to_end_fixture.h"

#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/support/child.h"

namespace gpumem::testing {

std::string Tenant(const std::string& name, const std::string& keys) {
  return absl::StrCat("[[tenant]]\nname = \"", name, "\"\n", keys, "[[rule]]\ntenant = \"", name,
                      "\"\ndefault = true\n");
}

const std::string& Config() {
  static const auto* const config = new std::string(absl::StrCat(R"(
[host]
devices = 2
device_bytes = "128MiB"
[tenant_defaults]
limit = "64MiB"
)",
                                                                 Tenant("a"), Tenant("b")));
  return *config;
}

int Hold(const std::string& dir, const std::string& tenant, uint64_t mib, int value) {
  auto client = Client::Connect({.runtime_dir = dir, .tenant = tenant, .name = "holder"});
  if (!client.ok()) return Say(kParentChannel, client.status().ToString()), 1;
  auto segment = (*client)->Acquire({.bytes = mib * kMiB});
  if (!segment.ok()) return Say(kParentChannel, segment.status().ToString()), 1;
  std::memset(segment->data(), value, segment->size());
  auto ticket = segment->Share();
  if (!ticket.ok()) return Say(kParentChannel, ticket.status().ToString()), 1;
  Say(kParentChannel, ticket->value);
  const std::string word = Hear(kParentChannel);
  if (word == "exit without release") _exit(0);
  return word == "release" && segment->Release().ok() ? 0 : 1;
}

}  // namespace gpumem::testing
