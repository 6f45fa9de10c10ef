// SPDX-License-Identifier: Apache-2.0
// The benchmarks, by subject. Each function registers its benchmarks and, after they have run,
// prints its part of the table. All use the Bed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpumem::bench {

// Segments of the default kind: one, and as many as a model has.
void RegisterSegments();
void PrintSegments();

// The cost of a span of a trace, while none runs and while one runs.
void RegisterTraces();

// Records acquires and releases of 64 MiB, fresh and retained, for some seconds. Writes the
// daemon's spans and this process's to the file, and prints where the time goes. Returns an exit
// code. Makes the Bed; no benchmark runs.
int TraceAcquires(const std::string& backend, const std::string& path);

// Each kind beside its bare calls.
void RegisterKinds();
void PrintKinds();
int RunKeeper(const std::vector<std::string>& args);  // --role keeper

// One GPU reads another's memory. Registers nothing without two GPUs.
void RegisterPeers();
void PrintPeers();

// Contents to and from the host tier. Registers nothing without a GPU.
void RegisterTierCopy();
void PrintTierCopy();

// The daemon's own work: reclaims, holding ten thousand segments.
void RegisterDaemon();
void PrintDaemon();
int RunHolder(const std::vector<std::string>& args);  // --role holder

// The daemon under many clients and tenants.
void RegisterLoad(const std::string& backend);
void PrintLoad();
int RunLoader(const std::vector<std::string>& args);  // --role loader

// The cost of publishing files of `bytes` bytes.
void RegisterPublish(uint64_t bytes);
void PrintPublish();
int RunCopier(const std::vector<std::string>& args);  // --role copier

// The daemon's death, and the one that comes after it.
void RegisterContinuity(const std::string& backend);
void PrintContinuity();

// The daemon's journal, alone.
void RegisterJournal();

// The client pool beside other allocators.
struct PoolRun {
  uint64_t fragmentation_operations = 10'000'000;
  bool check_blocks = false;  // the times mean nothing then
};
void RegisterPool(const PoolRun& run);
void PrintPool();

}  // namespace gpumem::bench
