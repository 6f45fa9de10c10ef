#include "client/session.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/handshake.h"
#include "client/waiting_call.h"
#include "common/endpoints.h"
#include "common/grpc_status.h"

namespace gpumem::internal {
namespace {

// How long a destructor or a rollback may wait for the daemon.
constexpr absl::Duration kPatience = absl::Seconds(1);
// How often a thread that waits for memory sees to the session's other business, and to what it
// looks for itself.
constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kOwnLookEvery = absl::Milliseconds(50);
// How often it reads the socket where the daemon may wait for that: what comes in many messages
// does not fit into the socket's buffer.
constexpr absl::Duration kReadEvery = absl::Milliseconds(1);

// "unix:PATH", escaped as gRPC's URIs want it.
std::string UnixUri(absl::string_view path) {
  std::string uri = "unix:";
  for (const char c : path) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
        absl::string_view("/-._~").find(c) != absl::string_view::npos) {
      uri.push_back(c);
    } else {
      absl::StrAppend(&uri, "%", absl::BytesToHexString(absl::string_view(&c, 1)));
    }
  }
  return uri;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& path) {
  grpc::ChannelArguments args;
  // A connection of its own, whatever else in this process talks to the daemon.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Nothing that only matters on networks.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_CLIENT_IDLE_TIMEOUT_MS, INT_MAX);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // A daemon that is just starting is there in milliseconds.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // The largest answers list 4096 leases and 1 MiB of metadata, or all publications.
  args.SetMaxReceiveMessageSize(8 << 20);
  return grpc::CreateCustomChannel(UnixUri(path), grpc::InsecureChannelCredentials(), args);
}

// gRPC keeps threads and an epoll set for the whole process; a child that went on using
// them would take its parent's events. FAILED_PRECONDITION there.
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

// Whether leases may still be held after a release that ended so. All other ways are
// final: they have ended, now, before, or with the session.
bool MayStillHold(const absl::Status& release) {
  return absl::IsDeadlineExceeded(release) || absl::IsResourceExhausted(release) ||
         absl::IsUnavailable(release);
}

absl::Status Cancelled() { return absl::CancelledError("the wait for memory was cancelled"); }

std::vector<uint64_t> IdsOf(const std::vector<v1::Lease>& leases) {
  std::vector<uint64_t> ids;
  for (const v1::Lease& lease : leases) ids.push_back(lease.lease_id());
  return ids;
}

}  // namespace

Grant::Grant(std::shared_ptr<Session> session, std::vector<v1::Lease> leases)
    : session_(std::move(session)), leases_(std::move(leases)) {}

Grant::~Grant() {
  // The memory must be gone from here before its lease is.
  fds_.clear();
  if (session_ != nullptr) session_->Forget(IdsOf(leases_));
}

absl::StatusOr<std::shared_ptr<Session>> Session::Connect(const ConnectOptions& options) {
  if (absl::Status status = ClaimProcess(); !status.ok()) return status;
  const absl::Time deadline = absl::Now() + options.timeout;
  const std::string runtime_dir =
      options.runtime_dir.empty() ? ClientRuntimeDir() : options.runtime_dir;
  absl::StatusOr<Welcomed> welcomed = Greet(runtime_dir, options, deadline);
  if (!welcomed.ok()) return welcomed.status();

  const std::string api_path = SocketPath(runtime_dir, kApiSocket);
  std::shared_ptr<grpc::Channel> channel = MakeChannel(api_path);
  if (!channel->WaitForConnected(absl::ToChronoTime(deadline))) {
    return absl::DeadlineExceededError(
        absl::StrCat("the daemon welcomed this process but does not answer on ", api_path,
                     " within ", absl::FormatDuration(options.timeout)));
  }
  // A forked child leaves it as it is, whole. Its locks may be held by threads that exist in the
  // parent only (even to destroy an absl::Mutex takes a lock that all of them share), gRPC's
  // threads are the parent's, and CUDA is not the child's to call.
  const auto end = [](Session* session) {
    if (!session->forked()) delete session;
  };
  return std::shared_ptr<Session>(
      new Session(std::move(welcomed->welcome), options.timeout, std::move(welcomed->socket),
                  std::move(channel), runtime_dir),
      end);
}

Session::Session(v1::Welcome welcome, absl::Duration timeout, UniqueFd socket,
                 std::shared_ptr<grpc::Channel> channel, std::string runtime_dir)
    : pid_(::getpid()),
      welcome_(std::move(welcome)),
      timeout_(timeout),
      runtime_dir_(std::move(runtime_dir)),
      api_path_(SocketPath(runtime_dir_, kApiSocket)),
      channel_(std::move(channel)),
      deliveries_(std::make_unique<Deliveries>(std::move(socket))),
      pools_(std::make_unique<Pools>(deliveries_.get())),
      stub_(v1::Broker::NewStub(channel_)) {}

bool Session::forked() const { return ::getpid() != pid_; }

