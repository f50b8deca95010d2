/* Models through the C ABI, as a C99 program sees them: ports, update classes, steps, every refusal.
 * Usage: vivace_model_c MODEL. Prints and counts what differs. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/capi/check.h"
#include "vivace/capi/model.h"

enum { kBatch = 2, kChunk = 8, kPrompt = 5, kAnswer = 12 };

static vv_model* load(const char* path) {
  vv_model_options options;
  vv_model* model = NULL;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.path = path;
  options.device = "cpu";
  options.threads = 1;
  options.context = 64;
  options.max_batch = kBatch;
  options.prefill_chunk = kChunk;
  EXPECT_OK(vv_model_load(&options, &model));
  return model;
}

static int port_of(const vv_model* model, const char* name) {
  int port = -1;
  EXPECT_OK(vv_model_find_port(model, name, &port));
  return port;
}

/* Sets the four row ports: rows of one slot from `pos` on, of which the last samples. */
static void set_rows(vv_model* model, const int32_t* tokens, int n, int pos, int slot) {
  int32_t positions[kChunk], slots[kChunk], sample[kChunk];
  const size_t bytes = (size_t)n * sizeof *tokens;
  int i;
  for (i = 0; i < n; ++i) {
    positions[i] = pos + i;
    slots[i] = slot;
    sample[i] = i == n - 1;
  }
  EXPECT_OK(vv_model_set_input(model, port_of(model, "token"), tokens, bytes));
  EXPECT_OK(vv_model_set_input(model, port_of(model, "pos"), positions, bytes));
  EXPECT_OK(vv_model_set_input(model, port_of(model, "slot"), slots, bytes));
  EXPECT_OK(vv_model_set_input(model, port_of(model, "sample"), sample, bytes));
}

/* A prompt and kAnswer tokens in `slot`. */
static void answer(vv_model* model, int slot, int32_t* out) {
  static const int32_t prompt[kPrompt] = {3, 14, 15, 92, 65};
  int next = port_of(model, "next"), i;
  size_t bytes = 0;
  set_rows(model, prompt, kPrompt, 0, slot);
  for (i = 0; i < kAnswer; ++i) {
    EXPECT_OK(vv_model_step(model));
    EXPECT_OK(vv_model_get_output(model, next, &out[i], sizeof out[i], &bytes));
    EXPECT(bytes == sizeof out[i] && out[i] >= 0);
    set_rows(model, &out[i], 1, kPrompt + i, slot);
  }
}

static void test_load_errors(const char* path) {
  vv_model_options options;
  vv_model* model = (vv_model*)&options;
  memset(&options, 0, sizeof options);
  EXPECT_ERROR(vv_model_load(NULL, &model), VV_INVALID_ARGUMENT, "the struct is NULL");
  EXPECT(model == NULL);
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT, "struct_size is 0");
  options.struct_size = sizeof options;
  EXPECT_ERROR(vv_model_load(&options, NULL), VV_INVALID_ARGUMENT, "out is NULL");
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT, "options.path is NULL");
  options.path = "no-such-file.gguf";
  EXPECT_ERROR(vv_model_load(&options, &model), VV_NOT_FOUND, "no-such-file.gguf");
  options.path = path;
  options.device = "tpu";
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT, "got 'tpu'");
  options.device = "cpu";
  options.precision = "int3";
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT, "int3");
  options.precision = NULL;
  options.context = 1 << 20;
  EXPECT_ERROR(vv_model_load(&options, &model), VV_LIMIT_EXCEEDED, "context");
  options.context = 0;
  options.max_batch = -1;
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT, "max_batch");
  options.max_batch = 0;
  options.threads = -3;
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT, "threads");
  options.threads = 1;
  options.lm_head_dtype = "q3";
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT,
               "lm_head_dtype: wanted auto, plain, e4m3, e2m1, q8_0, q4_0, got 'q3'");
  options.lm_head_dtype = "";
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT, "got ''");
  options.lm_head_dtype = NULL;
  options.invariance = "loose";
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT, "invariance: wanted class or strict, got 'loose'");
  options.invariance = "strict";
  options.max_batch = 1 << 10;
  EXPECT_ERROR(vv_model_load(&options, &model), VV_UNSUPPORTED, "got max_batch 1024");
  EXPECT(model == NULL);
}

