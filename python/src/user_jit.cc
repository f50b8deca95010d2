#include "user_jit.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "array.h"
#include "errors.h"
#include "gil.h"
#include "tensor.h"
#include "vivace/base/check.h"
#include "vivace/device/activity.h"
#include "vivace/device/user_kernel.h"
#include "vivace/jit/user_source.h"
#include "vivace/ops/kernel_store.h"

namespace vivace::python {
namespace {

Result<Arch> parse_arch(const std::string& text) {
  std::string known;
  for (const Arch a : kGpuArchs) {
    if (text == name(a)) return a;
    known += std::string(known.empty() ? "" : ", ") + name(a);
  }
  return Status(Code::kUnsupported, "no kernels for chip '" + text + "'; there are " + known);
}

Result<std::vector<const ops::OpRow*>> find_rows(const std::vector<std::string>& names) {
  std::vector<const ops::OpRow*> rows;
  for (const std::string& n : names) {
    const ops::OpRow* row = ops::find(n);
    if (row == nullptr) return Status(Code::kNotFound, "no op named '" + n + "'; `vivace ops` lists them");
    rows.push_back(row);
  }
  if (names.empty()) rows.assign(ops::table().begin(), ops::table().end());
  return rows;
}

/// A Python function as a progress callback, or none. It may run on any thread.
std::function<void(const jit::Progress&)> progress_of(nb::handle f) {
  if (f.is_none()) return {};
  return [f](const jit::Progress& p) {
    nb::gil_scoped_acquire gil;
    try {
      f(p.done, p.total, p.current);
    } catch (nb::python_error& e) {
      e.discard_as_unraisable("vivace: progress callback");
    }
  };
}

/// A user's kernel: compiled for a chip when it is first needed there, loaded once a device.
struct JitKernel {
  std::string label, text, kernel;
  std::mutex mutex;
  std::map<int, device::UserKernel> loaded;

