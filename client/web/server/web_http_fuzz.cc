// SPDX-License-Identifier: Apache-2.0
// Bytes on a connection to gpumem-web, and the parts that read a request's target and sender. It
// closes the connection; what it answers begins as HTTP does.
//
//   byte 0    the length of the pieces in which the rest arrives; 0: as one
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/web/server/listener.h"
#include "client/web/server/origin.h"
#include "client/web/server/routes.h"
#include "client/web/server/server.h"
#include "client/web/server/testing/fake_feed.h"
#include "common/testing/fuzz/input.h"
#include "common/testing/fuzz/stream_exchange.h"
#include "common/unique_fd.h"

namespace gpumem::web {
namespace {

// The path of a server that lives as long as the process.
const std::string& ServerPath() {
  static const std::string& path = *[] {
    static char dir[] = "/tmp/gpumem-fuzz-XXXXXX";
    FUZZ_CHECK(mkdtemp(dir) != nullptr);
    auto* made = new std::string(absl::StrCat(dir, "/web.sock"));
    std::vector<Listener> listeners;
    auto listener = Listen(absl::StrCat("unix:", *made));
    FUZZ_CHECK(listener.ok());
    listeners.push_back(*std::move(listener));
    auto server = Server::Start(std::move(listeners), new FakeFeed, {.node = "node1"});
    FUZZ_CHECK(server.ok());
    static Server* const kept = server->release();  // found by LeakSanitizer
    (void)kept;
    std::atexit([] { std::filesystem::remove_all(dir); });
    return made;
  }();
  return path;
}

void CheckParts(absl::string_view text) {
  const std::string word(text.substr(0, text.find(' ')));
  (void)RouteOf(word);
  FUZZ_CHECK(absl::StartsWith(word, PathOf(word)));
  const absl::StatusOr<HistoryQuery> query = ParseHistoryQuery(word);
  FUZZ_CHECK(query.ok() || absl::IsInvalidArgument(query.status()));
  if (query.ok()) FUZZ_CHECK(query->tenants.size() <= HistoryQuery::kMostTenants);
  const SenderFields fields{.host = word, .origin = absl::StrCat("http://", word)};
  // A page of another site is admitted under no name but this server's.
  if (CheckSender(fields, {"gpu.example"}, false) != Sender::kAdmitted) return;
  bool is_ours = false;
  for (const char* host : {"gpu.example", "localhost", "127.0.0.1", "[::1]"}) {
    const size_t length = absl::string_view(host).size();
    is_ours = is_ours || (absl::StartsWithIgnoreCase(word, host) &&
                          (word.size() == length || word[length] == ':'));
  }
  FUZZ_CHECK(is_ours);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  testing::FuzzInput input(data, size);
  const size_t piece = input.Byte();
  CheckParts({reinterpret_cast<const char*>(data) + (size > 0 ? 1 : 0), size > 0 ? size - 1 : 0});
  const std::string answer = testing::Exchange(ServerPath(), input, piece);
  FUZZ_CHECK(answer.empty() || absl::StartsWith(answer, "HTTP/1."));
  return 0;
}

}  // namespace gpumem::web
