// SPDX-License-Identifier: Apache-2.0
// Calls of every method of the daemon's services, by structure: of two sessions and an operator,
// with clients that cancel, die in a call or leave calls unfinished. Each call ends with a status
// that the interface documents for it. Afterwards the daemon's invariants hold, no session is left,
// and another client is still served.
//
//   each step   what (1 byte: a method, or kHttp2 for bytes of HTTP/2)
//               how (1 byte. 1: the second session. 6: mangled bytes. 0x18: cancel; 0x10: die in
//               it) the fields of the request, or the bytes
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/testing/fuzz/input.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "tests/fuzz/daemon.h"
#include "tests/fuzz/documented.h"
#include "tests/fuzz/message.h"
#include "tests/support/raw_call.h"
#include "tests/support/wire.h"

namespace gpumem::testing {
namespace {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

constexpr int kMostSteps = 12;
constexpr uint8_t kHttp2 = 0xff;
constexpr absl::Duration kStreamTime = absl::Milliseconds(20);

// All but Drain, after which the daemon refuses everything.
std::vector<const MethodDescriptor*> Methods() {
  std::vector<const MethodDescriptor*> methods;
  for (const char* name : {"gpumem.v1.Broker", "gpumem.v1.Admin"}) {
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    FUZZ_CHECK(service != nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      if (service->method(i)->name() != "Drain") methods.push_back(service->method(i));
    }
  }
  FUZZ_CHECK(methods.size() > 60 && methods.size() < kHttp2);
  return methods;
}

bool IsAdmin(const MethodDescriptor* method) { return method->service()->name() == "Admin"; }

std::string PathOf(const MethodDescriptor* method) {
  return absl::StrCat("/", method->service()->full_name(), "/", method->name());
}

std::unique_ptr<Message> New(const google::protobuf::Descriptor* type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

void CheckStatus(const MethodDescriptor* method, const absl::Status& status) {
  static const auto& of_broker = *new DocumentedStatuses("proto/gpumem/v1/broker.proto");
  static const auto& of_admin = *new DocumentedStatuses("proto/gpumem/v1/admin.proto");
  const auto& of_service = IsAdmin(method) ? of_admin : of_broker;
  // gRPC's own, without a message, for bytes that the synchronous service cannot parse. With one it
  // is an error of the daemon.
  const bool fits = status.code() == absl::StatusCode::kInternal
                        ? IsAdmin(method) && status.message().empty()
                        : of_service.Has(method->name(), status.code()) &&
                              (status.ok() || !status.message().empty());
  if (fits) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  FUZZ_FAIL(absl::StrCat(method->full_name(), " does not document ",
                         absl::StatusCodeToString(status.code())));
}

// Remembers numbers and short texts of an answer, which later requests can name.
void Learn(const Message& message, KnownValues& known) {
  using google::protobuf::FieldDescriptor;
  constexpr size_t kMost = 24;
  const auto* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool many = field->is_repeated();
    const int count = many ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count && i < 4; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        Learn(many ? reflection->GetRepeatedMessage(message, field, i)
                   : reflection->GetMessage(message, field),
              known);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64 &&
                 known.numbers.size() < kMost) {
        known.numbers.push_back(many ? reflection->GetRepeatedUInt64(message, field, i)
                                     : reflection->GetUInt64(message, field));
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING &&
                 known.texts.size() < kMost) {
        known.texts.push_back(many ? reflection->GetRepeatedString(message, field, i)
                                   : reflection->GetString(message, field));
        // An operator may do everything to this tenant, too.
        if (known.texts.back() == kHonestTenant) known.texts.pop_back();
      }
    }
  }
}

struct Caller {
  Caller(const FuzzDaemon& daemon, absl::string_view tenant)
      : session(daemon.Socket("session.sock")) {
    const absl::Status greeted = session.Greet(HelloOf(tenant));
    // The operator may have limited its sessions, or ended it.
    if (!greeted.ok()) return;
    token = session.token();
    channel = session.TakeChannel();
  }

  WireSession session;
  std::string token;
  std::shared_ptr<grpc::Channel> channel;
  KnownValues known;
};

// A client that keeps the rules, and must be served whatever others do.
class Honest {
 public:
  explicit Honest(const FuzzDaemon& daemon) : caller_(daemon, kHonestTenant) {
    FUZZ_CHECK(caller_.channel != nullptr);
    stub_ = v1::Broker::NewStub(caller_.channel);
  }

  void Work() {
    v1::AcquireRequest acquire;
    acquire.set_bytes(2 << 20);
    auto acquired = CallBroker(*stub_, &v1::Broker::Stub::Acquire, acquire, caller_.token);
    if (absl::IsFailedPrecondition(acquired.status())) {
      // All clients are one process. If it has revocable leases, it may have only those.
      acquire.set_revocable(true);
      acquired = CallBroker(*stub_, &v1::Broker::Stub::Acquire, acquire, caller_.token);
    }
    FUZZ_CHECK_OK(acquired);
    FUZZ_CHECK(acquired->leases_size() == 1);
    std::vector<UniqueFd> fds;
    FUZZ_CHECK(caller_.session.Receive(&fds).ok() && fds.size() == 1);
    v1::ReleaseRequest release;
    release.add_lease_ids(acquired->leases(0).lease_id());
    FUZZ_CHECK_OK(CallBroker(*stub_, &v1::Broker::Stub::Release, release, caller_.token));
  }

