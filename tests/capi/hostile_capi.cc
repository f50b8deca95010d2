// The C ABI under hostile hands: NULL everywhere, handles of another kind, every struct_size, sizes up to SIZE_MAX,
// callbacks that throw anything, requests nobody gave, any order of destroy. Usage: vivace_hostile_c SOURCES, the
// repository's root. A failed call is an error code with a text that names it, and its out parameters are NULL or 0. It
// runs in ctest and, with AddressSanitizer and UBSan, beside the fuzzers.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/capi/check.h"
#include "vivace/capi/control.h"
#include "vivace/capi/model.h"
#include "vivace/capi/policy.h"
#include "vivace/capi/sched.h"
#include "vivace/capi/speech.h"
#include "vivace/capi/text.h"

namespace {

namespace fs = std::filesystem;

fs::path root;
std::set<std::string> refused;  // calls that were seen to fail
std::mt19937 rng(22);

template <class T>
concept Struct = requires(T t) { t.struct_size; };

/// What a call must clear, poisoned.
template <class T>
struct Out {
  T value;
  Out() { poison(); }
  void poison() {
    std::memset(static_cast<void*>(&value), 0xa5, sizeof value);
    if constexpr (Struct<T>) value.struct_size = sizeof(T);
  }
  bool clear() const {
    const size_t from = [] { if constexpr (Struct<T>) return sizeof(size_t); else return size_t{0}; }();
    for (size_t i = from; i < sizeof value; ++i)
      if (reinterpret_cast<const unsigned char*>(&value)[i] != 0) return false;
    return true;
  }
};

template <class... T>
void fails_at(int line, const char* name, vv_status status, const Out<T>&... outs) {
  refused.insert(name);
  const std::string said = vv_last_error();
  if (status != VV_OK && status < VV_INTERNAL && said.rfind(name, 0) == 0 && (outs.clear() && ...)) return;
  std::printf("%d: %s: status %d, \"%s\", out parameters %s\n", line, name, status, said.c_str(),
              (outs.clear() && ...) ? "clear" : "as they were");
  ++failures;
}
/// The call fails, says so, and clears its outs.
#define FAILS(fn, arguments, ...) fails_at(__LINE__, #fn, fn arguments __VA_OPT__(, ) __VA_ARGS__)

/// One of each handle, alive.
struct World {
  vv_backend* backend = nullptr;
  vv_stream* stream = nullptr;
  vv_event* event = nullptr;
  vv_buffer* buffer = nullptr;
  vv_graph* graph = nullptr;
  vv_plan* plan = nullptr;
  vv_model* model = nullptr;
  vv_policy* policy = nullptr;
  vv_runner* runner = nullptr;
  vv_tokenizer* tokenizer = nullptr;
  vv_scheduler* scheduler = nullptr;
  vv_tenant* tenant = nullptr;

  static vv_status nothing(vv_stream*, void*) { return VV_OK; }
  static vv_runner_options runner_options(const char* join) {
    vv_runner_options o{};
    o.struct_size = sizeof o, o.horizon = 6, o.dims = 2, o.network_dims = 3, o.join = join;
    return o;
  }
  static vv_qos qos() {
    vv_qos q{};
    q.struct_size = sizeof q, q.qos_class = VV_BURSTABLE;
    return q;
  }
  vv_policy_options policy_options(const std::string& path) const {
    vv_policy_options o{};
    o.struct_size = sizeof o, o.path = path.c_str(), o.config = "pi05", o.device = "cpu", o.precision = "f32",
    o.statistics = "none";
    o.threads = o.views = 1, o.horizon = 4, o.steps = 1;
    return o;
  }

