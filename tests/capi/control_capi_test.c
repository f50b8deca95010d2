/* Chunk runners through the C ABI, as a C99 program sees them. When which action is used is the business of
 * tests/test_control.py; here: the same through this door, and every refusal. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/capi/check.h"
#include "vivace/capi/control.h"

enum { kDims = 2, kHorizon = 6, kOwn = 3 };

static vv_runner_options options_of(const char* join) {
  static const float step[kDims] = {0.5f, 10.0f};
  vv_runner_options o;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o;
  o.horizon = kHorizon;
  o.dims = kDims;
  o.network_dims = kOwn;
  o.join = join;
  o.max_step = step;
  o.max_action_age = 10;
  o.watchdog = 20;
  return o;
}

static void test_refused(void) {
  vv_runner* runner = NULL;
  vv_runner_options o = options_of("jump");
  EXPECT_ERROR(vv_runner_create(NULL, &runner), VV_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(vv_runner_create(&o, NULL), VV_INVALID_ARGUMENT, "out");
  EXPECT_ERROR(vv_runner_create(&o, &runner), VV_INVALID_ARGUMENT, "got 'jump'");
  o = options_of("prefix");
  o.network_dims = 0;
  EXPECT_ERROR(vv_runner_create(&o, &runner), VV_INVALID_ARGUMENT, "network_dims");
  o = options_of(NULL);
  o.dims = 0;
  EXPECT_ERROR(vv_runner_create(&o, &runner), VV_INVALID_ARGUMENT, "dims");
  o = options_of(NULL);
  o.max_action_age = -1;
  EXPECT_ERROR(vv_runner_create(&o, &runner), VV_INVALID_ARGUMENT, "max_action_age");
  o.struct_size = 8;
  EXPECT_ERROR(vv_runner_create(&o, &runner), VV_INVALID_ARGUMENT, "struct_size");
  EXPECT(runner == NULL && vv_runner_needs_inference(NULL, 0) == 0);
}

/* A chunk for the state that the arm will have: it begins behind the actions that lead there. */
static void test_future(void) {
  vv_runner* runner = NULL;
  vv_runner_options o = options_of("future");
  vv_chunk_request q;
  vv_tick tick;
  float position[kDims] = {0, 0}, action[kDims], chunk[kHorizon * kDims], actions[kHorizon * kDims];
  int i;
  o.max_step = NULL;
  EXPECT_OK(vv_runner_create(&o, &runner));
  if (runner == NULL) return;
  memset(&tick, 0, sizeof tick);
  tick.struct_size = sizeof tick;
  EXPECT_OK(vv_runner_start(runner, position, 0));
  EXPECT_ERROR(vv_runner_start_request(runner, 0, &q, NULL), VV_INVALID_ARGUMENT, "actions is NULL");
  EXPECT_OK(vv_runner_start_request(runner, 0, &q, actions));
  EXPECT(q.ahead == 0 && q.prefix_length == 0);
  for (i = 0; i < kHorizon * kDims; ++i) chunk[i] = (float)(i / kDims);
  EXPECT_OK(vv_runner_complete(runner, &q, chunk, NULL));
  EXPECT_OK(vv_runner_next(runner, 0.1, action, &tick));
  EXPECT_OK(vv_runner_start_request(runner, 0.2, &q, actions));
  EXPECT(q.ahead == 1 && q.tick == 2 && actions[0] == 1);
  for (i = 0; i < kHorizon * kDims; ++i) chunk[i] = 9;
  EXPECT_OK(vv_runner_complete(runner, &q, chunk, NULL));
  EXPECT_OK(vv_runner_next(runner, 0.2, action, &tick));
  EXPECT(action[0] == 1 && tick.chunk_index == 1);
  EXPECT_OK(vv_runner_next(runner, 0.3, action, &tick));
  EXPECT(action[0] == 9 && tick.chunk_index == 0);
  vv_runner_destroy(runner);
}