 private:
  Caller caller_;
  std::unique_ptr<v1::Broker::Stub> stub_;
};

// What an input's calls are made with.
class Clients {
 public:
  Clients(const FuzzDaemon& daemon, std::shared_ptr<grpc::Channel> admin)
      : daemon_(daemon), admin_(std::move(admin)) {}

  void Step(FuzzInput& input) {
    static const auto& methods = *new std::vector<const MethodDescriptor*>(Methods());
    const uint8_t what = input.Byte();
    const uint8_t how = input.Byte();
    std::optional<Caller>& caller = (how & 1) != 0 ? second_ : first_;
    if (!caller) caller.emplace(daemon_, (how & 1) != 0 ? "b" : "a");
    if (caller->channel == nullptr) return;
    if (what == kHttp2) return SendFrames(input);
    const MethodDescriptor* method = methods[what % methods.size()];
    const std::shared_ptr<grpc::Channel> channel = IsAdmin(method) ? admin_ : caller->channel;
    const std::string token = IsAdmin(method) ? "" : caller->token;
    if (method->server_streaming()) return Stream(input, method, how, channel, *caller);

    PendingCall call(channel, PathOf(method), RequestOf(input, method, how, caller->known),
                     ContextWith(token));
    if ((how & 0x18) == 0x18) call.Cancel();
    if ((how & 0x18) == 0x10) {
      caller.reset();  // dies
      (void)call.Wait();
      return;
    }
    const absl::StatusOr<std::string> answer = call.Wait();
    if ((how & 0x18) == 0x18) return;
    CheckStatus(method, answer.status());
    if (!answer.ok()) return;
    const auto response = New(method->output_type());
    FUZZ_CHECK(response->ParseFromString(*answer));
    Learn(*response, caller->known);
    // What one has shared, the other may open.
    std::optional<Caller>& other = (how & 1) != 0 ? first_ : second_;
    if (method->name() == "Share" && other) Learn(*response, other->known);
  }

 private:
  static std::string RequestOf(FuzzInput& input, const MethodDescriptor* method, uint8_t how,
                               const KnownValues& known) {
    if ((how & 6) == 6) return std::string(input.Word(2000));
    const auto request = New(method->input_type());
    FillMessage(input, request.get(), known);
    return request->SerializePartialAsString();
  }

  static void Stream(FuzzInput& input, const MethodDescriptor* method, uint8_t how,
                     const std::shared_ptr<grpc::Channel>& channel, Caller& caller) {
    RawStream stream(channel, PathOf(method),
                     ContextWith(IsAdmin(method) ? "" : caller.token, kStreamTime));
    std::string answer;
    for (uint32_t requests = method->client_streaming() ? 1 + input.Below(4) : 1; requests > 0;
         --requests) {
      if (!stream.Write(RequestOf(input, method, how, caller.known))) break;
      if (!stream.Read(&answer)) break;
    }
    stream.Cancel();
    const absl::Status status = stream.Finish();
    // It is cancelled, or its time is over.
    if (absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)) return;
    CheckStatus(method, status);
  }

  // Sends frames on a new session's connection, which then stays open, with its calls unfinished.
  void SendFrames(FuzzInput& input) {
    WireSession session(daemon_.Socket("session.sock"));
    if (!session.Greet(HelloOf("a")).ok()) return;
    UniqueFd api = session.TakeApi();
    std::string bytes = http2::Opening(input.Take<uint32_t>());
    for (uint32_t frames = 1 + input.Below(8); frames > 0; --frames) {
      const auto stream = static_cast<uint32_t>(1 + 2 * input.Below(4));
      switch (input.Below(3)) {
        case 0:
          bytes += http2::Headers(stream, PathOf(Methods()[input.Byte() % Methods().size()]),
                                  input.Bool());
          break;
        case 1:
          bytes += http2::Data(stream, input.Word(100));
          break;
        default:
          bytes += http2::Frame(input.Byte() % 12, input.Byte(), input.Below(8), input.Word(100));
      }
    }
    send(api.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    open_.push_back(std::move(api));
    sessions_.push_back(std::move(session));
  }

  const FuzzDaemon& daemon_;
  const std::shared_ptr<grpc::Channel> admin_;
  std::optional<Caller> first_, second_;
  std::vector<UniqueFd> open_;
  std::vector<WireSession> sessions_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  if (input.empty()) return 0;
  FuzzDaemon& daemon = FuzzDaemon::ForInput();
  // Those of one daemon. The last ones are there while it ends.
  static std::string dir;
  static std::unique_ptr<Honest> honest;
  static std::shared_ptr<grpc::Channel> admin;
  if (dir != daemon.runtime_dir()) {
    honest = std::make_unique<Honest>(daemon);
    admin = ChannelTo(daemon.Socket("admin.sock"));
    dir = daemon.runtime_dir();
  }
  {
    Clients clients(daemon, admin);
    for (int i = 0; i < kMostSteps && !input.empty(); ++i) clients.Step(input);
  }
  daemon.CheckAfterInput(/*others=*/1);
  honest->Work();
  return 0;
}

}  // namespace gpumem::testing