  void make() {
    vv_backend_options b{};
    b.struct_size = sizeof b, b.kind = "cpu", b.threads = 2;
    EXPECT_OK(vv_backend_create(&b, &backend));
    EXPECT_OK(vv_stream_create(backend, 0, &stream));
    EXPECT_OK(vv_event_create(backend, &event));
    EXPECT_OK(vv_buffer_create(backend, "b", 256, &buffer));
    EXPECT_OK(vv_graph_create("g", 4, &graph));
    EXPECT_OK(vv_graph_capture(graph, 7, stream, nothing, nullptr));
    EXPECT_OK(vv_plan_create(backend, "p", &plan));
    const vv_runner_options r = runner_options("prefix");
    EXPECT_OK(vv_runner_create(&r, &runner));
    vv_model_options m{};
    const std::string path = root / "tests/fixtures/tiny_gguf/llama_q4_1.gguf",
                      policies = root / "tests/fixtures/vla/pi05_tiny",
                      pieces = root / "tests/fixtures/pieces/llama.model";
    m.struct_size = sizeof m, m.path = path.c_str(), m.device = "cpu", m.threads = 1, m.max_batch = 2, m.context = 64;
    EXPECT_OK(vv_model_load(&m, &model));
    vv_policy_options p = policy_options(policies);
    EXPECT_OK(vv_policy_load(&p, &policy));
    EXPECT_OK(vv_tokenizer_load(pieces.c_str(), &tokenizer));
    vv_scheduler_options s{};
    s.struct_size = sizeof s, s.device = "cpu";
    EXPECT_OK(vv_scheduler_open(&s, &scheduler));
    const vv_qos q = qos();
    EXPECT_OK(vv_scheduler_join(scheduler, "nobody", &q, 0, &tenant));
    // A handle that is no tenant where one is asked for.
    m.tenant = p.tenant = reinterpret_cast<vv_tenant*>(backend);
    vv_model* none = nullptr;
    EXPECT_ERROR(vv_model_load(&m, &none), VV_INVALID_ARGUMENT, "another kind");
    vv_policy* nobody = nullptr;
    EXPECT_ERROR(vv_policy_load(&p, &nobody), VV_INVALID_ARGUMENT, "another kind");
  }
  void destroy() {
    std::vector<std::function<void()>> all = {
        [&] { vv_backend_destroy(backend); },     [&] { vv_stream_destroy(stream); },
        [&] { vv_event_destroy(event); },         [&] { vv_buffer_destroy(buffer); },
        [&] { vv_graph_destroy(graph); },         [&] { vv_plan_destroy(plan); },
        [&] { vv_model_destroy(model); },         [&] { vv_policy_destroy(policy); },
        [&] { vv_runner_destroy(runner); },       [&] { vv_tokenizer_destroy(tokenizer); },
        [&] { vv_scheduler_destroy(scheduler); }, [&] { vv_tenant_destroy(tenant); }};
    std::shuffle(all.begin(), all.end(), rng);
    for (const auto& f : all) f();
  }
};

/// Every call with `w`'s handles, of which some or all are NULL or of another kind, and no other argument.
void test_handles(const World& w) {
  Out<vv_backend*> backend;
  Out<vv_buffer*> buffer;
  Out<vv_buffer_info> buffer_info;
  Out<vv_stream*> stream;
  Out<vv_event*> event;
  Out<void*> cu;
  Out<vv_graph*> graph;
  Out<vv_graph_info> graph_info;
  Out<vv_plan*> plan;
  Out<vv_shape_key> key;
  Out<size_t> count;
  Out<int> number;
  Out<int32_t> id;
  Out<vv_runner*> runner;
  Out<vv_tick> tick;
  Out<vv_chunk_request> request;
  Out<vv_model*> model;
  Out<vv_model_info> model_info;
  Out<vv_port_info> port;
  Out<const void*> table;
  Out<vv_policy*> policy;
  Out<vv_policy_info> policy_info;
  Out<vv_tokenizer*> tokenizer;
  Out<vv_scheduler*> scheduler;
  Out<vv_tenant*> tenant;
  Out<vv_moved> moved;
  Out<vv_speech*> speech;
  Out<vv_transcript*> transcript;
  Out<vv_transcript_info> transcript_info;
  Out<vv_word_info> word_info;
  Out<vv_segment_info> segment_info;
  float numbers[64] = {};
  vv_chunk_request given{};
  FAILS(vv_backend_create, (nullptr, &backend.value), backend);
  FAILS(vv_buffer_create, (w.backend, nullptr, SIZE_MAX, &buffer.value), buffer);
  FAILS(vv_buffer_wrap, (nullptr, nullptr, 8, VV_HOST, nullptr, nullptr, &buffer.value), buffer);
  FAILS(vv_buffer_get_info, (w.buffer, &buffer_info.value), buffer_info);
  FAILS(vv_stream_create, (w.backend, 99, &stream.value), stream);
  FAILS(vv_stream_wrap_cuda, (w.backend, nullptr, &stream.value), stream);
  FAILS(vv_stream_get_cuda, (w.stream, &cu.value), cu);
  FAILS(vv_stream_launch, (w.stream, nullptr));
  FAILS(vv_stream_copy, (w.stream, numbers, nullptr, 8));
  FAILS(vv_stream_record, (w.stream, w.event));
  FAILS(vv_stream_wait, (w.stream, w.event));
  FAILS(vv_stream_synchronize, (w.stream));
  FAILS(vv_event_create, (w.backend, &event.value), event);
  FAILS(vv_event_synchronize, (w.event));
  FAILS(vv_graph_create, (nullptr, 1, &graph.value), graph);
  FAILS(vv_graph_capture, (w.graph, 1, w.stream, nullptr, nullptr));
  FAILS(vv_graph_adopt_cuda, (w.graph, 1, w.stream, nullptr, 0));
  FAILS(vv_graph_replay, (w.graph, 1, w.stream));
  FAILS(vv_graph_pin, (w.graph, 1));
  FAILS(vv_graph_unpin, (w.graph, 1));
  FAILS(vv_graph_evict, (w.graph, 1));
  FAILS(vv_graph_evict_lru, (w.graph, &key.value), key);
  FAILS(vv_graph_get_keys, (w.graph, nullptr, 8, &count.value), count);
  FAILS(vv_graph_get_info, (w.graph, &graph_info.value), graph_info);
  FAILS(vv_plan_create, (w.backend, nullptr, &plan.value), plan);
  FAILS(vv_plan_add, (w.plan, w.graph, 1, w.stream, &number.value), number);
  FAILS(vv_plan_edge, (w.plan, 0, 1));
  FAILS(vv_plan_freeze, (w.plan));
  FAILS(vv_plan_run, (w.plan));
  FAILS(vv_plan_synchronize, (w.plan));
  FAILS(vv_runner_create, (nullptr, &runner.value), runner);
  FAILS(vv_runner_start, (w.runner, nullptr, 0));
  FAILS(vv_runner_next, (w.runner, 0, numbers, &tick.value), tick);
  FAILS(vv_runner_start_request, (w.runner, 0, &request.value, nullptr), request);
  FAILS(vv_runner_complete, (w.runner, &given, numbers, numbers));
  FAILS(vv_runner_cancel, (w.runner, &given));
  FAILS(vv_model_load, (nullptr, &model.value), model);
  FAILS(vv_model_get_info, (w.model, &model_info.value), model_info);
  FAILS(vv_model_get_port, (w.model, -1, &port.value), port);
  FAILS(vv_model_find_port, (w.model, "none", &number.value), number);
  FAILS(vv_model_set_input, (w.model, 0, nullptr, 4));
  FAILS(vv_model_swap, (w.model, 0, numbers, 4));
  FAILS(vv_model_prepare, (w.model));
  FAILS(vv_model_step, (w.model));
  FAILS(vv_model_get_output, (w.model, -1, numbers, 4, &count.value), count);
  FAILS(vv_model_query_extension, (w.model, "none", &table.value), table);
  FAILS(vv_policy_load, (nullptr, &policy.value), policy);
  FAILS(vv_policy_get_info, (w.policy, &policy_info.value), policy_info);
  FAILS(vv_policy_predict, (w.policy, nullptr, 1, numbers, 64));
  FAILS(vv_policy_encode_prompt, (w.policy, nullptr, nullptr, 0, nullptr, 0, &count.value), count);
  FAILS(vv_policy_normalized, (w.policy, -1, numbers, 64));
  FAILS(vv_policy_calibrate, (w.policy, nullptr, 1, 99, numbers, 64, &count.value), count);
  FAILS(vv_policy_set_act_scales, (w.policy, nullptr, 1));
  FAILS(vv_tokenizer_load, (nullptr, &tokenizer.value), tokenizer);
  FAILS(vv_speech_load, (nullptr, &speech.value), speech);
  FAILS(vv_speech_calibrate, (nullptr, numbers, 4, 99, numbers, 4, &count.value), count);
  FAILS(vv_speech_transcribe, (nullptr, numbers, 4, nullptr, &transcript.value), transcript);
  FAILS(vv_speech_transcribe_file, (nullptr, numbers, 4, nullptr, &transcript.value), transcript);
  FAILS(vv_transcript_get_info, (nullptr, &transcript_info.value), transcript_info);
  FAILS(vv_transcript_get_segment, (nullptr, 0, &segment_info.value), segment_info);
  FAILS(vv_transcript_get_word, (nullptr, 0, 0, &word_info.value), word_info);
  FAILS(vv_tokenizer_encode, (w.tokenizer, nullptr, 4, 0, nullptr, 0, &count.value), count);
  FAILS(vv_tokenizer_decode, (w.tokenizer, nullptr, 4, nullptr, 0, &count.value), count);
  FAILS(vv_tokenizer_find, (w.tokenizer, "no such token", &id.value), id);
  const vv_qos qos = World::qos();
  FAILS(vv_scheduler_open, (nullptr, &scheduler.value), scheduler);
  FAILS(vv_scheduler_join, (w.scheduler, "a", &qos, 0, &tenant.value), tenant);
  FAILS(vv_scheduler_evaluate, (w.scheduler, "a", &qos, 1, 1, &number.value, nullptr, 0), number);
  FAILS(vv_scheduler_stats, (w.scheduler, nullptr, 0, &count.value), count);
  FAILS(vv_model_sleep, (w.model, &moved.value), moved);
  FAILS(vv_model_wake, (w.model, &moved.value), moved);
  FAILS(vv_policy_sleep, (w.policy, &moved.value), moved);
  FAILS(vv_policy_wake, (w.policy, &moved.value), moved);
  FAILS(vv_tenant_set, (w.tenant, &qos));
  FAILS(vv_tenant_expect_in, (w.tenant, 1));
  FAILS(vv_tenant_pause, (w.tenant, 1));
  EXPECT(vv_backend_name(w.backend) == nullptr && vv_backend_priority_levels(w.backend) == 0 &&
         vv_graph_has(w.graph, 7) == 0 && vv_runner_needs_inference(w.runner, 0) == 0);
}

/// Handles that are all there, and out parameters that are not, or values that no call takes.
void test_outs_and_values(const World& w) {
  const std::string sentencepiece = root / "tests/fixtures/pieces/llama.model";
  vv_backend_options b{};
  b.struct_size = sizeof b, b.kind = "cpu";
  float memory[64] = {};
  FAILS(vv_backend_create, (&b, nullptr));
  FAILS(vv_buffer_create, (w.backend, "b", 8, nullptr));
  FAILS(vv_buffer_wrap, ("b", memory, 8, VV_HOST, nullptr, nullptr, nullptr));
  FAILS(vv_buffer_get_info, (w.buffer, nullptr));
  FAILS(vv_stream_create, (w.backend, 0, nullptr));
  FAILS(vv_event_create, (w.backend, nullptr));
  FAILS(vv_graph_create, ("g", 1, nullptr));
  FAILS(vv_graph_get_keys, (w.graph, nullptr, 0, nullptr));
  FAILS(vv_plan_create, (w.backend, "p", nullptr));
  FAILS(vv_plan_add, (w.plan, w.graph, 7, w.stream, nullptr));
  FAILS(vv_model_find_port, (w.model, "token", nullptr));
  FAILS(vv_model_get_output, (w.model, 12, nullptr, 0, nullptr));
  FAILS(vv_model_query_extension, (w.model, VV_TEXT_EXTENSION, nullptr));
  FAILS(vv_tokenizer_load, (sentencepiece.c_str(), nullptr));
  FAILS(vv_tokenizer_encode, (w.tokenizer, "a", 1, 0, nullptr, 0, nullptr));
  FAILS(vv_tokenizer_find, (w.tokenizer, "a", nullptr));
  FAILS(vv_policy_encode_prompt, (w.policy, "go", nullptr, 0, nullptr, 0, nullptr));

  // Sizes that no memory has.
  Out<vv_buffer*> buffer;
  Out<size_t> count;
  for (const size_t huge : {SIZE_MAX, SIZE_MAX - 8, SIZE_MAX / 2 + 1, SIZE_MAX / 4 + 2}) {
    FAILS(vv_stream_copy, (w.stream, memory, memory + 8, huge));
    FAILS(vv_stream_copy, (w.stream, memory + 8, memory, huge));
    FAILS(vv_buffer_create, (w.backend, "b", huge, &buffer.value), buffer);
    if (huge > PTRDIFF_MAX)
      FAILS(vv_buffer_wrap, ("b", memory, huge, VV_HOST, nullptr, nullptr, &buffer.value), buffer);
    if (huge > PTRDIFF_MAX) FAILS(vv_tokenizer_encode, (w.tokenizer, "a", huge, 0, nullptr, 0, &count.value), count);
    FAILS(vv_tokenizer_decode, (w.tokenizer, reinterpret_cast<const int32_t*>(memory), huge, nullptr, 0, &count.value),
          count);
    FAILS(vv_model_set_input, (w.model, 0, memory, huge));
    FAILS(vv_model_swap, (w.model, 15, memory, huge));
    vv_launch launch{};
    launch.struct_size = sizeof launch, launch.host = [](const void*) {}, launch.args = memory,
    launch.args_bytes = huge;
    FAILS(vv_stream_launch, (w.stream, &launch));
    size_t keys = 0;
    vv_shape_key key = 0;
    EXPECT_OK(vv_graph_get_keys(w.graph, &key, huge, &keys));
    EXPECT(keys == 1 && key == 7);
    int32_t ids[8];
    EXPECT_OK(vv_tokenizer_encode(w.tokenizer, "a", 1, 0, ids, huge, &keys));
    Out<vv_graph*> graph;
    EXPECT_OK(vv_graph_create("large", huge, &graph.value));
    vv_graph_destroy(graph.value);
  }
  vv_policy_options p = w.policy_options(root / "tests/fixtures/vla/pi05_tiny");
  const unsigned char delta[1] = {1};
  Out<vv_policy*> policy;
  for (const int n : {INT32_MAX, INT32_MIN, -1, 1 << 20}) {
    vv_policy_options o = p;
    const std::string path = root / "tests/fixtures/vla/pi05_tiny";
    o.path = path.c_str();
    o.delta = delta, o.delta_count = n;
    FAILS(vv_policy_load, (&o, &policy.value), policy);
    o.delta_count = 0, o.act_scales = memory, o.act_scale_count = n;
    FAILS(vv_policy_load, (&o, &policy.value), policy);
    vv_observation seen{};
    seen.struct_size = sizeof seen;
    FAILS(vv_policy_predict, (w.policy, &seen, n, memory, SIZE_MAX));
    FAILS(vv_policy_calibrate, (w.policy, &seen, n, 99, memory, 64, &count.value), count);
    FAILS(vv_policy_normalized, (w.policy, n, memory, SIZE_MAX));
    FAILS(vv_policy_encode_prompt, (w.policy, "go", nullptr, n, nullptr, 0, &count.value), count);
    vv_frame off{};
    const int32_t token = 2;
    seen.views = &off, seen.view_count = n;
    FAILS(vv_policy_predict, (w.policy, &seen, 1, memory, SIZE_MAX));
    const unsigned char pixel[3] = {};
    off = {pixel, 1, 1, 3};
    seen.view_count = 1, seen.tokens = &token, seen.token_count = n;
    FAILS(vv_policy_predict, (w.policy, &seen, 1, memory, SIZE_MAX));
    seen.token_count = 1, seen.state = memory, seen.state_count = n;
    FAILS(vv_policy_predict, (w.policy, &seen, 1, memory, SIZE_MAX));
    seen.state_count = 0, seen.action_prefix = memory, seen.action_prefix_count = n;
    FAILS(vv_policy_predict, (w.policy, &seen, 1, memory, SIZE_MAX));
    seen.action_prefix_count = 0;
    for (int64_t* side : {&off.height, &off.width, &off.stride}) {
      const int64_t was = *side;
      for (const int64_t wrong : {INT64_MIN, INT64_MAX, int64_t{-1}, int64_t{n}, int64_t{0}}) {
        if (side == &off.stride && wrong >= 3) continue;  // one row: its stride is not used
        *side = wrong;
        FAILS(vv_policy_predict, (w.policy, &seen, 1, memory, SIZE_MAX));
      }
      *side = was;
    }
  }
  // Whatever number a port, a level or a place is.
  for (const int n : {-1, 16, INT32_MAX, INT32_MIN}) {
    Out<vv_port_info> port;
    Out<vv_stream*> stream;
    FAILS(vv_model_get_port, (w.model, n, &port.value), port);
    FAILS(vv_model_set_input, (w.model, n, memory, 4));
    FAILS(vv_model_swap, (w.model, n, memory, 4));
    FAILS(vv_model_get_output, (w.model, n, memory, 4, &count.value), count);
    FAILS(vv_stream_create, (w.backend, n, &stream.value), stream);
    FAILS(vv_buffer_wrap, ("b", memory, 8, n, nullptr, nullptr, &buffer.value), buffer);
    FAILS(vv_plan_edge, (w.plan, n, n));
  }
  FAILS(vv_model_step, (w.model));
  for (const float value : {NAN, INFINITY, -1.0f}) {
    const float both[2] = {value, value};
    EXPECT_OK(vv_model_set_input(w.model, 4, both, sizeof both));
    FAILS(vv_model_prepare, (w.model));
  }
  const float greedy[2] = {0, 0};
  EXPECT_OK(vv_model_set_input(w.model, 4, greedy, sizeof greedy));
  EXPECT_OK(vv_model_prepare(w.model));
}

/// A struct that ends with its block of memory, of every size: too small, of this version, of a later one, of none.
template <class T, class Call>
void every_size(Call&& call) {
  int taken = 0;
  for (size_t size = 0; size <= sizeof(T) + 64; ++size) {
    std::vector<unsigned char> block(std::max(size, sizeof(size_t)), 0);
    std::memcpy(block.data(), &size, sizeof size);
    taken += call(reinterpret_cast<T*>(block.data())) == VV_OK;
    EXPECT(std::memcmp(block.data(), &size, sizeof size) == 0);
  }
  EXPECT(taken > 0 && taken <= 64 + static_cast<int>(sizeof(T)));
  size_t none[512] = {};
  for (const size_t size : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 32}) {
    none[0] = size;
    EXPECT(call(reinterpret_cast<T*>(none)) == VV_INVALID_ARGUMENT);
  }
}

