// SPDX-License-Identifier: Apache-2.0
// Only of a library that the driver loads (CUDA_INJECTION64_PATH).
#include <fstream>
#include <string>
#include <vector>

#include "tests/preload/run_preloaded.h"

namespace gpumem::preload {
namespace {

const std::vector<std::string> kEight = {"8", "8"};

class InjectionTest : public PreloadTest {
 protected:
  void SetUp() override {
    PreloadTest::SetUp();
    SkipsInjection();
  }
  Finished Ways(Via via = Via::kInjection) {
    return Run({Path("WAYS_DLSYM"), "alloc", std::to_string(32 * kMiB)}, via);
  }
};

TEST_F(InjectionTest, ReachesAProgramThatClearsThePreload) {
  preloads = Path("PRELOAD");
  Finished run = Run(
      {"/usr/bin/env", "-u", "LD_PRELOAD", Path("WAYS_DLSYM"), "alloc", std::to_string(32 * kMiB)},
      Via::kInjection);
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.values("got"), kEight) << run.output;
  EXPECT_EQ(processes(), 1u);
}

TEST_F(InjectionTest, DoesNothingUnderThePreload) {
  environment["CUDA_INJECTION64_PATH"] = Path("PRELOAD");
  // It would be needed.
  environment["GPUMEM_PRELOAD_RELOCATOR"] = "/no/such/library.so";
  Finished run = Ways(Via::kPreload);
  EXPECT_EQ(run.errors, "");
  EXPECT_EQ(run.values("got"), kEight) << run.output;
  EXPECT_EQ(processes(), 1u);
  EXPECT_EQ(contexts(), 0u);
}

TEST_F(InjectionTest, DoesNothingUnderACopyOfThePreload) {
  const std::string copy = ::testing::TempDir() + "/renamed.so";
  std::ofstream(copy, std::ios::binary) << std::ifstream(Path("PRELOAD"), std::ios::binary).rdbuf();
  preloads = copy;
  environment["GPUMEM_PRELOAD_RELOCATOR"] = "/no/such/library.so";
  Finished run = Ways();
  EXPECT_EQ(run.errors, "");
  EXPECT_EQ(run.values("got"), kEight) << run.output;
  EXPECT_EQ(processes(), 1u);
}

// As without a plug-in: nothing is granted, in the driver's own words, and a line says why.
TEST_F(InjectionTest, RefusesWithoutTheRelocator) {
  environment["GPUMEM_PRELOAD_RELOCATOR"] = "/no/such/library.so";
  Finished run = Ways();
  EXPECT_EQ(run.status, 4);
  EXPECT_EQ(run.errors,
            "libgpumem-preload: injection: libgpumem-relocator.so cannot be loaded; every request "
            "for device memory is refused\ncontext: 2\n");
  EXPECT_EQ(driver_peak(), 0u);
}

TEST_F(InjectionTest, RefusesIfAFunctionCannotBeReplaced) {
  environment["GPUMEM_PRELOAD_RELOCATOR"] = Path("REFUSING_RELOCATOR");
  Finished run = Ways();
  EXPECT_EQ(run.status, 4);
  EXPECT_EQ(run.errors,
            "libgpumem-preload: injection: cuMemFree_v2 is of no known kind; every request for "
            "device memory is refused\ncontext: 2\n");
  EXPECT_EQ(driver_peak(), 0u);
}

// Where memory that was writable may not become executable, not even a refusal can be written.
TEST_F(InjectionTest, EndsTheProgramWhereCodeMayNotBeChanged) {
  const std::string forbid =
      "import ctypes, os, sys\n"
      "PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1\n"
      "if ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0: "
      "sys.exit(77)\n"
      "os.execv(sys.argv[1], sys.argv[1:])\n";
  Finished run = Run(
      {"/usr/bin/python3", "-c", forbid, Path("WAYS_DLSYM"), "alloc", std::to_string(32 * kMiB)},
      Via::kInjection);
  if (run.status == 77) GTEST_SKIP() << "Linux 6.3 has the means for this test";
  EXPECT_EQ(run.status, 1);
  EXPECT_EQ(run.output, "");
  EXPECT_EQ(
      run.errors,
      "libgpumem-preload: injection: new code is not allowed; the program ends, as it cannot be "
      "held to its limit\n");
  EXPECT_EQ(driver_peak(), 0u);
}

TEST_F(InjectionTest, LooksForTheRelocatorBesideItself) {
  environment.erase("GPUMEM_PRELOAD_RELOCATOR");
  const std::string folder = ::testing::TempDir() + "/beside";
  ASSERT_EQ(Run({"/bin/mkdir", "-p", folder}, Via::kNone).status, 0);
  ASSERT_EQ(Run({"/bin/cp", "-f", Path("PRELOAD"), folder + "/injected.so"}, Via::kNone).status, 0);
  environment["CUDA_INJECTION64_PATH"] = folder + "/injected.so";
  EXPECT_NE(Ways(Via::kNone).errors.find("libgpumem-relocator.so cannot be loaded"),
            std::string::npos);
  ASSERT_EQ(
      Run({"/bin/cp", "-f", Path("RELOCATOR"), folder + "/libgpumem-relocator.so"}, Via::kNone)
          .status,
      0);
  EXPECT_EQ(Ways(Via::kNone).values("got"), kEight);
}

// Threads that start at the same time all call cuInit().
TEST_F(InjectionTest, ThreadsMayInitializeTogether) {
  for (int round = 0; round < 20; ++round) {
    const uint64_t before = used();  // the credit that earlier processes had when they ended
    Finished run = Run({Path("THREADS"), "8", "20", "together"}, Via::kInjection);
    ASSERT_EQ(run.status, 0) << run.output << run.errors;
    EXPECT_EQ(run.value("others"), "0");
    EXPECT_EQ(run.value("free"), std::to_string(256 * kMiB - before));
  }
}

}  // namespace
}  // namespace gpumem::preload
