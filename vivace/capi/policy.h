/* Robot policies through the C ABI: images, a prompt and state in, a chunk of actions out. C99, on top of vivace.h,
 * whose rules on statuses, out parameters, handles and struct_size hold here. vv_policy_predict() neither allocates nor
 * compiles, but for images of a size that was not seen before, unless it fails. */
#ifndef VIVACE_POLICY_H
#define VIVACE_POLICY_H

#include "vivace/capi/vivace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vv_policy vv_policy;

/* NULL, 0 and an empty list are the defaults. */
typedef struct vv_policy_options {
  size_t struct_size;
  const char* path;       /* a folder or .safetensors file */
  const char* config;     /* "pi05", "pi0", "pi0fast" */
  const char* device;     /* NULL = "auto"; "cpu", "cuda", "cuda:N" */
  const char* precision;  /* NULL = "auto"; "f32", "bf16", "fp8", "fp8_static" */
  const char* resize;     /* NULL = as the checkpoint was saved; "openpi", "lerobot" */
  const char* statistics; /* NULL = the checkpoint's; "none": actions stay normalised */
  const char* robot;      /* which of several statistics */
  const char* codec;      /* pi0fast: folder of the actions' codec */
  const unsigned char* delta; /* a flag a dimension: its action is a step from the state */
  int delta_count;
  int threads;            /* CPU: 0 = one a physical core */
  int views;              /* camera slots; 0 = 3 */
  int horizon;            /* 0 = the checkpoint's */
  int steps;              /* of the flow; 0 = the checkpoint's, else 10 */
  int batch;              /* observations of one call; 0 = 1 */
  int prompt_tokens;      /* most tokens of a prompt; 0 = the family's */
  double partition;       /* share of the device's multiprocessors, in (0, 1); 0 = all of it */
  const char*
      tokenizer; /* of prompts that are text: tokenizer.model or tokenizer.json, or their folder; NULL = beside path */
  const float* act_scales; /* of precision "fp8_static" alone: what vv_policy_calibrate() gave of this checkpoint */
  int act_scale_count;
  struct vv_tenant*
      tenant; /* of sched.h: its place at a scheduler, by which it takes turns; NULL: nobody schedules it */
  int keep_partition;     /* with a tenant: calls stay in the partition also when no tenant with a partition works and
                             no guaranteed call runs or waits; 0: they have the whole device then */
  const char* expert;     /* of pi05's "fp8_static": what the action expert's products read; NULL = "bf16"; "e4m3" */
} vv_policy_options;

typedef struct vv_policy_info {
  size_t struct_size;
  const char* report; /* every decision of the load, one JSON object; valid as long as the policy */
  int views, horizon, steps, batch, prompt_tokens;
  int action_dim;     /* of the network's actions and noise */
  int robot_dim;      /* of the actions that come out */
  int state_dim;      /* of the state; 0: any up to the network's */
} vv_policy_info;

/* RGB, 8 bits, rows of `stride` bytes. data NULL: that camera is off. */
typedef struct vv_frame {
  const unsigned char* data;
  int64_t height, width, stride;
} vv_frame;

/* Memory stays the caller's. NULL where there is none. */
typedef struct vv_observation {
  size_t struct_size;
  const vv_frame* views;   /* vv_policy_info.views of them */
  int view_count;
  const int32_t* tokens;   /* the prompt, without padding; NULL: see prompt */
  int token_count;
  const float* state;      /* the robot's own units */
  int state_count;
  const float* noise;      /* [horizon, action_dim]; NULL: drawn from seed */
  uint64_t seed;
  const float* action_prefix; /* [action_prefix_count, action_dim], normalised: how the chunk begins (pi05, groot) */
  int action_prefix_count;
  const char* prompt;      /* where tokens is NULL: the task as text, UTF-8; makes predict() allocate */
} vv_observation;

/* Setup. Errors: VV_NOT_FOUND, VV_CORRUPT_DATA, VV_INVALID_ARGUMENT (an option; another family's checkpoint; statistics
 * by which nothing can be divided), VV_INVALID_SHAPE, VV_OUT_OF_MEMORY, VV_UNSUPPORTED. */
VV_API vv_status vv_policy_load(const vv_policy_options* options, vv_policy** out);
VV_API vv_status vv_policy_get_info(const vv_policy* policy, vv_policy_info* info);
VV_API void vv_policy_destroy(vv_policy* policy);

/* actions [count, horizon, robot_dim] of `count` observations, which lie one after the other, each of the struct_size
 * that the first one states; `capacity` counts floats. Errors name what is wrong with which observation, and nothing
 * ran; VV_CORRUPT_DATA: an action is not finite, the network's own or in the robot's units. After an error `actions` is
 * as it was. */
VV_API vv_status vv_policy_predict(vv_policy* policy, const vv_observation* observations, int count, float* actions,
                                   size_t capacity);

/* The token ids of a prompt as the policy's family writes it: of `text`, a task in UTF-8, and, where the family puts it
 * there, the state in the robot's own units. *count is how many ids there are; the first `capacity` of them are
 * written, none where ids is NULL. The first call loads the tokenizer. Errors: VV_NOT_FOUND (no tokenizer),
 * VV_CORRUPT_DATA, VV_UNSUPPORTED, VV_INVALID_ARGUMENT (no UTF-8, a state that is missing or not finite),
 * VV_INVALID_SHAPE. */
VV_API vv_status vv_policy_encode_prompt(vv_policy* policy, const char* text, const float* state, int state_count,
                                         int32_t* ids, size_t capacity, size_t* count);

/* The network's own actions of the last vv_policy_predict() that ended well, normalised: [horizon, action_dim] of
 * observation `index`, of which vv_observation.action_prefix takes the first. Errors: VV_FAILED_PRECONDITION,
 * VV_INVALID_ARGUMENT, VV_LIMIT_EXCEEDED. */
VV_API vv_status vv_policy_normalized(const vv_policy* policy, int index, float* actions, size_t capacity);

/* Setup. Scales for vv_policy_options.act_scales from what observations, one after the other, bring to each activation
 * quantization point, of a policy loaded as "f32" or "bf16"; `percentile` in (0, 100] of their magnitudes counts.
 * *count is how many scales there are; the first `capacity` are written, none where scales is NULL. Errors:
 * VV_FAILED_PRECONDITION, and vv_policy_predict()'s. */
VV_API vv_status vv_policy_calibrate(vv_policy* policy, const vv_observation* observations, int observation_count,
                                     double percentile, float* scales, size_t capacity, size_t* count);
/* Setup. Other scales of a policy loaded as "fp8_static", from the next vv_policy_predict() on. Errors:
 * VV_FAILED_PRECONDITION, VV_INVALID_ARGUMENT; the old ones stay. */
VV_API vv_status vv_policy_set_act_scales(vv_policy* policy, const float* scales, int count);

#ifdef __cplusplus
}
#endif
#endif
