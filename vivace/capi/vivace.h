/* The C ABI of Vivace: C99, plain handles, status codes.
 *
 * IS     the execution contract (buffer, graph, plan, event, stream) for programs in any language.
 * IS NOT policy: nothing here knows what a launch computes or whom it serves.
 *
 * Every fallible call answers a vv_status and never throws. After a failure vv_last_error() says why,
 * for this thread. Out parameters (handles, numbers, structs behind struct_size) are NULL or 0 after a
 * failure; arrays of the caller's are as they were. Handles are released by their
 * vv_..._destroy (NULL is allowed) in any order: what a plan or stream still needs stays alive behind
 * it. A handle is used by one thread at a time. A handle of another kind is VV_INVALID_ARGUMENT, and so
 * mostly is one that was destroyed; using that is a mistake all the same.
 * A callback may throw what it likes: it ends there as VV_INTERNAL, or in silence where there is no status.
 *
 * Structs start with `struct_size`, which the caller sets to sizeof(its struct): they only ever grow at
 * the end, so that old programs run with new libraries and the reverse. */
#ifndef VIVACE_H
#define VIVACE_H

#include <stddef.h>
#include <stdint.h>

#define VV_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ---- */

/* Values and names are stable; docs/errors.md says what each means. */
typedef int32_t vv_status; /* an integer type: a callback may answer any number */
enum {
  VV_OK = 0,
  VV_INVALID_ARGUMENT = 1,
  VV_INVALID_SHAPE = 2,
  VV_INVALID_DTYPE = 3,
  VV_INVALID_LAYOUT = 4,
  VV_INVALID_DEVICE = 5,
  VV_ALIAS_ERROR = 6,
  VV_UNSUPPORTED = 7,
  VV_NO_VARIANT = 8,
  VV_NOT_FOUND = 9,
  VV_CORRUPT_DATA = 10,
  VV_IO_ERROR = 11,
  VV_OUT_OF_MEMORY = 12,
  VV_LIMIT_EXCEEDED = 13,
  VV_COMPILE_ERROR = 14,
  VV_CUDA_ERROR = 15,
  VV_CLOSED = 16,
  VV_CANCELLED = 17,
  VV_FAILED_PRECONDITION = 18,
  VV_INTERNAL = 19
};

/* "0.1.0": static. */
VV_API const char* vv_version(void);
/* "NoVariant"; "?" for a number that is no status. Static. */
VV_API const char* vv_status_name(vv_status status);
/* Why this thread's last failed call failed; "" before the first. Valid until its next failure. */
VV_API const char* vv_last_error(void);
/* For callbacks: sets the text of vv_last_error() and answers `status`, as in
 *     return vv_fail(VV_INVALID_SHAPE, "q: wanted 64 rows"); */
VV_API vv_status vv_fail(vv_status status, const char* why);

/* ---- Backend: where the rest comes from. Setup only. ---- */

typedef struct vv_backend vv_backend;
typedef struct vv_stream vv_stream;
typedef struct vv_event vv_event;
typedef struct vv_buffer vv_buffer;
typedef struct vv_graph vv_graph;
typedef struct vv_plan vv_plan;

typedef struct vv_backend_options {
  size_t struct_size;
  const char* kind; /* "cpu" or "cuda" */
  int ordinal;      /* cuda: which device */
  int threads;      /* cpu: worker threads, the caller included; 0 picks one a physical core */
} vv_backend_options;

/* Errors: VV_INVALID_ARGUMENT, VV_UNSUPPORTED (no driver, no device). */
VV_API vv_status vv_backend_create(const vv_backend_options* options, vv_backend** out);
VV_API void vv_backend_destroy(vv_backend* backend);
/* "cpu", "cuda:0"; NULL for NULL. Valid as long as the backend. */
VV_API const char* vv_backend_name(const vv_backend* backend);
/* Stream priorities run from 0, the least urgent, to this number - 1. 0 for NULL. */
VV_API int vv_backend_priority_levels(const vv_backend* backend);

/* ---- Buffer: a named region. Owns its lifetime, has no verbs. ---- */

typedef int32_t vv_place;
enum { VV_HOST = 0, VV_DEVICE = 1 };
typedef void (*vv_deleter)(void* data, size_t bytes, void* context);

typedef struct vv_buffer_info {
  size_t struct_size;
  const char* name; /* valid as long as the buffer */
  void* data;       /* stable for the life of the buffer */
  size_t bytes;
  vv_place place;
} vv_buffer_info;

/* Zeroed, aligned to 256 bytes, reachable by the backend's launches. */
VV_API vv_status vv_buffer_create(vv_backend* backend, const char* name, size_t bytes, vv_buffer** out);
/* Memory that others made. `deleter` may be NULL: then it stays the caller's and must outlive the
 * buffer. On failure the deleter is not called. */
VV_API vv_status vv_buffer_wrap(const char* name, void* data, size_t bytes, vv_place place, vv_deleter deleter,
                                void* context, vv_buffer** out);
VV_API vv_status vv_buffer_get_info(const vv_buffer* buffer, vv_buffer_info* info);
VV_API void vv_buffer_destroy(vv_buffer* buffer);

/* ---- Stream and event ---- */

/* Runs on the calling thread of a CPU stream; `args` is a copy, aligned to 64 bytes. */
typedef void (*vv_host_fn)(const void* args);
#define VV_MAX_ARGS_BYTES 576

