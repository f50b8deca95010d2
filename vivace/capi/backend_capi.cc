// Backend, buffer, stream and event of the C ABI.
#include <cstring>
#include <string>
#include <utility>

#include "vivace/capi/guard.h"
#include "vivace/capi/handles.h"
#include "vivace/exec/cpu_stream.h"
#include "vivace/exec/cuda_stream.h"

using vivace::Code;
using vivace::Status;
using vivace::capi::guard;

namespace {

namespace capi = vivace::capi;
namespace exec = vivace::exec;

constexpr size_t kOptionsV1 = sizeof(vv_backend_options), kInfoV1 = sizeof(vv_buffer_info),
                 kLaunchV1 = sizeof(vv_launch);

Status make_backend(const vv_backend_options& o, capi::BackendRep* rep) {
  if (o.kind == nullptr) return capi::null("options.kind");
  const std::string kind = o.kind;
  if (kind == "cpu") {
    constexpr int kMostThreads = 4096;
    if (o.threads < 0 || o.threads > kMostThreads)
      return Status(Code::kInvalidArgument,
                    vivace::strf("options.threads is %d, wanted 0 to %d", o.threads, kMostThreads));
    rep->pool = std::make_unique<vivace::cpu::Pool>(o.threads);
    rep->backend = std::make_unique<exec::CpuBackend>(*rep->pool);
    return {};
  }
  if (kind == "cuda") {
    VV_ASSIGN(rep->device, vivace::device::Device::get(o.ordinal));
    VV_ASSIGN(rep->backend, exec::CudaBackend::create(*rep->device));
    return {};
  }
  return Status(Code::kInvalidArgument, "options.kind is \"" + kind + "\", wanted \"cpu\" or \"cuda\"");
}

Status cuda_only(const vivace::capi::BackendRep& rep) {
  if (rep.device != nullptr) return {};
  return Status(Code::kUnsupported,
                std::string("this is a ") + rep.backend->name() + " backend, which has no CUstream");
}

/// The trampoline's arguments: the caller's function, then the caller's arguments 64-aligned.
struct HostCall {
  alignas(64) vv_host_fn fn;
  alignas(64) std::byte args[VV_MAX_ARGS_BYTES];
};
static_assert(sizeof(HostCall) <= exec::kMaxArgsBytes && offsetof(HostCall, args) == 64);

void run_host_call(const void* raw, vivace::cpu::Pool&) {
  const auto* call = static_cast<const HostCall*>(raw);
  call->fn(call->args);
}

/// A deleter of the caller's: what it throws ends here, in a destructor.
struct TheirDeleter {
  vv_deleter fn;
  void* context;
};

void run_their_deleter(void* data, size_t bytes, void* context) {
  const std::unique_ptr<TheirDeleter> theirs(static_cast<TheirDeleter*>(context));
  static_cast<void>(capi::contained([&]() -> Status {
    theirs->fn(data, bytes, theirs->context);
    return {};
  }));
}

Status host_launch(const vv_launch& from, exec::Launch* to) {
  if (from.host == nullptr) return capi::null("launch.host");
  if (from.args_bytes > VV_MAX_ARGS_BYTES)
    return Status(Code::kInvalidArgument,
                  vivace::strf("launch.args_bytes is %zu, at most %d fit", from.args_bytes, VV_MAX_ARGS_BYTES));
  if (from.args_bytes != 0 && from.args == nullptr) return capi::null("launch.args");
  to->op = from.op == nullptr ? "" : from.op;
  to->host = run_host_call;
  to->args_bytes = static_cast<uint32_t>(offsetof(HostCall, args) + from.args_bytes);
  std::memcpy(to->args, &from.host, sizeof from.host);
  if (from.args_bytes != 0) std::memcpy(to->args + offsetof(HostCall, args), from.args, from.args_bytes);
  return {};
}

}  // namespace

