/* SPDX-License-Identifier: Apache-2.0 */
/* races NAME: charges where calls meet: those of several threads, one within another, one
 * that the driver refuses. */
#if !GPUMEM_WITH_CUDA
int main(void) { return 77; }
#else
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/preload/door.h"
#include "tests/preload/test_accountant.h"

#define MIB (UINT64_C(1) << 20)

static CUcontext context;

static void start(void) { context = start_cuda(); }

/* What the plug-in counts. */
static struct TestAccount* map_account(void) {
  int fd = open(getenv("GPUMEM_TEST_STATE"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(struct TestAccount)) != 0) exit(4);
  void* account = mmap(NULL, sizeof(struct TestAccount), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (account == MAP_FAILED) exit(4);
  close(fd);
  return account;
}

/* A thread waits for memory at the plug-in. Other threads go on meanwhile, and what they free is
 * its memory. */
enum Kind { ALLOC, ASYNC, NODE };
struct Waiter {
  enum Kind kind;
  CUstream stream;
  CUresult result;
};

static void* get_waiting(void* argument) {
  struct Waiter* waiter = argument;
  CUdeviceptr address = 0;
  CUgraph graph;
  CUgraphNode node;
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  memset(&params, 0, sizeof(params));
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params.bytesize = 128 * MIB;
  door.cuCtxSetCurrent_(context);
  switch (waiter->kind) {
    case ALLOC:
      waiter->result = door.cuMemAlloc_(&address, 128 * MIB);
      if (address != 0) door.cuMemFree_(address);
      break;
    case ASYNC:
      waiter->result = door.cuMemAllocAsync_(&address, 128 * MIB, waiter->stream);
      if (address != 0) door.cuMemFreeAsync_(address, waiter->stream);
      door.cuStreamSynchronize_(waiter->stream);
      break;
    case NODE:
      door.cuGraphCreate_(&graph, 0);
      waiter->result = door.cuGraphAddMemAllocNode_(&node, graph, NULL, 0, &params);
      door.cuGraphDestroy_(graph);
      break;
  }
  return NULL;
}

static void waiting(void) {
  CUstream stream;
  CUdeviceptr large, small;
  CUgraph graph;
  CUgraphExec exec;
  size_t bytes, total;
  start();
  if (door.cuStreamCreate_(&stream, 0) != CUDA_SUCCESS) exit(4);
  door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  door.cuMemAllocAsync_(&small, MIB, stream);
  door.cuMemFreeAsync_(small, stream);
  door.cuStreamEndCapture_(stream, &graph);
  if (door.cuGraphInstantiate_(&exec, graph, 0) != CUDA_SUCCESS) exit(4);
  const struct TestAccount* account = map_account();
  for (int kind = ALLOC; kind <= NODE; ++kind) {
    struct Waiter waiter = {(enum Kind)kind, stream, CUDA_ERROR_UNKNOWN};
    pthread_t thread;
    if (door.cuMemAllocAsync_(&large, 200 * MIB, stream) != CUDA_SUCCESS) exit(4);
    pthread_create(&thread, NULL, get_waiting, &waiter);
    while (__atomic_load_n(&account->waiting, __ATOMIC_SEQ_CST) == 0) usleep(1000);
    printf("alloc=%d ", (int)door.cuMemAllocAsync_(&small, MIB, stream));
    printf("free=%d ", (int)door.cuMemFreeAsync_(small, stream));
    printf("launch=%d ", (int)door.cuGraphLaunch_(exec, stream));
    printf("info=%d ", (int)door.cuMemGetInfo_(&bytes, &total));
    printf("still=%d ", (int)__atomic_load_n(&account->waiting, __ATOMIC_SEQ_CST));
    door.cuMemFreeAsync_(large, stream);
    door.cuStreamSynchronize_(stream);
    pthread_join(thread, NULL);
    printf("got=%d\n", (int)waiter.result);
  }
}

/* Runs a function in another thread at the end of one of the driver's, and lets it end, or wait for
 * us. */
static void* (*in_between)(void*);
static pthread_t other;
static void hook(void) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 300 * 1000 * 1000;
  until.tv_sec += until.tv_nsec / (1000 * 1000 * 1000);
  until.tv_nsec %= 1000 * 1000 * 1000;
  pthread_create(&other, NULL, in_between, NULL);
  if (pthread_timedjoin_np(other, NULL, &until) == 0) other = 0;
}
static void set_hook(const char* where, void* (*function)(void*)) {
  void (*set)(const char*, void (*)(void));
  *(void**)&set = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_set_hook");
  in_between = function;
  set(where, hook);
}

static long long taken(void) {
  size_t bytes, total;
  door.cuMemGetInfo_(&bytes, &total);
  return (long long)(total - bytes) / (long long)MIB;
}

static CUresult add_node(CUgraph graph, size_t bytes) {
  CUgraphNode node;
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  memset(&params, 0, sizeof(params));
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  params.bytesize = bytes;
  return door.cuGraphAddMemAllocNode_(&node, graph, NULL, 0, &params);
}

