// SPDX-License-Identifier: Apache-2.0
// Interprocess events on the host backend, against a fake daemon.
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace {

using absl::StatusCode;
using internal::FakeDaemon;

class EventTest : public ::testing::Test {
 protected:
  std::unique_ptr<Client> Connect() {
    return Client::Connect({.runtime_dir = daemon_.runtime_dir(), .timeout = absl::Seconds(20)})
        .value();
  }

  std::vector<v1::TicketScope> scopes_;
  FakeDaemon daemon_{{.share = [this](const v1::ShareRequest& request) {
    scopes_.push_back(request.scope());
    return grpc::Status::OK;
  }}};
  std::unique_ptr<Client> producer_ = Connect();
  std::unique_ptr<Client> consumer_ = Connect();
};

TEST_F(EventTest, OfANameIsOpenedByAnotherSession) {
  absl::StatusOr<Event> made = producer_->CreateEvent({.name = "batch"});
  ASSERT_TRUE(made.ok()) << made.status();
  absl::StatusOr<Event> opened = consumer_->OpenEvent("batch");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(made->handle(), opened->handle());
  EXPECT_EQ(made->event(), nullptr);
  EXPECT_THAT(scopes_, ::testing::ElementsAre(v1::TICKET_SCOPE_TENANT));
  EXPECT_EQ(made->Record(nullptr), absl::OkStatus());
  EXPECT_EQ(opened->Wait(nullptr), absl::OkStatus());
  EXPECT_EQ(opened->Synchronize(), absl::OkStatus());
  EXPECT_TRUE(opened->Done().value());
}

TEST_F(EventTest, BesideASegmentIsOpenedByItsLessees) {
  Segment mine = producer_->Acquire({.bytes = 1}).value();
  Segment theirs = consumer_->Open(mine.Share()->value).value();
  scopes_.clear();
  EXPECT_EQ(consumer_->OpenEvents(theirs).status().code(), StatusCode::kNotFound);
  Event one = producer_->CreateEvent({.segment = &mine}).value();
  Event two = producer_->CreateEvent({.segment = &mine}).value();
  Event own = consumer_->CreateEvent({.segment = &theirs}).value();
  EXPECT_THAT(scopes_, ::testing::Each(v1::TICKET_SCOPE_ANY));
  absl::StatusOr<std::vector<Event>> opened = consumer_->OpenEvents(theirs);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->size(), 2u);  // not this process's events
  EXPECT_EQ((*opened)[0].handle(), one.handle());
  EXPECT_EQ((*opened)[1].handle(), two.handle());
  EXPECT_EQ(producer_->OpenEvents(mine)->size(), 1u);
}

TEST_F(EventTest, ItsMakerDoesNotOpenItAsWithCuda) {
  Event made = producer_->CreateEvent({.name = "batch"}).value();
  EXPECT_EQ(producer_->OpenEvent("batch").status().code(), StatusCode::kFailedPrecondition);
  Segment segment = producer_->Acquire({.bytes = 1}).value();
  Event beside = producer_->CreateEvent({.segment = &segment}).value();
  EXPECT_EQ(producer_->OpenEvents(segment).status().code(), StatusCode::kNotFound);
}

TEST_F(EventTest, OfSeveralBesideASegmentThoseThatCanBeAreOpened) {
  Segment mine = producer_->Acquire({.bytes = 1}).value();
  Segment theirs = consumer_->Open(mine.Share()->value).value();
  Event broken = producer_->CreateEvent({.segment = &mine}).value();
  daemon_.ReplaceHandles(std::string(64, 'x'));
  EXPECT_EQ(consumer_->OpenEvents(theirs).status().code(), StatusCode::kInternal);
  Event sound = producer_->CreateEvent({.segment = &mine}).value();
  absl::StatusOr<std::vector<Event>> opened = consumer_->OpenEvents(theirs);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->size(), 1u);
  EXPECT_EQ(opened->front().handle(), sound.handle());
}

