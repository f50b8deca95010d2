// The DLPack structures (ABI version 1) that a __dlpack__ capsule points at.
#pragma once
#include <cstdint>

namespace vivace::python {

struct DLDevice {
  int32_t type, id;
};
enum : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };

struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements; null means dense
  uint64_t byte_offset;
};

/// Capsule "dltensor".
struct DLManagedTensor {
  DLTensor tensor;
  void* context;
  void (*deleter)(DLManagedTensor*);
};

/// Capsule "dltensor_versioned".
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor tensor;
};
inline constexpr uint64_t kDLReadOnly = 1;

}  // namespace vivace::python
