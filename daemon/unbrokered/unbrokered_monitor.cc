// SPDX-License-Identifier: Apache-2.0
#include "daemon/unbrokered/unbrokered_monitor.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "common/start_thread.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/views.h"
#include "daemon/transport/peer/peer.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

using gpumem::FormatBytes;
using gpumem::UniqueFd;

// The facts known before the driver is asked.
struct Before {
  std::vector<std::string> devices;
  std::set<pid_t> own;  // the daemon's processes
  std::vector<SessionProcess> sessions;
};

// The driver's answers afterwards.
struct Answer {
  std::vector<DeviceProcess> processes;
  absl::Status trouble;              // of the first device that it does not answer for
  std::set<std::string> unanswered;  // the devices
};

Before LookAround(const Broker& broker) {
  Before before;
  before.own.insert(getpid());
  for (const BrokerViews::DeviceView& device : broker.views().Devices(/*ask_driver=*/false)) {
    if (IsHostMemory(device.info)) continue;
    before.devices.push_back(device.info.uuid);
    if (device.context_pid != 0) before.own.insert(device.context_pid);
    if (device.copier_pid != 0) before.own.insert(device.copier_pid);
  }
  const auto sessions = broker.views().ListSessions("");
  if (!sessions.ok()) return before;
  for (const SessionView& session : *sessions) {
    const PeerIdentity& peer = session.details.peer;
    before.sessions.push_back({session.id, session.tenant, peer.pid, peer.start_time,
                               session.driver_bytes, session.overhead_bytes});
  }
  return before;
}

// May take for ever.
Answer AskDriver(ProcessMemory& source, const Before& before) {
  Answer answer;
  for (const std::string& device : before.devices) {
    absl::StatusOr<std::vector<ProcessBytes>> sample = source.Sample(device);
    if (!sample.ok()) {
      answer.trouble.Update(sample.status());
      answer.unanswered.insert(device);
      continue;
    }
    for (const ProcessBytes& process : *sample) {
      if (before.own.count(process.pid) > 0) continue;
      answer.processes.push_back(
          {.device_uuid = device, .pid = process.pid, .bytes = process.bytes});
    }
  }
  for (DeviceProcess& process : answer.processes) {
    if (process.pid <= 0) continue;
    process.start_time = StartTimeOf(process.pid);
    process.command = CommandOf(process.pid);
  }
  return answer;
}

// Returns the bytes of the broker's memory that the processes were given, by pid and device.
std::map<std::pair<pid_t, std::string>, uint64_t> Mapped(const Broker& broker,
                                                         const Before& before) {
  std::map<SessionId, pid_t> pid_of;
  for (const SessionProcess& session : before.sessions) pid_of[session.session] = session.pid;
  std::map<std::pair<pid_t, std::string>, uint64_t> mapped;
  const auto segments = broker.views().ListSegments("", "");
  if (!segments.ok()) return mapped;
  for (const SegmentView& segment : *segments) {
    std::set<pid_t> pids;
    for (const SessionId session : segment.sessions) {
      if (auto it = pid_of.find(session); it != pid_of.end()) pids.insert(it->second);
    }
    for (const pid_t pid : pids) mapped[{pid, segment.device_uuid}] += segment.bytes;
  }
  return mapped;
}

bool IsGone(const UniqueFd& pidfd) {
  pollfd gone = {pidfd.get(), POLLIN, 0};
  return poll(&gone, 1, 0) == 1;
}

}  // namespace

struct UnbrokeredMonitor::State {
  State(Broker* the_broker, std::shared_ptr<ProcessMemory> the_source,
        UnbrokeredMonitorOptions the_options)
      : broker(the_broker),
        source(std::move(the_source)),
        options(std::move(the_options)),
        config(options.config) {}

  // A process that is being ended.
  struct Sentence {
    UnbrokeredUse use;
    UniqueFd process;
    absl::Time kill_at;
    bool killed = false;
  };
  using ProcessKey = std::pair<pid_t, uint64_t>;

  // Invalid once `stopping`: then only `source` may be used.
  Broker* const broker;
  const std::shared_ptr<ProcessMemory> source;
  const UnbrokeredMonitorOptions options;

  absl::Mutex mutex;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool done ABSL_GUARDED_BY(mutex) = false;  // the thread has nothing more to do
  bool changed ABSL_GUARDED_BY(mutex) = false;
  UnbrokeredConfig config ABSL_GUARDED_BY(mutex);
  UnbrokeredOffenders offenders ABSL_GUARDED_BY(mutex);
  SteadyOverheads steady ABSL_GUARDED_BY(mutex);
  std::map<ProcessKey, Sentence> sentences ABSL_GUARDED_BY(mutex);
  std::vector<DeviceProcess> foreign ABSL_GUARDED_BY(mutex);
  std::string trouble ABSL_GUARDED_BY(mutex);      // that was last logged
  bool stray_pids ABSL_GUARDED_BY(mutex) = false;  // in the last sample
  bool published ABSL_GUARDED_BY(mutex) = false;   // the broker was told of something
  bool nobody ABSL_GUARDED_BY(mutex) = false;      // had a session at the last look
  bool is_quiet ABSL_GUARDED_BY(mutex) = false;    // no client has used the daemon since
  uint64_t last_activity ABSL_GUARDED_BY(mutex) = 0;

