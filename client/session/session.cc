#include "client/session/session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/handshake.h"
#include "client/session/waiting_call.h"
#include "common/endpoints.h"
#include "common/failpoint.h"
#include "common/grpc_status.h"

namespace gpumem::internal {
namespace {

// The maximum time that a destructor or a rollback waits for the daemon.
constexpr absl::Duration kPatience = absl::Seconds(1);
// The maximum time that a destructor waits for a restarted daemon to resume the session.
constexpr absl::Duration kResumePatience = absl::Milliseconds(100);
// The maximum time that a daemon that no longer answers takes to die. A daemon with much memory
// needs some time between closing one socket and the other.
constexpr absl::Duration kDying = absl::Seconds(10);
// How often a thread that waits for memory handles the session's pending work and calls `look`.
constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kOwnLookEvery = absl::Milliseconds(50);
// How often it reads the socket if the daemon may wait for that: a Delivery of many messages does
// not fit into the socket's buffer.
constexpr absl::Duration kReadEvery = absl::Milliseconds(1);
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
      "this process was forked from one that had connected, which neither gRPC nor CUDA survives: "
      "fork before connecting, or start it with exec (in Python: multiprocessing's \"spawn\")");
}

// True if leases may still be held after a release with that status. All other statuses are final:
// the leases have ended, now, before, or with the session.
bool MayStillHold(const absl::Status& release) {
  return absl::IsDeadlineExceeded(release) || absl::IsResourceExhausted(release) ||
         absl::IsUnavailable(release);
}

absl::Status LostError() {
  return absl::FailedPreconditionError(
      "the segment is lost: the daemon that held it has died, and the one that came after does not "
      "know it; copy out what matters, release it, and acquire another");
}

absl::Status Cancelled() { return absl::CancelledError("the wait for memory was cancelled"); }

