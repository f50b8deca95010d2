/* Several models on one device, with guarantees, through the C ABI: sched::Scheduler, with the rules on statuses, out
 * parameters, handles and struct_size of vivace.h. docs/scheduling.md says what the classes mean. Thread-safe, but for
 * the destruction of what another thread uses. A tenant keeps its scheduler, a model its tenant: handles may be
 * destroyed in any order. */
#ifndef VIVACE_SCHED_H
#define VIVACE_SCHED_H

#include "vivace/capi/vivace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vv_scheduler vv_scheduler;
typedef struct vv_tenant vv_tenant;

/* 0 and NULL are the defaults. */
typedef struct vv_scheduler_options {
  size_t struct_size;
  const char* device;  /* NULL = "auto"; "cpu", "cuda", "cuda:N" */
  double utilisation;  /* part of the device's time that may be promised; 0 = 0.97 */
  double handover_us;  /* between two tenants' work; 0 = 50 */
  int64_t bytes;       /* of its memory that models may take together; 0: not looked at */
} vv_scheduler_options;

typedef int32_t vv_qos_class;
enum { VV_GUARANTEED = 0, VV_BURSTABLE = 1, VV_BEST_EFFORT = 2 };

typedef struct vv_qos {
  size_t struct_size;
  vv_qos_class qos_class;
  double period_us;    /* guaranteed: least time between two calls */
  double deadline_us;  /* guaranteed: from a call to its answer; 0: the period */
  double min_share;    /* burstable: least part of the device's time, below 1 */
  double weight;       /* burstable: how what is left is divided; 0 = 1 */
  double blocking_us;  /* guaranteed: longest stretch of others' work that a call may wait for; others: what their gates
                          are placed by; 0 = 220 */
  int hold_on_overrun; /* 1: others stand back until twice the budget of a call that takes too long */
  int queue;           /* guaranteed: calls that may wait; 0 = 4 */
  int64_t bytes;       /* of the device's memory; 0: the model's */
} vv_qos;

/* Setup. Errors: VV_FAILED_PRECONDITION (this process has one for the device), VV_UNSUPPORTED (a driver without gates),
 * VV_INVALID_ARGUMENT. */
VV_API vv_status vv_scheduler_open(const vv_scheduler_options* options, vv_scheduler** out);
/* Calls that wait end with VV_CLOSED, and nobody is held back any more. */
VV_API void vv_scheduler_destroy(vv_scheduler* scheduler);

/* Setup. A place for a model that is to be loaded with it: vv_policy_options.tenant, or vv_model_options.tenant, whose
 * load admits it or refuses it with VV_FAILED_PRECONDITION and the numbers. worst_us: what a call, or a step, takes at
 * worst; 0: it is timed at load. Errors: VV_INVALID_ARGUMENT (a value; a name that is taken), VV_LIMIT_EXCEEDED,
 * VV_CLOSED. */
VV_API vv_status vv_scheduler_join(vv_scheduler* scheduler, const char* name, const vv_qos* qos, double worst_us,
                                   vv_tenant** out);
/* A model that was loaded with it keeps the place. */
VV_API void vv_tenant_destroy(vv_tenant* tenant);
/* Other demands of a tenant whose model is loaded, by the test of that load: what would not fit is
 * VV_FAILED_PRECONDITION with the numbers, and nothing changes. Guaranteed or not it stays, and so does blocking_us of
 * one that is not (VV_INVALID_ARGUMENT). */
VV_API vv_status vv_tenant_set(vv_tenant* tenant, const vv_qos* qos);
/* 1: it stands back at its next gate, or, guaranteed, its calls end with VV_FAILED_PRECONDITION, until 0. A model must
 * go on before it is destroyed, for it waits for what it has begun. */
VV_API vv_status vv_tenant_pause(vv_tenant* tenant, int paused);
/* Of a guaranteed one: its next call comes in so long, and others stand back just before. */
VV_API vv_status vv_tenant_expect_in(vv_tenant* tenant, double us);

/* What a model that went to sleep, or woke, has moved. */
typedef struct vv_moved {
  size_t struct_size;
  int64_t bytes;  /* of device memory, given back or taken again */
  double seconds; /* that it took */
} vv_moved;

/* A model that was loaded with a tenant gives its device memory back, whole, to page-locked memory of the host: its
 * bytes are others', its calls and steps end with VV_FAILED_PRECONDITION, the time that it was promised stays promised.
 * vv_..._wake() brings it back to the same addresses, so that nothing is compiled or captured anew. No call or step of
 * it may run meanwhile. `moved` may be NULL.
 * Errors: VV_FAILED_PRECONDITION (loaded without a tenant; it sleeps already, or does not; a call of it runs; at
 * waking, the numbers where its bytes are taken), VV_UNSUPPORTED (a model on the host), VV_OUT_OF_MEMORY, VV_CLOSED;
 * then it is as it was. */
struct vv_model;
struct vv_policy;
VV_API vv_status vv_model_sleep(struct vv_model* model, vv_moved* moved);
VV_API vv_status vv_model_wake(struct vv_model* model, vv_moved* moved);
VV_API vv_status vv_policy_sleep(struct vv_policy* policy, vv_moved* moved);
VV_API vv_status vv_policy_wake(struct vv_policy* policy, vv_moved* moved);

/* A dry run: whether such a tenant would be admitted. `text` gets why, with the numbers and the smallest changes that
 * would fit, as many of its bytes as `capacity` holds, with a 0 behind them. stretch_us: its longest work between two
 * gates; 0: worst_us. */
VV_API vv_status vv_scheduler_evaluate(const vv_scheduler* scheduler, const char* name, const vv_qos* qos,
                                       double worst_us, double stretch_us, int* admitted, char* text, size_t capacity);
/* Tenants and their counts as a JSON object. *bytes is its length; VV_LIMIT_EXCEEDED where `capacity` is not more than
 * that. */
VV_API vv_status vv_scheduler_stats(const vv_scheduler* scheduler, char* json, size_t capacity, size_t* bytes);

#ifdef __cplusplus
}
#endif
#endif
