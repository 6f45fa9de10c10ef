// gpumem.v1.Broker: validates, translates, and passes on to the broker.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/broker/broker.h"
#include "daemon/transport/service/watch_hub.h"
#include "daemon/transport/service/workers.h"
#include "daemon/transport/session_server.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {

// Raw and by callback: unary_call.h says why.
using RawPublications = gpumem::v1::Broker::WithRawCallbackMethod_Publish<
    gpumem::v1::Broker::WithRawCallbackMethod_Attach<
        gpumem::v1::Broker::WithRawCallbackMethod_Unpublish<
            gpumem::v1::Broker::WithRawCallbackMethod_ListPublications<
                gpumem::v1::Broker::Service>>>>;
using RawBroker = gpumem::v1::Broker::WithRawCallbackMethod_ListDevices<
    gpumem::v1::Broker::WithRawCallbackMethod_Acquire<
        gpumem::v1::Broker::WithRawCallbackMethod_Open<
            gpumem::v1::Broker::WithRawCallbackMethod_Share<
                gpumem::v1::Broker::WithRawCallbackMethod_Release<
                    gpumem::v1::Broker::WithRawCallbackMethod_Reconcile<
                        gpumem::v1::Broker::WithRawCallbackMethod_RegisterIpcEvent<
                            gpumem::v1::Broker::WithRawCallbackMethod_GetIpcEvents<
                                gpumem::v1::Broker::WithRawCallbackMethod_UnregisterIpcEvent<
                                    gpumem::v1::Broker::WithRawCallbackMethod_WhoAmI<
                                        gpumem::v1::Broker::WithRawCallbackMethod_GetUsage<
                                            gpumem::v1::Broker::WithRawCallbackMethod_Watch<
                                                RawPublications>>>>>>>>>>>>;

class BrokerService final : public RawBroker {
 public:
  // All outlive this.
  BrokerService(Broker* broker, SessionServer* sessions, WatchHub* hub)
      : broker_(broker), sessions_(sessions), hub_(hub), workers_(kMaxWorkers) {}

  // The next daemon is to answer: each call that comes from now on is neither answered nor refused,
  // and ends with its connection. Thread-safe.
  void Park() { parks_ = true; }

  using Reactor = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;
  using Bytes = grpc::ByteBuffer;
  Reactor* ListDevices(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Acquire(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Open(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Share(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Release(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Reconcile(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* RegisterIpcEvent(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* GetIpcEvents(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* UnregisterIpcEvent(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* WhoAmI(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* GetUsage(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Publish(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Attach(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Unpublish(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ListPublications(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerWriteReactor<Bytes>* Watch(Context* context, const Bytes* request) override;

 private:
  // Acquires and Opens that are served at one time: they may wait, for the driver or for a
  // client that does not read, and each is counted against its tenant before. Those that wait for
  // their turn are none of these: no thread waits with them.
  static constexpr size_t kMaxWorkers = 512;

  // Authenticates, and answers with what `attempt(call, parsed request, may_wait)` returns.
  // It is made first on one of gRPC's own few threads, where it must not wait: nullopt
  // says that it would have to. Then it is made again on a worker.
  template <typename Request, typename Attempt>
  Reactor* Serve(Context* context, const Bytes* request, Bytes* response, Attempt attempt);

  class AcquireCall;
  class AttachCall;
  std::optional<absl::StatusOr<gpumem::v1::OpenResponse>> DoOpen(
      const Broker::Call& call, const gpumem::v1::OpenRequest& request, bool may_wait);

  Broker* const broker_;
  SessionServer* const sessions_;
  WatchHub* const hub_;
  std::atomic<bool> parks_{false};
  std::atomic<uint64_t> next_delivery_{1};
  Workers workers_;
};

}  // namespace gpumemd
