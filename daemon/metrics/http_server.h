// Serves one page over HTTP/1.1, to whoever scrapes it.
//
// One thread, which sleeps while nobody asks. Peers are assumed hostile: what they send is bounded
// in size and time, and so is how many of them there are; where there are too many, the one that
// has been quiet for longest goes, so that those who hold connections open keep nobody out.
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
  // Makes the page anew. Called on the server's thread, one call at a time.
  std::function<std::string()> page;
  // A page is not made anew for this long: who asks all the time costs no more than that.
  absl::Duration page_holds = absl::Milliseconds(100);
  size_t max_connections = 32;
  // For a request to come, and for its answer to be taken.
  absl::Duration patience = absl::Seconds(10);
  // Until the next request on a connection that has had one. Longer than scrapers pause.
  absl::Duration keep_alive = absl::Seconds(150);
};

class HttpServer {
 public:
  // `listener` is a stream socket that listens, TCP's or a unix socket's.
  //   RESOURCE_EXHAUSTED  no thread, or no descriptor for its event loop
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(gpumem::UniqueFd listener,
                                                           HttpServerOptions options);
  // Closes the listener and all connections. Waits for the page that is being made.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  class Loop;
  explicit HttpServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace gpumemd
