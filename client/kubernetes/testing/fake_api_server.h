// SPDX-License-Identifier: Apache-2.0
// An API server that lists claims, slices and pods, over TLS.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace httplib {
class SSLServer;
}

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
    std::string limit;
    std::string method;
    std::string body;
  };
  struct Answer {
    int status = 200;
    std::string body;
  };

  // Listens at `port` of 127.0.0.1; 0: a free one.
  explicit FakeApiServer(const Certificate& certificate, int port = 0);
  ~FakeApiServer();

  int port() const { return port_; }

  // Answers all requests from here; nullptr: those that read from the lists below.
  void Handle(std::function<Answer(const Request&)> handler);
  // Texts of objects in JSON.
  void SetClaims(std::vector<std::string> claims);
  void SetSlices(std::vector<std::string> slices);
  // It lists no pods before: 403.
  void SetPods(std::vector<std::string> pods);
  // The one token that it accepts, the version of resource.k8s.io that it has, and how many items
  // it puts into a part of a list.
  void SetToken(const std::string& token);
  void SetVersion(const std::string& version);
  void SetPart(size_t items);
  std::vector<Request> Requests() const;

 private:
  Answer AnswerTo(const Request& request);
  // Returns the part of a list that the request asks for.
  Answer PartOf(const std::vector<std::string>& items, const std::string& version, const char* kind,
                const Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::function<Answer(const Request&)> handler_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> claims_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> slices_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::vector<std::string>> pods_ ABSL_GUARDED_BY(mutex_);
  std::string token_ ABSL_GUARDED_BY(mutex_) = "token";
  std::string version_ ABSL_GUARDED_BY(mutex_) = "v1";
  size_t part_ ABSL_GUARDED_BY(mutex_) = 500;
  std::vector<Request> requests_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<httplib::SSLServer> server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace gpumem::kubernetes
