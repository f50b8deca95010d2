// openpi's messages as Python's own objects: dicts, lists, numbers, texts, bytes and NumPy arrays.
#include "messages.h"

#include <cstring>

#include "errors.h"
#include "tensor.h"
#include "vivace/base/check.h"
#include "vivace/serve/wire/msgpack.h"

namespace vivace::python {
namespace {

using serve::wire::Message;
using serve::wire::Value;
using serve::wire::Writer;
using Kind = Value::Kind;

Status wrong(const std::string& what) { return Status(Code::kInvalidArgument, "message: " + what); }

Status write_array(nb::handle o, Writer* w) {
  Tensor t;
  Borrowed from;
  VV_TRY(to_tensor(o.ptr(), false, &t, &from));
  if (t.place != Place::host) return Status(Code::kInvalidDevice, "message: an array is in host memory; copy it there");
  if (serve::wire::numpy_name(t.dtype) == nullptr)
    return Status(Code::kInvalidDType, std::string("message: arrays of ") + name(t.dtype) + " are not sent");
  if (t.shape.rank > engine::HostArray::kMostRank)
    return Status(Code::kInvalidShape, strf("message: an array of %d axes, at most %d are sent", t.shape.rank,
                                            engine::HostArray::kMostRank));
  std::vector<int64_t> shape;
  for (int i = 0; i < t.shape.rank; ++i) shape.push_back(t.shape[i]);
  if (!t.is_dense())
    return Status(Code::kInvalidLayout, "message: an array is not dense; copy it with numpy.ascontiguousarray");
  w->array(t.dtype, shape, t.data);
  return {};
}

Status write(nb::handle o, int depth, Writer* w) {
  if (depth > serve::wire::kMostDepth)
    return Status(Code::kLimitExceeded, strf("message: nested deeper than %d", serve::wire::kMostDepth));
  PyObject* const p = o.ptr();
  if (o.is_none()) return w->nil(), Status();
  if (PyBool_Check(p)) return w->flag(p == Py_True), Status();
  if (PyLong_Check(p)) {
    int overflow = 0;
    const long long v = PyLong_AsLongLongAndOverflow(p, &overflow);
    if (overflow == 0) return w->whole(v), Status();
    const unsigned long long u = overflow > 0 ? PyLong_AsUnsignedLongLong(p) : 0;
    if (PyErr_Occurred() != nullptr || overflow < 0) return PyErr_Clear(), wrong("a whole number beyond 64 bits");
    return w->whole_u64(u), Status();
  }
  if (PyFloat_Check(p)) return w->number(PyFloat_AS_DOUBLE(p)), Status();
  if (PyUnicode_Check(p)) {
    Py_ssize_t n = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(p, &n);
    if (text == nullptr) return PyErr_Clear(), wrong("a text that is no UTF-8");
    return w->text({text, static_cast<size_t>(n)}), Status();
  }
  if (PyBytes_Check(p)) return w->bytes({PyBytes_AS_STRING(p), static_cast<size_t>(PyBytes_GET_SIZE(p))}), Status();
  if (PyDict_Check(p)) {
    const nb::dict d = nb::borrow<nb::dict>(o);
    if (nb::len(d) > serve::wire::kMostEntries)
      return Status(Code::kLimitExceeded,
                    strf("message: %zu entries, at most %u", nb::len(d), serve::wire::kMostEntries));
    w->map(static_cast<uint32_t>(nb::len(d)));
    for (const auto& [key, value] : d) {
      if (!PyUnicode_Check(key.ptr())) return wrong("a dict's keys are texts");
      VV_TRY(write(key, depth + 1, w));
      VV_TRY(write(value, depth + 1, w));
    }
    return {};
  }
  if (PyList_Check(p) || PyTuple_Check(p)) {
    const size_t n = nb::len(o);
    if (n > serve::wire::kMostEntries)
      return Status(Code::kLimitExceeded,
                    strf("message: %zu entries, at most %u; send an array", n, serve::wire::kMostEntries));
    w->list(static_cast<uint32_t>(n));
    for (size_t i = 0; i < n; ++i) VV_TRY(write(nb::object(o[i]), depth + 1, w));
    return {};
  }
  if (nb::hasattr(o, "__array_interface__") || nb::hasattr(o, "__dlpack__")) return write_array(o, w);
  return wrong(std::string("an object of class ") + Py_TYPE(p)->tp_name +
               "; wanted dicts, lists, numbers, texts, bytes and arrays");
}

nb::object read(const Message& m, uint32_t at) {
  const Value& v = m[at];
  switch (v.kind) {
    case Kind::nil: return nb::none();
    case Kind::flag: return nb::bool_(v.flag);
    case Kind::whole:
      return v.above ? nb::steal(PyLong_FromUnsignedLongLong(static_cast<unsigned long long>(v.whole)))
                     : nb::steal(PyLong_FromLongLong(v.whole));
    case Kind::number: return nb::float_(v.number);
    case Kind::text: return nb::str(v.text.data(), v.text.size());
    case Kind::bytes: return nb::bytes(v.text.data(), v.text.size());
    case Kind::list: {
      nb::list out;
      for (uint32_t e = at + 1, i = 0; i < v.count; ++i, e = m[e].end) out.append(read(m, e));
      return out;
    }
    case Kind::map: {
      nb::dict out;
      for (uint32_t e = at + 1, i = 0; i < v.count; ++i, e = m[e + 1].end) out[read(m, e)] = read(m, e + 1);
      return out;
    }
    case Kind::array: break;
  }
  nb::tuple shape = nb::steal<nb::tuple>(PyTuple_New(v.array.rank));
  for (int i = 0; i < v.array.rank; ++i)
    PyTuple_SET_ITEM(shape.ptr(), i, PyLong_FromLongLong(v.array.shape[static_cast<size_t>(i)]));
  const nb::module_ numpy = nb::module_::import_("numpy");
  nb::object array = numpy.attr("empty")(shape, serve::wire::numpy_name(v.array.dtype));
  const size_t bytes = static_cast<size_t>(v.array.elements() * info(v.array.dtype).bytes);
  if (bytes > 0) {
    Tensor t;
    Borrowed from;
    check(to_tensor(array.ptr(), true, &t, &from));
    std::memcpy(t.data, v.array.data, bytes);
  }
  return array;
}

}  // namespace

Status pack(nb::handle o, std::vector<std::byte>* out) {
  Writer w(out);
  return write(o, 0, &w);
}

nb::object unpack(std::span<const std::byte> bytes) {
  Message m;
  check(m.read(bytes));
  return read(m, 0);
}

void add_messages(nb::module_& m) {
  m.def("pack_message", [](nb::object o) {
    std::vector<std::byte> out;
    check(pack(o, &out));
    return nb::bytes(out.data(), out.size());
  }, nb::arg("value").none());
  m.def(
      "unpack_message", [](nb::bytes b) { return unpack({reinterpret_cast<const std::byte*>(b.c_str()), b.size()}); },
      nb::arg("message"));
}

}  // namespace vivace::python
