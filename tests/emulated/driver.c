/* The calls of a CUDA driver that arrays make, answered in host memory: kernels are libraries of
   tests/emulated/nvrtc.cc and run at their launch. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct kernel {
  void (*run)(const void*, const unsigned*, const unsigned*);
  size_t bytes;
  char name[256];
};
/* What tests/emulated/cupti.c tells of: the kernels since it began, each with the id that was pushed around it. */
struct emulated_record {
  const char* name;
  unsigned long id;
};
struct emulated_record emulated_records[4096];
int emulated_record_count;
unsigned long emulated_id;
static int launches;
static unsigned last_grid[3];
int emulated_launches(void) {
  return launches;
}

int cuInit(unsigned f) {
  return 0;
}
int cuDriverGetVersion(int* v) {
  *v = 13000;
  return 0;
}
int cuDeviceGetCount(int* n) {
  *n = 1;
  return 0;
}
int cuDeviceGet(int* d, int ordinal) {
  *d = ordinal;
  return 0;
}
int cuDeviceGetName(char* s, int n, int d) {
  snprintf(s, n, "Emulated Hopper");
  return 0;
}
int cuDeviceGetUuid_v2(unsigned char* u, int d) {
  memset(u, d, 16);
  return 0;
}
int cuDeviceTotalMem_v2(size_t* n, int d) {
  *n = 1ul << 34;
  return 0;
}
int cuDeviceGetAttribute(int* v, int a, int d) {
  *v = a == 75 ? 9 : a == 76 ? 0 : 1000;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** c, int d) {
  *c = (void*)(size_t)(16 + d);
  return 0;
}
int cuCtxGetCurrent(void** c) {
  *c = 0;
  return 0;
}
int cuCtxGetStreamPriorityRange(int* a, int* b) {
  *a = 0;
  *b = -5;
  return 0;
}
int cuMemGetInfo_v2(size_t* f, size_t* t) {
  *f = *t = 1ul << 34;
  return 0;
}
int cuMemGetAllocationGranularity(size_t* n, void* prop, int option) {
  *n = 1 << 21;
  return 0;
}
int cuMemAddressReserve(size_t* at, size_t n, size_t align, size_t wish, size_t f) {
  void* p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *at = (size_t)p;
  return p == MAP_FAILED ? 2 : 0;
}
int cuMemCreate(size_t* h, size_t n, void* prop, size_t f) {
  *h = 1;
  return 0;
}
int cuMemHostAlloc(void** p, size_t n, unsigned f) {
  *p = calloc(1, n);
  return 0;
}
int cuMemFreeHost(void* p) {
  free(p);
  return 0;
}
int cuMemcpyAsync(size_t to, size_t from, size_t n, void* s) {
  memmove((void*)to, (void*)from, n);
  return 0;
}
int cuMemsetD8Async(size_t p, unsigned char v, size_t n, void* s) {
  memset((void*)p, v, n);
  return 0;
}
int cuEventCreate(void** e, unsigned f) {
  *e = malloc(1);
  return 0;
}
int cuEventDestroy_v2(void* e) {
  free(e);
  return 0;
}
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  *milliseconds = 0.25f;
  return 0;
}
int cuStreamIsCapturing(void* s, int* status) {
  *status = 0;
  return 0;
}
int cuStreamCreateWithPriority(void** s, unsigned f, int p) {
  *s = malloc(1);
  return 0;
}
int cuStreamDestroy_v2(void* s) {
  free(s);
  return 0;
}
int cuGetErrorName(int e, const char** s) {
  *s = "EMULATED";
  return 0;
}
int cuGetErrorString(int e, const char** s) {
  *s = "emulated";
  return 0;
}

int cuLibraryLoadData(void** library, const void* image, void* a, void* b, unsigned c, void* d, void* e, unsigned f) {
  *library = dlopen((const char*)image, RTLD_NOW | RTLD_LOCAL);
  return *library ? 0 : 200;
}
int cuLibraryGetKernel(void** k, void* library, const char* name) {
  char bytes[256];
  snprintf(bytes, sizeof bytes, "%s_bytes", name);
  struct kernel* made = malloc(sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", name);
  made->run = dlsym(library, name);
  size_t (*size)(void) = dlsym(library, bytes);
  if (!made->run || !size) return 500;
  made->bytes = size();
  *k = made;
  return 0;
}
int cuKernelGetFunction(void** f, void* k) {
  *f = k;
  return 0;
}
int cuKernelGetAttribute(int* v, int a, void* k, int d) {
  *v = a == 0 ? 1024 : 32;
  return 0;
}
int cuKernelGetParamInfo(void* k, size_t i, size_t* offset, size_t* bytes) {
  if (i > 0) return 1;
  *offset = 0, *bytes = ((struct kernel*)k)->bytes;
  return 0;
}
struct config {
  unsigned grid[3], block[3], smem;
};
int cuLaunchKernelEx(const struct config* c, void* f, void** params, void** extra) {
  ++launches;
  if (emulated_record_count < 4096)
    emulated_records[emulated_record_count++] = (struct emulated_record){((struct kernel*)f)->name, emulated_id};
  ((struct kernel*)f)->run(params[0], c->grid, c->block);
  return 0;
}