/* Another thread gets the handle of a graph at once when it is destroyed. */
static CUgraph graph_in_between;
static CUgraphExec exec_in_between;
static void* new_graph(void* unused) {
  door.cuCtxSetCurrent_(context);
  if (door.cuGraphCreate_(&graph_in_between, 0) != CUDA_SUCCESS) exit(4);
  if (add_node(graph_in_between, 128 * MIB) != CUDA_SUCCESS) exit(4);
  return unused;
}
static void* new_exec(void* unused) {
  door.cuCtxSetCurrent_(context);
  if (door.cuGraphInstantiate_(&exec_in_between, graph_in_between, 0) != CUDA_SUCCESS) exit(4);
  return unused;
}
static void graphs(void) {
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode node;
  start();
  if (door.cuGraphCreate_(&graph, 0) != CUDA_SUCCESS) exit(4);
  if (add_node(graph, 64 * MIB) != CUDA_SUCCESS) exit(4);
  set_hook("cuGraphDestroy", new_graph);
  if (door.cuGraphDestroy_(graph) != CUDA_SUCCESS) exit(4);
  printf("same=%d taken=%lld ", graph == graph_in_between, taken());
  if (door.cuGraphInstantiate_(&exec, graph_in_between, 0) != CUDA_SUCCESS) exit(4);
  set_hook("cuGraphExecDestroy", new_exec);
  if (door.cuGraphExecDestroy_(exec) != CUDA_SUCCESS) exit(4);
  /* A child that the driver refuses. */
  if (door.cuGraphCreate_(&graph, 0) != CUDA_SUCCESS) exit(4);
  if (add_node(graph, 64 * MIB) != CUDA_SUCCESS) exit(4);
  printf("child=%d ", (int)door.cuGraphAddChildGraphNode_(&node, graph, NULL, 0, graph_in_between));
  printf("taken=%lld ", taken());
  if (door.cuGraphDestroy_(graph_in_between) != CUDA_SUCCESS) exit(4);
  printf("same=%d taken=%lld ", exec == exec_in_between, taken());
  if (door.cuGraphExecDestroy_(exec) != CUDA_SUCCESS) exit(4);
  printf("taken=%lld\n", taken());
}

/* Another thread gets the device's context back at once when it goes. */
static void* new_context(void* unused) {
  CUdeviceptr address;
  door.cuDevicePrimaryCtxRetain_(&context, 0);
  door.cuCtxSetCurrent_(context);
  if (door.cuMemAlloc_(&address, 64 * MIB) != CUDA_SUCCESS) exit(4);
  return unused;
}
static void contexts(const char* where) {
  CUdeviceptr address;
  start();
  if (door.cuMemAlloc_(&address, 32 * MIB) != CUDA_SUCCESS) exit(4);
  set_hook(where, new_context);
  if (door.cuDevicePrimaryCtxRelease_(0) != CUDA_SUCCESS) exit(4);
  if (other != 0) pthread_join(other, NULL);
  door.cuCtxSetCurrent_(context);
  printf("taken=%lld\n", taken());
  door.cuDevicePrimaryCtxRelease_(0);
}
static void contexts_released(void) { contexts("cuDevicePrimaryCtxRelease"); }
static void contexts_looked_at(void) { contexts("cuDevicePrimaryCtxGetState"); }

/* A call within another one, as by a callback of a profiler, is the driver's affair. A free that
 * the driver refuses changes nothing. */
static CUdeviceptr inner;
static void allocate_within(void) { door.cuMemAlloc_(&inner, 64 * MIB); }
static void within(void) {
  void (*set)(const char*, void (*)(void));
  CUdeviceptr address;
  CUgraph graph;
  CUstream stream;
  start();
  *(void**)&set = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_set_hook");
  if (door.cuGraphCreate_(&graph, 0) != CUDA_SUCCESS) exit(4);
  set("cuGraphDestroy", allocate_within);
  if (door.cuGraphDestroy_(graph) != CUDA_SUCCESS || inner == 0) exit(4);
  printf("taken=%lld ", taken());
  printf("free=%d ", (int)door.cuMemFree_(inner));
  if (door.cuMemAlloc_(&address, 64 * MIB) != CUDA_SUCCESS ||
      door.cuStreamCreate_(&stream, 0) != CUDA_SUCCESS) {
    exit(4);
  }
  door.cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  printf("free=%d ", (int)door.cuMemFree_(address));
  door.cuStreamEndCapture_(stream, &graph);
  printf("taken=%lld ", taken());
  printf("free=%d ", (int)door.cuMemFree_(address));
  printf("taken=%lld\n", taken());
}

