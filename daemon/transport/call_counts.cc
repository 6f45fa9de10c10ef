#include "daemon/transport/call_counts.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"

namespace gpumemd {
namespace {

using Json = nlohmann::json;

// gRPC answers in the JSON form of channelz.proto. Null where there is nothing.
Json Parse(char* answer) {
  if (answer == nullptr) return nullptr;
  Json parsed = Json::parse(answer, nullptr, /*allow_exceptions=*/false);
  gpr_free(answer);
  return parsed;
}

// Numbers of 64 bits are strings there, and absent where they are 0.
int64_t NumberIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  int64_t number = 0;
  if (found == object.end() || !found->is_string() ||
      !absl::SimpleAtoi(found->get_ref<const std::string&>(), &number)) {
    return 0;
  }
  return number;
}

const Json& Member(const Json& object, const char* name) {
  static const Json kNothing = Json::object();
  const auto found = object.find(name);
  return found == object.end() ? kNothing : *found;
}

// The newest server that there is.
int64_t NewestServer() {
  int64_t newest = 0;
  while (true) {
    const Json page = Parse(grpc_channelz_get_servers(newest + 1));
    const int64_t before = newest;
    for (const Json& server : Member(page, "server")) {
      newest = std::max(newest, NumberIn(Member(server, "ref"), "serverId"));
    }
    if (newest == before) return newest;
  }
}

}  // namespace

CountedServer StartCounted(grpc::ServerBuilder& builder) {
  static absl::Mutex one_at_a_time(absl::kConstInit);
  absl::MutexLock lock(&one_at_a_time);
  CountedServer counted{.server = builder.BuildAndStart()};
  if (counted.server != nullptr) counted.number = NewestServer();
  return counted;
}

CallCounts CountCalls(const CountedServer& server) {
  const Json answer = Parse(grpc_channelz_get_server(server.number));
  const Json& data = Member(Member(answer, "server"), "data");
  return {.started = static_cast<uint64_t>(NumberIn(data, "callsStarted")),
          .failed = static_cast<uint64_t>(NumberIn(data, "callsFailed"))};
}

}  // namespace gpumemd
