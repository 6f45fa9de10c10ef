// Random and mangled messages of every type to all three sockets, from a seed. Whatever
// comes, the daemon answers with a documented status, goes on, and keeps nothing.
//
// GPUMEM_FUZZ_ROUNDS and GPUMEM_FUZZ_SEED ask for more than the default.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "tests/support/attack.h"
#include "tests/support/child.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using testing::Child;
using ::testing::HasSubstr;
using testing::kMiB;
using testing::WireSession;

// The same numbers from the same seed on every machine (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t end) { return Next() % end; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  template <typename T>
  const T& Of(const std::vector<T>& values) {
    return values[Below(values.size())];
  }
  std::string Bytes(size_t most) {
    std::string bytes(Below(most + 1), '\0');
    for (char& c : bytes) c = static_cast<char>(Next());
    return bytes;
  }

 private:
  uint64_t state_;
};

class Fuzzer {
 public:
  Fuzzer(std::string dir, uint64_t seed)
      : dir_(std::move(dir)),
        random_(seed),
        api_(testing::ChannelOfSession(dir_ + "/session.sock")),
        admin_(testing::ChannelTo(dir_ + "/admin.sock")) {
    for (const auto* file :
         {v1::AcquireRequest::descriptor()->file(), v1::GetStatusRequest::descriptor()->file()}) {
      for (int i = 0; i < file->service(0)->method_count(); ++i) {
        const MethodDescriptor* method = file->service(0)->method(i);
        // A drain would be obeyed, and stop the bystander's work.
        if (method->server_streaming() || method->name() == "Drain") continue;
        methods_.push_back(method);
      }
    }
  }

  // Statuses that nothing may answer with are written to `trouble()`.
  void Round() {
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

  const std::string& trouble() const { return trouble_; }
  std::string Summary() const { return absl::StrJoin(answers_, " ", absl::PairFormatter("=")); }

 private:
  void Note(const std::string& what, const absl::Status& status, bool words = true) {
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
        if (what == "Attach") return;  // no such version in time
        break;
      default:
        break;
    }
    if (trouble_.empty()) trouble_ = absl::StrCat(what, ": ", status.ToString());
  }

  // --- Values --------------------------------------------------------------------------

  // Every other message is a sensible one, so that there is something to break.
  uint64_t Number() {
    if (polite_)
      return leases_.empty() || random_.OneIn(2) ? random_.Below(5) : random_.Of(leases_);
    switch (random_.Below(6)) {
      case 0:
        return random_.Of(std::vector<uint64_t>{0, 1, 2, 253, 254, UINT32_MAX, UINT64_MAX,
                                                uint64_t{1} << 63, 256 * kMiB, 256 * kMiB + 1,
                                                2 * kMiB, 2 * kMiB + 1, 64 * kMiB});
      case 1:
      case 2:
        return leases_.empty() ? 1 : random_.Of(leases_);
      case 3:
        return random_.Next() >> random_.Below(64);
      default:
        return 1 + random_.Below(4);
    }
  }

  std::string Text(const FieldDescriptor* field) {
    if (polite_ && field->name() == "handle")
      return std::string(64, static_cast<char>(random_.Below(256)));
    if (polite_ && field->containing_type() == v1::RegisterIpcEventRequest::descriptor()) {
      return field->name() == "name" ? absl::StrCat("event ", random_.Below(9))
                                     : "HOST-00000000-0000-0000-0000-000000000000";
    }
    if (polite_ && field->name() == "name") {
      return absl::StrCat(random_.OneIn(2) ? "bad/" : "", "p", random_.Below(4));
    }
    if (polite_) return field->name() == "tenant" ? "bad" : "";
    switch (random_.Below(8)) {
      case 0: {
        std::string text = random_.Bytes(70);
        for (char& c : text) c &= 0x7f;  // mangling makes invalid UTF-8
        return text;
      }
      case 1:
        return std::string(random_.Below(70000), 'x');
      case 2:
        return "HOST-00000000-0000-0000-0000-000000000000";
      case 3:
        return random_.Of(
            std::vector<std::string>{"limit_bytes", "max_segments", "devices", "scrub"});
      case 4:
        return random_.Of(std::vector<std::string>{"other", "nobody", "GPU-0", "\n"});
      case 5:
        return "bad";
      default:
        return "";
    }
  }

