#include "tests/hostile/attacks.h"

#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "proto/gpumem/v1/session.pb.h"
#include "tests/hostile/door.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {
namespace {

constexpr char kListDevices[] = "/gpumem.v1.Broker/ListDevices";
constexpr char kAcquire[] = "/gpumem.v1.Broker/Acquire";
constexpr char kOpen[] = "/gpumem.v1.Broker/Open";
constexpr char kShare[] = "/gpumem.v1.Broker/Share";
constexpr char kRelease[] = "/gpumem.v1.Broker/Release";
constexpr char kPublish[] = "/gpumem.v1.Broker/Publish";
constexpr char kAttach[] = "/gpumem.v1.Broker/Attach";
constexpr char kReconcile[] = "/gpumem.v1.Broker/Reconcile";

constexpr uint32_t kStreams = 250;  // on one connection; the daemon allows 256
constexpr uint32_t kBatch = 253;    // segments in one call, as the protocol allows

bool Over(const Orders& orders) { return absl::Now() >= orders.deadline; }

// Between attempts that the daemon refuses at once.
void Pause() { absl::SleepFor(absl::Milliseconds(5)); }

// Keeps its resources until the end of the attack.
void HoldOn(const Orders& orders) { absl::SleepFor(orders.deadline - absl::Now()); }

// --- Control ------------------------------------------------------------------------------------

// Takes processor time, and leaves the daemon alone.
Tally Spin(const Orders& orders) {
  Tally tally;
  while (!Over(orders)) ++tally["rounds"];
  return tally;
}

// --- HTTP/2 -------------------------------------------------------------------------------------

// Eight connections, on each 250 requests of 1 MiB that lack their last byte.
Tally HalfSent(const Orders& orders) {
  struct Line {
    Seat seat;
    std::unique_ptr<Http2Client> client;
  };
  std::string message = GrpcMessage(std::string(size_t{1} << 20, '\x7f'));
  message.pop_back();
  const auto body = std::make_shared<const std::string>(std::move(message));
  std::vector<Line> lines(8);
  Tally tally;
  while (!Over(orders)) {
    for (Line& line : lines) {
      if (line.client == nullptr || line.client->closed()) {
        line = {};
        absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
        if (!seat.ok()) {
          ++tally["refused"];
          Pause();
          continue;
        }
        line.seat = *std::move(seat);
        line.client = std::make_unique<Http2Client>(std::move(line.seat.stream), line.seat.token);
        for (uint32_t i = 0; i < kStreams; ++i) line.client->Begin(kAcquire, body, /*end=*/false);
        ++tally["connections"];
      }
      const uint64_t before = line.client->unsent();
      line.client->Run([&] { return line.client->unsent() == 0; },
                       std::min(orders.deadline, absl::Now() + absl::Milliseconds(20)));
      tally["bytes"] += before - line.client->unsent();
    }
    if (std::all_of(lines.begin(), lines.end(), [](const Line& line) {
          return line.client != nullptr && line.client->unsent() == 0;
        })) {
      Pause();
    }
  }
  return tally;
}

// Connections that send `frame` again and again for as long as the daemon takes it, and never read.
Tally FloodUnread(const Orders& orders, absl::string_view frame, bool half_close) {
  constexpr size_t kMostHeld = 1500;
  constexpr size_t kMostSent = size_t{1} << 20;
  std::string flood;
  while (flood.size() < 64 * 1024) absl::StrAppend(&flood, frame);
  const std::string opening = absl::StrCat(kPreface, Frame(kSettings, 0, 0, ""), flood);
  std::vector<Seat> held;
  Tally tally;
  while (!Over(orders)) {
    absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
    if (!seat.ok()) {
      ++tally["refused"];
      // Another takes the place of the oldest.
      if (!held.empty()) held.erase(held.begin());
      Pause();
      continue;
    }
    ++tally["connections"];
    const int socket = seat->stream.get();
    absl::string_view left = opening;
    for (size_t total = 0; total < kMostSent && !Over(orders);) {
      const ssize_t sent = SendSome(socket, left);
      if (sent <= 0) break;  // it takes no more, or is closed
      total += static_cast<size_t>(sent);
      left.remove_prefix(static_cast<size_t>(sent));
      if (left.empty()) left = flood;
    }
    if (half_close) shutdown(socket, SHUT_WR);
    held.push_back(*std::move(seat));
    if (held.size() > kMostHeld) held.erase(held.begin());
  }
  return tally;
}

Tally SettingsFlood(const Orders& orders) {
  return FloodUnread(orders, Frame(kSettings, 0, 0, ""), /*half_close=*/true);
}

Tally PingFlood(const Orders& orders) {
  return FloodUnread(orders, Frame(kPing, 0, 0, "whatever"), /*half_close=*/false);
}

// CVE-2023-44487: as many connections as the daemon allows, on each calls that are reset at once.
Tally RapidReset(const Orders& orders) {
  constexpr size_t kConnections = 200;
  constexpr uint32_t kPairs = 64;
  struct Line {
    Seat seat;
    uint32_t stream = 1;
    std::string out = absl::StrCat(kPreface, Frame(kSettings, 0, 0, ""));
  };
  std::vector<Line> lines;
  absl::Time next_try = absl::Now();
  Tally tally;
  while (!Over(orders)) {
    if (lines.size() < kConnections && absl::Now() >= next_try) {
      absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
      if (seat.ok()) {
        lines.push_back({.seat = *std::move(seat)});
        ++tally["connections"];
      } else {
        ++tally["refused"];
        next_try = absl::Now() + absl::Milliseconds(20);
      }
    }
    bool idle = true;
    for (size_t i = 0; i < lines.size();) {
      Line& line = lines[i];
      if (line.out.empty()) {
        for (uint32_t pair = 0; pair < kPairs; ++pair, line.stream += 2) {
          line.out += CallHeaders(line.stream, kListDevices, line.seat.token);
          line.out += Frame(kRstStream, 0, line.stream, BigEndian(8, 4));  // CANCEL
        }
        tally["resets"] += kPairs;
      }
      const int socket = line.seat.stream.get();
      const ssize_t sent = SendSome(socket, line.out);
      if (sent > 0) line.out.erase(0, static_cast<size_t>(sent));
      idle = idle && sent == 0;
      if (sent < 0 || !DropInput(socket)) {
        ++tally["closed"];
        std::swap(line, lines.back());
        lines.pop_back();
      } else {
        ++i;
      }
    }
    if (idle) absl::SleepFor(absl::Milliseconds(1));
  }
  return tally;
}

// As many calls as allowed at a time, on as many connections as allowed, each answered and made
// again.
Tally CallStorm(const Orders& orders) {
  constexpr size_t kConnections = 200;
  struct Line {
    Seat seat;
    std::unique_ptr<Http2Client> client;
    uint64_t begun = 0;
  };
  const auto body = std::make_shared<const std::string>(GrpcMessage(""));
  std::vector<Line> lines;
  absl::Time next_try = absl::Now();
  Tally tally;
  while (!Over(orders)) {
    if (lines.size() < kConnections && absl::Now() >= next_try) {
      absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
      if (seat.ok()) {
        Line& line = lines.emplace_back();
        line.seat = *std::move(seat);
        line.client = std::make_unique<Http2Client>(std::move(line.seat.stream), line.seat.token);
        ++tally["connections"];
      } else {
        ++tally["refused"];
        next_try = absl::Now() + absl::Milliseconds(20);
      }
    }
    for (size_t i = 0; i < lines.size();) {
      Line& line = lines[i];
      const uint64_t before = line.client->answered();
      for (; line.begun < before + kStreams; ++line.begun) line.client->Begin(kListDevices, body);
      line.client->Run([&] { return line.client->answered() > before; },
                       std::min(orders.deadline, absl::Now() + absl::Milliseconds(1)));
      tally["answered"] += line.client->answered() - before;
      if (line.client->closed()) {
        ++tally["closed"];
        std::swap(line, lines.back());
        lines.pop_back();
      } else {
        ++i;
      }
    }
  }
  return tally;
}

// --- Calls --------------------------------------------------------------------------------------

// A session that makes calls.
struct Caller {
  Seat seat;
  std::unique_ptr<Http2Client> client;
};

std::optional<Caller> NewCaller(const Orders& orders, Tally* tally, bool reads = true) {
  absl::StatusOr<Seat> seat = TakeSeat(orders.runtime_dir);
  if (!seat.ok()) {
    ++(*tally)["refused_sessions"];
    Pause();
    return std::nullopt;
  }
  ++(*tally)["sessions"];
  Caller caller = {.seat = *std::move(seat)};
  caller.client = std::make_unique<Http2Client>(std::move(caller.seat.stream), caller.seat.token,
                                                reads ? caller.seat.session.get() : -1);
  return caller;
}

template <typename Response, typename Request>
absl::StatusOr<Response> Call(Caller& caller, const char* method, const Request& request,
                              absl::Time deadline) {
  absl::StatusOr<std::string> answer =
      caller.client->Call(method, request.SerializeAsString(), deadline);
  if (!answer.ok()) return answer.status();
  Response response;
  if (!response.ParseFromString(*answer)) return absl::DataLossError("no such message");
  return response;
}

// Calls that may not be answered before the attack is over.
absl::Time Patience(const Orders& orders) {
  return std::min(orders.deadline, absl::Now() + kPatience);
}

// One segment, one ticket, and that opened 253 times in each call, until it is refused; then with
// the next session.
Tally LeaseFlood(const Orders& orders) {
  Tally tally;
  std::vector<Caller> full;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    v1::AcquireRequest acquire;
    acquire.set_bytes(4096);
    auto acquired = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders));
    if (!acquired.ok()) continue;
    v1::ShareRequest share;
    share.set_lease_id(acquired->leases(0).lease_id());
    auto shared = Call<v1::ShareResponse>(*caller, kShare, share, Patience(orders));
    if (!shared.ok()) continue;
    v1::OpenRequest open;
    for (uint32_t i = 0; i < kBatch; ++i) open.add_tickets(shared->ticket());
    while (!Over(orders)) {
      auto opened = Call<v1::OpenResponse>(*caller, kOpen, open, Patience(orders));
      if (!opened.ok()) {
        ++tally["refused_opens"];
        break;
      }
      tally["leases"] += kBatch;
    }
    // It keeps its resources, and the next session goes on.
    full.push_back(*std::move(caller));
  }
  return tally;
}

