// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLong = absl::Seconds(30);

// The written records. Outlives the log.
class Paper {
 public:
  class Output : public AuditOutput {
   public:
    explicit Output(Paper* paper) : paper_(paper) {}
    absl::Status Write(const AuditRecord& record) override { return paper_->Write(record); }

   private:
    Paper* const paper_;
  };

  std::unique_ptr<AuditOutput> output() { return std::make_unique<Output>(this); }
  // From now on nothing is taken, or all again.
  void Jam(bool jammed) {
    absl::MutexLock lock(&mutex_);
    jammed_ = jammed;
  }
  bool AwaitLines(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return lines_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), kLong);
  }
  bool AwaitTries(int count) {
    absl::MutexLock lock(&mutex_);
    const auto tried = [&] { return tries_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&tried), kLong);
  }
  std::vector<std::string> lines() {
    absl::MutexLock lock(&mutex_);
    return lines_;
  }

 private:
  absl::Status Write(const AuditRecord& record) {
    absl::MutexLock lock(&mutex_);
    ++tries_;
    if (jammed_) return absl::UnavailableError("the paper is jammed");
    std::string line = absl::StrCat(NameOf(record.event), " ", record.tenant);
    if (record.count) absl::StrAppend(&line, " ", *record.count);
    lines_.push_back(line);
    return absl::OkStatus();
  }

  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  bool jammed_ ABSL_GUARDED_BY(mutex_) = false;
  int tries_ ABSL_GUARDED_BY(mutex_) = 0;
};

AuditRecord Set(const std::string& tenant) {
  return {.time = absl::Now(), .event = AuditEvent::kQuotaSet, .tenant = tenant};
}
AuditRecord Denied(const std::string& tenant) {
  return {.time = absl::Now(), .event = AuditEvent::kDenied, .tenant = tenant};
}

std::unique_ptr<AuditLog> Start(Paper& paper, AuditLogOptions options = {}) {
  auto log = AuditLog::Start(paper.output(), options);
  EXPECT_TRUE(log.ok()) << log.status();
  return *std::move(log);
}

TEST(AuditLogTest, WritesWhatIsRecordedWhileItRuns) {
  Paper paper;
  const auto log = Start(paper);
  log->sink()->Record(Set("a"));
  EXPECT_TRUE(paper.AwaitLines(1));
  log->sink()->Record(Set("b"));
  EXPECT_TRUE(paper.AwaitLines(2));
  EXPECT_THAT(paper.lines(), ElementsAre("quota-set a", "quota-set b"));
  EXPECT_TRUE(log->status().ok());
}

TEST(AuditLogTest, WritesAllBeforeItEnds) {
  Paper paper;
  auto log = Start(paper);
  for (int i = 0; i < 1000; ++i) log->sink()->Record(Set(absl::StrCat(i)));
  log.reset();
  EXPECT_EQ(paper.lines().size(), 1000u);
  EXPECT_EQ(paper.lines().back(), "quota-set 999");
}

TEST(AuditLogTest, TellsWhatWasLeftOutWhenTheSecondIsOver) {
  Paper paper;
  const auto log = Start(paper, {.filter = {.per_second = 2}});
  for (int i = 0; i < 10; ++i) log->sink()->Record(Denied("a"));
  EXPECT_TRUE(paper.AwaitLines(3));
  EXPECT_THAT(paper.lines(), ElementsAre("denied a", "denied a", "suppressed a 8"));
}

TEST(AuditLogTest, TellsWhatWasLeftOutAtItsEnd) {
  Paper paper;
  auto log = Start(paper, {.filter = {.per_second = 1}});
  for (int i = 0; i < 3; ++i) log->sink()->Record(Denied("a"));
  log.reset();
  EXPECT_THAT(paper.lines(), ElementsAre("denied a", "suppressed a 2"));
}

TEST(AuditLogTest, AnOutputThatFailsForAWhileMissesWhatTheRingHadNoRoomFor) {
  Paper paper;
  const auto log = Start(paper, {.ring = 4, .retry = absl::Milliseconds(1)});
  paper.Jam(true);
  log->sink()->Record(Set("first"));
  // The first is in the thread's hands.
  EXPECT_TRUE(paper.AwaitTries(2));
  EXPECT_FALSE(log->status().ok());
  for (int i = 0; i < 10; ++i) log->sink()->Record(Set(absl::StrCat(i)));
  paper.Jam(false);
  EXPECT_TRUE(paper.AwaitLines(6));
  EXPECT_THAT(paper.lines(), ElementsAre("quota-set first", "missed  6", "quota-set 6",
                                         "quota-set 7", "quota-set 8", "quota-set 9"));
  EXPECT_TRUE(log->status().ok());
}

TEST(AuditLogTest, AnOutputThatFailsHoldsNobodyUp) {
  Paper paper;
  auto log = Start(paper, {.retry = absl::Hours(1)});
  paper.Jam(true);
  for (int i = 0; i < 100; ++i) log->sink()->Record(Set(absl::StrCat(i)));
  EXPECT_TRUE(paper.AwaitTries(1));
  log.reset();  // soon
  EXPECT_THAT(paper.lines(), ElementsAre());
}

TEST(AuditLogTest, WithoutAnOutputTheRingIsKept) {
  auto log = AuditLog::Start(nullptr);
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->sink()->Record(Set("a"));
  ASSERT_EQ((*log)->ring().Read(1, 10).records.size(), 1u);
}

}  // namespace
}  // namespace gpumemd
