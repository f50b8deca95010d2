// DLPack both ways, on the CPU and on GPUs.
#include <nanobind/stl/string.h>

#include <cstring>
#include <string_view>

#include "array.h"
#include "dlpack_abi.h"
#include "gpu_runtime.h"
#include "tensor.h"
#include "vivace/base/check.h"
#include "vivace/device/cuda_memory.h"
#include "vivace/device/stream.h"

namespace vivace::python {
namespace {

using array::Elem;
using array::kHost;
using array::kLegacyStream;
using array::name;  // beside vivace::name of DType

constexpr uintptr_t kPerThreadStream = 2;
constexpr uint64_t kDLCopied = 2;

struct TypeRow {
  Elem elem;
  uint8_t code, bits;
};
constexpr TypeRow kTypes[] = {
    {Elem::boolean, 6, 8}, {Elem::u8, 1, 8},   {Elem::u16, 1, 16}, {Elem::u32, 1, 32},  {Elem::u64, 1, 64},
    {Elem::i8, 0, 8},      {Elem::i16, 0, 16}, {Elem::i32, 0, 32}, {Elem::i64, 0, 64},  {Elem::f16, 2, 16},
    {Elem::bf16, 4, 16},   {Elem::f32, 2, 32}, {Elem::f64, 2, 64}, {Elem::e4m3, 10, 8}, {Elem::e5m2, 12, 8},
    {Elem::e2m1, 17, 4},   {Elem::i4, 0, 4},  // packed, the first element in the low bits
};
const TypeRow* row_of(Elem e) {
  for (const TypeRow& r : kTypes)
    if (r.elem == e) return &r;
  return nullptr;
}

/// What a capsule points at, in either version of the ABI.
template <class Managed>
struct Export {
  Managed managed{};
  std::shared_ptr<array::Storage> storage;
  int64_t shape[kMaxRank], strides[kMaxRank];
};

/// Whoever gets it calls its deleter.
template <class Managed>
Managed* make_managed(const Array& a, DLDataType type, bool copied) {
  auto* e = new Export<Managed>;
  e->storage = a.storage;
  for (int i = 0; i < a.shape.rank; ++i) {
    e->shape[i] = a.shape.dim[i];
    e->strides[i] = a.shape.dim[i] == 1 ? 1 : a.stride[i];
  }
  const DLDevice where = a.device() == kHost ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, a.device()};
  e->managed.tensor = {a.size() == 0 ? nullptr : a.data, where, a.shape.rank, type, e->shape, e->strides, 0};
  e->managed.context = e;
  e->managed.deleter = [](Managed* m) {  // from any thread, with or without the GIL
    nb::gil_scoped_acquire gil;
    delete static_cast<Export<Managed>*>(m->context);
  };
  if constexpr (requires { e->managed.major; }) {
    e->managed.major = 1, e->managed.minor = 1;
    e->managed.flags = (a.storage->read_only ? kDLReadOnly : 0) | (copied ? kDLCopied : 0);
  }
  return &e->managed;
}

template <class Managed>
nb::object make_capsule(const Array& a, DLDataType type, const char* label, bool copied) {
  Managed* const managed = make_managed<Managed>(a, type, copied);
  PyObject* capsule = PyCapsule_New(managed, label, [](PyObject* c) {
    // A consumer renames the capsule and then calls the deleter itself.
    const char* now = PyCapsule_GetName(c);
    if (now == nullptr || std::string_view(now).starts_with("used_")) return;
    auto* m = static_cast<Managed*>(PyCapsule_GetPointer(c, now));
    m->deleter(m);
  });
  if (capsule == nullptr) {
    managed->deleter(managed);
    throw nb::python_error();
  }
  return nb::steal(capsule);
}

/// Orders the consumer's stream behind the default one. `stream` as DLPack says for CUDA: None and 1 the
/// legacy stream, 2 the per-thread stream, -1 no ordering, else a handle.
Status hand_over(const Array& a, nb::handle stream) {
  const int64_t s = stream.is_none() ? 1 : nb::cast<int64_t>(stream);
  if (s == 0 || s < -1)
    return Status(
        Code::kInvalidArgument,
        strf("array: __dlpack__(stream=%ld): wanted None, -1, 1, 2 or a stream handle", static_cast<long>(s)));
  if (s == static_cast<int64_t>(kLegacyStream)) {
    if (stream_is_overridden()) mark_foreign_use(a);
    return {};
  }
  mark_foreign_use(a);
  if (s == -1) return {};
  VV_ASSIGN(device::Device* const device, device::Device::get(a.device()));
  VV_TRY(device->bind());
  VV_ASSIGN(device::Event event, device::Event::create(*device));
  VV_TRY(event.record(reinterpret_cast<cu::Stream>(kLegacyStream)));
  device::Stream consumer = device::Stream::borrow(
      *device,
      reinterpret_cast<cu::Stream>(static_cast<uintptr_t>(s == 2 ? kPerThreadStream : static_cast<uintptr_t>(s))));
  return consumer.wait(event);
}

/// Copies, and waits: what the consumer gets is finished.
Array copied(const Array& a, int device) {
  refuse_capture("a copy");
  Array from = a;
  if (device == a.device() || !a.is_dense())
    from = value_of(work(a.device(), a.size(), [&](const array::Exec& x) { return array::copy(a, a.elem, x); }));
  if (device == a.device()) return from;
  Array to = value_of(array::empty(a.elem, a.shape, device));
  check(device == kHost ? copy_free(from, to.data, false) : copy_free(to, from.data, true));
  return to;
}

[[noreturn]] void buffer_error(const std::string& why) {
  PyErr_SetString(PyExc_BufferError, why.c_str());
  throw nb::python_error();
}

}  // namespace

