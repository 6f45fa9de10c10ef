// A program of somebody else's: client.h, libgpumem.so, and nothing of what is inside.
#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace {

TEST(SharedLibraryTest, ExportsAllOfTheHeader) {
  // Every call is linked; the first one fails, for want of a daemon.
  const auto use_everything = []() -> absl::Status {
    auto client = Client::Connect({.runtime_dir = "/tmp/no-such-folder"});
    if (!client.ok()) return client.status();
    Segment segment = (*client)->Acquire({.bytes = 1}).value();
    Segment other;
    other = std::move(segment);
    Segment third(std::move(other));
    (*client)->AcquireMany({.bytes = 1}, 2).value().clear();
    (*client)->Open(third.Share().value().value).value();
    (*client)->OpenMany({third.Share().value().value}).value().clear();
    Event event = (*client)->CreateEvent({.name = "event"}).value();
    Event opened;
    opened = std::move(event);
    Event moved(std::move(opened));
    moved = (*client)->OpenEvent("event").value();
    (*client)->OpenEvents(third).value().clear();
    moved.Record(nullptr).IgnoreError();
    moved.Wait(nullptr).IgnoreError();
    moved.Synchronize().IgnoreError();
    const bool told = moved.Done().value() && moved.valid() && moved.event() != nullptr;
    (*client)->StartWatch({}).value().reset();
    (*client)->GetUsage().value();
    (*client)->Devices().value();
    const std::string words =
        (*client)->tenant() + (*client)->rule() + (*client)->daemon_version() + third.device_uuid();
    const uint64_t numbers = (*client)->session_id() + third.size() + third.lease_id() +
                             third.segment_id() + third.reused() + words.size() + told +
                             moved.handle()[0] + third.registered() +
                             third.ipc_handle().value()[0] + third.export_data().value()[0];
    if (third.fd().value() == third.pool_fd().value()) return absl::OkStatus();
    if (third.data() == nullptr || third.kind() != Kind::kVmm ||
        third.backend() != Backend::kHost || numbers == 0) {
      return absl::InternalError("");
    }
    return third.Release();
  };
  const absl::Status status = use_everything();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(GetDenial(status).has_value());
  EXPECT_EQ(KindName(Kind::kVmm), "vmm");
  EXPECT_EQ(KindName(Kind::kMempool), "mempool");
  EXPECT_EQ(KindName(Kind::kIpc), "ipc");
  EXPECT_EQ(KindName(Kind::kPinned), "pinned");
  EXPECT_EQ(KindName(Kind::kDefault), "default");
}

TEST(SharedLibraryTest, ExportsNothingElse) {
  void* const library = dlopen("libgpumem.so.0", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << dlerror();
  // gpumem::Client::Client(std::shared_ptr<gpumem::internal::Session>), and a message.
  EXPECT_EQ(dlsym(library, "_ZN6gpumem6ClientC1ESt10shared_ptrINS_8internal7SessionEE"), nullptr);
  EXPECT_EQ(dlsym(library, "_ZN6gpumem2v15LeaseC1Ev"), nullptr);
  dlclose(library);
}

}  // namespace
}  // namespace gpumem
