// SPDX-License-Identifier: Apache-2.0
// How a session begins.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/handshake.h"
#include "client/session/session.h"
#include "common/denial.h"
#include "common/endpoints.h"
#include "common/fork_count.h"

namespace gpumem::internal {
namespace {

// The pause between two attempts to begin a session, and how many daemons may die during one.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(200);
constexpr int kMostDeaths = 5;

// gRPC keeps threads and an epoll set for the whole process; a child that continued to use them
// would take its parent's events. Returns FAILED_PRECONDITION there.
absl::Status ClaimProcess() {
  static std::atomic<pid_t> owner{0};
  pid_t first = 0;
  if (owner.compare_exchange_strong(first, ::getpid()) || first == ::getpid()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "this process was forked from one that had connected, and gRPC and CUDA do not work after a "
      "fork: fork before connecting, or start it with exec (in Python: multiprocessing's "
      "\"spawn\")");
}

struct Beginning {
  v1::Welcome welcome;
  std::shared_ptr<Connection> connection;
};

// Why an attempt to begin a session failed.
enum class Failure {
  kFinal,   // another attempt would fail in the same way
  kAbsent,  // no daemon listens
  kDied,    // the daemon went away without refusing
};

// Makes one attempt at a session.
absl::StatusOr<Beginning> BeginSession(const std::string& runtime_dir, const Greeting& greeting,
                                       absl::Duration timeout, absl::Time deadline,
                                       Failure* failure) {
  *failure = Failure::kFinal;
  absl::StatusOr<UniqueFd> socket = SayHello(runtime_dir, greeting, deadline);
  if (absl::IsUnavailable(socket.status())) *failure = Failure::kAbsent;
  if (!socket.ok()) return socket.status();
  bool refused = false;
  absl::StatusOr<Welcomed> welcomed = HearWelcome(socket->get(), runtime_dir, deadline, &refused);
  if (absl::IsDeadlineExceeded(welcomed.status()) && !refused) {
    return absl::DeadlineExceededError(
        absl::StrCat(welcomed.status().message(), ": within ", absl::FormatDuration(timeout)));
  }
  if (absl::IsUnavailable(welcomed.status()) && !refused) *failure = Failure::kDied;
  if (!welcomed.ok()) return welcomed.status();
  auto connection = std::make_shared<Connection>(*std::move(socket), std::move(welcomed->api),
                                                 welcomed->welcome.token());
  return Beginning{std::move(welcomed->welcome), std::move(connection)};
}

// Returns the tenant that the environment asks for; empty: none. A program with the rights of
// another user does not heed its caller's environment.
std::string TenantOfEnvironment() {
  const char* tenant = secure_getenv("GPUMEM_TENANT");
  return tenant == nullptr ? "" : tenant;
}

bool IsFolder(const std::string& path) {
  struct stat found;
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Session>> Session::Connect(const ConnectOptions& options) {
  if (absl::Status status = ClaimProcess(); !status.ok()) return status;
  const absl::Time deadline = absl::Now() + options.timeout;
  std::string runtime_dir;
  const Greeting greeting = {
      .name = options.name,
      .tenant = options.tenant.empty() ? TenantOfEnvironment() : options.tenant,
      .connect_id = std::max<uint32_t>(1, std::random_device{}())};
  // A daemon that dies meanwhile may have begun the session. Its successor ends that session by the
  // number, so repeating is safe.
  Failure failure = Failure::kFinal;
  int deaths = 0;
  const auto begin = [&] {
    // Resolved each time: the socket of a user's own daemon may have appeared.
    runtime_dir = options.runtime_dir.empty() ? ClientRuntimeDir() : options.runtime_dir;
    return BeginSession(runtime_dir, greeting, options.timeout, deadline, &failure);
  };
  absl::StatusOr<Beginning> begun = begin();
  absl::Status refusal;  // the last one that was to pass
  for (absl::Duration pause = kFirstPause; !begun.ok();
       pause = std::min(2 * pause, kLongestPause)) {
    deaths += failure == Failure::kDied ? 1 : 0;
    const bool may_come = failure == Failure::kAbsent && options.wait && IsFolder(runtime_dir);
    const bool may_change = deaths > 0 && deaths < kMostDeaths && options.reconnect &&
                            absl::IsUnavailable(begun.status());
    const bool may_be_admitted = IsTryAgain(begun.status());
    if (may_be_admitted) refusal = begun.status();
    if (!may_come && !may_change && !may_be_admitted) return begun.status();
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      if (!may_come) return begun.status();
      return absl::UnavailableError(absl::StrCat(begun.status().message(),
                                                 "; no daemon started within ",
                                                 absl::FormatDuration(options.timeout)));
    }
    absl::SleepFor(std::min(pause, left));
    begun = begin();
    // The last attempt may have come too late for an answer; the one before it had the reason.
    if (absl::IsDeadlineExceeded(begun.status()) && !refusal.ok()) return refusal;
  }
  // A forked child leaves the session untouched. Its locks may be held by threads that exist only
  // in the parent (destroying an absl::Mutex also takes a lock shared by all of them). gRPC's
  // threads are the parent's, and the child must not call CUDA.
  const auto end = [](Session* session) {
    if (!session->forked()) delete session;
  };
  return std::shared_ptr<Session>(new Session(std::move(begun->welcome), options, greeting,
                                              runtime_dir, std::move(begun->connection)),
                                  end);
}

Session::Session(v1::Welcome welcome, const ConnectOptions& options, Greeting greeting,
                 std::string runtime_dir, ConnectionPtr connection)
    : forks_(internal::CountForks()),
      welcome_(std::move(welcome)),
      timeout_(options.timeout),
      runtime_dir_(std::move(runtime_dir)),
      reconnector_(std::move(connection), welcome_, std::move(greeting), runtime_dir_, &book_,
                   options.reconnect) {}

}  // namespace gpumem::internal