nb::object export_array(const Array& given, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                        nb::handle copy_it) {
  check(array::check_open(given, "__dlpack__"));
  int device = given.device();
  if (!dl_device.is_none()) {
    const int type = nb::cast<int>(nb::int_(dl_device[0])), id = nb::cast<int>(nb::int_(dl_device[1]));
    const int wanted = type == kDLCPU ? kHost : id;
    if ((type != kDLCPU && type != kDLCUDA) || (wanted != device && wanted != kHost))
      check(Status(Code::kInvalidDevice, strf("array: it is on %s; __dlpack__ gives it there or on the CPU",
                                              array::device_name(device).c_str())));
    device = wanted;
  }
  const bool must = !copy_it.is_none() && nb::cast<bool>(copy_it);
  if (device != given.device() && !copy_it.is_none() && !must)
    buffer_error("array: __dlpack__(copy=False): it is on " + array::device_name(given.device()));
  const bool copies = must || device != given.device();
  const Array a = copies ? copied(given, device) : given;
  const TypeRow* const row = row_of(a.elem);
  if (row == nullptr) check(Status(Code::kUnsupported, strf("array: DLPack has no dtype for %s", name(a.elem))));
  const DLDataType type{row->code, row->bits, 1};
  const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
  if (a.device() != kHost)
    check(hand_over(a, stream));
  else if (!stream.is_none() && !copies)
    check(Status(Code::kInvalidArgument, "array: __dlpack__(stream=): CPU memory has none; leave it None"));
  if (a.storage->read_only && !versioned)
    buffer_error("array: the memory is read-only, which DLPack before 1.0 cannot say; pass max_version=(1, 0)");
  return versioned ? make_capsule<DLManagedTensorVersioned>(a, type, "dltensor_versioned", copies)
                   : make_capsule<DLManagedTensor>(a, type, "dltensor", copies);
}

namespace {

/// What keeps a producer's memory alive: it is given back with the last array, from whatever thread.
std::shared_ptr<void> hold(nb::object o) {
  return {o.release().ptr(), [](void* p) {
            if (!Py_IsInitialized()) return;
            nb::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(p));
          }};
}

/// The tensor of a capsule, read-only or not. Errors: Unsupported for another major version.
const DLTensor* tensor_in(const nb::object& capsule, bool* read_only) {
  *read_only = false;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* m =
        static_cast<const DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (m->major > 1)
      check(Status(Code::kUnsupported, strf("array: DLPack version %u.%u, at most 1.x", m->major, m->minor)));
    *read_only = (m->flags & kDLReadOnly) != 0;
    return &m->tensor;
  }
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor"))
    return &static_cast<const DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  check(Status(Code::kInvalidArgument, "array: __dlpack__ gave no usable capsule"));
  return nullptr;
}

