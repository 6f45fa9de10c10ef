// SPDX-License-Identifier: Apache-2.0
// gpumemctl trace: records traces of the daemon, and summarizes traces.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands/cancel_on_stop.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/commands/output.h"
#include "client/cli/files/output_file.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/stop_signals.h"
#include "client/cli/views/trace_view.h"
#include "common/trace/reader.h"
#include "common/unique_fd.h"

namespace gpumem::cli {
namespace {

// Longer than the daemon gives a client for the end of a trace.
constexpr absl::Duration kRest = absl::Seconds(30);
constexpr size_t kReadAtOnce = size_t{1} << 20;

// Reads a trace from a file in parts, and passes whole packets on. Its last packet may be cut off:
// its process may be writing it.
absl::Status ReadFile(const std::string& path, trace::Reader& reader,
                      absl::FunctionRef<absl::Status(absl::string_view)> use) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  std::string bytes;
  while (true) {
    const size_t rest = bytes.size();
    bytes.resize(rest + kReadAtOnce);
    const ssize_t got = read(file.get(), bytes.data() + rest, kReadAtOnce);
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    bytes.resize(rest + static_cast<size_t>(got));
    const absl::StatusOr<size_t> whole = reader.Add(bytes);
    if (!whole.ok()) {
      return absl::Status(whole.status().code(),
                          absl::StrCat(path, ": ", whole.status().message()));
    }
    if (absl::Status used = use(absl::string_view(bytes).substr(0, *whole)); !used.ok()) {
      return used;
    }
    if (got == 0) return absl::OkStatus();
    bytes.erase(0, *whole);
  }
}

void PrintSummary(const trace::Reader& reader, const GlobalOptions& options) {
  Print(options.json ? Document(TraceJson(reader)) : TraceView(reader, LayoutFor(options)));
}

// Records the daemon until the time is over, or a signal comes.
absl::Status Record(const TraceCommand& command, const GlobalOptions& options, OutputFile& file,
                    trace::Reader& reader) {
  StopSignals signals;
  auto admin = ConnectAdmin(options.runtime_dir, options.timeout);
  if (!admin.ok()) return admin.status();
  grpc::ClientContext context;
  const absl::Time deadline =
      absl::Now() + absl::Milliseconds(command.request.duration_ms()) + kRest;
  context.set_deadline(absl::ToChronoTime(deadline));
  auto stream = (*admin)->stub().Trace(&context, command.request);

  const CancelOnStop stop(&signals, &context);

  absl::Status result;
  v1::TraceChunk chunk;
  while (stream->Read(&chunk)) {
    result.Update(reader.Add(chunk.data()).status());
    if (result.ok()) result.Update(file.Write(chunk.data()));
    if (!result.ok()) context.TryCancel();
  }
  const grpc::Status status = stream->Finish();
  if (!result.ok()) return result;
  if (status.ok() || stop.stopped()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError("the daemon is older than gpumemctl trace; upgrade it");
  }
  return FromGrpcStatus(status);
}

}  // namespace

absl::Status Run(const TraceCommand& command, const GlobalOptions& options) {
  auto file = OutputFile::Create(command.out, command.force);
  if (!file.ok()) return file.status();
  trace::Reader reader;
  if (absl::Status recorded = Record(command, options, **file, reader); !recorded.ok()) {
    return recorded;
  }
  for (const std::string& path : command.with) {
    absl::Status appended =
        ReadFile(path, reader, [&](absl::string_view bytes) { return (*file)->Write(bytes); });
    if (!appended.ok()) return appended;
  }
  if (absl::Status finished = (*file)->Finish(); !finished.ok()) return finished;
  if (absl::Status committed = (*file)->Commit(); !committed.ok()) return committed;
  if (command.out != "-") PrintSummary(reader, options);
  return absl::OkStatus();
}

absl::Status Run(const TraceShowCommand& command, const GlobalOptions& options) {
  trace::Reader reader;
  for (const std::string& path : command.files) {
    absl::Status read = ReadFile(path, reader, [](absl::string_view) { return absl::OkStatus(); });
    if (!read.ok()) return read;
  }
  PrintSummary(reader, options);
  return absl::OkStatus();
}

}  // namespace gpumem::cli