int main(void) {
  vv_runner* runner = NULL;
  vv_runner_options o = options_of("prefix");
  vv_chunk_request q;
  vv_tick tick;
  float position[kDims] = {0, 0}, action[kDims], chunk[kHorizon * kDims], own[kHorizon * kOwn],
        action_prefix[(kHorizon - 1) * kOwn];
  int i;
  test_refused();
  test_future();
  EXPECT_OK(vv_runner_create(&o, &runner));
  if (runner == NULL) return 1;
  memset(&tick, 0, sizeof tick);
  tick.struct_size = sizeof tick;
  EXPECT_ERROR(vv_runner_next(runner, 0, action, &tick), VV_FAILED_PRECONDITION, "start");
  EXPECT(vv_runner_needs_inference(runner, 0) == 0);
  position[1] = NAN;
  EXPECT_ERROR(vv_runner_start(runner, position, 0), VV_INVALID_ARGUMENT, "not finite");
  position[1] = 0;
  EXPECT_OK(vv_runner_start(runner, position, 0));
  EXPECT(vv_runner_needs_inference(runner, 0) == 1);
  EXPECT_ERROR(vv_runner_start_request(runner, 0, &q, NULL), VV_INVALID_ARGUMENT, "actions is NULL");
  EXPECT_OK(vv_runner_start_request(runner, 0, &q, action_prefix));
  EXPECT(q.prefix_length == 0 && vv_runner_needs_inference(runner, 0) == 0);
  EXPECT_OK(vv_runner_next(runner, 0.1, action, &tick));
  EXPECT(tick.source == VV_TICK_HOLD && tick.chunk_index == -1 && action[0] == 0);
  for (i = 0; i < kHorizon; ++i) chunk[i * kDims] = 2, chunk[i * kDims + 1] = (float)i;
  for (i = 0; i < kHorizon * kOwn; ++i) own[i] = (float)i;
  EXPECT_ERROR(vv_runner_complete(runner, &q, chunk, NULL), VV_INVALID_ARGUMENT, "normalized is NULL");
  EXPECT_OK(vv_runner_complete(runner, &q, chunk, own));
  EXPECT_OK(vv_runner_next(runner, 0.2, action, &tick));
  EXPECT(tick.source == VV_TICK_CHUNK && tick.chunk_index == 1 && tick.clamped == 1 && action[0] == 0.5f &&
         action[1] == 1);
  tick.struct_size = 4;
  EXPECT_ERROR(vv_runner_next(runner, 0.3, action, &tick), VV_INVALID_ARGUMENT, "struct_size");
  tick.struct_size = sizeof tick;
  EXPECT_OK(vv_runner_next(runner, 0.3, action, &tick));
  EXPECT(tick.chunk_index == 2 && action[0] == 1); /* the refused call used no tick up */
  EXPECT(vv_runner_needs_inference(runner, 0.4) == 1);
  EXPECT_OK(vv_runner_start_request(runner, 0.4, &q, action_prefix));
  EXPECT(q.prefix_length == 2 && memcmp(action_prefix, own + 3 * kOwn, 2 * kOwn * sizeof(float)) == 0);
  chunk[0] = INFINITY;
  EXPECT_ERROR(vv_runner_complete(runner, &q, chunk, own), VV_INVALID_ARGUMENT, "not finite");
  EXPECT(vv_runner_needs_inference(runner, 0.4) == 1); /* an answer that cannot be used is none */
  EXPECT_OK(vv_runner_start_request(runner, 0.4, &q, action_prefix));
  EXPECT_OK(vv_runner_cancel(runner, &q));
  EXPECT(vv_runner_needs_inference(runner, 0.4) == 1);
  EXPECT_ERROR(vv_runner_cancel(runner, NULL), VV_INVALID_ARGUMENT, "request is NULL");
  EXPECT_OK(vv_runner_next(runner, 30, action, &tick));
  EXPECT(tick.source == VV_TICK_STOPPED && action[0] == 1);
  vv_runner_destroy(runner);
  vv_runner_destroy(NULL);
  printf("%d failures\n", failures);
  return failures != 0;
}
