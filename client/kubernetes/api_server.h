// SPDX-License-Identifier: Apache-2.0
// Claims, slices, pods and single objects, by the API server's REST interface.
//
// The connection is TLS; the server's certificate is verified against the CA bundle and the host.
// Each call connects anew and reads token and bundle anew, since both are replaced while a pod
// runs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/kubernetes/claims.h"
#include "client/kubernetes/pods.h"

namespace gpumem::kubernetes {

struct ApiServerOptions {
  std::string host;  // a name, or an address without brackets
  int port = 443;
  std::string token_file;
  std::string ca_file;
  absl::Duration timeout = absl::Seconds(30);  // of each request
};

// Returns host and port of "https://HOST[:PORT]".
//   INVALID_ARGUMENT  it is no such address
absl::StatusOr<ApiServerOptions> ParseUrl(absl::string_view url);
// Returns the address by which a pod finds the API server; "" outside of pods.
std::string UrlOfPod();

class ApiServer {
 public:
  explicit ApiServer(ApiServerOptions options) : options_(std::move(options)) {}

  // Returns the claims of the cluster that have devices of `driver`.
  //   UNAVAILABLE          it cannot be reached, its certificate is not valid, or it is overloaded
  //   DEADLINE_EXCEEDED    it does not answer in time
  //   UNAUTHENTICATED      the token is not valid
  //   PERMISSION_DENIED    the account may not list claims
  //   NOT_FOUND            the cluster has no dynamic resource allocation
  //   ABORTED              the list has changed too much; call again
  //   INVALID_ARGUMENT, RESOURCE_EXHAUSTED  as of ParseClaims
  absl::StatusOr<std::vector<Claim>> Claims(absl::string_view driver);

  // Returns the devices of `driver` on a node. Statuses as Claims.
  absl::StatusOr<SliceList> Slices(absl::string_view node, absl::string_view driver);

  // Returns the pods that are bound to a node, ordered by uid. It takes the permission to list
  // pods. Statuses as Claims, and of ParsePods.
  absl::StatusOr<PodList> Pods(absl::string_view node) const;

  // Returns an object's text, creates an object in a collection, or replaces one. `path` begins
  // with "/", and needs no escapes.
  //   NOT_FOUND         there is no such object or collection
  //   ABORTED           it exists, or was changed meanwhile
  //   INVALID_ARGUMENT  the API server takes no such object
  //   others            as Claims
  absl::StatusOr<std::string> Read(const std::string& path) const;
  absl::Status Create(const std::string& path, const std::string& body) const;
  absl::Status Replace(const std::string& path, const std::string& body) const;

 private:
  // Returns a part of a list. `next`: the token of the part; empty: the first.
  absl::StatusOr<std::string> List(absl::string_view resource, const std::string& selector,
                                   const std::string& next);
  // `items`: the most of them in the part.
  absl::StatusOr<std::string> Get(const std::string& path, const std::string& selector,
                                  const std::string& next, int items) const;
  // Returns the body of the answer. `query` begins with "?", or is empty.
  absl::StatusOr<std::string> Send(const char* method, const std::string& path,
                                   const std::string& query, const std::string& body) const;

  const ApiServerOptions options_;
  std::string version_;  // of resource.k8s.io that the server has; empty: not known yet
};

}  // namespace gpumem::kubernetes
