// XLA's foreign function interface: one handler a platform for the whole op table, and the checks of a call that has
// shapes but no memory yet. XLA calls the handlers on threads of its own, which have no GIL and take none.
#include "jax_ffi.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cfenv>
#include <new>

#include "errors.h"
#include "runtime.h"
#include "vivace/base/check.h"
#include "vivace/exec/cuda_stream.h"
#include "xla_ffi_abi.h"

namespace vivace::python {
namespace {

/// Takes launches and drops them: what is left of issuing a call is that it was checked and its kernels are loaded.
class Unlaunched final : public exec::Stream {
 public:
  explicit Unlaunched(const device::Device* device) : device_(device) {}
  Status launch(const exec::Launch&) override { return {}; }
  Status copy(void*, const void*, size_t) override { return {}; }
  Status begin_capture() override { return refused(); }
  Result<std::unique_ptr<exec::Executable>> end_capture() override { return refused(); }
  bool capturing() const override { return true; }  // contents are not there to be inspected
  const device::Device* device() const override { return device_; }
  Status replay(exec::Executable&) override { return refused(); }
  Status record(exec::Event&) override { return refused(); }
  Status wait(exec::Event&) override { return refused(); }
  Status pass(exec::Gate&, uint32_t) override { return refused(); }
  Status set(exec::Gate&, int, bool) override { return refused(); }
  Status synchronize() override { return {}; }

