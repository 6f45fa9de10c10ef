// SPDX-License-Identifier: Apache-2.0
// gpumemctl top: polls the admin socket.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/connection.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/stop_signals.h"
#include "client/cli/text/table.h"
#include "client/cli/text/terminal.h"
#include "client/cli/views/top_view.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

// The daemon, and its successors.
class Source {
 public:
  explicit Source(const GlobalOptions& options)
      : runtime_dir_(options.runtime_dir), timeout_(options.timeout) {}

  absl::StatusOr<TopData> Look() {
    if (admin_ == nullptr) {
      auto admin = ConnectAdmin(runtime_dir_, timeout_);
      if (!admin.ok()) return admin.status();
      admin_ = *std::move(admin);
    }
    absl::StatusOr<TopData> data = Ask();
    if (absl::IsUnavailable(data.status())) admin_ = nullptr;  // reconnects at the next poll
    return data;
  }

 private:
  absl::StatusOr<TopData> Ask() {
    auto status = Call(*admin_, &Admin::Stub::GetStatus, v1::GetStatusRequest());
    if (!status.ok()) return status.status();
    auto tenants = Call(*admin_, &Admin::Stub::ListTenants, v1::ListTenantsRequest());
    if (!tenants.ok()) return tenants.status();
    auto sessions = Call(*admin_, &Admin::Stub::ListSessions, v1::ListSessionsRequest());
    if (!sessions.ok()) return sessions.status();
    return TopData{*std::move(status), *std::move(tenants), *std::move(sessions)};
  }

  const std::string runtime_dir_;
  const std::optional<absl::Duration> timeout_;
  std::unique_ptr<AdminConnection> admin_;
};

std::string JsonLine(const TopData& data) {
  Json json = Json::object();
  json["status"] = ToJson(data.status);
  json.update(ToJson(data.tenants));
  json.update(ToJson(data.sessions));
  return DocumentLine(json);
}

// Prints one snapshot after another: for programs, files, terminals that cannot be drawn on, and
// wherever the last of a number of snapshots is to stay to be read.
absl::Status PrintLooks(const TopCommand& command, const GlobalOptions& options, Source& source,
                        StopSignals& signals, TopData data) {
  TopState state{
      .by = command.by, .sort = command.sort, .exact = options.exact, .headers = options.headers};
  for (uint32_t shown = 1;; ++shown) {
    if (options.json) {
      Print(JsonLine(data));
    } else {
      const Output output = Stdout(options.color);
      const std::vector<Line> lines = TopView(data, 0, output.columns, &state);
      Print(absl::StrCat(shown > 1 ? "\n" : "", ToString(lines, output.colour, output.columns)));
    }
    if (command.iterations && shown >= *command.iterations) return absl::OkStatus();
    if (signals.Wait(absl::Now() + command.interval) == StopSignals::Event::kStop) {
      return absl::OkStatus();
    }
    absl::StatusOr<TopData> next = source.Look();
    if (!next.ok()) return next.status();
    data = *std::move(next);
  }
}

// Draws the picture until the user quits. The last snapshot stays while the daemon is away.
absl::Status Draw(const TopCommand& command, const GlobalOptions& options, Source& source,
                  StopSignals& signals, TopData data) {
  TopState state{.by = command.by, .sort = command.sort, .exact = options.exact};
  Terminal terminal;
  absl::Time seen = absl::Now();
  absl::Time next = seen + command.interval;
  while (true) {
    const Output output = Stdout(options.color);
    terminal.Draw(ToString(TopView(data, output.rows, output.columns, &state), output.colour,
                           output.columns));
    switch (signals.Wait(next, terminal.input())) {
      case StopSignals::Event::kStop:
        return absl::OkStatus();
      case StopSignals::Event::kResize:
        break;
      case StopSignals::Event::kInput: {
        const std::optional<std::vector<KeyPress>> keys = terminal.ReadKeys();
        if (!keys) return absl::OkStatus();
        for (const KeyPress& key : *keys) {
          if (!Press(key, TopPage(data, output.rows), &state)) return absl::OkStatus();
        }
        break;
      }
      case StopSignals::Event::kTimeout: {
        absl::StatusOr<TopData> look = source.Look();
        next = absl::Now() + command.interval;
        if (look.ok()) {
          data = *std::move(look);
          seen = absl::Now();
          state.trouble.clear();
        } else if (absl::IsUnavailable(look.status()) || absl::IsDeadlineExceeded(look.status())) {
          const auto gone = static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Now() - seen));
          state.trouble = absl::StrCat("no answer for ", Age(gone));
        } else {
          return look.status();
        }
      }
    }
  }
}

}  // namespace

absl::Status Run(const TopCommand& command, const GlobalOptions& options) {
  StopSignals signals(StopSignals::Also::kResize);
  Source source(options);
  // Before the switch of the screen, so that an error is not lost on it.
  absl::StatusOr<TopData> data = source.Look();
  if (!data.ok()) return data.status();
  const bool draws = !options.json && !command.iterations && Stdout(options.color).terminal;
  return draws ? Draw(command, options, source, signals, *std::move(data))
               : PrintLooks(command, options, source, signals, *std::move(data));
}

}  // namespace gpumem::cli
