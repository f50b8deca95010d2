// vivace.View and vivace.view(): memory read as another dtype, block formats above all.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "tensor.h"

namespace vivace::python {
namespace {

/// Bytes of `array` as a tensor of `shape`. One dense run of bytes, or rows of bytes whose outermost
/// stride carries over.
Result<View> make_view(nb::object array, const std::string& dtype, const std::vector<int64_t>& shape) {
  const auto error = [](Code c, const std::string& m) { return Status(c, "view: " + m); };
  View v{array, nb::object(), {}, true};
  Borrowed from, again;
  if (Status s = to_tensor(array.ptr(), false, &v.tensor, &from); !s.ok()) return std::move(s).with_context("view");
  Tensor ignored;
  v.writable = to_tensor(array.ptr(), true, &ignored, &again).ok();
  v.capsules = from.capsules;

  const Tensor bytes = v.tensor;
  DType wanted;
  if (!parse_dtype(dtype.data(), dtype.size(), &wanted)) {
    std::string names;
    for (int i = 0; i < kDTypeCount; ++i) names += std::string(i ? ", " : "") + name(static_cast<DType>(i));
    return error(Code::kInvalidDType, "no dtype '" + dtype + "'; there are " + names);
  }
  const DTypeInfo d = info(wanted);
  if (shape.empty() || shape.size() > static_cast<size_t>(kMaxRank))
    return error(Code::kInvalidShape, strf("shape has %zu axes, wanted 1 to %d", shape.size(), kMaxRank));
  Shape s;
  s.rank = static_cast<int>(shape.size());
  for (int i = 0; i < s.rank; ++i) {
    if (shape[i] < 0)
      return error(Code::kInvalidShape, strf("axis %d of the shape is %ld", i, static_cast<long>(shape[i])));
    s.dim[i] = shape[i];
  }
  if (s.elements() < 0) return error(Code::kInvalidShape, to_string(s) + " overflows");
  if (s.dim[s.rank - 1] % d.block != 0)
    return error(Code::kInvalidShape, strf("last axis %ld is no multiple of the %s block, %d",
                                           static_cast<long>(s.dim[s.rank - 1]), d.name, d.block));
  const int64_t have = bytes.shape.elements() / info(bytes.dtype).block * info(bytes.dtype).bytes,
                want = row_bytes(wanted, s.elements());
  if (have != want)
    return error(Code::kInvalidShape, strf("%s %s takes %ld bytes, the array has %ld", d.name, to_string(s).c_str(),
                                           static_cast<long>(want), static_cast<long>(have)));

  v.tensor = tensor(bytes.data, wanted, s, bytes.place);
  if (bytes.is_dense()) return v;
  // Rows of a wider matrix: the array's outermost axis must be the shape's, dense inside.
  Tensor row = bytes;
  row.shape.dim[0] = 1;
  const int64_t pitch = row_bytes(bytes.dtype, bytes.stride[0]);
  if (bytes.shape.rank < 2 || bytes.shape[0] != s[0] || !row.is_dense() || pitch < 0 || pitch % d.bytes != 0)
    return error(
        Code::kInvalidLayout,
        strf("the array is not dense; only the outermost axis may be strided, by a multiple of %d bytes", d.bytes));
  v.tensor.stride[0] = pitch / d.bytes * d.block;
  return v;
}

}  // namespace

void add_view(nb::module_& m) {
  nb::class_<View>(m, "View",
                   "Memory of `owner`, which it keeps alive, read as `dtype` with `shape`. Made by vivace.view().")
      .def_ro("owner", &View::owner)
      .def_prop_ro("dtype", [](const View& v) { return name(v.tensor.dtype); })
      .def_prop_ro("shape",
                   [](const View& v) {
                     nb::list dims;
                     for (int i = 0; i < v.tensor.shape.rank; ++i) dims.append(v.tensor.shape.dim[i]);
                     return nb::tuple(dims);
                   })
      .def_ro("writable", &View::writable)
      .def("__repr__",
           [](const View& v) { return strf("View(%s %s)", name(v.tensor.dtype), to_string(v.tensor.shape).c_str()); });
  m.def("view", [](nb::object array, const std::string& dtype, const std::vector<int64_t>& shape) {
    Result<View> v = make_view(std::move(array), dtype, shape);
    check(v.status());
    return std::move(v).value();
  }, nb::arg("array"), nb::kw_only(), nb::arg("dtype"), nb::arg("shape"),
  "The bytes of `array` (u8, or any dtype) as a tensor of `dtype` and `shape`, without a copy.\n\n"
  "The way to pass block formats: view(bytes, dtype=\"q4_1\", shape=(N, K)).");
}

}  // namespace vivace::python
