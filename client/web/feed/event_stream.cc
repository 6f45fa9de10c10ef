// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/event_stream.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/web/feed/connect.h"
#include "common/grpc_status.h"
#include "common/start_thread.h"

namespace gpumem::web {
namespace {

constexpr absl::Duration kConnectTime = absl::Seconds(5);
constexpr absl::Duration kLeastBackOff = absl::Milliseconds(100);
constexpr absl::Duration kMostBackOff = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<EventStream>> EventStream::Start(std::string runtime_dir,
                                                                std::function<void()> wake) {
  std::unique_ptr<EventStream> stream(new EventStream(std::move(runtime_dir), std::move(wake)));
  absl::StatusOr<std::thread> thread = StartThread([stream = stream.get()] { stream->Run(); });
  if (!thread.ok()) return thread.status();
  stream->thread_ = *std::move(thread);
  return stream;
}

EventStream::~EventStream() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  if (thread_.joinable()) thread_.join();
}

EventBatch EventStream::Take() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(batch_, {});
}

void EventStream::Run() {
  absl::Duration back_off = kLeastBackOff;
  while (true) {
    const uint64_t before = last_number_;
    const absl::Status end = ReadAll();
    back_off = last_number_ == before ? std::min(back_off * 2, kMostBackOff) : kLeastBackOff;
    absl::MutexLock lock(&mutex_);
    batch_.state = end.ok() ? absl::UnavailableError("the daemon ended the stream") : end;
    wake_();
    if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), back_off)) return;
  }
}

absl::Status EventStream::ReadAll() {
  absl::StatusOr<std::unique_ptr<cli::AdminConnection>> admin =
      ConnectDaemon(runtime_dir_, kConnectTime);
  if (!admin.ok()) return admin.status();

  // The daemon does not mark the end of past records in a stream that goes on. So they are read
  // first, and the stream's first records skipped.
  v1::WatchEventsRequest request;
  request.set_past(true);
  std::deque<v1::EventRecord> past;
  bool same_daemon = false;
  absl::Status read = Read(**admin, request, [&](v1::EventRecord record) {
    if (record.number() == last_number_ && record.time_unix_ns() == last_time_) {
      same_daemon = true;
      past.clear();  // those before were told
      return;
    }
    past.push_back(std::move(record));
    if (past.size() > EventBatch::kMost) past.pop_front();
  });
  if (!read.ok()) return read;
  if (!same_daemon) last_number_ = 0;
  if (!past.empty()) {
    last_number_ = past.back().number();
    last_time_ = past.back().time_unix_ns();
    EventBatch news;
    news.past.assign(std::make_move_iterator(past.begin()), std::make_move_iterator(past.end()));
    absl::MutexLock lock(&mutex_);
    batch_.Append(std::move(news));
    wake_();
  }

  request.set_follow(true);
  bool admitted = false;
  return Read(**admin, request, [&](v1::EventRecord record) {
    EventBatch news;
    if (!std::exchange(admitted, true)) news.state = absl::OkStatus();
    // Records about missing ones have no number.
    if (record.number() == 0 || record.number() > last_number_) {
      if (record.number() != 0) {
        last_number_ = record.number();
        last_time_ = record.time_unix_ns();
      }
      news.later.push_back(std::move(record));
    }
    if (news.empty()) return;
    absl::MutexLock lock(&mutex_);
    const bool first = batch_.empty();
    batch_.Append(std::move(news));
    if (first) wake_();
  });
}

absl::Status EventStream::Read(cli::AdminConnection& admin, const v1::WatchEventsRequest& request,
                               const std::function<void(v1::EventRecord)>& take) {
  grpc::ClientContext context;
  {
    absl::MutexLock lock(&mutex_);
    if (stop_) return absl::CancelledError("the feed ends");
    call_ = &context;
  }
  const auto reader = admin.stub().WatchEvents(&context, request);
  v1::EventRecord record;
  while (reader->Read(&record)) take(std::move(record));
  const grpc::Status status = reader->Finish();
  absl::MutexLock lock(&mutex_);
  call_ = nullptr;
  return FromGrpcStatus(status);
}

}  // namespace gpumem::web
