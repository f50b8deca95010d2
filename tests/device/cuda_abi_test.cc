// cuda_api.h against the vendor's header, where one is installed: sizes, offsets and values.
#include <gtest/gtest.h>

#include "vivace/device/cuda_api.h"

#if __has_include(<cuda.h>)
#include <cuda.h>

namespace vivace::cu {
namespace {

TEST(CudaAbi, StructsHaveTheVendorsLayout) {
  EXPECT_EQ(sizeof(MemAllocationProp), sizeof(CUmemAllocationProp));
  EXPECT_EQ(offsetof(MemAllocationProp, location), offsetof(CUmemAllocationProp, location));
  EXPECT_EQ(offsetof(MemAllocationProp, flags), offsetof(CUmemAllocationProp, allocFlags));
  EXPECT_EQ(sizeof(MemAccessDesc), sizeof(CUmemAccessDesc));
  EXPECT_EQ(offsetof(MemAccessDesc, flags), offsetof(CUmemAccessDesc, flags));
  EXPECT_EQ(sizeof(LaunchConfig), sizeof(CUlaunchConfig));
  EXPECT_EQ(offsetof(LaunchConfig, stream), offsetof(CUlaunchConfig, hStream));
  EXPECT_EQ(offsetof(LaunchConfig, attrs), offsetof(CUlaunchConfig, attrs));
  EXPECT_EQ(offsetof(LaunchConfig, attr_count), offsetof(CUlaunchConfig, numAttrs));
  EXPECT_EQ(sizeof(LaunchAttr), sizeof(CUlaunchAttribute));
  EXPECT_EQ(offsetof(LaunchAttr, flag), offsetof(CUlaunchAttribute, value));
  EXPECT_EQ(sizeof(StreamMemOp), sizeof(CUstreamBatchMemOpParams));
  EXPECT_EQ(offsetof(StreamMemOp, address), offsetof(CUstreamBatchMemOpParams, waitValue.address));
  EXPECT_EQ(offsetof(StreamMemOp, value), offsetof(CUstreamBatchMemOpParams, waitValue.value));
  EXPECT_EQ(offsetof(StreamMemOp, flags), offsetof(CUstreamBatchMemOpParams, waitValue.flags));
  EXPECT_EQ(sizeof(GraphUpdateInfo), sizeof(CUgraphExecUpdateResultInfo));
  EXPECT_EQ(offsetof(GraphUpdateInfo, error_node), offsetof(CUgraphExecUpdateResultInfo, errorNode));
#if CUDA_VERSION >= 12040
  EXPECT_EQ(sizeof(DevResource), sizeof(CUdevResource));
  EXPECT_EQ(offsetof(DevResource, sm), offsetof(CUdevResource, sm));
  EXPECT_EQ(offsetof(DevResource, sm.min_partition), offsetof(CUdevResource, sm.minSmPartitionSize));
#endif
}

TEST(CudaAbi, ConstantsAreTheVendors) {
  const int pairs[][2] = {
      {kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY},
      {kDeinitialized, CUDA_ERROR_DEINITIALIZED},
      {kStubLibrary, CUDA_ERROR_STUB_LIBRARY},
      {kNoDevice, CUDA_ERROR_NO_DEVICE},
      {kNotFound, CUDA_ERROR_NOT_FOUND},
      {kNotReady, CUDA_ERROR_NOT_READY},
      {kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED},
      {kNotSupported, CUDA_ERROR_NOT_SUPPORTED},
      {kMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
      {kClockRateKhz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
      {kSmCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {kIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED},
      {kPciBus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID},
      {kPciDevice, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID},
      {kPciDomain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID},
      {kMemoryClockKhz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
      {kMemoryBusBits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
      {kL2Bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
      {kMaxThreadsPerSm, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
      {kAsyncEngines, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
      {kComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {kComputeMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {kSmemPerSm, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
      {kRegistersPerSm, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
      {kCooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
      {kSmemPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
      {kVirtualMemory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
      {kClusterLaunch, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH},
      {kFuncMaxThreads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
      {kFuncSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES},
      {kFuncLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES},
      {kFuncRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS},
      {kFuncMaxDynamicSmem, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES},
      {kFuncNonPortableCluster, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED},
      {kStreamNonBlocking, CU_STREAM_NON_BLOCKING},
      {kEventDisableTiming, CU_EVENT_DISABLE_TIMING},
      {kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE},
      {kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
      {kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL},
      {kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED},
      {kMemOpWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32},
      {kWaitValueEqual, CU_STREAM_WAIT_VALUE_EQ},
      {kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE},
      {kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE},
      {kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE},
      {kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL},
      {kMemoryTypeHost, CU_MEMORYTYPE_HOST},
      {kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE},
      {kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM},
      {kGranularityRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED},
      {MemLocation().type, CU_MEM_LOCATION_TYPE_DEVICE},
      {MemAllocationProp().type, CU_MEM_ALLOCATION_TYPE_PINNED},
      {MemAccessDesc().flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
      {kLaunchCooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE},
      {kLaunchClusterDim, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION},
      {kLaunchPdl, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION},
      {kMapU8, CU_TENSOR_MAP_DATA_TYPE_UINT8},
      {kMapU16, CU_TENSOR_MAP_DATA_TYPE_UINT16},
      {kMapU32, CU_TENSOR_MAP_DATA_TYPE_UINT32},
      {kMapNoInterleave, CU_TENSOR_MAP_INTERLEAVE_NONE},
      {kMapSwizzle128, CU_TENSOR_MAP_SWIZZLE_128B},
      {kMapFetch256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B},
      {kMapZeros, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE},
      {static_cast<int>(kMapBytes), sizeof(CUtensorMap)},
#if CUDA_VERSION >= 12040
      {kResourceSm, CU_DEV_RESOURCE_TYPE_SM},
      {kGreenDefaultStream, CU_GREEN_CTX_DEFAULT_STREAM},
#endif
  };
  for (size_t i = 0; i < std::size(pairs); ++i) EXPECT_EQ(pairs[i][0], pairs[i][1]) << "row " << i;
  EXPECT_EQ(alignof(CUtensorMap) % kMapAlign,
            0u);  // the driver wants 64; since CUDA 13 the header asks its compilers for 128
}

}  // namespace
}  // namespace vivace::cu
#endif