void test_struct_sizes(const World& w) {
  every_size<vv_buffer_info>([&](auto* s) { return vv_buffer_get_info(w.buffer, s); });
  every_size<vv_graph_info>([&](auto* s) { return vv_graph_get_info(w.graph, s); });
  every_size<vv_model_info>([&](auto* s) { return vv_model_get_info(w.model, s); });
  every_size<vv_port_info>([&](auto* s) { return vv_model_get_port(w.model, 3, s); });
  every_size<vv_policy_info>([&](auto* s) { return vv_policy_get_info(w.policy, s); });
  float position[2] = {}, action[2];
  EXPECT_OK(vv_runner_start(w.runner, position, 0));
  every_size<vv_tick>([&](auto* s) { return vv_runner_next(w.runner, 0, action, s); });
  every_size<vv_launch>([&](vv_launch* s) {
    if (s->struct_size >= sizeof *s && s->struct_size < 4096) s->host = [](const void*) {};
    return vv_stream_launch(w.stream, s);
  });
  every_size<vv_runner_options>([&](vv_runner_options* s) {
    if (s->struct_size >= sizeof *s && s->struct_size < 4096) s->dims = 2;
    vv_runner* made = nullptr;
    const vv_status status = vv_runner_create(s, &made);
    vv_runner_destroy(made);
    return status;
  });
  every_size<vv_qos>([&](vv_qos* s) {
    if (s->struct_size >= sizeof *s && s->struct_size < 4096) s->qos_class = VV_BURSTABLE;
    int admitted = 0;
    return vv_scheduler_evaluate(w.scheduler, "a", s, 100, 100, &admitted, nullptr, 0);
  });
  every_size<vv_backend_options>([&](vv_backend_options* s) {
    if (s->struct_size >= sizeof *s && s->struct_size < 4096) s->kind = "cpu", s->threads = 1;
    vv_backend* made = nullptr;
    const vv_status status = vv_backend_create(s, &made);
    vv_backend_destroy(made);
    return status;
  });
  // Structs in a row: the first one's size is the distance between them.
  vv_observation two[2] = {};
  float actions[1];
  for (const size_t size :
       {size_t{0}, size_t{8}, sizeof *two - 1, sizeof *two + 1, sizeof *two + 4, SIZE_MAX, SIZE_MAX - 7}) {
    two[0].struct_size = size;
    Out<size_t> count;
    FAILS(vv_policy_calibrate, (w.policy, two, 2, 99, actions, 1, &count.value), count);
  }
}