std::vector<uint64_t> IdsOf(const std::vector<v1::Lease>& leases) {
  std::vector<uint64_t> ids;
  for (const v1::Lease& lease : leases) ids.push_back(lease.lease_id());
  return ids;
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

bool IsFolder(const std::string& path) {
  struct stat found;
  return ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// Returns the end of a request's wait.
absl::Time WaitEnds(uint64_t wait_ms) {
  if (wait_ms >= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InfiniteFuture();
  }
  return absl::Now() + absl::Milliseconds(static_cast<int64_t>(wait_ms));
}

}  // namespace

Grant::Grant(std::shared_ptr<Session> session, std::shared_ptr<Connection> connection,
             std::vector<v1::Lease> leases)
    : session_(std::move(session)),
      connection_(std::move(connection)),
      leases_(std::move(leases)) {}

Grant::~Grant() {
  // The memory must be unmapped here before its lease ends.
  fds_.clear();
  if (session_ != nullptr) session_->Forget(IdsOf(leases_));
}

absl::StatusOr<std::shared_ptr<Session>> Session::Connect(const ConnectOptions& options) {
  if (absl::Status status = ClaimProcess(); !status.ok()) return status;
  const absl::Time deadline = absl::Now() + options.timeout;
  std::string runtime_dir;
  const Greeting greeting = {.name = options.name,
                             .tenant = options.tenant,
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
  for (absl::Duration pause = kFirstPause; !begun.ok();
       pause = std::min(2 * pause, kLongestPause)) {
    deaths += failure == Failure::kDied ? 1 : 0;
    const bool may_come = failure == Failure::kAbsent && options.wait && IsFolder(runtime_dir);
    const bool may_change = deaths > 0 && deaths < kMostDeaths && options.reconnect &&
                            absl::IsUnavailable(begun.status());
    if (!may_come && !may_change) return begun.status();
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      if (!may_come) return begun.status();
      return absl::UnavailableError(absl::StrCat(begun.status().message(), "; none came within ",
                                                 absl::FormatDuration(options.timeout)));
    }
    absl::SleepFor(std::min(pause, left));
    begun = begin();
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
    : pid_(::getpid()),
      welcome_(std::move(welcome)),
      timeout_(options.timeout),
      runtime_dir_(std::move(runtime_dir)),
      reconnector_(std::move(connection), welcome_, std::move(greeting), runtime_dir_, &book_,
                   options.reconnect) {}

bool Session::forked() const { return ::getpid() != pid_; }

absl::Time Session::Deadline(std::optional<absl::Duration> timeout) const {
  return absl::Now() + timeout.value_or(timeout_);
}

template <typename Request, typename Response>
absl::StatusOr<Response> Session::Ask(Method<Request, Response> method, const Request& request,
                                      absl::Time deadline) {
  while (true) {
    const absl::StatusOr<ConnectionPtr> connection = Prepare(deadline);
    if (!connection.ok()) return connection.status();
    absl::StatusOr<Response> response = Call(**connection, method, request, deadline);
    if (!HasEnded(**connection, response.status())) return response;
  }
}

template <typename Request, typename Response>
absl::StatusOr<Response> Session::Call(Connection& connection, Method<Request, Response> method,
                                       const Request& request, absl::Time deadline) {
  Response response;
  const grpc::Status status = connection.Call(method, request, &response, deadline);
  if (!status.ok()) return Explain(connection, status, deadline);
  return response;
}

template <typename Request, typename Response>
absl::StatusOr<Grant> Session::CallForGrant(Method<Request, Response> method, Request request,
                                            int count, absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  LeaseBook::Request booked(&book_);
  request.set_request_id(booked.id());
  while (true) {
    const absl::StatusOr<ConnectionPtr> connection = Prepare(deadline);
    if (!connection.ok()) return connection.status();
    Deliveries::Call call(&(*connection)->deliveries());
    absl::StatusOr<Grant> grant = TakeGrant(
        *connection, call, booked, Call(**connection, method, request, deadline), count, deadline);
    if (!HasEnded(**connection, grant.status())) return grant;
  }
}

template <typename Response>
absl::StatusOr<Grant> Session::TakeGrant(const ConnectionPtr& connection, Deliveries::Call& call,
                                         LeaseBook::Request& request,
                                         const absl::StatusOr<Response>& response, int count,
                                         absl::Time deadline) {
  if (!response.ok()) return response.status();
  absl::StatusOr<std::vector<UniqueFd>> fds = call.Collect(response->delivery_id(), deadline);
  // The memory did not come, and never will over this connection: it must be requested again.
  if (absl::IsUnavailable(fds.status())) return fds.status();
  Grant grant(shared_from_this(), connection,
              {response->leases().begin(), response->leases().end()});
  request.Granted(IdsOf(grant.leases()));
  if (!fds.ok()) return fds.status();
  if (response->leases_size() != count || fds->size() != grant.leases().size()) {
    return absl::InternalError(absl::StrCat("asked for ", count, " segments, the daemon granted ",
                                            response->leases_size(), " and sent the memory of ",
                                            fds->size(), "; this is a defect of gpumem"));
  }
  grant.set_fds(*std::move(fds));
  return grant;
}

absl::StatusOr<Grant> Session::Acquire(const v1::AcquireRequest& request, absl::Time deadline) {
  return CallForGrant(&v1::Broker::Stub::Acquire, request,
                      static_cast<int>(std::max(request.count(), 1u)), deadline);
}

absl::StatusOr<Grant> Session::AcquireWaiting(const v1::AcquireRequest& asked, absl::Time deadline,
                                              const Disturbance& disturbance) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const Interrupt* const interrupt = disturbance.interrupt.get();
  const absl::Time wait_ends = WaitEnds(asked.wait_ms());
  v1::AcquireRequest request = asked;
  LeaseBook::Request booked(&book_);
  request.set_request_id(booked.id());
  while (true) {
    const absl::StatusOr<ConnectionPtr> connection = PrepareUnless(disturbance, deadline);
    if (!connection.ok()) return connection.status();
    if (interrupt != nullptr && interrupt->cancelled()) return Cancelled();
    absl::StatusOr<Grant> grant = [&] {
      Deliveries::Call call(&(*connection)->deliveries(), /*waits=*/true);
      absl::StatusOr<v1::AcquireResponse> response =
          CallWaiting(**connection, &v1::Broker::Stub::AsyncAcquire, request, deadline, disturbance,
                      /*waits=*/true);
      // It was sent before the answer: the end of a long wait does not limit how long it may take.
      return TakeGrant(*connection, call, booked, response,
                       static_cast<int>(std::max(request.count(), 1u)),
                       std::min(deadline, Deadline(std::nullopt)));
    }();
    if (absl::IsCancelled(grant.status())) SettleCancelled(**connection);
    if (!HasEnded(**connection, grant.status())) return grant;
    if (wait_ends == absl::InfiniteFuture()) continue;
    // Part of the wait is over already.
    request.set_wait_ms(static_cast<uint64_t>(
        std::max<int64_t>(0, absl::ToInt64Milliseconds(wait_ends - absl::Now()))));
  }
}

void Session::SettleCancelled(Connection& connection) {
  // Once the daemon, which already knows of the cancellation, has answered another call, its
  // Delivery is here. It is given back.
  v1::GetUsageResponse usage;
  connection.Call(&v1::Broker::Stub::GetUsage, v1::GetUsageRequest(), &usage,
                  absl::Now() + kPatience);
  Forget({});
}

template <typename Request, typename Response>
absl::StatusOr<Response> Session::CallWaiting(Connection& connection,
                                              AsyncMethod<Request, Response> method,
                                              const Request& request, absl::Time deadline,
                                              const Disturbance& disturbance, bool waits) {
  Interrupt* const interrupt = disturbance.interrupt.get();
  bool gave_up = false;
  const auto look = [&] {
    if (connection.ended()) return absl::ZeroDuration();  // Explain() says why
    PayOwed(connection, absl::Now() + kPatience);
    gave_up = (interrupt != nullptr && interrupt->cancelled()) ||
              (disturbance.look && disturbance.look());
    if (gave_up) return absl::ZeroDuration();
    if (!waits || connection.deliveries().HasPart()) return kReadEvery;
    return disturbance.look ? kOwnLookEvery : kLookEvery;
  };
  grpc::ClientContext context;
  connection.SetUp(context, deadline);
  Response response;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
  const grpc::Status status = WaitForAnswer(
      context,
      [&](grpc::CompletionQueue* queue, grpc::Status* end, void* tag) {
        reader = (connection.stub().*method)(&context, request, queue);
        reader->Finish(&response, end, tag);
        Failpoint("client-call-sent");
      },
      interrupt, look);
  if (status.ok()) return response;
  if (gave_up && status.error_code() == grpc::StatusCode::CANCELLED && !connection.ended()) {
    return Cancelled();
  }
  return Explain(connection, status, deadline);
}

absl::StatusOr<Session::Attached> Session::Attach(const v1::AttachRequest& asked,
                                                  absl::Time deadline,
                                                  const Disturbance& disturbance) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const Interrupt* const interrupt = disturbance.interrupt.get();
  const bool waits = asked.wait_for_version() > 0;
  const absl::Time wait_ends =
      asked.wait_ms() > 0 ? WaitEnds(asked.wait_ms()) : absl::InfiniteFuture();
  v1::AttachRequest request = asked;
  LeaseBook::Request booked(&book_);
  request.set_request_id(booked.id());
  while (true) {
    const absl::StatusOr<ConnectionPtr> connection = PrepareUnless(disturbance, deadline);
    if (!connection.ok()) return connection.status();
    if (interrupt != nullptr && interrupt->cancelled()) return Cancelled();
    v1::AttachResponse answer;
    absl::StatusOr<Grant> grant = [&]() -> absl::StatusOr<Grant> {
      Deliveries::Call call(&(*connection)->deliveries(), waits);
      Failpoint("client-attach-asks");
      absl::StatusOr<v1::AttachResponse> response = CallWaiting(
          **connection, &v1::Broker::Stub::AsyncAttach, request, deadline, disturbance, waits);
      Failpoint("client-attach-heard");
      const int count = response.ok() ? response->leases_size() : 0;
      absl::StatusOr<Grant> granted = TakeGrant(*connection, call, booked, response, count,
                                                std::min(deadline, Deadline(std::nullopt)));
      if (response.ok()) answer = *std::move(response);
      return granted;
    }();
    if (absl::IsCancelled(grant.status())) SettleCancelled(**connection);
    if (grant.ok()) {
      answer.clear_leases();
      return Attached{*std::move(grant), std::move(answer)};
    }
    if (!HasEnded(**connection, grant.status())) return grant.status();
    if (wait_ends == absl::InfiniteFuture()) continue;
    // Part of the wait is over already; 0 would mean without limit.
    request.set_wait_ms(static_cast<uint64_t>(
        std::max<int64_t>(1, absl::ToInt64Milliseconds(wait_ends - absl::Now()))));
  }
}

absl::StatusOr<v1::PublishResponse> Session::Publish(const v1::PublishRequest& request,
                                                     absl::Time deadline) {
  Failpoint("client-publish-asks");
  absl::StatusOr<v1::PublishResponse> response = Ask(&v1::Broker::Stub::Publish, request, deadline);
  Failpoint("client-publish-heard");
  return response;
}

absl::StatusOr<v1::UnpublishResponse> Session::Unpublish(const v1::UnpublishRequest& request,
                                                         absl::Time deadline) {
  return Ask(&v1::Broker::Stub::Unpublish, request, deadline);
}

absl::StatusOr<v1::ListPublicationsResponse> Session::ListPublications(
    const v1::ListPublicationsRequest& request, absl::Time deadline) {
  return Ask(&v1::Broker::Stub::ListPublications, request, deadline);
}

absl::StatusOr<Grant> Session::Open(const v1::OpenRequest& request, absl::Time deadline) {
  return CallForGrant(&v1::Broker::Stub::Open, request, request.tickets_size(), deadline);
}

absl::StatusOr<v1::ShareResponse> Session::Share(const v1::ShareRequest& request,
                                                 absl::Time deadline) {
  // First, since this may resume the session, and so may the call.
  const absl::StatusOr<ConnectionPtr> connection = Prepare(deadline);
  if (!connection.ok()) return connection.status();
  if (book_.IsLost(request.lease_id())) return LostError();
  absl::StatusOr<v1::ShareResponse> response = Ask(&v1::Broker::Stub::Share, request, deadline);
  if (!response.ok() && book_.IsLost(request.lease_id())) return LostError();
  return response;
}

absl::StatusOr<v1::GetUsageResponse> Session::GetUsage(absl::Time deadline) {
  return Ask(&v1::Broker::Stub::GetUsage, v1::GetUsageRequest(), deadline);
}

absl::StatusOr<v1::WhoAmIResponse> Session::WhoAmI(absl::Time deadline) {
  return Ask(&v1::Broker::Stub::WhoAmI, v1::WhoAmIRequest(), deadline);
}

absl::StatusOr<v1::ListDevicesResponse> Session::ListDevices(absl::Time deadline) {
  return Ask(&v1::Broker::Stub::ListDevices, v1::ListDevicesRequest(), deadline);
}

absl::StatusOr<v1::RegisterIpcEventResponse> Session::RegisterIpcEvent(
    const v1::RegisterIpcEventRequest& request, absl::Time deadline) {
  return Ask(&v1::Broker::Stub::RegisterIpcEvent, request, deadline);
}

absl::StatusOr<v1::GetIpcEventsResponse> Session::GetIpcEvents(
    const v1::GetIpcEventsRequest& request, absl::Time deadline) {
  return Ask(&v1::Broker::Stub::GetIpcEvents, request, deadline);
}

absl::StatusOr<v1::UnregisterIpcEventResponse> Session::UnregisterIpcEvent(uint64_t event_id) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kResumePatience);
  absl::StatusOr<v1::UnregisterIpcEventResponse> response =
      connection.ok() ? UnregisterOnce(**connection, event_id, absl::Now() + kPatience)
                      : connection.status();
  if (MayStillHold(response.status())) {
    absl::MutexLock lock(&mutex_);
    owed_events_.push_back(event_id);
  }
  return response;
}

