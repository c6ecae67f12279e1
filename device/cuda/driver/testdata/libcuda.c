// What a driver's library looks like to the loader: its symbols, and functions that show what they were given.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#ifndef VERSION
#define VERSION 12040
#endif

#ifndef EMPTY
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }

static void *send(void *number) { raise((int)(uintptr_t)number); return 0; }

// Starts a thread, as drivers do, to which the signal flags is then delivered.
int cuInit(unsigned flags) {
  pthread_t thread;
  return pthread_create(&thread, 0, send, (void *)(uintptr_t)flags) || pthread_join(thread, 0);
}

// Writes its arguments to where extra points, and what params point at: 8 bytes and 4 bytes.
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra) {
  uint64_t *seen = *extra;
  uint64_t all[9] = {(uint64_t)f, gx, gy, gz, bx, by, bz, shared, (uint64_t)stream};
  memcpy(seen, all, sizeof all);
  seen[9] = *(uint64_t *)params[0];
  seen[10] = *(uint32_t *)params[1];
  return 719;
}

int cuMemAlloc_v2(uint64_t *p, size_t n) { *p = 0x700000000000 + n; return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 1ull << 33; *total = 1ull << 34; return 0; }
int cuEventElapsedTime(float *ms, void *start, void *end) { *ms = 1.5; return (uintptr_t)end - (uintptr_t)start - 1; }
int cuMemsetD8Async(uint64_t dst, unsigned char value, size_t n, void *stream) {
  memset((void *)dst, value, n);
  return (uintptr_t)stream - 7;
}
int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t n, void *stream) {
  memcpy((void *)dst, src, n);
  return (uintptr_t)stream - 7;
}
#ifndef WITHOUT_STREAM_WAIT_EVENT
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  return (int)((uintptr_t)stream + 10 * (uintptr_t)event + 100 * flags);
}
#endif

// The rest is only there.
#define SYMBOL(name) int name(void) { return 0; }
SYMBOL(cuDeviceGetCount)
SYMBOL(cuDeviceGet)
SYMBOL(cuDeviceGetName)
SYMBOL(cuDeviceTotalMem_v2)
SYMBOL(cuDeviceGetAttribute)
SYMBOL(cuDevicePrimaryCtxRetain)
SYMBOL(cuDevicePrimaryCtxRelease_v2)
SYMBOL(cuDevicePrimaryCtxSetFlags_v2)
SYMBOL(cuCtxSetCurrent)
SYMBOL(cuMemFree_v2)
SYMBOL(cuMemHostRegister_v2)
SYMBOL(cuMemHostUnregister)
SYMBOL(cuMemHostGetDevicePointer_v2)
SYMBOL(cuMemcpyDtoHAsync_v2)
SYMBOL(cuMemcpyDtoDAsync_v2)
SYMBOL(cuMemcpyPeerAsync)
SYMBOL(cuDeviceCanAccessPeer)
SYMBOL(cuCtxEnablePeerAccess)
SYMBOL(cuMemcpyAsync)
SYMBOL(cuStreamCreateWithPriority)
SYMBOL(cuStreamDestroy_v2)
SYMBOL(cuStreamSynchronize)
SYMBOL(cuEventCreate)
SYMBOL(cuEventDestroy_v2)
SYMBOL(cuEventSynchronize)
SYMBOL(cuEventRecord)
SYMBOL(cuModuleLoadData)
SYMBOL(cuModuleUnload)
SYMBOL(cuModuleGetFunction)
SYMBOL(cuFuncSetAttribute)
#endif
