/* A CUPTI for the emulated driver: its records have the places of cupti_activity.h (CUpti_ActivityKernel4 and its
   successors, CUpti_ActivityExternalCorrelation), and kernel n takes n + 1 microseconds. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct emulated_record {
  const char* name;
  unsigned long id;
};
extern struct emulated_record emulated_records[];
extern int emulated_record_count;
extern unsigned long emulated_id;

struct kernel_record {
  int kind;
  uint8_t cache, shared;
  uint16_t registers;
  int requested, executed;
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], static_shared, dynamic_shared;
  uint32_t local, local_total, correlation;
  int64_t grid_id;
  const char* name;
  void* reserved;
  uint64_t queued, submitted;
  uint8_t rest[64];
};
struct id_record {
  int kind, external_kind;
  uint64_t id;
  uint32_t correlation, reserved;
};
_Static_assert(sizeof(struct kernel_record) % 8 == 0 && sizeof(struct id_record) == 24, "records lie side by side");

static void (*requested)(uint8_t**, size_t*, size_t*);
static void (*completed)(void*, uint32_t, uint8_t*, size_t, size_t);
static int enabled, first;

int cuptiGetVersion(uint32_t* version) {
  *version = 130000;
  return getenv("EMULATED_CUPTI_REFUSES") ? 1 : 0;
}
int cuptiActivityRegisterCallbacks(void (*r)(uint8_t**, size_t*, size_t*),
                                   void (*c)(void*, uint32_t, uint8_t*, size_t, size_t)) {
  requested = r, completed = c;
  return 0;
}
int cuptiActivityEnable(int kind) {
  if (kind == 10) enabled = 1, first = emulated_record_count;
  return 0;
}
int cuptiActivityDisable(int kind) {
  if (kind == 10) enabled = 0;
  return 0;
}
int cuptiActivityPushExternalCorrelationId(int kind, uint64_t id) {
  emulated_id = id;
  return kind == 3 ? 0 : 1;
}
int cuptiActivityPopExternalCorrelationId(int kind, uint64_t* last) {
  *last = emulated_id;
  emulated_id = 0;
  return 0;
}
int cuptiActivityFlushAll(uint32_t forced) {
  uint8_t* buffer;
  size_t bytes, most, at = 0;
  if (!enabled) return 0;
  requested(&buffer, &bytes, &most);
  for (int i = first; i < emulated_record_count; ++i) {
    const uint64_t start = 1000000 + 10000 * i;
    struct kernel_record k = {.kind = 10,
                              .start = start,
                              .end = start + 1000 * (i - first + 1),
                              .correlation = 7 + i,
                              .name = emulated_records[i].name};
    memcpy(buffer + at, &k, sizeof k);
    at += sizeof k;
    struct id_record id = {.kind = 39, .external_kind = 3, .id = emulated_records[i].id, .correlation = 7 + i};
    if (id.id == 0) continue;
    memcpy(buffer + at, &id, sizeof id);
    at += sizeof id;
  }
  completed(0, 0, buffer, bytes, at);
  return 0;
}
int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, uint8_t** record) {
  const size_t bytes = *record == 0                ? 0
                       : *(int*)*record == 10 ? sizeof(struct kernel_record)
                                              : sizeof(struct id_record);
  uint8_t* next = *record == 0 ? buffer : *record + bytes;
  if (next >= buffer + valid) return 12;
  *record = next;
  return 0;
}
