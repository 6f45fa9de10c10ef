// SPDX-License-Identifier: Apache-2.0
// gpumemctl events: the broker's events as they happen.
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "client/cli/commands/cancel_on_stop.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/stop_signals.h"
#include "client/cli/text/table.h"
#include "client/cli/text/terminal.h"
#include "client/cli/views/events_view.h"

namespace gpumem::cli {

absl::Status Run(const EventsCommand& command, const GlobalOptions& options) {
  StopSignals signals;
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  grpc::ClientContext context;
  auto reader = (*admin)->stub().WatchEvents(&context, command.request);

  const CancelOnStop stop(&signals, &context);

  v1::EventRecord record;
  while (reader->Read(&record)) {
    if (absl::FromUnixNanos(static_cast<int64_t>(record.time_unix_ns())) < command.since) continue;
    if (options.json) {
      Print(DocumentLine(EventJson(record)));
    } else {
      // Never truncated: the reason is at the end.
      const Output output = Stdout(options.color);
      Print(ToString(EventLines(record, absl::Now(), absl::LocalTimeZone()), output.colour,
                     kAnyWidth));
    }
  }
  const grpc::Status status = reader->Finish();
  if (status.ok() || stop.stopped()) return absl::OkStatus();
  return FromGrpcStatus(status);
}

}  // namespace gpumem::cli
