/* A robot's loop over a policy that answers later, through the C ABI: serve::ChunkRunner, with the rules on statuses,
 * out parameters, handles and struct_size of vivace.h. docs/control.md says what happens when. vv_runner_start, _next,
 * _needs_inference and _start_request belong to the robot's thread, _complete and _cancel to one other; neither waits
 * for the other, and after _create nothing allocates unless it fails. Times are seconds of one steady clock. */
#ifndef VIVACE_CONTROL_H
#define VIVACE_CONTROL_H

#include "vivace/capi/vivace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vv_runner vv_runner;

/* 0 and NULL are the defaults. */
typedef struct vv_runner_options {
  size_t struct_size;
  int horizon, dims;     /* of a chunk in the robot's units; horizon 0 = 50 */
  int network_dims;      /* of the network's own actions; needed by "prefix" */
  const char* join;      /* NULL = "swap"; "blend", "prefix", "future" */
  int blend;             /* ticks; 0 = 5, or the horizon where that is shorter */
  int ask_after;         /* ticks of a chunk before the next is asked for; 0 = half of it */
  const float* max_step; /* [dims]: most that an action differs from the one before; NULL = no bound */
  double max_action_age;          /* s after its observation in which an action may be used; 0 = 1 */
  double watchdog;       /* s without a new chunk until a tick says VV_TICK_STOPPED; 0 = 2 */
  double deadline;       /* s after which a question without an answer is put anew; 0 = the watchdog's */
} vv_runner_options;

enum { VV_TICK_CHUNK, VV_TICK_BLEND, VV_TICK_HOLD, VV_TICK_STOPPED };

typedef struct vv_tick {
  size_t struct_size;
  int source;  /* VV_TICK_* */
  int clamped; /* max_step bound it */
  int chunk_index;   /* of the action in its chunk, -1 where it is held */
  double age;  /* s since its observation */
} vv_tick;

/* A question: travels with the observation and comes back with the answer. */
typedef struct vv_chunk_request {
  int64_t id, tick;
  double observed;
  int prefix_length; /* actions that the chunk is asked to begin with */
  int ahead;         /* actions between the observation and the chunk's first; 0 but for "future" */
} vv_chunk_request;

VV_API vv_status vv_runner_create(const vv_runner_options* options, vv_runner** out);
VV_API void vv_runner_destroy(vv_runner* runner);
/* The robot stands at position [dims]: begins, or begins anew. */
VV_API vv_status vv_runner_start(vv_runner* runner, const float* position, double now);
/* The action [dims] of this tick. */
VV_API vv_status vv_runner_next(vv_runner* runner, double now, float* action, vv_tick* tick);
/* 1 where a chunk should be asked for. NULL: 0. */
VV_API int vv_runner_needs_inference(const vv_runner* runner, double now);
/* Asks. actions: of "prefix" [horizon - 1, network_dims], gets request->prefix_length actions for
 * vv_observation.action_prefix; of "future" [horizon, dims], gets request->ahead actions that come before the chunk's
 * first and lead to the state that the policy is to be asked with; else NULL. */
VV_API vv_status vv_runner_start_request(vv_runner* runner, double now, vv_chunk_request* request, float* actions);
/* The answer: actions [horizon, dims] and, for "prefix", the network's own (vv_policy_normalized); else NULL. */
VV_API vv_status vv_runner_complete(vv_runner* runner, const vv_chunk_request* request, const float* actions,
                                    const float* normalized);
/* There will be no answer. */
VV_API vv_status vv_runner_cancel(vv_runner* runner, const vv_chunk_request* request);

#ifdef __cplusplus
}
#endif
#endif
