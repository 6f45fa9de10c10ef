// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace gpumemd::simulation {
namespace {

thread_local AllocationListener* listening = nullptr;

void* Allocate(size_t bytes, size_t alignment) {
  if (listening != nullptr) {
    AllocationListener* const listener = std::exchange(listening, nullptr);
    listener->Allocates();
    listening = listener;
  }
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
                           ? std::malloc(bytes)
                           : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

AllocationListener* ListenToAllocations(AllocationListener* listener) {
  return std::exchange(listening, listener);
}

}  // namespace gpumemd::simulation

// All forms: by default some of them call others, but not under AddressSanitizer.
void* operator new(size_t bytes) {
  return gpumemd::simulation::Allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return gpumemd::simulation::Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return operator new(bytes, alignment);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return operator new(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return operator new(bytes, alignment);
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return operator new(bytes, alignment);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