// ---- callbacks ----

enum class Throws { number, text, error, memory, literal };
struct Thrower {
  Throws what;
};

[[noreturn]] void throw_one(Throws what) {
  switch (what) {
    case Throws::number: throw 42;
    case Throws::text: throw std::string("planted");
    case Throws::error: throw std::runtime_error("planted");
    case Throws::memory: throw std::bad_alloc();
    case Throws::literal: break;
  }
  throw "planted";
}

void host_throws(const void* args) { throw_one(*static_cast<const Throws*>(args)); }
vv_status capture_throws(vv_stream*, void* context) { throw_one(*static_cast<Throws*>(context)); }
void deleter_throws(void*, size_t, void* context) {
  ++*static_cast<int*>(context);
  throw 42;
}

vv_launch launch_of(const Throws* what) {
  vv_launch l{};
  l.struct_size = sizeof l, l.op = "throws", l.host = host_throws, l.args = what, l.args_bytes = sizeof *what;
  return l;
}

vv_status capture_launch(vv_stream* stream, void* context) {
  const vv_launch l = launch_of(static_cast<const Throws*>(context));
  return vv_stream_launch(stream, &l);
}

void test_callbacks(const World& w) {
  for (const Throws what : {Throws::number, Throws::text, Throws::error, Throws::memory, Throws::literal}) {
    Throws thrown = what;
    const vv_status wanted = what == Throws::memory ? VV_OUT_OF_MEMORY : VV_INTERNAL;
    EXPECT(vv_graph_capture(w.graph, 8, w.stream, capture_throws, &thrown) == wanted);
    EXPECT(vv_graph_has(w.graph, 8) == 0);
    EXPECT_OK(vv_stream_synchronize(w.stream));  // it does not capture any more
    const vv_launch l = launch_of(&thrown);
    EXPECT(vv_stream_launch(w.stream, &l) == wanted);
    EXPECT_OK(vv_graph_capture(w.graph, 9, w.stream, capture_launch, &thrown));
    EXPECT(vv_graph_replay(w.graph, 9, w.stream) == wanted);
    vv_plan* plan = nullptr;
    int step = -1;
    EXPECT_OK(vv_plan_create(w.backend, "throws", &plan));
    EXPECT_OK(vv_plan_add(plan, w.graph, 9, w.stream, &step));
    EXPECT_OK(vv_plan_freeze(plan));
    EXPECT(vv_plan_run(plan) == wanted);
    EXPECT_OK(vv_plan_synchronize(plan));
    vv_plan_destroy(plan);
    EXPECT_OK(vv_graph_evict(w.graph, 9));
    EXPECT_OK(vv_graph_replay(w.graph, 7, w.stream));
  }
  int called = 0;
  float memory[4];
  vv_buffer* buffer = nullptr;
  EXPECT_OK(vv_buffer_wrap("theirs", memory, sizeof memory, VV_HOST, deleter_throws, &called, &buffer));
  vv_buffer_destroy(buffer);
  EXPECT(called == 1);
  EXPECT(vv_buffer_wrap("theirs", memory, 0, VV_HOST, deleter_throws, &called, &buffer) != VV_OK && called == 1);
  Throws ended = Throws::number;  // a callback that captures again, and one that uses what captures
  EXPECT(vv_graph_capture(
             w.graph, 8, w.stream, [](vv_stream* s, void*) { return vv_stream_synchronize(s); }, &ended) ==
         VV_FAILED_PRECONDITION);
  EXPECT_OK(vv_stream_synchronize(w.stream));
}

