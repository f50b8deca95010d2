// Policies of the C ABI: vivace/capi/policy.h over engine::PolicyModel.
#include "vivace/capi/policy.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vivace/capi/guard.h"
#include "vivace/capi/sched_handle.h"
#include "vivace/engine/json_text.h"
#include "vivace/models/policies.h"
#include "vivace/models/vla/prompt.h"
#include "vivace/sched/scheduled_policy.h"

using vivace::Code;
using vivace::Status;
using vivace::capi::guard;

namespace engine = vivace::engine;

struct vv_policy : vivace::capi::Tagged<vivace::capi::Kind::policy> {
  std::shared_ptr<vivace::sched::Tenant> tenant;  // outlives the model, whose stream uses its gate
  std::unique_ptr<engine::PolicyModel> model;
  std::string report;
  std::vector<std::vector<engine::Frame>> views;     // of each observation, of the sizes that predict() needs
  std::vector<engine::Observation> observations;
  std::string tokenizer;                             // where its files are
  std::optional<vivace::models::vla::Prompter> prompter;  // once a prompt came as text
  std::vector<std::vector<int32_t>> tokens;          // of prompts that came as text
};

namespace {

namespace capi = vivace::capi;

constexpr size_t kOptionsV1 = offsetof(vv_policy_options, partition), kInfoV1 = sizeof(vv_policy_info),
                 kObservationV1 = offsetof(vv_observation, prompt);
constexpr int kMostCount = 1 << 16;  // of what a caller lists: more is no count

vivace::Result<engine::PolicyOptions> load_options(const vv_policy_options& o) {
  if (o.config == nullptr) return capi::null("options.config");
  if (o.delta_count < 0 || o.delta_count > kMostCount || (o.delta_count > 0 && o.delta == nullptr))
    return Status(Code::kInvalidArgument,
                  vivace::strf("options.delta: NULL, or a count outside [0, %d], got %d", kMostCount, o.delta_count));
  engine::PolicyOptions to;
  to.config = o.config;
  for (const auto& [text, field] : {std::pair{o.device, &to.device},
                                    {o.precision, &to.precision},
                                    {o.resize, &to.resize},
                                    {o.statistics, &to.statistics},
                                    {o.robot, &to.robot},
                                    {o.codec, &to.codec},
                                    {o.expert, &to.expert}})
    if (text != nullptr) *field = text;
  for (int i = 0; i < o.delta_count; ++i) to.delta.push_back(o.delta[i] != 0);
  to.threads = o.threads, to.views = o.views, to.horizon = o.horizon, to.steps = o.steps,
  to.prompt_tokens = o.prompt_tokens, to.partition = o.partition;
  if (o.batch != 0) to.batch = o.batch;
  if (o.act_scale_count < 0 || o.act_scale_count > kMostCount || (o.act_scale_count > 0 && o.act_scales == nullptr))
    return Status(Code::kInvalidArgument, vivace::strf("options.act_scales: NULL, or a count outside [0, %d], got %d",
                                                       kMostCount, o.act_scale_count));
  if (o.act_scales != nullptr) to.act_scales.assign(o.act_scales, o.act_scales + o.act_scale_count);
  return to;
}

/// A list of the caller's: NULL only where it is empty.
template <class T>
Status list(const char* what, const T* data, int64_t count, std::span<const T>* to) {
  if (count < 0 || (count > 0 && data == nullptr))
    return Status(Code::kInvalidArgument, vivace::strf("observation: %s is NULL, or its count %ld is negative", what,
                                                       static_cast<long>(count)));
  *to = {data, static_cast<size_t>(count)};
  return {};
}

/// A prompt's tokens, the tokenizer loaded where none was needed before.
vivace::Result<std::vector<int32_t>> encode(vv_policy* policy, const char* text, std::span<const float> state) {
  if (!policy->prompter) {
    VV_ASSIGN(auto prompter, vivace::models::vla::Prompter::open(policy->tokenizer, policy->model->family()));
    policy->prompter.emplace(std::move(prompter));
  }
  std::vector<float> normal;
  if (!state.empty()) {
    VV_ASSIGN(normal, policy->model->normalized_state(state));
  }
  return policy->prompter->tokens(text, normal);
}

/// Observation `i` of a call, as place `at` of the policy's own.
Status read(vv_policy* policy, const vv_observation* observations, int i, size_t at) {
  const engine::PolicyLimits l = policy->model->limits();
  const size_t size = observations->struct_size;
  vv_observation o{};
  VV_TRY(capi::read_struct(observations, kObservationV1, &o));  // the first one's size is the distance between them
  if (size % alignof(vv_observation) != 0)
    return Status(
        Code::kInvalidArgument,
        vivace::strf("struct_size is %zu, no version has so many bytes: set it to the struct's sizeof", size));
  o = {};
  VV_TRY(capi::read_struct(reinterpret_cast<const vv_observation*>(reinterpret_cast<const char*>(observations) +
                                                                   static_cast<size_t>(i) * size),
                           kObservationV1, &o));
  auto& views = policy->views[at];
  if (o.view_count != l.views || o.views == nullptr)
    return Status(Code::kInvalidArgument, vivace::strf("observation %d: wanted %d views, got %d", i, l.views,
                                                       o.views == nullptr ? 0 : o.view_count));
  for (size_t v = 0; v < views.size(); ++v)
    views[v] = {o.views[v].data, o.views[v].height, o.views[v].width, o.views[v].stride};
  engine::Observation& to = policy->observations[at];
  to = {};
  to.views = views;
  to.seed = o.seed;
  VV_TRY(list("tokens", o.tokens, o.token_count, &to.tokens));
  VV_TRY(list("state", o.state, o.state_count, &to.state));
  VV_TRY(list("noise", o.noise, o.noise == nullptr ? 0 : int64_t{l.horizon} * l.action_dim, &to.noise));
  VV_TRY(list("action_prefix", o.action_prefix, int64_t{o.action_prefix_count} * l.action_dim, &to.action_prefix));
  if (o.tokens != nullptr || o.prompt == nullptr) return {};
  auto encoded = encode(policy, o.prompt, to.state);
  if (!encoded.ok()) return std::move(encoded).status().with_context(vivace::strf("observation %d", i));
  to.tokens = policy->tokens[at] = std::move(encoded).value();
  return {};
}

}  // namespace

