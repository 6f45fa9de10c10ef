// SPDX-License-Identifier: Apache-2.0
// Attacks by the pages in which sessions read their tenants' memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"

namespace gpumem::hostile {
namespace {

constexpr char kOpenMemoryPage[] = "/gpumem.v1.Broker/OpenMemoryPage";
constexpr size_t kPage = 4096;

// Counts what a descriptor of the page lets its owner change.
void TryToChange(int fd, Tally* tally) {
  const char byte = 1;
  uint64_t& changed = (*tally)["changed"];
  changed += ::pwrite(fd, &byte, 1, 0) == 1 ? 1 : 0;
  changed += ::ftruncate(fd, 0) == 0 ? 1 : 0;
  changed += ::ftruncate(fd, 64 * kPage) == 0 ? 1 : 0;
  changed += ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPage) == 0 ? 1 : 0;
  void* const writable = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  changed += writable != MAP_FAILED ? 1 : 0;
  if (writable != MAP_FAILED) ::munmap(writable, kPage);
  void* const readable = ::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, fd, 0);
  if (readable == MAP_FAILED) return;
  changed += ::mprotect(readable, kPage, PROT_READ | PROT_WRITE) == 0 ? 1 : 0;
  ::munmap(readable, kPage);
}

}  // namespace

// Opens the page again and again, in new sessions too, and tries to write, shrink and grow it by
// each descriptor, also by one that it opens anew with /proc.
Tally PageStorm(const Orders& orders) {
  constexpr int kEach = 2000;
  Tally tally;
  while (!Over(orders)) {
    // The pages come by the session's socket, which is read here.
    std::optional<Caller> caller = NewCaller(orders, &tally, /*reads=*/false);
    if (!caller) continue;
    for (int i = 0; i < kEach && !Over(orders); ++i) {
      const auto opened = Call<v1::OpenMemoryPageResponse>(
          *caller, kOpenMemoryPage, v1::OpenMemoryPageRequest(), Patience(orders));
      if (!opened.ok()) {
        ++tally["refused"];
        break;
      }
      // The daemon sends it before the answer.
      const auto message = ReceiveMessage(caller->seat.session.get(), absl::InfinitePast());
      if (!message.ok() || message->fds.empty()) {
        ++tally["undelivered"];
        break;
      }
      ++tally["pages"];
      const int fd = message->fds.back().get();
      TryToChange(fd, &tally);
      const UniqueFd again(::open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDWR | O_CLOEXEC));
      if (again.valid()) TryToChange(again.get(), &tally);
    }
  }
  return tally;
}

}  // namespace gpumem::hostile