// ---- runners ----

void test_requests_nobody_gave() {
  const vv_runner_options o = World::runner_options("swap");
  vv_runner *one = nullptr, *other = nullptr;
  float position[2] = {}, action[2], chunk[12];
  for (int i = 0; i < 12; ++i) chunk[i] = 100.0f + static_cast<float>(i / 2);
  EXPECT_OK(vv_runner_create(&o, &one));
  EXPECT_OK(vv_runner_create(&o, &other));
  EXPECT_OK(vv_runner_start(one, position, 0));
  EXPECT_OK(vv_runner_start(other, position, 0));
  vv_chunk_request mine{}, theirs{};
  vv_tick tick{};
  tick.struct_size = sizeof tick;
  for (int i = 0; i < 3; ++i) EXPECT_OK(vv_runner_next(other, 0, action, &tick));
  EXPECT_OK(vv_runner_start_request(one, 0, &mine, nullptr));
  EXPECT_OK(vv_runner_start_request(other, 0, &theirs, nullptr));
  EXPECT_ERROR(vv_runner_complete(one, &theirs, chunk, nullptr), VV_INVALID_ARGUMENT, "this runner's");
  EXPECT_ERROR(vv_runner_cancel(one, &theirs), VV_INVALID_ARGUMENT, "this runner's");
  for (const int64_t id :
       {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX, mine.id + 1, mine.id - 1, mine.id + (int64_t{1} << 40)}) {
    vv_chunk_request forged = mine;
    forged.id = id;
    EXPECT(vv_runner_complete(one, &forged, chunk, nullptr) == VV_INVALID_ARGUMENT &&
           vv_runner_cancel(one, &forged) == VV_INVALID_ARGUMENT);
  }
  EXPECT(vv_runner_needs_inference(one, 0) == 0);  // the question is open still
  // What a question's times are, the runner knows itself.
  vv_chunk_request forged = mine;
  forged.tick = -4, forged.observed = 1e9, forged.prefix_length = INT32_MAX;
  EXPECT_OK(vv_runner_complete(one, &forged, chunk, nullptr));
  EXPECT_OK(vv_runner_next(one, 0.5, action, &tick));
  EXPECT(tick.source == VV_TICK_CHUNK && tick.chunk_index == 0 && tick.age == 0.5 && action[0] == 100.0f);
  EXPECT_OK(vv_runner_next(one, 1.5, action, &tick));
  EXPECT(tick.source == VV_TICK_HOLD);  // stale by its own time
  vv_runner_destroy(one);
  vv_runner_destroy(other);

  vv_runner* made = nullptr;
  const float step[2] = {1, 1};
  for (int vv_runner_options::* field :
       {&vv_runner_options::horizon, &vv_runner_options::dims, &vv_runner_options::network_dims,
        &vv_runner_options::blend, &vv_runner_options::ask_after})
    for (const int n : {INT32_MAX, INT32_MIN, -1, 65537}) {
      vv_runner_options wrong = o;
      wrong.*field = n, wrong.max_step = step;
      EXPECT(vv_runner_create(&wrong, &made) == VV_INVALID_ARGUMENT && made == nullptr);
    }
  vv_runner_options large = o;
  large.horizon = large.dims = 65536;
  EXPECT_ERROR(vv_runner_create(&large, &made), VV_INVALID_ARGUMENT, "horizon x dims");
  for (double vv_runner_options::* field :
       {&vv_runner_options::max_action_age, &vv_runner_options::watchdog, &vv_runner_options::deadline})
    for (const double n : {-1.0, -HUGE_VAL, std::nan("")}) {
      vv_runner_options wrong = o;
      wrong.*field = n;
      EXPECT(vv_runner_create(&wrong, &made) == VV_INVALID_ARGUMENT && made == nullptr);
    }
}