extern "C" {

vv_status vv_policy_load(const vv_policy_options* options, vv_policy** out) {
  return guard("vv_policy_load", [&]() -> Status {
    VV_NOT_NULL(out);
    vv_policy_options o{};
    VV_TRY(capi::read_struct(options, kOptionsV1, &o));
    if (o.path == nullptr) return capi::null("options.path");
    VV_ASSIGN(engine::PolicyOptions to, load_options(o));
    if (o.tenant != nullptr) {
      VV_NOT_NULL(o.tenant);
      to.urgent = o.tenant->tenant->urgent(), to.gates = o.tenant->tenant->gates(),
      to.most_bytes = o.tenant->tenant->most_bytes(), to.switches = o.partition != 0 && o.keep_partition == 0;
    }
    VV_ASSIGN(auto model, vivace::models::load_policy(o.path, to));
    if (o.tenant != nullptr) {
      VV_ASSIGN(model, vivace::sched::admit_policy(std::move(model), o.tenant->tenant, o.tenant->worst_us,
                                                   vivace::sched::partition_of(to)));
    }
    const engine::PolicyLimits l = model->limits();
    auto policy = std::make_unique<vv_policy>();
    policy->report = engine::json_object(model->report());
    policy->views.assign(static_cast<size_t>(l.batch), std::vector<engine::Frame>(static_cast<size_t>(l.views)));
    policy->observations.resize(static_cast<size_t>(l.batch));
    if (o.tenant != nullptr) policy->tenant = o.tenant->tenant;
    policy->model = std::move(model);
    policy->tokenizer = o.tokenizer != nullptr ? o.tokenizer : o.path;
    policy->tokens.resize(static_cast<size_t>(l.batch));
    *out = policy.release();
    return {};
  }, out);
}

vv_status vv_policy_get_info(const vv_policy* policy, vv_policy_info* info) {
  return guard("vv_policy_get_info", [&]() -> Status {
    VV_NOT_NULL(policy);
    const engine::PolicyLimits l = policy->model->limits();
    return capi::write_struct({sizeof(vv_policy_info), policy->report.c_str(), l.views, l.horizon, l.steps, l.batch,
                               l.prompt_tokens, l.action_dim, l.robot_dim, l.state_dim},
                              kInfoV1, info);
  }, capi::Filled<vv_policy_info>{info, kInfoV1});
}

void vv_policy_destroy(vv_policy* policy) { vivace::capi::destroy(policy); }

vv_status vv_policy_predict(vv_policy* policy, const vv_observation* observations, int count, float* actions,
                            size_t capacity) {
  return guard("vv_policy_predict", [&]() -> Status {
    VV_NOT_NULL(policy);
    VV_NOT_NULL(observations);
    VV_NOT_NULL(actions);
    const engine::PolicyLimits l = policy->model->limits();
    if (count < 1 || count > l.batch)
      return Status(Code::kInvalidArgument, vivace::strf("count: wanted 1 to %d observations, got %d", l.batch, count));
    const size_t wanted =
        static_cast<size_t>(count) * static_cast<size_t>(l.horizon) * static_cast<size_t>(l.robot_dim);
    if (capacity < wanted)
      return Status(Code::kLimitExceeded,
                    vivace::strf("actions: room for %zu floats, %zu are needed", capacity, wanted));
    for (int i = 0; i < count; ++i) VV_TRY(read(policy, observations, i, static_cast<size_t>(i)));
    return policy->model->predict({policy->observations.data(), static_cast<size_t>(count)}, {actions, wanted});
  });
}

vv_status vv_policy_sleep(vv_policy* policy, vv_moved* moved) {
  return guard("vv_policy_sleep", [&]() -> Status {
    VV_NOT_NULL(policy);
    return capi::move(capi::Move::sleep, policy->tenant.get(), *policy->model, moved);
  }, capi::Filled<vv_moved>{moved, capi::kMovedV1});
}

vv_status vv_policy_wake(vv_policy* policy, vv_moved* moved) {
  return guard("vv_policy_wake", [&]() -> Status {
    VV_NOT_NULL(policy);
    return capi::move(capi::Move::wake, policy->tenant.get(), *policy->model, moved);
  }, capi::Filled<vv_moved>{moved, capi::kMovedV1});
}

vv_status vv_policy_encode_prompt(vv_policy* policy, const char* text, const float* state, int state_count,
                                  int32_t* ids, size_t capacity, size_t* count) {
  return guard("vv_policy_encode_prompt", [&]() -> Status {
    VV_NOT_NULL(policy);
    VV_NOT_NULL(text);
    VV_NOT_NULL(count);
    std::span<const float> values;
    VV_TRY(list("state", state, state_count, &values));
    VV_ASSIGN(const std::vector<int32_t> all, encode(policy, text, values));
    if (ids != nullptr) std::copy_n(all.begin(), std::min(capacity, all.size()), ids);
    *count = all.size();
    return {};
  }, count);
}

vv_status vv_policy_normalized(const vv_policy* policy, int index, float* actions, size_t capacity) {
  return guard("vv_policy_normalized", [&]() -> Status {
    VV_NOT_NULL(policy);
    VV_NOT_NULL(actions);
    VV_ASSIGN(const std::span<const float> own, policy->model->normalized(index));
    if (capacity < own.size())
      return Status(Code::kLimitExceeded,
                    vivace::strf("actions: room for %zu floats, %zu are needed", capacity, own.size()));
    std::copy(own.begin(), own.end(), actions);
    return {};
  });
}

vv_status vv_policy_calibrate(vv_policy* policy, const vv_observation* observations, int observation_count,
                              double percentile, float* scales, size_t capacity, size_t* count) {
  return guard("vv_policy_calibrate", [&]() -> Status {
    VV_NOT_NULL(policy);
    VV_NOT_NULL(observations);
    VV_NOT_NULL(count);
    if (observation_count < 1 || observation_count > kMostCount)
      return Status(Code::kInvalidArgument,
                    vivace::strf("observation_count: wanted 1 to %d, got %d", kMostCount, observation_count));
    // Views, tokens and observations of all of them at once, where the policy keeps a call's.
    const auto n = static_cast<size_t>(observation_count);
    policy->views.resize(std::max(policy->views.size(), n), std::vector<engine::Frame>(policy->views[0].size()));
    policy->tokens.resize(std::max(policy->tokens.size(), n));
    policy->observations.resize(std::max(policy->observations.size(), n));
    for (int i = 0; i < observation_count; ++i) VV_TRY(read(policy, observations, i, static_cast<size_t>(i)));
    VV_ASSIGN(const std::vector<float> all, policy->model->calibrate({policy->observations.data(), n}, percentile));
    if (scales != nullptr) std::copy_n(all.begin(), std::min(capacity, all.size()), scales);
    *count = all.size();
    return {};
  }, count);
}

vv_status vv_policy_set_act_scales(vv_policy* policy, const float* scales, int count) {
  return guard("vv_policy_set_act_scales", [&]() -> Status {
    VV_NOT_NULL(policy);
    if (scales == nullptr || count < 0)
      return Status(Code::kInvalidArgument, vivace::strf("scales: NULL or a negative count, got %d", count));
    return policy->model->set_act_scales({scales, static_cast<size_t>(count)});
  });
}

}  // extern "C"
