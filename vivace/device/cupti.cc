#include "vivace/device/cupti.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "vivace/base/check.h"

// Declared here, so that nothing of CUDA is needed to build. The values are those of cupti_activity.h since CUDA 11: a
// record only ever grew behind the fields that are read here (CUpti_ActivityKernel4 to CUpti_ActivityKernel13).
namespace vivace::device::cupti {
namespace {

using Answer = int;  // CUptiResult; 0 is success
constexpr int kDriverCalls = 4, kKernels = 10, kExternalIds = 39;  // CUpti_ActivityKind
constexpr int kCustom = 3;                                         // CUpti_ExternalCorrelationKind
constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr size_t kKindAt = 0, kStartAt = 16, kEndAt = 24, kKernelCorrelationAt = 92, kNameAt = 104;
constexpr size_t kIdAt = 8, kIdCorrelationAt = 16;

using Requested = void (*)(uint8_t** buffer, size_t* bytes, size_t* most_records);
using Completed = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t bytes, size_t valid);

#define VV_CUPTI_FUNCTIONS(X)                                                                \
  X(cuptiGetVersion, (uint32_t * version))                                                   \
  X(cuptiActivityRegisterCallbacks, (Requested requested, Completed completed))              \
  X(cuptiActivityEnable, (int kind))                                                         \
  X(cuptiActivityDisable, (int kind))                                                        \
  X(cuptiActivityFlushAll, (uint32_t forced))                                                \
  X(cuptiActivityGetNextRecord, (uint8_t * buffer, size_t valid, uint8_t** record))          \
  X(cuptiActivityPushExternalCorrelationId, (int kind, uint64_t id))                         \
  X(cuptiActivityPopExternalCorrelationId, (int kind, uint64_t* last))

#define VV_CUPTI_DECLARE_(name, params) Answer(*name) params = nullptr;
struct Api {
  VV_CUPTI_FUNCTIONS(VV_CUPTI_DECLARE_)
};
#undef VV_CUPTI_DECLARE_

template <class T>
T field(const uint8_t* record, size_t at) {
  T v;
  std::memcpy(&v, record + at, sizeof v);
  return v;
}

struct Recording {
  Api api;
  Info info;
  std::mutex mutex;  // buffers are completed on threads of CUPTI
  std::vector<std::pair<KernelRecord, uint32_t>> kernels;  // with the driver call that launched it
  std::map<uint32_t, uint64_t> ids;                        // of driver calls
};
/// Never destroyed: CUPTI may call back until the process is gone.
Recording& recording() {
  static Recording* all = new Recording;
  return *all;
}

void on_requested(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

void on_completed(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  Recording& r = recording();
  const std::lock_guard lock(r.mutex);
  uint8_t* at = nullptr;
  while (valid > 0 && r.api.cuptiActivityGetNextRecord(buffer, valid, &at) == 0) {
    const int kind = field<int>(at, kKindAt);
    if (kind == kExternalIds) r.ids[field<uint32_t>(at, kIdCorrelationAt)] = field<uint64_t>(at, kIdAt);
    if (kind != kKernels) continue;
    const char* const name = field<const char*>(at, kNameAt);
    r.kernels.emplace_back(KernelRecord{name == nullptr ? "?" : name, field<uint64_t>(at, kStartAt),
                                        field<uint64_t>(at, kEndAt), 0},
                           field<uint32_t>(at, kKernelCorrelationAt));
  }
  std::free(buffer);
}

Status answered(Answer a, const char* call) {
  if (a == 0) return {};
  return Status(Code::kCudaError, strf("%s: CUPTI answered %d; another profiler may have it", call, a));
}

Status load(const std::vector<std::string>& candidates) {
  Recording& r = recording();
  if (r.api.cuptiGetVersion != nullptr) return {};
  void* library = nullptr;
  std::string tried;
  for (const std::string& name : candidates) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      r.info.library = name;
      break;
    }
    tried += (tried.empty() ? "" : ", ") + name;
  }
  if (library == nullptr)
    return Status(Code::kUnsupported, "CUPTI is not there (tried " + tried + "): pip install nvidia-cuda-cupti");
  Api api;
#define VV_CUPTI_RESOLVE_(name, params)                              \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #name)); \
  if (api.name == nullptr) return Status(Code::kUnsupported, r.info.library + " has no " #name);
  VV_CUPTI_FUNCTIONS(VV_CUPTI_RESOLVE_)
#undef VV_CUPTI_RESOLVE_
  VV_TRY(answered(api.cuptiGetVersion(&r.info.version), "cuptiGetVersion"));
  r.api = api;
  return answered(api.cuptiActivityRegisterCallbacks(&on_requested, &on_completed), "cuptiActivityRegisterCallbacks");
}

}  // namespace

Result<Info> start(const std::vector<std::string>& candidates) {
  VV_TRY(load(candidates));
  Recording& r = recording();
  {
    const std::lock_guard lock(r.mutex);
    r.kernels.clear(), r.ids.clear();
  }
  // Ids are tied to calls of the driver, so these are recorded too.
  for (const int kind : {kDriverCalls, kExternalIds, kKernels})
    VV_TRY(answered(r.api.cuptiActivityEnable(kind), "cuptiActivityEnable"));
  return r.info;
}

void push(uint64_t id) { static_cast<void>(recording().api.cuptiActivityPushExternalCorrelationId(kCustom, id)); }

void pop() {
  uint64_t last = 0;
  static_cast<void>(recording().api.cuptiActivityPopExternalCorrelationId(kCustom, &last));
}

Result<std::vector<KernelRecord>> stop() {
  Recording& r = recording();
  const Status flushed = answered(r.api.cuptiActivityFlushAll(1), "cuptiActivityFlushAll");
  for (const int kind : {kKernels, kExternalIds, kDriverCalls})
    VV_TRY(answered(r.api.cuptiActivityDisable(kind), "cuptiActivityDisable"));
  VV_TRY(Status(flushed));
  const std::lock_guard lock(r.mutex);
  std::vector<KernelRecord> out;
  for (auto& [kernel, call] : r.kernels) {
    if (const auto id = r.ids.find(call); id != r.ids.end()) kernel.id = id->second;
    out.push_back(std::move(kernel));
  }
  r.kernels.clear(), r.ids.clear();
  std::sort(out.begin(), out.end(), [](const KernelRecord& a, const KernelRecord& b) {
    return std::tie(a.start_ns, a.end_ns) < std::tie(b.start_ns, b.end_ns);
  });
  return out;
}

}  // namespace vivace::device::cupti
