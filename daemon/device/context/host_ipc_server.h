// Answers those who open memory of kind ipc on a host device (common/mapping/host_ipc.h).
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

// Thread-safe. Waits for nobody: whoever does not take his answer does not get it. Any user may
// connect, so each has a few connections only: one more ends his oldest.
class HostIpcServer {
 public:
  // Replaces the socket at `path`, which is this device's alone.
  //   RESOURCE_EXHAUSTED  no descriptors or threads left
  //   INTERNAL            anything else that keeps it from listening there
  static absl::StatusOr<std::unique_ptr<HostIpcServer>> Start(const std::string& path);
  // Removes the socket, unless somebody has replaced it.
  ~HostIpcServer();

  void Add(const gpumem::ExportData& handle, gpumem::UniqueFd memory);
  // From now on nobody opens it.
  void Remove(const gpumem::ExportData& handle);

 private:
  struct Asker {
    gpumem::UniqueFd socket;
    uid_t user = 0;
  };

  HostIpcServer(gpumem::UniqueFd socket, gpumem::UniqueFd stop)
      : socket_(std::move(socket)), stop_(std::move(stop)) {}
  void Serve();
  // False where no descriptor was left for it, nor to be had by ending another.
  bool Accept();
  void Answer(absl::string_view question, int asker);

  const gpumem::UniqueFd socket_;
  const gpumem::UniqueFd stop_;  // an eventfd
  SocketFile file_;
  std::list<Asker> askers_;  // the thread's, the oldest first
  absl::Mutex mutex_;
  std::map<gpumem::ExportData, gpumem::UniqueFd> memory_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gpumemd
