// SPDX-License-Identifier: Apache-2.0
#include "tests/system/testing/fuzzer.h"

#include <fcntl.h>
#include <google/protobuf/message.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::testing {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

Fuzzer::Fuzzer(std::string dir, uint64_t seed)
    : dir_(std::move(dir)),
      random_(seed),
      api_(ChannelOfSession(dir_ + "/session.sock")),
      admin_(ChannelTo(dir_ + "/admin.sock")) {
  for (const char* name : {"gpumem.v1.Broker", "gpumem.v1.Admin"}) {
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < service->method_count(); ++i) {
      const MethodDescriptor* method = service->method(i);
      // A drain would be obeyed, and stop the bystander's work.
      if (method->server_streaming() || method->name() == "Drain") continue;
      methods_.push_back(method);
    }
  }
}

void Fuzzer::Round() {
  switch (random_.Below(16)) {
    case 0:
    case 1:
      return Greet();
    case 2:
      return SendFrames();
    case 3:
      return Watch();
    case 4:
      return ResetQuota();
    default:
      break;
  }
  const MethodDescriptor* method = random_.Of(methods_);
  // Rarely: it ends all leases that it does not name, and there has to be something to break.
  while (method->name() == "Reconcile" && !random_.OneIn(20)) method = random_.Of(methods_);
  Call(method);
}

void Fuzzer::Note(const std::string& what, const absl::Status& status, bool words) {
  ++answers_[absl::StrCat(what, ":", absl::StatusCodeToString(status.code()))];
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDataLoss:
      if (!words || !status.message().empty()) return;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      if (what == "Attach") return;         // no such version in time
      if (what == "AttachOrClaim") return;  // another session has the claim
      break;
    case absl::StatusCode::kCancelled:
      if (what == "AttachOrClaim") return;  // its claim was released before
      break;
    default:
      break;
  }
  if (trouble_.empty()) trouble_ = absl::StrCat(what, ": ", status.ToString());
}

void Fuzzer::Greet() {
  v1::Hello hello = HelloOf("bad");
  messages_.set_polite(random_.OneIn(4));
  if (random_.OneIn(2)) messages_.Fill(&hello);
  std::string bytes = hello.SerializePartialAsString();
  if (random_.OneIn(2)) bytes = messages_.Mangled(std::move(bytes));
  bytes.resize(std::min(bytes.size(), kMaxMessageBytes + 10));
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  const std::vector<int> fds(random_.OneIn(4) ? 1 + random_.Below(3) : 0, null.get());
  WireSession session(dir_ + "/session.sock");
  if (!session.Send(bytes, fds).ok() || random_.OneIn(8)) return;  // closed unheard
  const absl::Status met = session.Answer();
  Note("Hello", met);
  if (!met.ok() || random_.OneIn(3)) return;
  session.Send(messages_.Mangled(std::move(bytes)), fds).IgnoreError();
  if (!session.Ended() && !session.Ended()) Note("Late", absl::InternalError("still open"));
}

std::string Fuzzer::Token() {
  if (session_ == nullptr) {
    auto session = std::make_unique<WireSession>(dir_ + "/session.sock");
    if (session->Greet(HelloOf("bad")).ok()) session_ = std::move(session);
  }
  switch (random_.Below(12)) {
    case 0:
      return random_.Bytes(40);
    case 1:
      return stale_;
    default:
      return session_ == nullptr ? "" : session_->token();
  }
}

void Fuzzer::Call(const MethodDescriptor* method) {
  const bool broker = method->service()->name() == "Broker";
  std::unique_ptr<Message> request(google::protobuf::MessageFactory::generated_factory()
                                       ->GetPrototype(method->input_type())
                                       ->New());
  messages_.set_polite(random_.OneIn(2));
  messages_.Fill(request.get());
  if (auto* attach = dynamic_cast<v1::AttachRequest*>(request.get());
      attach != nullptr && attach->wait_for_version() > 0) {
    attach->set_wait_ms(1 + random_.Below(20));
  }
  // For memory that this process holds itself.
  if (auto* resume = dynamic_cast<v1::ResumeRequest*>(request.get()); resume != nullptr) {
    resume->set_wait_ms(random_.Below(20));
  }
  // All of the device, of which the bystander has some.
  if (auto* acquire = dynamic_cast<v1::AcquireRequest*>(request.get());
      acquire != nullptr && messages_.polite() && random_.OneIn(8)) {
    acquire->Clear();
    acquire->set_bytes(256 * kMiB);
  }
  std::string bytes = request->SerializePartialAsString();
  if (!messages_.polite() && random_.OneIn(3)) bytes = messages_.Mangled(std::move(bytes));
  if (!messages_.polite() && random_.OneIn(20)) bytes = random_.Bytes(70000);
  const std::string token = Token();
  auto answer = CallBytes(broker ? api_ : admin_,
                          absl::StrCat("/", method->service()->full_name(), "/", method->name()),
                          bytes, broker ? token : "");
  absl::Status status = answer.status();
  // gRPC's own status, without a message, for unparsable input on the synchronous service.
  if (!broker && status.code() == absl::StatusCode::kInternal && status.message().empty()) {
    status = absl::InvalidArgumentError("");
  }
  Note(method->name(), status, /*words=*/broker);
  if (answer.ok() && session_ != nullptr && token == session_->token()) {
    Learn(method->name(), *answer, token);
  }
}