/// A view of a tensor's memory, where it is.
Array view_of(const DLTensor& d, int device, bool read_only, std::shared_ptr<void> owner) {
  const TypeRow* row = nullptr;
  for (const TypeRow& r : kTypes)
    if (r.code == d.dtype.code && r.bits == d.dtype.bits && d.dtype.lanes == 1) row = &r;
  if (row == nullptr)
    check(Status(Code::kInvalidDType, strf("array: DLPack dtype (code %d, %d bits, %d lanes) has no counterpart here",
                                           d.dtype.code, d.dtype.bits, d.dtype.lanes)));
  if (d.ndim < 0 || d.ndim > kMaxRank)
    check(Status(Code::kInvalidShape, strf("array: %d axes, at most %d", d.ndim, kMaxRank)));
  const Shape s = value_of(
      array::shape_of(std::span(d.shape, static_cast<size_t>(d.ndim)), row->elem));  // of two a byte: whole bytes
  char* const data = d.data == nullptr ? nullptr : static_cast<char*>(d.data) + d.byte_offset;
  Array a = array::borrow(data, row->elem, s, device, read_only, std::move(owner));
  if (d.strides != nullptr)
    for (int i = 0; i < d.ndim; ++i)
      if (s.dim[i] != 1) a.stride[i] = d.strides[i];
  if (row->bits < 8 && !a.is_dense())
    check(Status(Code::kInvalidLayout, strf("array: from_dlpack: strides of %s; make it contiguous", name(row->elem))));
  return a;
}

/// Host memory with u16, u32, u64 and read-only memory among it, which no op takes.
Array from_host_capsule(const nb::object& source) {
  nb::dict options;
  options["max_version"] = nb::make_tuple(1, 1);
  nb::object method = source.attr("__dlpack__"), none = nb::make_tuple();
  nb::object capsule = nb::steal(PyObject_Call(method.ptr(), none.ptr(), options.ptr()));
  if (!capsule.is_valid() && PyErr_ExceptionMatches(PyExc_TypeError)) {  // a producer from before max_version
    PyErr_Clear();
    capsule = nb::steal(PyObject_CallNoArgs(method.ptr()));
  }
  if (!capsule.is_valid()) check(Status(Code::kInvalidArgument, "array: __dlpack__ failed: " + take_python_error()));
  bool read_only;
  const DLTensor& d = *tensor_in(capsule, &read_only);
  return view_of(d, kHost, read_only, hold(nb::make_tuple(source, capsule)));
}

}  // namespace

Array array_from_dlpack(nb::object source, nb::handle device, nb::handle copy_it) {
  if (!nb::hasattr(source, "__dlpack__"))
    check(Status(Code::kInvalidDType,
                 strf("array: from_dlpack: wanted an object with __dlpack__, got %s", Py_TYPE(source.ptr())->tp_name)));
  nb::object where = source.attr("__dlpack_device__")();
  const int type = nb::cast<int>(nb::int_(where[0]));
  Array a;
  if (type == kDLCPU) {
    a = from_host_capsule(source);
  } else {
    Tensor t;
    Borrowed from;
    check(to_tensor(source.ptr(), true, &t, &from));
    if (from.device < 0)
      check(Status(Code::kInvalidDevice, "array: from_dlpack: it is neither CPU nor CUDA memory; from_numpy copies"));
    value_of(device::Device::get(from.device));
    a = array::borrow(
        t.data, array::elem_of(t.dtype), t.shape, from.device, false,
        hold(nb::make_tuple(source, from.capsules.is_valid() ? nb::object(from.capsules) : nb::object(nb::none()))));
    for (int i = 0; i < t.shape.rank; ++i) a.stride[i] = t.stride[i];
  }
  const int to = device.is_none() ? a.device() : value_of(array::parse_device(nb::cast<std::string>(nb::str(device))));
  const bool must = !copy_it.is_none() && nb::cast<bool>(copy_it);
  if (to == a.device()) return must ? copied(a, to) : a;
  if (!copy_it.is_none() && !must)
    buffer_error("array: from_dlpack(copy=False): it is on " + array::device_name(a.device()));
  if (to != kHost && a.device() != kHost)
    check(Status(Code::kUnsupported, "array: from_dlpack between GPUs: go by \"cpu\""));
  return copied(a, to);
}