/* Options added after the first version: what is given counts, what the caller's struct ends before keeps its default.
 */
static void test_grown_options(const char* path) {
  vv_model_options options;
  vv_model_info info;
  vv_model* model = NULL;
  int newest;
  memset(&options, 0, sizeof options);
  memset(&info, 0, sizeof info);
  options.path = path;
  options.device = "cpu";
  options.precision = "bf16";
  options.threads = 1;
  options.context = 64;
  options.lm_head_dtype = "q8_0";
  options.invariance = "strict";
  info.struct_size = sizeof info;
  for (newest = 0; newest < 2; ++newest) {
    options.struct_size = newest ? sizeof options : offsetof(vv_model_options, lm_head_dtype);
    EXPECT_OK(vv_model_load(&options, &model));
    EXPECT_OK(vv_model_get_info(model, &info));
    EXPECT(strstr(info.report, newest ? "\"head_dtype\": \"q8_0\"" : "\"head_dtype\": \"bf16\"") != NULL);
    EXPECT(strstr(info.report, newest ? "\"invariance\": \"strict\"" : "\"invariance\": \"class\"") != NULL);
    vv_model_destroy(model);
  }
  options.struct_size = offsetof(vv_model_options, lm_head_dtype) - 1;
  EXPECT_ERROR(vv_model_load(&options, &model), VV_INVALID_ARGUMENT, "at least");
}

static void test_ports(const vv_model* model) {
  vv_model_info info;
  vv_port_info port;
  int i, found;
  memset(&info, 0, sizeof info);
  EXPECT_ERROR(vv_model_get_info(model, &info), VV_INVALID_ARGUMENT, "struct_size");
  info.struct_size = sizeof info;
  EXPECT_OK(vv_model_get_info(model, &info));
  EXPECT(strcmp(info.family, "llama") == 0 && strstr(info.report, "\"family\": \"llama\"") != NULL && info.bytes > 0 &&
         info.ports == 16);
  for (i = 0; i < info.ports; ++i) {
    memset(&port, 0, sizeof port);
    port.struct_size = sizeof port;
    EXPECT_OK(vv_model_get_port(model, i, &port));
    EXPECT_OK(vv_model_find_port(model, port.name, &found));
    EXPECT(found == i && port.rank >= 1 && port.rank <= VV_MAX_RANK && port.shape[0] >= 1 && port.entry_bytes >= 4);
    EXPECT(port.update != VV_SETUP || (port.direction == VV_INPUT && port.varies == 0 && port.shape[0] == kBatch));
  }
  EXPECT_ERROR(vv_model_get_port(model, info.ports, &port), VV_INVALID_ARGUMENT, "port 16");
  EXPECT_ERROR(vv_model_get_port(model, -1, &port), VV_INVALID_ARGUMENT, "port -1");
  EXPECT_ERROR(vv_model_find_port(model, "image", &found), VV_NOT_FOUND, "token, pos, slot");
  EXPECT_ERROR(vv_model_find_port(model, NULL, &found), VV_INVALID_ARGUMENT, "name is NULL");
  EXPECT_ERROR(vv_model_find_port(NULL, "token", &found), VV_INVALID_ARGUMENT, "model is NULL");
}