extern "C" {

vv_status vv_backend_create(const vv_backend_options* options, vv_backend** out) {
  return guard("vv_backend_create", [&]() -> Status {
    VV_NOT_NULL(out);
    vv_backend_options o{};
    VV_TRY(capi::read_struct(options, kOptionsV1, &o));
    auto rep = std::make_shared<capi::BackendRep>();
    VV_TRY(make_backend(o, rep.get()));
    *out = new vv_backend{{}, std::move(rep)};
    return {};
  }, out);
}
void vv_backend_destroy(vv_backend* backend) { vivace::capi::destroy(backend); }
const char* vv_backend_name(const vv_backend* backend) {
  return capi::usable(backend) ? backend->rep->backend->name() : nullptr;
}
int vv_backend_priority_levels(const vv_backend* backend) {
  return capi::usable(backend) ? backend->rep->backend->priority_levels() : 0;
}

vv_status vv_buffer_create(vv_backend* backend, const char* name, size_t bytes, vv_buffer** out) {
  return guard("vv_buffer_create", [&]() -> Status {
    VV_NOT_NULL(backend);
    VV_NOT_NULL(name);
    VV_NOT_NULL(out);
    VV_ASSIGN(exec::Buffer buffer, backend->rep->backend->make_buffer(name, bytes));
    *out = new vv_buffer{{}, backend->rep, std::move(buffer)};
    return {};
  }, out);
}

vv_status vv_buffer_wrap(const char* name, void* data, size_t bytes, vv_place place, vv_deleter deleter, void* context,
                         vv_buffer** out) {
  return guard("vv_buffer_wrap", [&]() -> Status {
    VV_NOT_NULL(name);
    VV_NOT_NULL(data);
    VV_NOT_NULL(out);
    if (bytes == 0) return Status(Code::kInvalidArgument, std::string("buffer ") + name + ": 0 bytes");
    if (place != VV_HOST && place != VV_DEVICE)
      return Status(Code::kInvalidArgument, vivace::strf("place is %d, wanted VV_HOST or VV_DEVICE", place));
    VV_TRY(capi::check_bytes("bytes", bytes));
    auto handle = std::make_unique<vv_buffer>();
    auto theirs = std::make_unique<TheirDeleter>(TheirDeleter{deleter, context});
    std::string text = name;  // the deleter is ours only once nothing can fail
    const vivace::Place where = place == VV_HOST ? vivace::Place::host : vivace::Place::device;
    if (deleter == nullptr) handle->buffer = exec::Buffer(std::move(text), data, bytes, where);
    else handle->buffer = exec::Buffer(std::move(text), data, bytes, where, run_their_deleter, theirs.release());
    *out = handle.release();
    return {};
  }, out);
}

vv_status vv_buffer_get_info(const vv_buffer* buffer, vv_buffer_info* info) {
  return guard("vv_buffer_get_info", [&]() -> Status {
    VV_NOT_NULL(buffer);
    const exec::Buffer& b = buffer->buffer;
    return capi::write_struct({sizeof(vv_buffer_info), b.name().c_str(), b.data(), b.bytes(),
                               b.place() == vivace::Place::host ? VV_HOST : VV_DEVICE},
                              kInfoV1, info);
  }, capi::Filled<vv_buffer_info>{info, kInfoV1});
}
void vv_buffer_destroy(vv_buffer* buffer) { vivace::capi::destroy(buffer); }

vv_status vv_stream_create(vv_backend* backend, int level, vv_stream** out) {
  return guard("vv_stream_create", [&]() -> Status {
    VV_NOT_NULL(backend);
    VV_NOT_NULL(out);
    VV_ASSIGN(std::unique_ptr<exec::Stream> stream, backend->rep->backend->make_stream(level));
    *out = new vv_stream{{}, std::make_shared<capi::StreamRep>(capi::StreamRep{backend->rep, std::move(stream)})};
    return {};
  }, out);
}

vv_status vv_stream_wrap_cuda(vv_backend* backend, void* cu_stream, vv_stream** out) {
  return guard("vv_stream_wrap_cuda", [&]() -> Status {
    VV_NOT_NULL(backend);
    VV_NOT_NULL(cu_stream);
    VV_NOT_NULL(out);
    VV_TRY(cuda_only(*backend->rep));
    auto stream = std::make_unique<exec::CudaStream>(
        vivace::device::Stream::borrow(*backend->rep->device, static_cast<vivace::cu::Stream>(cu_stream)));
    *out = new vv_stream{{}, std::make_shared<capi::StreamRep>(capi::StreamRep{backend->rep, std::move(stream)})};
    return {};
  }, out);
}

vv_status vv_stream_get_cuda(vv_stream* stream, void** cu_stream) {
  return guard("vv_stream_get_cuda", [&]() -> Status {
    VV_NOT_NULL(stream);
    VV_NOT_NULL(cu_stream);
    VV_TRY(cuda_only(*stream->rep->owner));
    *cu_stream = static_cast<exec::CudaStream&>(*stream->rep->stream).handle();
    return {};
  }, cu_stream);
}

vv_status vv_stream_launch(vv_stream* stream, const vv_launch* launch) {
  return guard("vv_stream_launch", [&]() -> Status {
    VV_NOT_NULL(stream);
    vv_launch given{};
    VV_TRY(capi::read_struct(launch, kLaunchV1, &given));
    exec::Launch l;
    VV_TRY(host_launch(given, &l));
    return stream->rep->stream->launch(l);
  });
}

vv_status vv_stream_copy(vv_stream* stream, void* to, const void* from, size_t bytes) {
  return guard("vv_stream_copy", [&]() -> Status {
    VV_NOT_NULL(stream);
    return stream->rep->stream->copy(to, from, bytes);
  });
}

vv_status vv_stream_record(vv_stream* stream, vv_event* event) {
  return guard("vv_stream_record", [&]() -> Status {
    VV_NOT_NULL(stream);
    VV_NOT_NULL(event);
    return stream->rep->stream->record(*event->event);
  });
}

vv_status vv_stream_wait(vv_stream* stream, vv_event* event) {
  return guard("vv_stream_wait", [&]() -> Status {
    VV_NOT_NULL(stream);
    VV_NOT_NULL(event);
    return stream->rep->stream->wait(*event->event);
  });
}

vv_status vv_stream_synchronize(vv_stream* stream) {
  return guard("vv_stream_synchronize", [&]() -> Status {
    VV_NOT_NULL(stream);
    return stream->rep->stream->synchronize();
  });
}
void vv_stream_destroy(vv_stream* stream) { vivace::capi::destroy(stream); }

vv_status vv_event_create(vv_backend* backend, vv_event** out) {
  return guard("vv_event_create", [&]() -> Status {
    VV_NOT_NULL(backend);
    VV_NOT_NULL(out);
    VV_ASSIGN(std::unique_ptr<exec::Event> event, backend->rep->backend->make_event());
    *out = new vv_event{{}, backend->rep, std::move(event)};
    return {};
  }, out);
}

vv_status vv_event_synchronize(vv_event* event) {
  return guard("vv_event_synchronize", [&]() -> Status {
    VV_NOT_NULL(event);
    return event->event->synchronize();
  });
}
void vv_event_destroy(vv_event* event) { vivace::capi::destroy(event); }

}  // extern "C"
