// SPDX-License-Identifier: Apache-2.0
// Keeps a cache as the API server has the objects: lists them once and watches them from there.
//
// A thread of this object does the calls. When the watch breaks, it goes on from the last version;
// where the API server has forgotten that one, it lists again. Meanwhile the objects are stale.
#pragma once

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/kubernetes/api/api_server.h"
#include "client/kubernetes/api/cache.h"

namespace gpumem::kubernetes {

class Reflector {
 public:
  // `mutex` guards `cache`, and several reflectors may share it. Both outlive this object.
  // `resource` and `selector` as for ApiServer::List.
  Reflector(const ApiServerOptions& options, std::string resource, std::string selector,
            CacheFeed* cache, absl::Mutex* mutex);
  // Ends the calls.
  ~Reflector();
  Reflector(const Reflector&) = delete;
  Reflector& operator=(const Reflector&) = delete;

  // Returns why the objects are stale; OK: they are not. A watch may lag behind the API server all
  // the same, or be dead without a sign for ApiServerOptions::silence.
  const absl::Status& stale() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(*mutex_) { return stale_; }

  // Waits until the objects are not stale. Has the thread try at once, and returns the error of
  // that.
  //   DEADLINE_EXCEEDED  the API server has not answered until then
  //   others             of ApiServer
  absl::Status WaitFresh(absl::Time deadline) ABSL_LOCKS_EXCLUDED(*mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(*mutex_);
  absl::Status List() ABSL_LOCKS_EXCLUDED(*mutex_);
  absl::Status Watch(bool* began) ABSL_LOCKS_EXCLUDED(*mutex_);
  void SetStale(const absl::Status& stale) ABSL_LOCKS_EXCLUDED(*mutex_);
  // Waits before the next try. False: the object ends.
  bool Pause(absl::Duration pause) ABSL_LOCKS_EXCLUDED(*mutex_);

  const std::string resource_;
  const std::string selector_;
  ApiServer api_server_;
  CacheFeed* const cache_;
  absl::Mutex* const mutex_;
  absl::Status stale_ ABSL_GUARDED_BY(*mutex_);
  uint64_t failures_ ABSL_GUARDED_BY(*mutex_) = 0;  // since the start
  bool at_once_ ABSL_GUARDED_BY(*mutex_) = false;   // WaitFresh has asked for that
  bool ending_ ABSL_GUARDED_BY(*mutex_) = false;
  absl::BitGen random_;  // of the thread
  absl::Notification ended_;
  std::thread thread_;
};

}  // namespace gpumem::kubernetes
