// SPDX-License-Identifier: Apache-2.0
#include "client/session/handshake.h"

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

// Returns the program's name, truncated to a valid client name.
std::string ProgramName() {
  std::string name(absl::string_view(program_invocation_short_name).substr(0, kMaxNameBytes));
  for (char& c : name) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return name;
}

absl::Status RefusalError(const v1::Refusal& refusal) {
  absl::Status status(static_cast<absl::StatusCode>(refusal.code()), refusal.message());
  // A refusal is never OK, whatever its code.
  if (status.ok()) status = absl::UnknownError(refusal.message());
  if (refusal.has_denial()) AttachDenial(refusal.denial(), &status);
  if (refusal.try_again()) MarkTryAgain(&status);
  return status;
}

absl::Status OtherProtocol(absl::string_view path, absl::string_view spoken) {
  return absl::UnimplementedError(absl::StrCat("the server on ", path, " speaks ", spoken,
                                               ", this library version ", kProtocolVersion,
                                               " of gpumem's: install the same release of both"));
}

}  // namespace

absl::StatusOr<UniqueFd> SayHello(const std::string& runtime_dir, const Greeting& greeting,
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
  hello.set_client_name(greeting.name.empty() ? ProgramName() : greeting.name);
  hello.set_tenant(greeting.tenant);
  hello.set_resume_token(greeting.resume_token);
  hello.set_connect_id(greeting.connect_id);
  // A daemon that refuses without reading may be gone by now; its message is still there.
  if (absl::Status sent = SendMessage(socket->get(), hello.SerializeAsString(), {}, deadline);
      !sent.ok() && !absl::IsUnavailable(sent)) {
    return sent;
  }
  return socket;
}

absl::StatusOr<Welcomed> HearWelcome(int socket, const std::string& runtime_dir,
                                     absl::Time deadline, bool* refused) {
  *refused = false;
  const std::string path = SocketPath(runtime_dir, kSessionSocket);
  absl::StatusOr<UnixMessage> answer = ReceiveMessage(socket, deadline);
  if (absl::IsDeadlineExceeded(answer.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat("the daemon on ", path, " did not answer in time"));
  }
  if (absl::IsUnavailable(answer.status())) {
    return absl::UnavailableError(absl::StrCat(
        "the daemon on ", path, " closed the connection without an answer; see its log"));
  }
  if (absl::IsDataLoss(answer.status())) {
    return absl::ResourceExhaustedError(
        "this process could not take the file descriptor of its connection to the daemon: it is at "
        "its limit of open files; raise it (ulimit -n)");
  }
  if (!answer.ok()) return answer.status();

  v1::ServerMessage message;
  if (!message.ParseFromString(answer->bytes)) {
    *refused = true;
    return OtherProtocol(path, "another protocol");
  }
  if (message.has_goodbye()) {
    *refused = !message.goodbye().stopping();
    return absl::UnavailableError(
        absl::StrCat("the daemon on ", path, " is stopping: ", message.goodbye().reason()));
  }
  *refused = true;
  if (message.has_refusal()) return RefusalError(message.refusal());
  if (!message.has_welcome()) return OtherProtocol(path, "another protocol");
  if (message.welcome().protocol_version() != kProtocolVersion) {
    return OtherProtocol(path, absl::StrCat("version ", message.welcome().protocol_version()));
  }
  if (answer->fds.size() != 1) {
    return absl::InternalError(
        absl::StrCat("the daemon on ", path, " welcomed this process with ", answer->fds.size(),
                     " file descriptors in place of one; this is a defect of "
                     "gpumem"));
  }
  *refused = false;
  return Welcomed{std::move(*message.mutable_welcome()), std::move(answer->fds.front())};
}

}  // namespace gpumem::internal
