/* Models through the C ABI: load, set inputs, step, get outputs. C99, on top of vivace.h, whose rules on
 * statuses, out parameters, handles and struct_size hold here.
 *
 * A model is a list of ports: named arrays that go in or come out. Their update class says when a value
 * may change and what a change costs:
 *     VV_SETUP   between sequences: vv_model_set_input() keeps the value, vv_model_prepare() makes it count.
 *                May allocate, never on the hot path.
 *     VV_STAGED  every step: vv_model_set_input() copies the value in, the next step uses that copy;
 *                vv_model_get_output() copies a result out.
 *     VV_SWAP    every step, without a copy kept here: vv_model_swap() names memory of the caller's that
 *                steps use from then on. Large arrays are of this class.
 * vv_model_set_input() on STAGED ports, vv_model_swap(), vv_model_step() and vv_model_get_output() neither
 * allocate nor compile nor fault, unless they fail. */
#ifndef VIVACE_MODEL_H
#define VIVACE_MODEL_H

#include "vivace/capi/vivace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct vv_model vv_model;

/* ---- Load. Setup only. ---- */

typedef struct vv_model_options {
  size_t struct_size;
  const char* path;      /* a .gguf or .safetensors file, or a hub folder */
  const char* device;    /* NULL = "auto"; "cpu", "cuda", "cuda:N" */
  const char* precision; /* NULL = "auto"; the family's plans: "q8", "f32", ... */
  const char* kv_dtype;  /* NULL = "auto"; "f16", "bf16", "f32" */
  int threads;           /* CPU: 0 picks one a physical core */
  int context;           /* positions a sequence may hold; 0: the model's own, at most 4096 */
  int max_batch;         /* sequences live at once; 0 = 1 */
  int prefill_chunk;             /* rows a step may take; 0 = as suits: 128 to 1024 */
  const char* lm_head_dtype;     /* what the last product becomes: NULL = "auto" (as precision says); "plain", "e4m3",
                                    "e2m1", "q8_0", "q4_0" */
  const char* invariance; /* NULL = "class": bits of a row depend on its class; "strict": there is one class */
  struct vv_tenant*
      tenant; /* of sched.h: its place at a scheduler, for which its steps stand back; NULL: nobody schedules it */
  const char* decode_layers; /* whether a step of one token is one launch for all layers: NULL = "auto"; "on", "off" */
} vv_model_options;

typedef struct vv_model_info {
  size_t struct_size;
  const char* family; /* "llama"; valid as long as the model, like report */
  const char* report; /* every decision of the load, one JSON object */
  int64_t bytes;      /* exact: mapped weights and every buffer */
  int ports;          /* they are numbered 0 .. ports - 1 */
} vv_model_info;

/* Errors: VV_NOT_FOUND, VV_CORRUPT_DATA, VV_UNSUPPORTED (names what is served), VV_OUT_OF_MEMORY,
 * VV_INVALID_ARGUMENT (an option), VV_LIMIT_EXCEEDED (a context beyond the model's). */
VV_API vv_status vv_model_load(const vv_model_options* options, vv_model** out);
VV_API vv_status vv_model_get_info(const vv_model* model, vv_model_info* info);
VV_API void vv_model_destroy(vv_model* model);

/* ---- Ports ---- */

typedef int32_t vv_direction;
enum { VV_INPUT = 0, VV_OUTPUT = 1 };
typedef int32_t vv_update;
enum { VV_SETUP = 0, VV_STAGED = 1, VV_SWAP = 2 };
#define VV_MAX_RANK 6

typedef struct vv_port_info {
  size_t struct_size;
  const char* name;  /* valid as long as the model, like dtype */
  const char* dtype; /* "i32", "f32", "i64" */
  vv_direction direction;
  vv_update update;
  int rank;
  int64_t shape[VV_MAX_RANK]; /* outermost first; where `varies`, shape[0] is a bound */
  int varies;                 /* 1: a step may give or produce fewer than shape[0] entries */
  size_t entry_bytes;         /* of one entry of the outermost axis */
} vv_port_info;

VV_API vv_status vv_model_get_port(const vv_model* model, int port, vv_port_info* info);
/* VV_NOT_FOUND lists the ports there are. */
VV_API vv_status vv_model_find_port(const vv_model* model, const char* name, int* port);

/* ---- Steps ---- */

/* Copies `bytes`, a whole number of entries: 1 to shape[0] where the port varies, else all of them.
 * Errors: VV_INVALID_ARGUMENT (an output, a SWAP port), VV_INVALID_SHAPE (the number of bytes). */
VV_API vv_status vv_model_set_input(vv_model* model, int port, const void* data, size_t bytes);
/* Steps use `data`, of `bytes` as shape says, instead of memory of the model's, until the next call; NULL
 * and 0 end that. It must stay valid meanwhile. Only for SWAP ports: VV_INVALID_ARGUMENT elsewhere. */
VV_API vv_status vv_model_swap(vv_model* model, int port, void* data, size_t bytes);
/* Makes values of SETUP ports count; sequences whose values changed begin anew. Errors name the value that
 * is out of range; then nothing counts. */
VV_API vv_status vv_model_prepare(vv_model* model);
/* Runs once over what was set. Errors: VV_FAILED_PRECONDITION (an input was never set, or a SETUP port was
 * set but not prepared), VV_INVALID_SHAPE (inputs of different lengths), and what the model refuses.
 * After an error the outputs are empty, and the inputs are as they were. */
VV_API vv_status vv_model_step(vv_model* model);
/* Copies the last step's output; `bytes` gets its size. VV_LIMIT_EXCEEDED if `capacity` is less: then
 * nothing is written and `bytes` still says how much it is. */
VV_API vv_status vv_model_get_output(vv_model* model, int port, void* data, size_t capacity, size_t* bytes);

/* ---- Extensions: what not every model has ---- */

/* A table of functions by name, or VV_NOT_FOUND, which lists this model's. The table starts with its
 * size_t struct_size and only grows at its end; it is static. */
VV_API vv_status vv_model_query_extension(const vv_model* model, const char* name, const void** table);

/* Language models: rows of tokens in, next tokens out, state in slots.
 *   inputs   token, pos, slot, sample   i32 [prefill_chunk], STAGED: a row is a token, its position in its sequence,
 *                                       whose sequence, and whether the next token after it is wanted (0, 1)
 *            temperature, top_p, min_p, repetition, presence, frequency  f32 [max_batch], SETUP
 *            top_k i32, seed i64        [max_batch], SETUP; temperature 0 is greedy
 *   outputs  next i32, logprob f32, next_slot i32   [max_batch], STAGED: an entry a row that sampled, in row
 *                                                   order; next -1: its logits were NaN
 *            logits f32 [max_batch, vocab], SWAP: written by steps only where memory was given, and
 *                                                 read by vv_model_get_output() in any case */
#define VV_TEXT_EXTENSION "vivace.text"
typedef struct vv_text_extension {
  size_t struct_size;
  /* Forgets the sequence of a slot and takes over its SETUP values; the other slots go on. Setup. */
  vv_status (*restart)(vv_model* model, int slot);
  int (*vocab)(const vv_model* model);
  int (*context)(const vv_model* model);
  int (*max_batch)(const vv_model* model);
  int (*prefill_chunk)(const vv_model* model);
} vv_text_extension;

#ifdef __cplusplus
}
#endif
#endif
