// What this machine's GPUs and compiler are: one query, as plain data.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "errors.h"
#include "gil.h"
#include "user_jit.h"
#include "vivace/device/device.h"
#include "vivace/device/driver.h"
#include "vivace/device/waits.h"
#include "vivace/jit/cache.h"
#include "vivace/jit/helper.h"
#include "vivace/jit/nvrtc.h"

namespace vivace::python {

namespace nb = nanobind;

void add_machine(nb::module_& m) {
  m.def("device_count", [] {
    const Result<int> n = device::Device::count();
    check(n.status());
    return *n;
  }, "Number of GPUs; UnsupportedError says what is missing.");
  m.def(
      "device_wide_waits", [] { return device::device_wide_waits(); },
      "Waits of this process for whole devices so far; none may come while models that a scheduler loaded run.");
  m.def("driver_version", [] {
    const Result<const device::Driver*> d = device::driver();
    check(d.status());
    return (*d)->version;
  }, "13000 is CUDA 13.0.");
  m.def("device_info", [](int ordinal) {
    const Result<device::Device*> found = device::Device::get(ordinal);
    check(found.status());
    const device::DeviceInfo& i = (*found)->info();
    nb::dict d;
    d["name"] = i.name, d["pci"] = i.pci, d["uuid"] = i.uuid;
    d["capability"] = i.major * 10 + i.minor;
    d["arch"] = i.arch == Arch::cpu ? nb::object(nb::none()) : nb::object(nb::str(name(i.arch)));
    d["sm_count"] = i.sm_count, d["memory_bytes"] = i.memory_bytes, d["l2_bytes"] = i.l2_bytes;
    d["smem_per_block"] = i.smem_per_block, d["smem_per_sm"] = i.smem_per_sm,
    d["peak_bytes_per_s"] = i.peak_bytes_per_s();
    d["integrated"] = i.integrated, d["green_contexts"] = i.green_contexts, d["virtual_memory"] = i.virtual_memory;
    d["fp8"] = chip(i.arch).fp8_mma, d["fp4"] = chip(i.arch).fp4_mma, d["wgmma"] = chip(i.arch).wgmma,
    d["pdl"] = chip(i.arch).tma;
    return d;
  }, nb::arg("device") = 0);
  m.def("device_state", [](int ordinal) {
    const Result<device::Device*> found = device::Device::get(ordinal);
    check(found.status());
    nb::dict d;
    const Result<device::MemoryInfo> memory = (*found)->memory();
    check(memory.status());
    d["free_bytes"] = memory->free_bytes, d["total_bytes"] = memory->total_bytes;
    const Result<device::BoardState> board = (*found)->board();
    check(board.status());
    d["sm_mhz"] = board->sm_mhz, d["memory_mhz"] = board->memory_mhz, d["max_sm_mhz"] = board->max_sm_mhz,
    d["max_memory_mhz"] = board->max_memory_mhz;
    d["temperature_c"] = board->temperature_c, d["throttle_reasons"] = board->throttle_reasons,
    d["driver"] = board->driver;
    return d;
  }, nb::arg("device") = 0, "Memory and clocks now.");
  m.def("check_device", [](int ordinal) {
    const Result<device::Device*> found = device::Device::get(ordinal);
    check(found.status());
    check((*found)->check_arch());
  }, nb::arg("device") = 0, "UnsupportedError if Vivace has no kernels for the chip.");
  m.def("nvrtc_info", [] {
    const Result<const jit::NvrtcInfo*> n = jit::nvrtc();
    check(n.status());
    nb::dict d;
    d["library"] = (*n)->library, d["version"] = (*n)->version, d["include_dirs"] = (*n)->include_dirs,
    d["archs"] = (*n)->archs;
    return d;
  });
  m.def("set_helper_command", &jit::set_helper_command, nb::arg("command"),
        "The program that processes which compile run: one that calls serve_compiles().");
  m.def("serve_compiles", [] {
    const NoGil release;
    jit::serve_compiles(0);
  }, "What such a process does: compiles what comes in by standard input, a socket, until it closes.");
  m.def("add_search_path", &jit::add_search_path, nb::arg("folder"),
        "A folder to look for NVRTC in before the usual places.");
  m.def("jit_cache", [] {
    const Result<std::string> folder = jit::Cache::default_folder();
    check(folder.status());
    const Result<jit::Cache> cache = jit::Cache::open(*folder);
    check(cache.status());
    return *folder;
  }, "Opens the disk cache, with its checks, and answers its folder.");
}

}  // namespace vivace::python
