#include "tensor.h"

#include <cstring>
#include <string_view>

#include "array.h"
#include "dlpack_abi.h"
#include "errors.h"
#include "numpy_abi.h"

namespace vivace::python {
namespace {

struct NamedDType {
  std::string_view name;
  DType dtype;
};
/// NumPy's and ml_dtypes' scalar types by the last part of their name.
constexpr NamedDType kScalars[] = {
    {"float64", DType::f64}, {"float32", DType::f32}, {"float16", DType::f16}, {"bfloat16", DType::bf16},
    {"float8_e4m3fn", DType::e4m3}, {"float8_e5m2", DType::e5m2}, {"int64", DType::i64}, {"longlong", DType::i64},
    {"int32", DType::i32}, {"int16", DType::i16}, {"int8", DType::i8}, {"uint8", DType::u8},
    {"bool", DType::boolean}, {"bool_", DType::boolean},
};

/// Scalar types seen so far; a call uses a handful. Guarded by the GIL.
struct SeenScalar {
  PyTypeObject* type;
  DType dtype;
} seen[std::size(kScalars)];
size_t seen_count = 0;

Status dtype_of(const NumpyDType& d, DType* dtype) {
  if (d.byteorder == '>')
    return Status(Code::kInvalidDType,
                  strf("the array's bytes are swapped (dtype kind %c, big-endian); convert it with astype", d.kind));
  for (size_t i = 0; i < seen_count; ++i)
    if (seen[i].type == d.scalar) {
      *dtype = seen[i].dtype;
      return {};
    }
  std::string_view name = d.scalar->tp_name;
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) name = name.substr(dot + 1);
  for (const NamedDType& n : kScalars)
    if (n.name == name) {
      if (seen_count < std::size(seen)) seen[seen_count++] = {d.scalar, n.dtype};
      *dtype = n.dtype;
      return {};
    }
  return Status(Code::kInvalidDType, strf("NumPy dtype %s has no counterpart here", d.scalar->tp_name));
}

Status strided(const char* what, int rank, const int64_t* shape, Tensor* t) {
  if (rank > kMaxRank) return Status(Code::kInvalidShape, strf("%s has %d axes, at most %d", what, rank, kMaxRank));
  t->shape.rank = rank;
  for (int i = 0; i < rank; ++i) t->shape.dim[i] = shape[i];
  return {};
}

Status from_numpy(const NumpyArray& a, bool write, Tensor* t) {
  if (Status s = dtype_of(*a.dtype, &t->dtype); !s.ok()) return s;
  if (write && !(a.flags & kNumpyWritable))
    return Status(Code::kInvalidArgument, "the array is read-only and this port is written");
  if (Status s = strided("the array", a.nd, reinterpret_cast<const int64_t*>(a.dimensions), t); !s.ok()) return s;
  const int64_t bytes = info(t->dtype).bytes;
  for (int i = 0; i < a.nd; ++i) {
    t->stride[i] = a.strides[i] / bytes;
    if (t->stride[i] * bytes != a.strides[i] && a.dimensions[i] > 1)
      return Status(Code::kInvalidLayout,
                    strf("axis %d has a stride of %ld bytes, no multiple of %s's %ld", i,
                         static_cast<long>(a.strides[i]), name(t->dtype), static_cast<long>(bytes)));
  }
  t->data = a.data;
  return {};
}

Status dtype_of(const DLDataType& d, DType* dtype) {
  struct Row {
    uint8_t code, bits;
    DType dtype;
  };
  static constexpr Row kRows[] = {
      {2, 64, DType::f64},  {2, 32, DType::f32},  {2, 16, DType::f16}, {4, 16, DType::bf16},
      {10, 8, DType::e4m3}, {12, 8, DType::e5m2}, {0, 64, DType::i64}, {0, 32, DType::i32},
      {0, 16, DType::i16},  {0, 8, DType::i8},    {1, 8, DType::u8},   {6, 8, DType::boolean},
  };
  for (const Row& r : kRows)
    if (r.code == d.code && r.bits == d.bits && d.lanes == 1) {
      *dtype = r.dtype;
      return {};
    }
  return Status(Code::kInvalidDType,
                strf("DLPack dtype (code %d, %d bits, %d lanes) has no counterpart here", d.code, d.bits, d.lanes));
}

constexpr uintptr_t kLegacyStream = 1;  // CU_STREAM_LEGACY: ordered with every blocking stream

/// `d` as a Tensor; its place and GPU go to `from`.
Status from_dltensor(const DLTensor& d, Tensor* t, Borrowed* from) {
  switch (d.device.type) {
    case kDLCPU:
    case kDLCUDAHost: t->place = Place::host; break;
    case kDLCUDA:
    case kDLCUDAManaged: t->place = Place::device; break;
    default:
      return Status(Code::kInvalidDevice, strf("DLPack device type %d is neither host nor CUDA memory", d.device.type));
  }
  if (t->place == Place::device) {
    if (from->device >= 0 && from->device != d.device.id)
      return Status(Code::kInvalidDevice,
                    strf("it is on GPU %d, the tensors before it on GPU %d", d.device.id, from->device));
    from->device = d.device.id;
  }
  if (Status s = dtype_of(d.dtype, &t->dtype); !s.ok()) return s;
  if (Status s = strided("the tensor", d.ndim, d.shape, t); !s.ok()) return s;
  int64_t dense = 1;
  for (int i = d.ndim - 1; i >= 0; --i) {
    t->stride[i] = d.strides ? d.strides[i] : dense;
    dense *= d.shape[i];
  }
  t->data = d.data ? static_cast<char*>(d.data) + d.byte_offset : nullptr;
  return {};
}

/// What a framework's type offers for exchange. `is_neg` is null where its tensors hold what their memory holds.
struct Exchange {
  PyTypeObject* type = nullptr;
  const DLPackExchangeAPI* api = nullptr;
  nb::object is_neg;
};
/// Types with an exchange table seen so far: a handful. Guarded by the GIL; never destroyed, since the interpreter may
/// go first.
constexpr size_t kKnown = 4;
Exchange* const known = new Exchange[kKnown];
size_t known_count = 0;

/// The exchange of a type that was seen before, or null.
const Exchange* known_exchange(PyTypeObject* type) {
  for (size_t i = 0; i < known_count; ++i)
    if (known[i].type == type) return &known[i];
  return nullptr;
}

/// The method of a type that says whether a tensor's values are its memory's, negated: torch's negative views, made by
/// `.imag` of a conjugate, export their memory as it is. (Conjugate views are complex, a dtype that nothing here
/// takes.)
nb::object is_neg_of(PyTypeObject* type) {
  nb::object method = nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "is_neg"));
  if (!method.is_valid()) PyErr_Clear();
  return method;
}

