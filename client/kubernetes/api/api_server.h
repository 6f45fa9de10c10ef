// SPDX-License-Identifier: Apache-2.0
// Lists, watches and single objects, by the API server's REST interface.
//
// The connection is TLS; the server's certificate is verified against the CA bundle and the host.
// Each call connects anew and reads token and bundle anew, since both are replaced while a pod
// runs. Calls may be made from several threads.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/kubernetes/api/claims.h"
#include "client/kubernetes/api/pods.h"

namespace httplib {
class SSLClient;
}

namespace gpumem::kubernetes {

struct ApiServerOptions {
  std::string host;  // a name, or an address without brackets
  int port = 443;
  std::string token_file;
  std::string ca_file;
  absl::Duration timeout = absl::Seconds(30);  // of each request
  // The longest pause in a watch. The API server sends a bookmark every minute.
  absl::Duration silence = absl::Minutes(2);
};

// Returns host and port of "https://HOST[:PORT]".
//   INVALID_ARGUMENT  it is no such address
absl::StatusOr<ApiServerOptions> ParseUrl(absl::string_view url);
// Returns the address by which a pod finds the API server; "" outside of pods.
std::string UrlOfPod();

class ApiServer {
 public:
  explicit ApiServer(ApiServerOptions options) : options_(std::move(options)) {}

  // Lists a resource of resource.k8s.io in parts, as large as they may be. `selector` is one of
  // fields; empty: all objects. `on_part` gets the text of each part and returns the token of the
  // next one; "": there is none. Its errors end the list.
  //   UNAVAILABLE          it cannot be reached, its certificate is not valid, or it is overloaded
  //   DEADLINE_EXCEEDED    it does not answer in time
  //   UNAUTHENTICATED      the token is not valid
  //   PERMISSION_DENIED    the account may not do that
  //   UNIMPLEMENTED        the cluster has no dynamic resource allocation
  //   ABORTED              the list has changed too much; call again
  //   RESOURCE_EXHAUSTED   an object is larger than kMostText, or there are too many parts
  //   CANCELLED            Cancel was called
  absl::Status List(const std::string& resource, const std::string& selector,
                    absl::FunctionRef<absl::StatusOr<std::string>(absl::string_view)> on_part);

  // Watches a resource from a version that a list has told. Blocks until the API server ends the
  // watch, after some minutes: OK. Calls `on_open` when it begins, and `on_line` for each event.
  // An error of `on_line` ends the watch. Statuses as List, and
  //   ABORTED      the version is too old: list again
  //   UNAVAILABLE  also if nothing came for options.silence
  absl::Status Watch(const std::string& resource, const std::string& selector,
                     const std::string& version, absl::FunctionRef<void()> on_open,
                     absl::FunctionRef<absl::Status(absl::string_view)> on_line);

  // Returns the claims of the cluster that have devices of `driver`. Statuses as List, and
  //   INVALID_ARGUMENT, RESOURCE_EXHAUSTED  as of Cache::AddPart
  absl::StatusOr<std::vector<Claim>> Claims(absl::string_view driver);

  // Returns a claim. Statuses as List, and
  //   NOT_FOUND         there is no such claim, or it has no devices of `driver`
  //   INVALID_ARGUMENT  a name is none, or the answer is no claim
  absl::StatusOr<Claim> ClaimOf(absl::string_view name_space, absl::string_view name,
                                absl::string_view driver);

  // Returns the pods that are bound to a node and have not ended, ordered by uid. It takes the
  // permission to list pods. Statuses as List, and of ParsePods.
  absl::StatusOr<PodList> Pods(absl::string_view node);

  // Returns an object's text, creates an object in a collection, or replaces one. `path` begins
  // with "/", and needs no escapes.
  //   NOT_FOUND         there is no such object
  //   ABORTED           it exists, or was changed meanwhile
  //   INVALID_ARGUMENT  the API server takes no such object
  //   others            as List
  absl::StatusOr<std::string> Read(const std::string& path);
  absl::Status Create(const std::string& path, const std::string& body);
  absl::Status Replace(const std::string& path, const std::string& body);

  // Ends the calls in progress, and all later ones. May be called from another thread. A call that
  // is about to connect may miss it: repeat it until the call has ended.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Request {
    const char* method = "GET";
    std::string path;
    std::string query;  // begins with "?", or is empty
    std::string body;
    absl::Duration silence;                          // the longest pause in the answer
    absl::Time deadline;                             // of the whole answer
    std::function<void()> on_open;                   // the answer begins
    std::function<bool(absl::string_view)> on_data;  // false ends the call
  };
  // Statuses as List. An answer that `on_data` has ended is OK.
  absl::Status Send(const Request& request);
  // Returns the body of the answer.
  absl::StatusOr<std::string> Send(const char* method, const std::string& path,
                                   const std::string& query, const std::string& body);
  // Calls `send` with the path of resource.k8s.io's version, which is found.
  absl::Status InVersion(absl::FunctionRef<absl::Status(const std::string& group)> send);

  const ApiServerOptions options_;
  absl::Mutex mutex_;
  std::string version_ ABSL_GUARDED_BY(mutex_);  // of resource.k8s.io; empty: not known yet
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<httplib::SSLClient*> calls_ ABSL_GUARDED_BY(mutex_);  // in progress
};

}  // namespace gpumem::kubernetes