// A publication of 1,012 segments, attached and released again and again.
Tally AttachMany(const Orders& orders) {
  Tally tally;
  std::optional<Caller> caller;
  while (!caller && !Over(orders)) caller = NewCaller(orders, &tally);
  if (!caller) return tally;
  v1::PublishRequest publish;
  publish.set_name("many");
  publish.set_ephemeral(true);
  for (int batch = 0; batch < 4; ++batch) {
    v1::AcquireRequest acquire;
    acquire.set_bytes(4096);
    acquire.set_count(kBatch);
    auto acquired = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, orders.deadline);
    if (!acquired.ok()) return tally;
    for (const v1::Lease& lease : acquired->leases()) publish.add_lease_ids(lease.lease_id());
  }
  if (!Call<v1::PublishResponse>(*caller, kPublish, publish, orders.deadline).ok()) return tally;
  tally["segments"] = static_cast<uint64_t>(publish.lease_ids_size());
  while (!Over(orders)) {
    v1::AttachRequest attach;
    attach.set_name("many");
    const absl::Time begin = absl::Now();
    auto attached = Call<v1::AttachResponse>(*caller, kAttach, attach, orders.deadline);
    if (!attached.ok()) break;
    ++tally["attached"];
    uint64_t& longest = tally["longest_ms"];
    longest = std::max<uint64_t>(
        longest, static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Now() - begin)));
    v1::ReleaseRequest release;
    for (const v1::Lease& lease : attached->leases()) release.add_lease_ids(lease.lease_id());
    if (!Call<v1::ReleaseResponse>(*caller, kRelease, release, orders.deadline).ok()) break;
  }
  return tally;
}

