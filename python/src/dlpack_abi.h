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

/// What type(tensor).__dlpack_c_exchange_api__ points at (capsule "dlpack_exchange_api"): conversion
/// without Python calls, and the stream that the framework works on.
struct DLPackExchangeAPI {
  uint32_t major, minor;
  DLPackExchangeAPI* previous;
  int (*allocate)(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_ctx,
                  void (*set_error)(void*, const char*, const char*));
  int (*from_object)(void* object, DLManagedTensorVersioned** out);
  int (*to_object)(DLManagedTensorVersioned* tensor, void** out);
  int (*view_of_object)(void* object, DLTensor* out);  // borrows: valid while the object lives; may be null
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // namespace vivace::python