void Fuzzer::Learn(const std::string& method, const std::string& answer, const std::string& token) {
  v1::AcquireResponse acquired;  // the responses to Open, Attach and Resume begin so, too
  v1::ShareResponse shared;
  if (method == "Acquire" || method == "Open" || method == "Attach" || method == "Resume") {
    if (acquired.ParseFromString(answer)) {
      for (const v1::Lease& lease : acquired.leases()) messages_.AddLease(lease.lease_id());
    }
    std::vector<UniqueFd> fds;
    auto delivery = session_->Receive(&fds);
    if (!delivery.ok() || delivery->delivery().lease_ids_size() != acquired.leases_size() ||
        static_cast<int>(fds.size()) !=
            delivery->delivery().fd_lease_ids_size() + delivery->delivery().pool_ids_size()) {
      Note("Delivery", absl::InternalError(delivery.status().ToString()));
    }
  } else if (method == "OpenMemoryPage") {
    std::vector<UniqueFd> fds;
    auto delivery = session_->Receive(&fds);
    if (!delivery.ok() || !delivery->delivery().memory_page() || fds.size() != 1) {
      Note("Delivery of a page", absl::InternalError(delivery.status().ToString()));
    }
  } else if (method == "Share" && shared.ParseFromString(answer)) {
    messages_.AddTicket(shared.ticket());
    // While its lease lives, which is rarely long.
    const auto open = std::find_if(methods_.begin(), methods_.end(),
                                   [](const auto* each) { return each->name() == "Open"; });
    if (open != methods_.end() && random_.OneIn(2)) Call(*open);
  }
  messages_.ForgetOld();
  if (!random_.OneIn(200)) return;
  stale_ = token;  // after this; its memory lingers until this process is gone
  session_.reset();
}

void Fuzzer::Watch() {
  const auto context = ContextWith(Token());
  auto watch = v1::Broker::NewStub(api_)->Watch(context.get(), v1::WatchRequest());
  v1::Event event;
  const bool began = watch->Read(&event);
  context->TryCancel();
  const grpc::Status status = watch->Finish();
  // A session that has just ended may still have been there when the watch began.
  if (!began && status.error_code() != grpc::StatusCode::CANCELLED) {
    Note("Watch",
         absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
  }
}

void Fuzzer::ResetQuota() {
  v1::UnsetQuotaRequest request;
  request.set_tenant("bad");
  v1::GetQuotaResponse response;
  const grpc::Status status =
      v1::Admin::NewStub(admin_)->UnsetQuota(ContextWith().get(), request, &response);
  Note("Reset",
       absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
}

void Fuzzer::SendFrames() {
  std::string bytes = http2::Opening(static_cast<uint32_t>(messages_.Number()));
  for (uint64_t i = 0; i <= random_.Below(20); ++i) {
    const auto stream = static_cast<uint32_t>(1 + 2 * random_.Below(10));
    switch (random_.Below(3)) {
      case 0:
        bytes += http2::Headers(stream, "/gpumem.v1.Broker/Acquire", random_.OneIn(2));
        break;
      case 1:
        bytes += http2::Data(stream, random_.Bytes(30));
        break;
      default:
        bytes += http2::Frame(static_cast<uint8_t>(random_.Below(12)),
                              static_cast<uint8_t>(random_.Next()),
                              static_cast<uint32_t>(random_.Below(20)), random_.Bytes(30));
    }
  }
  if (random_.OneIn(3)) bytes = messages_.Mangled(std::move(bytes));
  WireSession session(dir_ + "/session.sock");
  UniqueFd socket;
  if (random_.OneIn(2)) {
    socket = ConnectStream(dir_ + (random_.OneIn(3) ? "/view.sock" : "/admin.sock"));
  } else if (session.Greet(HelloOf("")).ok()) {
    socket = session.TakeApi();
  }
  send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

}  // namespace gpumem::testing
