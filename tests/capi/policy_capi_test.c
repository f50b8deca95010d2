/* Policies through the C ABI, as a C99 program sees them. Usage: vivace_policy_c FOLDER, of
 * tests/fixtures/vla/pi05_tiny. What the actions are is the business of tests/test_policy.py; here: the same through
 * any door, and every refusal. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/capi/check.h"
#include "vivace/capi/policy.h"

enum { kViews = 2, kHorizon = 4, kDim = 32, kChunk = kHorizon * kDim };

static unsigned char picture[48 * 64 * 3];

static vv_policy_options options_of(const char* path) {
  vv_policy_options o;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o;
  o.path = path;
  o.config = "pi05";
  o.device = "cpu";
  o.statistics = "none";
  o.threads = 1;
  o.views = kViews;
  o.horizon = kHorizon;
  o.steps = 2;
  o.batch = 2;
  return o;
}

/* The image in the first view, the others off. */
static vv_observation observation_of(vv_frame* views, const int32_t* tokens, int count) {
  vv_observation o;
  memset(views, 0, kViews * sizeof *views);
  views[0].data = picture;
  views[0].height = 48;
  views[0].width = 64;
  views[0].stride = 64 * 3;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o;
  o.views = views;
  o.view_count = kViews;
  o.tokens = tokens;
  o.token_count = count;
  return o;
}

