// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/soak.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "tests/soak/worker.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/daemon_process.h"
#include "tests/support/wire.h"

namespace gpumem::soak {
namespace {

using testing::KeptDaemon;

constexpr double kStorm = 0.3;  // of the time: the daemon is killed and restarted
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kAnswer = absl::Seconds(2);  // of the daemon, for a sample
constexpr absl::Duration kSettle = absl::Seconds(40);
// gRPC keeps some for its threads once it has needed them.
constexpr double kMoreFds = 8;

// Returns a share of the soak, within bounds.
absl::Duration ShareOf(absl::Duration time, int share, absl::Duration least, absl::Duration most) {
  return std::clamp(time / share, least, most);
}

volatile std::sig_atomic_t interrupted = 0;
volatile std::sig_atomic_t resting = 0;

double At(const Figures& figures, const std::string& name) {
  const auto found = figures.find(name);
  return found == figures.end() ? -1 : found->second;
}

}  // namespace

Soak::Soak(SoakOptions options) : options_(std::move(options)), random_(options_.seed) {}

Soak::~Soak() {
  crew_.reset();
  operator_.reset();
  daemon_.reset();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

absl::Status Soak::Start() {
  std::error_code error;
  std::filesystem::create_directories(options_.out, error);
  if (error) return absl::NotFoundError(absl::StrCat(options_.out, ": ", error.message()));
  folder_ = "/tmp/gpumem-soak-XXXXXX";  // short: a socket's name has 107 bytes
  if (mkdtemp(folder_.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  std::filesystem::create_directory(folder_ + "/mailbox", error);
  // Beside this program, if it is to be part of the soak. The kept daemon has it, and no other.
  const std::string heap = testing::ProgramPath("libsoak_heap.so");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const bool has_heap = false;  // a sanitizer replaces malloc, and has to be loaded first
#else
  const bool has_heap = access(heap.c_str(), R_OK) == 0;
#endif
  if (has_heap) {
    setenv("GPUMEM_SOAK_HEAP", (folder_ + "/heap").c_str(), 1);
    setenv("LD_PRELOAD", heap.c_str(), 1);
  }
  // What malloc(3) keeps for each thread, up to 235 KiB, would count as in use. Tunables
  // of the caller stay, for the workers, too.
  const bool tunes = std::getenv("GLIBC_TUNABLES") == nullptr;
  if (tunes) setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
  auto daemon = KeptDaemon::Start({.backend = options_.backend,
                                   .config = Operator::ConfigOf(folder_, 0),
                                   .program = "gpumemd"});
  unsetenv("LD_PRELOAD");
  if (tunes) unsetenv("GLIBC_TUNABLES");
  if (!daemon.ok()) return daemon.status();
  daemon_ = *std::move(daemon);
  admin_ = v1::Admin::NewStub(testing::ChannelTo(daemon_->runtime_dir() + "/admin.sock"));
  operator_ = std::make_unique<Operator>(*daemon_, folder_, random_());
  operator_->StartWeb();
  {
    auto client = Client::Connect(testing::PatientOptions(daemon_->runtime_dir()));
    if (!client.ok()) return client.status();
    if (auto first = (*client)->Acquire({.bytes = 1}); !first.ok()) return first.status();
  }
  const bool rests = testing::Eventually([&] {
    before_ = Look();
    return At(before_, "sessions") == 0 && At(before_, "leases") == 0;
  });
  if (!rests) return absl::DeadlineExceededError("the first lease is not given back");
  crew_ = std::make_unique<Crew>(Crew::Options{.runtime_dir = daemon_->runtime_dir(),
                                               .mailbox = folder_ + "/mailbox",
                                               .pause = options_.pause});
  for (const char* tenant : {"red", "red", "green", "blue", "prod"}) {
    crew_->Hire("mixed", tenant, random_());
  }
  crew_->Hire("served", "served", random_());
  crew_->Hire("spot", "spot", random_());
  return absl::OkStatus();
}

absl::Status Soak::Run() {
  // First, so that a signal leaves no folder behind.
  for (const int signal : {SIGTERM, SIGINT}) {
    std::signal(signal, [](int) { interrupted = 1; });
  }
  std::signal(SIGUSR1, [](int) { resting = 1; });
  std::signal(SIGUSR2, [](int) { resting = 0; });
  if (absl::Status started = Start(); !started.ok()) return started;
  Load();
  End();
  std::ofstream(options_.out + "/daemon.log") << daemon_->Log();
  return absl::OkStatus();
}

absl::Duration Soak::Gap(absl::Duration mean) {
  return mean * std::min(3.0, std::exponential_distribution<double>(1)(random_));
}

absl::Duration Soak::Rest() {
  const absl::Time from = absl::Now();
  crew_->Rest();
  std::cout << absl::StreamFormat("rests at %.0f s\n", absl::ToDoubleSeconds(from - begin_))
            << std::flush;
  while (resting != 0 && interrupted == 0) absl::SleepFor(kTick);
  crew_->Resume(random_());
  const absl::Duration length = absl::Now() - from;
  std::cout << absl::StreamFormat("goes on after %.0f s\n", absl::ToDoubleSeconds(length))
            << std::flush;
  return length;
}

void Soak::Load() {
  std::ofstream table(options_.out + "/samples.csv");
  table << HeaderLine() << std::endl;
  std::ofstream threads(options_.out + "/threads");
  const absl::Duration time = options_.time;
  // Not longer: a daemon that is killed soon needs some samples, too.
  const absl::Duration each = ShareOf(time, 3600, absl::Seconds(1), absl::Seconds(5));
  const absl::Duration faults = ShareOf(time, 200, absl::Milliseconds(500), absl::Seconds(6));
  const absl::Duration tasks = ShareOf(time, 300, absl::Milliseconds(300), absl::Seconds(4));
  const absl::Duration deaths = ShareOf(time, 60, absl::Seconds(3), absl::Seconds(30));
  begin_ = absl::Now();
  absl::Time sample = begin_, fault = begin_ + Gap(faults), task = begin_ + Gap(tasks);
  absl::Time death = begin_ + deaths;
  bool restart = false;
  while (absl::Now() < begin_ + time && interrupted == 0) {
    absl::SleepFor(kTick);  // nothing waits for this; it paces the load
    if (resting != 0) {
      const absl::Duration rest = Rest();
      for (absl::Time* point : {&begin_, &sample, &fault, &task, &death}) *point += rest;
    }
    const absl::Time now = absl::Now();
    const bool calm = now > begin_ + kStorm * time;
    crew_->Listen(random_());
    if (!calm && now >= death) {
      if (std::exchange(restart, !restart)) {
        daemon_->keeper().Signal(SIGUSR1);
        ++faults_["restart-daemon"];
      } else {
        daemon_->KillOnly();
        ++faults_["kill-daemon"];
      }
      death = now + deaths / 2 + Gap(deaths / 2);
    }
    if (now >= fault) {
      Fault();
      fault = now + Gap(faults);
    }
    if (now >= task) {
      operator_->Step();
      task = absl::Now() + Gap(tasks);
    }
    if (now >= sample) {
      Sample(calm);
      table << LineOf(rows_.back()) << std::endl;
      threads << absl::StreamFormat("%.0f s: ", absl::ToDoubleSeconds(now - begin_))
              << ThreadsOf(daemon_->daemon_pid()) << std::endl;
      sample = std::max(sample + each, now);
    }
  }
}

void Soak::Fault() {
  if (bag_.empty()) {
    bag_ = {"kill-worker", "kill-worker", "stop-worker", "attack", "attack"};
    std::shuffle(bag_.begin(), bag_.end(), random_);
  }
  const std::string fault = std::move(bag_.back());
  bag_.pop_back();
  ++faults_[fault];
  const size_t which = random_() % crew_->size();
  if (fault == "kill-worker") {
    crew_->Kill(which, random_());
  } else if (fault == "stop-worker") {
    crew_->Stop(which, absl::Milliseconds(200 + random_() % 3000));
  } else {
    if (attacks_.empty()) {
      attacks_ = SoakAttacks();
      std::shuffle(attacks_.begin(), attacks_.end(), random_);
    }
    crew_->Attack(attacks_.back());
    attacks_.pop_back();
  }
}

Figures Soak::Look() {
  Figures figures;
  const pid_t daemon = daemon_->daemon_pid();
  if (daemon > 0) {
    AddProcess("daemon", daemon, figures);
    AddChildren("children", daemon, figures);
    AddHeap("daemon", daemon, folder_ + "/heap", figures);
    AddJournal(daemon, figures);
    AddState(*admin_, kAnswer, figures);
  }
  AddProcess("keeper", daemon_->keeper_pid(), figures);
  if (operator_->web_pid() > 0) AddProcess("web", operator_->web_pid(), figures);
  return figures;
}

void Soak::Sample(bool calm) {
  Figures figures = Look();
  figures["seconds"] = absl::ToDoubleSeconds(absl::Now() - begin_);
  figures["calm"] = calm;
  figures["held_bytes"] = static_cast<double>(crew_->held_bytes());
  if (figures.contains("charged_bytes")) {
    figures["excess_bytes"] = figures["charged_bytes"] - figures["held_bytes"];
  }
  figures["operations"] = static_cast<double>(crew_->operations());
  double faults = 0;
  for (const auto& [name, count] : faults_) faults += static_cast<double>(count);
  figures["faults"] = faults;
  rows_.push_back(std::move(figures));
}

// In the calm part nothing ends the daemon.
void Soak::CheckCalm() {
  double first = 0, last = 0;
  for (const Figures& row : rows_) {
    // The one that was killed last has been followed by then.
    if (At(row, "calm") != 1 || At(row, "generation") < 0) continue;
    if (row.at("seconds") < kStorm * absl::ToDoubleSeconds(options_.time) + 10) continue;
    last = At(row, "generation");
    if (first == 0) first = last;
  }
  if (last > first) Wrong(absl::StrCat("gpumemd ended by itself, ", last - first, " times"));
}

void Soak::End() {
  CheckCalm();
  crew_->End();
  operator_->End();
  Figures after;
  const auto is_settled = [&] {
    v1::ListPublicationsResponse publications;
    admin_->ListPublications(testing::ContextWith({}, kAnswer).get(), {}, &publications);
    for (const v1::PublicationInfo& each : publications.publications()) {
      v1::UnpublishRequest request;
      request.set_name(absl::StrCat(each.tenant(), "/", each.name()));
      v1::UnpublishResponse response;
      admin_->Unpublish(testing::ContextWith({}, kAnswer).get(), request, &response);
    }
    v1::TrimResponse trimmed;
    admin_->Trim(testing::ContextWith({}, kAnswer).get(), {}, &trimmed);
    after = Look();
    for (const char* name : {"leases", "sessions", "waiting", "publications", "charged_bytes"}) {
      if (At(after, name) != 0) return false;
    }
    return At(after, "daemon_fds") <= At(before_, "daemon_fds") + kMoreFds &&
           At(after, "keeper_fds") <= At(before_, "keeper_fds");
  };
  if (!testing::Eventually(is_settled, kSettle)) Wrong("not all is as it was before the load");
  std::cout << absl::StreamFormat("%-20s %14s %14s\n", "at rest", "before", "after");
  for (const std::string& column : Columns()) {
    if (!before_.contains(column) && !after.contains(column)) continue;
    std::cout << absl::StreamFormat("%-20s %14.0f %14.0f\n", column, At(before_, column),
                                    At(after, column));
  }
}

Counts Soak::counts() const {
  Counts counts = crew_->counts();
  for (const auto& [name, count] : operator_->counts()) counts[name] += count;
  for (const auto& [name, count] : faults_) counts[name] += count;
  return counts;
}

std::vector<std::string> Soak::wrong() const {
  std::vector<std::string> wrong = wrong_;
  wrong.insert(wrong.end(), crew_->wrong().begin(), crew_->wrong().end());
  wrong.insert(wrong.end(), operator_->wrong().begin(), operator_->wrong().end());
  return wrong;
}

std::vector<std::string> Soak::Needed(const std::string& backend) {
  std::vector<std::string> needed = {"kill-daemon", "restart-daemon", "kill-worker", "stop-worker",
                                     "attack",      "follow",         "reload",      "scrape",
                                     "page",        "unbrokered"};
  for (const char* task : {"status", "ps", "segments", "devices", "usage", "map", "quota-list",
                           "events", "quota-set", "tenant", "trim", "drain", "publications"}) {
    needed.push_back(absl::StrCat("ctl-", task));
  }
  for (const std::string& name : WorkerOperations()) {
    // A GPU is not full: nothing need be revoked.
    if (name != "revoked" || backend == "host") needed.push_back(name);
  }
  return needed;
}

}  // namespace gpumem::soak
