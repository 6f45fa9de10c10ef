// SPDX-License-Identifier: Apache-2.0
// A kubelet's device manager for tests: it registers a device plug-in, follows its list, admits
// pods and starts their containers as the kubelet's own does (pkg/kubelet/cm/devicemanager), and
// lists them (podresources v1).
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/kubernetes/device_plugin/deviceplugin.grpc.pb.h"
#include "client/kubernetes/testing/fake_kubelet.h"

namespace gpumem::testing {

struct KubeletPodEntry {
  std::string name_space;
  std::string name;
  std::set<std::string> ids;
};

class DeviceKubelet {
 public:
  // `folder` is that of device plug-ins, `pod_resources` the other socket.
  DeviceKubelet(std::string folder, std::string pod_resources);
  ~DeviceKubelet();

  // Stops all services, and starts them again as a new process of the kubelet does: it removes all
  // sockets of the folder, and remembers what pods have.
  void Stop();
  void Start();

  // The name of the registered resource; "" if none is.
  std::string resource() const;
  int registrations() const;
  size_t healthy() const;
  size_t unhealthy() const;
  size_t free() const;

  // Chooses units for a pod, and asks the plug-in to allocate them. Returns its answer.
  absl::StatusOr<v1beta1::ContainerAllocateResponse> Admit(const std::string& uid,
                                                           const std::string& name_space,
                                                           const std::string& name, int units);
  // Asks the plug-in before a container of the pod is started.
  absl::Status StartContainer(const std::string& uid, absl::Duration timeout);
  // The pod's containers have ended: frees its units.
  void Forget(const std::string& uid);
  std::map<std::string, KubeletPodEntry> pods() const;  // by uid

  // Ends the stream of the list, as if it had made no sense.
  void EndList();
  // Calls of a kubelet that sends whatever it likes.
  absl::StatusOr<v1beta1::AllocateResponse> Allocate(const v1beta1::AllocateRequest& request);
  absl::StatusOr<v1beta1::PreferredAllocationResponse> Prefer(
      const v1beta1::PreferredAllocationRequest& request);
  absl::Status PreStart(const std::vector<std::string>& ids, absl::Duration timeout);

 private:
  class Registration;
  // A registered plug-in, and the stream of its list.
  struct Endpoint {
    std::unique_ptr<v1beta1::DevicePlugin::Stub> stub;
    grpc::ClientContext stream;
    std::thread reader;
  };

  grpc::Status Register(const v1beta1::RegisterRequest& request);
  void Follow(Endpoint* endpoint);
  void ListPods();
  absl::StatusOr<std::shared_ptr<Endpoint>> Connected() const;
  static void End(const std::shared_ptr<Endpoint>& endpoint);

  const std::string folder_;
  const std::string pod_resources_;
  std::unique_ptr<Registration> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<kubernetes::FakeKubelet> lister_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Endpoint> endpoint_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Endpoint>> ended_ ABSL_GUARDED_BY(mutex_);
  std::string resource_ ABSL_GUARDED_BY(mutex_);
  int registrations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string> healthy_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> unhealthy_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, KubeletPodEntry> pods_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::testing
