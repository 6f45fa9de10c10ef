// SPDX-License-Identifier: Apache-2.0
#include "client/web/peers/peers.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/web/peers/overview.h"
#include "common/start_thread.h"

namespace gpumem::web {

class Peers::Loop {
 public:
  explicit Loop(Options options) : options_(std::move(options)), states_(options_.peers.size()) {}

  absl::Status Run() {
    boost::system::error_code error;
    if (options_.ca_file.empty()) {
      tls_.set_default_verify_paths(error);
    } else {
      tls_.load_verify_file(options_.ca_file, error);
    }
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat("the certificate authorities cannot be read: ", error.message()));
    }
    absl::StatusOr<std::thread> thread = StartThread([this] { context_.run(); });
    if (!thread.ok()) return thread.status();
    thread_ = *std::move(thread);
    return absl::OkStatus();
  }

  ~Loop() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  std::string Document() {
    absl::MutexLock lock(&mutex_);
    looked_ = absl::Now();
    if (!std::exchange(running_, true)) {
      boost::asio::post(context_, [this] { Round(); });
    }
    std::string document = "[";
    for (size_t i = 0; i < states_.size(); ++i) {
      const State& state = states_[i];
      const nlohmann::json url = options_.peers[i].url, message = state.error;
      absl::StrAppend(&document, i == 0 ? "" : ",", "{\"url\":", url.dump(), ",\"state\":\"",
                      state.state, "\"");
      if (!state.error.empty())
        absl::StrAppend(&document, ",\"error\":",
                        message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
      if (state.seen != absl::InfinitePast()) {
        absl::StrAppend(&document, ",\"seen_ms\":", absl::ToUnixMillis(state.seen));
      }
      absl::StrAppend(&document, ",\"overview\":", state.overview.empty() ? "null" : state.overview,
                      "}");
    }
    return document + "]";
  }

 private:
  struct State {
    const char* state = "unknown";
    std::string error;
    absl::Time seen = absl::InfinitePast();
    std::string overview;  // the last one; JSON, or empty
    bool busy = false;
  };

  // Fetches from all, and again after the interval.
  void Round() {
    for (size_t i = 0; i < states_.size(); ++i) {
      {
        absl::MutexLock lock(&mutex_);
        if (std::exchange(states_[i].busy, true)) continue;
      }
      Fetch(&context_, &tls_, options_.peers[i], options_.limits,
            [this, i](absl::StatusOr<std::string> text) { OnAnswer(i, std::move(text)); });
    }
    timer_.expires_after(absl::ToChronoNanoseconds(options_.interval));
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      {
        absl::MutexLock lock(&mutex_);
        running_ = absl::Now() - looked_ <= options_.look;
        if (!running_) return;
      }
      Round();
    });
  }

  void OnAnswer(size_t i, absl::StatusOr<std::string> text) {
    if (text.ok()) text = CleanOverview(*text);
    absl::MutexLock lock(&mutex_);
    State& state = states_[i];
    state.busy = false;
    if (text.ok()) {
      state.overview = *std::move(text);
      state.state = "ok";
      state.error.clear();
      state.seen = absl::Now();
    } else {
      state.state = "failed";
      state.error = std::string(text.status().message());
    }
  }

  const Options options_;
  boost::asio::io_context context_{1};  // one thread
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      context_.get_executor()};
  boost::asio::ssl::context tls_{boost::asio::ssl::context::tls_client};
  boost::asio::steady_timer timer_{context_};
  absl::Mutex mutex_;
  std::vector<State> states_ ABSL_GUARDED_BY(mutex_);
  absl::Time looked_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Peers::Peers(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Peers::~Peers() = default;

std::string Peers::Document() { return loop_->Document(); }

absl::StatusOr<std::unique_ptr<Peers>> Peers::Start(Options options) {
  if (options.peers.size() > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("more than ", kMost, " peers"));
  }
  // Asio throws if there are no descriptors for its event loop.
  try {
    auto loop = std::make_unique<Loop>(std::move(options));
    if (absl::Status running = loop->Run(); !running.ok()) return running;
    return std::unique_ptr<Peers>(new Peers(std::move(loop)));
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no event loop for peers could be made: ", error.what()));
  }
}

}  // namespace gpumem::web