Status not_negated(PyObject* o, const nb::object& is_neg) {
  if (!is_neg.is_valid()) return {};
  nb::object said = nb::steal(PyObject_CallOneArg(is_neg.ptr(), o));
  const int negated = said.is_valid() ? PyObject_IsTrue(said.ptr()) : -1;
  if (negated < 0)
    return Status(Code::kInvalidArgument,
                  strf("%s.is_neg() failed: %s", Py_TYPE(o)->tp_name, take_python_error().c_str()));
  if (negated > 0)
    return Status(Code::kInvalidLayout,
                  strf("it is a negative view: a %s whose values are its memory's, negated; pass resolve_neg() of it",
                       Py_TYPE(o)->tp_name));
  return {};
}

/// The exchange of a type; without a table where it has none.
Exchange exchange_of(PyTypeObject* type) {
  if (nb::handle(reinterpret_cast<PyObject*>(type)).is(nb::type<array::Array>())) return {};  // __dlpack__ says more
  nb::object capsule =
      nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  const DLPackExchangeAPI* api = nullptr;
  if (capsule.is_valid() && PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api"))
    api = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  PyErr_Clear();
  if (api != nullptr && (api->major != 1 || api->view_of_object == nullptr || api->current_work_stream == nullptr))
    api = nullptr;
  if (api == nullptr) return {};
  const Exchange found{type, api, is_neg_of(type)};
  if (known_count < kKnown) {
    Py_INCREF(type);  // the table is the type's: both stay
    known[known_count++] = found;
  }
  return found;
}

Status from_exchange(const Exchange& exchange, PyObject* o, Tensor* t, Borrowed* from) {
  const DLPackExchangeAPI& api = *exchange.api;
  DLTensor d{};
  if (Status s = not_negated(o, exchange.is_neg); !s.ok()) return s;
  if (api.view_of_object(o, &d) != 0)
    return Status(Code::kInvalidArgument,
                  strf("%s gave no view of its memory: %s", Py_TYPE(o)->tp_name, take_python_error().c_str()));
  const bool first = from->device < 0;
  if (Status s = from_dltensor(d, t, from); !s.ok()) return s;
  if (first && from->device >= 0 && api.current_work_stream(kDLCUDA, from->device, &from->stream) != 0)
    return Status(Code::kInvalidArgument,
                  strf("%s did not say its current stream: %s", Py_TYPE(o)->tp_name, take_python_error().c_str()));
  return {};
}

/// Whether `o` says that it lives on a GPU, by __dlpack_device__.
bool on_gpu(PyObject* o) {
  nb::object device = nb::steal(PyObject_CallMethod(o, "__dlpack_device__", nullptr));
  if (!device.is_valid() || !PyTuple_Check(device.ptr()) || PyTuple_GET_SIZE(device.ptr()) != 2) {
    PyErr_Clear();
    return false;
  }
  const long type = PyLong_AsLong(nb::object(device[0].attr("__int__")()).ptr());
  return type == kDLCUDA || type == kDLCUDAManaged;
}

Status from_dlpack(PyObject* o, bool write, Tensor* t, Borrowed* from) {
  static PyObject* const kDlpack = PyUnicode_InternFromString("__dlpack__");
  nb::object method = nb::steal(PyObject_GetAttr(o, kDlpack));
  if (!method.is_valid()) {
    PyErr_Clear();
    return Status(Code::kInvalidDType, strf("wanted a NumPy array, a vivace.View or an object with __dlpack__, got %s",
                                            Py_TYPE(o)->tp_name));
  }
  if (Status s = not_negated(o, is_neg_of(Py_TYPE(o))); !s.ok()) return s;
  nb::dict options;
  options["max_version"] = nb::make_tuple(1, 1);
  const bool gpu = on_gpu(o);
  if (gpu) options["stream"] = nb::int_(kLegacyStream);
  nb::object none = nb::make_tuple();
  nb::object capsule = nb::steal(PyObject_Call(method.ptr(), none.ptr(), options.ptr()));
  if (!capsule.is_valid() && PyErr_ExceptionMatches(PyExc_TypeError)) {  // a producer from before max_version
    PyErr_Clear();
    nb::dict older;
    if (gpu) older["stream"] = nb::int_(kLegacyStream);
    capsule = nb::steal(PyObject_Call(method.ptr(), none.ptr(), older.ptr()));
  }
  if (!capsule.is_valid())
    return Status(Code::kInvalidArgument,
                  strf("%s.__dlpack__ failed: %s", Py_TYPE(o)->tp_name, take_python_error().c_str()));

  const DLTensor* d = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* m =
        static_cast<const DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (m->major > 1) return Status(Code::kUnsupported, strf("DLPack version %u.%u, at most 1.x", m->major, m->minor));
    if (write && (m->flags & kDLReadOnly))
      return Status(Code::kInvalidArgument, "the tensor is read-only and this port is written");
    d = &m->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    d = &static_cast<const DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  } else {
    return Status(Code::kInvalidArgument, strf("%s.__dlpack__ gave no usable capsule", Py_TYPE(o)->tp_name));
  }
  const bool first = from->device < 0;
  if (Status s = from_dltensor(*d, t, from); !s.ok()) return s;
  if (first && from->device >= 0) from->stream = reinterpret_cast<void*>(kLegacyStream);
  from->keep(std::move(capsule));
  return {};
}