 private:
  static Status refused() {
    return Status(Code::kInternal, "a call that is only prepared asked for more than launches");
  }
  const device::Device* device_;
};

/// absl's code, which XLA and JAX show in front of the message.
int absl_code(Code c) {
  switch (c) {
    case Code::kInvalidArgument:
    case Code::kInvalidShape:
    case Code::kInvalidDType:
    case Code::kInvalidLayout:
    case Code::kInvalidDevice:
    case Code::kAliasError:
      return 3;  // INVALID_ARGUMENT
    case Code::kNotFound:
      return 5;  // NOT_FOUND
    case Code::kOutOfMemory:
      return 8;  // RESOURCE_EXHAUSTED
    case Code::kClosed:
    case Code::kFailedPrecondition:
      return 9;  // FAILED_PRECONDITION
    case Code::kLimitExceeded:
      return 11;  // OUT_OF_RANGE
    case Code::kUnsupported:
    case Code::kNoVariant:
    case Code::kCompileError:
      return 12;  // UNIMPLEMENTED
    default:
      return 13;  // INTERNAL
  }
}

ffi::Error* error_of(const ffi::CallFrame& frame, const Status& s) {
  if (s.ok()) return nullptr;
  const std::string text = s.to_string();
  ffi::ErrorCreate create{};
  create.size = sizeof(create);
  create.message = text.c_str();
  create.code = absl_code(s.code());
  return frame.api->error_create(&create);
}

bool dtype_of(ffi::Type type, DType* out) {
  switch (type) {
    case ffi::Type::boolean:
      *out = DType::boolean;
      return true;
    case ffi::Type::s8:
      *out = DType::i8;
      return true;
    case ffi::Type::s16:
      *out = DType::i16;
      return true;
    case ffi::Type::s32:
      *out = DType::i32;
      return true;
    case ffi::Type::s64:
      *out = DType::i64;
      return true;
    case ffi::Type::u8:
      *out = DType::u8;
      return true;
    case ffi::Type::f16:
      *out = DType::f16;
      return true;
    case ffi::Type::f32:
      *out = DType::f32;
      return true;
    case ffi::Type::f64:
      *out = DType::f64;
      return true;
    case ffi::Type::bf16:
      *out = DType::bf16;
      return true;
    case ffi::Type::f8e5m2:
      *out = DType::e5m2;
      return true;
    case ffi::Type::f8e4m3fn:
      *out = DType::e4m3;
      return true;
  }
  return false;
}

/// The tensor of a buffer. `as` is another dtype that its bytes are read as, "" for its own: then the last axis has as
/// many elements as its bytes hold.
Status to_tensor(const ffi::Buffer& b, std::string_view as, Place place, Tensor* t) {
  DType dtype;
  if (!dtype_of(b.type, &dtype))
    return Status(Code::kInvalidDType, strf("XLA's element type %d is none of the op table", static_cast<int>(b.type)));
  if (b.rank > kMaxRank)
    return Status(Code::kInvalidShape,
                  strf("wanted at most %d axes, got %lld", kMaxRank, static_cast<long long>(b.rank)));
  Shape shape;
  shape.rank = static_cast<int>(b.rank);
  for (int i = 0; i < shape.rank; ++i) shape.dim[i] = b.dims[i];
  if (!as.empty()) {
    DType packed;
    if (!parse_dtype(as.data(), as.size(), &packed) || shape.rank == 0)
      return Status(Code::kInvalidDType, "no dtype '" + std::string(as) + "' to read these bytes as");
    int64_t& last = shape.dim[shape.rank - 1];
    const int64_t bytes = row_bytes(dtype, last);
    if (bytes % info(packed).bytes != 0)
      return Status(Code::kInvalidShape, strf("rows of %lld bytes are no whole blocks of %s, %d bytes each",
                                              static_cast<long long>(bytes), info(packed).name, info(packed).bytes));
    last = bytes / info(packed).bytes * info(packed).block;
    dtype = packed;
  }
  *t = tensor(b.data, dtype, shape, place);
  return {};
}

/// What one call site names, in the attributes beside the op's own.
constexpr std::string_view kOp = "vivace_op", kPorts = "vivace_ports";

Result<std::string_view> text_of(const ffi::Attributes& all, std::string_view name) {
  for (int64_t i = 0; i < all.count; ++i) {
    if (std::string_view(all.names[i]->data, all.names[i]->size) != name) continue;
    if (all.types[i] != ffi::kString) break;
    const auto& s = *static_cast<const ffi::Span*>(all.items[i]);
    return std::string_view(s.data, s.size);
  }
  return Status(Code::kInvalidArgument,
                "vivace.op: no string attribute " + std::string(name) + "; call vivace.jax_ops");
}

Result<double> number_of(const ffi::Scalar& s) {
  switch (s.type) {
    case ffi::Type::boolean:
      return *static_cast<const bool*>(s.value) ? 1.0 : 0.0;
    case ffi::Type::s32:
      return *static_cast<const int32_t*>(s.value);
    case ffi::Type::s64:
      return static_cast<double>(*static_cast<const int64_t*>(s.value));
    case ffi::Type::f32:
      return *static_cast<const float*>(s.value);
    case ffi::Type::f64:
      return *static_cast<const double*>(s.value);
    default:
      return Status(Code::kInvalidArgument, "wanted a bool, int32, int64, float32 or float64");
  }
}

Status set_attributes(const ffi::Attributes& all, ops::Call* call) {
  for (int64_t i = 0; i < all.count; ++i) {
    const std::string_view name(all.names[i]->data, all.names[i]->size);
    if (name == kOp || name == kPorts) continue;
    if (all.types[i] == ffi::kString) {
      const auto& s = *static_cast<const ffi::Span*>(all.items[i]);
      VV_TRY(call->set(name, std::string_view(s.data, s.size)));
    } else if (all.types[i] == ffi::kScalar) {
      const Result<double> value = number_of(*static_cast<const ffi::Scalar*>(all.items[i]));
      if (!value.ok()) return call->error(value.status().code(), std::string(name) + ": " + value.status().message());
      VV_TRY(call->set(name, *value));
    } else {
      return call->error(Code::kInvalidArgument,
                         "attribute " + std::string(name) + " is neither a number nor a string");
    }
  }
  return {};
}

/// `ports` names what the buffers are, arguments first, "x,w:q8_0,out": behind a colon the dtype to read the bytes as.
/// A port that is updated stands on both sides and is one buffer.
Status bind_ports(const ffi::CallFrame& frame, std::string_view ports, Place place, ops::Call* call) {
  const int64_t total = frame.arguments.count + frame.results.count;
  const void* given[ops::kMaxPorts] = {};
  int64_t at = 0;
  while (!ports.empty() && at < total) {
    const bool result = at >= frame.arguments.count;
    const ffi::Operands& side = result ? frame.results : frame.arguments;
    const int64_t i = result ? at - frame.arguments.count : at;
    const size_t comma = ports.find(',');
    const std::string_view entry = ports.substr(0, comma);
    const size_t colon = entry.find(':');
    const std::string_view port = entry.substr(0, colon);
    if (side.types[i] != ffi::kBuffer)
      return call->error(Code::kUnsupported, "port " + std::string(port) + ": XLA hands over something but a buffer");
    const auto& buffer = *static_cast<const ffi::Buffer*>(side.items[i]);
    Tensor t;
    if (Status s = to_tensor(buffer, colon == std::string_view::npos ? "" : entry.substr(colon + 1), place, &t);
        !s.ok())
      return call->error(s.code(), "port " + std::string(port) + ": " + s.message());
    VV_TRY(call->bind(port, t));
    for (size_t p = 0; p < call->spec().ports.size(); ++p) {
      if (port != call->spec().ports[p].name) continue;
      if (!result)
        given[p] = t.data;
      else if (call->spec().ports[p].io == ops::Io::inout && given[p] != t.data)
        return call->error(Code::kInternal, "port " + std::string(port) + ": XLA gave what is updated two buffers");
    }
    ports = comma == std::string_view::npos ? std::string_view() : ports.substr(comma + 1);
    ++at;
  }
  if (at != total || !ports.empty())
    return call->error(Code::kInvalidArgument,
                       strf("%lld buffers, and as many ports are not named", static_cast<long long>(total)));
  return {};
}

/// The GPU that the call's memory is on; null where nothing has any.
Result<const device::Device*> device_of(const ops::Call& call) {
  for (size_t p = 0; p < call.spec().ports.size(); ++p) {
    const Tensor& t = call.port_at(static_cast<int>(p));
    if (t.data == nullptr) continue;
    VV_ASSIGN(const int ordinal, device::device_of(t.data));
    VV_ASSIGN(const device::Device* const device, device::Device::get(ordinal));
    return device;
  }
  return static_cast<const device::Device*>(nullptr);
}

Result<void*> stream_of(const ffi::CallFrame& frame) {
  ffi::StreamGet get{};
  get.size = sizeof(get);
  get.context = frame.context;
  if (ffi::Error* const e = frame.api->stream_get(&get); e != nullptr) {
    ffi::ErrorDestroy destroy{};
    destroy.size = sizeof(destroy);
    destroy.error = e;
    frame.api->error_destroy(&destroy);
    return Status(Code::kInternal, "vivace.op: XLA has no stream for this call");
  }
  return get.stream;
}

/// In the initialise stage addresses are known and contents are not: kernels are compiled and loaded there, so that the
/// execute stage may be captured. Operands have just been written by XLA's kernels: nothing is read ahead of the
/// stream.
Status run_on_cuda(const ffi::CallFrame& frame, const ops::OpRow& row, ops::Call& call) {
  VV_ASSIGN(const device::Device* const device, device_of(call));
  if (device == nullptr) return call.check();  // no elements: no work
  if (frame.stage == ffi::Stage::initialize) {
    Unlaunched stream(device);
    return ops::Recorder(stream).issue(row, call);
  }
  VV_ASSIGN(void* const handle, stream_of(frame));
  exec::CudaStream stream(device::Stream::borrow(*device, static_cast<cu::Stream>(handle)));
  return ops::Recorder(stream, ops::Weights::ordered).issue(row, call);
}

/// XLA's threads flush subnormal numbers; ops keep them.
class PlainFloats {
 public:
  PlainFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  PlainFloats(const PlainFloats&) = delete;
  ~PlainFloats() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

Status run_on_cpu(const ops::OpRow& row, ops::Call& call) {
  const PlainFloats floats;
  Runtime& r = Runtime::get();
  const std::lock_guard hold(r.lock);
  return ops::Recorder(*r.stream).issue(row, call);
}

Status run(const ffi::CallFrame& frame, Place place) {
  if (frame.stage != ffi::Stage::execute && (place == Place::host || frame.stage != ffi::Stage::initialize)) return {};
  VV_ASSIGN(const std::string_view name, text_of(frame.attributes, kOp));
  VV_ASSIGN(const std::string_view ports, text_of(frame.attributes, kPorts));
  const ops::OpRow* const row = ops::find(name);
  if (row == nullptr) return Status(Code::kNotFound, "vivace.op: no op '" + std::string(name) + "'");
  ops::Call call(*row->spec);
  VV_TRY(set_attributes(frame.attributes, &call));
  VV_TRY(bind_ports(frame, ports, place, &call));
  return place == Place::host ? run_on_cpu(*row, call) : run_on_cuda(frame, *row, call);
}

/// XLA asks what the handler is before it calls it. True where this was such a question.
bool answered(const ffi::CallFrame& frame, uint32_t traits) {
  for (ffi::Extension* e = frame.extensions; e != nullptr; e = e->next) {
    if (e->type != ffi::kMetadataExtension) continue;
    ffi::Metadata& m = *reinterpret_cast<ffi::MetadataExtension*>(e)->metadata;
    m.version.major = ffi::kMajor;
    m.version.minor = ffi::kMinor;
    m.traits = traits;
    return true;
  }
  return false;
}

ffi::Error* handle(const ffi::CallFrame& frame, Place place) {
  try {
    return error_of(frame, run(frame, place));
  } catch (const std::bad_alloc&) {
    return error_of(frame, Status(Code::kOutOfMemory, "vivace.op: no host memory"));
  } catch (const std::exception& e) {
    return error_of(frame, Status(Code::kInternal, std::string("vivace.op: ") + e.what()));
  }
}

ffi::Error* on_cpu(ffi::CallFrame* frame) {
  return answered(*frame, 0) ? nullptr : handle(*frame, Place::host);
}
ffi::Error* on_cuda(ffi::CallFrame* frame) {
  return answered(*frame, ffi::kCommandBufferCompatible) ? nullptr : handle(*frame, Place::device);
}

nb::capsule capsule(ffi::Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

/// (port, dtype, shape) of every port that a call has.
using Ports = std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>>;

/// Memory that is nowhere: an address for every port, so that checks see none overlap. Nothing follows it.
void* nowhere(size_t port) {
  return reinterpret_cast<void*>((static_cast<uintptr_t>(port) + 1) << 44);
}

Status check_call(const ops::OpRow& row, const Ports& ports, const nb::dict& attributes) {
  ops::Call call(*row.spec);
  for (size_t i = 0; i < ports.size(); ++i) {
    const auto& [name, dtype, dims] = ports[i];
    DType of;
    if (!parse_dtype(dtype.data(), dtype.size(), &of))
      return call.error(Code::kInvalidDType, "port " + name + ": no dtype '" + dtype + "'");
    if (dims.size() > kMaxRank)
      return call.error(Code::kInvalidShape,
                        strf("port %s: wanted at most %d axes, got %zu", name.c_str(), kMaxRank, dims.size()));
    Shape shape;
    shape.rank = static_cast<int>(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) shape.dim[d] = dims[d];
    VV_TRY(call.bind(name, tensor(nowhere(i), of, shape)));
  }
  for (auto [key, value] : attributes) {
    const auto name = nb::cast<std::string_view>(key);
    if (nb::isinstance<nb::str>(value))
      VV_TRY(call.set(name, nb::cast<std::string_view>(value)));
    else
      VV_TRY(call.set(name, nb::cast<double>(value)));
  }
  Unlaunched stream(nullptr);
  return ops::Recorder(stream).issue(row, call);
}

}  // namespace

void add_jax_ffi(nb::module_& m) {
  m.def(
      "xla_handlers",
      [] {
        nb::dict cpu, cuda, all;
        cpu["execute"] = capsule(&on_cpu);
        cuda["initialize"] = capsule(&on_cuda);
        cuda["execute"] = capsule(&on_cuda);
        all["cpu"] = cpu;
        all["CUDA"] = cuda;
        return all;
      },
      "{platform: {stage: capsule}}: the handlers of the target vivace.op, for jax.ffi.register_ffi_target().");
  m.def(
      "check_call",
      [](const std::string& op, const Ports& ports, const nb::dict& attributes) {
        const ops::OpRow* const row = ops::find(op);
        check(row == nullptr ? Status(Code::kNotFound, "check_call: no op '" + op + "'")
                             : check_call(*row, ports, attributes));
      },
      nb::arg("op"), nb::arg("ports"), nb::arg("attributes"),
      "Checks a call by the (port, dtype, shape) of its ports, as the call would. Nothing runs, no memory is needed.");
}

}  // namespace vivace::python
