// SPDX-License-Identifier: Apache-2.0
// An API server over TLS: lists, watches and single objects of claims and slices, and lists of
// pods.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "client/kubernetes/api/testing/fake_store.h"

namespace httplib {
class SSLServer;
struct Response;
}  // namespace httplib

namespace gpumem::kubernetes {

// A certificate that signs itself, for the name "localhost" and the address 127.0.0.1, or others.
struct Certificate {
  std::string certificate;  // PEM
  std::string key;
};
Certificate MakeCertificate(const std::string& name, const std::string& address);

class FakeApiServer {
 public:
  struct Request {
    std::string path;
    std::string authorization;
    std::string selector;
    std::string next;
    std::string method;
    std::string body;
    bool watch = false;
    std::string version;  // from which it watches
    std::string limit;    // items of a part
  };
  struct Answer {
    int status = 200;
    std::string body;
  };

  // Listens at `port` of 127.0.0.1; 0: a free one. `store` has the objects, and outlives this one;
  // nullptr: a new one.
  explicit FakeApiServer(const Certificate& certificate, int port = 0, FakeStore* store = nullptr);
  ~FakeApiServer();

  FakeStore& store() { return *store_; }

  int port() const { return port_; }

  // Answers all requests from here, watches too; nullptr: from the store.
  void Handle(std::function<Answer(const Request&)> handler);
  // Texts of objects in JSON.
  void SetClaims(std::vector<std::string> claims);
  void SetSlices(std::vector<std::string> slices);
  // It lists no pods before: 403.
  void SetPods(std::vector<std::string> pods);
  // The one token that it accepts, the version of resource.k8s.io that it has, and the most items
  // that it puts into a part of a list.
  void SetToken(const std::string& token);
  void SetVersion(const std::string& version);
  void SetPart(size_t items);
  std::vector<Request> Requests() const;
  // Ends the watches. Those that begin after `refused` get this status, unless it is 200.
  void EndWatches(int refused = 200);
  // Has watches send nothing, as if they lagged behind.
  void FreezeWatches(bool frozen);
  // Has watches send this line in place of events; empty: no longer.
  void SpoilWatches(const std::string& line);

 private:
  Answer AnswerTo(const Request& request);
  Answer AnswerFromStore(const Request& request, const std::string& rest);
  Answer PartOfPods(const Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the next lines of a watch, waiting a while for some; nullopt: it ends.
  std::optional<std::string> NextLines(const std::string& resource, uint64_t watches,
                                       uint64_t* version);
  // True: the request is a watch, and `response` sends it.
  bool Watch(const Request& request, httplib::Response* response);

  FakeStore own_store_;
  FakeStore* const store_;
  mutable absl::Mutex mutex_;
  std::function<Answer(const Request&)> handler_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::vector<std::string>> pods_ ABSL_GUARDED_BY(mutex_);
  std::string token_ ABSL_GUARDED_BY(mutex_) = "token";
  size_t part_ ABSL_GUARDED_BY(mutex_) = 500;
  uint64_t ended_watches_ ABSL_GUARDED_BY(mutex_) = 0;  // how often watches were ended
  int refused_ ABSL_GUARDED_BY(mutex_) = 200;
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
  std::string spoiled_ ABSL_GUARDED_BY(mutex_);
  std::vector<Request> requests_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<httplib::SSLServer> server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace gpumem::kubernetes
