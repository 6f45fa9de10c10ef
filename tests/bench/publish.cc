// SPDX-License-Identifier: Apache-2.0
// gpumemctl publish and PublishFiles: a file, from the disk and from the page cache, to a device's
// memory. Beside the cost of reading alone (cat, dd past the cache, several threads), of the copy
// to the device alone, and of both by bare calls: threads that read into pinned rings and copy.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cuda/staging.h"
#include "common/unique_fd.h"
#include "gpumem/files.h"
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

// dd with O_DIRECT.
void Direct(benchmark::State& state, const TheFile& file) {
  for (auto _ : state) {
    file.Place(false);
    Count(state, "direct", Time([&] {
            Run({"/bin/sh", "-c",
                 absl::StrCat("dd if=", file.path(),
                              " of=/dev/null bs=16M iflag=direct 2> /dev/null")});
          }));
  }
  Report(state, "direct");
}

// Threads take the pieces of the file in order, each into a separate buffer.
void EachPiece(const TheFile& file,
               const std::function<void(int fd, uint64_t offset, int turn)>& read,
               const std::function<void(int thread)>& begin = nullptr) {
  std::atomic<uint64_t> next = 0;
  std::vector<std::thread> threads;
  const UniqueFd fd(open(file.path(), O_RDONLY | O_CLOEXEC));
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 4u, 24u); ++i) {
    threads.emplace_back([&, i] {
      if (begin) begin(static_cast<int>(i));
      for (int turn = 0;; ++turn) {
        const uint64_t offset = Staging::kPieceBytes * next++;
        if (offset >= file.bytes()) return;
        read(fd.get(), offset, turn);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void ReadPiece(int fd, uint64_t offset, void* buffer) {
  OrDie(pread(fd, buffer, Staging::kPieceBytes, static_cast<off_t>(offset)) ==
                static_cast<ssize_t>(Staging::kPieceBytes)
            ? absl::OkStatus()
            : absl::InternalError("pread"),
        "read");
}

void Threads(benchmark::State& state, const TheFile& file, bool cached) {
  const std::string name = absl::StrCat("threads/", Way(cached));
  for (auto _ : state) {
    file.Place(cached);
    Count(state, name, Time([&] {
            EachPiece(file, [](int fd, uint64_t offset, int) {
              thread_local std::vector<char> buffer(Staging::kPieceBytes);
              ReadPiece(fd, offset, buffer.data());
            });
          }));
  }
  Report(state, name);
}

// The figure to reach: bare threads that read into pinned rings and copy to memory that is there,
// with rings that are there, too; no checksum.
void Rings(benchmark::State& state, const TheFile& file) {
  const Segment segment = OrDie(bed->fresh->Acquire({.bytes = file.bytes()}), "acquire");
  std::vector<std::unique_ptr<Staging>> stagings;
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 4u, 24u); ++i) {
    stagings.push_back(OrDie(Staging::ForCuda(segment.device_uuid()), "staging"));
  }
  file.Place(true);
  for (auto _ : state) {
    Count(state, "rings", Time([&] {
            thread_local Staging* staging = nullptr;
            EachPiece(
                file,
                [&](int fd, uint64_t offset, int turn) {
                  const int slot = turn % Staging::kSlots;
                  void* const mapped = static_cast<char*>(segment.data()) + offset;
                  OrDie(staging->Finish(slot), "copy");
                  ReadPiece(fd, offset, staging->Buffer(slot, mapped));
                  OrDie(staging->StartIn(slot, mapped, Staging::kPieceBytes), "copy");
                },
                [&](int thread) { staging = stagings[thread].get(); });
            for (const auto& each : stagings) {
              for (int slot = 0; slot < Staging::kSlots; ++slot) OrDie(each->Finish(slot), "copy");
            }
          }));
  }
  Report(state, "rings");
}

// PublishFiles in a process that has a context.
void PublishInProcess(benchmark::State& state, const TheFile& file, bool checksum) {
  const std::string name = checksum ? "library" : "library/no-checksum";
  file.Place(true);
  for (auto _ : state) {
    Count(state, name, Time([&] {
            OrDie(PublishFiles(*bed->fresh, kName, {file.path()}, {.checksums = checksum}),
                  "publish");
          }));
    OrDie(bed->fresh->Unpublish(kName), "unpublish");
    Settle(*bed->fresh);
    WaitForDriver();
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
  Add("PublishFile/direct", 3, [=](auto& state) { Direct(state, the_file()); });
  for (const bool cached : {false, true}) {
    Add(absl::StrCat("PublishFile/threads/", Way(cached)), 3,
        [=](auto& state) { Threads(state, the_file(), cached); });
  }
  for (const bool checksum : {true, false}) {
    Add(absl::StrCat("PublishFile/library", checksum ? "" : "/no-checksum"), 5,
        [=](auto& state) { PublishInProcess(state, the_file(), checksum); });
  }
  if (bed->device.backend == Backend::kHost) return;  // nothing is copied there
  Add("PublishFile/rings", 5, [=](auto& state) { Rings(state, the_file()); });
  Add("PublishFile/copy", 5, [=](auto& state) { CopyIn(state, bytes); });
  Add("PublishFile/begin", 5, Begin);
}

void PrintPublish() {
  auto& s = AllSamples();
  PrintTableHead("publish of one file");
  const double copy = s["copy"].Median();
  const double rings = s["rings"].Median();
  for (const bool cached : {false, true}) {
    const double publish = s[absl::StrCat("publish/", Way(cached))].Median();
    PrintRow(absl::StrCat("gpumemctl publish, ", Way(cached)), publish, "cat FILE >/dev/null",
             s[absl::StrCat("cat/", Way(cached))].Median());
    PrintRow("  the same", publish, "several threads that read",
             s[absl::StrCat("threads/", Way(cached))].Median());
    if (!cached) PrintRow("  the same", publish, "dd iflag=direct", s["direct"].Median());
    PrintRow("  the same", publish, "the copy to the device alone", copy);
  }
  PrintRow("  without a checksum", s["publish/cached/no-checksum"].Median(),
           "the copy to the device alone", copy);
  PrintRow("  of it, to begin", s["publish/begin"].Median(), "the copy to the device alone", copy);
  PrintRow("PublishFiles, cached", s["library"].Median(), "bare threads with pinned rings", rings,
           "1.25");
  PrintRow("  without a checksum", s["library/no-checksum"].Median(),
           "bare threads with pinned rings", rings);
  PrintRow("bare threads with pinned rings", rings, "the copy to the device alone", copy);
}

}  // namespace gpumem::bench
