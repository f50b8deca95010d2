/* The C ABI from C99: what a C program sees, compiled with -pedantic. Prints and counts what differs. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/capi/check.h"

enum { kCount = 64 };

typedef struct scale_args {
  float* to;
  const float* from;
  float factor;
} scale_args;

/* to = to * factor + from: steps that do not commute. */
static void scale(const void* raw) {
  const scale_args* a = (const scale_args*)raw;
  int i;
  for (i = 0; i < kCount; ++i) a->to[i] = a->to[i] * a->factor + a->from[i];
}

static vv_status launch_scale(vv_stream* stream, float* to, const float* from, float factor) {
  scale_args args;
  vv_launch launch;
  memset(&launch, 0, sizeof launch);
  launch.struct_size = sizeof launch;
  args.to = to;
  args.from = from;
  args.factor = factor;
  launch.op = "scale";
  launch.host = scale;
  launch.args = &args;
  launch.args_bytes = sizeof args;
  return vv_stream_launch(stream, &launch);
}

typedef struct stage {
  float* to;
  const float* from;
  float factor;
} stage;

static vv_status capture_stage(vv_stream* stream, void* context) {
  const stage* s = (const stage*)context;
  vv_status status = launch_scale(stream, s->to, s->from, s->factor);
  return status != VV_OK ? status : launch_scale(stream, s->to, s->from, s->factor + 1);
}

static vv_status capture_fails(vv_stream* stream, void* context) {
  (void)stream;
  (void)context;
  return vv_fail(VV_INVALID_SHAPE, "q: wanted 64 rows, got 63");
}

static vv_status capture_silent(vv_stream* stream, void* context) {
  (void)stream;
  return *(vv_status*)context;
}

static vv_status capture_nested(vv_stream* stream, void* context) {
  return vv_graph_replay((vv_graph*)context, 1, stream);
}

static float* data_of(const vv_buffer* buffer) {
  vv_buffer_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(vv_buffer_get_info(buffer, &info));
  EXPECT(info.bytes == kCount * sizeof(float) && info.place == VV_HOST);
  return (float*)info.data;
}

static vv_backend* make_backend(void) {
  vv_backend_options options;
  vv_backend* backend = NULL;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.kind = "cpu";
  options.threads = 1;
  EXPECT_OK(vv_backend_create(&options, &backend));
  return backend;
}

static void fill(float* x, float step) {
  int i;
  for (i = 0; i < kCount; ++i) x[i] = step * (float)i + 1;
}