static void test_sequences(vv_model* model) {
  const vv_text_extension* text = NULL;
  const void* table = NULL;
  int32_t alone[kAnswer], other[kAnswer], drawn[kAnswer], again[kAnswer];
  float warm[kBatch] = {0, 1.5f};
  EXPECT_ERROR(vv_model_query_extension(model, "vivace.images", &table), VV_NOT_FOUND, "vivace.text");
  EXPECT(table == NULL);
  EXPECT_OK(vv_model_query_extension(model, VV_TEXT_EXTENSION, &table));
  text = (const vv_text_extension*)table;
  EXPECT(text->struct_size == sizeof *text && text->max_batch(model) == kBatch && text->prefill_chunk(model) == kChunk);
  EXPECT(text->context(model) == 64 && text->vocab(model) > 0 && text->vocab(NULL) == 0);

  answer(model, 0, alone);
  answer(model, 1, other);
  EXPECT(memcmp(alone, other, sizeof alone) == 0);
  /* A changed SETUP value stops steps of its slot, and of no other, until it is prepared. */
  EXPECT_OK(vv_model_set_input(model, port_of(model, "temperature"), warm, sizeof warm));
  EXPECT_ERROR(vv_model_step(model), VV_FAILED_PRECONDITION, "slot 1: a SETUP port was set");
  EXPECT_OK(text->restart(model, 0));
  answer(model, 0, other);
  EXPECT(memcmp(alone, other, sizeof alone) == 0);
  EXPECT_OK(vv_model_prepare(model));
  answer(model, 1, drawn);
  EXPECT(memcmp(alone, drawn, sizeof alone) != 0);
  EXPECT_OK(text->restart(model, 1));
  answer(model, 1, again);
  EXPECT(memcmp(drawn, again, sizeof drawn) == 0);
  EXPECT_ERROR(text->restart(model, kBatch), VV_INVALID_ARGUMENT, "slot 2");
  EXPECT_ERROR(text->restart(NULL, 0), VV_INVALID_ARGUMENT, "model is NULL");
  warm[1] = -1;
  EXPECT_OK(vv_model_set_input(model, port_of(model, "temperature"), warm, sizeof warm));
  EXPECT_ERROR(vv_model_prepare(model), VV_INVALID_ARGUMENT, "slot 1: temperature");
  warm[1] = 0;
  EXPECT_OK(vv_model_set_input(model, port_of(model, "temperature"), warm, sizeof warm));
  EXPECT_OK(vv_model_prepare(model));
  answer(model, 1, again);
  EXPECT(memcmp(alone, again, sizeof alone) == 0);
}

/* Logits: written where the caller says, or copied when asked; the same either way, and next is their peak. */
static void test_logits(vv_model* model) {
  static const int32_t prompt[kPrompt] = {3, 14, 15, 92, 65};
  vv_port_info port;
  const int logits = port_of(model, "logits");
  size_t row, bytes = 0;
  float *swapped, *copied;
  int32_t next = -1;
  int i, best = 0;
  memset(&port, 0, sizeof port);
  port.struct_size = sizeof port;
  EXPECT_OK(vv_model_get_port(model, logits, &port));
  EXPECT(port.update == VV_SWAP && port.rank == 2 && port.entry_bytes == sizeof(float) * (size_t)port.shape[1]);
  row = port.entry_bytes;
  swapped = (float*)calloc(kBatch, row);
  copied = (float*)calloc(1, row);
  EXPECT_ERROR(vv_model_swap(model, logits, swapped, row), VV_INVALID_SHAPE, "logits");
  EXPECT_ERROR(vv_model_swap(model, logits, (char*)swapped + 1, kBatch * row), VV_INVALID_LAYOUT, "logits");
  EXPECT_ERROR(vv_model_swap(model, port_of(model, "token"), swapped, row), VV_INVALID_ARGUMENT, "no VV_SWAP port");
  set_rows(model, prompt, kPrompt, 0, 0);
  EXPECT_OK(vv_model_step(model));
  EXPECT_ERROR(vv_model_get_output(model, logits, copied, row - 1, &bytes), VV_LIMIT_EXCEEDED, "logits");
  EXPECT(bytes == row);
  EXPECT_OK(vv_model_get_output(model, logits, copied, row, &bytes));
  EXPECT_OK(vv_model_swap(model, logits, swapped, kBatch * row));
  EXPECT_OK(vv_model_get_output(model, logits, NULL, 0, &bytes));
  EXPECT(bytes == 0); /* of no step since the swap */
  EXPECT_OK(vv_model_step(model));
  EXPECT(memcmp(swapped, copied, row) == 0);
  EXPECT_OK(vv_model_get_output(model, port_of(model, "next"), &next, sizeof next, &bytes));
  for (i = 1; i < (int)port.shape[1]; ++i) best = copied[i] > copied[best] ? i : best;
  EXPECT(next == best);
  EXPECT_OK(vv_model_swap(model, logits, NULL, 0));
  free(swapped);
  free(copied);
}

