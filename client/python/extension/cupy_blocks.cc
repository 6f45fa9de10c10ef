// SPDX-License-Identifier: Apache-2.0
#include "client/python/extension/cupy_blocks.h"

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "client/python/extension/call.h"

namespace gpumem::python::cupy {
namespace {

// The message of this thread's last refusal, if not gpumem_last_error()'s.
thread_local std::string refusal;

void End(State* state) {
  state->current_stream.Drop();
  state->hooks.Drop();
  Py_XDECREF(state->on_free);
  Py_XDECREF(state->on_new_stream);  // forgets its streams in the pool, which `chosen` keeps
  Py_XDECREF(reinterpret_cast<PyObject*>(state->chosen));
  delete state;
}

// True if the allocator is gone and no live or deferred blocks remain.
bool IsOver(const State& state) {
  return state.abandoned && state.giving == 0 && state.live.empty() && state.late.empty();
}

gpumem_pool* PoolOf(State& state, int device) {
  if (state.chosen != nullptr) {
    Refusal::status = GPUMEM_FAILED_PRECONDITION;
    if (state.chosen->closing || state.chosen->pointer == nullptr) {
      refusal = "the pool is closed";
      return nullptr;
    }
    if (device == state.chosen_device) {
      Refusal::status = GPUMEM_OK;
      return static_cast<gpumem_pool*>(state.chosen->pointer);
    }
    refusal = "the pool belongs to device " + std::to_string(state.chosen_device) +
              ", but CuPy's current device is " + std::to_string(device);
    return nullptr;
  }
  const auto index = static_cast<size_t>(device);
  if (index < state.defaults.size() && state.defaults[index] != nullptr) {
    return state.defaults[index];
  }
  gpumem_pool* pool = nullptr;
  Refusal::status = WithoutGil([&] { return gpumem_default_pool(device, &pool); });
  refusal.clear();
  if (index < state.defaults.size()) state.defaults[index] = pool;
  return pool;
}

// FAILED_PRECONDITION: the driver refuses, for example while a graph is captured.
int FreeAsCuda(gpumem_pool* pool, void* pointer, bool again) {
  const int status = WithoutGil([&] { return gpumem_pool_free_synchronized(pool, pointer); });
  if (status != GPUMEM_INTERNAL) return status;
  if (!again) {
    std::fprintf(stderr, "gpumem.cupy: %s; the next call that frees memory tries again\n",
                 gpumem_last_error());
  }
  return GPUMEM_FAILED_PRECONDITION;
}

int FreeInOrder(gpumem_pool* pool, void* pointer, void* stream) {
  int32_t is_free = 0;
  int status = gpumem_pool_try_free_pointer(pool, pointer, stream, &is_free);
  if (is_free == 0) {
    // Releases the GIL: it may wait for other threads, and they for this one.
    status = WithoutGil([&] {
      const int freed = gpumem_pool_free_pointer(pool, pointer, stream);
      // The stream may have been destroyed.
      return freed == GPUMEM_OK || freed == GPUMEM_FAILED_PRECONDITION
                 ? freed
                 : gpumem_pool_free_synchronized(pool, pointer);
    });
  }
  return status;
}

// Frees a block. `again`: it was deferred before.
void Give(State& state, void* pointer, const Live& live, bool again) {
  const int status = state.current_stream.IsKnown() ? FreeInOrder(live.pool, pointer, live.stream)
                                                    : FreeAsCuda(live.pool, pointer, again);
  if (status == GPUMEM_FAILED_PRECONDITION) {
    state.late.push_back({pointer, live});
    return;
  }
  if (status != GPUMEM_OK) std::fprintf(stderr, "gpumem.cupy: %s\n", gpumem_last_error());
  --*live.of_stream;
  if (state.chosen != nullptr) DropView(*state.chosen);
}

void GiveLate(State& state) {
  if (state.late.empty()) return;
  std::vector<Late> late;
  late.swap(state.late);
  for (const Late& one : late) Give(state, one.pointer, one.live, /*again=*/true);
}

// Reports a stream to gpumem.cupy, which keeps streams for as long as memory of theirs lives, and a
// little longer.
void MeetStream(State& state, void* stream) {
  if (state.on_new_stream == nullptr) return;
  // Python may let other threads run below, and they may use the map. So idle streams leave it
  // first: a thread that uses one of them meanwhile reports it anew, and so keeps it.
  std::vector<void*> known;
  for (const auto& [stream_of, blocks] : state.streams) {
    if (blocks == 0) known.push_back(stream_of);
  }
  state.of_last_stream = nullptr;
  for (void* const each : known) state.streams.erase(each);
  PyObject* const idle = PyList_New(0);
  for (void* const each : known) {
    PyObject* const number = PyLong_FromVoidPtr(each);
    if (number != nullptr) PyList_Append(idle, number);
    Py_XDECREF(number);
  }
  PyObject* const pointer = PyLong_FromVoidPtr(stream);
  PyObject* const forgotten =
      PyObject_CallFunctionObjArgs(state.on_new_stream, pointer, idle, nullptr);
  std::unordered_set<void*> gone;
  for (Py_ssize_t i = 0; forgotten != nullptr && i < PyList_Size(forgotten); ++i) {
    gone.insert(PyLong_AsVoidPtr(PyList_GetItem(forgotten, i)));
  }
  for (void* const each : known) {
    if (gone.count(each) == 0) state.streams.emplace(each, 0);
  }
  if (PyErr_Occurred() != nullptr) PyErr_WriteUnraisable(state.on_new_stream);
  Py_XDECREF(forgotten);
  Py_DECREF(pointer);
  Py_DECREF(idle);
}

// Returns the count of the stream's live blocks.
size_t* BlocksOf(State& state, void* stream) {
  if (stream == state.last_stream && state.of_last_stream != nullptr) return state.of_last_stream;
  auto found = state.streams.find(stream);
  if (found == state.streams.end()) {
    MeetStream(state, stream);
    found = state.streams.emplace(stream, 0).first;
  }
  state.last_stream = stream;
  state.of_last_stream = &found->second;  // its address is stable until it is erased
  return state.of_last_stream;
}

void TellOfFree(PyObject* on_free, int device, size_t bytes, void* pointer, bool done) {
  PyObject* const said = PyObject_CallFunction(on_free, "iKNi", device,
                                               static_cast<unsigned long long>(bytes),  // NOLINT
                                               PyLong_FromVoidPtr(pointer), done ? 1 : 0);
  if (said == nullptr) PyErr_WriteUnraisable(on_free);
  Py_XDECREF(said);
}

}  // namespace

void* Malloc(void* param, size_t bytes, int device) {
  auto& state = *static_cast<State*>(param);
  Refusal::status = GPUMEM_OK;
  // Freeing as CUDA does waits for the device, which spoils a capture: not on this path.
  const bool in_order = state.current_stream.IsKnown();
  if (in_order) GiveLate(state);
  void* const stream = state.current_stream.Ask();
  size_t* const of_stream = BlocksOf(state, stream);
  ++*of_stream;  // also while other threads run below
  gpumem_pool* const pool = PoolOf(state, device);
  if (pool == nullptr) {
    --*of_stream;
    return nullptr;
  }
  // The view of the block to come: the pool must not be destroyed while this waits in it.
  if (state.chosen != nullptr) AddView(*state.chosen);
  gpumem_block block = {};
  if (in_order) Refusal::status = gpumem_pool_try_allocate(pool, bytes, stream, &block);
  // The call may wait: for other threads, the driver, the daemon, and for memory.
  if (block.data == nullptr) {
    Refusal::status = WithoutGil([&] {
      return in_order ? gpumem_pool_allocate(pool, bytes, stream, &block)
                      : gpumem_pool_allocate_synchronized(pool, bytes, &block);
    });
  }
  if (Refusal::status != GPUMEM_OK) {
    --*of_stream;
    refusal.clear();
    if (state.chosen != nullptr) {
      // The pool's destruction, if it was deferred, may overwrite the last error.
      if (state.chosen->closing) refusal = gpumem_last_error();
      DropView(*state.chosen);
    }
    return nullptr;
  }
  state.live.Put(block.data, Live{stream, of_stream, bytes, pool});
  return block.data;
}

void Free(void* param, void* pointer, int device) {
  auto& state = *static_cast<State*>(param);
  const std::optional<Live> taken = state.live.Take(pointer);
  if (!taken.has_value()) return;
  const Live& live = *taken;
  ++state.giving;
  PyObject* const on_free =
      state.on_free != nullptr && state.hooks.AreInForce() ? state.on_free : nullptr;
  // Free may be called while an exception is propagating.
  PyObject *type = nullptr, *error = nullptr, *traceback = nullptr;
  if (on_free != nullptr) {
    PyErr_Fetch(&type, &error, &traceback);
    TellOfFree(on_free, device, live.bytes, pointer, false);
  }
  if (state.abandoned || !state.current_stream.IsKnown()) GiveLate(state);  // Malloc does not
  Give(state, pointer, live, /*again=*/false);
  if (on_free != nullptr) {
    TellOfFree(on_free, device, live.bytes, pointer, true);
    PyErr_Restore(type, error, traceback);
  }
  --state.giving;
  if (IsOver(state)) End(&state);
}

void Abandon(State* state) {
  state->make.Drop();
  // The others are for frees, too: the streams have to outlive their blocks.
  Py_CLEAR(state->on_refusal);
  Py_CLEAR(state->with_hooks);
  state->abandoned = true;
  ++state->giving;  // keeps other threads that free meanwhile from destroying the state
  GiveLate(*state);
  --state->giving;
  if (IsOver(*state)) End(state);
}

PyObject* Refusal::Raise() {
  return refusal.empty() ? python::Raise(status) : RaiseOwn(status, refusal);
}

PyObject* GivenOrNull(PyObject* object) {
  if (object == Py_None) return nullptr;
  Py_INCREF(object);
  return object;
}

}  // namespace gpumem::python::cupy
