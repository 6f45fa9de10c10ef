// SPDX-License-Identifier: Apache-2.0
// Serves one page over HTTP/1.1 to any scraper.
//
// One thread, which sleeps between requests. Peers are assumed hostile: their number is bounded,
// and so are the size and time of their requests. If there are too many, the one that has been
// quiet longest is closed. So peers that hold connections open keep no other peer out.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumemd {

struct HttpServerOptions {
  std::string path = "/metrics";
  std::string content_type = "text/plain; version=0.0.4; charset=utf-8";
  // Makes the page. Called on the server's thread, one call at a time.
  std::function<std::string()> page;
  // A page is reused for this long, which bounds the cost of constant requests.
  absl::Duration page_holds = absl::Milliseconds(100);
  size_t max_connections = 32;
  // Deadline for a request to arrive, and for its answer to be taken.
  absl::Duration patience = absl::Seconds(10);
  // Deadline for the next request on a connection that has had one. Longer than scrapers pause.
  absl::Duration keep_alive = absl::Seconds(150);
};

class HttpServer {
 public:
  // Starts a server. `listener` is a listening stream socket, of TCP or unix.
  //   RESOURCE_EXHAUSTED  no thread, or no descriptor for its event loop
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(gpumem::UniqueFd listener,
                                                           HttpServerOptions options);
  // Closes the listener and all connections. Waits for a page in progress.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  class Loop;
  explicit HttpServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace gpumemd
