// SPDX-License-Identifier: Apache-2.0
// What a service manager gives back: names of descriptors, crates and what lies in them, and the
// variables of its environment.
//
//   byte 0 even   crates: for each message the crate, whether it has a descriptor, and its name
//   byte 0 odd    the values of the variables, one after another
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/testing/fuzz/input.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "daemon/restart/fd_store/fd_crates.h"
#include "daemon/restart/fd_store/fd_name.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "daemon/restart/fd_store/manager_environment.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
using gpumem::testing::FuzzInput;

// Returns the open descriptors and their files: the same if none was left open.
std::vector<std::string> OpenFds() {
  std::vector<std::string> fds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    fds.push_back(absl::StrCat(entry.path().string(), " ",
                               std::filesystem::read_symlink(entry.path(), closed).string()));
  }
  std::sort(fds.begin(), fds.end());
  return fds;
}

void CheckName(absl::string_view text) {
  const std::optional<FdName> name = ParseFdName(text);
  if (name) FUZZ_CHECK(ToString(*name) == text);
}

void Crates(FuzzInput& input) {
  constexpr size_t kCrates = 3;
  const std::vector<std::string> before = OpenFds();
  {
    std::vector<NamedFd> inherited;
    std::vector<int> ins;
    for (size_t i = 0; i < kCrates; ++i) {
      int ends[2];
      const uint8_t how = input.Byte();
      const int type = (how & 8) != 0 ? SOCK_DGRAM : SOCK_SEQPACKET;
      if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
      ins.push_back(ends[0]);
      const std::string name = absl::StrCat("c", i % (1 + how % 3));
      for (const int end : ends) inherited.push_back({name, UniqueFd(end)});
    }
    while (!input.empty()) {
      const uint8_t how = input.Byte();
      const absl::string_view name = input.Word(255);
      CheckName(name);
      const UniqueFd fd(eventfd(0, EFD_CLOEXEC));
      const int number = fd.get();
      (void)gpumem::SendMessage(
          ins[how % kCrates], name,
          (how & 4) != 0 ? absl::Span<const int>() : absl::MakeConstSpan(&number, 1),
          absl::InfinitePast());
    }
    // A half of a crate: the manager has dropped the other one.
    if (input.size() % 2 == 0) std::swap(inherited.front(), inherited.back());
    FdStore store;
    FdCrates crates(store);
    const absl::StatusOr<std::vector<NamedFd>> found = crates.Adopt(inherited);
    if (found.ok()) {
      for (const NamedFd& each : *found) {
        FUZZ_CHECK(each.fd.valid());
        FUZZ_CHECK(crates.Remove(each.name).ok());
      }
      FUZZ_CHECK(crates.size() == 0);
    }
  }
  FUZZ_CHECK(OpenFds() == before);
}

void Environment(FuzzInput& input) {
  for (const char* variable : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "FDSTORE",
                               "GPUMEM_KEEPER_PID", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    const uint8_t how = input.Byte();
    std::string value(input.Word(255));
    value = value.substr(0, value.find('\0'));
    // A million names are as good as more.
    if (absl::string_view(variable) == "LISTEN_FDS")
      value.resize(std::min<size_t>(value.size(), 6));
    if (how % 4 == 1) value = absl::StrCat(getpid());
    if (how % 4 != 0) setenv(variable, value.c_str(), 1);
  }
  const absl::StatusOr<ManagerEnvironment> taken = TakeManagerEnvironment();
  FUZZ_CHECK(std::getenv("LISTEN_FDS") == nullptr && std::getenv("WATCHDOG_PID") == nullptr);
  FUZZ_CHECK(taken.ok() || absl::IsInvalidArgument(taken.status()));
  if (taken.ok() && taken->watchdog) FUZZ_CHECK(*taken->watchdog > absl::ZeroDuration());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  if (input.Bool()) {
    Environment(input);
  } else {
    Crates(input);
  }
  return 0;
}

}  // namespace gpumemd
