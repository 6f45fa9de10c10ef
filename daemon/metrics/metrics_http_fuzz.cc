// SPDX-License-Identifier: Apache-2.0
// Bytes on a connection to the metrics' HTTP server. It closes the connection; what it answers
// begins as HTTP does. Byte 0 is the length of the pieces in which the rest arrives; 0: as one.
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/testing/fuzz/input.h"
#include "common/testing/fuzz/stream_exchange.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "daemon/metrics/http_server.h"

namespace gpumemd {
namespace {

// The path of a server that lives as long as the process.
const std::string& ServerPath() {
  static const std::string& path = *[] {
    static char dir[] = "/tmp/gpumem-fuzz-XXXXXX";
    FUZZ_CHECK(mkdtemp(dir) != nullptr);
    auto* made = new std::string(absl::StrCat(dir, "/http"));
    auto listener = gpumem::ListenUnix(*made, SOCK_STREAM, 0600);
    FUZZ_CHECK(listener.ok());
    HttpServerOptions options;
    options.page = [] { return std::string("page\n"); };
    auto server = HttpServer::Start(*std::move(listener), std::move(options));
    FUZZ_CHECK(server.ok());
    static HttpServer* const kept = server->release();  // found by LeakSanitizer
    (void)kept;
    std::atexit([] {
      unlink(absl::StrCat(dir, "/http").c_str());
      rmdir(dir);
    });
    return made;
  }();
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gpumem::testing::FuzzInput input(data, size);
  const size_t piece = input.Byte();
  const std::string answer = gpumem::testing::Exchange(ServerPath(), input, piece);
  FUZZ_CHECK(answer.empty() || absl::StartsWith(answer, "HTTP/1."));
  return 0;
}

}  // namespace gpumemd
