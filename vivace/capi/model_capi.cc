// Models of the C ABI: vivace/capi/model.h over TextRuntime.
#include "vivace/capi/model.h"

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "vivace/capi/guard.h"
#include "vivace/capi/sched_handle.h"
#include "vivace/capi/text_runtime.h"
#include "vivace/models/models.h"
#include "vivace/sched/scheduled_policy.h"

using vivace::Code;
using vivace::Status;
using vivace::capi::guard;

struct vv_model : vivace::capi::Tagged<vivace::capi::Kind::model> {
  vv_model(std::shared_ptr<vivace::sched::Tenant> t, std::unique_ptr<vivace::capi::TextRuntime> r)
      : tenant(std::move(t)), runtime(std::move(r)) {}
  std::shared_ptr<vivace::sched::Tenant> tenant;  // outlives the model, whose stream passes its gate
  std::unique_ptr<vivace::capi::TextRuntime> runtime;
};

namespace {

namespace capi = vivace::capi;

constexpr size_t kOptionsV1 = offsetof(vv_model_options, lm_head_dtype), kInfoV1 = sizeof(vv_model_info),
                 kPortV1 = sizeof(vv_port_info);

/// NULL and 0 in the options are the engine's defaults.
vivace::engine::LoadOptions load_options(const vv_model_options& o) {
  vivace::engine::LoadOptions to;
  if (o.device != nullptr) to.device = o.device;
  if (o.precision != nullptr) to.precision = o.precision;
  if (o.kv_dtype != nullptr) to.kv_dtype = o.kv_dtype;
  to.threads = o.threads;
  to.context = o.context;
  if (o.max_batch != 0) to.max_batch = o.max_batch;
  if (o.prefill_chunk != 0) to.prefill_chunk = o.prefill_chunk;
  if (o.lm_head_dtype != nullptr) to.lm_head_dtype = o.lm_head_dtype;
  if (o.invariance != nullptr) to.invariance = o.invariance;
  if (o.decode_layers != nullptr) to.decode_layers = o.decode_layers;
  return to;
}

vv_status text_restart(vv_model* model, int slot) {
  return guard("vv_text_extension.restart", [&]() -> Status {
    VV_NOT_NULL(model);
    return model->runtime->restart(slot);
  });
}

template <int vivace::engine::TextLimits::* limit>
int text_limit(const vv_model* model) {
  return capi::usable(model) ? model->runtime->limits().*limit : 0;
}

constexpr vv_text_extension kTextExtension = {sizeof(vv_text_extension),
                                              text_restart,
                                              text_limit<&vivace::engine::TextLimits::vocab>,
                                              text_limit<&vivace::engine::TextLimits::context>,
                                              text_limit<&vivace::engine::TextLimits::max_batch>,
                                              text_limit<&vivace::engine::TextLimits::prefill_chunk>};

}  // namespace

