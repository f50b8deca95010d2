// The part of the CUDA driver API that Vivace calls, declared here so that it builds on machines
// without CUDA. Values are fixed by NVIDIA's binary interface (CUDA 12.4 and later) and are compared
// with the vendor's header, where there is one, by tests/device/cuda_abi_test.cc.
#pragma once
#include <cstddef>
#include <cstdint>

// The driver's handle tags, in the global namespace as in its own header: one type in either view.
struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;
struct CUgreenCtx_st;
struct CUkern_st;
struct CUlib_st;
struct CUstream_st;

namespace vivace::cu {

using Result = int;  // CUresult
using Device = int;  // CUdevice
using DevicePtr = unsigned long long;
using Context = CUctx_st*;
using Event = CUevent_st*;
using Function = CUfunc_st*;
using Graph = CUgraph_st*;
using GraphExec = CUgraphExec_st*;
using GraphNode = CUgraphNode_st*;
using GreenCtx = CUgreenCtx_st*;
using Kernel = CUkern_st*;
using Library = CUlib_st*;
using Stream = CUstream_st*;
using MemHandle = unsigned long long;

// Results that the code tells apart; all others are printed by name.
inline constexpr Result kSuccess = 0, kOutOfMemory = 2, kDeinitialized = 4, kStubLibrary = 34, kNoDevice = 100,
                        kNotFound = 500, kNotReady = 600, kPeerAccessAlreadyEnabled = 704, kNotSupported = 801;

// CUdevice_attribute.
enum DeviceAttr : int {
  kMaxThreadsPerBlock = 1, kClockRateKhz = 13, kSmCount = 16, kIntegrated = 18, kPciBus = 33, kPciDevice = 34,
  kMemoryClockKhz = 36, kMemoryBusBits = 37, kL2Bytes = 38, kMaxThreadsPerSm = 39, kAsyncEngines = 40,
  kPciDomain = 50, kComputeMajor = 75, kComputeMinor = 76, kSmemPerSm = 81, kRegistersPerSm = 82,
  kCooperativeLaunch = 95, kSmemPerBlockOptin = 97, kVirtualMemory = 102, kClusterLaunch = 120,
};

// CUfunction_attribute.
enum FuncAttr : int {
  kFuncMaxThreads = 0, kFuncSharedBytes = 1, kFuncLocalBytes = 3, kFuncRegisters = 4, kFuncMaxDynamicSmem = 8,
  kFuncNonPortableCluster = 14,
};

inline constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2, kEventBlockingSync = 1,
                          kHostAllocPortable = 1;
inline constexpr int kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2;
inline constexpr int kCaptureNone = 0, kCaptureActive = 1;
inline constexpr int kPointerMemoryType = 2, kPointerDeviceOrdinal = 9, kMemoryTypeHost = 1, kMemoryTypeDevice = 2;
inline constexpr int kGranularityMinimum = 0, kGranularityRecommended = 1;

struct MemLocation {
  int type = 1;  // a device
  int id = 0;
};
struct MemAllocationProp {
  int type = 1;  // pinned
  int handle_types = 0;
  MemLocation location;
  void* win32 = nullptr;
  struct {
    unsigned char compression = 0, rdma = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};
struct MemAccessDesc {
  MemLocation location;
  int flags = 3;  // read and write
};

// CUlaunchAttribute: an id, padding to 8, and a 64-byte union of which Vivace uses the plain integers.
enum LaunchAttrId : int { kLaunchCooperative = 2, kLaunchClusterDim = 4, kLaunchPdl = 6 };
struct LaunchAttr {
  int id = 0;
  char pad[4] = {};
  union {
    char bytes[64] = {};
    unsigned dim[3];
    int flag;
  };
};
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned smem_bytes;
  Stream stream;
  LaunchAttr* attrs;
  unsigned attr_count;
};

// CUdevResource: opaque except for the multiprocessor counts. 144 bytes.
struct DevResource {
  int type = 0;
  unsigned char internal[92] = {};
  struct {
    unsigned sm_count = 0, min_partition = 0, alignment = 0;
  } sm;
  unsigned char oversize[36] = {};
};
using DevResourceDesc = struct CUdevResourceDesc_st*;
inline constexpr int kResourceSm = 1;
inline constexpr unsigned kGreenDefaultStream = 1;

// CUtensorMap's describers: element types by size (no arithmetic depends on them), 128-byte swizzle,
// 256-byte L2 fetches, zeros beyond the edges.
inline constexpr int kMapU8 = 0, kMapU16 = 1, kMapU32 = 2, kMapU64 = 4, kMapNoInterleave = 0, kMapNoSwizzle = 0,
                     kMapSwizzle32 = 1, kMapSwizzle64 = 2, kMapSwizzle128 = 3, kMapFetch256 = 3, kMapZeros = 0;
inline constexpr size_t kMapBytes = 128, kMapAlign = 64;

struct GraphUpdateInfo {
  int result = 0;  // CUgraphExecUpdateResult
  GraphNode error_node = nullptr, error_from = nullptr;
};
// CUstreamBatchMemOpParams, of which Vivace uses waits for and writes of 32 bits. 48 bytes.
inline constexpr int kMemOpWaitValue32 = 1;
inline constexpr unsigned kWaitValueEqual = 1;
struct StreamMemOp {
  int operation = 0;
  char pad[4] = {};
  DevicePtr address = 0;
  uint64_t value = 0;
  unsigned flags = 0;
  char rest[20] = {};
};
using HostFn = void (*)(void*);

// X(exported symbol, parameters). Symbols carry their version suffix, so that a newer driver still
// gives the behaviour that these declarations describe.
#define VV_CUDA_FUNCTIONS(X)                                                                            \
  X(cuInit, (unsigned flags))                                                                           \
  X(cuDriverGetVersion, (int* version))                                                                 \
  X(cuGetErrorName, (Result error, const char** name))                                                  \
  X(cuGetErrorString, (Result error, const char** text))                                                \
  X(cuDeviceGetCount, (int* count))                                                                     \
  X(cuDeviceGet, (Device* device, int ordinal))                                                         \
  X(cuDeviceGetName, (char* name, int bytes, Device device))                                            \
  X(cuDeviceGetUuid_v2, (unsigned char* uuid, Device device))                                           \
  X(cuDeviceGetAttribute, (int* value, int attribute, Device device))                                   \
  X(cuDeviceTotalMem_v2, (size_t* bytes, Device device))                                                \
  X(cuDevicePrimaryCtxRetain, (Context* context, Device device))                                        \
  X(cuDeviceCanAccessPeer, (int* can, Device device, Device peer))                                      \
  X(cuCtxEnablePeerAccess, (Context peer, unsigned flags))                                              \
  X(cuCtxSetCurrent, (Context context))                                                                 \
  X(cuCtxGetCurrent, (Context* context))                                                                \
  X(cuCtxSynchronize, ())                                                                               \
  X(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                           \
  X(cuMemGetInfo_v2, (size_t* free_bytes, size_t* total_bytes))                                         \
  X(cuMemAlloc_v2, (DevicePtr* ptr, size_t bytes))                                                      \
  X(cuMemFree_v2, (DevicePtr ptr))                                                                      \
  X(cuMemHostAlloc, (void** ptr, size_t bytes, unsigned flags))                                         \
  X(cuMemFreeHost, (void* ptr))                                                                         \
  X(cuMemcpyAsync, (DevicePtr to, DevicePtr from, size_t bytes, Stream stream))                         \
  X(cuMemsetD8Async, (DevicePtr ptr, unsigned char value, size_t bytes, Stream stream))                 \
  X(cuMemAddressReserve, (DevicePtr* ptr, size_t bytes, size_t align, DevicePtr wish, unsigned long long flags)) \
  X(cuMemAddressFree, (DevicePtr ptr, size_t bytes))                                                    \
  X(cuMemCreate, (MemHandle* handle, size_t bytes, const MemAllocationProp* prop, unsigned long long flags)) \
  X(cuMemRelease, (MemHandle handle))                                                                   \
  X(cuMemMap, (DevicePtr ptr, size_t bytes, size_t offset, MemHandle handle, unsigned long long flags)) \
  X(cuMemUnmap, (DevicePtr ptr, size_t bytes))                                                          \
  X(cuMemSetAccess, (DevicePtr ptr, size_t bytes, const MemAccessDesc* desc, size_t count))             \
  X(cuMemGetAllocationGranularity, (size_t* bytes, const MemAllocationProp* prop, int option))          \
  X(cuPointerGetAttribute, (void* value, int attribute, DevicePtr ptr))                                 \
  X(cuStreamCreateWithPriority, (Stream* stream, unsigned flags, int priority))                         \
  X(cuStreamDestroy_v2, (Stream stream))                                                                \
  X(cuStreamSynchronize, (Stream stream))                                                               \
  X(cuStreamQuery, (Stream stream))                                                                     \
  X(cuStreamGetPriority, (Stream stream, int* priority))                                                \
  X(cuStreamWaitEvent, (Stream stream, Event event, unsigned flags))                                    \
  X(cuStreamBeginCapture_v2, (Stream stream, int mode))                                                 \
  X(cuStreamEndCapture, (Stream stream, Graph* graph))                                                  \
  X(cuStreamIsCapturing, (Stream stream, int* status))                                                  \
  X(cuLaunchHostFunc, (Stream stream, HostFn fn, void* data))                                           \
  X(cuEventCreate, (Event* event, unsigned flags))                                                      \
  X(cuEventDestroy_v2, (Event event))                                                                   \
  X(cuEventRecord, (Event event, Stream stream))                                                        \
  X(cuEventQuery, (Event event))                                                                        \
  X(cuEventSynchronize, (Event event))                                                                  \
  X(cuEventElapsedTime, (float* milliseconds, Event start, Event end))                                  \
  X(cuGraphInstantiateWithFlags, (GraphExec* exec, Graph graph, unsigned long long flags))              \
  X(cuGraphExecUpdate_v2, (GraphExec exec, Graph graph, GraphUpdateInfo* info))                         \
  X(cuGraphExecDestroy, (GraphExec exec))                                                               \
  X(cuGraphDestroy, (Graph graph))                                                                      \
  X(cuGraphGetNodes, (Graph graph, GraphNode* nodes, size_t* count))                                    \
  X(cuGraphUpload, (GraphExec exec, Stream stream))                                                     \
  X(cuGraphLaunch, (GraphExec exec, Stream stream))                                                     \
  X(cuLibraryLoadData, (Library* library, const void* image, void* jit_options, void* jit_values,      \
                        unsigned jit_count, void* options, void* values, unsigned count))               \
  X(cuLibraryUnload, (Library library))                                                                 \
  X(cuLibraryGetKernel, (Kernel* kernel, Library library, const char* name))                            \
  X(cuKernelGetFunction, (Function* function, Kernel kernel))                                           \
  X(cuKernelGetAttribute, (int* value, int attribute, Kernel kernel, Device device))                    \
  X(cuKernelSetAttribute, (int attribute, int value, Kernel kernel, Device device))                     \
  X(cuKernelGetParamInfo, (Kernel kernel, size_t index, size_t* offset, size_t* bytes))                 \
  X(cuFuncLoad, (Function function))                                                                    \
  X(cuLaunchKernelEx, (const LaunchConfig* config, Function function, void** params, void** extra))

// Only some drivers have these; a call without one answers Unsupported.
#define VV_CUDA_OPTIONAL_FUNCTIONS(X)                                                                   \
  X(cuTensorMapEncodeTiled, (void* map, int type, unsigned rank, void* base, const uint64_t* dims,       \
                             const uint64_t* pitches, const unsigned* box, const unsigned* steps,       \
                             int interleave, int swizzle, int promotion, int fill))                     \
  X(cuStreamBatchMemOp_v2, (Stream stream, unsigned count, StreamMemOp* operations, unsigned flags))   \
  X(cuStreamWriteValue32_v2, (Stream stream, DevicePtr address, uint32_t value, unsigned flags))        \
  X(cuDeviceGetDevResource, (Device device, DevResource* resource, int type))                           \
  X(cuDevSmResourceSplitByCount, (DevResource* result, unsigned* groups, const DevResource* input,      \
                                  DevResource* remaining, unsigned flags, unsigned min_count))          \
  X(cuDevResourceGenerateDesc, (DevResourceDesc* desc, DevResource* resources, unsigned count))         \
  X(cuGreenCtxCreate, (GreenCtx* context, DevResourceDesc desc, Device device, unsigned flags))         \
  X(cuGreenCtxDestroy, (GreenCtx context))                                                              \
  X(cuGreenCtxStreamCreate, (Stream* stream, GreenCtx context, unsigned flags, int priority))           \
  X(cuCtxFromGreenCtx, (Context* context, GreenCtx green))

#define VV_CUDA_DECLARE_(name, params) Result(*name) params = nullptr;
struct Api {
  VV_CUDA_FUNCTIONS(VV_CUDA_DECLARE_)
  VV_CUDA_OPTIONAL_FUNCTIONS(VV_CUDA_DECLARE_)
};
#undef VV_CUDA_DECLARE_

}  // namespace vivace::cu