absl::Time Session::Deadline(std::optional<absl::Duration> timeout) const {
  return absl::Now() + timeout.value_or(timeout_);
}

template <typename Request, typename Response>
absl::StatusOr<Response> Session::Ask(Method<Request, Response> method, const Request& request,
                                      absl::Time deadline) {
  if (absl::Status status = Prepare(deadline); !status.ok()) return status;
  return Call(method, request, deadline);
}

template <typename Request, typename Response>
absl::StatusOr<Response> Session::Call(Method<Request, Response> method, const Request& request,
                                       absl::Time deadline) {
  grpc::ClientContext context;
  SetUp(context, deadline);
  Response response;
  const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
  if (!status.ok()) return Explain(status);
  return response;
}

template <typename Request, typename Response>
absl::StatusOr<Grant> Session::CallForGrant(Method<Request, Response> method,
                                            const Request& request, int count,
                                            absl::Time deadline) {
  if (absl::Status status = Prepare(deadline); !status.ok()) return status;
  Deliveries::Call call(deliveries_.get());
  return TakeGrant(call, Call(method, request, deadline), count, deadline);
}

template <typename Response>
absl::StatusOr<Grant> Session::TakeGrant(Deliveries::Call& call,
                                         const absl::StatusOr<Response>& response, int count,
                                         absl::Time deadline) {
  if (!response.ok()) return response.status();
  Grant grant(shared_from_this(), {response->leases().begin(), response->leases().end()});
  absl::StatusOr<std::vector<UniqueFd>> fds = call.Collect(response->delivery_id(), deadline);
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

absl::StatusOr<Grant> Session::AcquireWaiting(const v1::AcquireRequest& request,
                                              absl::Time deadline, const Disturbance& disturbance) {
  if (absl::Status status = Prepare(deadline); !status.ok()) return status;
  if (disturbance.interrupt != nullptr && disturbance.interrupt->cancelled()) return Cancelled();
  absl::StatusOr<Grant> grant = [&] {
    Deliveries::Call call(deliveries_.get(), /*waits=*/true);
    absl::StatusOr<v1::AcquireResponse> response = CallWaiting(
        &v1::Broker::Stub::AsyncAcquire, request, deadline, disturbance, /*waits=*/true);
    // It was sent before the answer: the end of a long wait says nothing of how long it may take.
    return TakeGrant(call, response, static_cast<int>(std::max(request.count(), 1u)),
                     std::min(deadline, Deadline(std::nullopt)));
  }();
  if (absl::IsCancelled(grant.status())) SettleCancelled();
  return grant;
}

void Session::SettleCancelled() {
  // Once the daemon, which has heard of the end before, has answered another call, what it sent is
  // here: it is given back.
  Call(&v1::Broker::Stub::GetUsage, v1::GetUsageRequest(), absl::Now() + kPatience)
      .status()
      .IgnoreError();
  Prepare(absl::Now() + kPatience).IgnoreError();
}

template <typename Request, typename Response>
absl::StatusOr<Response> Session::CallWaiting(AsyncMethod<Request, Response> method,
                                              const Request& request, absl::Time deadline,
                                              const Disturbance& disturbance, bool waits) {
  Interrupt* const interrupt = disturbance.interrupt.get();
  bool gave_up = false;
  const auto look = [&] {
    if (!Prepare(absl::Now() + kPatience).ok()) return absl::ZeroDuration();  // Explain() says why
    gave_up = (interrupt != nullptr && interrupt->cancelled()) ||
              (disturbance.look && disturbance.look());
    if (gave_up) return absl::ZeroDuration();
    if (!waits || deliveries_->HasPart()) return kReadEvery;
    return disturbance.look ? kOwnLookEvery : kLookEvery;
  };
  grpc::ClientContext context;
  SetUp(context, deadline);
  Response response;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
  const grpc::Status status = WaitForAnswer(
      context,
      [&](grpc::CompletionQueue* queue, grpc::Status* end, void* tag) {
        reader = (stub_.get()->*method)(&context, request, queue);
        reader->Finish(&response, end, tag);
      },
      interrupt, look);
  if (status.ok()) return response;
  absl::Status explained = Explain(status);
  if (gave_up && status.error_code() == grpc::StatusCode::CANCELLED && deliveries_->Poll().ok()) {
    return Cancelled();
  }
  return explained;
}

absl::StatusOr<Session::Attached> Session::Attach(const v1::AttachRequest& request,
                                                  absl::Time deadline,
                                                  const Disturbance& disturbance) {
  if (absl::Status status = Prepare(deadline); !status.ok()) return status;
  if (disturbance.interrupt != nullptr && disturbance.interrupt->cancelled()) return Cancelled();
  const bool waits = request.wait_for_version() > 0;
  v1::AttachResponse answer;
  absl::StatusOr<Grant> grant = [&]() -> absl::StatusOr<Grant> {
    Deliveries::Call call(deliveries_.get(), waits);
    absl::StatusOr<v1::AttachResponse> response =
        CallWaiting(&v1::Broker::Stub::AsyncAttach, request, deadline, disturbance, waits);
    const int count = response.ok() ? response->leases_size() : 0;
    absl::StatusOr<Grant> granted =
        TakeGrant(call, response, count, std::min(deadline, Deadline(std::nullopt)));
    if (response.ok()) answer = *std::move(response);
    return granted;
  }();
  if (absl::IsCancelled(grant.status())) SettleCancelled();
  if (!grant.ok()) return grant.status();
  answer.clear_leases();
  return Attached{*std::move(grant), std::move(answer)};
}

absl::StatusOr<v1::PublishResponse> Session::Publish(const v1::PublishRequest& request,
                                                     absl::Time deadline) {
  return Ask(&v1::Broker::Stub::Publish, request, deadline);
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
  return Ask(&v1::Broker::Stub::Share, request, deadline);
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
  v1::UnregisterIpcEventRequest request;
  request.set_event_id(event_id);
  return Ask(&v1::Broker::Stub::UnregisterIpcEvent, request, absl::Now() + kPatience);
}

absl::StatusOr<std::unique_ptr<grpc::ClientReader<v1::Event>>> Session::Watch(
    grpc::ClientContext* context) {
  if (absl::Status status = Prepare(Deadline(std::nullopt)); !status.ok()) return status;
  context->AddMetadata(kTokenMetadata, welcome_.token());
  return stub_->Watch(context, v1::WatchRequest());
}

absl::Status Session::Release(std::vector<uint64_t> lease_ids, absl::Time deadline) {
  if (absl::Status status = Prepare(deadline); !status.ok()) return status;
  absl::Status status = ReleaseOnce(lease_ids, deadline);
  if (MayStillHold(status)) {
    absl::MutexLock lock(&mutex_);
    owed_.push_back(std::move(lease_ids));
  }
  return status;
}

void Session::Forget(std::vector<uint64_t> lease_ids) {
  if (forked()) return;  // the leases are the parent's
  {
    absl::MutexLock lock(&mutex_);
    owed_.push_back(std::move(lease_ids));
  }
  Prepare(absl::Now() + kPatience).IgnoreError();
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

void Session::SetUp(grpc::ClientContext& context, absl::Time deadline) const {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
  context.AddMetadata(kTokenMetadata, welcome_.token());
}

absl::Status Session::Prepare(absl::Time deadline) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  if (absl::Status status = deliveries_->Poll(); !status.ok()) return status;
  PayOwed(std::min(deadline, absl::Now() + kPatience));
  return absl::OkStatus();
}

absl::Status Session::Explain(const grpc::Status& status) {
  absl::Status result = FromGrpcStatus(status);
  if (result.ok()) result = absl::UnavailableError("the daemon has ended the session");
  switch (result.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      // The end of the session explains all of these, and the daemon has said why.
      if (absl::Status end = deliveries_->Poll(); !end.ok()) return end;
      break;
    default:
      break;
  }
  // What gRPC says by itself helps nobody. Where nobody here has cancelled the call, the daemon
  // has, on its way out.
  if (absl::IsCancelled(result) && result.message() == "CANCELLED") {
    result = absl::UnavailableError("the daemon has ended the call: it is going away");
  }
  if (absl::IsDeadlineExceeded(result) && result.message() == "Deadline Exceeded") {
    return absl::DeadlineExceededError("the daemon did not answer in time");
  }
  if (absl::IsUnavailable(result) && channel_->GetState(false) != GRPC_CHANNEL_READY) {
    return absl::UnavailableError(
        absl::StrCat("the daemon no longer answers on ", api_path_, " (", result.message(), ")"));
  }
  return result;
}

absl::Status Session::ReleaseOnce(const std::vector<uint64_t>& lease_ids, absl::Time deadline) {
  v1::ReleaseRequest request;
  request.mutable_lease_ids()->Add(lease_ids.begin(), lease_ids.end());
  return Call(&v1::Broker::Stub::Release, request, deadline).status();
}

void Session::PayOwed(absl::Time deadline) {
  std::vector<std::vector<uint64_t>> owed = deliveries_->TakeAbandoned();
  {
    absl::MutexLock lock(&mutex_);
    std::move(owed_.begin(), owed_.end(), std::back_inserter(owed));
    owed_.clear();
    if (absl::Now() < pay_after_) owed_.swap(owed);
  }
  while (!owed.empty()) {
    if (MayStillHold(ReleaseOnce(owed.back(), deadline))) break;
    owed.pop_back();
  }
  if (owed.empty()) return;
  absl::MutexLock lock(&mutex_);
  std::move(owed.begin(), owed.end(), std::back_inserter(owed_));
  pay_after_ = absl::Now() + kPatience;
}

}  // namespace gpumem::internal
