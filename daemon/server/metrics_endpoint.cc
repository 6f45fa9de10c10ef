// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/metrics_endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "common/version.h"
#include "daemon/core/broker/views.h"
#include "daemon/log/log.h"
#include "daemon/metrics/metrics_page.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

constexpr int kBacklog = 16;

union Address {
  sockaddr any;
  sockaddr_in four;
  sockaddr_in6 six;
};

// Listens on a TCP address, and sets the port.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& text, uint16_t* port) {
  Address address = {};
  socklen_t length = sizeof(address.four);
  if (inet_pton(AF_INET, text.c_str(), &address.four.sin_addr) == 1) {
    address.four.sin_family = AF_INET;
    address.four.sin_port = htons(*port);
  } else if (inet_pton(AF_INET6, text.c_str(), &address.six.sin6_addr) == 1) {
    address.six.sin6_family = AF_INET6;
    address.six.sin6_port = htons(*port);
    length = sizeof(address.six);
  } else {
    return absl::InvalidArgumentError(absl::StrCat(text, " is no address"));
  }
  const auto failed = [&] {
    const int error = errno;
    return absl::ErrnoToStatus(error, absl::StrCat("cannot listen on ", text, ", port ", *port));
  };
  UniqueFd fd(
      socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, /*protocol=*/0));
  if (!fd.valid()) return failed();
  // A daemon that comes after another one does not wait until that one's connections are
  // forgotten (socket(7)).
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), &address.any, length) != 0 || listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), &address.any, &length) != 0) {
    return failed();
  }
  *port = ntohs(address.any.sa_family == AF_INET ? address.four.sin_port : address.six.sin6_port);
  return fd;
}

absl::StatusOr<UniqueFd> ListenOnFile(const MetricsConfig& config) {
  absl::StatusOr<UniqueFd> fd =
      gpumem::ListenUnix(config.unix_path, SOCK_STREAM, config.socket_mode);
  if (!fd.ok() || !config.socket_gid) return fd;
  if (chown(config.unix_path.c_str(), static_cast<uid_t>(-1), *config.socket_gid) != 0) {
    const int error = errno;
    unlink(config.unix_path.c_str());
    return absl::ErrnoToStatus(
        error, absl::StrCat("cannot give ", config.unix_path, " to group ", *config.socket_gid));
  }
  return fd;
}

MetricsFacts Gather(const MetricsSources& sources) {
  const LogCounts log = CountUnlogged();
  const auto ask = [](const std::function<uint64_t()>& count) {
    return count == nullptr ? 0 : count();
  };
  return {.measures = sources.broker->views().Measure(),
          .foreign_bytes = sources.foreign_bytes(),
          .generation = sources.generation,
          .notices = sources.notices(),
          .store_places = ask(sources.store_places),
          .store_used = ask(sources.store_used),
          .unkept = ask(sources.unkept),
          .spun = sources.spun == nullptr ? absl::ZeroDuration() : sources.spun(),
          .log_dropped = log.dropped,
          .log_suppressed = log.suppressed,
          .version = GPUMEM_VERSION,
          .backend = sources.backend,
          .started = sources.started,
          .process = ReadProcessStats()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const MetricsConfig& config,
                                                                        MetricsSources sources) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint);
  uint16_t port = config.port;
  absl::StatusOr<UniqueFd> listener =
      config.unix_path.empty() ? ListenTcp(config.address, &port) : ListenOnFile(config);
  if (!listener.ok()) return listener.status();
  if (config.unix_path.empty()) {
    const bool six = config.address.find(':') != std::string::npos;
    endpoint->where_ = absl::StrCat("http://", six ? "[" : "", config.address, six ? "]" : "", ":",
                                    port, "/metrics");
  } else {
    endpoint->where_ = absl::StrCat("unix:", config.unix_path);
    endpoint->socket_file_ = config.unix_path;
  }
  auto page = std::make_shared<MetricsPage>(config.max_tenants);
  auto server = HttpServer::Start(
      *std::move(listener),
      {.page = [page, sources = std::move(sources)] { return page->Write(Gather(sources)); }});
  if (!server.ok()) return server.status();
  endpoint->server_ = *std::move(server);
  return endpoint;
}

MetricsEndpoint::~MetricsEndpoint() {
  // Before the listener closes: a daemon that starts now makes a new one.
  if (!socket_file_.empty()) unlink(socket_file_.c_str());
}

}  // namespace gpumemd
