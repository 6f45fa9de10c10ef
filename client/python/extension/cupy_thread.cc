// SPDX-License-Identifier: Apache-2.0
#include "client/python/extension/cupy_thread.h"

namespace gpumem::python {
namespace {

constexpr char kHooks[] = "gpumem.cupy.hooks";

// Returns an id that is never reused, unlike the state's address.
uint64_t StateOfThread() { return PyThreadState_GetID(PyThreadState_Get()); }

}  // namespace

void CurrentStream::Set(PyObject* source) {
  if (source == Py_None) return;
  Py_INCREF(source);
  source_ = source;
  if (!PyCapsule_CheckExact(source)) return;
  in_c_ =
      reinterpret_cast<intptr_t (*)(int)>(PyCapsule_GetPointer(source, PyCapsule_GetName(source)));
}

void* CurrentStream::AskInPython() const {
  if (source_ == nullptr) return nullptr;
  PyObject* const said = PyObject_CallFunctionObjArgs(source_, nullptr);
  const intptr_t answer = said == nullptr ? 0 : PyLong_AsLongLong(said);
  Py_XDECREF(said);
  if (PyErr_Occurred() != nullptr) PyErr_WriteUnraisable(source_);
  return reinterpret_cast<void*>(answer);
}

void MemoryHooks::Set(PyObject* get_memory_hooks) {
  if (get_memory_hooks == Py_None) return;
  Py_INCREF(get_memory_hooks);
  get_ = get_memory_hooks;
}

bool MemoryHooks::Find() const {
  if (get_ == nullptr || StateOfThread() == ending) return false;
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyObject* const found = PyObject_CallFunctionObjArgs(get_, nullptr);
  const bool are_in_force = found != nullptr && PyObject_IsTrue(found) == 1;
  if (found != nullptr && PyDict_Check(found)) Keep(found);
  Py_XDECREF(found);
  if (PyErr_Occurred() != nullptr) PyErr_WriteUnraisable(get_);
  PyErr_Restore(type, error, traceback);
  return are_in_force;
}

// Keeps `hooks` until the thread's state and its dict end.
void MemoryHooks::Keep(PyObject* hooks) {
  PyObject* const of_state = PyThreadState_GetDict();
  PyObject* const keeper = PyCapsule_New(hooks, kHooks, Forget);
  if (keeper == nullptr) return;
  Py_INCREF(hooks);
  if (of_state != nullptr && PyDict_SetItemString(of_state, kHooks, keeper) == 0) {
    Py_INCREF(hooks);
    of_thread = hooks;
  }
  Py_DECREF(keeper);
}

void MemoryHooks::Forget(PyObject* keeper) {
  auto* const hooks = static_cast<PyObject*>(PyCapsule_GetPointer(keeper, kHooks));
  if (hooks == of_thread) {
    of_thread = nullptr;
    ending = StateOfThread();
    Py_DECREF(hooks);
  }  // else another thread's state ends here, for example after a fork: if that thread goes on, it
     // still has its reference
  Py_DECREF(hooks);
}

}  // namespace gpumem::python
