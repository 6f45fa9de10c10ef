// SPDX-License-Identifier: Apache-2.0
// Messages on the session socket: Hellos by structure or as bytes, with descriptors or without, and
// what comes after them. A peer that breaks a rule is told, and loses its connection.
//
//   each message   how (1: bytes and no Hello, 2: close afterwards; the number of descriptors),
//   then
//                  the fields of a Hello, or the bytes
#include <fcntl.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/fuzz/input.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/session.pb.h"
#include "tests/fuzz/daemon.h"
#include "tests/fuzz/message.h"
#include "tests/support/wire.h"

namespace gpumem::testing {
namespace {

constexpr int kMostMessages = 6;

bool IsDocumented(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDataLoss:  // a message that is too large
      return true;
    default:
      return false;
  }
}

std::string MessageOf(FuzzInput& input, const std::string& token, bool as_bytes) {
  if (as_bytes) return std::string(input.Word(5000));
  v1::Hello hello = HelloOf("a");
  if (input.Bool()) FillMessage(input, &hello);
  if (input.Byte() == 7 && !token.empty()) hello.set_resume_token(token);
  return hello.SerializePartialAsString();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  FuzzDaemon& daemon = FuzzDaemon::ForInput();
  static const UniqueFd& null = *new UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC));
  WireSession session(daemon.Socket("session.sock"));
  bool greeted = false;
  std::string token;
  for (int i = 0; i < kMostMessages && !input.empty(); ++i) {
    const uint8_t how = input.Byte();
    const std::vector<int> fds(how >> 2 & 3, null.get());
    const std::string message = MessageOf(input, token, (how & 1) != 0);
    if (!session.Send(message, fds).ok()) break;
    if ((how & 2) != 0) {  // unheard, and resumed or not by the next
      session = WireSession(daemon.Socket("session.sock"));
      greeted = false;
      continue;
    }
    const absl::Status answer = session.Answer();
    if (greeted) {
      // A Goodbye, or the end of the connection without one.
      FUZZ_CHECK(absl::IsCancelled(answer) || absl::IsUnavailable(answer));
      break;
    }
    if (!IsDocumented(answer)) FUZZ_CHECK_OK(answer);
    FUZZ_CHECK(answer.ok() || !answer.message().empty());
    if (!answer.ok()) {
      FUZZ_CHECK(session.Ended());
      break;
    }
    greeted = true;
    token = session.token();
    FUZZ_CHECK(token.size() == 32);
  }
  return 0;
}

}  // namespace gpumem::testing
