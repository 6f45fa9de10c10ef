// SPDX-License-Identifier: Apache-2.0
// gpumemctl publish: a file, from the disk and from the page cache, to a device's memory. Beside
// the cost of reading alone (cat), and of the copy to the device alone.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cuda/staging.h"
#include "common/unique_fd.h"
#include "tests/bench/bed.h"
#include "tests/bench/benchmarks.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::bench {
namespace {

constexpr char kName[] = "published-file";

// A file of bytes that no file system stores as less than they are.
class TheFile {
 public:
  explicit TheFile(uint64_t bytes) : bytes_(bytes) {
    UniqueFd fd(mkstemp(path_));
    std::vector<uint64_t> piece(kMiB / sizeof(uint64_t));
    uint64_t state = 1;
    for (uint64_t done = 0; done < bytes; done += kMiB) {
      for (uint64_t& word : piece)
        word = state = state * 6364136223846793005u + 1442695040888963407u;
      if (write(fd.get(), piece.data(), kMiB) != static_cast<ssize_t>(kMiB)) {
        OrDie(absl::InternalError("cannot write the file"), path_);
      }
    }
    OrDie(fdatasync(fd.get()) == 0 ? absl::OkStatus() : absl::InternalError("fdatasync"), path_);
  }
  ~TheFile() { unlink(path_); }
  TheFile(const TheFile&) = delete;
  TheFile& operator=(const TheFile&) = delete;

  const char* path() const { return path_; }
  uint64_t bytes() const { return bytes_; }

  // Into the page cache, or out of it.
  void Place(bool cached) const {
    const UniqueFd fd(open(path_, O_RDONLY | O_CLOEXEC));
    if (!cached) {
      posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
      return;
    }
    std::vector<char> piece(kMiB);
    while (read(fd.get(), piece.data(), piece.size()) > 0) {
    }
  }

 private:
  char path_[32] = "/tmp/gpumem-bench-XXXXXX";
  const uint64_t bytes_;
};

void Run(const std::vector<std::string>& args) {
  testing::Child child(args);
  const int code = child.Wait();
  if (code != 0) OrDie(absl::InternalError(absl::StrCat("exit code ", code)), args[0]);
}

std::string Way(bool cached) { return cached ? "cached" : "disk"; }

void Cat(benchmark::State& state, const TheFile& file, bool cached) {
  const std::string name = absl::StrCat("cat/", Way(cached));
  for (auto _ : state) {
    file.Place(cached);
    Count(state, name, Time([&] {
            Run({"/bin/sh", "-c", absl::StrCat("cat ", file.path(), " > /dev/null")});
          }));
  }
  Report(state, name);
}

void PublishFile(benchmark::State& state, const TheFile& file, bool cached, bool checksum) {
  const std::string name = absl::StrCat("publish/", Way(cached), checksum ? "" : "/no-checksum");
  const std::string command =
      absl::StrCat(testing::ProgramPath("gpumemctl"), " --runtime-dir ", bed->daemon->runtime_dir(),
                   " publish ", kName, " --file ", file.path(), " --as fresh",
                   checksum ? "" : " --no-checksum", " > /dev/null");
  for (auto _ : state) {
    file.Place(cached);
    Count(state, name, Time([&] { Run({"/bin/sh", "-c", command}); }));
    OrDie(bed->fresh->Unpublish(kName), "unpublish");
    Settle(*bed->fresh);
    WaitForDriver();
  }
  Report(state, name);
}

// Measures a process that only makes a context: no copy is possible without one.
void Begin(benchmark::State& state) {
  for (auto _ : state) {
    Count(state, "publish/begin", Time([] {
            Run({"/proc/self/exe", "--role", "copier", bed->device.uuid});
          }));
  }
  Report(state, "publish/begin");
}

// Copies the same amount from pinned memory, as fast as the copy engine can.
void CopyIn(benchmark::State& state, uint64_t bytes) {
  const Segment segment = OrDie(bed->fresh->Acquire({.bytes = bytes}), "acquire");
  const auto staging = OrDie(Staging::ForCuda(segment.device_uuid()), "staging");
  for (auto _ : state) {
    Count(state, "copy", Time([&] {
            for (uint64_t offset = 0; offset < bytes; offset += Staging::kPieceBytes) {
              const int slot = static_cast<int>(offset / Staging::kPieceBytes % Staging::kSlots);
              OrDie(staging->StartIn(slot, static_cast<char*>(segment.data()) + offset,
                                     Staging::kPieceBytes),
                    "copy");
            }
            for (int slot = 0; slot < Staging::kSlots; ++slot) {
              OrDie(staging->Finish(slot), "copy");
            }
          }));
  }
  Report(state, "copy");
}

}  // namespace

int RunCopier(const std::vector<std::string>& args) {
  if (args.empty()) return 2;
  OrDie(Staging::ForCuda(args[0]), "staging");
  return 0;
}

void RegisterPublish(uint64_t bytes) {
  auto file = std::make_shared<std::unique_ptr<TheFile>>();
  // Made by the first that needs it.
  const auto the_file = [=]() -> const TheFile& {
    if (*file == nullptr) *file = std::make_unique<TheFile>(bytes);
    return **file;
  };
  for (const bool cached : {false, true}) {
    Add(absl::StrCat("Cat/", Way(cached)), 3, [=](auto& state) { Cat(state, the_file(), cached); });
    Add(absl::StrCat("PublishFile/", Way(cached)), 3,
        [=](auto& state) { PublishFile(state, the_file(), cached, true); });
  }
  Add("PublishFile/cached/no-checksum", 3,
      [=](auto& state) { PublishFile(state, the_file(), true, false); });
  if (bed->device.backend == Backend::kHost) return;  // nothing is copied there
  Add("PublishFile/copy", 5, [=](auto& state) { CopyIn(state, bytes); });
  Add("PublishFile/begin", 5, Begin);
}

void PrintPublish() {
  auto& s = AllSamples();
  PrintTableHead("gpumemctl publish of one file");
  const double copy = s["copy"].Median();
  for (const bool cached : {false, true}) {
    const double publish = s[absl::StrCat("publish/", Way(cached))].Median();
    PrintRow(absl::StrCat("publish, ", Way(cached)), publish, "cat FILE >/dev/null",
             s[absl::StrCat("cat/", Way(cached))].Median());
    PrintRow("  the same", publish, "the copy to the device alone", copy);
  }
  PrintRow("  without a checksum", s["publish/cached/no-checksum"].Median(),
           "the copy to the device alone", copy);
  PrintRow("of it, to begin", s["publish/begin"].Median(), "the copy to the device alone", copy);
}

}  // namespace gpumem::bench