extern "C" {

vv_status vv_model_load(const vv_model_options* options, vv_model** out) {
  return guard("vv_model_load", [&]() -> Status {
    VV_NOT_NULL(out);
    vv_model_options o{};
    VV_TRY(capi::read_struct(options, kOptionsV1, &o));
    if (o.path == nullptr) return capi::null("options.path");
    vivace::engine::LoadOptions to = load_options(o);
    std::shared_ptr<vivace::sched::Tenant> tenant;
    if (o.tenant != nullptr) {
      VV_NOT_NULL(o.tenant);
      tenant = o.tenant->tenant;
      VV_TRY(vivace::sched::check_text(*tenant));
      to.gates = tenant->gates(), to.most_bytes = tenant->most_bytes();
    }
    VV_ASSIGN(auto model, vivace::models::load_model(o.path, to));
    if (const auto* text = dynamic_cast<const vivace::engine::TextModel*>(model.get());
        tenant != nullptr && text != nullptr)
      VV_TRY(vivace::sched::admit_text(*tenant, *text, o.tenant->worst_us));
    VV_ASSIGN(auto runtime, capi::TextRuntime::create(std::move(model)));
    *out = new vv_model(std::move(tenant), std::move(runtime));
    return {};
  }, out);
}

vv_status vv_model_get_info(const vv_model* model, vv_model_info* info) {
  return guard("vv_model_get_info", [&]() -> Status {
    VV_NOT_NULL(model);
    const capi::TextRuntime& r = *model->runtime;
    return capi::write_struct(
        {sizeof(vv_model_info), r.family().c_str(), r.report().c_str(), r.bytes(), capi::TextRuntime::port_count()},
        kInfoV1, info);
  }, capi::Filled<vv_model_info>{info, kInfoV1});
}

void vv_model_destroy(vv_model* model) { vivace::capi::destroy(model); }

vv_status vv_model_get_port(const vv_model* model, int port, vv_port_info* info) {
  return guard("vv_model_get_port", [&]() -> Status {
    VV_NOT_NULL(model);
    vv_port_info full{};
    VV_TRY(model->runtime->describe(port, &full));
    return capi::write_struct(full, kPortV1, info);
  }, capi::Filled<vv_port_info>{info, kPortV1});
}

vv_status vv_model_find_port(const vv_model* model, const char* name, int* port) {
  return guard("vv_model_find_port", [&]() -> Status {
    VV_NOT_NULL(model);
    VV_NOT_NULL(name);
    VV_NOT_NULL(port);
    VV_ASSIGN(*port, model->runtime->find(name));
    return {};
  }, port);
}

vv_status vv_model_set_input(vv_model* model, int port, const void* data, size_t bytes) {
  return guard("vv_model_set_input", [&]() -> Status {
    VV_NOT_NULL(model);
    VV_NOT_NULL(data);
    return model->runtime->set_input(port, data, bytes);
  });
}

vv_status vv_model_swap(vv_model* model, int port, void* data, size_t bytes) {
  return guard("vv_model_swap", [&]() -> Status {
    VV_NOT_NULL(model);
    return model->runtime->swap(port, data, bytes);
  });
}

vv_status vv_model_prepare(vv_model* model) {
  return guard("vv_model_prepare", [&]() -> Status {
    VV_NOT_NULL(model);
    return model->runtime->prepare();
  });
}

vv_status vv_model_step(vv_model* model) {
  return guard("vv_model_step", [&]() -> Status {
    VV_NOT_NULL(model);
    if (model->tenant == nullptr) return model->runtime->step();
    model->tenant->want(true);
    const auto began = std::chrono::steady_clock::now();
    Status s = model->runtime->step();
    model->tenant->charge(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count());
    model->tenant->want(false);  // when the next one comes, nobody has said
    return s;
  });
}

vv_status vv_model_sleep(vv_model* model, vv_moved* moved) {
  return guard("vv_model_sleep", [&]() -> Status {
    VV_NOT_NULL(model);
    return capi::move(capi::Move::sleep, model->tenant.get(), model->runtime->model(), moved);
  }, capi::Filled<vv_moved>{moved, capi::kMovedV1});
}

vv_status vv_model_wake(vv_model* model, vv_moved* moved) {
  return guard("vv_model_wake", [&]() -> Status {
    VV_NOT_NULL(model);
    return capi::move(capi::Move::wake, model->tenant.get(), model->runtime->model(), moved);
  }, capi::Filled<vv_moved>{moved, capi::kMovedV1});
}

vv_status vv_model_get_output(vv_model* model, int port, void* data, size_t capacity, size_t* bytes) {
  capi::reset(bytes);  // and no more: where memory is too small it says how much is needed
  return guard("vv_model_get_output", [&]() -> Status {
    VV_NOT_NULL(model);
    VV_NOT_NULL(bytes);
    return model->runtime->get_output(port, data, capacity, bytes);
  });
}

vv_status vv_model_query_extension(const vv_model* model, const char* name, const void** table) {
  return guard("vv_model_query_extension", [&]() -> Status {
    VV_NOT_NULL(model);
    VV_NOT_NULL(name);
    VV_NOT_NULL(table);
    if (std::string(name) != VV_TEXT_EXTENSION)
      return Status(Code::kNotFound, std::string("no extension \"") + name + "\"; this model has " VV_TEXT_EXTENSION);
    *table = &kTextExtension;
    return {};
  }, table);
}

}  // extern "C"
