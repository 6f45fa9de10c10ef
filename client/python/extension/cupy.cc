// SPDX-License-Identifier: Apache-2.0
// CuPy's allocator, for gpumem/cupy.py: the Python objects over the blocks of cupy_blocks.h.
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/cupy_blocks.h"
#include "client/python/extension/handle.h"
#include "gpumem/gpumem.h"

namespace gpumem::python::cupy {
namespace {

// The Python object that owns a state; `malloc` is a method of it.
struct Allocator {
  PyObject_HEAD;
  State* state;
};
PyTypeObject* allocator_type = nullptr;

constexpr int kAttempts = 3;

State* StateOf(PyObject* allocator) { return reinterpret_cast<Allocator*>(allocator)->state; }

void Deallocate(PyObject* allocator) {
  State* const state = StateOf(allocator);
  PyObject *type_of_error, *error, *traceback;
  PyErr_Fetch(&type_of_error, &error, &traceback);
  Abandon(state);
  PyErr_Restore(type_of_error, error, traceback);
  PyTypeObject* const type = Py_TYPE(allocator);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(allocator);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// Only cupy_state() makes allocators.
PyObject* Refuse(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "only gpumem.cupy creates allocators");
  return nullptr;
}

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(Refuse)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Deallocate)},
    {Py_tp_doc, const_cast<char*>("the allocator that gpumem.cupy gives to CuPy")},
    {0, nullptr}};
PyType_Spec spec = {"gpumem._gpumem.CupyAllocator", sizeof(Allocator), 0, Py_TPFLAGS_DEFAULT,
                    slots};

// Calls on_refusal with the error of the last Malloc. False: an exception is set.
bool WorthAnotherTry(const State& state, PyObject* bytes, int attempt) {
  Refusal::Raise();
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
    Refusal::status = GPUMEM_OK;
    PyObject* const memory = state.make(bytes);
    if (memory == nullptr || Refusal::status == GPUMEM_OK) return memory;
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
    return RaiseOwn(GPUMEM_INVALID_ARGUMENT, "the state is not from cupy_state()");
  }
  StateOf(allocator)->make.Set(make);
  return PyCFunction_New(&alloc, allocator);
}

}  // namespace
}  // namespace gpumem::python::cupy

namespace gpumem::python {

const std::vector<PyMethodDef> kCupyMethods = {
    {"cupy_state", cupy::MakeState, METH_VARARGS, nullptr},
    {"cupy_allocator", cupy::MakeAllocator, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
