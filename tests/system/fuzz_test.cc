// SPDX-License-Identifier: Apache-2.0
// Random and mangled messages of every type to all three sockets, from a seed. Whatever
// comes, the daemon answers with a documented status, goes on, and keeps nothing.
//
// GPUMEM_FUZZ_ROUNDS and GPUMEM_FUZZ_SEED ask for more than the default.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/attack.h"
#include "tests/support/child.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"
#include "tests/system/testing/fuzzer.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Fuzzer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

class Fuzz : public testing::AttackTest {
 protected:
  void SetUp() override {
    Start({.config = absl::StrCat(testing::kAttackConfig, "[tier]\ncapacity = \"64MiB\"\n")});
  }
};

TEST_F(Fuzz, RandomMessagesDoNotBreakTheDaemon) {
  const uint64_t rounds = FromEnvironment("GPUMEM_FUZZ_ROUNDS", 16000);
  const uint64_t seed = FromEnvironment("GPUMEM_FUZZ_SEED", 1);
  // Other processes: the memory held at the end of one goes with it, and makes room for the next.
  constexpr uint64_t kRoundsOfOne = 500;
  std::string answers;
  // Answers of random messages that have got somewhere.
  const auto missing = [&] {
    std::vector<std::string> words;
    for (const char* answer :
         {"Acquire:OK", "Open:OK", "Share:OK", "Release:OK", "GetUsage:OK", "Hello:OK",
          "ListSegments:OK", "SetQuota:OK", "Trim:OK", "RegisterIpcEvent:OK", "ListPools:OK",
          "CancelSuspend:OK", "Acquire:INVALID_ARGUMENT", "Acquire:RESOURCE_EXHAUSTED",
          "Open:NOT_FOUND", "Release:NOT_FOUND"}) {
      if (!absl::StrContains(answers, answer)) words.push_back(answer);
    }
    return words;
  };
  // Each method that is added makes the others rarer: some take more rounds.
  for (uint64_t done = 0; done < rounds || (done < 4 * rounds && !missing().empty());
       done += kRoundsOfOne) {
    Child fuzzer = Child::Self({"--role", "fuzz", daemon_->runtime_dir(), absl::StrCat(seed + done),
                                absl::StrCat(kRoundsOfOne)});
    auto word = ReceiveMessage(fuzzer.channel(), absl::Now() + absl::Minutes(5));
    ASSERT_OK(word);
    ASSERT_THAT(word->bytes, HasSubstr("trouble: none;")) << "seed " << seed + done;
    absl::StrAppend(&answers, word->bytes, " ");
    EXPECT_EQ(fuzzer.Wait(), 0);
  }
  EXPECT_THAT(missing(), IsEmpty());
  // A message by chance may have published memory for good, which outlives its session.
  const auto admin = v1::Admin::NewStub(admin_channel_);
  v1::ListPublicationsResponse kept;
  ASSERT_TRUE(admin->ListPublications(testing::ContextWith().get(), {}, &kept).ok());
  for (const v1::PublicationInfo& publication : kept.publications()) {
    v1::UnpublishRequest request;
    v1::UnpublishResponse response;
    request.set_name(absl::StrCat(publication.tenant(), "/", publication.name()));
    EXPECT_TRUE(admin->Unpublish(testing::ContextWith().get(), request, &response).ok());
  }
}

int RunFuzzer(const std::string& dir, uint64_t seed, uint64_t rounds) {
  Fuzzer fuzzer(dir, seed);
  uint64_t round = 0;
  while (round < rounds && fuzzer.trouble().empty()) {
    fuzzer.Round();
    ++round;
  }
  const std::string trouble =
      fuzzer.trouble().empty() ? "none" : absl::StrCat("in round ", round, ", ", fuzzer.trouble());
  const std::string word = absl::StrCat("trouble: ", trouble, "; ", fuzzer.Summary());
  return SendMessage(3, word, {}, absl::InfiniteFuture()).ok() ? 0 : 1;
}

}  // namespace

int RunRole(char** args) {
  uint64_t seed, rounds;
  if (!absl::SimpleAtoi(args[1], &seed) || !absl::SimpleAtoi(args[2], &rounds)) return 2;
  return RunFuzzer(args[0], seed, rounds);
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--role") return gpumem::RunRole(argv + 3);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
