// SPDX-License-Identifier: Apache-2.0
// Sequences of calls of the C ABI on up to three threads, against a daemon in this process. Each
// step is one byte for the call, and its arguments. Handles are used as the header allows it; all
// else is arbitrary. At the end all handles are released, and the daemon knows of no lease.
//
//   byte 0     the number of threads, which share the rest in equal parts
#include <array>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/testing/fuzz/input.h"
#include "gpumem/gpumem.h"
#include "tests/fuzz/c_pool_calls.h"
#include "tests/fuzz/daemon.h"

namespace gpumem::testing {
namespace {

constexpr int kMostSteps = 40;
constexpr size_t kMostThreads = 3;
constexpr uint64_t kAnswerMs = 10'000;

// One thread's calls and handles.
class Program : private CPoolCalls {
 public:
  Program(FuzzInput& input, const FuzzDaemon& daemon) : CPoolCalls(input), daemon_(daemon) {}
  ~Program() {
    for (gpumem_event*& event : events_) Drop(event, gpumem_event_destroy);
    for (gpumem_attachment*& each : attachments_) Drop(each, gpumem_attachment_release);
    for (gpumem_claim*& claim : claims_) Drop(claim, gpumem_claim_release);
    FreeBlocks(nullptr);
    for (gpumem_pool*& pool : pools_) Drop(pool, gpumem_pool_destroy);
    for (gpumem_segment*& segment : segments_) Drop(segment, gpumem_segment_release);
    for (gpumem_client*& client : clients_) Drop(client, gpumem_client_destroy);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void Step() {
    gpumem_client*& client = Of(clients_);
    const uint8_t call = input_.Byte() % 9;
    if (client == nullptr) return Connect(client);
    switch (call) {
      case 0:
        return Segments(client);
      case 1:
        return Tickets(client);
      case 2:
        return Publications(client);
      case 3:
        return Pools(client);
      case 4:
        return Blocks();
      case 5:
        return Suspension(client);
      case 6:
        return Events(client);
      case 7:
        return Nulls(client);
      default:
        return Rest(client);
    }
  }

 private:
  void Connect(gpumem_client*& client) {
    auto options = Options<gpumem_connect_options>();
    options.runtime_dir = daemon_.runtime_dir().c_str();
    options.tenant = input_.Bool() ? "a" : "b";
    options.name = input_.Byte() < 0xc0 ? "fuzz" : Name();
    options.timeout_ms = kAnswerMs;
    // All versions have the folder.
    constexpr size_t kLeast = offsetof(gpumem_connect_options, tenant);
    (void)With(
        options, [&](const auto* given) { return gpumem_client_connect(given, &client); }, kLeast);
  }

  void Keep(gpumem_segment* segment) {
    gpumem_segment*& slot = Of(segments_);
    Drop(slot, gpumem_segment_release);
    slot = segment;
  }

  void Segments(gpumem_client* client) {
    auto options = Options<gpumem_acquire_options>();
    switch (input_.Below(4)) {
      case 0:
      case 1: {
        constexpr const char* kDevices[] = {nullptr, nullptr, "0", "1", "most-free"};
        options.bytes = Bytes();
        const uint8_t device = input_.Byte();
        options.device = device < 0xf0 ? kDevices[device % std::size(kDevices)] : Name();
        options.kind = static_cast<int8_t>(input_.Byte()) % 8;
        const uint8_t flags = input_.Byte();
        options.wait_ms = flags & 1;
        options.without_pressure = flags >> 1 & 1;
        options.scratch = flags >> 2 & 1;
        options.reserved = flags == 0xff ? 1 : 0;
        options.timeout_ms = kAnswerMs;
        if ((flags & 8) != 0) options.tag = Name();
        const size_t count = (flags & 16) != 0 ? input_.Below(5) : 1;
        std::array<gpumem_segment*, 5> made{};
        if (!With(options, [&](const auto* given) {
              return gpumem_client_acquire_many(client, given, count, made.data());
            })) {
          return;
        }
        for (size_t i = 0; i < count; ++i) {
          FUZZ_CHECK(made[i] != nullptr);
          if (options.kind != GPUMEM_KIND_DRIVER) Touch(made[i]);
          Keep(made[i]);
        }
        return;
      }
      case 2:
        return Drop(Of(segments_),
                    input_.Bool() ? gpumem_segment_release : gpumem_segment_release_async);
      default: {
        gpumem_segment* segment = Of(segments_);
        if (segment == nullptr) return;
        Fill<gpumem_segment_info>(
            [&](gpumem_segment_info* info) { return gpumem_segment_get_info(segment, info); });
        gpumem_handle handle{};
        int fd = -1;
        (void)Ok(gpumem_segment_get_ipc_handle(segment, &handle));
        (void)Ok(gpumem_segment_get_export_data(segment, &handle));
        (void)Ok(gpumem_segment_get_pool_fd(segment, &fd));
        (void)Ok(gpumem_segment_get_fd(segment, &fd));
      }
    }
  }

  void Tickets(gpumem_client* client) {
    gpumem_segment* segment = Of(segments_);
    const char* ticket = nullptr;
    if (input_.Bool()) {
      if (segment == nullptr) return;
      const int32_t scope = static_cast<int8_t>(input_.Byte()) % 3;
      if (Ok(gpumem_segment_share(segment, scope, &ticket))) tickets_.emplace_back(ticket);
      return;
    }
    auto options = Options<gpumem_open_options>();
    options.read_only = input_.Byte() & 1;
    options.timeout_ms = kAnswerMs;
    std::string text = tickets_.empty() ? "" : tickets_[input_.Byte() % tickets_.size()];
    if (input_.Byte() > 0xe0) text = std::string(input_.Word(120));
    if (input_.Byte() > 0xe0) {
      gpumem_shared_block* shared = nullptr;
      if (With(options, [&](const auto* given) {
            return gpumem_client_open_block(client, text.c_str(), given, &shared);
          })) {
        gpumem_block block{};
        (void)Ok(gpumem_shared_block_get(shared, &block));
        (void)Ok(gpumem_shared_block_destroy(shared));
      }
      return;
    }
    gpumem_segment* opened = nullptr;
    if (!With(options, [&](const auto* given) {
          return gpumem_client_open(client, text.c_str(), given, &opened);
        })) {
      return;
    }
    if (options.read_only == 0) Touch(opened);
    Keep(opened);
  }

  void Publications(gpumem_client* client) {
    const char* name = input_.Byte() < 0xe0 ? "p" : Name();
    uint64_t version = 0;
    switch (input_.Below(5)) {
      case 0: {
        std::vector<const gpumem_segment*> segments;
        for (uint32_t count = input_.Below(4); count > 0; --count) {
          segments.push_back(Of(segments_));
          if (segments.back() == nullptr) segments.pop_back();
        }
        auto options = Options<gpumem_publish_options>();
        const std::string metadata(input_.Word(100));
        options.metadata = metadata.data();
        options.metadata_bytes = metadata.size();
        options.access = static_cast<int8_t>(input_.Byte()) % 3;
        options.ephemeral = input_.Byte() & 1;
        options.timeout_ms = kAnswerMs;
        const std::string id(input_.Word(3));
        options.content_id = id.data();
        options.content_id_bytes = id.size();
        (void)With(options, [&](const auto* given) {
          return gpumem_client_publish(client, name, segments.data(), segments.size(), given,
                                       &version);
        });
        return;
      }
      case 1:
        return (void)Ok(gpumem_client_unpublish(client, name, &version));
      case 2:
      case 3: {
        auto options = Options<gpumem_attach_options>();
        options.wait_for_version = input_.Below(4);
        options.wait_ms = 1;
        options.timeout_ms = kAnswerMs;
        options.writable = input_.Byte() & 1;
        gpumem_attachment*& slot = Of(attachments_);
        Drop(slot, gpumem_attachment_release);
        if (input_.Bool()) {
          // Without its time a wait for a version would have no end.
          (void)With(
              options,
              [&](const auto* given) { return gpumem_client_attach(client, name, given, &slot); },
              offsetof(gpumem_attach_options, cancel));
          return;
        }
        gpumem_claim*& claim = Of(claims_);
        Drop(claim, gpumem_claim_release);
        const std::string id(input_.Word(3));
        options.wait_for_version = 0;
        (void)With(options, [&](const auto* given) {
          return gpumem_client_attach_or_claim(client, name, id.data(), id.size(), given, &slot,
                                               &claim);
        });
        return;
      }
      default: {
        gpumem_attachment*& slot = Of(attachments_);
        if (slot == nullptr) return;
        Fill<gpumem_attachment_info>(
            [&](gpumem_attachment_info* info) { return gpumem_attachment_get_info(slot, info); });
        gpumem_segment* taken = nullptr;
        const size_t index = input_.Below(4);
        Fill<gpumem_segment_info>([&](gpumem_segment_info* info) {
          return gpumem_attachment_get_segment(slot, index, info);
        });
        if (Ok(gpumem_attachment_take_segment(slot, index, &taken))) Keep(taken);
        if (input_.Bool()) Drop(slot, gpumem_attachment_release_async);
      }
    }
  }

  void Suspension(gpumem_client* client) {
    std::vector<gpumem_segment*> segments;
    for (uint32_t count = input_.Below(4); count > 0; --count) {
      segments.push_back(Of(segments_));
      if (segments.back() == nullptr) segments.pop_back();
    }
    auto suspend = Options<gpumem_suspend_options>();
    auto resume = Options<gpumem_resume_options>();
    auto demote = Options<gpumem_demote_options>();
    suspend.timeout_ms = resume.timeout_ms = demote.timeout_ms = kAnswerMs;
    switch (input_.Below(6)) {
      case 0:
        return (void)With(suspend, [&](const auto* given) {
          return gpumem_client_suspend(client, segments.data(), segments.size(), given);
        });
      case 1:
        return (void)With(resume, [&](const auto* given) {
          return gpumem_client_resume(client, segments.data(), segments.size(), given);
        });
      case 2:
        return (void)With(demote, [&](const auto* given) {
          return gpumem_client_demote(client, segments.data(), segments.size(), given);
        });
      case 3:
        return (void)With(demote, [&](const auto* given) {
          return gpumem_client_promote(client, segments.data(), segments.size(), given);
        });
      case 4:
        if (gpumem_pool* pool = Of(pools_)) {
          (void)With(suspend, [&](const auto* given) { return gpumem_pool_suspend(pool, given); });
        }
        return;
      default:
        if (gpumem_pool* pool = Of(pools_)) {
          (void)With(resume, [&](const auto* given) { return gpumem_pool_resume(pool, given); });
        }
    }
  }

  void Events(gpumem_client* client) {
    gpumem_event*& event = Of(events_);
    if (event == nullptr) {
      auto options = Options<gpumem_event_options>();
      if (input_.Bool()) options.name = Name();
      if (input_.Bool()) options.segment = Of(segments_);
      if (input_.Byte() < 0xc0) {
        (void)With(options, [&](const auto* given) {
          return gpumem_client_create_event(client, given, &event);
        });
      } else {
        const char* name = Name();
        (void)Ok(gpumem_client_open_event(client, name == nullptr ? "e" : name, &event));
      }
      return;
    }
    int done = 0;
    if (input_.Bool()) (void)Ok(gpumem_event_record(event, nullptr));
    (void)Ok(gpumem_event_is_done(event, &done));
    if (input_.Bool()) Drop(event, gpumem_event_destroy);
  }

  // Passes null where the header does not allow it.
  void Nulls(gpumem_client* client) {
    gpumem_segment* segment = nullptr;
    gpumem_block block{};
    gpumem_segment_info info{};
    info.struct_size = sizeof info;
    const int statuses[] = {
        gpumem_client_open(client, nullptr, nullptr, &segment),
        gpumem_client_open(nullptr, "", nullptr, &segment),
        gpumem_client_acquire_many(client, nullptr, 1, nullptr),
        gpumem_client_publish(client, nullptr, nullptr, 0, nullptr, nullptr),
        gpumem_segment_get_info(nullptr, &info),
        gpumem_pool_allocate(nullptr, 1, nullptr, &block),
        gpumem_pool_find(nullptr, nullptr, &block),
        gpumem_event_record(nullptr, nullptr),
        gpumem_client_suspend(nullptr, nullptr, 0, nullptr),
    };
    for (const int status : statuses) FUZZ_CHECK(status == GPUMEM_INVALID_ARGUMENT);
    FUZZ_CHECK(gpumem_segment_release(nullptr) == GPUMEM_OK);
    FUZZ_CHECK(gpumem_pool_destroy(nullptr) == GPUMEM_OK);
  }

  void Rest(gpumem_client*& client) {
    switch (input_.Below(4)) {
      case 0: {
        gpumem_usage* usage = nullptr;
        if (!Ok(gpumem_client_get_usage(client, &usage))) return;
        Fill<gpumem_tenant_usage>(
            [&](gpumem_tenant_usage* tenant) { return gpumem_usage_get_tenant(usage, tenant); });
        (void)Ok(gpumem_usage_destroy(usage));
        return;
      }
      case 1: {
        gpumem_publication_list* list = nullptr;
        size_t count = 0;
        if (!Ok(gpumem_client_list_publications(client, Name(), &list, &count))) return;
        Fill<gpumem_publication>([&](gpumem_publication* each) {
          return gpumem_publication_list_get(list, input_.Below(3), each);
        });
        (void)Ok(gpumem_publication_list_destroy(list));
        return;
      }
      case 2:
        return Fill<gpumem_client_info>(
            [&](gpumem_client_info* info) { return gpumem_client_get_info(client, info); });
      default:
        // Objects made from it keep its session.
        if (input_.Byte() < 0x20) Drop(client, gpumem_client_destroy);
    }
  }

  const FuzzDaemon& daemon_;
  std::array<gpumem_client*, 2> clients_{};
  std::array<gpumem_segment*, 6> segments_{};
  std::array<gpumem_event*, 3> events_{};
  std::array<gpumem_attachment*, 3> attachments_{};
  std::array<gpumem_claim*, 2> claims_{};
};

void RunProgram(FuzzInput input, const FuzzDaemon& daemon) {
  Program program(input, daemon);
  for (int i = 0; i < kMostSteps && !input.empty(); ++i) program.Step();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const FuzzDaemon& daemon = FuzzDaemon::ForInput();
  const size_t threads = 1 + data[0] % kMostThreads;
  const size_t part = (size - 1) / threads;
  std::vector<std::thread> others;
  for (size_t i = 1; i < threads; ++i) {
    others.emplace_back([&daemon, begin = data + 1 + i * part, part] {
      RunProgram(FuzzInput(begin, part), daemon);
    });
  }
  RunProgram(FuzzInput(data + 1, part), daemon);
  for (std::thread& other : others) other.join();
  daemon.CheckAfterInput(/*others=*/0);
  const auto sessions = daemon.views().ListSessions("");
  FUZZ_CHECK_OK(sessions);
  for (const auto& session : *sessions) FUZZ_CHECK(session.leases == 0);
  return 0;
}

}  // namespace gpumem::testing