/* A context's handle that comes again for another device; another current pool. */
static void again(void) {
  CUcontext first, second;
  CUdeviceptr address;
  CUmemoryPool pool;
  CUmemPoolProps properties;
  start();
  if (door.cuCtxCreate_(&first, NULL, 0, 0) != CUDA_SUCCESS ||
      door.cuMemAlloc_(&address, 32 * MIB) != CUDA_SUCCESS ||
      door.cuCtxDestroy_(first) != CUDA_SUCCESS ||
      door.cuCtxCreate_(&second, NULL, 0, 1) != CUDA_SUCCESS ||
      door.cuMemAlloc_(&address, 64 * MIB) != CUDA_SUCCESS) {
    exit(4);
  }
  printf("same=%d taken=%lld ", first == second, taken());
  door.cuCtxSetCurrent_(context);
  printf("taken=%lld ", taken());
  memset(&properties, 0, sizeof(properties));
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  /* The first pool keeps what it does not need, which the second one cannot use. */
  cuuint64_t threshold = UINT64_MAX / 2;
  if (door.cuDeviceGetDefaultMemPool_(&pool, 0) != CUDA_SUCCESS ||
      door.cuMemPoolSetAttribute_(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) !=
          CUDA_SUCCESS ||
      door.cuMemAllocAsync_(&address, 160 * MIB, NULL) != CUDA_SUCCESS ||
      door.cuMemFreeAsync_(address, NULL) != CUDA_SUCCESS ||
      door.cuMemPoolCreate_(&pool, &properties) != CUDA_SUCCESS ||
      door.cuDeviceSetMemPool_(0, pool) != CUDA_SUCCESS) {
    exit(4);
  }
  printf("code=%d\n", (int)door.cuMemAllocAsync_(&address, 160 * MIB, NULL));
}

/* A child of a process in which another thread is about to load the plug-in, and which does not use
 * CUDA itself. */
static void* look_at_nvml(void* unused) {
  unsigned long long memory[3];
  void* device;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  int (*find)(unsigned int, void**);
  int (*get)(void*, void*);
  *(void**)&find = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
  *(void**)&get = dlsym(library, "nvmlDeviceGetMemoryInfo");
  if (find(0, &device) != 0 || get(device, memory) != 0) exit(4);
  return unused;
}
static void forked(void) {
  pthread_t thread;
  struct TestAccount* account = map_account();
  open_door();
  pthread_create(&thread, NULL, look_at_nvml, NULL);
  while (__atomic_load_n(&account->opening, __ATOMIC_SEQ_CST) == 0) usleep(1000);
  pid_t child = fork();
  if (child == 0) {
    alarm(30);
    if (door.cuInit_(0) != CUDA_SUCCESS) _exit(4);
    _exit((int)door.cuDevicePrimaryCtxRetain_(&context, 0));
  }
  int status = 0;
  waitpid(child, &status, 0);
  __atomic_store_n(&account->opening, 0, __ATOMIC_SEQ_CST);
  pthread_join(thread, NULL);
  printf("child=%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* Frees memory of cuMemAlloc() on a stream, which waits for the word before it comes to that. */
static uint32_t* free_late(CUstream* stream) {
  void* host = NULL;
  CUdeviceptr block;
  door.cuMemAllocHost_(&host, sizeof(uint32_t));
  uint32_t* word = host;
  *word = 0;
  door.cuStreamCreate_(stream, 1);
  door.cuMemAlloc_(&block, 128 * MIB);
  printf("wait=%d ",
         (int)door.cuStreamWaitValue32_(*stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_EQ));
  printf("free=%d ", (int)door.cuMemFreeAsync_(block, *stream));
  return word;
}

/* The context goes before the stream's memory is asked for. */
static void late_context(void) {
  CUcontext context, own;
  CUstream stream;
  CUdeviceptr more = 0;
  start();
  door.cuDevicePrimaryCtxRetain_(&context, 0);
  door.cuCtxCreate_(&own, NULL, 0, 0);
  uint32_t* word = free_late(&stream);
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  door.cuStreamSynchronize_(stream);
  printf("destroy=%d ", (int)door.cuCtxDestroy_(own));
  door.cuCtxSetCurrent_(context);
  printf("taken=%lld ", taken());
  printf("code=%d\n", (int)door.cuMemAlloc_(&more, 200 * MIB));
}

static void late(void) {
  start();
  CUstream stream;
  CUdeviceptr more = 0;
  uint32_t* word = free_late(&stream);
  printf("taken=%lld ", taken());
  printf("code=%d ", (int)door.cuMemAlloc_(&more, 200 * MIB));
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  door.cuStreamSynchronize_(stream);
  printf("code=%d ", (int)door.cuMemAlloc_(&more, 200 * MIB));
  printf("taken=%lld\n", taken());
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } races[] = {{"waiting", waiting},
               {"graphs", graphs},
               {"released", contexts_released},
               {"looked_at", contexts_looked_at},
               {"forked", forked},
               {"late", late},
               {"late_context", late_context},
               {"within", within},
               {"again", again}};
  alarm(60); /* where threads wait for each other, an error must not last for ever */
  for (size_t i = 0; argc == 2 && i < sizeof(races) / sizeof(races[0]); ++i) {
    if (strcmp(races[i].name, argv[1]) != 0) continue;
    races[i].run();
    return 0;
  }
  return 2;
}
#endif
