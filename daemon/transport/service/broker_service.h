// SPDX-License-Identifier: Apache-2.0
// gpumem.v1.Broker: validates, translates, and calls the broker.
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

// Raw callback methods: unary_call.h says why.
using RawPublications = gpumem::v1::Broker::WithRawCallbackMethod_Publish<
    gpumem::v1::Broker::WithRawCallbackMethod_Attach<
        gpumem::v1::Broker::WithRawCallbackMethod_Unpublish<
            gpumem::v1::Broker::WithRawCallbackMethod_ListPublications<
                gpumem::v1::Broker::WithRawCallbackMethod_AttachOrClaim<
                    gpumem::v1::Broker::WithRawCallbackMethod_ReleaseClaim<
                        gpumem::v1::Broker::Service>>>>>>;
using RawSuspensions = gpumem::v1::Broker::WithRawCallbackMethod_PrepareSuspend<
    gpumem::v1::Broker::WithRawCallbackMethod_Suspend<
        gpumem::v1::Broker::WithRawCallbackMethod_CancelSuspend<
            gpumem::v1::Broker::WithRawCallbackMethod_Resume<
                gpumem::v1::Broker::WithRawCallbackMethod_ReportActivity<
                    gpumem::v1::Broker::WithRawCallbackMethod_ExchangeLeases<RawPublications>>>>>>;
using RawTenants = gpumem::v1::Broker::WithRawCallbackMethod_CreateTenant<
    gpumem::v1::Broker::WithRawCallbackMethod_UpdateTenant<
        gpumem::v1::Broker::WithRawCallbackMethod_EndTenant<
            gpumem::v1::Broker::WithRawCallbackMethod_ListTenants<
                gpumem::v1::Broker::WithRawCallbackMethod_GetTenantUsage<RawSuspensions>>>>>;
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
                                                gpumem::v1::Broker::
                                                    WithRawCallbackMethod_OpenMemoryPage<
                                                        gpumem::v1::Broker::
                                                            WithRawCallbackMethod_Converse<
                                                                RawTenants>>>>>>>>>>>>>>;

class BrokerService final : public RawBroker {
 public:
  // All outlive this.
  BrokerService(Broker* broker, SessionServer* sessions, WatchHub* hub)
      : broker_(broker), sessions_(sessions), hub_(hub), workers_(kMaxWorkers) {}

  // Leaves later calls to the next daemon: each is neither answered nor refused, and ends with its
  // connection. Thread-safe.
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
  Reactor* OpenMemoryPage(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Publish(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Attach(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* AttachOrClaim(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ReleaseClaim(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Unpublish(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ListPublications(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* PrepareSuspend(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Suspend(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* CancelSuspend(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ReportActivity(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ExchangeLeases(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* Resume(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* CreateTenant(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* UpdateTenant(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* EndTenant(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* ListTenants(Context* context, const Bytes* request, Bytes* response) override;
  Reactor* GetTenantUsage(Context* context, const Bytes* request, Bytes* response) override;
  grpc::ServerWriteReactor<Bytes>* Watch(Context* context, const Bytes* request) override;
  grpc::ServerBidiReactor<Bytes, Bytes>* Converse(Context* context) override;

 private:
  // Maximum of Acquires and Opens served at a time. They may wait for the driver or for a client
  // that does not read, and each is counted against its tenant first. Requests waiting for memory
  // do not count: they hold no thread.
  static constexpr size_t kMaxWorkers = 512;

  // Authenticates the call and answers with the result of `attempt(call, parsed request,
  // may_wait)`. The first attempt runs on one of gRPC's few threads and must not wait; nullopt
  // means that it would have to. The second attempt then runs on a worker.
  template <typename Request, typename Attempt>
  Reactor* Serve(Context* context, const Bytes* request, Bytes* response, Attempt attempt);

  // A request being served that its client can give up.
  class Request {
   public:
    virtual ~Request() = default;
    // May be called at any time after it has begun, on any thread.
    virtual void GiveUp() = 0;
  };
  template <typename Method>
  class Leasing;
  class Lane;

  // Sends a Delivery. `described`: the request_id of the lane's request that it describes.
  absl::Status Deliver(SessionId session, uint64_t delivery_id, const Broker::Handover& handover,
                       bool may_wait, std::optional<uint64_t> described = std::nullopt);

  // Serves an Acquire, an Attach, an AttachOrClaim or a Resume.
  template <typename Method>
  class WaitingCall;
  template <typename Method>
  Reactor* ServeWaiting(Context* context, const Bytes* request, Bytes* response);

  // Attempts of Serve.
  std::optional<absl::StatusOr<gpumem::v1::OpenResponse>> DoOpen(
      const Broker::Call& call, const gpumem::v1::OpenRequest& request, bool may_wait,
      bool describes);
  absl::StatusOr<gpumem::v1::ReleaseResponse> DoRelease(const Broker::Call& call,
                                                        const gpumem::v1::ReleaseRequest& request);
  absl::StatusOr<gpumem::v1::GetUsageResponse> DoGetUsage(const Broker::Call& call);

  Broker* const broker_;
  SessionServer* const sessions_;
  WatchHub* const hub_;
  std::atomic<bool> parks_{false};
  std::atomic<uint64_t> next_delivery_{1};
  Workers workers_;
};

}  // namespace gpumemd