namespace {

/// The Array in an object of Python that C code hands over; null with TypeError set.
const Array* open_array(void* object) {
  const nb::handle h(static_cast<PyObject*>(object));
  if (nb::isinstance<Array>(h) && nb::inst_ptr<Array>(h)->storage != nullptr) return nb::inst_ptr<Array>(h);
  PyErr_SetString(PyExc_TypeError, "array: the exchange table takes an open vivace.Array");
  return nullptr;
}

/// f() and 0, or -1 and Python's error.
template <class F>
int guarded(F&& f) {
  try {
    f();
    return 0;
  } catch (nb::python_error& e) {
    e.restore();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return -1;
}

DLDataType type_of(const Array& a) {
  const TypeRow* const row = row_of(a.elem);
  if (row == nullptr) buffer_error(strf("array: DLPack has no dtype for %s", name(a.elem)));
  return {row->code, row->bits, 1};
}

/// By DLPack's contract with the GIL, but for `allocate`. Nothing is ordered: the consumer works on
/// current_work_stream, or orders its own stream behind it.
DLPackExchangeAPI exchange{
    1,
    3,
    nullptr,
    [](DLTensor* like, DLManagedTensorVersioned** out, void* context,
       void (*set_error)(void*, const char*, const char*)) -> int {
      const TypeRow* row = nullptr;
      for (const TypeRow& r : kTypes)
        if (r.code == like->dtype.code && r.bits == like->dtype.bits && like->dtype.lanes == 1) row = &r;
      Status failed = row == nullptr ? Status(Code::kInvalidDType, "array: a dtype without a counterpart") : Status();
      if (failed.ok() && like->device.type != kDLCPU && like->device.type != kDLCUDA)
        failed = Status(Code::kInvalidDevice, "array: memory that is neither the CPU's nor CUDA's");
      if (failed.ok()) {
        const auto make = [&]() -> Result<Array> {
          VV_ASSIGN(const Shape s,
                    array::shape_of(std::span(like->shape, static_cast<size_t>(std::max(0, like->ndim))), row->elem));
          return array::empty(row->elem, s, like->device.type == kDLCPU ? kHost : like->device.id);
        };
        const Result<Array> made = make();
        if (made.ok()) {
          *out = make_managed<DLManagedTensorVersioned>(*made, {row->code, row->bits, 1}, false);
          return 0;
        }
        failed = made.status();
      }
      if (set_error != nullptr) set_error(context, "RuntimeError", failed.message().c_str());
      return -1;
    },
    [](void* object, DLManagedTensorVersioned** out) -> int {
      const Array* const a = open_array(object);
      if (a == nullptr) return -1;
      return guarded([&] {
        if (a->device() != kHost) mark_foreign_use(*a);
        *out = make_managed<DLManagedTensorVersioned>(*a, type_of(*a), false);
      });
    },
    [](DLManagedTensorVersioned* tensor, void** out) -> int {
      return guarded([&] {
        if (tensor->major > 1)
          check(Status(Code::kUnsupported, strf("array: DLPack version %u, at most 1", tensor->major)));
        const DLDevice where = tensor->tensor.device;
        if (where.type != kDLCPU && where.type != kDLCUDA)
          check(Status(Code::kInvalidDevice, "array: memory that is neither the CPU's nor CUDA's"));
        // A tensor that is refused stays the caller's: owned at the end, and by nobody (who frees nothing) until then.
        Array a = view_of(tensor->tensor, where.type == kDLCPU ? kHost : where.id, (tensor->flags & kDLReadOnly) != 0,
                          std::shared_ptr<void>(tensor, [](void*) {}));
        a.storage->owner = std::shared_ptr<void>(tensor, [](void* p) {
          auto* const m = static_cast<DLManagedTensorVersioned*>(p);
          if (m->deleter != nullptr) m->deleter(m);
        });
        *out = nb::cast(std::move(a)).release().ptr();
      });
    },
    [](void* object, DLTensor* out) -> int {
      const Array* const a = open_array(object);
      if (a == nullptr) return -1;
      return guarded([&] {
        if (a->storage->read_only) buffer_error("array: the memory is read-only, which a bare view cannot say");
        if (a->device() != kHost) mark_foreign_use(*a);
        const DLDevice where = a->device() == kHost ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, a->device()};
        *out = {
            a->size() == 0 ? nullptr : a->data, where, a->shape.rank, type_of(*a), const_cast<int64_t*>(a->shape.dim),
            const_cast<int64_t*>(a->stride),    0};
      });
    },
    [](int32_t device_type, int32_t, void** out) -> int {
      *out = device_type == kDLCUDA ? reinterpret_cast<void*>(exec_on_gpu().stream) : nullptr;
      return 0;
    },
};

}  // namespace

nb::object exchange_capsule() {
  PyObject* const capsule = PyCapsule_New(&exchange, "dlpack_exchange_api", nullptr);
  if (capsule == nullptr) throw nb::python_error();
  return nb::steal(capsule);
}

}  // namespace vivace::python