/// Whatever calls come, with whatever is in their requests: actions are finite and no step is beyond the bound.
void test_random_runners() {
  const float bound[2] = {0.5f, 3e38f};
  const auto number = [] { return std::uniform_real_distribution<double>(-2, 2)(rng); };
  for (int round = 0; round < 60; ++round) {
    vv_runner_options o = World::runner_options(round % 3 == 0 ? "prefix" : round % 3 == 1 ? "blend" : "swap");
    o.max_step = bound;
    vv_runner* r = nullptr;
    EXPECT_OK(vv_runner_create(&o, &r));
    float last[2] = {}, action[2], action_prefix[15], chunk[12], own[18];
    std::vector<vv_chunk_request> asked(1);
    double now = 0;
    EXPECT_OK(vv_runner_start(r, last, now));
    for (int i = 0; i < 300; ++i) {
      const auto what = rng() % 8;
      vv_chunk_request q = asked[rng() % asked.size()];
      now += 0.02 * (number() + 2);
      if (rng() % 4 == 0)
        q.tick = static_cast<int64_t>(rng()) - INT32_MAX, q.observed = number() * 1e300,
        q.prefix_length = static_cast<int>(rng());
      if (rng() % 16 == 0) q.id += static_cast<int64_t>(rng() % 64) - 32;
      if (what < 3) {
        for (float& a : chunk) a = static_cast<float>(number()) * (rng() % 8 == 0 ? 1.7e38f : 1.0f);
        for (float& a : own) a = static_cast<float>(number());
        if (rng() % 8 == 0) chunk[rng() % 12] = rng() % 2 ? NAN : -INFINITY;
        static_cast<void>(vv_runner_complete(r, &q, chunk, own));
      } else if (what == 3) {
        static_cast<void>(vv_runner_cancel(r, &q));
      } else if (what == 4 && rng() % 8 == 0) {
        last[0] = static_cast<float>(number()), last[1] = static_cast<float>(number()) * 1.7e38f;
        EXPECT_OK(vv_runner_start(r, last, now));
      } else if (what == 5 || vv_runner_needs_inference(r, now)) {
        vv_chunk_request fresh{};
        EXPECT_OK(vv_runner_start_request(r, now, &fresh, action_prefix));
        for (int k = 0; k < fresh.prefix_length * 3; ++k) EXPECT(std::isfinite(action_prefix[k]));
        asked.push_back(fresh);
      } else {
        vv_tick tick{};
        tick.struct_size = sizeof tick;
        EXPECT_OK(vv_runner_next(r, now, action, &tick));
        for (int d = 0; d < 2; ++d) EXPECT(std::isfinite(action[d]) && std::fabs(action[d] - last[d]) <= bound[d]);
        EXPECT(tick.chunk_index >= -1 && tick.chunk_index < 6 && (tick.chunk_index < 0 || tick.age <= 1.0));
        std::memcpy(last, action, sizeof last);
      }
    }
    vv_runner_destroy(r);
  }
}