  void Digest(const Before& before, Answer answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool PidsAreOurs(const Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void TellTrouble(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void React(const std::vector<UnbrokeredUse>& uses) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void End(const UnbrokeredUse& use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Audit(const UnbrokeredUse& use, const char* signal) const;
  void FollowUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Duration UntilNextLook() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

absl::StatusOr<std::unique_ptr<UnbrokeredMonitor>> UnbrokeredMonitor::Start(
    Broker* broker, std::shared_ptr<ProcessMemory> source, UnbrokeredMonitorOptions options) {
  std::unique_ptr<UnbrokeredMonitor> monitor(new UnbrokeredMonitor(
      std::make_shared<State>(broker, std::move(source), std::move(options))));
  // The thread has a share in the state, for the case that it is left behind.
  absl::StatusOr<std::thread> thread =
      gpumem::StartThread([state = monitor->state_] { Run(*state); });
  if (!thread.ok()) {
    absl::MutexLock lock(&monitor->state_->mutex);
    monitor->state_->done = true;
    return thread.status();
  }
  monitor->thread_ = *std::move(thread);
  return monitor;
}

UnbrokeredMonitor::~UnbrokeredMonitor() {
  bool done = false;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->stopping = true;
    done = state_->mutex.AwaitWithTimeout(absl::Condition(&state_->done), state_->options.patience);
  }
  if (!thread_.joinable()) return;
  if (done) {
    thread_.join();
    return;
  }
  spdlog::warn(
      "the driver does not answer the query of memory by process: continuing without the answer");
  thread_.detach();
}

void UnbrokeredMonitor::Configure(const UnbrokeredConfig& config) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->config == config) return;
  state_->config = config;
  state_->changed = true;
}

std::vector<DeviceProcess> UnbrokeredMonitor::Foreign() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->foreign;
}

void UnbrokeredMonitor::Run(State& state) {
  const auto wake = [&state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
    return state.stopping || state.changed;
  };
  absl::MutexLock lock(&state.mutex);
  while (!state.stopping) {
    state.changed = false;
    Before before;
    Answer answer;
    if (state.config.interval > absl::ZeroDuration()) {
      before = LookAround(*state.broker);
      state.nobody = before.sessions.empty();
      const uint64_t activity = state.options.activity ? state.options.activity() : 0;
      state.is_quiet =
          state.options.activity && std::exchange(state.last_activity, activity) == activity;
      state.mutex.Unlock();
      answer = AskDriver(*state.source, before);
      state.mutex.Lock();
      if (state.stopping) break;
    }
    state.Digest(before, std::move(answer));
    state.mutex.AwaitWithTimeout(absl::Condition(&wake), state.UntilNextLook());
  }
  state.done = true;
}

// In another PID namespace than the first, a driver that does not translate pids gives numbers
// that may be those of innocent processes of ours. One that none of ours has shows it.
bool UnbrokeredMonitor::State::PidsAreOurs(const Answer& answer) {
  if (source->pids_are_ours()) return true;
  return std::none_of(answer.processes.begin(), answer.processes.end(),
                      [](const DeviceProcess& p) { return p.pid > 0 && p.start_time == 0; });
}

void UnbrokeredMonitor::State::TellTrouble(const absl::Status& status) {
  const std::string now(status.message());
  if (now != trouble && !status.ok()) {
    spdlog::warn("cannot see which processes use memory past the broker: {}", now);
  }
  trouble = now;
}

void UnbrokeredMonitor::State::Digest(const Before& before, Answer answer) {
  if (!PidsAreOurs(answer)) {
    // It may also have ended just now: the previous facts hold for one more sample.
    if (!std::exchange(stray_pids, true)) return FollowUp();
    answer.trouble.Update(absl::UnavailableError(
        "the driver gives process numbers of another PID namespace; run gpumemd in the host's "
        "(hostPID)"));
    answer.unanswered.insert(before.devices.begin(), before.devices.end());
    for (DeviceProcess& process : answer.processes) {
      process.pid = 0;
      process.start_time = 0;
      process.command.clear();
    }
  } else {
    stray_pids = false;
  }
  TellTrouble(answer.trouble);

  UnbrokeredInputs inputs = {.processes = answer.processes,
                             .sessions = before.sessions,
                             .allowance = config.context_allowance};
  if (source->counts_mapped() && !answer.processes.empty()) inputs.mapped = Mapped(*broker, before);
  Unbrokered found = FindUnbrokered(inputs);
  foreign = std::move(found.foreign);
  std::stable_sort(
      foreign.begin(), foreign.end(),
      [](const DeviceProcess& a, const DeviceProcess& b) { return a.bytes > b.bytes; });
  steady.Settle(found.overheads, answer.unanswered);
  for (OverheadUse& use : found.overheads)
    broker->operators().SetOverhead({use.session, std::move(use.device_uuid), use.bytes});
  React(found.uses);
  FollowUp();
}

void UnbrokeredMonitor::State::React(const std::vector<UnbrokeredUse>& uses) {
  const bool denies = config.reaction == UnbrokeredReaction::kDenyNew;
  const UnbrokeredOffenders::Change change = offenders.Observe(uses, config.tolerance);
  for (const UnbrokeredUse& use : change.began) {
    spdlog::warn("tenant {}: {} (pid {}, session {}) has taken {} of {} past the broker{}",
                 use.tenant, use.command, use.pid, ToInt(use.session), FormatBytes(use.bytes),
                 use.device_uuid,
                 denies ? "; requests of the tenant are denied until the process releases it" : "");
  }
  for (const UnbrokeredUse& use : change.ended) {
    spdlog::info("tenant {}: {} (pid {}) no longer holds memory of {} past the broker ({}){}",
                 use.tenant, use.command, use.pid, use.device_uuid, FormatBytes(use.bytes),
                 denies ? "; it no longer causes denials for the tenant" : "");
  }
  std::vector<UnbrokeredBytes> told;
  for (const UnbrokeredUse& use : uses) {
    const bool offends = offenders.Contains(use);
    told.push_back({use.session, use.device_uuid, use.bytes, denies && offends});
    if (offends && config.reaction == UnbrokeredReaction::kTerminate) End(use);
  }
  const bool any = !told.empty();
  if (any || published) broker->operators().SetUnbrokered(std::move(told));
  published = any;
}

// Once for each process, however many tenants' it is and devices it uses.
void UnbrokeredMonitor::State::End(const UnbrokeredUse& use) {
  const ProcessKey key = {use.pid, use.start_time};
  if (sentences.count(key) > 0) return;
  absl::StatusOr<UniqueFd> process = options.process_of(use.session);
  if (!process.ok()) return;  // its session has ended; if it has another, the next look finds it
  if (const absl::Status sent = SignalProcess(process->get(), SIGTERM); !sent.ok()) {
    spdlog::error("cannot end {} (pid {}) of tenant {}: {}", use.command, use.pid, use.tenant,
                  sent.ToString());
  } else {
    spdlog::warn("SIGTERM to {} (pid {}) of tenant {}, which has taken {} of {} past the broker",
                 use.command, use.pid, use.tenant, FormatBytes(use.bytes), use.device_uuid);
    Audit(use, "SIGTERM");
  }
  sentences.emplace(key, Sentence{use, *std::move(process), absl::Now() + options.kill_after});
}

void UnbrokeredMonitor::State::Audit(const UnbrokeredUse& use, const char* signal) const {
  if (options.audit == nullptr) return;
  options.audit->Record({.time = absl::Now(),
                         .event = AuditEvent::kSignalled,
                         .tenant = use.tenant,
                         .session = use.session,
                         .pid = use.pid,
                         .command = use.command,
                         .device = use.device_uuid,
                         .bytes = use.bytes,
                         .signal = signal,
                         .why = "it has taken memory past the broker"});
}

void UnbrokeredMonitor::State::FollowUp() {
  const absl::Time now = absl::Now();
  for (auto it = sentences.begin(); it != sentences.end();) {
    Sentence& sentence = it->second;
    const UnbrokeredUse& use = sentence.use;
    if (IsGone(sentence.process)) {
      spdlog::info("{} (pid {}) of tenant {} has ended", use.command, use.pid, use.tenant);
      it = sentences.erase(it);
      continue;
    }
    // The operator has thought better of it.
    if (!sentence.killed && config.reaction != UnbrokeredReaction::kTerminate) {
      it = sentences.erase(it);
      continue;
    }
    if (!sentence.killed && now >= sentence.kill_at) {
      sentence.killed = true;
      spdlog::warn(
          "SIGKILL to {} (pid {}) of tenant {}: it had taken {} of {} past the broker and "
          "has not ended within {}",
          use.command, use.pid, use.tenant, FormatBytes(use.bytes), use.device_uuid,
          absl::FormatDuration(options.kill_after));
      const absl::Status sent = SignalProcess(sentence.process.get(), SIGKILL);
      if (sent.ok()) Audit(use, "SIGKILL");
      if (!sent.ok() && !absl::IsNotFound(sent)) {
        spdlog::error("cannot kill {} (pid {}): {}", use.command, use.pid, sent.ToString());
      }
    }
    ++it;
  }
}

absl::Duration UnbrokeredMonitor::State::UntilNextLook() {
  absl::Duration wait =
      config.interval > absl::ZeroDuration() ? config.interval : absl::InfiniteDuration();
  // An idle daemon wakes seldom. Without sessions all that is seen is for people to look at.
  if (nobody || is_quiet) wait *= 2;
  const absl::Time now = absl::Now();
  for (const auto& [process, sentence] : sentences) {
    if (!sentence.killed) wait = std::min(wait, sentence.kill_at - now);
  }
  return std::max(wait, absl::ZeroDuration());
}

}  // namespace gpumemd
