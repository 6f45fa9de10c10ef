// SPDX-License-Identifier: Apache-2.0
// The real driver: its functions, and which stub stands for each of them.
#pragma once

#include <stddef.h>

#include "client/preload/elf.h"
#include "client/preload/functions.h"

namespace gpumem::preload {

// The real functions, by their exported names. What the driver lacks answers NOT_SUPPORTED.
struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares a member of that name.
#define GPUMEM_PRELOAD_MEMBER(name) decltype(&::name) name;
  GPUMEM_PRELOAD_STUBS(GPUMEM_PRELOAD_MEMBER)
  GPUMEM_PRELOAD_CALLED(GPUMEM_PRELOAD_MEMBER)
#undef GPUMEM_PRELOAD_MEMBER
};

// Returns the driver. Loads libcuda.so.1 if the program has not; if there is none, all functions
// answer NO_DEVICE. Thread-safe; the same object for the life of the process.
const Driver& RealDriver();

// True if libcuda is loaded. Does not load it.
bool DriverIsLoaded();

// A function of this library that takes the place of one of the driver.
struct Stub {
  const char* name;
  void* function;
  size_t member;  // offset in Driver of what calls the real one
};

// Returns all stubs.
const Stub* Stubs(size_t* count);

// Returns the driver's object, in which the functions of RealDriver() are. Null if there is none.
const LoadedObject* DriverObject();

// Has all calls of the real function that the stub stands for go to `function` instead.
void Rebind(const Stub& stub, void* function);

// Returns the stub for a real function's address, or the address itself. Loads no libcuda.
void* StubFor(void* address);

// True if the preload has a stub of that name.
bool HasStub(const char* name);

// True if a code address belongs to the driver, to NVML or to gpumem, which must see no stubs.
bool IsInDriver(const void* address);

// Returns dlsym() or dlvsym() of the C library, found without calling them; null if there is none.
void* RealDlsym();
void* RealDlvsym();

// Loads a library as dlopen() does, which the preload does not link: it was in another library
// before glibc 2.34.
void* OpenLibrary(const char* path, int flags);

// In a child after fork(): another thread may have been at work here. False if the process has
// called nothing of the driver so far.
bool AbandonDriver();

// Marks a call of the program while the preload works on it. Calls that the driver, or the plug-in,
// makes to the driver's exported names meanwhile are passed on. So are those of a CUPTI callback,
// which the driver calls inside the program's call: what they allocate is not charged.
class Entry {
 public:
  Entry() : driver(RealDriver()), outermost(depth_++ == 0) {}
  ~Entry() { --depth_; }
  // All calls of the calling thread are passed on from now on. By injection, those of libgpumem
  // reach the stubs, too.
  static void PassOn() {
    if (depth_ == 0) depth_ = 1;
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  const Driver& driver;
  const bool outermost;

 private:
  static constinit thread_local int depth_;
};

// Lets the thread make calls that a capture in another thread forbids.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { Exchange(); }
  ~RelaxedCapture() { Exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void Exchange() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace gpumem::preload