// ---- policies ----

/// A folder with a policy's weights and these statistics; its name is one that JSON must escape.
fs::path with_statistics(const std::string& name, const std::string& high) {
  const fs::path folder = fs::temp_directory_path() / ("vivace_hostile_" + std::to_string(getpid())) / name;
  fs::create_directories(folder);
  for (const auto& entry : fs::directory_iterator(root / "tests/fixtures/vla/pi05_tiny"))
    if (entry.path().filename().string().rfind("model", 0) == 0 || entry.path().filename() == "config.json")
      fs::copy(entry.path(), folder / entry.path().filename());
  const std::string one = R"({"mean": [0, 0], "std": [1, )" + high + R"(], "q01": [-1, -1], "q99": [1, )" + high + "]}";
  std::ofstream(folder / "norm_stats.json")
      << R"({"norm_stats": {"state": )" << one << R"(, "actions": )" << one << "}}";
  return folder;
}

void test_policies(const World& w) {
  int number = 0;
  for (const char* high : {"3e38", "1e39", "1e150", "1e308"}) {
    const std::string path = with_statistics(std::to_string(number++), high);
    vv_policy_options o = w.policy_options(path);
    o.path = path.c_str(), o.statistics = nullptr;
    Out<vv_policy*> policy;
    FAILS(vv_policy_load, (&o, &policy.value), policy);
    EXPECT(std::strstr(vv_last_error(), "dimension 1") != nullptr);
  }
  const std::string path = with_statistics("say \"hi\"\n\\b\xff\xc3\xa9", "2");
  vv_policy_options o = w.policy_options(path);
  o.path = path.c_str(), o.statistics = nullptr;
  vv_policy* policy = nullptr;
  EXPECT_OK(vv_policy_load(&o, &policy));
  vv_policy_info info{};
  info.struct_size = sizeof info;
  EXPECT_OK(vv_policy_get_info(policy, &info));
  EXPECT(info.report != nullptr &&
         std::strstr(info.report, R"(/say \"hi\"\u000a\\b\ufffd\u00e9/norm_stats.json")") != nullptr);
  vv_policy_destroy(policy);
  fs::remove_all(fs::path(path).parent_path());
}

/// Every function that has a status was seen to fail: one that is new belongs here.
void test_nothing_is_left_out() {
  const std::regex declared(R"(VV_API vv_status (vv_\w+)\()");
  for (const char* header : {"vivace.h", "model.h", "policy.h", "speech.h", "text.h", "control.h", "sched.h"}) {
    std::ifstream file(root / "vivace/capi" / header);
    std::stringstream text;
    text << file.rdbuf();
    const std::string all = text.str();
    int count = 0;
    for (std::sregex_iterator it(all.begin(), all.end(), declared), end; it != end; ++it, ++count)
      if ((*it)[1] != "vv_fail" && !refused.contains((*it)[1]))
        std::printf("%s: no failure of it is tried\n", (*it)[1].str().c_str()), ++failures;
    EXPECT(count > 0);
  }
}

}  // namespace

