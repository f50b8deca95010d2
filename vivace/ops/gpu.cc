#include "vivace/ops/gpu.h"

#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "vivace/base/check.h"
#include "vivace/ops/kernel_store.h"

namespace vivace::ops {
namespace {

/// Modules of this process by (device, expression). Never unloaded: captured graphs hold them.
struct Loaded {
  std::mutex mutex;
  std::map<std::pair<const device::Device*, std::string>, std::pair<device::Module, const device::Kernel*>> kernels;
};

Loaded& loaded() {
  static Loaded* all = new Loaded;  // outlives every static that might launch
  return *all;
}

}  // namespace

const char* type_name(DType t) {
  switch (t) {
    case DType::f32: return "float";
    case DType::f16: return "vivace::kernels::f16";
    case DType::bf16: return "vivace::kernels::bf16";
    case DType::e4m3: return "vivace::kernels::e4m3";
    case DType::e5m2: return "vivace::kernels::e5m2";
    case DType::i64: return "long";
    case DType::i32: return "int";
    case DType::i8: return "signed char";
    case DType::u8: return "unsigned char";
    default: return "?";  // no kernel takes it as an element: the compile says so
  }
}

Result<const device::Kernel*> load_kernel(const device::Device& device, const char* header,
                                          const std::string& expression) {
  return load_kernel(device, source_of({header, expression}, device.info().arch));
}

Result<const device::Kernel*> load_kernel(const device::Device& device, const jit::Source& source) {
  VV_TRY(device.check_arch());
  const std::string& expression = source.expressions.at(0);
  Loaded& l = loaded();
  const auto key = std::pair(&device, expression);
  {
    const std::lock_guard lock(l.mutex);
    if (const auto it = l.kernels.find(key); it != l.kernels.end()) return it->second.second;
  }
  // Without the lock: threads compile different kernels side by side.
  VV_ASSIGN(jit::Compiler* const all, compiler());
  VV_ASSIGN(const jit::BinaryPtr binary, all->get(source));
  VV_ASSIGN(const std::string symbol, binary->symbol(expression));
  VV_TRY(device.bind());
  VV_ASSIGN(device::Module module, device::Module::load(device, std::as_bytes(std::span(binary->cubin)), expression));
  VV_ASSIGN(device::Kernel* kernel, module.kernel(symbol));
  VV_TRY(kernel->allow_dynamic_smem(device.info().smem_per_block -
                                    kernel->static_smem));  // shape() says what a launch takes
  if (device.info().clusters) VV_TRY(kernel->allow_large_clusters());
  const std::lock_guard lock(l.mutex);  // another thread's copy, if it was first
  return l.kernels.emplace(key, std::pair(std::move(module), kernel)).first->second.second;
}

void say_parts_run(std::string_view op, const Status& why) {
  static std::mutex mutex;
  static auto* const said = new std::set<std::string, std::less<>>;  // outlives every static that might launch
  const std::lock_guard lock(mutex);
  if (!said->emplace(op).second) return;
  std::fprintf(
      stderr,
      "vivace: %.*s: its parts run, which give the same bits in more launches, since its kernel is not there: %s\n",
      static_cast<int>(op.size()), op.data(), why.message().c_str());
}

std::vector<std::string> loaded_kernels() {
  Loaded& l = loaded();
  const std::lock_guard lock(l.mutex);
  std::vector<std::string> all;
  for (const auto& [key, loaded] : l.kernels) all.push_back(key.second);
  return all;
}

}  // namespace vivace::ops