static void test_refused_loads(const char* path) {
  vv_policy* policy = NULL;
  vv_policy_options o = options_of(path);
  EXPECT_ERROR(vv_policy_load(NULL, &policy), VV_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(vv_policy_load(&o, NULL), VV_INVALID_ARGUMENT, "out");
  o.config = NULL;
  EXPECT_ERROR(vv_policy_load(&o, &policy), VV_INVALID_ARGUMENT, "config");
  o.config = "pi0";
  EXPECT_ERROR(vv_policy_load(&o, &policy), VV_INVALID_ARGUMENT, "those of pi05");
  o = options_of("/no/such/folder");
  EXPECT_ERROR(vv_policy_load(&o, &policy), VV_NOT_FOUND, "/no/such/folder");
  o = options_of(path);
  o.statistics = NULL;
  EXPECT_ERROR(vv_policy_load(&o, &policy), VV_NOT_FOUND, "norm_stats.json");
  o.struct_size = 8;
  EXPECT_ERROR(vv_policy_load(&o, &policy), VV_INVALID_ARGUMENT, "struct_size");
  EXPECT(policy == NULL);
  o = options_of(path);
  o.expert = "fp8";
  EXPECT_ERROR(vv_policy_load(&o, &policy), VV_INVALID_ARGUMENT, "wanted bf16 or e4m3");
  o.expert = "e4m3";
  o.precision = "fp8";
  EXPECT_ERROR(vv_policy_load(&o, &policy), VV_INVALID_ARGUMENT, "takes its scales from calibration");
  o = options_of(path);
  o.partition = 1.5;
  EXPECT_ERROR(vv_policy_load(&o, &policy), VV_INVALID_ARGUMENT, "partition");
  o.partition = 0.5;
  EXPECT_ERROR(vv_policy_load(&o, &policy), VV_UNSUPPORTED, "partition");
  o.struct_size = offsetof(vv_policy_options, partition); /* a caller of before this field */
  EXPECT_OK(vv_policy_load(&o, &policy));
  vv_policy_destroy(policy);
}

static void test_predict(vv_policy* policy) {
  static const int32_t tokens[] = {2, 17, 301};
  float one[kChunk], both[2 * kChunk], noise[kChunk];
  vv_frame views[kViews];
  vv_observation o[2];
  int i;
  o[0] = observation_of(views, tokens, 3);
  o[0].seed = 7;
  o[1] = o[0];
  EXPECT_OK(vv_policy_predict(policy, o, 1, one, kChunk));
  for (i = 0; i < kChunk; ++i) EXPECT(isfinite(one[i]));
  EXPECT_OK(vv_policy_predict(policy, o, 2, both, 2 * kChunk));
  EXPECT(memcmp(one, both, sizeof one) == 0 && memcmp(one, both + kChunk, sizeof one) == 0);
  memcpy(both, one, sizeof one);
  o[0].action_prefix = one;
  o[0].action_prefix_count = 1;
  EXPECT_OK(vv_policy_predict(policy, o, 1, both, kChunk));
  EXPECT(memcmp(both, one, kDim * sizeof(float)) == 0 && memcmp(both, one, sizeof one) != 0);
  o[0].action_prefix_count = 0;

  memcpy(both, one, sizeof one);
  EXPECT_ERROR(vv_policy_predict(policy, o, 1, both, kChunk - 1), VV_LIMIT_EXCEEDED, "128");
  EXPECT_ERROR(vv_policy_predict(policy, o, 3, both, kChunk), VV_INVALID_ARGUMENT, "1 to 2");
  EXPECT_ERROR(vv_policy_predict(policy, NULL, 1, both, kChunk), VV_INVALID_ARGUMENT, "NULL");
  o[0].view_count = 1;
  EXPECT_ERROR(vv_policy_predict(policy, o, 1, both, kChunk), VV_INVALID_ARGUMENT, "wanted 2 views, got 1");
  o[0].view_count = kViews;
  o[0].tokens = NULL;
  EXPECT_ERROR(vv_policy_predict(policy, o, 1, both, kChunk), VV_INVALID_ARGUMENT, "tokens");
  o[0].tokens = tokens;
  views[0].stride = 8;
  EXPECT_ERROR(vv_policy_predict(policy, o, 1, both, kChunk), VV_INVALID_SHAPE, "8 bytes a row");
  views[0].stride = 64 * 3;
  views[0].data = NULL;
  EXPECT_ERROR(vv_policy_predict(policy, o, 1, both, kChunk), VV_INVALID_ARGUMENT, "no camera");
  views[0].data = picture;
  for (i = 0; i < kChunk; ++i) noise[i] = NAN;
  o[0].noise = noise;
  EXPECT_ERROR(vv_policy_predict(policy, o, 1, both, kChunk), VV_INVALID_ARGUMENT, "not finite");
  EXPECT(memcmp(both, one, sizeof one) == 0);
}

/* Prompts that are text: the same tokens by either way, and what cannot be one. */
static void test_prompts(const char* path) {
  char tokenizer[4096];
  static const float state[3] = {0.5f, -0.25f, 0.0f};
  float by_text[kChunk], by_tokens[kChunk];
  int32_t ids[128];
  size_t count = 0;
  vv_frame views[kViews];
  vv_observation o;
  vv_policy* policy = NULL;
  vv_policy_options options = options_of(path);
  EXPECT_OK(vv_policy_load(&options, &policy));
  if (policy == NULL) return;
  EXPECT_ERROR(vv_policy_encode_prompt(policy, "go", state, 3, ids, 128, &count), VV_NOT_FOUND,
               "neither tokenizer.model nor tokenizer.json");
  vv_policy_destroy(policy);
  policy = NULL;
  snprintf(tokenizer, sizeof tokenizer, "%s/../../pieces/paligemma.model", path);
  options.tokenizer = tokenizer;
  EXPECT_OK(vv_policy_load(&options, &policy));
  if (policy == NULL) return;
  EXPECT_OK(vv_policy_encode_prompt(policy, "put it_there", state, 3, ids, 128, &count));
  EXPECT(count > 8 && count <= 128 && ids[0] == 2);
  EXPECT_ERROR(vv_policy_encode_prompt(policy, NULL, state, 3, ids, 128, &count), VV_INVALID_ARGUMENT, "text is NULL");
  EXPECT_ERROR(vv_policy_encode_prompt(policy, "go", NULL, 3, ids, 128, &count), VV_INVALID_ARGUMENT, "state is NULL");
  EXPECT_ERROR(vv_policy_encode_prompt(policy, "go", NULL, 0, ids, 128, &count), VV_INVALID_ARGUMENT,
               "pi05 writes it into the prompt");
  EXPECT_ERROR(vv_policy_encode_prompt(policy, "g\xff", state, 3, ids, 128, &count), VV_INVALID_ARGUMENT, "UTF-8");
  EXPECT_OK(vv_policy_encode_prompt(policy, "put it there", state, 3, ids, 128, &count));
  o = observation_of(views, ids, (int)count);
  o.state = state;
  o.state_count = 3;
  EXPECT_OK(vv_policy_predict(policy, &o, 1, by_tokens, kChunk));
  o.tokens = NULL;
  o.token_count = 0;
  o.prompt = "put it there";
  EXPECT_OK(vv_policy_predict(policy, &o, 1, by_text, kChunk));
  EXPECT(memcmp(by_text, by_tokens, sizeof by_text) == 0);
  o.state_count = 0;
  EXPECT_ERROR(vv_policy_predict(policy, &o, 1, by_text, kChunk), VV_INVALID_ARGUMENT, "observation 0");
  vv_policy_destroy(policy);
}

/* Scales: measured, loaded with, replaced; and the network's own actions. */
static void test_scales(const char* path) {
  static const int32_t tokens[] = {2, 17, 301};
  float scales[128], first[kChunk], other[kChunk];
  size_t count = 0, none = 1, i;
  vv_frame views[kViews];
  vv_observation o[3];
  vv_policy* policy = NULL;
  vv_policy_options options = options_of(path);
  o[0] = observation_of(views, tokens, 3);
  o[1] = o[2] = o[0];
  EXPECT_OK(vv_policy_load(&options, &policy));
  if (policy == NULL) return;
  EXPECT_ERROR(vv_policy_normalized(policy, 0, first, kChunk), VV_FAILED_PRECONDITION, "no predict");
  EXPECT_OK(vv_policy_predict(policy, o, 1, first, kChunk));
  EXPECT_OK(vv_policy_normalized(policy, 0, other, kChunk));
  EXPECT(memcmp(first, other, sizeof first) == 0); /* statistics are "none" */
  EXPECT_ERROR(vv_policy_normalized(policy, 0, other, kChunk - 1), VV_LIMIT_EXCEEDED, "128");
  EXPECT_ERROR(vv_policy_normalized(policy, 2, other, kChunk), VV_INVALID_ARGUMENT, "outside");
  EXPECT_OK(vv_policy_calibrate(policy, o, 3, 99.9, scales, 128, &count)); /* more than a call's batch of 2 */
  EXPECT(count > 8 && count <= 128 && scales[0] > 0);
  EXPECT_ERROR(vv_policy_calibrate(policy, o, 0, 99.9, scales, 128, &none), VV_INVALID_ARGUMENT, "wanted 1 to 65536");
  EXPECT_ERROR(vv_policy_calibrate(policy, o, 1, 0.0, scales, 128, &none), VV_INVALID_ARGUMENT, "percentile");
  EXPECT(none == 0);
  EXPECT_ERROR(vv_policy_set_act_scales(policy, scales, (int)count), VV_FAILED_PRECONDITION, "none that are fixed");
  vv_policy_destroy(policy);
  policy = NULL;
  options.precision = "fp8_static";
  options.act_scale_count = -1;
  EXPECT_ERROR(vv_policy_load(&options, &policy), VV_INVALID_ARGUMENT, "options.act_scales");
  options.act_scales = scales;
  options.act_scale_count = (int)count - 1;
  EXPECT_ERROR(vv_policy_load(&options, &policy), VV_INVALID_ARGUMENT, "calibrate this checkpoint");
  options.act_scale_count = (int)count;
  EXPECT_OK(vv_policy_load(&options, &policy));
  if (policy == NULL) return;
  EXPECT_OK(vv_policy_predict(policy, o, 1, first, kChunk));
  EXPECT_ERROR(vv_policy_set_act_scales(policy, NULL, 0), VV_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(vv_policy_set_act_scales(policy, scales, 3), VV_INVALID_ARGUMENT, "calibrate this checkpoint");
  for (i = 0; i < count; ++i) scales[i] /= 16;
  EXPECT_OK(vv_policy_set_act_scales(policy, scales, (int)count));
  EXPECT_OK(vv_policy_predict(policy, o, 1, other, kChunk));
  EXPECT(memcmp(first, other, sizeof first) != 0);
  for (i = 0; i < count; ++i) scales[i] *= 16;
  EXPECT_OK(vv_policy_set_act_scales(policy, scales, (int)count));
  EXPECT_OK(vv_policy_predict(policy, o, 1, other, kChunk));
  EXPECT(memcmp(first, other, sizeof first) == 0);
  vv_policy_destroy(policy);
}

int main(int argc, char** argv) {
  vv_policy* policy = NULL;
  vv_policy_options o;
  vv_policy_info info;
  int i;
  if (argc != 2) return 2;
  for (i = 0; i < (int)sizeof picture; ++i) picture[i] = (unsigned char)(i * 7 + i / 192);
  test_refused_loads(argv[1]);
  o = options_of(argv[1]);
  EXPECT_OK(vv_policy_load(&o, &policy));
  if (policy == NULL) return 1;
  memset(&info, 0, sizeof info);
  EXPECT_ERROR(vv_policy_get_info(policy, &info), VV_INVALID_ARGUMENT, "struct_size");
  info.struct_size = sizeof info;
  EXPECT_OK(vv_policy_get_info(policy, &info));
  EXPECT(info.views == kViews && info.horizon == kHorizon && info.batch == 2 && info.action_dim == kDim &&
         info.robot_dim == kDim);
  EXPECT(strstr(info.report, "\"family\": \"pi05\"") != NULL);
  test_predict(policy);
  test_prompts(argv[1]);
  test_scales(argv[1]);
  vv_policy_destroy(policy);
  vv_policy_destroy(NULL);
  printf("%d failures\n", failures);
  return failures != 0;
}
