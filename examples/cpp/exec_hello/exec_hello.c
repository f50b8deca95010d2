/* The same idea through the C ABI: capture once, replay by key. */
#include <stdio.h>

#include "vivace/capi/vivace.h"

static void increment(const void* args) {
  int* const counter = *(int* const*)args;
  ++*counter;
}

static vv_status enqueue(vv_stream* stream, void* context) {
  vv_launch launch = {sizeof(vv_launch), "increment", increment, NULL, 0};
  launch.args = &context;
  launch.args_bytes = sizeof context;
  return vv_stream_launch(stream, &launch);
}

int main(void) {
  const vv_backend_options options = {sizeof(vv_backend_options), "cpu", 0, 1};
  vv_backend* backend = NULL;
  vv_stream* stream = NULL;
  vv_graph* graph = NULL;
  int counter = 0, i, ok;
  ok = vv_backend_create(&options, &backend) == VV_OK && vv_stream_create(backend, 0, &stream) == VV_OK &&
       vv_graph_create("step", 4, &graph) == VV_OK && vv_graph_capture(graph, 1, stream, enqueue, &counter) == VV_OK;
  for (i = 0; ok && i < 5; ++i) ok = vv_graph_replay(graph, 1, stream) == VV_OK;
  ok = ok && vv_stream_synchronize(stream) == VV_OK;
  if (ok) {
    printf("Vivace %s: counter = %d after 5 replays\n", vv_version(), counter);
  } else {
    fprintf(stderr, "%s\n", vv_last_error());
  }
  vv_graph_destroy(graph);
  vv_stream_destroy(stream);
  vv_backend_destroy(backend);
  return ok ? 0 : 1;
}