absl::StatusOr<v1::UnregisterIpcEventResponse> Session::UnregisterOnce(Connection& connection,
                                                                       uint64_t event_id,
                                                                       absl::Time deadline) {
  v1::UnregisterIpcEventRequest request;
  request.set_event_id(event_id);
  return Call(connection, &v1::Broker::Stub::UnregisterIpcEvent, request, deadline);
}

absl::StatusOr<Session::EventStream> Session::Watch(grpc::ClientContext* context,
                                                    absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  absl::StatusOr<ConnectionPtr> connection = reconnector_.Get(deadline);
  if (!connection.ok()) return connection.status();
  PayOwed(**connection, absl::Now() + kPatience);
  (*connection)->SetUp(*context, absl::InfiniteFuture());
  EventStream stream;
  stream.connection = *std::move(connection);
  stream.reader = stream.connection->stub().Watch(context, v1::WatchRequest());
  return stream;
}

absl::Status Session::Release(std::vector<uint64_t> lease_ids, absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  LeaseBook::Debt debt = book_.GiveUp(lease_ids);
  while (!debt.empty()) {
    const absl::StatusOr<ConnectionPtr> connection = reconnector_.Get(deadline);
    if (!connection.ok()) {
      book_.Owe(std::move(debt));
      return connection.status();
    }
    // A caller that does not wait for an absent daemon does wait for a running one.
    const absl::Time answered_by = std::max(deadline, absl::Now() + kPatience);
    PayOwed(**connection, std::min(answered_by, absl::Now() + kPatience));
    // A statement has told the daemon meanwhile that they are no longer held.
    if ((*connection)->statement() > debt.statement) break;
    absl::Status status = Pay(**connection, debt, answered_by);
    if (HasEnded(**connection, status)) continue;
    if (MayStillHold(status)) book_.Owe(std::move(debt));
    return status;
  }
  return absl::OkStatus();
}