// A number as protobuf writes it.
std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value > 0x7f; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

// Sends as many ids as one request carries, of leases that the session does not have.
Tally IdFlood(const Orders& orders, const char* method) {
  constexpr uint32_t kIds = 380'000;
  constexpr uint64_t kFirst = 1 << 14;  // of three bytes each
  std::string ids;
  for (uint64_t id = kFirst; id < kFirst + kIds; ++id) ids += Varint(id);
  const auto body = std::make_shared<const std::string>(
      GrpcMessage(absl::StrCat("\x0a", Varint(ids.size()), ids)));  // field 1, packed
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    Http2Client& client = *caller->client;
    uint64_t begun = 0;
    while (!Over(orders) && !client.closed()) {
      constexpr uint64_t kAtOnce = 8;
      for (; begun < client.answered() + kAtOnce; ++begun) client.Begin(method, body);
      const uint64_t before = client.answered();
      client.Run([&] { return client.answered() > before; }, orders.deadline);
    }
    tally["calls"] += client.answered();
  }
  return tally;
}

Tally ReleaseFlood(const Orders& orders) { return IdFlood(orders, kRelease); }
Tally ReconcileFlood(const Orders& orders) { return IdFlood(orders, kReconcile); }

constexpr uint64_t kMostOfDevice = uint64_t{12} << 30;  // of 16 GiB