static void test_errors(void) {
  vv_backend_options options;
  vv_backend* backend = (vv_backend*)&options;
  vv_buffer* buffer = NULL;
  vv_stream* stream = NULL;
  vv_graph* graph = NULL;
  vv_launch launch;
  void* native = &options;
  memset(&options, 0, sizeof options);
  EXPECT(strcmp(vv_last_error(), "") == 0);
  EXPECT(strcmp(vv_status_name(VV_NO_VARIANT), "NoVariant") == 0);
  EXPECT(strcmp(vv_status_name(VV_INTERNAL), "Internal") == 0);
  EXPECT(strlen(vv_version()) >= 5);

  EXPECT_ERROR(vv_backend_create(&options, &backend), VV_INVALID_ARGUMENT, "struct_size is 0");
  EXPECT(backend == NULL);
  EXPECT_ERROR(vv_backend_create(NULL, &backend), VV_INVALID_ARGUMENT, "struct is NULL");
  EXPECT_ERROR(vv_backend_create(&options, NULL), VV_INVALID_ARGUMENT,
               "vv_backend_create: InvalidArgument: out is NULL");
  options.struct_size = sizeof options;
  EXPECT_ERROR(vv_backend_create(&options, &backend), VV_INVALID_ARGUMENT, "options.kind is NULL");
  options.kind = "abacus";
  EXPECT_ERROR(vv_backend_create(&options, &backend), VV_INVALID_ARGUMENT, "\"abacus\"");
  options.kind = "cpu";
  options.threads = -2;
  EXPECT_ERROR(vv_backend_create(&options, &backend), VV_INVALID_ARGUMENT, "threads is -2");
  options.kind = "cuda";
  options.ordinal = -1; /* no driver, or no such device: never a backend */
  EXPECT(vv_backend_create(&options, &backend) != VV_OK && backend == NULL && strlen(vv_last_error()) > 20);

  backend = make_backend();
  EXPECT(strcmp(vv_backend_name(backend), "cpu") == 0 && vv_backend_priority_levels(backend) == 1);
  EXPECT_ERROR(vv_buffer_create(backend, "none", 0, &buffer), VV_INVALID_ARGUMENT, "none");
  EXPECT_ERROR(vv_buffer_create(NULL, "none", 8, &buffer), VV_INVALID_ARGUMENT, "backend is NULL");
  EXPECT_ERROR(vv_stream_create(backend, 1, &stream), VV_INVALID_ARGUMENT, "level 1");
  EXPECT_ERROR(vv_graph_create("g", 0, &graph), VV_INVALID_ARGUMENT, "bound is 0");
  EXPECT_ERROR(vv_stream_wrap_cuda(backend, &options, &stream), VV_UNSUPPORTED, "cpu backend");
  EXPECT(buffer == NULL && stream == NULL && graph == NULL);

  EXPECT_OK(vv_stream_create(backend, 0, &stream));
  EXPECT_ERROR(vv_stream_get_cuda(stream, &native), VV_UNSUPPORTED, "no CUstream");
  EXPECT(native == NULL);
  memset(&launch, 0, sizeof launch);
  launch.struct_size = sizeof launch;
  EXPECT_ERROR(vv_stream_launch(stream, &launch), VV_INVALID_ARGUMENT, "launch.host is NULL");
  launch.host = scale;
  launch.args = &options;
  launch.args_bytes = VV_MAX_ARGS_BYTES + 1;
  EXPECT_ERROR(vv_stream_launch(stream, &launch), VV_INVALID_ARGUMENT, "577");
  EXPECT_ERROR(vv_stream_copy(stream, &options, &options, 8), VV_ALIAS_ERROR, "overlap");
  EXPECT_ERROR(vv_stream_wait(stream, NULL), VV_INVALID_ARGUMENT, "event is NULL");

  vv_stream_destroy(stream);
  vv_backend_destroy(backend);
  vv_backend_destroy(NULL);
  vv_stream_destroy(NULL);
  vv_event_destroy(NULL);
  vv_buffer_destroy(NULL);
  vv_graph_destroy(NULL);
  vv_plan_destroy(NULL);
}

static int deleted = 0;
static void count_delete(void* data, size_t bytes, void* context) {
  deleted += (bytes == 16 && data == context) ? 1 : 100;
}

static void test_buffers(void) {
  /* An older caller's struct is too short; a newer caller's longer one keeps its tail. */
  struct {
    vv_buffer_info info;
    int newer;
  } grown;
  double region[2];
  vv_buffer* buffer = NULL;
  EXPECT_ERROR(vv_buffer_wrap("r", region, 16, 7, count_delete, region, &buffer), VV_INVALID_ARGUMENT, "place is 7");
  EXPECT_ERROR(vv_buffer_wrap("r", NULL, 16, VV_HOST, count_delete, region, &buffer), VV_INVALID_ARGUMENT,
               "data is NULL");
  EXPECT(deleted == 0);
  EXPECT_OK(vv_buffer_wrap("r", region, 16, VV_HOST, count_delete, region, &buffer));
  memset(&grown, 0, sizeof grown);
  grown.newer = 99;
  grown.info.struct_size = sizeof grown;
  EXPECT_OK(vv_buffer_get_info(buffer, &grown.info));
  EXPECT(grown.newer == 99 && grown.info.struct_size == sizeof grown);
  EXPECT(grown.info.data == region && grown.info.bytes == 16 && strcmp(grown.info.name, "r") == 0);
  grown.info.struct_size = 8;
  EXPECT_ERROR(vv_buffer_get_info(buffer, &grown.info), VV_INVALID_ARGUMENT, "struct_size is 8");
  vv_buffer_destroy(buffer);
  EXPECT(deleted == 1);
}

