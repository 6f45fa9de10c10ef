// gpumemctl top: what the admin socket tells, again and again.
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/json.h"
#include "client/cli/print.h"
#include "client/cli/stop_signals.h"
#include "client/cli/terminal.h"
#include "client/cli/views.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

// One look: a JSON line, or a picture.
absl::StatusOr<std::string> Look(Admin::Stub& admin, const GlobalOptions& options) {
  auto status = Call(admin, &Admin::Stub::GetStatus, v1::GetStatusRequest());
  if (!status.ok()) return status.status();
  auto tenants = Call(admin, &Admin::Stub::ListTenants, v1::ListTenantsRequest());
  if (!tenants.ok()) return tenants.status();
  auto sessions = Call(admin, &Admin::Stub::ListSessions, v1::ListSessionsRequest());
  if (!sessions.ok()) return sessions.status();
  if (!options.json) return TopView(*status, *tenants, *sessions, options.exact);
  Json json = Json::object();
  json["status"] = ToJson(*status);
  json.update(ToJson(*tenants));
  json.update(ToJson(*sessions));
  return OneLine(json);
}

}  // namespace

absl::Status Run(const TopCommand& command, const GlobalOptions& options) {
  StopSignals signals;
  auto admin = ConnectAdmin(options.runtime_dir);
  if (!admin.ok()) return admin.status();

  absl::StatusOr<std::string> look = Look(**admin, options);
  if (!look.ok()) return look.status();
  // After the first answer, so that an error is not lost on the other screen.
  std::optional<Terminal> terminal;
  if (!options.json && Terminal::IsThere()) terminal.emplace();

  for (uint32_t shown = 1;; ++shown) {
    if (terminal) {
      terminal->Draw(absl::StrCat(*look, "\nq quits"));
    } else {
      Print(shown > 1 && !options.json ? absl::StrCat("\n", *look) : *look);
    }
    if (command.iterations && shown >= *command.iterations) return absl::OkStatus();
    const absl::Time next = absl::Now() + command.interval;
    const int input = terminal ? terminal->input() : -1;
    StopSignals::Event event;
    while ((event = signals.Wait(next, input)) == StopSignals::Event::kInput) {
      const char key = terminal->ReadKey();
      if (key == 'q' || key == 'Q' || key == '\0') return absl::OkStatus();
    }
    if (event == StopSignals::Event::kStop) return absl::OkStatus();
    look = Look(**admin, options);
    if (!look.ok()) return look.status();
  }
}

}  // namespace gpumem::cli