/// numpy.ndarray once numpy has been imported by anybody, else null; never imports it.
PyTypeObject* ndarray_type() {
  static PyTypeObject* type = nullptr;
  if (type != nullptr) return type;
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* numpy = PyDict_GetItemString(modules, "numpy");
  if (numpy == nullptr) return nullptr;
  nb::object found = nb::steal(PyObject_GetAttrString(numpy, "ndarray"));
  if (!found.is_valid()) {  // numpy is in the middle of its own import
    PyErr_Clear();
    return nullptr;
  }
  return type = reinterpret_cast<PyTypeObject*>(found.release().ptr());
}

/// Whether the fields of numpy_abi.h say what __array_interface__ says. Once a process.
Status numpy_abi_status() {
  try {
    nb::object np = nb::module_::import_("numpy");
    nb::object probe = np.attr("zeros")(nb::make_tuple(5, 3), "int32")[nb::make_tuple(
        nb::slice(nb::int_(1), nb::none(), nb::int_(2)), nb::slice(nb::int_(1), nb::none(), nb::none()))];
    probe.attr("setflags")(nb::arg("write") = false);
    const auto& a = *reinterpret_cast<const NumpyArray*>(probe.ptr());
    nb::object face = probe.attr("__array_interface__");
    const auto data = nb::cast<uintptr_t>(face["data"][0]);
    const bool same = reinterpret_cast<uintptr_t>(a.data) == data && a.nd == 2 && a.dimensions[0] == 2 &&
                      a.dimensions[1] == 2 && a.strides[0] == 24 && a.strides[1] == 4 && !(a.flags & kNumpyWritable) &&
                      reinterpret_cast<PyObject*>(a.dtype) == nb::object(probe.attr("dtype")).ptr() &&
                      reinterpret_cast<PyObject*>(a.dtype->scalar) == nb::object(np.attr("int32")).ptr();
    if (same) return {};
    return Status(Code::kUnsupported,
                  "this NumPy lays out its arrays differently from 1.x and 2.x; pass arrays through __dlpack__ or "
                  "install numpy < 3");
  } catch (nb::python_error& e) {
    return Status(Code::kUnsupported, std::string("NumPy could not be probed: ") + e.what());
  }
}

}  // namespace

