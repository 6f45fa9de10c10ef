// SPDX-License-Identifier: Apache-2.0
// gpumemctl publish: copies files into memory, and publishes it. The publication outlives this
// process, until it is unpublished or expires (--expire-after).
#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "client/cli/commands/client_devices.h"
#include "client/cli/commands/commands.h"
#include "client/cli/files/progress.h"
#include "client/cli/files/views.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/stop_signals.h"
#include "gpumem/client.h"
#include "gpumem/files.h"

namespace gpumem::cli {

absl::Status Run(const PublishCommand& command, const GlobalOptions& options) {
  StopSignals signals;
  const absl::Time begun = absl::Now();
  auto client = Client::Connect({.runtime_dir = options.runtime_dir,
                                 .tenant = command.as,
                                 .name = "gpumemctl publish",
                                 .timeout = options.timeout.value_or(ConnectOptions().timeout)});
  if (!client.ok()) return client.status();
  absl::StatusOr<DeviceName> device = DeviceForClient(**client, command.device);
  if (!device.ok()) return device.status();

  std::optional<Progress> progress;
  const auto show = [&](uint64_t done, uint64_t total) {
    if (!progress.has_value()) progress.emplace(command.name, total, !options.json);
    progress->Show(done);
    // Polls: returns at once.
    return signals.Wait(absl::InfinitePast()) == StopSignals::Event::kStop
               ? absl::CancelledError("stopped by a signal; nothing was published")
               : absl::OkStatus();
  };
  auto published = PublishFiles(**client, command.name, command.files,
                                {.format = command.format,
                                 .device = *std::move(device),
                                 .kind = command.kind,
                                 .checksums = command.checksum,
                                 .access = command.access,
                                 .expire_after = command.expire_after,
                                 .progress = show});
  progress.reset();
  if (!published.ok()) return published.status();
  Transferred transferred = {.publication = command.name,
                             .tenant = (*client)->tenant(),
                             .version = published->version,
                             .arrays = published->arrays};
  for (PublishedFiles::File& file : published->files) {
    transferred.files.push_back({std::move(file.name), file.bytes, std::move(file.xxh128)});
  }
  transferred.took = absl::Now() - begun;
  Print(options.json ? Document(PublishedJson(transferred))
                     : PublishedView(transferred, options.exact));
  return absl::OkStatus();
}

}  // namespace gpumem::cli