// 256 requests that wait for more than there will be on the first device.
Tally Wait(const Orders& orders) {
  constexpr int kWaiting = 256;
  v1::AcquireRequest acquire;
  acquire.set_bytes(uint64_t{8} << 30);
  acquire.set_wait_ms(120'000);
  acquire.set_without_pressure(true);
  const auto body = std::make_shared<const std::string>(GrpcMessage(acquire.SerializeAsString()));
  Tally tally;
  std::optional<Caller> caller;
  while (!caller && !Over(orders)) caller = NewCaller(orders, &tally);
  if (!caller) return tally;
  // Starts once ReleaseSlowly has taken most of the device, in another process.
  for (bool taken = false; !taken && !Over(orders);) {
    auto listed = Call<v1::ListDevicesResponse>(*caller, kListDevices, v1::ListDevicesRequest(),
                                                orders.deadline);
    taken = listed.ok() && listed->devices_size() > 0 &&
            listed->devices(0).charged_bytes() >= kMostOfDevice;
  }
  for (int i = 0; i < kWaiting; ++i) caller->client->Begin(kAcquire, body);
  caller->client->Run([] { return false; }, orders.deadline);
  tally["answered"] = caller->client->answered();
  tally["waiting"] = kWaiting - tally["answered"];
  return tally;
}

// Holds the most of the first device (16 GiB), and releases a little of it again and again.
Tally ReleaseSlowly(const Orders& orders) {
  Tally tally;
  std::optional<Caller> caller;
  while (!caller && !Over(orders)) caller = NewCaller(orders, &tally);
  if (!caller) return tally;
  v1::AcquireRequest acquire;
  acquire.set_bytes(4096);
  acquire.set_count(kBatch);
  auto small = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders));
  acquire.set_bytes(kMostOfDevice);
  acquire.set_count(1);
  auto large = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders));
  if (!small.ok() || !large.ok()) return tally;
  tally["holds"] = 1;
  for (const v1::Lease& lease : small->leases()) {
    if (Over(orders)) break;
    v1::ReleaseRequest release;
    release.add_lease_ids(lease.lease_id());
    tally["releases"] +=
        Call<v1::ReleaseResponse>(*caller, kRelease, release, orders.deadline).ok();
    absl::SleepFor(absl::Milliseconds(20));
  }
  HoldOn(orders);
  return tally;
}

// --- Sessions -----------------------------------------------------------------------------------