static void test_graph(void) {
  vv_backend* backend = make_backend();
  vv_stream* stream = NULL;
  vv_graph* graph = NULL;
  vv_graph_info info;
  vv_shape_key keys[4] = {0, 0, 0, 0}, evicted = 7;
  size_t count = 0;
  float x[kCount], y[kCount], want[kCount];
  stage s;
  vv_status silent;
  s.to = x;
  s.from = y;
  s.factor = 0.75f;
  EXPECT_OK(vv_stream_create(backend, 0, &stream));
  EXPECT_OK(vv_graph_create("step", 2, &graph));

  EXPECT_ERROR(vv_graph_replay(graph, 5, stream), VV_NO_VARIANT, "graph step has no variant 0x5; captured keys: none");
  fill(x, 0.5f);
  fill(y, -1);
  EXPECT_OK(capture_stage(stream, &s)); /* eager */
  memcpy(want, x, sizeof want);
  fill(x, 0.5f);
  EXPECT_OK(vv_graph_capture(graph, 5, stream, capture_stage, &s));
  EXPECT(x[1] == 1.5f);
  EXPECT_OK(vv_graph_replay(graph, 5, stream));
  EXPECT_OK(vv_stream_synchronize(stream));
  EXPECT(memcmp(x, want, sizeof want) == 0);

  EXPECT_ERROR(vv_graph_capture(graph, 1, stream, capture_fails, NULL), VV_INVALID_SHAPE,
               "graph step: capture of 0x1: q: wanted 64 rows, got 63");
  silent = VV_CANCELLED;
  EXPECT_ERROR(vv_graph_capture(graph, 1, stream, capture_silent, &silent), VV_CANCELLED, "gave no reason");
  silent = 99;
  EXPECT_ERROR(vv_graph_capture(graph, 1, stream, capture_silent, &silent), VV_INVALID_ARGUMENT,
               "99, which is no vv_status");
  EXPECT_ERROR(vv_graph_capture(graph, 1, stream, capture_nested, graph), VV_NO_VARIANT, "vv_graph_replay");
  EXPECT_ERROR(vv_graph_capture(graph, 1, stream, NULL, NULL), VV_INVALID_ARGUMENT, "fn is NULL");
  EXPECT(vv_graph_has(graph, 5) == 1 && vv_graph_has(graph, 1) == 0 && vv_graph_has(NULL, 1) == 0);

  EXPECT_OK(vv_graph_capture(graph, 1, stream, capture_stage, &s));
  EXPECT_ERROR(vv_graph_capture(graph, 2, stream, capture_stage, &s), VV_LIMIT_EXCEEDED, "number 3 of at most 2");
  EXPECT_OK(vv_graph_get_keys(graph, NULL, 0, &count));
  EXPECT(count == 2);
  EXPECT_OK(vv_graph_get_keys(graph, keys, 1, &count));
  EXPECT(count == 2 && keys[0] == 1 && keys[1] == 0);
  EXPECT_ERROR(vv_graph_get_keys(graph, NULL, 1, &count), VV_INVALID_ARGUMENT, "keys is NULL");
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(vv_graph_get_info(graph, &info));
  EXPECT(info.bound == 2 && info.variants == 2 && strcmp(info.name, "step") == 0);

  EXPECT_OK(vv_graph_pin(graph, 5));
  EXPECT_ERROR(vv_graph_evict(graph, 5), VV_FAILED_PRECONDITION, "pins");
  EXPECT_ERROR(vv_graph_capture(graph, 5, stream, capture_stage, &s), VV_FAILED_PRECONDITION, "pins");
  EXPECT_OK(vv_graph_evict_lru(graph, &evicted));
  EXPECT(evicted == 1);
  EXPECT_ERROR(vv_graph_evict_lru(graph, NULL), VV_FAILED_PRECONDITION, "all pinned");
  EXPECT_OK(vv_graph_unpin(graph, 5));
  EXPECT_OK(vv_graph_evict(graph, 5));
  EXPECT_ERROR(vv_graph_adopt_cuda(graph, 5, stream, &s, 0), VV_UNSUPPORTED, "cpu backend");

  vv_backend_destroy(backend); /* in any order */
  EXPECT_OK(vv_stream_synchronize(stream));
  vv_graph_destroy(graph);
  vv_stream_destroy(stream);
}