typedef struct vv_launch {
  size_t struct_size;
  const char* op; /* for errors; must stay valid while a capture holds the launch */
  vv_host_fn host;
  const void* args; /* copied by the call */
  size_t args_bytes;
} vv_launch;

VV_API vv_status vv_stream_create(vv_backend* backend, int level, vv_stream** out);
/* A CUstream that others own (a framework's); it is not destroyed here. */
VV_API vv_status vv_stream_wrap_cuda(vv_backend* backend, void* cu_stream, vv_stream** out);
/* The CUstream, to launch the caller's own kernels on, also while a graph captures. VV_UNSUPPORTED for
 * a CPU stream. */
VV_API vv_status vv_stream_get_cuda(vv_stream* stream, void** cu_stream);
/* Host functions, on CPU streams: VV_INVALID_ARGUMENT elsewhere. Runs at once, or is recorded. */
VV_API vv_status vv_stream_launch(vv_stream* stream, const vv_launch* launch);
/* Any two places the backend reaches; the ranges must not overlap (VV_ALIAS_ERROR). */
VV_API vv_status vv_stream_copy(vv_stream* stream, void* to, const void* from, size_t bytes);
VV_API vv_status vv_stream_record(vv_stream* stream, vv_event* event);
/* Waiting for an event that was never recorded is no wait. */
VV_API vv_status vv_stream_wait(vv_stream* stream, vv_event* event);
VV_API vv_status vv_stream_synchronize(vv_stream* stream);
VV_API void vv_stream_destroy(vv_stream* stream);

VV_API vv_status vv_event_create(vv_backend* backend, vv_event** out);
VV_API vv_status vv_event_synchronize(vv_event* event);
VV_API void vv_event_destroy(vv_event* event);

/* ---- Graph: shape key -> captured executable, bounded ---- */

/* Opaque, matched exactly: what it encodes is the caller's. */
typedef uint64_t vv_shape_key;
/* Enqueues the work to record. Anything but VV_OK discards the capture. */
typedef vv_status (*vv_capture_fn)(vv_stream* stream, void* context);

typedef struct vv_graph_info {
  size_t struct_size;
  const char* name; /* valid as long as the graph */
  size_t bound;     /* most variants */
  size_t variants;  /* captured now */
} vv_graph_info;

VV_API vv_status vv_graph_create(const char* name, size_t bound, vv_graph** out);
/* On any failure the graph is as it was. Errors: VV_LIMIT_EXCEEDED beyond the bound,
 * VV_FAILED_PRECONDITION for a pinned key or a capturing stream, and what the callback answers. */
VV_API vv_status vv_graph_capture(vv_graph* graph, vv_shape_key key, vv_stream* stream, vv_capture_fn fn,
                                  void* context);
/* A CUgraphExec that others instantiated, on the device of `stream`. `owned` != 0: destroyed with the
 * variant; on failure it stays the caller's. */
VV_API vv_status vv_graph_adopt_cuda(vv_graph* graph, vv_shape_key key, vv_stream* stream, void* cu_graph_exec,
                                     int owned);
/* Neither allocates nor locks. VV_NO_VARIANT names the key and the captured ones. */
VV_API vv_status vv_graph_replay(vv_graph* graph, vv_shape_key key, vv_stream* stream);
/* A pinned variant is neither replaced nor evicted. Pins count. */
VV_API vv_status vv_graph_pin(vv_graph* graph, vv_shape_key key);
VV_API vv_status vv_graph_unpin(vv_graph* graph, vv_shape_key key);
VV_API vv_status vv_graph_evict(vv_graph* graph, vv_shape_key key);
/* The unpinned variant whose capture or replay lies furthest back; `evicted` may be NULL. */
VV_API vv_status vv_graph_evict_lru(vv_graph* graph, vv_shape_key* evicted);
/* 1 if captured, 0 if not, or if graph is NULL. */
VV_API int vv_graph_has(const vv_graph* graph, vv_shape_key key);
/* Writes up to `capacity` keys, ascending; `count` gets the number there are. */
VV_API vv_status vv_graph_get_keys(const vv_graph* graph, vv_shape_key* keys, size_t capacity, size_t* count);
VV_API vv_status vv_graph_get_info(const vv_graph* graph, vv_graph_info* info);
VV_API void vv_graph_destroy(vv_graph* graph);

/* ---- Plan: a DAG of graph replays, frozen before it runs ---- */

VV_API vv_status vv_plan_create(vv_backend* backend, const char* name, vv_plan** out);
/* Steps of one stream run in the order of this call. `step` gets 0, 1, ... */
VV_API vv_status vv_plan_add(vv_plan* plan, vv_graph* graph, vv_shape_key key, vv_stream* stream, int* step);
/* `to` starts when `from` is done. Only between streams; cycles are refused. */
VV_API vv_status vv_plan_edge(vv_plan* plan, int from, int to);
VV_API vv_status vv_plan_freeze(vv_plan* plan);
/* Issues every step; never allocates. Runs of one plan do not overlap. */
VV_API vv_status vv_plan_run(vv_plan* plan);
VV_API vv_status vv_plan_synchronize(vv_plan* plan);
VV_API void vv_plan_destroy(vv_plan* plan);

#ifdef __cplusplus
}
#endif
#endif
