// SPDX-License-Identifier: Apache-2.0
// The metadata of publications, as the Python package reads it (gpumem/_listing.py). It is refused
// by the documented exceptions, or no array reaches beyond its segment. Byte 0 is the number of
// segments; each has two bytes for its size.
//
// libFuzzer sees the lines that Python executes as counters.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

#include <cstdint>

#include "common/testing/fuzz/input.h"

namespace {

constexpr size_t kCounters = 1 << 13;
#ifdef __clang__
__attribute__((used, section("__libfuzzer_extra_counters")))
#endif
uint8_t counters[kCounters];

// Makes the modules that read metadata, without the rest of the package, which needs the library.
constexpr char kScript[] = R"(
import importlib, sys, types
package = types.ModuleType("gpumem")
package.__path__ = ["client/python/gpumem"]
sys.modules["gpumem"] = package
library = types.ModuleType("gpumem._gpumem")
library.set_error_factory = lambda factory: None
package._gpumem = sys.modules["gpumem._gpumem"] = library
listing = importlib.import_module("gpumem._listing")
shapes = importlib.import_module("gpumem._shapes")
REFUSALS = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)

def check(blob, sizes):
    try:
        said = listing.read(blob, sizes)
    except REFUSALS:
        return
    for name, row in said.rows.items():
        assert isinstance(name, str) and len(row.shape) <= shapes.MAX_DIMENSIONS
        strides = row.strides
        if strides is None:
            strides = shapes.to_strides(None, row.shape, row.dtype.itemsize)
        low, high = shapes.extent(row.shape, strides, row.dtype.itemsize)
        if high > low:
            assert 0 <= row.offset + low and row.offset + high <= sizes[row.segment]
)";

int CountLine(PyObject* /*context*/, PyFrameObject* frame, int what, PyObject* /*argument*/) {
  if (what != PyTrace_LINE) return 0;
  static size_t last = 0;
  PyCodeObject* const code = PyFrame_GetCode(frame);
  const size_t line = static_cast<size_t>(code->co_firstlineno) * 131 +
                      static_cast<size_t>(PyFrame_GetLineNumber(frame)) * 7;
  Py_DECREF(code);
  uint8_t& counter = counters[(line ^ last >> 1) % kCounters];
  if (counter < UINT8_MAX) ++counter;
  last = line;
  return 0;
}

PyObject* StartPython() {
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  config.use_hash_seed = 1;
  config.hash_seed = 0;
  config.write_bytecode = 0;
  PyConfig_SetString(&config, &config.home, L"/usr");
  const PyStatus status = Py_InitializeFromConfig(&config);
  FUZZ_CHECK(!PyStatus_Exception(status));
  PyConfig_Clear(&config);
  if (PyRun_SimpleString(kScript) != 0) std::abort();
  PyObject* const check = PyObject_GetAttrString(PyImport_AddModule("__main__"), "check");
  FUZZ_CHECK(check != nullptr);
  PyEval_SetTrace(CountLine, nullptr);
  return check;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static PyObject* const check = StartPython();
  gpumem::testing::FuzzInput input(data, size);
  PyObject* const sizes = PyList_New(input.Below(4));
  for (Py_ssize_t i = 0; i < PyList_Size(sizes); ++i) {
    PyList_SetItem(sizes, i, PyLong_FromUnsignedLong(input.Take<uint16_t>()));
  }
  const absl::string_view blob = input.Rest();
  PyObject* const result =
      PyObject_CallFunction(check, "y#O", blob.data(), static_cast<Py_ssize_t>(blob.size()), sizes);
  if (result == nullptr) {
    PyErr_Print();
    std::abort();
  }
  Py_DECREF(result);
  Py_DECREF(sizes);
  return 0;
}

// Python itself never frees all memory.
extern "C" const char* __lsan_default_suppressions() { return "leak:libpython"; }