static void test_plan(void) {
  vv_backend* backend = make_backend();
  vv_stream *first = NULL, *second = NULL;
  vv_graph *context = NULL, *action = NULL, *whole = NULL;
  vv_event* event = NULL;
  vv_plan* plan = NULL;
  vv_buffer *bx = NULL, *by = NULL;
  float *x, *y, want_x[kCount], want_y[kCount];
  int a = -1, b = -1, i;
  stage sx, sy;
  EXPECT_OK(vv_stream_create(backend, 0, &first));
  EXPECT_OK(vv_stream_create(backend, 0, &second));
  EXPECT_OK(vv_event_create(backend, &event));
  EXPECT_OK(vv_buffer_create(backend, "x", kCount * sizeof(float), &bx));
  EXPECT_OK(vv_buffer_create(backend, "y", kCount * sizeof(float), &by));
  x = data_of(bx);
  y = data_of(by);
  EXPECT(x[0] == 0 && x[kCount - 1] == 0);
  sx.to = x, sx.from = y, sx.factor = 0.25f;
  sy.to = y, sy.from = x, sy.factor = -0.5f;
  EXPECT_OK(vv_graph_create("context", 1, &context));
  EXPECT_OK(vv_graph_create("action", 1, &action));
  EXPECT_OK(vv_graph_create("whole", 1, &whole));
  EXPECT_OK(vv_graph_capture(context, 3, first, capture_stage, &sx));
  EXPECT_OK(vv_graph_capture(action, 3, second, capture_stage, &sy));

  fill(x, 0.5f);
  fill(y, -1);
  for (i = 0; i < 5; ++i) {
    EXPECT_OK(vv_graph_replay(context, 3, first));
    EXPECT_OK(vv_stream_record(first, event));
    EXPECT_OK(vv_stream_wait(second, event));
    EXPECT_OK(vv_graph_replay(action, 3, second));
  }
  EXPECT_OK(vv_event_synchronize(event));
  EXPECT_OK(vv_stream_synchronize(second));
  memcpy(want_x, x, sizeof want_x);
  memcpy(want_y, y, sizeof want_y);

  EXPECT_OK(vv_plan_create(backend, "cut", &plan));
  EXPECT_ERROR(vv_plan_add(plan, whole, 3, first, &a), VV_NO_VARIANT, "graph whole");
  EXPECT_OK(vv_plan_add(plan, action, 3, second, &b));
  EXPECT_OK(vv_plan_add(plan, context, 3, first, &a));
  EXPECT(b == 0 && a == 1);
  EXPECT_ERROR(vv_plan_run(plan), VV_FAILED_PRECONDITION, "freeze() the plan first");
  EXPECT_OK(vv_plan_edge(plan, a, b));
  EXPECT_ERROR(vv_plan_edge(plan, b, a), VV_INVALID_ARGUMENT, "cycle");
  EXPECT_OK(vv_plan_freeze(plan));

  /* The plan keeps what it needs. */
  vv_graph_destroy(context);
  vv_graph_destroy(action);
  vv_graph_destroy(whole);
  vv_stream_destroy(first);
  vv_stream_destroy(second);
  vv_event_destroy(event);
  vv_backend_destroy(backend);
  fill(x, 0.5f);
  fill(y, -1);
  for (i = 0; i < 5; ++i) EXPECT_OK(vv_plan_run(plan));
  EXPECT_OK(vv_plan_synchronize(plan));
  EXPECT(memcmp(x, want_x, sizeof want_x) == 0);
  EXPECT(memcmp(y, want_y, sizeof want_y) == 0);
  vv_plan_destroy(plan);
  vv_buffer_destroy(bx);
  vv_buffer_destroy(by);
}

int main(void) {
  test_errors();
  test_buffers();
  test_graph();
  test_plan();
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
