// SPDX-License-Identifier: Apache-2.0
// A kubelet that lists pods (podresources v1).
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/kubernetes/podresources.grpc.pb.h"

namespace gpumem::kubernetes {

class FakeKubelet : public ::v1::PodResourcesLister::Service {
 public:
  explicit FakeKubelet(const std::string& socket) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", socket), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeKubelet() override { server_->Shutdown(absl::ToChronoTime(absl::UnixEpoch())); }

  void Set(::v1::ListPodResourcesResponse answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  void Refuse(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
  }
  // Answers no call before `end`.
  void Wait(absl::Notification* end) {
    absl::MutexLock lock(&mutex_);
    end_ = end;
  }

  // How often it was called.
  size_t calls() const {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }
  // True if a call waits for that.
  bool waiting() const {
    absl::MutexLock lock(&mutex_);
    return waiting_;
  }

  grpc::Status List(grpc::ServerContext*, const ::v1::ListPodResourcesRequest*,
                    ::v1::ListPodResourcesResponse* response) override {
    absl::Notification* end = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      end = end_;
      ++calls_;
      waiting_ = end != nullptr;
    }
    if (end != nullptr) end->WaitForNotification();
    absl::MutexLock lock(&mutex_);
    *response = answer_;
    return status_;
  }

  // Adds a pod of the namespace "team" with one claim.
  static ::v1::PodResources* Add(const std::string& name, const std::string& claim,
                                 const std::string& driver,
                                 ::v1::ListPodResourcesResponse* answer) {
    ::v1::PodResources* const pod = answer->add_pod_resources();
    pod->set_name(name);
    pod->set_namespace_("team");
    ::v1::DynamicResource* const resource = pod->add_containers()->add_dynamic_resources();
    resource->set_claim_name(claim);
    resource->set_claim_namespace("team");
    resource->add_claim_resources()->set_driver_name(driver);
    return pod;
  }

 private:
  mutable absl::Mutex mutex_;
  ::v1::ListPodResourcesResponse answer_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Notification* end_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace gpumem::kubernetes
