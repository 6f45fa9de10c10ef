#include "client/handshake.h"

#include <errno.h>
#include <sys/socket.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/denial.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"

namespace gpumem::internal {
namespace {

constexpr size_t kMaxNameBytes = 64;

// The program's name, as far as it makes a client's name.
std::string ProgramName() {
  std::string name(absl::string_view(program_invocation_short_name).substr(0, kMaxNameBytes));
  for (char& c : name) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return name;
}

absl::Status RefusalError(const v1::Refusal& refusal) {
  absl::Status status(static_cast<absl::StatusCode>(refusal.code()), refusal.message());
  // A refusal is never OK, whatever it says.
  if (status.ok()) status = absl::UnknownError(refusal.message());
  if (refusal.has_denial()) AttachDenial(refusal.denial(), &status);
  return status;
}

absl::Status OtherProtocol(absl::string_view path, absl::string_view spoken) {
  return absl::UnimplementedError(absl::StrCat("what listens on ", path, " speaks ", spoken,
                                               ", this library version ", kProtocolVersion,
                                               " of gpumem's: install the same release of both"));
}

}  // namespace

absl::StatusOr<Welcomed> Greet(const std::string& runtime_dir, const ConnectOptions& options,
                               absl::Time deadline) {
  const std::string path = SocketPath(runtime_dir, kSessionSocket);
  absl::StatusOr<UniqueFd> socket = ConnectUnix(path, SOCK_SEQPACKET, deadline);
  if (absl::IsUnavailable(socket.status())) {
    return absl::UnavailableError(
        absl::StrCat("no daemon listens on ", path,
                     ": start gpumemd, or set GPUMEM_RUNTIME_DIR to the folder of its sockets"));
  }
  if (!socket.ok()) return socket.status();

  v1::Hello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_client_name(options.name.empty() ? ProgramName() : options.name);
  hello.set_tenant(options.tenant);
  // A daemon that refuses without reading may be gone by now; what it said is still there.
  if (absl::Status sent = SendMessage(socket->get(), hello.SerializeAsString(), {}, deadline);
      !sent.ok() && !absl::IsUnavailable(sent)) {
    return sent;
  }
  absl::StatusOr<UnixMessage> answer = ReceiveMessage(socket->get(), deadline);
  if (absl::IsDeadlineExceeded(answer.status())) {
    return absl::DeadlineExceededError(absl::StrCat(
        "the daemon on ", path, " did not answer within ", absl::FormatDuration(options.timeout)));
  }
  if (absl::IsUnavailable(answer.status())) {
    return absl::UnavailableError(absl::StrCat("the daemon on ", path,
                                               " closed the connection without a word; its log may "
                                               "say why"));
  }
  if (!answer.ok()) return answer.status();

  v1::ServerMessage message;
  if (!message.ParseFromString(answer->bytes)) return OtherProtocol(path, "another protocol");
  if (message.has_refusal()) return RefusalError(message.refusal());
  if (message.has_goodbye()) {
    return absl::UnavailableError(
        absl::StrCat("the daemon on ", path, " is going away: ", message.goodbye().reason()));
  }
  if (!message.has_welcome()) return OtherProtocol(path, "another protocol");
  if (message.welcome().protocol_version() != kProtocolVersion) {
    return OtherProtocol(path, absl::StrCat("version ", message.welcome().protocol_version()));
  }
  return Welcomed{.socket = *std::move(socket), .welcome = std::move(*message.mutable_welcome())};
}

}  // namespace gpumem::internal
