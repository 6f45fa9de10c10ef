// SPDX-License-Identifier: Apache-2.0
// The module gpumem._gpumem: the functions of gpumem/gpumem.h for Python, one for one, and the two
// types that hold their results. gpumem/_gpumem.pyi documents arguments and results.
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/cuda_sync.h"
#include "client/python/extension/handle.h"
#include "client/python/extension/memory.h"
#include "client/python/extension/python_api.h"
#include "common/kind.h"
#include "common/version.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

PyObject* Version(PyObject*, PyObject*) { return PyLong_FromUnsignedLong(gpumem_version()); }

// Returns the rows of kind.h by number. Those that programs cannot acquire have no name.
PyObject* Kinds(PyObject*, PyObject*) {
  PyObject* const rows = PyTuple_New(static_cast<Py_ssize_t>(std::size(kKindTable)));
  if (rows == nullptr) return nullptr;
  for (size_t i = 0; i < std::size(kKindTable); ++i) {
    const KindTraits& traits = kKindTable[i];
    PyObject* const row = Py_BuildValue("NN", Text(IsAcquirable(traits) ? traits.name : ""),
                                        PyBool_FromLong(traits.registered));
    if (row == nullptr || PyTuple_SetItem(rows, static_cast<Py_ssize_t>(i), row) != 0) {
      Py_DECREF(rows);
      return nullptr;
    }
  }
  return rows;
}

PyObject* Synchronize(PyObject*, PyObject*) {
  WithoutGil([] {
    SynchronizeCuda();
    return 0;
  });
  return None();
}

// Returns the address of a function of libgpumem.so, for callers from C.
PyObject* Address(PyObject*, PyObject* args) {
  const char* name;
  if (!PyArg_ParseTuple(args, "s", &name)) return nullptr;
  struct Function {
    const char* name;
    void* address;
  };
  static const Function kFunctions[] = {
      {"gpumem_torch_malloc", reinterpret_cast<void*>(gpumem_torch_malloc)},
      {"gpumem_torch_free", reinterpret_cast<void*>(gpumem_torch_free)},
      {"gpumem_cupy_malloc", reinterpret_cast<void*>(gpumem_cupy_malloc)},
      {"gpumem_cupy_free", reinterpret_cast<void*>(gpumem_cupy_free)},
      {"gpumem_rmm_allocate", reinterpret_cast<void*>(gpumem_rmm_allocate)},
      {"gpumem_rmm_deallocate", reinterpret_cast<void*>(gpumem_rmm_deallocate)},
  };
  for (const Function& function : kFunctions) {
    if (std::string(name) == function.name) return PyLong_FromVoidPtr(function.address);
  }
  return RaiseOwn(GPUMEM_NOT_FOUND, std::string("gpumem has no allocator function ") + name);
}

std::vector<PyMethodDef>* Methods() {
  auto* const all = new std::vector<PyMethodDef>{
      {"version", Version, METH_NOARGS, nullptr},
      {"kinds", Kinds, METH_NOARGS, nullptr},
      {"address", Address, METH_VARARGS, nullptr},
      {"cuda_synchronize", Synchronize, METH_NOARGS, nullptr},
      {"set_error_factory", SetErrorFactory, METH_O, nullptr},
  };
  for (const auto* const part :
       {&kClientMethods, &kTenantMethods, &kSegmentMethods, &kSuspendMethods, &kDemoteMethods,
        &kServingMethods, &kPublicationMethods, &kFilesMethods, &kPoolMethods, &kEventMethods,
        &kWatchMethods, &kDlpackMethods, &kCupyMethods}) {
    all->insert(all->end(), part->begin(), part->end());
  }
  all->push_back({nullptr, nullptr, 0, nullptr});
  return all;
}

}  // namespace
}  // namespace gpumem::python

PyMODINIT_FUNC PyInit__gpumem() {
  using namespace gpumem::python;  // NOLINT
  // Static: the definition lives as long as the process, as the module does.
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                   "_gpumem",
                                   "gpumem/gpumem.h for Python",
                                   -1,
                                   Methods()->data(),
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   nullptr};
  PyObject* const module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  if (!AddHandleType(module) || !AddMemoryType(module) ||
      PyModule_AddStringConstant(module, "__version__", GPUMEM_VERSION) != 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