  Result<jit::BinaryPtr> compile(Arch arch) const {
    VV_ASSIGN(jit::Compiler* const all, ops::compiler());
    return all->get(jit::user_source(label, text, kernel, arch));
  }
  Result<const device::UserKernel*> on(int ordinal) {
    const std::lock_guard lock(mutex);
    if (const auto it = loaded.find(ordinal); it != loaded.end()) return &it->second;
    VV_ASSIGN(device::Device* const device, device::Device::get(ordinal));
    VV_TRY(device->check_arch());
    VV_ASSIGN(const jit::BinaryPtr binary, compile(device->info().arch));
    VV_ASSIGN(const std::vector<std::string> types, jit::parameter_types(*binary, kernel));
    VV_ASSIGN(const std::string symbol, binary->symbol(kernel));
    VV_TRY(device->bind());
    VV_ASSIGN(device::Module module, device::Module::load(*device, std::as_bytes(std::span(binary->cubin)), label));
    VV_ASSIGN(device::UserKernel made, device::UserKernel::create(std::move(module), symbol, types));
    return &loaded.emplace(ordinal, std::move(made)).first->second;
  }
};

Status dims_of(nb::handle value, const char* what, uint32_t (&out)[3]) {
  std::vector<int64_t> v;
  if (PyLong_Check(value.ptr())) v = {nb::cast<int64_t>(value)};
  else if (!nb::try_cast<std::vector<int64_t>>(value, v))
    return Status(Code::kInvalidArgument, strf("%s: wanted an integer or up to three", what));
  if (v.empty() || v.size() > 3)
    return Status(Code::kInvalidArgument, strf("%s: wanted 1 to 3 numbers, got %zu", what, v.size()));
  for (size_t i = 0; i < v.size(); ++i) {
    if (v[i] < 1 || v[i] > 0x7fffffff)
      return Status(Code::kInvalidArgument,
                    strf("%s: axis %zu is %ld, wanted 1 to 2147483647", what, i, static_cast<long>(v[i])));
    out[i] = static_cast<uint32_t>(v[i]);
  }
  return {};
}

/// `o` as an argument. `keep` holds bytes alive; `from` learns the device of tensors.
Status user_arg(nb::handle o, device::UserArg* arg, Borrowed* from) {
  if (o.is_none()) {
    *arg = device::UserArg::of_pointer(nullptr);
    return {};
  }
  if (PyBool_Check(o.ptr())) {
    *arg = device::UserArg::of_bool(o.ptr() == Py_True);
    return {};
  }
  if (PyLong_Check(o.ptr())) {
    int overflow = 0;
    const long long v = PyLong_AsLongLongAndOverflow(o.ptr(), &overflow);
    if (overflow != 0) return Status(Code::kInvalidArgument, "the integer does not fit 64 bits, signed");
    *arg = device::UserArg::of_integer(v);
    return {};
  }
  if (PyFloat_Check(o.ptr())) {
    *arg = device::UserArg::of_real(PyFloat_AS_DOUBLE(o.ptr()));
    return {};
  }
  if (PyBytes_Check(o.ptr())) {
    *arg = device::UserArg::of_bytes(PyBytes_AS_STRING(o.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(o.ptr())));
    return {};
  }
  Tensor t;
  VV_TRY(to_tensor(o.ptr(), false, &t, from));
  if (t.place != Place::device)
    return Status(Code::kInvalidDevice,
                  "the array is in host memory, a kernel wants device memory; use vivace.array.from_numpy");
  if (!t.is_dense()) return Status(Code::kInvalidLayout, "the array is not contiguous");
  *arg = device::UserArg::of(t);
  return {};
}

Status launch(JitKernel& k, nb::args args, nb::handle grid, nb::handle block, int64_t smem, nb::handle stream,
              int device) {
  device::LaunchShape shape;
  VV_TRY(dims_of(grid, "grid", shape.grid));
  VV_TRY(dims_of(block, "block", shape.block));
  if (smem < 0 || smem > (1 << 20))
    return Status(Code::kInvalidArgument, strf("smem: %ld bytes", static_cast<long>(smem)));
  shape.smem_bytes = static_cast<uint32_t>(smem);
  Borrowed from;
  std::vector<device::UserArg> values(args.size());
  for (size_t i = 0; i < args.size(); ++i)
    if (Status s = user_arg(args[i], &values[i], &from); !s.ok())
      return std::move(s).with_context(strf("%s, argument %zu", k.kernel.c_str(), i));
  if (device >= 0 && from.device >= 0 && device != from.device)
    return Status(Code::kInvalidDevice,
                  strf("%s: device=%d, but its arrays are on GPU %d", k.kernel.c_str(), device, from.device));
  const int ordinal = from.device >= 0 ? from.device : std::max(device, 0);
  void* handle = stream.is_none() ? from.stream : reinterpret_cast<void*>(nb::cast<uintptr_t>(stream));
  if (!stream.is_none())
    for (nb::handle a : args)
      if (Array* array = nullptr; nb::try_cast<Array*>(a, array, false)) mark_foreign_use(*array);
  Result<const device::UserKernel*> kernel = Status(Code::kInternal, "not loaded");
  {
    const NoGil release;  // the first use compiles
    kernel = k.on(ordinal);
  }
  if (!kernel.ok()) return std::move(kernel).status();
  if (smem > 0) VV_TRY((*kernel)->kernel().allow_dynamic_smem(static_cast<int>(smem)));
  VV_ASSIGN(device::Device* const d, device::Device::get(ordinal));
  VV_TRY(d->bind());
  device::count(device::stream_counts(ordinal, handle).launches);
  const device::Observed seen([&] {
    return device::Work{
        .op = k.kernel, .kernel = (*kernel)->kernel().name, .device = d, .stream = static_cast<cu::Stream>(handle)};
  });
  return (*kernel)->launch(shape, static_cast<cu::Stream>(handle), values);
}

}  // namespace

void add_user_jit(nb::module_& m) {
  nb::class_<JitKernel>(m, "JitKernel", "A kernel of your own, made by vivace.jit(source, name).")
      .def(
          "__call__",
          [](JitKernel& k, nb::args args, nb::object grid, nb::object block, int64_t smem, nb::object stream,
             int device) { check(launch(k, args, grid, block, smem, stream, device)); },
          nb::arg("args"), nb::kw_only(), nb::arg("grid"), nb::arg("block"), nb::arg("smem") = 0,
          nb::arg("stream").none() = nb::none(), nb::arg("device") = -1,
          "Launches it and does not wait. Arrays for pointers (None for a null one), int, float and bool for numbers, "
          "bytes for structs; each is checked "
          "against the declared parameter. `stream`: an integer handle; without one, where the arrays' framework "
          "works.")
      .def(
          "compile",
          [](JitKernel& k, const std::string& arch) {
            Result<Arch> a = parse_arch(arch);
            check(a.status());
            Result<jit::BinaryPtr> b = Status(Code::kInternal, "");
            {
              const NoGil release;
              b = k.compile(*a);
            }
            check(b.status());
            Result<std::vector<std::string>> types = jit::parameter_types(**b, k.kernel);
            check(types.status());
            Result<std::string> symbol = (*b)->symbol(k.kernel);
            check(symbol.status());
            nb::dict d;
            d["parameters"] = *types;
            for (const jit::Resources& r : (*b)->resources)
              if (r.symbol == *symbol)
                d["registers"] = r.registers, d["static_smem"] = r.static_smem, d["stack_bytes"] = r.stack_bytes,
                d["spill_bytes"] = r.spill_stores;
            d["warnings"] = (*b)->warnings;
            d["cubin"] = nb::bytes((*b)->cubin.data(), (*b)->cubin.size());
            return d;
          },
          nb::arg("arch"),
          "Compiles for a chip (\"sm_90a\") without a GPU: parameters' types, registers, warnings, cubin.")
      .def_ro("name", &JitKernel::kernel)
      .def("__repr__", [](const JitKernel& k) { return "JitKernel(" + k.kernel + ")"; });
  m.def("jit_kernel", [](const std::string& source, const std::string& kernel, const std::string& label) {
    auto k = std::make_unique<JitKernel>();
    k->text = source, k->kernel = kernel, k->label = label;
    return k;
  }, nb::arg("source"), nb::arg("name"), nb::arg("label"));

  m.def(
      "add_pack", [](const std::string& path) { check(ops::add_pack(path)); }, nb::arg("path"),
      "Uses a pack; before the first op on a GPU.");
  m.def("forbid_compiling", [] {
    Result<jit::Compiler*> all = ops::compiler();
    check(all.status());
    (*all)->forbid_compiling();
  }, "From now on a kernel that is in no pack and no cache is FailedPreconditionError.");
  m.def(
      "prewarm",
      [](const std::vector<std::string>& names, int device, nb::object progress) {
        Result<std::vector<const ops::OpRow*>> rows = find_rows(names);
        check(rows.status());
        const auto report = progress_of(progress);
        Status s;
        {
          const NoGil release;
          const Result<device::Device*> d = device::Device::get(device);
          s = d.ok() ? ops::prewarm(**d, *rows, report) : d.status();
        }
        check(s);
      },
      nb::arg("ops"), nb::arg("device") = 0, nb::arg("progress") = nb::none(),
      "Loads every kernel of the ops ([]: all), compiling in parallel what must be.");
  m.def(
      "pack_kernels",
      [](const std::string& path, const std::vector<std::string>& archs, const std::vector<std::string>& names,
         int jobs, nb::object progress) {
        std::vector<Arch> chips;
        for (const std::string& text : archs) {
          Result<Arch> a = parse_arch(text);
          check(a.status());
          chips.push_back(*a);
        }
        Result<std::vector<const ops::OpRow*>> rows = find_rows(names);
        check(rows.status());
        jit::CompilerOptions options;
        options.jobs = jobs;
        options.on_progress = progress_of(progress);
        Result<size_t> n = size_t{0};
        {
          const NoGil release;
          n = ops::pack_kernels(path, *rows, chips, options);
        }
        check(n.status());
        return *n;
      },
      nb::arg("path"), nb::arg("archs"), nb::arg("ops"), nb::arg("jobs") = 0, nb::arg("progress") = nb::none(),
      "Writes a pack; answers the number of kernels.");
  m.def(
      "compile_kernels",
      [](const std::vector<std::pair<std::string, std::string>>& kernels, const std::string& arch, int jobs) {
        Result<Arch> chip = parse_arch(arch);
        check(chip.status());
        Result<std::vector<jit::BinaryPtr>> binaries = [&]() -> Result<std::vector<jit::BinaryPtr>> {
          nb::gil_scoped_release release;
          std::vector<jit::Source> sources;
          for (const auto& [header, expression] : kernels)
            sources.push_back(ops::source_of({header.c_str(), expression}, *chip));
          jit::CompilerOptions options;
          options.jobs = jobs;
          VV_ASSIGN(const std::unique_ptr<jit::Compiler> compiler, jit::Compiler::create(std::move(options)));
          return compiler->get(sources);
        }();
        check(binaries.status());
        nb::list cubins;
        for (const jit::BinaryPtr& b : *binaries) cubins.append(nb::bytes(b->cubin.data(), b->cubin.size()));
        return cubins;
      },
      nb::arg("kernels"), nb::arg("arch"), nb::arg("jobs") = 0,
      "The cubin of each (header, kernel expression), one kernel each; no GPU is needed.");
  m.def("kernel_timings", [] {
    Result<jit::Compiler*> all = ops::compiler();
    check(all.status());
    nb::list rows;
    for (const jit::Timing& t : (*all)->timings())
      rows.append(nb::make_tuple(t.source, name(t.origin), t.milliseconds));
    return rows;
  }, "(kernel, origin, milliseconds) of everything obtained so far; origin: pack, cache or compiled.");
  add_machine(m);
}

}  // namespace vivace::python