  std::string Ticket() {
    if (!polite_ && random_.OneIn(10)) return random_.Bytes(40);
    if (tickets_.empty() || random_.OneIn(20)) return std::string(32, 't');
    return random_.Of(tickets_);
  }

  void Fill(Message* message, int depth = 0) {
    const auto* reflection = message->GetReflection();
    const auto* type = message->GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      if (random_.OneIn(3) && !(polite_ && field->name() == "tenant")) continue;
      if (field->is_repeated()) {
        const uint64_t count = random_.OneIn(20) ? random_.Below(300) : random_.Below(4);
        for (uint64_t n = 0; n < count; ++n) Add(message, reflection, field, depth);
      } else {
        Set(message, reflection, field, depth);
      }
    }
  }

  void Set(Message* message, const google::protobuf::Reflection* reflection,
           const FieldDescriptor* field, int depth) {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT64:
        // A guarantee to it rightly takes memory from the bystander.
        if (field->name() == "guarantee_bytes") {
          return reflection->SetUInt64(message, field, Number() % (8 * kMiB));
        }
        return reflection->SetUInt64(message, field, Number());
      case FieldDescriptor::CPPTYPE_UINT32:
        return reflection->SetUInt32(message, field, static_cast<uint32_t>(Number()));
      case FieldDescriptor::CPPTYPE_BOOL:
        return reflection->SetBool(message, field, random_.OneIn(2));
      case FieldDescriptor::CPPTYPE_ENUM:
        return reflection->SetEnumValue(
            message, field,
            static_cast<int>(polite_ || !random_.OneIn(4)
                                 ? random_.Below(field->enum_type()->value_count())
                                 : random_.Next()));
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection->SetString(message, field, Text(field));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth < 3) Fill(reflection->MutableMessage(message, field), depth + 1);
        return;
      default:
        return;
    }
  }

  void Add(Message* message, const google::protobuf::Reflection* reflection,
           const FieldDescriptor* field, int depth) {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT64:
        return reflection->AddUInt64(message, field, Number());
      case FieldDescriptor::CPPTYPE_STRING:
        return reflection->AddString(message, field,
                                     field->name() == "tickets" ? Ticket() : Text(field));
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Fill(reflection->AddMessage(message, field), depth + 1);
      default:
        return;
    }
  }

  std::string Mangled(std::string bytes) {
    for (uint64_t i = 0; i <= random_.Below(4); ++i) {
      const size_t at = bytes.empty() ? 0 : random_.Below(bytes.size());
      switch (random_.Below(5)) {
        case 0:
          if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random_.Below(8)));
          break;
        case 1:
          bytes.resize(at);
          break;
        case 2:
          bytes.insert(at, random_.Bytes(10));
          break;
        case 3:
          bytes += bytes.substr(0, 30000);
          break;
        default:
          if (!bytes.empty()) bytes.erase(at, random_.Below(10));
      }
    }
    return bytes;
  }

  // --- The session socket --------------------------------------------------------------

  void Greet() {
    v1::Hello hello = testing::HelloOf("bad");
    polite_ = random_.OneIn(4);
    if (random_.OneIn(2)) Fill(&hello);
    std::string bytes = hello.SerializePartialAsString();
    if (random_.OneIn(2)) bytes = Mangled(std::move(bytes));
    bytes.resize(std::min(bytes.size(), kMaxMessageBytes + 10));
    const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
    const std::vector<int> fds(random_.OneIn(4) ? 1 + random_.Below(3) : 0, null.get());
    WireSession session(dir_ + "/session.sock");
    if (!session.Send(bytes, fds).ok() || random_.OneIn(8)) return;  // closed unheard
    const absl::Status met = session.Answer();
    Note("Hello", met);
    if (!met.ok() || random_.OneIn(3)) return;
    session.Send(Mangled(std::move(bytes)), fds).IgnoreError();
    if (!session.Ended() && !session.Ended()) Note("Late", absl::InternalError("still open"));
  }

  // Returns the session for calls; a new one if there is none.
  std::string Token() {
    if (session_ == nullptr) {
      auto session = std::make_unique<WireSession>(dir_ + "/session.sock");
      if (session->Greet(testing::HelloOf("bad")).ok()) session_ = std::move(session);
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

  // --- Calls -----------------------------------------------------------------------------

  void Call(const MethodDescriptor* method) {
    const bool broker = method->service()->name() == "Broker";
    std::unique_ptr<Message> request(google::protobuf::MessageFactory::generated_factory()
                                         ->GetPrototype(method->input_type())
                                         ->New());
    polite_ = random_.OneIn(2);
    Fill(request.get());
    if (auto* attach = dynamic_cast<v1::AttachRequest*>(request.get());
        attach != nullptr && attach->wait_for_version() > 0) {
      attach->set_wait_ms(1 + random_.Below(20));
    }
    // All of the device, of which the bystander has some.
    if (auto* acquire = dynamic_cast<v1::AcquireRequest*>(request.get());
        acquire != nullptr && polite_ && random_.OneIn(8)) {
      acquire->Clear();
      acquire->set_bytes(256 * kMiB);
    }
    std::string bytes = request->SerializePartialAsString();
    if (!polite_ && random_.OneIn(3)) bytes = Mangled(std::move(bytes));
    if (!polite_ && random_.OneIn(20)) bytes = random_.Bytes(70000);
    const std::string token = Token();
    auto answer =
        testing::CallBytes(broker ? api_ : admin_,
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

  // Keeps an answer's values for later requests.
  void Learn(const std::string& method, const std::string& answer, const std::string& token) {
    v1::AcquireResponse acquired;  // OpenResponse and AttachResponse begin so, too
    v1::ShareResponse shared;
    if (method == "Acquire" || method == "Open" || method == "Attach") {
      if (acquired.ParseFromString(answer)) {
        for (const v1::Lease& lease : acquired.leases()) leases_.push_back(lease.lease_id());
      }
      std::vector<UniqueFd> fds;
      auto delivery = session_->Receive(&fds);
      if (!delivery.ok() || delivery->delivery().lease_ids_size() != acquired.leases_size() ||
          static_cast<int>(fds.size()) !=
              delivery->delivery().fd_lease_ids_size() + delivery->delivery().pool_ids_size()) {
        Note("Delivery", absl::InternalError(delivery.status().ToString()));
      }
    } else if (method == "Share" && shared.ParseFromString(answer)) {
      tickets_.push_back(shared.ticket());
    }
    // The old ones have mostly been released.
    if (leases_.size() > 32) leases_.erase(leases_.begin(), leases_.begin() + 16);
    if (tickets_.size() > 8) tickets_.erase(tickets_.begin(), tickets_.begin() + 4);
    if (!random_.OneIn(200)) return;
    stale_ = token;  // after this; its memory lingers until this process is gone
    session_.reset();
  }

  void Watch() {
    const auto context = testing::ContextWith(Token());
    auto watch = v1::Broker::NewStub(api_)->Watch(context.get(), v1::WatchRequest());
    v1::Event event;
    const bool began = watch->Read(&event);
    context->TryCancel();
    const grpc::Status status = watch->Finish();
    // A session that has just ended may still have been there when the watch began.
    if (!began && status.error_code() != grpc::StatusCode::CANCELLED) {
      Note("Watch", absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                 status.error_message()));
    }
  }

  // Now and then restores the quota that the fuzzer has reduced by SetQuota.
  void ResetQuota() {
    v1::UnsetQuotaRequest request;
    request.set_tenant("bad");
    v1::GetQuotaResponse response;
    const grpc::Status status =
        v1::Admin::NewStub(admin_)->UnsetQuota(testing::ContextWith().get(), request, &response);
    Note("Reset",
         absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
  }

  // --- Frames ----------------------------------------------------------------------------

  void SendFrames() {
    namespace http2 = testing::http2;
    std::string bytes = http2::Opening(static_cast<uint32_t>(Number()));
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
    if (random_.OneIn(3)) bytes = Mangled(std::move(bytes));
    WireSession session(dir_ + "/session.sock");
    UniqueFd socket;
    if (random_.OneIn(2)) {
      socket = testing::ConnectStream(dir_ + "/admin.sock");
    } else if (session.Greet(testing::HelloOf("")).ok()) {
      socket = session.TakeApi();
    }
    send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  const std::string dir_;
  Random random_;
  const std::shared_ptr<grpc::Channel> api_, admin_;
  std::vector<const MethodDescriptor*> methods_;
  std::unique_ptr<WireSession> session_;
  bool polite_ = false;
  std::string stale_;
  std::vector<uint64_t> leases_;
  std::vector<std::string> tickets_;
  std::map<std::string, int> answers_;
  std::string trouble_;
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

using Fuzz = testing::AttackTest;

TEST_F(Fuzz, NothingThatIsSaidBreaksTheDaemon) {
  const uint64_t rounds = FromEnvironment("GPUMEM_FUZZ_ROUNDS", 8000);
  const uint64_t seed = FromEnvironment("GPUMEM_FUZZ_SEED", 1);
  // Other processes: the memory held at the end of one goes with it, and makes room for the next.
  constexpr uint64_t kRoundsOfOne = 500;
  std::string answers;
  for (uint64_t done = 0; done < rounds; done += kRoundsOfOne) {
    Child fuzzer = Child::Self({"--role", "fuzz", daemon_->runtime_dir(), absl::StrCat(seed + done),
                                absl::StrCat(kRoundsOfOne)});
    auto word = ReceiveMessage(fuzzer.channel(), absl::Now() + absl::Minutes(5));
    ASSERT_OK(word);
    ASSERT_THAT(word->bytes, HasSubstr("trouble: none;")) << "seed " << seed + done;
    absl::StrAppend(&answers, word->bytes, " ");
    EXPECT_EQ(fuzzer.Wait(), 0);
  }
  // They have got somewhere.
  for (const char* answer : {"Acquire:OK", "Open:OK", "Share:OK", "Release:OK", "GetUsage:OK",
                             "Hello:OK", "ListSegments:OK", "SetQuota:OK", "Trim:OK",
                             "RegisterIpcEvent:OK", "ListPools:OK", "Acquire:INVALID_ARGUMENT",
                             "Acquire:RESOURCE_EXHAUSTED", "Open:NOT_FOUND", "Release:NOT_FOUND"}) {
    EXPECT_THAT(answers, HasSubstr(answer));
  }
}

int RunFuzzer(const std::string& dir, uint64_t seed, uint64_t rounds) {
  Fuzzer fuzzer(dir, seed);
  uint64_t round = 0;
  while (round < rounds && fuzzer.trouble().empty()) {
    fuzzer.Round();
    ++round;
  }
  const std::string trouble =
      fuzzer.trouble().empty() ? "none" : absl::StrCat("in round ", round, ", ", fuzzer.trouble());
  const std::string word = absl::StrCat("trouble: ", trouble, "; ", fuzzer.Summary());
  return SendMessage(3, word, {}, absl::InfiniteFuture()).ok() ? 0 : 1;
}

}  // namespace

int RunRole(char** args) {
  uint64_t seed, rounds;
  if (!absl::SimpleAtoi(args[1], &seed) || !absl::SimpleAtoi(args[2], &rounds)) return 2;
  return RunFuzzer(args[0], seed, rounds);
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--role") return gpumem::RunRole(argv + 3);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