Status to_tensor(PyObject* o, bool write, Tensor* t, Borrowed* from) {
  if (const Exchange* seen_before = known_exchange(Py_TYPE(o)))
    return from_exchange(*seen_before, o, t, from);  // first: the usual call is of such tensors alone
  if (PyTypeObject* array = ndarray_type();
      array != nullptr && (Py_TYPE(o) == array || PyType_IsSubtype(Py_TYPE(o), array))) {
    static const Status kAbi = numpy_abi_status();
    if (!kAbi.ok()) return kAbi;
    return from_numpy(*reinterpret_cast<const NumpyArray*>(o), write, t);
  }
  View* view = nullptr;
  if (nb::try_cast<View*>(nb::handle(o), view, false)) {
    if (write && !view->writable)
      return Status(Code::kInvalidArgument, "the viewed memory is read-only and this port is written");
    if (view->tensor.place == Place::device) {  // its owner knows the GPU and the stream
      if (Status s = to_tensor(view->owner.ptr(), write, t, from); !s.ok()) return s;
    }
    *t = view->tensor;
    return {};
  }
  if (const Exchange exchange = exchange_of(Py_TYPE(o)); exchange.api != nullptr)
    return from_exchange(exchange, o, t, from);
  return from_dlpack(o, write, t, from);
}

}  // namespace vivace::python
