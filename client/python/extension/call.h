// SPDX-License-Identifier: Apache-2.0
// Shared by all functions of the extension: errors, arguments, and calls without the interpreter's
// lock (GIL).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/python/extension/python_api.h"

namespace gpumem::python {

// Raises the exception that gpumem.errors makes of this thread's last error. Always returns null.
PyObject* Raise(int status);
// Raises an error of the extension itself. Always returns null.
PyObject* RaiseOwn(int status, const std::string& message);
// Sets the function of gpumem.errors that makes exceptions: (status, name, message, denial or None)
// -> exception.
PyObject* SetErrorFactory(PyObject* module, PyObject* factory);

// Runs `work` while other Python threads go on. A thread that returns after the interpreter has
// ended is ended in here, which unwinds the stack. No destructor may stop that, so the extension is
// compiled without exceptions.
template <typename Work>
auto WithoutGil(Work work) {
  PyThreadState* const thread = PyEval_SaveThread();
  auto result = work();
  PyEval_RestoreThread(thread);
  return result;
}

// Converters for PyArg_ParseTuple ("O&"). Raise OverflowError for negative or too large numbers.
int ToUint64(PyObject* object, void* number);
int ToPointer(PyObject* object, void* pointer);  // a void*; None is null

// Holds a sequence of str; None is empty.
class TextList {
 public:
  TextList() = default;
  ~TextList();
  TextList(const TextList&) = delete;
  TextList& operator=(const TextList&) = delete;

  static int Parse(PyObject* object, void* list);
  const char* const* data() const { return texts_.data(); }
  size_t size() const { return texts_.size(); }

 private:
  std::vector<PyObject*> bytes_;
  std::vector<const char*> texts_;
};

// Returns a str; bytes that are not UTF-8 are replaced.
PyObject* Text(const char* text);
// Returns a tuple: (1, 2, 3).
PyObject* Numbers(const uint64_t* numbers, size_t count);

inline PyObject* None() {
  Py_INCREF(Py_None);
  return Py_None;
}

// The functions of each part, without the sentinel entry at the end.
extern const std::vector<PyMethodDef> kClientMethods;
extern const std::vector<PyMethodDef> kTenantMethods;
extern const std::vector<PyMethodDef> kSegmentMethods;
extern const std::vector<PyMethodDef> kSuspendMethods;
extern const std::vector<PyMethodDef> kDemoteMethods;
extern const std::vector<PyMethodDef> kServingMethods;
extern const std::vector<PyMethodDef> kPublicationMethods;
extern const std::vector<PyMethodDef> kFilesMethods;
extern const std::vector<PyMethodDef> kPoolMethods;
extern const std::vector<PyMethodDef> kEventMethods;
extern const std::vector<PyMethodDef> kWatchMethods;
extern const std::vector<PyMethodDef> kDlpackMethods;
extern const std::vector<PyMethodDef> kCupyMethods;

}  // namespace gpumem::python
