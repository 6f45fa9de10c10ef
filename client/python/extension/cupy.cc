// CuPy's allocator, for gpumem/cupy.py: blocks of a pool in the order of CuPy's current stream.
//
// No Python runs when CuPy makes an array. CuPy's CFunctionAllocator calls Malloc and Free, passes
// no stream to either, and does not check for a null pointer. Therefore:
// - Malloc asks CuPy for the stream by a C function (Cython exports it in __pyx_capi__).
// - A block is freed on the stream that it was allocated for, as with CuPy's own pool.
// - Alloc, which cupy.cuda.set_allocator gets, checks whether Malloc was refused.
//
// Guarded by the interpreter's lock (GIL), which CuPy holds whenever it calls.
#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "client/python/extension/block_map.h"
#include "client/python/extension/call.h"
#include "client/python/extension/cupy_thread.h"
#include "client/python/extension/handle.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

// Calls CFunctionAllocator.malloc: bytes -> MemoryPointer.
class Maker {
 public:
  void Set(PyObject* malloc) {
    Py_INCREF(malloc);
    Drop();
    malloc_ = malloc;
    const bool is_fast =
        PyCFunction_CheckExact(malloc) != 0 && PyCFunction_GetFlags(malloc) == kFastCall;
    if (!is_fast) return;
    fast_ = reinterpret_cast<FastCall>(reinterpret_cast<void*>(PyCFunction_GetFunction(malloc)));
    allocator_ = PyCFunction_GetSelf(malloc);
  }
  void Drop() {
    fast_ = nullptr;
    Py_CLEAR(malloc_);
  }

  PyObject* operator()(PyObject* bytes) const {
    // Calls it as the interpreter does. The interpreter's function for this (PyObject_Vectorcall)
    // has no name in the stable ABI of CPython 3.9.
    if (fast_ != nullptr) [[likely]]
      return fast_(allocator_, &bytes, 1, nullptr);
    return PyObject_CallFunctionObjArgs(malloc_, bytes, nullptr);
  }

 private:
  PyObject* malloc_ = nullptr;
  FastCall fast_ = nullptr;
  PyObject* allocator_ = nullptr;  // kept alive by malloc_
};

struct Live {
  void* stream;
  size_t* of_stream;  // how many blocks of the stream are live or deferred
  size_t bytes;
  gpumem_pool* pool;
};

struct Late {
  void* pointer;
  Live live;
};

// The state of one allocator. With a current stream, blocks are allocated for that stream and freed
// on it. Without one, CuPy's own pool takes its memory from this: it works as cudaMalloc and
// cudaFree, and CuPy calls the hooks.
struct State {
  Handle* chosen = nullptr;  // the pool; null: the default pool of the current device
  int chosen_device = 0;     // the pool's device
  CurrentStream current_stream;
  MemoryHooks hooks;
  Maker make;
  PyObject* on_refusal = nullptr;     // (bytes, error, attempt): raises, or None: try again
  PyObject* on_new_stream = nullptr;  // (stream, [streams without blocks]) -> [those forgotten]
  PyObject* with_hooks = nullptr;     // (bytes, allocator without hooks) -> MemoryPointer
  PyObject* on_free = nullptr;        // (device, bytes, pointer, whether it is done)
  std::array<gpumem_pool*, 64> defaults = {};
  BlockMap<Live> live;
  std::unordered_map<void*, size_t> streams;  // those that CuPy has used, and their live blocks
  void* last_stream = nullptr;                // the stream of the last call, …
  size_t* of_last_stream = nullptr;           // … and its blocks; null: look it up
  std::vector<Late> late;                     // freed while their stream was being captured
  int giving = 0;          // calls of Free in progress: other threads run meanwhile
  bool abandoned = false;  // its allocator is gone: destroyed with the last block
};

// The Python object that owns a state; `malloc` is a method of it.
struct Allocator {
  PyObject_HEAD;
  State* state;
};
PyTypeObject* allocator_type = nullptr;

constexpr int kAttempts = 3;

// The status of this thread's last failed Malloc; 0: it was not refused.
[[gnu::tls_model("initial-exec")]] thread_local int refused = GPUMEM_OK;
thread_local std::string refusal;  // its message, if not gpumem_last_error()'s

State* StateOf(PyObject* allocator) { return reinterpret_cast<Allocator*>(allocator)->state; }

void End(State* state) {
  state->current_stream.Drop();
  state->hooks.Drop();
  Py_XDECREF(reinterpret_cast<PyObject*>(state->chosen));
  delete state;
}

