// The driver's and NCCL's functions on memory of the host, among threads of a process, for tests.
// Nothing moves but when a stream is asked whether it is done, so what is used too early is seen.
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 8, ITEMS = 64, DEVICES = 8, BUSY = 7, NOT_READY = 600 };
typedef struct { unsigned char bytes[128]; } Id;
typedef struct { size_t size; unsigned magic, version; int blocking; } Config;
typedef struct Group { int id, size, joined, device[RANKS], posted, turn; float *data[RANKS]; size_t length[RANKS]; } Group;
typedef struct { Group *group; int rank, asked, late; float *data; size_t count; void *stream; } Comm;
typedef struct { void *to; const void *from; size_t bytes; Comm *comm; int posted, turn; } Item;
typedef struct { Item items[ITEMS]; int first, end; } Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Group groups[64];
static int ids, aborted;
static __thread void *current;

int emulated_ids(void) { return ids; }
int emulated_aborted(void) { return aborted; }

#define STUB(name) int name(void) { return 1; }
STUB(cuDeviceGetName) STUB(cuStreamWaitEvent) STUB(cuEventRecord) STUB(cuDriverGetVersion) STUB(cuMemsetD8Async)
STUB(cuModuleLoadData) STUB(cuModuleUnload) STUB(cuModuleGetFunction) STUB(cuLaunchKernel)
int cuInit(unsigned flags) { return flags != 0; }
int cuGetErrorName(int status, const char **name) { (void)status; *name = "EMULATED"; return 0; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index < DEVICES ? 0 : 101; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(size_t)(device + 1); return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
int cuDeviceGetAttribute(int *value, int name, int device) { (void)name; (void)device; *value = 0; return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
// Of an event that is never recorded.
int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = event; return 0; }
int cuEventSynchronize(void *event) { (void)event; return 0; }
int cuEventDestroy_v2(void *event) { (void)event; return 0; }
int cuMemAlloc_v2(unsigned long long *at, size_t bytes) { *at = (size_t)calloc(1, bytes); return 0; }
int cuMemFree_v2(unsigned long long at) { free((void *)(size_t)at); return 0; }
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { (void)flags; *at = calloc(1, bytes); return 0; }
int cuMemFreeHost(void *at) { free(at); return 0; }
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = calloc(1, sizeof(Stream)); return 0; }
// A group that was aborted leaves nothing behind.
int cuStreamSynchronize(void *handle) { Stream *stream = handle; stream->first = stream->end; return 0; }
int cuStreamDestroy_v2(void *stream) { free(stream); return 0; }
static int put(Stream *stream, Item item) { stream->items[stream->end++ % ITEMS] = item; return 0; }
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *stream) {
    return put(stream, (Item){ .to = (void *)(size_t)to, .from = from, .bytes = bytes });
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *stream) {
    return put(stream, (Item){ .to = to, .from = (void *)(size_t)from, .bytes = bytes });
}

// Whether a sum is done; the last rank that comes does it for all.
static int sum(Item *item) {
    Group *group = item->comm->group;
    int rank = item->comm->rank;
    if (!item->posted) {
        item->posted = 1;
        item->turn = group->turn;
        group->data[rank] = item->to;
        group->length[rank] = item->bytes / sizeof(float);
        if (++group->posted == group->size) {
            for (size_t at = 0; at < group->length[0]; at++) {
                float total = 0;
                for (int one = 0; one < group->size; one++) total += group->data[one][at];
                for (int one = 0; one < group->size; one++) group->data[one][at] = total;
            }
            group->posted = 0;
            group->turn++;
        }
    }
    return group->turn > item->turn;
}

int cuStreamQuery(void *handle) {
    Stream *stream = handle;
    while (stream->first < stream->end) {
        Item *item = &stream->items[stream->first % ITEMS];
        int done = 1;
        pthread_mutex_lock(&lock);
        if (item->comm) done = sum(item);
        else memcpy(item->to, item->from, item->bytes);
        pthread_mutex_unlock(&lock);
        if (!done) return NOT_READY;
        stream->first++;
    }
    return 0;
}

int ncclGetVersion(int *version) { *version = 22304; return 0; }
int ncclGetUniqueId(Id *id) { id->bytes[0] = (unsigned char)++ids; return 0; }
const char *ncclGetErrorString(int status) { return status == 5 ? "invalid usage" : "emulated"; }
const char *ncclGetLastError(void *comm) { (void)comm; return "\nDuplicate GPU detected\n"; }
int ncclCommInitRankConfig(void **handle, int size, Id id, int rank, Config *config) {
    if (config->magic != 0xcafebeef || config->blocking || config->size != sizeof(Config)) return 4;
    Comm *comm = calloc(1, sizeof(Comm));
    pthread_mutex_lock(&lock);
    comm->group = &groups[id.bytes[0] % 64];
    comm->rank = rank;
    comm->group->size = size;
    comm->group->device[rank] = (int)(size_t)current;
    comm->group->joined++;
    pthread_mutex_unlock(&lock);
    *handle = comm;
    return BUSY;
}
int ncclCommGetAsyncError(void *handle, int *state) {
    Comm *comm = handle;
    Group *group = comm->group;
    pthread_mutex_lock(&lock);
    *state = group->joined < group->size ? BUSY : 0;
    for (int one = 0; !*state && one < group->size; one++)
        for (int other = 0; other < one; other++)
            if (group->device[one] == group->device[other]) *state = 5;
    pthread_mutex_unlock(&lock);
    if (comm->late && !*state) {
        // A call that was under way is put on the stream only now.
        *state = --comm->late ? BUSY : 0;
        if (!*state) put(comm->stream, (Item){ .to = comm->data, .bytes = comm->count * 4, .comm = comm });
    }
    return 0;
}
int ncclAllReduce(void *from, void *to, size_t count, int type, int how, void *handle, void *stream) {
    Comm *comm = handle;
    if (from != to || type != 7 || how != 0) return 4;
    comm->data = to, comm->count = count, comm->stream = stream, comm->late = 3;
    return BUSY;
}
int ncclCommAbort(void *handle) { __sync_fetch_and_add(&aborted, 1); free(handle); return 0; }
