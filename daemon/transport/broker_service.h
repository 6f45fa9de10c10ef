// gpumem.v1.Broker: validates, translates, and passes on to the broker.
#pragma once

#include <atomic>
#include <cstdint>

#include <grpcpp/grpcpp.h>

#include "daemon/core/broker.h"
#include "daemon/transport/session_server.h"
#include "daemon/transport/watch_hub.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {

class BrokerService final
    : public gpumem::v1::Broker::WithCallbackMethod_Watch<gpumem::v1::Broker::Service> {
 public:
  // All outlive this.
  BrokerService(Broker* broker, SessionServer* sessions, WatchHub* hub)
      : broker_(broker), sessions_(sessions), hub_(hub) {}

  grpc::Status ListDevices(grpc::ServerContext* context,
                           const gpumem::v1::ListDevicesRequest* request,
                           gpumem::v1::ListDevicesResponse* response) override;
  grpc::Status Acquire(grpc::ServerContext* context, const gpumem::v1::AcquireRequest* request,
                       gpumem::v1::AcquireResponse* response) override;
  grpc::Status Open(grpc::ServerContext* context, const gpumem::v1::OpenRequest* request,
                    gpumem::v1::OpenResponse* response) override;
  grpc::Status Share(grpc::ServerContext* context, const gpumem::v1::ShareRequest* request,
                     gpumem::v1::ShareResponse* response) override;
  grpc::Status Release(grpc::ServerContext* context, const gpumem::v1::ReleaseRequest* request,
                       gpumem::v1::ReleaseResponse* response) override;
  grpc::Status GetUsage(grpc::ServerContext* context, const gpumem::v1::GetUsageRequest* request,
                        gpumem::v1::GetUsageResponse* response) override;
  grpc::ServerWriteReactor<gpumem::v1::Event>* Watch(
      grpc::CallbackServerContext* context, const gpumem::v1::WatchRequest* request) override;

 private:
  Broker* const broker_;
  SessionServer* const sessions_;
  WatchHub* const hub_;
  std::atomic<uint64_t> next_delivery_{1};
};

}  // namespace gpumemd
