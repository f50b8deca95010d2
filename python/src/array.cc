#include "array.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>

#include "dlpack_abi.h"
#include "errors.h"
#include "gil.h"
#include "gpu_runtime.h"
#include "tensor.h"
#include "vivace/base/check.h"
#include "vivace/device/cuda_memory.h"
#include "vivace/device/memory.h"

namespace vivace::python {

struct ArrayStorage {
  device::Device* device = nullptr;
  device::Pool* pool = nullptr;    // with block: memory of ours
  device::Block* block = nullptr;
  nb::object owner;                // otherwise what keeps the memory alive
  std::atomic<bool> foreign{false};
  ~ArrayStorage();
};

namespace {

constexpr uintptr_t kLegacyStream = 1;  // CU_STREAM_LEGACY: what arrays are filled on and ops run on by default
constexpr uintptr_t kPerThreadStream = 2;

Status parse_device(const std::string& text, int* ordinal) {
  *ordinal = 0;
  if (text == "cuda") return {};
  if (text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 &&
      text.find_first_not_of("0123456789", 5) == std::string::npos) {
    *ordinal = std::stoi(text.substr(5));
    return {};
  }
  return Status(Code::kInvalidDevice, "array: no device '" + text + "': wanted cuda or cuda:N; host memory is NumPy's");
}

Result<Tensor> plan(const std::vector<int64_t>& dims, const std::string& dtype) {
  DType d;
  if (!parse_dtype(dtype.data(), dtype.size(), &d))
    return Status(Code::kInvalidDType, "array: no dtype '" + dtype + "'");
  if (dims.size() > static_cast<size_t>(kMaxRank))
    return Status(Code::kInvalidShape, strf("array: %zu axes, at most %d", dims.size(), kMaxRank));
  Shape s;
  s.rank = static_cast<int>(dims.size());
  for (int i = 0; i < s.rank; ++i) {
    if (dims[static_cast<size_t>(i)] < 0)
      return Status(Code::kInvalidShape,
                    strf("array: axis %d is %ld", i, static_cast<long>(dims[static_cast<size_t>(i)])));
    s.dim[i] = dims[static_cast<size_t>(i)];
  }
  if (s.elements() < 0) return Status(Code::kInvalidShape, "array: " + to_string(s) + " overflows");
  if (info(d).block > 1 && (s.rank == 0 || s.dim[s.rank - 1] % info(d).block != 0))
    return Status(Code::kInvalidShape,
                  strf("array: the last axis of %s must be a multiple of %d", name(d), info(d).block));
  return tensor(nullptr, d, s, Place::device);
}

size_t bytes_of(const Tensor& t) { return static_cast<size_t>(row_bytes(t.dtype, t.shape.elements())); }

Result<Array> make(const Tensor& planned, const std::string& where, bool zero) {
  int ordinal = 0;
  VV_TRY(parse_device(where, &ordinal));
  VV_ASSIGN(device::Device* const device, device::Device::get(ordinal));
  VV_TRY(device->bind());
  Array a{std::make_shared<ArrayStorage>(), planned, ordinal};
  a.storage->device = device;
  const size_t bytes = bytes_of(planned);
  if (bytes == 0) return a;
  VV_ASSIGN(a.storage->pool, device::shared_pool(*device));
  VV_ASSIGN(a.storage->block,
            a.storage->pool->allocate({.bytes = bytes, .stream = kLegacyStream, .name = "vivace.Array"}));
  a.tensor.data = a.storage->block->data();
  if (zero) {
    device::Stream stream = device::Stream::borrow(*device, reinterpret_cast<cu::Stream>(kLegacyStream));
    VV_TRY(stream.fill(a.tensor.data, 0, bytes));
    VV_TRY(stream.synchronize());  // work on any stream may read it
  }
  return a;
}

/// `o` as dense host memory that matches the array.
Status host_side(const Array& a, nb::handle o, bool write, Tensor* t, Borrowed* from) {
  VV_TRY(to_tensor(o.ptr(), write, t, from));
  if (t->place != Place::host) return Status(Code::kInvalidDevice, "array: the other side must be host memory");
  if (t->dtype != a.tensor.dtype)
    return Status(Code::kInvalidDType, strf("array: %s here, %s on the host", name(a.tensor.dtype), name(t->dtype)));
  if (bytes_of(*t) != bytes_of(a.tensor) || !(t->shape == a.tensor.shape))
    return Status(Code::kInvalidShape,
                  "array: " + to_string(a.tensor.shape) + " here, " + to_string(t->shape) + " on the host");
  if (!t->is_dense())
    return Status(Code::kInvalidLayout, "array: the host side is not contiguous; use numpy.ascontiguousarray");
  return {};
}

/// Copies and waits. Before reading, all streams of the device are waited for.
Status copy(const Array& a, void* host, bool to_device) {
  const size_t bytes = bytes_of(a.tensor);
  if (bytes == 0) return {};
  device::Device& device = *a.storage->device;
  const NoGil release;
  VV_TRY(device.bind());
  VV_TRY(device.synchronize());
  device::Stream stream = device::Stream::borrow(device, reinterpret_cast<cu::Stream>(kLegacyStream));
  VV_TRY(to_device ? stream.copy(a.tensor.data, host, bytes) : stream.copy(host, a.tensor.data, bytes));
  return stream.synchronize();
}

/// The NumPy dtype of a dtype; those that NumPy lacks come from ml_dtypes.
nb::object numpy_dtype(DType d) {
  const char* extra = d == DType::bf16   ? "bfloat16"
                      : d == DType::e4m3 ? "float8_e4m3fn"
                      : d == DType::e5m2 ? "float8_e5m2"
                                         : nullptr;
  if (extra != nullptr) return nb::module_::import_("ml_dtypes").attr(extra);
  switch (d) {
    case DType::f64: return nb::str("float64");
    case DType::f32: return nb::str("float32");
    case DType::f16: return nb::str("float16");
    case DType::i64: return nb::str("int64");
    case DType::i32: return nb::str("int32");
    case DType::i16: return nb::str("int16");
    case DType::i8: return nb::str("int8");
    case DType::u8: return nb::str("uint8");
    case DType::boolean: return nb::str("bool");
    default: check(Status(Code::kUnsupported, strf("array: NumPy has no dtype for %s; view the bytes", name(d))));
  }
  return {};
}

nb::tuple shape_of(const Array& a) {
  nb::list dims;
  for (int i = 0; i < a.tensor.shape.rank; ++i) dims.append(a.tensor.shape.dim[i]);
  return nb::tuple(dims);
}

nb::object to_numpy(const Array& a) {
  check(check_open(a, "numpy()"));
  nb::object out = nb::module_::import_("numpy").attr("empty")(shape_of(a), numpy_dtype(a.tensor.dtype));
  Tensor host;
  Borrowed from;
  check(host_side(a, out, true, &host, &from));
  check(copy(a, host.data, false));
  return out;
}

Status dl_type(DType d, DLDataType* t) {
  const auto is = [&](uint8_t code) {
    *t = {code, static_cast<uint8_t>(info(d).bytes * 8), 1};
    return Status();
  };
  switch (d) {
    case DType::f64: case DType::f32: case DType::f16: return is(2);
    case DType::bf16: return is(4);
    case DType::e4m3: return is(10);
    case DType::e5m2: return is(12);
    case DType::i64: case DType::i32: case DType::i16: case DType::i8: return is(0);
    case DType::u8: return is(1);
    case DType::boolean: return is(6);
    default: return Status(Code::kUnsupported, strf("array: DLPack has no dtype for %s", name(d)));
  }
}

/// What a capsule points at, in either version of the ABI.
template <class Managed>
struct Export {
  Managed managed{};
  std::shared_ptr<ArrayStorage> storage;
  int64_t shape[kMaxRank], strides[kMaxRank];
};

template <class Managed>
nb::object make_capsule(const Array& a, DLDataType type, const char* label) {
  auto* e = new Export<Managed>;
  e->storage = a.storage;
  for (int i = 0; i < a.tensor.shape.rank; ++i) {
    e->shape[i] = a.tensor.shape.dim[i];
    e->strides[i] = a.tensor.stride[i];
  }
  e->managed.tensor = {a.tensor.data, {kDLCUDA, a.device}, a.tensor.shape.rank, type, e->shape, e->strides, 0};
  e->managed.context = e;
  e->managed.deleter = [](Managed* m) {  // from any thread, with or without the GIL
    nb::gil_scoped_acquire gil;
    delete static_cast<Export<Managed>*>(m->context);
  };
  if constexpr (requires { e->managed.major; }) e->managed.major = 1;
  PyObject* capsule = PyCapsule_New(&e->managed, label, [](PyObject* c) {
    // A consumer renames the capsule and then calls the deleter itself.
    const char* now = PyCapsule_GetName(c);
    if (now == nullptr || std::string_view(now).starts_with("used_")) return;
    auto* m = static_cast<Managed*>(PyCapsule_GetPointer(c, now));
    m->deleter(m);
  });
  if (capsule == nullptr) {
    delete e;
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
  device::Device& device = *a.storage->device;
  VV_TRY(device.bind());
  VV_ASSIGN(device::Event event, device::Event::create(device));
  VV_TRY(event.record(reinterpret_cast<cu::Stream>(kLegacyStream)));
  device::Stream consumer = device::Stream::borrow(
      device,
      reinterpret_cast<cu::Stream>(static_cast<uintptr_t>(s == 2 ? kPerThreadStream : static_cast<uintptr_t>(s))));
  return consumer.wait(event);
}

nb::object export_array(const Array& a, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                        nb::handle copy_it) {
  check(check_open(a, "__dlpack__"));
  if (!copy_it.is_none() && nb::cast<bool>(copy_it))
    check(Status(Code::kUnsupported,
                 "array: __dlpack__(copy=True) is not offered; copy with the consumer's own function"));
  if (!dl_device.is_none()) {
    const auto wanted = nb::cast<std::pair<int, int>>(nb::make_tuple(nb::int_(dl_device[0]), nb::int_(dl_device[1])));
    if (wanted != std::pair<int, int>(kDLCUDA, a.device))
      check(Status(Code::kInvalidDevice, strf("array: it is on cuda:%d; move it with numpy()", a.device)));
  }
  DLDataType type{};
  check(dl_type(a.tensor.dtype, &type));
  check(hand_over(a, stream));
  const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
  return versioned ? make_capsule<DLManagedTensorVersioned>(a, type, "dltensor_versioned")
                   : make_capsule<DLManagedTensor>(a, type, "dltensor");
}

Array from_dlpack(nb::object source) {
  Tensor t;
  Borrowed from;
  check(to_tensor(source.ptr(), true, &t, &from));
  if (from.device < 0)
    check(Status(Code::kInvalidDevice, "array: from_dlpack takes device memory; for host memory use from_numpy"));
  if (!t.is_dense())
    check(Status(Code::kInvalidLayout, "array: the tensor is not contiguous; call its contiguous() first"));
  Result<device::Device*> device = device::Device::get(from.device);
  check(device.status());
  Array a{std::make_shared<ArrayStorage>(), t, from.device};
  a.storage->device = *device;
  a.storage->owner =
      nb::make_tuple(source, from.capsules.is_valid() ? nb::object(from.capsules) : nb::object(nb::none()));
  return a;
}

}  // namespace

ArrayStorage::~ArrayStorage() {
  if (block == nullptr) return;
  // Nobody can be told of a failure here; a lost context has lost the memory too.
  if (foreign && device->bind().ok()) (void)device->synchronize();
  (void)pool->free(block, kLegacyStream);
}

Status check_open(const Array& a, const char* what) {
  return a.storage != nullptr ? Status() : Status(Code::kClosed, strf("array: %s after close()", what));
}

void mark_foreign_use(const Array& a) {
  if (a.storage != nullptr) a.storage->foreign = true;
}

void add_array(nb::module_& m) {
  nb::class_<Array>(m, "Array",
                    "A dense tensor in GPU memory of Vivace's pool. Made by empty(), zeros(), from_numpy() or "
                    "from_dlpack() of vivace.array.")
      .def_static(
          "_make",
          [](const std::vector<int64_t>& shape, const std::string& dtype, const std::string& device, bool zero) {
            Result<Tensor> planned = plan(shape, dtype);
            check(planned.status());
            Result<Array> a = make(*planned, device, zero);
            check(a.status());
            return std::move(a).value();
          })
      .def_static("_from_numpy",
                  [](nb::object host, const std::string& device) {
                    Tensor t;
                    Borrowed from;
                    check(to_tensor(host.ptr(), false, &t, &from));
                    if (t.place != Place::host)
                      check(Status(Code::kInvalidDevice,
                                   "array: from_numpy takes host memory; for device memory use from_dlpack"));
                    if (!t.is_dense())
                      check(Status(Code::kInvalidLayout,
                                   "array: the host side is not contiguous; use numpy.ascontiguousarray"));
                    Result<Array> a = make(tensor(nullptr, t.dtype, t.shape, Place::device), device, false);
                    check(a.status());
                    check(copy(*a, t.data, true));
                    return std::move(a).value();
                  })
      .def_static("_from_dlpack", &from_dlpack)
      .def("numpy", &to_numpy, "A copy in host memory. Waits for all work on the device.")
      .def(
          "copy_from",
          [](const Array& a, nb::object host) {
            check(check_open(a, "copy_from()"));
            Tensor t;
            Borrowed from;
            check(host_side(a, host, false, &t, &from));
            check(copy(a, t.data, true));
          },
          nb::arg("host"),
          "Overwrites the contents from host memory of the same dtype and shape, behind all work on the device.")
      .def(
          "close", [](Array& a) { a.storage.reset(); },
          "Gives the memory back; exports of it stay valid. A second call does nothing.")
      .def_prop_ro("closed", [](const Array& a) { return a.storage == nullptr; })
      .def_prop_ro("shape", &shape_of)
      .def_prop_ro("dtype", [](const Array& a) { return name(a.tensor.dtype); })
      .def_prop_ro("device", [](const Array& a) { return strf("cuda:%d", a.device); })
      .def_prop_ro("nbytes", [](const Array& a) { return bytes_of(a.tensor); })
      .def_prop_ro(
          "data_ptr",
          [](const Array& a) {
            check(check_open(a, "data_ptr"));
            return reinterpret_cast<uintptr_t>(a.tensor.data);
          },
          "Address in device memory.")
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](Array& a, nb::args) { a.storage.reset(); })
      .def("__dlpack_device__", [](const Array& a) { return nb::make_tuple(static_cast<int>(kDLCUDA), a.device); })
      .def("__dlpack__", &export_array, nb::kw_only(), nb::arg("stream") = nb::none(),
           nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
           "DLPack export; `stream` is where the consumer will work.")
      .def("__repr__", [](const Array& a) {
        return strf("Array(%s %s, cuda:%d%s)", name(a.tensor.dtype), to_string(a.tensor.shape).c_str(), a.device,
                    a.storage ? "" : ", closed");
      });
  m.def("pool_stats", [](int ordinal) {
    Result<device::Device*> device = device::Device::get(ordinal);
    check(device.status());
    Result<device::Pool*> pool = device::shared_pool(**device);
    check(pool.status());
    Result<device::PoolStats> s = (*pool)->stats();
    check(s.status());
    nb::dict d;
    d["capacity"] = s->capacity, d["mapped"] = s->mapped, d["used"] = s->used, d["requested"] = s->requested;
    d["cached"] = s->cached, d["stranded"] = s->stranded, d["evicted"] = s->evicted, d["pinned"] = s->pinned;
    d["outside"] = s->outside, d["peak_used"] = s->peak_used, d["fragmentation"] = s->fragmentation();
    d["device_free"] = s->device_free, d["device_total"] = s->device_total;
    d["allocations"] = s->allocations, d["reuses"] = s->reuses, d["maps"] = s->maps;
    d["evictions"] = s->evictions, d["restores"] = s->restores, d["failures"] = s->failures;
    nb::list tenants;
    for (const device::TenantStats& t : s->tenants) {
      nb::dict row;
      row["name"] = t.name, row["quota_bytes"] = t.quota_bytes, row["used_bytes"] = t.used_bytes;
      row["evicted_bytes"] = t.evicted_bytes, row["peak_bytes"] = t.peak_bytes;
      tenants.append(row);
    }
    d["tenants"] = tenants;
    return d;
  }, nb::arg("device") = 0,
  "The pool that arrays on this GPU come from: bytes (mapped = used + cached), how often it allocated, reused, mapped, "
  "evicted, restored, failed; and its tenants, a dict each.");
}

}  // namespace vivace::python