// Greetings that are none, and connections to the operators' socket, each closed at once.
Tally BadGreetings(const Orders& orders) {
  v1::Hello hello;
  hello.set_protocol_version(77);
  const std::string wrong = hello.SerializeAsString();
  Tally tally;
  while (!Over(orders)) {
    for (const char* name : {kSessionSocket, kSessionSocket, kSessionSocket, kAdminSocket}) {
      absl::StatusOr<UniqueFd> socket = Dial(orders.runtime_dir, name);
      if (!socket.ok()) {
        ++tally["refused"];
        Pause();
        continue;
      }
      send(socket->get(), wrong.data(), wrong.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      ++tally[name == kAdminSocket ? "operators" : "greetings"];
    }
  }
  return tally;
}

// All sessions that it can get, up to 256, kept.
Tally TakeSessions(const Orders& orders) {
  constexpr size_t kMost = 256;
  std::vector<Seat> held;
  Tally tally;
  while (!Over(orders)) {
    if (held.size() == kMost) {
      HoldOn(orders);
      break;
    }
    absl::StatusOr<Seat> seat = TakeSeat(orders.runtime_dir);
    if (seat.ok()) {
      held.push_back(*std::move(seat));
    } else {
      ++tally["refused"];
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  tally["sessions"] = held.size();
  return tally;
}

// Moves its session to a new connection over and over, with calls under way on the old one.
Tally Resume(const Orders& orders) {
  const auto body = std::make_shared<const std::string>(GrpcMessage(""));
  std::string token;
  std::optional<Caller> caller;
  Tally tally;
  while (!Over(orders)) {
    absl::StatusOr<Seat> seat = TakeSeat(orders.runtime_dir, token);
    if (!seat.ok()) {
      ++tally["refused"];
      token.clear();
      Pause();
      continue;
    }
    ++tally[token.empty() ? "sessions" : "resumed"];
    token = seat->token;
    // The old socket stays open until here: to close it ends the session.
    caller.emplace(Caller{.seat = *std::move(seat)});
    caller->client =
        std::make_unique<Http2Client>(std::move(caller->seat.stream), caller->seat.token);
    for (int i = 0; i < 8; ++i) caller->client->Begin(kListDevices, body);
    caller->client->Run([] { return false; }, absl::Now() + absl::Milliseconds(1));
  }
  return tally;
}

// Makes as many calls at once as a tenant may have. For each, the daemon sends a descriptor on the
// session's socket, which is never read.
Tally NeverRead(const Orders& orders) {
  constexpr uint64_t kAtOnce = 64;
  v1::AcquireRequest acquire;
  acquire.set_bytes(4096);
  const auto body = std::make_shared<const std::string>(GrpcMessage(acquire.SerializeAsString()));
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally, /*reads=*/false);
    if (!caller) continue;
    Http2Client& client = *caller->client;
    // Until the daemon has ended the session: then everything is refused.
    for (uint64_t begun = 0; !Over(orders) && client.answered() == client.granted();) {
      for (; begun < client.answered() + kAtOnce; ++begun) client.Begin(kAcquire, body);
      const uint64_t before = client.answered();
      if (!client.Run([&] { return client.answered() > before; }, orders.deadline)) break;
    }
    tally["granted"] += client.granted();
    tally["refused"] += client.answered() - client.granted();
  }
  return tally;
}

// Connections that say nothing, on every socket that it can reach.
Tally SayNothing(const Orders& orders) {
  constexpr size_t kMost = 600;
  std::vector<Seat> held;
  Tally tally;
  while (!Over(orders)) {
    if (held.size() >= kMost) held.erase(held.begin(), held.begin() + kMost / 2);
    absl::StatusOr<UniqueFd> session = Dial(orders.runtime_dir, kSessionSocket);
    absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
    tally["connections"] += session.ok() + seat.ok();
    tally["refused"] += !session.ok() + !seat.ok();
    if (!session.ok() || !seat.ok()) Pause();
    if (session.ok()) held.push_back({.session = *std::move(session)});
    if (seat.ok()) held.push_back(*std::move(seat));
  }
  return tally;
}

// Bytes that mean nothing, in packets and in streams.
Tally Garbage(const Orders& orders) {
  uint64_t state = 1;
  std::string noise(60'000, '\0');
  Tally tally;
  while (!Over(orders)) {
    for (char& c : noise) {
      state = state * 6364136223846793005 + 1442695040888963407;
      c = static_cast<char>(state >> 56);
    }
    absl::StatusOr<UniqueFd> session = Dial(orders.runtime_dir, kSessionSocket);
    absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
    if (session.ok()) send(session->get(), noise.data(), 1 + state % noise.size(), MSG_NOSIGNAL);
    if (seat.ok()) {
      // Some of it behind a proper opening.
      if (state % 2 == 0) SendSome(seat->stream.get(), kPreface);
      tally["bytes"] +=
          static_cast<uint64_t>(std::max<ssize_t>(0, SendSome(seat->stream.get(), noise)));
    }
    tally["connections"] += session.ok() + seat.ok();
    if (!session.ok() || !seat.ok()) Pause();
  }
  return tally;
}

}  // namespace

Attack FindAttack(const std::string& name) {
  static const std::map<std::string, Attack> all = {
      {"attach", AttachMany},
      {"bad-greetings", BadGreetings},
      {"call-storm", CallStorm},
      {"garbage", Garbage},
      {"half-sent", HalfSent},
      {"leases", LeaseFlood},
      {"never-read", NeverRead},
      {"ping-flood", PingFlood},
      {"rapid-reset", RapidReset},
      {"reconcile", ReconcileFlood},
      {"release", ReleaseFlood},
      {"release-slowly", ReleaseSlowly},
      {"resume", Resume},
      {"say-nothing", SayNothing},
      {"settings-flood", SettingsFlood},
      {"spin", Spin},
      {"take-sessions", TakeSessions},
      {"wait", Wait},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace gpumem::hostile
