// vivace.Array: the face of vivace/array, memory and a strided view of it on the CPU or on a GPU.
#pragma once
#include <nanobind/nanobind.h>

#include "errors.h"
#include "gil.h"
#include "runtime.h"
#include "vivace/array/array.h"

namespace vivace::python {

namespace nb = nanobind;
using array::Array;

/// Says that work on a stream which the default stream does not order now uses the memory.
void mark_foreign_use(const Array& a);

/// The Array in `o`. Errors: InvalidDType, which names the call and what came.
const Array& array_of(nb::handle o, const char* call);
/// A dtype of Python: a name ("f32", "float32") or what x.dtype gives. Errors: InvalidDType.
array::Elem elem_of(nb::handle dtype);
/// The one object of a type; equal to its name.
nb::object dtype_object(array::Elem e);
Shape shape_from(nb::handle dims, array::Elem e);
nb::tuple shape_tuple(const Shape& s);
/// `o` as axes of `a`: None is all, an integer or a sequence of them, negative ones from the end, none twice.
uint32_t axes_from(const Array& a, nb::handle o, const char* call);
int axis_from(int64_t axis, int rank, const char* call);
/// The value or the error of it, thrown.
template <class T>
T value_of(Result<T> r) {
  check(r.status());
  return std::move(r).value();
}

/// Arrays compute when they are called: a capture would miss it. Throws FailedPrecondition inside one.
void refuse_capture(const char* what);

/// Where arrays on GPUs compute: the stream of set_stream(), else the legacy stream.
array::Exec exec_on_gpu();

/// Runs f(Exec): on the CPU work on few elements on this thread, more on the process's pool and without the GIL; on a
/// GPU it is queued.
template <class F>
auto work(int device, int64_t elements, F&& f) {
  if (device != array::kHost) return f(exec_on_gpu());
  if (elements < 32768) return f(array::Exec{});
  const NoGil release;
  Runtime& r = Runtime::get();
  const std::lock_guard hold(r.lock);
  return f(array::Exec{r.pool.get()});
}

/// array::copy_host without the GIL.
inline Status copy_free(const Array& a, void* host, bool to_device) {
  const NoGil release;
  return array::copy_host(a, host, to_device);
}

/// `o` as an operand of arithmetic; false for what is neither an Array nor a Python number.
bool operand_of(nb::handle o, array::Operand* to);
nb::object get_item(const Array& a, nb::handle key);
void set_item(const Array& a, nb::handle key, nb::handle value);

void add_array(nb::module_& m);
void add_array_class(nb::module_& m,
                     nb::class_<Array>& c);  // arithmetic and views of the class, functions of the module
void add_array_program(nb::module_& m);      // several functions in one pass
/// Errors: InvalidArgument.
kernels::Fold fold_of(const std::string& name);
nb::object export_array(const Array& a, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                        nb::handle copy_it);
/// DLPack's C exchange table of Array, as a type offers it.
nb::object exchange_capsule();
Array array_from_dlpack(nb::object source, nb::handle device, nb::handle copy_it);

}  // namespace vivace::python
