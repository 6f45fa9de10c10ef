// SPDX-License-Identifier: Apache-2.0
// Answers processes that open memory of kind ipc on a host device (common/mapping/host_ipc.h).
#pragma once

#include <sys/types.h>

#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/export_data.h"
#include "common/unique_fd.h"
#include "daemon/device/socket_file.h"

namespace gpumemd {

// Thread-safe. Waits for no peer: an answer that a peer does not take is dropped. Any user may
// connect, so connections of a user are limited to a few: one more ends that user's oldest.
class HostIpcServer {
 public:
  // Starts a server and replaces the socket at `path`, which is this device's alone.
  //   RESOURCE_EXHAUSTED  no descriptors or threads left
  //   INTERNAL            any other error that prevents listening there
  static absl::StatusOr<std::unique_ptr<HostIpcServer>> Start(const std::string& path);
  // Removes the socket, unless another process has replaced it.
  ~HostIpcServer();

  void Add(const gpumem::ExportData& handle, gpumem::UniqueFd memory);
  // Removes the memory: later openings fail.
  void Remove(const gpumem::ExportData& handle);

 private:
  struct Asker {
    gpumem::UniqueFd socket;
    uid_t user = 0;
  };

  HostIpcServer(gpumem::UniqueFd socket, gpumem::UniqueFd stop)
      : socket_(std::move(socket)), stop_(std::move(stop)) {}
  void Serve();
  // False if no descriptor was left for it, even by ending another connection.
  bool Accept();
  void Answer(absl::string_view question, int asker);

  const gpumem::UniqueFd socket_;
  const gpumem::UniqueFd stop_;  // an eventfd
  SocketFile file_;
  std::list<Asker> askers_;  // used by the thread; the oldest first
  absl::Mutex mutex_;
  std::map<gpumem::ExportData, gpumem::UniqueFd> memory_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gpumemd