static void test_step_errors(vv_model* model, const char* path) {
  static const int32_t five[kPrompt] = {3, 14, 15, 92, 65};
  static const int32_t twos[kPrompt] = {2, 2, 2, 2, 2}, huge[1] = {1 << 30}, last[1] = {64};
  vv_model* fresh = load(path);
  const int token = port_of(model, "token"), next = port_of(model, "next");
  int32_t out[kBatch];
  size_t bytes = 7;
  EXPECT_ERROR(vv_model_step(fresh), VV_FAILED_PRECONDITION, "port token: was never set");
  EXPECT_OK(vv_model_set_input(fresh, token, five, sizeof five));
  EXPECT_ERROR(vv_model_step(fresh), VV_FAILED_PRECONDITION, "port pos: was never set");
  vv_model_destroy(fresh);

  EXPECT_ERROR(vv_model_set_input(model, token, NULL, 4), VV_INVALID_ARGUMENT, "data is NULL");
  EXPECT_ERROR(vv_model_set_input(model, token, five, 0), VV_INVALID_SHAPE, "wanted 1 to 8 entries of 4 bytes, got 0");
  EXPECT_ERROR(vv_model_set_input(model, token, five, 7), VV_INVALID_SHAPE, "got 7 bytes");
  EXPECT_ERROR(vv_model_set_input(model, token, five, 4 * (kChunk + 1)), VV_INVALID_SHAPE, "got 36 bytes");
  EXPECT_ERROR(vv_model_set_input(model, port_of(model, "top_k"), five, 4), VV_INVALID_SHAPE, "wanted 2 to 2 entries");
  EXPECT_ERROR(vv_model_set_input(model, next, five, 4), VV_INVALID_ARGUMENT, "is an output");
  EXPECT_ERROR(vv_model_set_input(model, 99, five, 4), VV_INVALID_ARGUMENT, "port 99");
  EXPECT_ERROR(vv_model_get_output(model, token, out, sizeof out, &bytes), VV_INVALID_ARGUMENT, "is an input");
  EXPECT(bytes == 0);
  EXPECT_ERROR(vv_model_get_output(model, next, out, sizeof out, NULL), VV_INVALID_ARGUMENT, "bytes is NULL");

  set_rows(model, five, kPrompt, 0, 0);
  EXPECT_OK(vv_model_set_input(model, token, five, 4 * 3));
  EXPECT_ERROR(vv_model_step(model), VV_INVALID_SHAPE, "port pos: has 5 rows but port token has 3");
  EXPECT_OK(vv_model_get_output(model, next, out, sizeof out, &bytes));
  EXPECT(bytes == 0); /* the failed step left none */
  set_rows(model, five, kPrompt, 0, 0);
  EXPECT_OK(vv_model_set_input(model, port_of(model, "sample"), twos, sizeof twos));
  EXPECT_ERROR(vv_model_step(model), VV_INVALID_ARGUMENT, "port sample: row 0: wanted 0 or 1, got 2");
  set_rows(model, five, kPrompt, 0, 0);
  EXPECT_OK(vv_model_set_input(model, port_of(model, "slot"), twos, sizeof twos));
  EXPECT_ERROR(vv_model_step(model), VV_INVALID_ARGUMENT, "slot 2");
  set_rows(model, huge, 1, 0, 0);
  EXPECT_ERROR(vv_model_step(model), VV_INVALID_ARGUMENT, "token 1073741824");
  set_rows(model, five, 1, 0, 0);
  EXPECT_OK(vv_model_set_input(model, port_of(model, "pos"), last, sizeof last));
  EXPECT_ERROR(vv_model_step(model), VV_LIMIT_EXCEEDED, "position 64");
  EXPECT_ERROR(vv_model_step(NULL), VV_INVALID_ARGUMENT, "model is NULL");
  set_rows(model, five, kPrompt, 0, 0);
  EXPECT_OK(vv_model_step(model)); /* and the model is as usable as before */
}

int main(int argc, char** argv) {
  vv_model* model;
  if (argc != 2) return 2;
  test_load_errors(argv[1]);
  test_grown_options(argv[1]);
  model = load(argv[1]);
  if (model == NULL) return 1;
  test_ports(model);
  test_sequences(model);
  test_logits(model);
  test_step_errors(model, argv[1]);
  vv_model_destroy(model);
  vv_model_destroy(NULL);
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
