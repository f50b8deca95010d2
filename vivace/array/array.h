// Array: shared memory and a strided view of it, on the CPU or on a GPU.
#pragma once
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vivace/array/types.h"
#include "vivace/base/tensor.h"
#include "vivace/cpu/pool.h"
#include "vivace/device/device.h"
#include "vivace/device/memory.h"
#include "vivace/device/stream.h"
#include "vivace/jit/binary.h"

namespace vivace::array {

inline constexpr int kHost = -1;  // the device number of host memory
inline constexpr uintptr_t kLegacyStream =
    1;  // CU_STREAM_LEGACY: what arrays are filled on and work runs on by default

/// Memory that arrays share; freed with the last of them.
struct Storage {
  int device = kHost;
  void* data = nullptr;
  size_t bytes = 0;
  bool read_only = false;
  std::shared_ptr<void> owner;    // what keeps borrowed memory alive
  device::Device* gpu = nullptr;  // with block: memory of the pool
  device::Pool* pool = nullptr;
  device::Block* block = nullptr;
  std::atomic<bool> foreign{false};  // work on a stream that nobody told of has used it
  uintptr_t stream = kLegacyStream;  // where arrays' work last used it
  device::Event used;                // on another than the legacy stream: recorded behind that work
  Storage() = default;
  Storage(const Storage&) = delete;
  ~Storage();
};

/// Host memory of arrays. It comes from the C library and goes back to it: nothing is cached.
struct HostMemory {
  int64_t limit = 0;  // 0: none
  int64_t used = 0, peak_used = 0, allocations = 0, failures = 0;
};
HostMemory host_memory();
void reset_host_peak();
/// Arrays that would need more than this are OutOfMemory from now on; 0: none. Errors: InvalidArgument if negative.
Status set_host_limit(int64_t bytes);

struct Array {
  std::shared_ptr<Storage> storage;  // null once closed
  Elem elem = Elem::f32;
  Shape shape;
  int64_t stride[kMaxRank] = {};  // elements; 0 and negative allowed
  char* data = nullptr;           // of element [0, 0, ...]

  int device() const { return storage ? storage->device : kHost; }
  int64_t size() const { return shape.elements(); }
  bool is_dense() const;
  int64_t nbytes() const { return row_bytes(elem, size()); }
};

/// Where work is done. On the CPU: these threads, or the caller's own. On a GPU: a stream, and who compiles for it.
struct Exec {
  cpu::Pool* pool = nullptr;
  uintptr_t stream = kLegacyStream;
  Result<jit::BinaryPtr> (*compile)(const jit::Source& source) = nullptr;
  /// out[b, t, n] = sum over k of x[b, t, k] w[b, n, k], k side by side in x and w: the op table's, where it is known.
  Status (*gemm)(const Tensor& x, const Tensor& w, const Tensor& out, int device, uintptr_t stream) = nullptr;
};

// Memory.
/// Errors: InvalidShape, OutOfMemory, those of the device.
Result<Array> empty(Elem e, const Shape& shape, int device);
/// A dense view of memory that `owner` keeps alive.
Array borrow(void* data, Elem e, const Shape& shape, int device, bool read_only, std::shared_ptr<void> owner);
Result<Shape> shape_of(std::span<const int64_t> dims, Elem e);
Status check_open(const Array& a, const char* what);
/// As an op's operand. Errors: InvalidDType for u16, u32 and u64; Closed.
Result<Tensor> tensor_of(const Array& a);

// Views, none of which copies.
struct Index {
  enum Kind : uint8_t { one, range, all, added } kind = all;  // x[2], x[1:9:2], x[...] (one axis of it), x[None]
  int64_t begin = 0, step = 1, count = 0;                     // range: already cut to the axis
};
Result<Array> index(const Array& a, std::span<const Index> indices);
Result<Array> permute(const Array& a, std::span<const int> axes);
Result<Array> broadcast_to(const Array& a, const Shape& shape);
/// A view, or none where no strides say it.
std::optional<Array> reshape_view(const Array& a, const Shape& shape);
Array flip(const Array& a, uint32_t axes);
/// Bits read as another type of the same size of unit, or the last axis cut or joined.
Result<Array> view_as(const Array& a, Elem e);
/// The shape that all are broadcast to. Errors: InvalidShape, both shapes aligned.
Result<Shape> broadcast(std::span<const Shape> shapes);

// Computing. Outputs that are not given are new and dense.
struct Operand {
  const Array* array = nullptr;  // or a value
  Elem elem = Elem::f32;
  Scalar value{};
  Weak weak = Weak::none;  // a value without a type of its own
  double real = 0;         // weak values, as Python had them
  int64_t integer = 0;
  bool above = false;  // integer holds an unsigned number beyond i64
};
/// The value of an operand without an array as type e. Errors: InvalidArgument where it does not fit, InvalidDType.
Result<Scalar> value_as(Elem e, const Operand& o);
/// One function of the table. `out`: written, and answered; of the same shape and device; the result is cast to its
/// type if that is of the same kind.
Result<Array> apply(Func f, std::span<const Operand> operands, const Array* out, const Exec& exec);
/// A program over operands of its types. The shape is what they are broadcast to, or `shape`.
Result<Array> run(const kernels::MapProgram& program, std::span<const Operand> operands, const Shape* shape,
                  const Array* out, int device, const Exec& exec);
/// A function of the caller's own: C++ statements over named operands that set `result`.
struct Expression {
  std::string text;
  std::vector<std::string> names;  // of the operands
  std::vector<Elem> types;
  std::string result;
  Elem result_type = Elem::f32;
  bool index = false;  // `i` in the text is the element's number
};
/// On a GPU alone: the CPU has no compiler for it. Errors: Unsupported, CompileError, and InvalidDType for operands of
/// other types.
Result<Array> apply(const Expression& e, std::span<const Operand> operands, const Array* out, const Exec& exec);

/// The same elements, dense, as type e.
Result<Array> copy(const Array& a, Elem e, const Exec& exec);
/// Into `to`, which a's shape is broadcast to; cast as needed. Overlap is right.
Status assign(const Array& to, const Operand& from, const Exec& exec);

/// Folds the axes of the mask. sum and prod come in `type`, any and all as bool, argmax and argmin as i64.
Result<Array> fold(kernels::Fold kind, const Array& a, uint32_t axes, bool keepdims, Elem type, const Exec& exec);
/// What values of a type are folded in.
constexpr Elem carried(Elem e) {
  return e == Elem::f16 || e == Elem::bf16 ? Elem::f32 : e;
}
/// Folds what a program gives of operands of its types, broadcast, in the program's result (not f16, not bf16).
Result<Array> fold(const kernels::How& how, const kernels::MapProgram& p, std::span<const Operand> operands,
                   uint32_t axes, bool keepdims, const Exec& exec);
Result<Array> cumulative(bool product, const Array& a, int axis, Elem type, bool initial, const Exec& exec);
Result<Array> matmul(const Array& a, const Array& b, const Exec& exec);
Result<Array> take(const Array& a, const Array& indices, int axis, bool along, const Exec& exec);
Result<Array> sort(const Array& a, int axis, bool descending, bool order, const Exec& exec);
Result<Array> searchsorted(const Array& a, const Array& values, bool right, const Array* sorter, const Exec& exec);

/// Copies between a dense array and host memory, and waits for it. Before reading, the device's streams are waited for.
Status copy_host(const Array& a, void* host, bool to_device);
/// cpu, cuda:N.
std::string device_name(int device);
Result<int> parse_device(const std::string& text);

}  // namespace vivace::array
