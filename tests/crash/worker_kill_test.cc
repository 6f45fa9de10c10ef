// SPDX-License-Identifier: Apache-2.0
// A worker is killed at each step of Publish and of Attach, by the worker's failpoints and by those
// of its daemon. All of its memory comes back to the byte. Its publication exists whole or not at
// all, no other process's memory changes, and another worker does the same at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Eventually;
using testing::HasStamp;
using testing::Hear;
using testing::KeptDaemon;
using testing::kParentChannel;
using testing::PatientOptions;
using testing::Say;
using testing::Stamp;

constexpr uint64_t kBytes = uint64_t{2} << 20;
constexpr int kMany = 300;  // segments: more descriptors than one message carries
constexpr int kFew = 3;
constexpr char kMetadata[] = "what there is";

bool IsWhole(const Attachment& attached, size_t segments, uint64_t first) {
  if (attached.metadata() != kMetadata || attached.segments().size() != segments) return false;
  for (size_t i = 0; i < segments; ++i) {
    const Segment& segment = attached.segments()[i];
    if (!HasStamp(segment.data(), segment.size(), first + i)) return false;
  }
  return true;
}

absl::StatusOr<std::vector<Segment>> AcquireStamped(Client& client, int count, uint64_t first) {
  std::vector<Segment> all;
  while (static_cast<int>(all.size()) < count) {
    const int more = std::min(100, count - static_cast<int>(all.size()));
    auto segments = client.AcquireMany({.bytes = kBytes}, more);
    if (!segments.ok()) return segments.status();
    for (Segment& segment : *segments) {
      Stamp(segment.data(), segment.size(), first + all.size());
      all.push_back(std::move(segment));
    }
  }
  return all;
}

// The failpoint at which a step is killed, and the passes by then.
struct Step {
  const char* failpoint;
  int passes = 1;
};

// Failpoints of workers, in their own process.
constexpr Step kPublishSteps[] = {{"client-publish-asks"},    {"client-publish-heard"},
                                  {"client-release-asks", 1}, {"client-release-heard", 1},
                                  {"client-release-asks", 2}, {"client-release-heard", 3}};
constexpr Step kAttachSteps[] = {
    {"client-attach-asks"}, {"client-lane-sent"},    {"client-delivery", 1},
    {"client-delivery", 2}, {"client-attach-heard"}, {"map-segment", 1},
    {"map-segment", 150},   {"map-segment", kMany},  {"client-mapped"},
    {"client-attached"},    {"client-release-asks"}, {"client-release-heard"}};
// Failpoints of the daemon, while it serves one.
constexpr Step kDaemonsPublishSteps[] = {{"publish-before"}, {"publish-kept"},  {"record-before"},
                                         {"record-after"},   {"publish-after"}, {"answer-before"}};
constexpr Step kDaemonsAttachSteps[] = {
    {"deliver-before"}, {"deliver-after"}, {"record-before"}, {"record-after"}, {"answer-before"}};

class WorkerKillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = KeptDaemon::Start({.config = "[host]\ndevice_bytes = \"3GiB\"\n"
                                               "[tenant_defaults]\nmax_retained = \"0\"\n"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = Client::Connect(PatientOptions(daemon_->runtime_dir()));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    {
      auto segments = AcquireStamped(*client_, kMany, 1000);
      ASSERT_TRUE(segments.ok()) << segments.status();
      auto version = client_->Publish("weights", *segments, {.metadata = kMetadata});
      ASSERT_TRUE(version.ok()) << version.status();
    }
    auto attached = client_->Attach("weights");
    ASSERT_TRUE(attached.ok()) << attached.status();
    attached_ = *std::move(attached);
    // Whatever is made once and kept is made now.
    for (const char* role : {"publish", "attach"}) Do(role);
    ASSERT_TRUE(client_->Unpublish("made").ok());
    ASSERT_TRUE(Eventually([&] {
      const auto usage = client_->GetUsage();
      return usage.ok() && usage->sessions == 1 && usage->charged_bytes == kMany * kBytes;
    }));
    before_ = Looks();
  }

  // The state by the ledger, the list of publications and /proc.
  struct Look {
    uint64_t leased = 0, lingering = 0, retained = 0, charged = 0, device_charged = 0;
    uint32_t segments = 0, sessions = 0;
    std::vector<std::tuple<std::string, uint64_t, uint32_t, uint32_t>> publications;
    int daemon_fds = 0, keeper_fds = 0;

    bool operator==(const Look&) const = default;
    std::string ToString() const {
      std::string text = absl::StrCat("leased ", leased, ", lingering ", lingering, ", retained ",
                                      retained, ", charged ", charged, " and ", device_charged,
                                      ", ", segments, " segments, ", sessions, " sessions, ",
                                      daemon_fds, " and ", keeper_fds, " descriptors; published:");
      for (const auto& [name, version, count, attached] : publications) {
        absl::StrAppend(&text, " ", name, " version ", version, " of ", count, ", to which ",
                        attached, " are attached");
      }
      return text;
    }
  };
  Look Looks() {
    Look look;
    const auto usage = client_->GetUsage();
    const auto devices = client_->Devices();
    const auto publications = client_->ListPublications();
    EXPECT_TRUE(usage.ok() && devices.ok() && publications.ok());
    if (!usage.ok() || !devices.ok() || !publications.ok()) return look;
    look = {.leased = usage->devices.at(0).leased_bytes,
            .lingering = usage->devices.at(0).lingering_bytes,
            .retained = usage->devices.at(0).retained_bytes,
            .charged = usage->charged_bytes,
            .device_charged = devices->at(0).charged_bytes,
            .segments = usage->segments,
            .sessions = usage->sessions};
    for (const PublicationInfo& each : *publications) {
      look.publications.emplace_back(each.name, each.version, each.segments,
                                     each.attached_sessions);
    }
    look.daemon_fds = testing::CountFds(daemon_->daemon_pid());
    look.keeper_fds = testing::CountFds(daemon_->keeper_pid());
    return look;
  }

  Child Start(const std::string& role, const Step& step = {""}) {
    return Child::Self(
        {"--role", role, daemon_->runtime_dir(), step.failpoint, absl::StrCat(step.passes)});
  }
  // Another worker does the same at once.
  void Do(const std::string& role) {
    Child worker = Start(role);
    EXPECT_EQ(Hear(worker.channel()), "ready");
    Say(worker.channel(), "go");
    EXPECT_EQ(worker.Wait(), 0) << role << " after a worker's death";
  }

  // A worker that is killed there.
  void KillAt(const std::string& role, const Step& step, bool in_daemon) {
    if (HasFailure()) return;  // its remains would be found again and again
    SCOPED_TRACE(absl::StrCat(role, " killed at ", step.failpoint, " ", step.passes,
                              in_daemon ? " of the daemon" : ""));
    Child worker = Start(role, in_daemon ? Step{""} : step);
    ASSERT_EQ(Hear(worker.channel()), "ready");
    if (in_daemon) daemon_->ArmTarget(step.failpoint, step.passes, worker.pid());
    Say(worker.channel(), "go");
    EXPECT_EQ(worker.Wait(), 128 + SIGKILL) << "nobody passed it";
    EXPECT_FALSE(daemon_->IsTargetArmed());
    daemon_->DisarmTarget();

    EXPECT_TRUE(IsWhole(attached_, kMany, 1000)) << "others' memory has changed";
    if (role == "publish") {
      auto made = client_->Attach("made");
      if (made.ok()) {
        EXPECT_TRUE(IsWhole(*made, kFew, 2000)) << "a part of a publication is there";
        ++whole_;
      } else {
        EXPECT_EQ(made.status().code(), absl::StatusCode::kNotFound) << made.status();
        ++none_;
      }
    }
    Do(role);
    if (role == "publish") {
      auto made = client_->Attach("made");
      EXPECT_TRUE(made.ok() && IsWhole(*made, kFew, 2000)) << made.status();
      if (made.ok()) {
        EXPECT_TRUE(made->Release().ok());
      }
      EXPECT_TRUE(client_->Unpublish("made").ok());
    }
    const bool back = Eventually([&] {
      const Look now = Looks();
      // gRPC closes ended connections some time later: the first look may have counted one.
      before_.daemon_fds = std::min(before_.daemon_fds, now.daemon_fds);
      return now == before_;
    });
    EXPECT_TRUE(back) << "before: " << before_.ToString() << "\nnow: " << Looks().ToString();
  }

  std::unique_ptr<KeptDaemon> daemon_;
  std::unique_ptr<Client> client_;
  Attachment attached_;
  Look before_;
  int whole_ = 0, none_ = 0;  // publications of killed publishers
};

TEST_F(WorkerKillTest, AtEveryStepOfPublish) {
  for (const Step& step : kPublishSteps) KillAt("publish", step, /*in_daemon=*/false);
  EXPECT_EQ(whole_, 5);  // all steps after the answer
  EXPECT_EQ(none_, 1);
  for (const Step& step : kDaemonsPublishSteps) KillAt("publish", step, /*in_daemon=*/true);
  EXPECT_EQ(daemon_->generations(), 1);
}

TEST_F(WorkerKillTest, AtEveryStepOfAttach) {
  for (const Step& step : kAttachSteps) KillAt("attach", step, /*in_daemon=*/false);
  for (const Step& step : kDaemonsAttachSteps) KillAt("attach", step, /*in_daemon=*/true);
  EXPECT_EQ(daemon_->generations(), 1);
}

// The worker's end: it kills itself.
struct Own {
  std::string name;
  std::atomic<int> passes{0};
};
Own own;

int RunWorker(const std::vector<std::string>& args) {
  const std::string& role = args.at(0);
  auto client = Client::Connect(PatientOptions(args.at(1)));
  if (!client.ok()) return 1;
  std::vector<Segment> segments;
  if (role == "publish") {
    auto acquired = AcquireStamped(**client, kFew, 2000);
    if (!acquired.ok()) return 2;
    segments = *std::move(acquired);
  }
  Say(kParentChannel, "ready");
  if (Hear(kParentChannel) != "go") return 3;
  own.name = args.at(2);
  own.passes = std::atoi(args.at(3).c_str());
  failpoint_hook = [](const char* name) {
    if (own.name == name && --own.passes == 0) kill(getpid(), SIGKILL);
  };
  if (role == "publish") {
    if (!(*client)->Publish("made", segments, {.metadata = kMetadata}).ok()) return 4;
    for (Segment& segment : segments) {
      if (!segment.Release().ok()) return 5;
    }
    return 0;
  }
  auto attached = (*client)->Attach("weights");
  if (!attached.ok()) return 6;
  if (!IsWhole(*attached, kMany, 1000)) return 7;
  return attached->Release().ok() ? 0 : 8;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--role") {
    return gpumem::RunWorker(std::vector<std::string>(argv + 2, argv + argc));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