TEST_F(EventTest, AreBesideOnesOwnSegmentsOnly) {
  Segment foreign = producer_->Acquire({.bytes = 1}).value();
  Event beside = producer_->CreateEvent({.segment = &foreign}).value();
  Segment none;
  EXPECT_EQ(consumer_->OpenEvents(foreign).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(consumer_->OpenEvents(none).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(EventTest, EndsWithItsMaker) {
  { Event made = producer_->CreateEvent({.name = "batch"}).value(); }
  EXPECT_EQ(daemon_.live_events(), 0u);
  EXPECT_EQ(daemon_.live_leases(/*awaited=*/0), 0u);
  EXPECT_EQ(consumer_->OpenEvent("batch").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(producer_->CreateEvent({.name = "batch"}).ok());  // the name is free again
}

TEST_F(EventTest, AnOpenedEventIsUsableAfterItsMakersEnd) {
  Event made = producer_->CreateEvent({.name = "batch"}).value();
  Event opened = consumer_->OpenEvent("batch").value();
  EXPECT_EQ(daemon_.live_leases(), 2u);
  made = Event();
  EXPECT_EQ(daemon_.live_events(), 0u);
  EXPECT_EQ(daemon_.live_leases(/*awaited=*/1), 1u);
  EXPECT_EQ(opened.Wait(nullptr), absl::OkStatus());
  opened = Event();
  EXPECT_EQ(daemon_.live_leases(/*awaited=*/0), 0u);
}

TEST_F(EventTest, RefusalsLeaveNothingBehind) {
  Event made = producer_->CreateEvent({.name = "batch"}).value();
  Segment foreign = consumer_->Acquire({.bytes = 1}).value();
  Segment none;
  EXPECT_EQ(producer_->CreateEvent({}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(producer_->CreateEvent({.name = "x", .segment = &foreign}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(producer_->CreateEvent({.segment = &foreign}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(producer_->CreateEvent({.segment = &none}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(producer_->CreateEvent({.name = "x", .device = "GPU-7"}).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(consumer_->CreateEvent({.name = "batch"}).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(daemon_.live_events(), 1u);
  EXPECT_EQ(daemon_.live_leases(/*awaited=*/2), 2u);
}

TEST_F(EventTest, AnEmptyOneSaysSo) {
  Event event;
  EXPECT_FALSE(event.valid());
  for (const absl::Status& status :
       {event.Record(nullptr), event.Wait(nullptr), event.Synchronize(), event.Done().status()}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(event.handle(), Handle{});
  Event made = producer_->CreateEvent({.name = "batch"}).value();
  event = std::move(made);
  EXPECT_TRUE(event.valid());
  EXPECT_EQ(event.Record(nullptr), absl::OkStatus());
}

TEST_F(EventTest, AnInvalidHandleIsADefect) {
  // As if another process had registered it.
  Event made = producer_->CreateEvent({.name = "batch"}).value();
  daemon_.ReplaceHandles(std::string(64, 'x'));
  EXPECT_EQ(consumer_->OpenEvent("batch").status().code(), StatusCode::kInternal);
  daemon_.ReplaceHandles("short");
  EXPECT_EQ(consumer_->OpenEvent("batch").status().code(), StatusCode::kInternal);
}

TEST_F(EventTest, OnTheDeviceOfItsChoice) {
  Segment pinned = producer_->Acquire({.bytes = 1, .kind = Kind::kPinned}).value();
  Event beside = producer_->CreateEvent({.segment = &pinned}).value();
  Event chosen = producer_->CreateEvent({.name = "x", .device = "0"}).value();
  EXPECT_TRUE(beside.valid());
  EXPECT_TRUE(chosen.valid());
}

TEST_F(EventTest, AForkedChildIsToldAndDisturbsNothing) {
  Event made = producer_->CreateEvent({.name = "batch"}).value();
  const pid_t child = fork();
  if (child == 0) {
    constexpr auto kWrong = StatusCode::kFailedPrecondition;
    int failed = 0;
    failed += made.Record(nullptr).code() != kWrong;
    failed += made.Done().status().code() != kWrong;
    failed += producer_->CreateEvent({.name = "x"}).status().code() != kWrong;
    failed += consumer_->OpenEvent("batch").status().code() != kWrong;
    made = Event();
    _exit(failed);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(daemon_.live_events(), 1u);
  EXPECT_EQ(made.Record(nullptr), absl::OkStatus());
}

}  // namespace
}  // namespace gpumem
