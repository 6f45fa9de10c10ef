// SPDX-License-Identifier: Apache-2.0
// A kubelet that sends its pods (Pods API, v1alpha1).
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/kubernetes/facts/pods_api.grpc.pb.h"

namespace gpumem::kubernetes {

class FakePodsApi : public ::v1alpha1::Pods::Service {
 public:
  explicit FakePodsApi(const std::string& socket) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", socket), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakePodsApi() override { server_->Shutdown(absl::ToChronoTime(absl::UnixEpoch())); }

  // Sends these events at the beginning of each watch, then waits until the client ends it.
  void SetEvents(std::vector<::v1alpha1::WatchPodsEvent> events) {
    absl::MutexLock lock(&mutex_);
    events_ = std::move(events);
  }
  // Likewise, with the end of the initial pods.
  void Set(const std::vector<::v1alpha1::Pod>& pods) {
    std::vector<::v1alpha1::WatchPodsEvent> events;
    for (const ::v1alpha1::Pod& pod : pods) events.push_back(Event(::v1alpha1::ADDED, pod));
    events.emplace_back().set_type(::v1alpha1::INITIAL_SYNC_COMPLETE);
    SetEvents(std::move(events));
  }
  // Ends each watch with this status after the events.
  void Refuse(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
  }

  static ::v1alpha1::WatchPodsEvent Event(::v1alpha1::EventType type, const ::v1alpha1::Pod& pod) {
    ::v1alpha1::WatchPodsEvent event;
    event.set_type(type);
    event.set_pod(pod.SerializeAsString());
    return event;
  }

  grpc::Status WatchPods(grpc::ServerContext* context, const ::v1alpha1::WatchPodsRequest*,
                         grpc::ServerWriter<::v1alpha1::WatchPodsEvent>* writer) override {
    std::vector<::v1alpha1::WatchPodsEvent> events;
    grpc::Status status;
    {
      absl::MutexLock lock(&mutex_);
      events = events_;
      status = status_;
    }
    for (const auto& event : events) {
      if (!writer->Write(event)) return grpc::Status::CANCELLED;
    }
    if (!status.ok()) return status;
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  }

 private:
  absl::Mutex mutex_;
  std::vector<::v1alpha1::WatchPodsEvent> events_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace gpumem::kubernetes
