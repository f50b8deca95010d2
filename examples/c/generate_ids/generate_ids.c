/* Greedy generation from C: token ids in, token ids out, through ports.
 *     generate_ids_c MODEL MAX_TOKENS ID... */
#include <stdio.h>
#include <stdlib.h>

#include "vivace/capi/model.h"

enum { kMaxRows = 128 };

static int failed(void) {
  fprintf(stderr, "%s\n", vv_last_error());
  return 1;
}

/* Names once, numbers on the hot path. */
typedef struct ports {
  int token, pos, slot, sample, next;
} ports;

static int find_ports(const vv_model* model, ports* p) {
  return vv_model_find_port(model, "token", &p->token) == VV_OK && vv_model_find_port(model, "pos", &p->pos) == VV_OK &&
         vv_model_find_port(model, "slot", &p->slot) == VV_OK &&
         vv_model_find_port(model, "sample", &p->sample) == VV_OK &&
         vv_model_find_port(model, "next", &p->next) == VV_OK;
}

/* One step over `n` rows of slot 0 from position `pos` on; the last row's next token. */
static int step(vv_model* model, const ports* p, const int32_t* tokens, int n, int pos, int32_t* next) {
  int32_t positions[kMaxRows], slots[kMaxRows], sample[kMaxRows];
  const size_t bytes = (size_t)n * sizeof *tokens;
  size_t got;
  int i;
  for (i = 0; i < n; ++i) {
    positions[i] = pos + i;
    slots[i] = 0;
    sample[i] = i == n - 1;
  }
  return vv_model_set_input(model, p->token, tokens, bytes) == VV_OK &&
         vv_model_set_input(model, p->pos, positions, bytes) == VV_OK &&
         vv_model_set_input(model, p->slot, slots, bytes) == VV_OK &&
         vv_model_set_input(model, p->sample, sample, bytes) == VV_OK && vv_model_step(model) == VV_OK &&
         vv_model_get_output(model, p->next, next, sizeof *next, &got) == VV_OK;
}

int main(int argc, char** argv) {
  vv_model_options options = {0};
  vv_model* model;
  ports p;
  int32_t tokens[kMaxRows], next;
  int count = argc - 3, left, pos, i;
  if (count < 1 || count > kMaxRows) {
    fprintf(stderr, "usage: %s MODEL MAX_TOKENS ID... (1 to %d ids)\n", argv[0], kMaxRows);
    return 2;
  }
  options.struct_size = sizeof options;
  options.path = argv[1];
  options.prefill_chunk = kMaxRows;
  if (vv_model_load(&options, &model) != VV_OK || !find_ports(model, &p)) return failed();

  for (i = 0; i < count; ++i) tokens[i] = (int32_t)atoi(argv[3 + i]);
  pos = 0;
  for (left = atoi(argv[2]); left > 0; --left) {
    if (!step(model, &p, tokens, count, pos, &next)) return failed();
    printf("%d ", (int)next);
    pos += count;
    tokens[0] = next;
    count = 1;
  }
  printf("\n");
  vv_model_destroy(model);
  return 0;
}
