// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit/audit_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "common/unique_fd.h"
#include "daemon/audit/audit_text.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

AuditRecord Record(const std::string& tenant) {
  return {.event = AuditEvent::kQuotaSet, .tenant = tenant};
}

class AuditOutputTest : public ::testing::Test {
 protected:
  AuditOutputTest() {
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~AuditOutputTest() override { std::filesystem::remove_all(folder_); }

  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // A journal of the test's own.
  UniqueFd Listen(const std::string& path) {
    UniqueFd journal(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(journal.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return journal;
  }
  // The next entry, be it in the datagram or in a descriptor.
  static std::string Receive(int journal) {
    std::string bytes(1 << 20, '\0');
    iovec data{bytes.data(), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{.msg_iov = &data,
                   .msg_iovlen = 1,
                   .msg_control = control,
                   .msg_controllen = sizeof(control)};
    const ssize_t size = ::recvmsg(journal, &message, MSG_CMSG_CLOEXEC);
    bytes.resize(size < 0 ? 0 : static_cast<size_t>(size));
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr) return bytes;
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(number));
    const UniqueFd fd(number);
    struct stat found;
    EXPECT_EQ(::fstat(fd.get(), &found), 0);
    bytes.resize(static_cast<size_t>(found.st_size));
    EXPECT_EQ(::pread(fd.get(), bytes.data(), bytes.size(), 0), found.st_size);
    return bytes;
  }

  std::string folder_;
};

TEST_F(AuditOutputTest, AFileGetsLinesAtItsEnd) {
  const std::string path = folder_ + "/audit.json";
  std::ofstream(path) << "before\n";
  auto output = OpenAuditFile(path);
  ASSERT_TRUE(output.ok()) << output.status();
  ASSERT_TRUE((*output)->Write(Record("a")).ok());
  ASSERT_TRUE((*output)->Write(Record("b")).ok());
  EXPECT_EQ(Read(path), "before\n" + ToJson(Record("a")) + "\n" + ToJson(Record("b")) + "\n");
}

TEST_F(AuditOutputTest, AFileThatWasMovedAwayIsFollowedByAnother) {
  const std::string path = folder_ + "/audit.json";
  auto output = OpenAuditFile(path);
  ASSERT_TRUE(output.ok()) << output.status();
  ASSERT_TRUE((*output)->Write(Record("a")).ok());
  std::filesystem::rename(path, path + ".1");
  ASSERT_TRUE((*output)->Write(Record("b")).ok());
  (*output)->Reopen();
  ASSERT_TRUE((*output)->Write(Record("c")).ok());
  EXPECT_EQ(Read(path + ".1"), ToJson(Record("a")) + "\n" + ToJson(Record("b")) + "\n");
  EXPECT_EQ(Read(path), ToJson(Record("c")) + "\n");
}

TEST_F(AuditOutputTest, OthersDoNotReadTheFile) {
  const mode_t mask = ::umask(0);
  ASSERT_TRUE(OpenAuditFile(folder_ + "/audit.json").ok());
  ::umask(mask);
  struct stat found;
  ASSERT_EQ(::stat((folder_ + "/audit.json").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0640u);
}

TEST_F(AuditOutputTest, AFileThatCannotBeOpenedIsNamed) {
  const auto output = OpenAuditFile(folder_ + "/none/audit.json");
  ASSERT_FALSE(output.ok());
  EXPECT_THAT(std::string(output.status().message()), ::testing::HasSubstr("/none/audit.json"));
}

// Points standard error at a pipe while it lives.
class StderrPipe {
 public:
  StderrPipe() : saved_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10)) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader_ = UniqueFd(ends[0]);
    writer_ = UniqueFd(ends[1]);
    ::dup2(writer_.get(), STDERR_FILENO);
  }
  ~StderrPipe() { ::dup2(saved_.get(), STDERR_FILENO); }

  // Returns the number of bytes after which a further one would block its writer.
  size_t Fill() {
    const UniqueFd filler(::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    const std::string page(4096, '.');
    size_t bytes = 0;
    while (::write(filler.get(), page.data(), page.size()) > 0) bytes += page.size();
    return bytes;
  }
  std::string Read(size_t bytes) {
    std::string text(bytes, '\0');
    size_t have = 0;
    while (have < bytes) {
      const ssize_t n = ::read(reader_.get(), text.data() + have, bytes - have);
      if (n <= 0) break;
      have += static_cast<size_t>(n);
    }
    text.resize(have);
    return text;
  }

 private:
  UniqueFd saved_, reader_, writer_;
};

TEST_F(AuditOutputTest, StandardErrorThatNoProcessReadsIsAnErrorAndBlocksNoThread) {
  const std::unique_ptr<AuditOutput> output = AuditToStderr();
  const std::string line = ToJson(Record("a")) + "\n";
  absl::Status written;
  std::string read;
  {
    StderrPipe pipe;
    const size_t filled = pipe.Fill();
    written = output->Write(Record("a"));  // would hang here
    pipe.Read(filled);
    EXPECT_EQ(output->Write(Record("a")), absl::OkStatus());
    read = pipe.Read(line.size());
  }
  EXPECT_EQ(written.code(), absl::StatusCode::kDeadlineExceeded) << written;
  EXPECT_EQ(read, line);
}

TEST_F(AuditOutputTest, TheJournalGetsEntries) {
  const UniqueFd journal = Listen(folder_ + "/journal");
  const auto output = AuditToJournal(folder_ + "/journal");
  ASSERT_TRUE(output->Write(Record("a")).ok());
  EXPECT_EQ(Receive(journal.get()), ToJournal(Record("a")));
}

TEST_F(AuditOutputTest, WhatIsTooLargeForADatagramGoesAsAFile) {
  const UniqueFd journal = Listen(folder_ + "/journal");
  const auto output = AuditToJournal(folder_ + "/journal");
  AuditRecord large = Record("a");
  large.changes.assign(20'000, "limit_bytes: 123456789 -> 987654321");
  const absl::Status written = output->Write(large);
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_EQ(Receive(journal.get()), ToJournal(large));
}

TEST_F(AuditOutputTest, AJournalThatComesBackIsFound) {
  const std::string path = folder_ + "/journal";
  const auto output = AuditToJournal(path);
  EXPECT_FALSE(output->Write(Record("a")).ok());
  UniqueFd journal = Listen(path);
  EXPECT_TRUE(output->Write(Record("a")).ok());
  journal.reset();
  EXPECT_FALSE(output->Write(Record("b")).ok());
  ::unlink(path.c_str());
  journal = Listen(path);
  EXPECT_TRUE(output->Write(Record("b")).ok());
  EXPECT_EQ(Receive(journal.get()), ToJournal(Record("b")));
}

TEST_F(AuditOutputTest, AJournalThatIsSlowIsWaitedFor) {
  const UniqueFd journal = Listen(folder_ + "/journal");
  const auto output = AuditToJournal(folder_ + "/journal");
  constexpr int kRecords = 2000;  // more than its queue takes
  std::thread reader([&] {
    for (int i = 0; i < kRecords; ++i) {
      const std::string entry = Receive(journal.get());
      ASSERT_EQ(entry, ToJournal(Record(std::to_string(i))));
    }
  });
  for (int i = 0; i < kRecords; ++i) {
    ASSERT_TRUE(output->Write(Record(std::to_string(i))).ok()) << i;
  }
  reader.join();
}

}  // namespace
}  // namespace gpumemd