// True if the allocator is gone and no live or deferred blocks remain.
bool IsOver(const State& state) {
  return state.abandoned && state.giving == 0 && state.live.empty() && state.late.empty();
}

gpumem_pool* PoolOf(State& state, int device) {
  if (state.chosen != nullptr) {
    refused = GPUMEM_FAILED_PRECONDITION;
    if (state.chosen->closing || state.chosen->pointer == nullptr) {
      refusal = "the pool is closed";
      return nullptr;
    }
    if (device == state.chosen_device) {
      refused = GPUMEM_OK;
      return static_cast<gpumem_pool*>(state.chosen->pointer);
    }
    refusal = "the pool is one of device " + std::to_string(state.chosen_device) +
              ", and CuPy's current device is " + std::to_string(device);
    return nullptr;
  }
  const auto index = static_cast<size_t>(device);
  if (index < state.defaults.size() && state.defaults[index] != nullptr) {
    return state.defaults[index];
  }
  gpumem_pool* pool = nullptr;
  refused = WithoutGil([&] { return gpumem_default_pool(device, &pool); });
  refusal.clear();
  if (index < state.defaults.size()) state.defaults[index] = pool;
  return pool;
}

// FAILED_PRECONDITION: the driver refuses, for example while a graph is captured.
int FreeAsCuda(gpumem_pool* pool, void* pointer, bool again) {
  const int status = WithoutGil([&] { return gpumem_pool_free_synchronized(pool, pointer); });
  if (status != GPUMEM_INTERNAL) return status;
  if (!again) {
    std::fprintf(stderr, "gpumem.cupy: %s; it is tried again when more is freed\n",
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

void Deallocate(PyObject* allocator) {
  State* const state = StateOf(allocator);
  PyObject *type_of_error, *error, *traceback;
  PyErr_Fetch(&type_of_error, &error, &traceback);
  state->make.Drop();
  for (PyObject** const object :
       {&state->on_refusal, &state->on_new_stream, &state->with_hooks, &state->on_free}) {
    Py_CLEAR(*object);
  }
  state->abandoned = true;
  ++state->giving;  // keeps other threads that free meanwhile from destroying the state
  GiveLate(*state);
  --state->giving;
  if (IsOver(*state)) End(state);
  PyErr_Restore(type_of_error, error, traceback);
  PyTypeObject* const type = Py_TYPE(allocator);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(allocator);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// Only cupy_state() makes allocators.
PyObject* Refuse(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "allocators are made by gpumem.cupy");
  return nullptr;
}

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(Refuse)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(Deallocate)},
                       {Py_tp_doc, const_cast<char*>("what gpumem.cupy gives to CuPy")},
                       {0, nullptr}};
PyType_Spec spec = {"gpumem._gpumem.CupyAllocator", sizeof(Allocator), 0, Py_TPFLAGS_DEFAULT,
                    slots};

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

void* Malloc(void* param, size_t bytes, int device) {
  auto& state = *static_cast<State*>(param);
  refused = GPUMEM_OK;
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
  if (in_order) refused = gpumem_pool_try_allocate(pool, bytes, stream, &block);
  // The call may wait: for other threads, the driver, the daemon, and for memory.
  if (block.data == nullptr) {
    refused = WithoutGil([&] {
      return in_order ? gpumem_pool_allocate(pool, bytes, stream, &block)
                      : gpumem_pool_allocate_synchronized(pool, bytes, &block);
    });
  }
  if (refused != GPUMEM_OK) {
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

// Returns a new reference; null for None.
PyObject* GivenOrNull(PyObject* object) {
  if (object == Py_None) return nullptr;
  Py_INCREF(object);
  return object;
}

void TellOfFree(PyObject* on_free, int device, size_t bytes, void* pointer, bool done) {
  PyObject* const said = PyObject_CallFunction(on_free, "iKNi", device,
                                               static_cast<unsigned long long>(bytes),  // NOLINT
                                               PyLong_FromVoidPtr(pointer), done ? 1 : 0);
  if (said == nullptr) PyErr_WriteUnraisable(on_free);
  Py_XDECREF(said);
}

void Free(void* param, void* pointer, int device) {
  auto& state = *static_cast<State*>(param);
  const std::optional<Live> taken = state.live.Take(pointer);
  if (!taken.has_value()) return;
  const Live& live = *taken;
  ++state.giving;
  // A reference held here: the allocator may be gone before this function returns.
  PyObject* const on_free =
      state.on_free != nullptr && state.hooks.AreInForce() ? GivenOrNull(state.on_free) : nullptr;
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
    Py_DECREF(on_free);
    PyErr_Restore(type, error, traceback);
  }
  --state.giving;
  if (IsOver(state)) End(&state);
}

// Calls on_refusal with the error of the last Malloc. False: an exception is set.
bool WorthAnotherTry(const State& state, PyObject* bytes, int attempt) {
  refusal.empty() ? Raise(refused) : RaiseOwn(refused, refusal);
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  PyObject* const number = PyLong_FromLong(attempt);
  PyObject* const said =
      PyObject_CallFunctionObjArgs(state.on_refusal, bytes, error, number, nullptr);
  for (PyObject* const object : {type, error, traceback, number, said}) Py_XDECREF(object);
  return said != nullptr;
}

PyObject* Make(const State& state, PyObject* bytes) {
  for (int attempt = 1;; ++attempt) {
    refused = GPUMEM_OK;
    PyObject* const memory = state.make(bytes);
    if (memory == nullptr || refused == GPUMEM_OK) return memory;
    Py_DECREF(memory);
    if (!WorthAnotherTry(state, bytes, attempt) || attempt == kAttempts) return nullptr;
  }
}

PyObject* AllocWithoutHooks(PyObject* allocator, PyObject* bytes) {
  return Make(*StateOf(allocator), bytes);
}

PyMethodDef alloc_without_hooks = {"malloc", AllocWithoutHooks, METH_O,
                                   "malloc(bytes) -> cupy.cuda.MemoryPointer"};

PyObject* Alloc(PyObject* allocator, PyObject* bytes) {
  const State& state = *StateOf(allocator);
  if (state.with_hooks == nullptr || !state.hooks.AreInForce()) return Make(state, bytes);
  PyObject* const inner = PyCFunction_New(&alloc_without_hooks, allocator);
  if (inner == nullptr) return nullptr;
  PyObject* const memory = PyObject_CallFunctionObjArgs(state.with_hooks, bytes, inner, nullptr);
  Py_DECREF(inner);
  return memory;
}

PyMethodDef alloc = {"malloc", Alloc, METH_O, "malloc(bytes) -> cupy.cuda.MemoryPointer"};

// (pool or None, its device, current_stream, get_memory_hooks, on_refusal, on_new_stream,
//  with_hooks, on_free) -> (state, param, malloc, free)
PyObject* MakeState(PyObject*, PyObject* args) {
  Use pool;
  int device;
  PyObject *current_stream, *get_memory_hooks, *on_refusal, *on_new_stream, *with_hooks, *on_free;
  if (!PyArg_ParseTuple(args, "O&iOOOOOO", Use::ParseOrNone<Holds::kPool>, &pool, &device,
                        &current_stream, &get_memory_hooks, &on_refusal, &on_new_stream,
                        &with_hooks, &on_free)) {
    return nullptr;
  }
  if (allocator_type == nullptr) {
    allocator_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (allocator_type == nullptr) return nullptr;
  }
  PyObject* const allocator = PyType_GenericAlloc(allocator_type, 0);
  if (allocator == nullptr) return nullptr;
  auto* const state = new State;
  reinterpret_cast<Allocator*>(allocator)->state = state;
  state->chosen = pool.handle();
  Py_XINCREF(reinterpret_cast<PyObject*>(state->chosen));
  state->chosen_device = device;
  state->current_stream.Set(current_stream);
  state->hooks.Set(get_memory_hooks);
  state->on_refusal = GivenOrNull(on_refusal);
  state->on_new_stream = GivenOrNull(on_new_stream);
  state->with_hooks = GivenOrNull(with_hooks);
  state->on_free = GivenOrNull(on_free);
  return Py_BuildValue("NNNN", allocator, PyLong_FromVoidPtr(state),
                       PyLong_FromVoidPtr(reinterpret_cast<void*>(Malloc)),
                       PyLong_FromVoidPtr(reinterpret_cast<void*>(Free)));
}

// (state, CFunctionAllocator.malloc) -> the allocator for cupy.cuda.set_allocator
PyObject* MakeAllocator(PyObject*, PyObject* args) {
  PyObject *allocator, *make;
  if (!PyArg_ParseTuple(args, "OO", &allocator, &make)) return nullptr;
  if (allocator_type == nullptr || Py_TYPE(allocator) != allocator_type) {
    return RaiseOwn(GPUMEM_INVALID_ARGUMENT, "the state is none of cupy_state()'s");
  }
  StateOf(allocator)->make.Set(make);
  return PyCFunction_New(&alloc, allocator);
}

}  // namespace

const std::vector<PyMethodDef> kCupyMethods = {
    {"cupy_state", MakeState, METH_VARARGS, nullptr},
    {"cupy_allocator", MakeAllocator, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
