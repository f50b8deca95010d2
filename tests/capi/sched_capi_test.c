/* The scheduler through the C ABI, as a C99 program sees it: a policy and a language model as tenants, and every
 * refusal. What is admitted and who goes first is the business of tests/sched and tests/test_schedule.py. */
#include <stdio.h>
#include <stddef.h>
#include <string.h>

#include "tests/capi/check.h"
#include "vivace/capi/model.h"
#include "vivace/capi/policy.h"
#include "vivace/capi/sched.h"

static vv_qos qos_of(vv_qos_class of) {
  vv_qos q;
  memset(&q, 0, sizeof q);
  q.struct_size = sizeof q;
  q.qos_class = of;
  if (of == VV_GUARANTEED) q.period_us = 1e6, q.deadline_us = 900e3, q.blocking_us = 1e6;
  return q;
}

static void test_refused(vv_scheduler* gpu) {
  vv_scheduler* other = NULL;
  vv_tenant* tenant = NULL;
  vv_scheduler_options o;
  vv_qos q = qos_of(VV_GUARANTEED);
  char text[400];
  size_t bytes = 0;
  int admitted = 1;
  memset(&o, 0, sizeof o);
  EXPECT_ERROR(vv_scheduler_open(NULL, &other), VV_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(vv_scheduler_open(&o, &other), VV_INVALID_ARGUMENT, "struct_size");
  o.struct_size = sizeof o;
  o.device = "cpu";
  EXPECT_ERROR(vv_scheduler_open(&o, NULL), VV_INVALID_ARGUMENT, "out");
  EXPECT_ERROR(vv_scheduler_open(&o, &other), VV_FAILED_PRECONDITION, "this process has one for cpu");
  o.utilisation = 1.5;
  EXPECT_ERROR(vv_scheduler_open(&o, &other), VV_INVALID_ARGUMENT, "utilisation");
  o.utilisation = 0, o.bytes = -1;
  EXPECT_ERROR(vv_scheduler_open(&o, &other), VV_INVALID_ARGUMENT, "bytes");
  o.bytes = 0, o.device = "tpu";
  EXPECT_ERROR(vv_scheduler_open(&o, &other), VV_INVALID_ARGUMENT, "tpu");
  EXPECT(other == NULL);
  EXPECT_ERROR(vv_scheduler_join(NULL, "a", &q, 0, &tenant), VV_INVALID_ARGUMENT, "scheduler is NULL");
  EXPECT_ERROR(vv_scheduler_join(gpu, NULL, &q, 0, &tenant), VV_INVALID_ARGUMENT, "name is NULL");
  EXPECT_ERROR(vv_scheduler_join(gpu, "a", NULL, 0, &tenant), VV_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(vv_scheduler_join(gpu, "a", &q, -1, &tenant), VV_INVALID_ARGUMENT, "worst_us");
  q.qos_class = 7;
  EXPECT_ERROR(vv_scheduler_join(gpu, "a", &q, 0, &tenant), VV_INVALID_ARGUMENT, "got 7");
  q = qos_of(VV_BURSTABLE);
  q.min_share = 1.5;
  EXPECT_ERROR(vv_scheduler_join(gpu, "a", &q, 0, &tenant), VV_INVALID_ARGUMENT, "min_share is 1.5");
  q = qos_of(VV_GUARANTEED);
  EXPECT_ERROR(vv_scheduler_evaluate(gpu, "a", &q, 0, 0, &admitted, NULL, 0), VV_FAILED_PRECONDITION,
               "profile the model first");
  EXPECT_ERROR(vv_scheduler_evaluate(gpu, "a", &q, 1e6, 0, &admitted, NULL, 0), VV_FAILED_PRECONDITION,
               "its deadline is 900000 us");
  EXPECT(admitted == 0 && tenant == NULL);
  EXPECT_OK(vv_scheduler_evaluate(gpu, "a", &q, 10e3, 0, &admitted, text, sizeof text));
  EXPECT(admitted == 1 && strstr(text, "a call ends within") != NULL);
  EXPECT_OK(vv_scheduler_evaluate(gpu, "a", &q, 10e3, 0, &admitted, text, 4));
  EXPECT(strcmp(text, "a: ") == 0);
  EXPECT_ERROR(vv_scheduler_stats(gpu, NULL, 0, &bytes), VV_LIMIT_EXCEEDED, "are needed");
  EXPECT(bytes > 20);
  EXPECT_ERROR(vv_scheduler_stats((vv_scheduler*)(void*)gpu, text, 2, NULL), VV_INVALID_ARGUMENT, "bytes is NULL");
  EXPECT_ERROR(vv_tenant_expect_in(NULL, 1), VV_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(vv_tenant_expect_in((vv_tenant*)(void*)gpu, 1), VV_INVALID_ARGUMENT, "another kind");
  EXPECT_ERROR(vv_tenant_set(NULL, NULL), VV_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(vv_tenant_pause((vv_tenant*)(void*)gpu, 1), VV_INVALID_ARGUMENT, "another kind");
  vv_scheduler_destroy(NULL);
  vv_tenant_destroy(NULL);
}

/* argv: a language model, a folder with pi0_tiny. */
int main(int argc, char** argv) {
  vv_scheduler* gpu = NULL;
  vv_tenant *arm = NULL, *llm = NULL, *late = NULL;
  vv_policy* policy = NULL;
  vv_model* model = NULL;
  vv_scheduler_options o;
  vv_policy_options p;
  vv_model_options m;
  vv_policy_info info;
  vv_moved moved;
  vv_qos guaranteed = qos_of(VV_GUARANTEED), burstable = qos_of(VV_BURSTABLE);
  static unsigned char pixels[224 * 224 * 3];
  static float actions[64 * 64], state[64];
  static char json[8192];
  const int32_t tokens[2] = {2, 5}, row[4] = {5, 0, 0, 1};
  vv_frame views[2];
  vv_observation seen;
  size_t bytes = 0;
  int i, port = 0;
  static const char* const inputs[4] = {"token", "pos", "slot", "sample"};
  if (argc != 3) return 2;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o, o.device = "cpu";
  EXPECT_OK(vv_scheduler_open(&o, &gpu));
  if (gpu == NULL) return 1;
  test_refused(gpu);

  EXPECT_OK(vv_scheduler_join(gpu, "arm", &guaranteed, 300e3, &arm));
  EXPECT_ERROR(vv_scheduler_join(gpu, "arm", &guaranteed, 0, &late), VV_INVALID_ARGUMENT, "there is one of this name");
  EXPECT_ERROR(vv_tenant_expect_in(arm, 1e5), VV_FAILED_PRECONDITION, "not admitted yet");
  memset(&p, 0, sizeof p);
  p.struct_size = sizeof p, p.path = argv[2], p.config = "pi0", p.device = "cpu", p.statistics = "none", p.views = 2,
  p.horizon = 10, p.steps = 2, p.threads = 1, p.tenant = arm;
  p.partition = 0.5; /* the host has none, whichever way it would be used */
  for (p.keep_partition = 0; p.keep_partition < 2; ++p.keep_partition)
    EXPECT_ERROR(vv_policy_load(&p, &policy), VV_UNSUPPORTED, "partition: the host is shared by threads");
  p.partition = 0;
  p.struct_size = offsetof(vv_policy_options, keep_partition); /* a caller of before this field */
  EXPECT_OK(vv_policy_load(&p, &policy));
  burstable.min_share = 0.2;
  EXPECT_OK(vv_scheduler_join(gpu, "llm", &burstable, 0, &llm));
  memset(&m, 0, sizeof m);
  m.struct_size = sizeof m, m.path = argv[1], m.device = "cpu", m.threads = 1, m.tenant = llm;
  EXPECT_OK(vv_model_load(&m, &model));
  m.tenant = arm;
  {
    vv_model* none = NULL;
    EXPECT_ERROR(vv_model_load(&m, &none), VV_INVALID_ARGUMENT, "have no deadline");
    m.tenant = llm;
    EXPECT_ERROR(vv_model_load(&m, &none), VV_FAILED_PRECONDITION, "admitted already");
    EXPECT(none == NULL);
  }
  if (policy == NULL || model == NULL) return 1;
  EXPECT_OK(vv_tenant_set(llm, &burstable));
  burstable.min_share = 0.99;
  EXPECT_ERROR(vv_tenant_set(llm, &burstable), VV_FAILED_PRECONDITION, "is left");
  EXPECT_ERROR(vv_tenant_set(llm, &guaranteed), VV_INVALID_ARGUMENT, "load it again");
  EXPECT_OK(vv_tenant_pause(arm, 1));
  EXPECT_OK(vv_tenant_pause(arm, 0));
  vv_tenant_destroy(arm), vv_tenant_destroy(llm); /* the models keep their places */

  memset(&moved, 0x5a, sizeof moved);
  moved.struct_size = 4;
  EXPECT_ERROR(vv_model_sleep(model, &moved), VV_INVALID_ARGUMENT, "struct_size is 4");
  moved.struct_size = sizeof moved;
  EXPECT_ERROR(vv_model_wake(model, &moved), VV_FAILED_PRECONDITION, "does not sleep");
  EXPECT(moved.bytes == 0 && moved.seconds == 0);
  EXPECT_ERROR(vv_model_sleep(model, NULL), VV_UNSUPPORTED, "on the host");
  EXPECT_ERROR(vv_policy_sleep(policy, &moved), VV_UNSUPPORTED, "on the host");
  EXPECT_ERROR(vv_policy_wake(policy, NULL), VV_FAILED_PRECONDITION, "does not sleep");
  EXPECT_ERROR(vv_policy_sleep(NULL, NULL), VV_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(vv_model_sleep((vv_model*)(void*)policy, NULL), VV_INVALID_ARGUMENT, "another kind");
  {
    vv_model* own = NULL;
    m.tenant = NULL;
    EXPECT_OK(vv_model_load(&m, &own));
    EXPECT_ERROR(vv_model_sleep(own, NULL), VV_FAILED_PRECONDITION, "loaded without a tenant");
    vv_model_destroy(own);
  }

  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  EXPECT_OK(vv_policy_get_info(policy, &info));
  for (i = 0; i < 2; ++i) views[i].data = pixels, views[i].height = views[i].width = 224, views[i].stride = 224 * 3;
  memset(&seen, 0, sizeof seen);
  seen.struct_size = sizeof seen, seen.views = views, seen.view_count = 2, seen.tokens = tokens, seen.token_count = 2;
  seen.state = state, seen.state_count = info.state_dim != 0 ? info.state_dim : info.robot_dim;
  EXPECT_OK(vv_policy_predict(policy, &seen, 1, actions, sizeof actions / sizeof *actions));
  for (i = 0; i < 4; ++i) {
    EXPECT_OK(vv_model_find_port(model, inputs[i], &port));
    EXPECT_OK(vv_model_set_input(model, port, &row[i], sizeof row[i]));
  }
  EXPECT_OK(vv_model_step(model));
  EXPECT_OK(vv_scheduler_stats(gpu, json, sizeof json, &bytes));
  EXPECT(strlen(json) == bytes && strstr(json, "\"arm\": {\"class\": \"guaranteed\", \"calls\": 1,") != NULL &&
         strstr(json, "\"llm\": {\"class\": \"burstable\", \"calls\": 1,") != NULL);

  vv_scheduler_destroy(gpu);
  EXPECT_ERROR(vv_policy_predict(policy, &seen, 1, actions, sizeof actions / sizeof *actions), VV_CLOSED, "closed");
  EXPECT_OK(vv_model_step(model)); /* nobody holds it back any more */
  vv_policy_destroy(policy);
  vv_model_destroy(model);
  gpu = NULL;
  EXPECT_OK(vv_scheduler_open(&o, &gpu)); /* the device is free again */
  vv_scheduler_destroy(gpu);
  if (failures != 0) printf("%d failures\n", failures);
  return failures != 0;
}
