// SPDX-License-Identifier: Apache-2.0
// Compares the table of treatments with the driver's functions in the toolkit's cuda.h.
#include "client/preload/treatments.h"

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "client/preload/toolkit.h"
#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

// The functions with their parameters, from the preprocessed header.
std::map<std::string, std::string> Declared() {
  std::ifstream file(std::getenv("GPUMEM_CUDA_DECLARATIONS"));
  std::stringstream contents;
  contents << file.rdbuf();
  const std::string text = contents.str();
  std::map<std::string, std::string> declared;
  const std::string mark = "CUresult";
  for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
    size_t name = text.find_first_not_of(" \n", at + mark.size());
    size_t open = text.find('(', name);
    size_t close = text.find(')', open);
    if (name == std::string::npos || close == std::string::npos) break;
    if (text.compare(name, 2, "cu") != 0) continue;
    declared[text.substr(name, open - name)] = text.substr(open, close - open) + ",";
  }
  return declared;
}

// True if a function by its name or its parameters may bring memory, or an object that has some.
bool MayAllocate(const std::string& name, const std::string& parameters) {
  for (const char* word : {"Alloc", "Create", "Import", "Open", "Malloc", "Register", "Retain",
                           "Load", "Instantiate", "Clone", "ExportTable"}) {
    if (name.find(word) != std::string::npos && name.find("Unregister") == std::string::npos) {
      return true;
    }
  }
  for (std::string type :
       {"CUdeviceptr", "CUdeviceptr_v1", "CUarray", "CUmipmappedArray", "CUmemoryPool",
        "CUmemGenericAllocationHandle", "CUcontext", "CUmodule", "CUlibrary", "CUgraphNode",
        "CUgraph", "CUgraphExec", "CUexternalMemory", "CUgreenCtx"}) {
    for (size_t at = parameters.find(type); at != std::string::npos;
         at = parameters.find(type, at + 1)) {
      bool whole = !std::isalnum(static_cast<unsigned char>(parameters[at - 1]));
      bool constant = at >= 6 && parameters.compare(at - 6, 6, "const ") == 0;
      size_t next = parameters.find_first_not_of(" \n", at + type.size());
      if (whole && !constant && parameters[next] == '*') return true;
    }
  }
  return false;
}

class TreatmentsTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if !GPUMEM_PRELOAD_BUILT
    GTEST_SKIP() << "built without CUDA";
#endif
  }
};

TEST_F(TreatmentsTest, KnowsEveryFunctionThatMayAllocate) {
  std::map<std::string, std::string> declared = Declared();
  ASSERT_GT(declared.size(), 500u);
  std::set<std::string> known;
  for (const Treated& treated : Treatments()) known.insert(treated.name);
  for (const auto& [name, parameters] : declared) {
    if (!MayAllocate(name, parameters)) continue;
    EXPECT_EQ(known.count(name), 1u) << name << " is not in treatments.cc or functions.h";
  }
}

// True if a function by its name uses device memory, or lets the GPU do so.
bool UsesMemory(const std::string& name) {
  for (const char* prefix : {"cuMemcpy", "cuMemset", "cuLaunch", "cuStreamWaitValue",
                             "cuStreamWriteValue", "cuStreamBatchMemOp", "cuMemBatchDecompress"}) {
    if (name.rfind(prefix, 0) == 0) return name.rfind("cuLaunchHostFunc", 0) != 0;
  }
  return false;
}

TEST_F(TreatmentsTest, HoldsEveryFunctionThatUsesMemory) {
  std::map<std::string, Treatment> treatments;
  for (const Treated& treated : Treatments()) treatments[treated.name] = treated.treatment;
  int held = 0;
  for (const auto& [name, parameters] : Declared()) {
    if (!UsesMemory(name)) continue;
    ASSERT_EQ(treatments.count(name), 1u) << name << " is not in GPUMEM_PRELOAD_GATE";
    EXPECT_EQ(treatments[name], Treatment::kHold) << name;
    ++held;
  }
  EXPECT_GT(held, 100);
}

TEST_F(TreatmentsTest, KnowsNoFunctionThatDoesNotExist) {
#if GPUMEM_PRELOAD_BUILT
  if (CUDA_VERSION < 13000) GTEST_SKIP() << "the table names functions that came with CUDA 13";
#endif
  std::map<std::string, std::string> declared = Declared();
  std::set<std::string> seen;
  for (const Treated& treated : Treatments()) {
    EXPECT_EQ(declared.count(treated.name), 1u) << treated.name;
    EXPECT_TRUE(seen.insert(treated.name).second) << treated.name << " is there twice";
    if (treated.treatment == Treatment::kPass) {
      EXPECT_STRNE(treated.reason, "");
    }
  }
}

// If one variant has a stub, all have: a program with per-thread default streams is held to the
// limit, too.
TEST_F(TreatmentsTest, TreatsVariantsAlike) {
  std::map<std::string, std::string> declared = Declared();
  std::map<std::string, Treatment> treatments;
  for (const Treated& treated : Treatments()) treatments[treated.name] = treated.treatment;
  for (const auto& [name, treatment] : treatments) {
    for (const char* suffix : {"_v2", "_v3", "_v4", "_ptsz", "_ptds"}) {
      std::string variant = name + suffix;
      if (declared.count(variant) == 0) continue;
      ASSERT_EQ(treatments.count(variant), 1u) << variant;
      EXPECT_EQ(treatments[variant], treatment) << variant;
    }
  }
}

}  // namespace
}  // namespace gpumem::preload
