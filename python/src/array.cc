#include "array.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "gpu_runtime.h"
#include "tensor.h"
#include "vivace/base/check.h"
#include "vivace/device/cuda_memory.h"
#include "vivace/device/memory.h"

namespace vivace::python {
namespace {

using array::Elem;
using array::kHost;
using array::kLegacyStream;
using array::name;  // beside vivace::name of DType

constexpr const char* kLongNames[] = {"bool",  "uint8", "uint16",  "uint32",   "uint64",  "int8",   "int16",
                                      "int32", "int64", "float16", "bfloat16", "float32", "float64"};

/// An element type as Python sees it: x.dtype, array.float32.
struct DType {
  Elem elem;
};
PyObject* dtypes[kernels::kElemCount];  // one object a type; the module holds them

Array make(const Shape& shape, Elem e, int device, bool zero) {
  Array a = value_of(array::empty(e, shape, device));
  if (!zero || a.nbytes() == 0) return a;
  if (device == kHost) {
    std::memset(a.data, 0, static_cast<size_t>(a.nbytes()));
    return a;
  }
  device::Stream stream = device::Stream::borrow(*a.storage->gpu, reinterpret_cast<cu::Stream>(kLegacyStream));
  check(stream.fill(a.data, 0, static_cast<size_t>(a.nbytes())));
  check(stream.synchronize());  // work on any stream may read it
  return a;
}

/// `o` as dense host memory that matches the array.
Status host_side(const Array& a, nb::handle o, bool write, Tensor* t, Borrowed* from) {
  VV_TRY(to_tensor(o.ptr(), write, t, from));
  if (t->place != Place::host) return Status(Code::kInvalidDevice, "array: the other side must be host memory");
  if (array::elem_of(t->dtype) != a.elem)
    return Status(Code::kInvalidDType, strf("array: %s here, %s on the host", name(a.elem), name(t->dtype)));
  if (!(t->shape == a.shape))
    return Status(Code::kInvalidShape,
                  "array: " + to_string(a.shape) + " here, " + to_string(t->shape) + " on the host");
  if (!t->is_dense())
    return Status(Code::kInvalidLayout, "array: the host side is not contiguous; use numpy.ascontiguousarray");
  return {};
}

/// The NumPy dtype of an element type; those that NumPy lacks come from ml_dtypes.
nb::object numpy_dtype(Elem e) {
  const char* extra = e == Elem::bf16   ? "bfloat16"
                      : e == Elem::e4m3 ? "float8_e4m3fn"
                      : e == Elem::e5m2 ? "float8_e5m2"
                                        : nullptr;
  if (extra != nullptr) return nb::module_::import_("ml_dtypes").attr(extra);
  if (!kernels::has_arithmetic(e))
    check(Status(Code::kUnsupported, strf("array: NumPy has no dtype for %s; view the bytes", name(e))));
  return nb::str(kLongNames[static_cast<int>(e)]);
}

/// A dense array of the same elements: `a` itself if it is dense.
Array dense(const Array& a) {
  if (a.is_dense()) return a;
  return value_of(work(a.device(), a.size(), [&](const array::Exec& x) { return array::copy(a, a.elem, x); }));
}

nb::object to_numpy(const Array& given) {
  check(array::check_open(given, "numpy()"));
  refuse_capture("numpy()");
  const Array a = dense(given);
  nb::object out = nb::module_::import_("numpy").attr("empty")(shape_tuple(a.shape), numpy_dtype(a.elem));
  // NumPy says where its memory is; u16 to u64 are no types of to_tensor.
  void* const host = reinterpret_cast<void*>(nb::cast<uintptr_t>(out.attr("ctypes").attr("data")));
  check(copy_free(a, host, false));
  return out;
}

/// A copy of host memory in an array. NumPy's own casts take what to_tensor has no type for.
Array from_host(nb::handle host, int device, const char* call) {
  Tensor t;
  Borrowed from;
  Elem e = Elem::u8;
  nb::object np = nb::borrow(host);
  bool wide = false;  // u16, u32, u64: arrays' alone
  if (nb::hasattr(host, "dtype") && nb::hasattr(host, "ctypes")) {
    const nb::object dtype = host.attr("dtype");
    const std::string n = nb::str(nb::handle(dtype)).c_str();
    wide = n == "uint16" || n == "uint32" || n == "uint64";
    if (wide) {
      e = n == "uint16" ? Elem::u16 : n == "uint32" ? Elem::u32 : Elem::u64;
      np = host.attr("view")(n.c_str() + 1);  // the signed type of the name
    }
  }
  check(to_tensor(np.ptr(), false, &t, &from));
  if (t.place != Place::host)
    check(Status(Code::kInvalidDevice, strf("array: %s takes host memory; for device memory use from_dlpack", call)));
  if (!t.is_dense())
    check(Status(Code::kInvalidLayout, "array: the host side is not contiguous; use numpy.ascontiguousarray"));
  if (!wide) e = array::elem_of(t.dtype);
  Array a = make(t.shape, e, device, false);
  check(copy_free(a, t.data, true));
  return a;
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  static constexpr const char* kFormats[] = {"?", "B", "H", "I", "Q", "b", "h", "i", "q", "e", nullptr, "f", "d"};
  const Array& a = *nb::inst_ptr<Array>(self);
  view->obj = nullptr;
  const auto refuse = [](const char* why) {
    PyErr_SetString(PyExc_BufferError, why);
    return -1;
  };
  if (a.storage == nullptr) return refuse("array: buffer after close()");
  if (a.device() != kHost) return refuse("array: GPU memory has no buffer; numpy() copies it");
  const char* format = kernels::has_arithmetic(a.elem) ? kFormats[static_cast<int>(a.elem)] : nullptr;
  if (format == nullptr) return refuse("array: buffers have no such dtype; numpy() gives ml_dtypes' array");
  if ((flags & PyBUF_WRITABLE) && a.storage->read_only) return refuse("array: the memory is read-only");
  if (!a.is_dense() && (flags & PyBUF_STRIDES) != PyBUF_STRIDES) return refuse("array: it is not contiguous");
  struct Held {
    std::shared_ptr<array::Storage> storage;
    Py_ssize_t shape[kMaxRank], strides[kMaxRank];
  };
  auto* held = new Held{a.storage, {}, {}};
  const int bytes = array::unit_bytes(a.elem);
  for (int i = 0; i < a.shape.rank; ++i) held->shape[i] = a.shape.dim[i], held->strides[i] = a.stride[i] * bytes;
  view->buf = a.data;
  view->len = a.nbytes();
  view->itemsize = bytes;
  view->readonly = a.storage->read_only;
  view->ndim = a.shape.rank;
  view->format = (flags & PyBUF_FORMAT) ? const_cast<char*>(format) : nullptr;
  view->shape = (flags & PyBUF_ND) ? held->shape : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? held->strides : nullptr;
  view->suboffsets = nullptr;
  view->internal = held;
  view->obj = Py_NewRef(self);
  return 0;
}
void release_buffer(PyObject*, Py_buffer* view) {
  struct Held {
    std::shared_ptr<array::Storage> storage;
    Py_ssize_t shape[kMaxRank], strides[kMaxRank];
  };
  delete static_cast<Held*>(view->internal);
}

/// A GPU's number, or a device by its name.
int place_of(nb::handle device, const char* call) {
  if (PyLong_Check(device.ptr())) return nb::cast<int>(device);
  if (!PyUnicode_Check(device.ptr()))
    check(Status(Code::kInvalidDevice, strf("array.%s: device is a name (cpu, cuda:1) or a GPU's number, got %s", call,
                                            Py_TYPE(device.ptr())->tp_name)));
  return value_of(array::parse_device(nb::cast<std::string>(device)));
}

device::Pool& pool_of(int ordinal) {
  return *value_of(device::shared_pool(*value_of(device::Device::get(ordinal))));
}

nb::dict pool_stats(nb::handle where) {
  const int place = place_of(where, "pool_stats");
  nb::dict d;
  if (place == kHost) {
    const array::HostMemory h = array::host_memory();
    d["capacity"] = h.limit, d["mapped"] = h.used, d["used"] = h.used, d["cached"] = 0, d["peak_used"] = h.peak_used;
    d["allocations"] = h.allocations, d["failures"] = h.failures;
    return d;
  }
  const device::PoolStats s = value_of(pool_of(place).stats());
  d["capacity"] = s.capacity, d["mapped"] = s.mapped, d["used"] = s.used, d["requested"] = s.requested;
  d["cached"] = s.cached, d["stranded"] = s.stranded, d["evicted"] = s.evicted, d["pinned"] = s.pinned;
  d["outside"] = s.outside, d["peak_used"] = s.peak_used, d["fragmentation"] = s.fragmentation();
  d["device_free"] = s.device_free, d["device_total"] = s.device_total;
  d["allocations"] = s.allocations, d["reuses"] = s.reuses, d["maps"] = s.maps;
  d["evictions"] = s.evictions, d["restores"] = s.restores, d["failures"] = s.failures;
  nb::list tenants;
  for (const device::TenantStats& t : s.tenants) {
    nb::dict row;
    row["name"] = t.name, row["quota_bytes"] = t.quota_bytes, row["used_bytes"] = t.used_bytes;
    row["evicted_bytes"] = t.evicted_bytes, row["peak_bytes"] = t.peak_bytes;
    tenants.append(row);
  }
  d["tenants"] = tenants;
  return d;
}

void pool_reset_peak(nb::handle where) {
  const int place = place_of(where, "pool_reset_peak");
  place == kHost ? array::reset_host_peak() : pool_of(place).reset_peak();
}

void pool_set_limit(int64_t bytes, nb::handle where) {
  const int place = place_of(where, "pool_set_limit");
  check(place == kHost ? array::set_host_limit(bytes) : pool_of(place).set_capacity(bytes));
}

int64_t pool_trim(nb::handle where) {
  const int place = place_of(where, "pool_trim");
  return place == kHost ? 0 : value_of(pool_of(place).trim());
}

nb::list pool_snapshot(nb::handle where) {
  const int place = place_of(where, "pool_snapshot");
  if (place == kHost)
    check(Status(Code::kUnsupported,
                 "array.pool_snapshot: memory of CPU arrays has no names; pool_stats(\"cpu\") counts it"));
  nb::list out;
  for (const device::BlockStats& b : pool_of(place).blocks()) {
    nb::dict row;
    row["name"] = b.name, row["tenant"] = b.tenant, row["requested"] = b.requested, row["bytes"] = b.bytes;
    row["resident"] = b.resident, row["leased"] = b.leased;
    out.append(row);
  }
  return out;
}

}  // namespace

void mark_foreign_use(const Array& a) {
  if (a.storage != nullptr) a.storage->foreign = true;
}

const Array& array_of(nb::handle o, const char* call) {
  if (!nb::isinstance<Array>(o)) {
    if (nb::hasattr(o, "_fused"))
      check(Status(Code::kUnsupported, strf("array.%s is not fused, only elementwise functions and a reduction at the "
                                            "end are: call it outside the function",
                                            call)));
    check(Status(Code::kInvalidDType, strf("array.%s: wanted an Array, got %s", call, Py_TYPE(o.ptr())->tp_name)));
  }
  const Array& a = *nb::inst_ptr<Array>(o);
  check(array::check_open(a, call));
  return a;
}

Elem elem_of(nb::handle dtype) {
  if (nb::isinstance<DType>(dtype)) return nb::inst_ptr<DType>(dtype)->elem;
  if (!PyUnicode_Check(dtype.ptr()))
    check(Status(Code::kInvalidDType,
                 strf("array: a dtype is a name or x.dtype, got %s", Py_TYPE(dtype.ptr())->tp_name)));
  const std::string text = nb::cast<std::string>(dtype);
  std::optional<Elem> e = array::parse_elem(text);
  for (int i = 0; !e && i < kernels::kArithmeticCount; ++i)
    if (text == kLongNames[i]) e = static_cast<Elem>(i);
  if (!e) check(Status(Code::kInvalidDType, "array: no dtype '" + text + "'"));
  return *e;
}

nb::object dtype_object(Elem e) {
  return nb::borrow(dtypes[static_cast<int>(e)]);
}

Shape shape_from(nb::handle dims, Elem e) {
  if (PyLong_Check(dims.ptr())) return shape_from(nb::make_tuple(nb::borrow(dims)), e);
  return value_of(array::shape_of(nb::cast<std::vector<int64_t>>(dims), e));
}

nb::tuple shape_tuple(const Shape& s) {
  nb::list dims;
  for (int i = 0; i < s.rank; ++i) dims.append(s.dim[i]);
  return nb::tuple(dims);
}

void refuse_capture(const char* what) {
  if (capture_keep() != nullptr)
    check(Status(
        Code::kFailedPrecondition,
        strf("array: %s inside a capture: arrays compute at once, and a replay would not; capture vivace.ops", what)));
}

void add_array(nb::module_& m) {
  nb::class_<DType>(m, "DType", "An element type; equal to its name in the op table, such as \"f32\".")
      .def_prop_ro("name", [](const DType& d) { return name(d.elem); })
      .def_prop_ro("itemsize", [](const DType& d) { return array::unit_bytes(d.elem); })
      .def(
          "__eq__",
          [](const DType& d, nb::handle other) {
            if (nb::isinstance<DType>(other)) return nb::inst_ptr<DType>(other)->elem == d.elem;
            return PyUnicode_Check(other.ptr()) && PyUnicode_CompareWithASCIIString(other.ptr(), name(d.elem)) == 0;
          },
          nb::arg("other").none())
      .def("__hash__", [](const DType& d) { return nb::hash(nb::str(name(d.elem))); })
      .def("__str__", [](const DType& d) { return name(d.elem); })
      .def("__reduce__",
           [](const DType& d) {
             return nb::make_tuple(nb::module_::import_("vivace.array.types").attr("named"),
                                   nb::make_tuple(name(d.elem)));
           })
      .def("__repr__", [](const DType& d) { return name(d.elem); });
  nb::list held;
  for (int i = 0; i < kernels::kElemCount; ++i) {
    nb::object d = nb::cast(DType{static_cast<Elem>(i)});
    dtypes[i] = d.ptr();
    held.append(d);
  }
  m.attr("array_dtypes") = held;
  m.def(
      "dtype", [](nb::handle d) { return dtype_object(elem_of(d)); }, nb::arg("dtype").none());
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                                {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                                {0, nullptr}};
  nb::class_<Array> c(m, "Array", nb::type_slots(slots),
                      "Memory on the CPU or of Vivace's pool on a GPU, and a strided view of it. Made by the functions "
                      "of vivace.array.");
  c.def_static("_make",
               [](const std::vector<int64_t>& shape, nb::handle dtype, const std::string& device, bool zero) {
                 const Elem e = elem_of(dtype);
                 const Shape s = value_of(array::shape_of(shape, e));
                 return make(s, e, value_of(array::parse_device(device)), zero);
               })
      .def_static("_from_numpy",
                  [](nb::object host, const std::string& device) {
                    return from_host(host, value_of(array::parse_device(device)), "from_numpy");
                  })
      .def_static("_from_dlpack", &array_from_dlpack, nb::arg("source"), nb::arg("device").none() = nb::none(),
                  nb::arg("copy").none() = nb::none())
      .def("numpy", &to_numpy, "A copy as a NumPy array. Waits for all work on the device.")
      .def(
          "copy_from",
          [](const Array& a, nb::object host) {
            check(array::check_open(a, "copy_from()"));
            if (a.storage->read_only)
              check(Status(Code::kInvalidArgument, "array: copy_from(): the memory is read-only; copy() it"));
            if (!a.is_dense())
              check(Status(Code::kInvalidLayout, "array: copy_from() wants a dense array; assign x[...] = y"));
            Tensor t;
            Borrowed from;
            check(host_side(a, host, false, &t, &from));
            check(copy_free(a, t.data, true));
          },
          nb::arg("host"),
          "Overwrites the contents from host memory of the same dtype and shape, behind all work on the device.")
      .def(
          "close", [](Array& a) { a.storage.reset(); },
          "Gives the memory back; views and exports of it stay valid. A second call does nothing.")
      .def(
          "to_device",
          [](const Array& a, const std::string& device, nb::object stream) {
            check(array::check_open(a, "to_device()"));
            if (!stream.is_none())
              check(Status(Code::kUnsupported, "array: to_device(stream=): it waits for the copy; leave stream out"));
            const int to = value_of(array::parse_device(device));
            if (to == a.device()) return a;
            if (to != kHost && a.device() != kHost)
              check(Status(Code::kUnsupported, "array: to_device() between GPUs: go by \"cpu\", or DLPack"));
            refuse_capture("to_device()");
            const Array from = dense(a);
            const Array made = make(from.shape, from.elem, to, false);
            check(to == kHost ? copy_free(from, made.data, false) : copy_free(made, from.data, true));
            return made;
          },
          nb::arg("device"), nb::kw_only(), nb::arg("stream").none() = nb::none(),
          "The array itself, or a copy on another device, finished when this returns.")
      .def_prop_ro("closed", [](const Array& a) { return a.storage == nullptr; })
      .def_prop_ro("shape", [](const Array& a) { return shape_tuple(a.shape); })
      .def_prop_ro("ndim", [](const Array& a) { return a.shape.rank; })
      .def_prop_ro("size", [](const Array& a) { return a.size(); })
      .def_prop_ro("dtype", [](const Array& a) { return dtype_object(a.elem); })
      .def_prop_ro("itemsize", [](const Array& a) { return array::unit_bytes(a.elem); })
      .def_prop_ro("device", [](const Array& a) { return array::device_name(a.device()); })
      .def_prop_ro("nbytes", [](const Array& a) { return a.nbytes(); })
      .def_prop_ro("readonly", [](const Array& a) { return a.storage != nullptr && a.storage->read_only; })
      .def_prop_ro(
          "strides",
          [](const Array& a) {
            Shape s = a.shape;
            for (int i = 0; i < s.rank; ++i) s.dim[i] = a.stride[i];
            return shape_tuple(s);
          },
          "Of each axis, in elements: 0 where it is broadcast, negative where it is flipped.")
      .def_prop_ro(
          "data_ptr",
          [](const Array& a) {
            check(array::check_open(a, "data_ptr"));
            return reinterpret_cast<uintptr_t>(a.data);
          },
          "Address of element [0, 0, ...].")
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Array& a, nb::args) { a.storage.reset(); })
      .def("__dlpack_device__",
           [](const Array& a) { return a.device() == kHost ? nb::make_tuple(1, 0) : nb::make_tuple(2, a.device()); })
      .def("__dlpack__", &export_array, nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           "DLPack export; `stream` is where the consumer will work.")
      .def("__repr__", [](const Array& a) {
        return strf("Array(%s %s, %s%s)", name(a.elem), to_string(a.shape).c_str(),
                    a.storage ? array::device_name(a.device()).c_str() : "closed", "");
      });
  c.attr("__dlpack_c_exchange_api__") = exchange_capsule();
  add_array_class(m, c);
  add_array_program(m);
  m.def("pool_stats", &pool_stats, nb::arg("device").none() = 0,
        "The pool that arrays on this device come from (a GPU's number, \"cuda:1\", \"cpu\"): bytes (mapped = used + "
        "cached), how often it allocated, reused, mapped, evicted, restored, failed; and its tenants, a dict each. Of "
        "the "
        "CPU: capacity (0: no limit), used, peak_used, allocations, failures; nothing is cached there.");
  m.def("pool_reset_peak", &pool_reset_peak, nb::arg("device").none() = 0,
        "From now on peak_used, and each tenant's peak_bytes, counts from what is used now.");
  m.def("pool_set_limit", &pool_set_limit, nb::arg("bytes"), nb::arg("device").none() = 0,
        "The most bytes that the pool may hold from now on; 0: all of the device. Free memory beyond it goes back at "
        "once, live arrays "
        "stay. Errors: InvalidArgumentError (negative); requests beyond it are OutOfMemoryError.");
  m.def("pool_trim", &pool_trim, nb::arg("device").none() = 0,
        "Gives what the pool has cached back to the device and returns how many bytes that were. It waits for the work "
        "that used them last.");
  m.def(
      "pool_snapshot", &pool_snapshot, nb::arg("device").none() = 0,
      "Every live block of a GPU's pool: name, tenant, requested and taken bytes, whether it is resident and leased.");
}

}  // namespace vivace::python