void Session::Forget(std::vector<uint64_t> lease_ids) {
  if (forked()) return;  // the leases are the parent's
  book_.Owe(book_.GiveUp(lease_ids));
  const absl::StatusOr<ConnectionPtr> connection = reconnector_.GetSoon(kResumePatience);
  if (connection.ok()) PayOwed(**connection, absl::Now() + kPatience);
}

void Session::Keep(std::shared_ptr<void> object) {
  absl::MutexLock lock(&mutex_);
  kept_.push_back(std::move(object));
}

absl::Status Session::CheckProcess() const {
  if (!forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked from the one that connected; the session is its parent's");
}

absl::StatusOr<Session::ConnectionPtr> Session::Prepare(absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  absl::StatusOr<ConnectionPtr> connection = reconnector_.Get(deadline);
  if (connection.ok()) PayOwed(**connection, std::min(deadline, absl::Now() + kPatience));
  return connection;
}

absl::StatusOr<Session::ConnectionPtr> Session::PrepareUnless(const Disturbance& disturbance,
                                                              absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  while (true) {
    absl::StatusOr<ConnectionPtr> connection =
        reconnector_.Get(std::min(deadline, absl::Now() + kOwnLookEvery));
    if (connection.ok()) {
      PayOwed(**connection, std::min(deadline, absl::Now() + kPatience));
      return connection;
    }
    if (!MayComeBack(connection.status()) || absl::Now() >= deadline) return connection;
    if ((disturbance.interrupt != nullptr && disturbance.interrupt->cancelled()) ||
        (disturbance.look && disturbance.look())) {
      return Cancelled();
    }
  }
}

bool Session::MayComeBack(const absl::Status& status) const {
  return absl::IsUnavailable(status) && reconnector_.enabled() && reconnector_.over().ok();
}

bool Session::HasEnded(Connection& connection, const absl::Status& status) const {
  return absl::IsUnavailable(status) && reconnector_.enabled() && connection.ended();
}

absl::Status Session::Explain(const EventStream& stream, const grpc::Status& status) {
  return Explain(*stream.connection, status, absl::Now() + kDying);
}

absl::Status Session::Explain(Connection& connection, const grpc::Status& status,
                              absl::Time deadline) {
  absl::Status result = FromGrpcStatus(status);
  if (result.ok()) result = absl::UnavailableError("the daemon has ended the session");
  switch (result.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      // The end of the session explains all of these, with the daemon's reason.
      if (absl::Status end = connection.End(); !end.ok()) return end;
      break;
    default:
      break;
  }
  if (absl::IsDeadlineExceeded(result) && result.message() == "Deadline Exceeded") {
    return absl::DeadlineExceededError("the daemon did not answer in time");
  }
  if (!absl::IsUnavailable(result) && !absl::IsCancelled(result)) return result;
  // Distinguishes the daemon's answer from gRPC's report that its connection has ended.
  const absl::Time dead =
      reconnector_.enabled() ? std::min(deadline, absl::Now() + kDying) : absl::InfinitePast();
  absl::Duration pause = absl::Milliseconds(1);
  while (true) {
    const Connection::Pulse pulse = connection.Check(std::min(deadline, absl::Now() + kPatience));
    if (pulse == Connection::Pulse::kAnswers) break;
    if (pulse == Connection::Pulse::kBroken && reconnector_.enabled()) {
      // Another connection is needed in both cases: the daemon dies, or it has only closed this
      // connection.
      connection.GiveUp();
      return connection.End();
    }
    absl::Status end = connection.deliveries().AwaitEnd(std::min(dead, absl::Now() + pause));
    if (!end.ok()) return end;
    if (absl::Now() >= dead) {
      return absl::UnavailableError(
          absl::StrCat("the daemon no longer answers (", result.message(), ")"));
    }
    pause = std::min(2 * pause, absl::Milliseconds(100));
  }
  // gRPC's generic message does not help. If this client has not cancelled the call, the daemon did
  // so while exiting.
  if (absl::IsCancelled(result) && result.message() == "CANCELLED") {
    return absl::UnavailableError("the daemon has ended the call: it is going away");
  }
  return result;
}

absl::Status Session::Pay(Connection& connection, const LeaseBook::Debt& debt,
                          absl::Time deadline) {
  absl::Status paid = ReleaseOnce(connection, debt, deadline);
  // A lease that the restarted daemon did not know has ended.
  if (!absl::IsNotFound(paid) || connection.statement() == 0) return paid;
  // All or none failed: retries them one by one.
  absl::Status others;
  for (const uint64_t id : debt.lease_ids) {
    if (debt.lease_ids.size() == 1) break;
    absl::Status status =
        ReleaseOnce(connection, {.lease_ids = {id}, .statement = debt.statement}, deadline);
    if (!absl::IsNotFound(status)) others.Update(status);
  }
  return others;
}

absl::Status Session::ReleaseOnce(Connection& connection, const LeaseBook::Debt& debt,
                                  absl::Time deadline) {
  v1::ReleaseRequest request;
  request.mutable_lease_ids()->Add(debt.lease_ids.begin(), debt.lease_ids.end());
  request.mutable_request_ids()->Add(debt.request_ids.begin(), debt.request_ids.end());
  Failpoint("client-release-asks");
  absl::Status status = Call(connection, &v1::Broker::Stub::Release, request, deadline).status();
  Failpoint("client-release-heard");
  return status;
}

void Session::PayOwed(Connection& connection, absl::Time deadline) {
  for (std::vector<uint64_t>& abandoned : connection.deliveries().TakeAbandoned()) {
    // They were never held: the daemon's next statement would end them, but there may be none.
    book_.Owe({.lease_ids = std::move(abandoned), .statement = connection.statement()});
  }
  std::vector<uint64_t> events;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Now() < pay_after_) return;
    events.swap(owed_events_);
  }
  while (!events.empty()) {
    if (MayStillHold(UnregisterOnce(connection, events.back(), deadline).status())) break;
    events.pop_back();
  }
  std::vector<LeaseBook::Debt> owed = book_.TakeOwed(connection.statement());
  while (!owed.empty()) {
    if (MayStillHold(Pay(connection, owed.back(), deadline))) break;
    owed.pop_back();
  }
  if (owed.empty() && events.empty()) return;
  for (LeaseBook::Debt& debt : owed) book_.Owe(std::move(debt));
  const bool ended = connection.ended();  // then the next daemon must be asked
  absl::MutexLock lock(&mutex_);
  owed_events_.insert(owed_events_.end(), events.begin(), events.end());
  if (ended) return;
  pay_after_ = absl::Now() + kPatience;
}

}  // namespace gpumem::internal