/// AddressSanitizer asks for it: an allocation that cannot be is no memory here, and no mistake of the program.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  root = argv[1];
  World w;
  w.make();
  if (failures != 0) return 1;
  test_handles(World{});  // all of them NULL
  // Each handle is another one: a model where a stream is wanted, and so on round.
  World turned;
  void* const all[] = {w.backend, w.stream, w.event,  w.buffer,    w.graph,     w.plan,
                       w.model,   w.policy, w.runner, w.tokenizer, w.scheduler, w.tenant};
  for (size_t by = 1; by < std::size(all); ++by) {
    const auto at = [&](size_t i) { return all[(i + by) % std::size(all)]; };
    turned = {static_cast<vv_backend*>(at(0)),   static_cast<vv_stream*>(at(1)),     static_cast<vv_event*>(at(2)),
              static_cast<vv_buffer*>(at(3)),    static_cast<vv_graph*>(at(4)),      static_cast<vv_plan*>(at(5)),
              static_cast<vv_model*>(at(6)),     static_cast<vv_policy*>(at(7)),     static_cast<vv_runner*>(at(8)),
              static_cast<vv_tokenizer*>(at(9)), static_cast<vv_scheduler*>(at(10)), static_cast<vv_tenant*>(at(11))};
    test_handles(turned);
    turned.destroy();  // leaves them alone
  }
  test_outs_and_values(w);
  test_struct_sizes(w);
  test_callbacks(w);
  test_requests_nobody_gave();
  test_random_runners();
  test_policies(w);
  test_nothing_is_left_out();
  w.destroy();
  for (int i = 0; i < 20; ++i) {  // what a plan needs lives as long as it does
    World small;
    vv_backend_options b{};
    b.struct_size = sizeof b, b.kind = "cpu", b.threads = 1;
    EXPECT_OK(vv_backend_create(&b, &small.backend));
    EXPECT_OK(vv_stream_create(small.backend, 0, &small.stream));
    EXPECT_OK(vv_graph_create("g", 2, &small.graph));
    EXPECT_OK(vv_graph_capture(small.graph, 1, small.stream, World::nothing, nullptr));
    int step = 0;
    EXPECT_OK(vv_plan_create(small.backend, "p", &small.plan));
    EXPECT_OK(vv_plan_add(small.plan, small.graph, 1, small.stream, &step));
    EXPECT_OK(vv_plan_freeze(small.plan));
    vv_plan* const plan = std::exchange(small.plan, nullptr);
    small.destroy();
    EXPECT_OK(vv_plan_run(plan));
    vv_plan_destroy(plan);
  }
  std::printf("%d failures, %zu calls refused\n", failures, refused.size());
  return failures != 0;
}
