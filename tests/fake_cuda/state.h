// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 over host memory, so that programs of the driver API run where there is no GPU.
//
// It keeps the driver's rules as far as gpumem's code meets them: who may call what when, error
// codes, what memory belongs to, how pools grow. Work on streams is done at once. What it does not
// do it does not export. Environment:
//   FAKE_CUDA_DEVICES  how many devices there are; 1 by default
//   FAKE_CUDA_MEMORY   the bytes of each; 1 GiB by default
//   FAKE_CUDA_REFUSE_RETAIN  a file: while it exists, no handle is retained by an address
//   FAKE_CUDA_PEAKS    a file for the most that each had in use, written when the process ends
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "client/preload/toolkit.h"

namespace fake_cuda {

// Work of a stream that has to wait (work.h).
struct Work {
  uint64_t number = 0;          // in the order of submission to any stream
  std::function<bool()> ready;  // null: yes
  std::function<void()> run;
};

}  // namespace fake_cuda

// Opaque to programs. They are in the global namespace, as cuda.h declares them there.
struct CUctx_st {
  int device;
  bool primary;
  int references = 1;  // of cuCtxAttach()
};
struct CUstream_st {
  CUctx_st* context;
  CUgraph graph = nullptr;  // being captured into
  bool broken = false;      // the capture is invalid
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t capture_id = 0;
  unsigned int flags = 0;  // of cuStreamCreate()
  std::deque<fake_cuda::Work> work = {};
};
struct CUevent_st {
  CUcontext context;
  std::shared_ptr<bool> done;  // null: not recorded
};
struct CUmemPoolHandle_st {
  int device;  // -1: in host memory
  bool standard = false;
  bool destroyed = false;
  uint64_t threshold = 0;
  uint64_t reserved = 0;
  uint64_t used = 0;
  uint64_t reserved_high = 0;
  uint64_t used_high = 0;
  // CU_MEMPOOL_ATTR_REUSE_...
  int follow_events = 1;
  int opportunistic = 1;
  int internal_dependencies = 1;
};

// Sets the hook at the end of a function, once: another thread may come in between there. For
// those functions that have a CallHook().
extern "C" void fake_cuda_set_hook(const char* function, void (*hook)());

namespace fake_cuda {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kPage = 2 * kMiB;
// What a context takes of its device.
constexpr uint64_t kContextMemory = 16 * kMiB;

enum class Kind { kDevice, kManaged, kPool, kHost, kMapped, kGraph, kIpc };

struct Allocation {
  Kind kind;
  uint64_t size;
  int device;
  CUctx_st* context = nullptr;
  CUmemoryPool pool = nullptr;
  void* host = nullptr;  // to free; null if the memory is another object's
  int exported_fd = -1;  // the memory as a file, once another process may have it
};

struct Device {
  uint64_t total = 0;
  uint64_t used = 0;
  uint64_t peak = 0;
  CUctx_st primary = {0, true};
  int primary_references = 0;
  CUmemPoolHandle_st pool = {};
  CUmemoryPool current_pool = nullptr;
  uint64_t graph_reserved = 0;
};

// Everything, under one lock.
struct State {
  std::recursive_mutex mutex;
  bool initialized = false;
  long initialized_in = 0;  // the process; a child after fork() has to do without
  std::vector<Device> devices;
  std::set<CUcontext> contexts;
  std::set<CUstream> streams;
  std::map<uint64_t, Allocation> allocations;  // by address
  int global_captures = 0;
  CUstream_st legacy = {nullptr};
  CUstream_st per_thread = {nullptr};
  std::vector<CUstream> orphans;  // destroyed, with work pending
  uint64_t last_work = 0;
};

State& TheState();

// Locks the state for a call of the program, and says whether it may be made.
class Call {
 public:
  Call() : state(TheState()), lock_(state.mutex) {}

  // CUDA_SUCCESS, or why calls are refused now: no cuInit(), or one in the parent process.
  CUresult Ready() const;
  // The same, and the thread needs a context.
  CUresult ReadyIn(CUcontext* context) const;

  State& state;

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

// The thread's mode for calls that a capture forbids (cuThreadExchangeStreamCaptureMode).
CUstreamCaptureMode& ThreadCaptureMode();

// The thread's stack of contexts.
std::vector<CUcontext>& Contexts();

bool IsDevice(const State& state, CUdevice device);

// Takes device memory, or false if there is not that much.
bool TakeMemory(int device, uint64_t bytes);
void GiveMemory(int device, uint64_t bytes);

// Rounds up to a unit.
uint64_t RoundUp(uint64_t bytes, uint64_t unit);

// Finds the allocation that an address is in; null if there is none. Requires the lock.
Allocation* FindAllocation(State& state, uint64_t address, uint64_t* base);

// Gets host memory that stands for a device's, zeroed, and adds it. 0 without memory.
uint64_t AddAllocation(State& state, const Allocation& allocation);
// Removes an allocation and frees what it has of the host and the device.
void RemoveAllocation(State& state, uint64_t address);

// True if a call that waits for the device is forbidden to this thread by a capture, which it
// breaks.
bool ForbiddenByCapture(State& state);

// Calls the hook that the program has set for a function. No lock may be held.
void CallHook(const char* function);

// Frees what a context had.
void EmptyContext(State& state, CUcontext context);

// Closes memory of another process, in ipc.cc.
CUresult CloseImport(State& state, uint64_t address);

// Returns the handle types of the memory that is mapped at an address, in vmm.cc.
int HandleTypesOf(uint64_t base);

// Frees the mappings of a sparse array, in vmm.cc.
void DropTiles(const void* array);

// Frees what a device's pools have, in pool.cc.
void EmptyPools(State& state, int device);

}  // namespace fake_cuda
