// A CUDA driver for tests, on the processor: what libcuda.so.1 has of cuda.h that dnode uses.
//
// Every stream is a thread that does what it was asked late and in order, and waits for events alone: what
// relies on an order that was not asked for finds old numbers. Calls without a current context fail, and so
// do copies that do not go between pages of the host that stay and memory of the device. Memory of a stream
// is there when the stream comes to its allocation, no sooner, and goes when the stream comes to its end; all
// other memory that was freed is gone at once. The kernels are those of kernels.cu, compiled for the processor.

#include "kernels.cu"

#include <condition_variable>
#include <chrono>
#include <deque>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

enum { DONE = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 101, NO_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600 };
using Clock = std::chrono::steady_clock;

struct Reached {
    std::mutex lock;
    std::condition_variable changed;
    u64 recorded = 0, done = 0;
    Clock::time_point at;

    void wait(u64 ticket) {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [&] { return done >= ticket; });
    }
    u64 asked() {
        std::lock_guard<std::mutex> held(lock);
        return recorded;
    }
};
struct Event { std::shared_ptr<Reached> reached = std::make_shared<Reached>(); };

struct Stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> orders;
    bool busy = false, over = false;
    u32 random;
    std::thread worker;

    explicit Stream(u32 seed) : random(seed), worker([this] { work(); }) {}
    ~Stream() {
        {
            std::lock_guard<std::mutex> held(lock);
            over = true;
        }
        changed.notify_all();
        worker.join();
    }
    void ask(std::function<void()> order) {
        {
            std::lock_guard<std::mutex> held(lock);
            orders.push_back(std::move(order));
        }
        changed.notify_all();
    }
    bool idle() {
        std::lock_guard<std::mutex> held(lock);
        return orders.empty() && !busy;
    }
    void wait() {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [&] { return orders.empty() && !busy; });
    }
    void work() {
        for (;;) {
            std::function<void()> order;
            {
                std::unique_lock<std::mutex> held(lock);
                busy = false;
                changed.notify_all();
                changed.wait(held, [&] { return over || !orders.empty(); });
                if (orders.empty()) return;
                order = std::move(orders.front());
                orders.pop_front();
                busy = true;
            }
            random ^= random << 13, random ^= random >> 17, random ^= random << 5;
            if (random % 16 == 0) usleep(random % 256);
            order();
        }
    }
};

// Pages that go when they are freed.
struct Memory {
    std::mutex lock;
    std::map<char *, size_t> places;

    int reserve(void **place, size_t bytes) {
        if (!bytes) return INVALID_VALUE;
        void *made = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) return OUT_OF_MEMORY;
        std::lock_guard<std::mutex> held(lock);
        places[(char *)(*place = made)] = bytes;
        return DONE;
    }
    static void begin(void *place, size_t bytes, u8 fill) {
        mprotect(place, bytes, PROT_READ | PROT_WRITE);
        memset(place, fill, bytes < 65536 ? bytes : 65536);
    }
    int allocate(void **place, size_t bytes, u8 fill) {
        int status = reserve(place, bytes);
        if (status == DONE) begin(*place, bytes, fill);
        return status;
    }
    int give_back(void *place) {
        std::lock_guard<std::mutex> held(lock);
        auto found = places.find((char *)place);
        if (found == places.end()) return INVALID_VALUE;
        munmap(place, found->second);
        places.erase(found);
        return DONE;
    }
    bool has(const void *place, size_t bytes) {
        std::lock_guard<std::mutex> held(lock);
        auto after = places.upper_bound((char *)place);
        if (after == places.begin()) return false;
        auto found = std::prev(after);
        return (char *)place + bytes <= found->first + found->second;
    }
};

// For the life of the process, at whose end streams may still have something to do.
static Memory &on_device = *new Memory, &on_host = *new Memory;
static int context_of_all;
static thread_local void *current = nullptr;
static Stream *legacy() {
    static Stream *stream = new Stream(1);
    return stream;
}
static Stream *of(void *stream) { return stream ? (Stream *)stream : legacy(); }

#define IN_CONTEXT if (!current) return NO_CONTEXT
#define API extern "C" __attribute__((visibility("default"))) int

API cuInit(u32) { return DONE; }
API cuDriverGetVersion(int *version) { return *version = 13000, DONE; }
API cuGetErrorName(int, const char **name) { return *name = "CUDA_ERROR_OF_THE_TEST", DONE; }
API cuDeviceGetCount(int *count) { return *count = 1, DONE; }
API cuDeviceGet(int *device, int index) { return index ? NO_DEVICE : (*device = 0, DONE); }
API cuDeviceGetName(char *name, int bytes, int) { return strncpy(name, "device of the test", bytes), DONE; }
// The capability is 9.0, and streams have memory.
API cuDeviceGetAttribute(int *value, int name, int) { return *value = name == 75 ? 9 : name == 115, DONE; }
API cuDevicePrimaryCtxRetain(void **context, int) { return *context = &context_of_all, DONE; }
API cuDevicePrimaryCtxRelease_v2(int) { return DONE; }
API cuCtxGetCurrent(void **context) { return *context = current, DONE; }
API cuCtxSetCurrent(void *context) { return current = context, DONE; }

API cuStreamCreate(void **stream, u32 flags) {
    IN_CONTEXT;
    static u32 made = 1;
    return flags == 1 ? (*stream = new Stream(++made * 2654435761u), DONE) : INVALID_VALUE;
}
API cuStreamQuery(void *stream) {
    IN_CONTEXT;
    return of(stream)->idle() ? DONE : NOT_READY;
}
API cuStreamSynchronize(void *stream) {
    IN_CONTEXT;
    return of(stream)->wait(), DONE;
}
API cuStreamWaitEvent(void *stream, void *event, u32) {
    IN_CONTEXT;
    auto reached = ((Event *)event)->reached;
    u64 ticket = reached->asked();
    return of(stream)->ask([=] { reached->wait(ticket); }), DONE;
}
API cuStreamDestroy_v2(void *stream) {
    IN_CONTEXT;
    return stream ? (delete (Stream *)stream, DONE) : INVALID_VALUE;
}

API cuEventCreate(void **event, u32) {
    IN_CONTEXT;
    return *event = new Event, DONE;
}
API cuEventRecord(void *event, void *stream) {
    IN_CONTEXT;
    auto reached = ((Event *)event)->reached;
    u64 ticket;
    {
        std::lock_guard<std::mutex> held(reached->lock);
        ticket = ++reached->recorded;
    }
    of(stream)->ask([=] {
        std::lock_guard<std::mutex> held(reached->lock);
        if (reached->done < ticket) reached->done = ticket;
        reached->at = Clock::now();
        reached->changed.notify_all();
    });
    return DONE;
}
API cuEventSynchronize(void *event) {
    IN_CONTEXT;
    auto reached = ((Event *)event)->reached;
    return reached->wait(reached->asked()), DONE;
}
API cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) {
    auto apart = ((Event *)to)->reached->at - ((Event *)from)->reached->at;
    return *milliseconds = std::chrono::duration<float, std::milli>(apart).count(), DONE;
}
API cuEventDestroy_v2(void *event) {
    IN_CONTEXT;
    return delete (Event *)event, DONE;
}

API cuMemAlloc_v2(u64 *address, size_t bytes) {
    IN_CONTEXT;
    return on_device.allocate((void **)address, bytes, 0xab);
}
API cuMemFree_v2(u64 address) {
    IN_CONTEXT;
    return on_device.give_back((void *)address);
}
API cuMemAllocAsync(u64 *address, size_t bytes, void *stream) {
    IN_CONTEXT;
    int status = on_device.reserve((void **)address, bytes);
    void *place = (void *)*address;
    if (status == DONE) of(stream)->ask([=] { Memory::begin(place, bytes, 0xab); });
    return status;
}
API cuMemFreeAsync(u64 address, void *stream) {
    IN_CONTEXT;
    return of(stream)->ask([=] { on_device.give_back((void *)address); }), DONE;
}
API cuMemHostAlloc(void **place, size_t bytes, u32) {
    IN_CONTEXT;
    return on_host.allocate(place, bytes, 0xcd);
}
API cuMemFreeHost(void *place) {
    IN_CONTEXT;
    return on_host.give_back(place);
}
API cuMemsetD8Async(u64 address, u8 value, size_t bytes, void *stream) {
    IN_CONTEXT;
    if (!on_device.has((void *)address, bytes)) return INVALID_VALUE;
    return of(stream)->ask([=] { memset((void *)address, value, bytes); }), DONE;
}
static int copy(void *to, const void *from, size_t bytes, void *stream) {
    return of(stream)->ask([=] { memcpy(to, from, bytes); }), DONE;
}
API cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, void *stream) {
    IN_CONTEXT;
    bool known = on_device.has((void *)to, bytes) && on_host.has(from, bytes);
    return known ? copy((void *)to, from, bytes, stream) : INVALID_VALUE;
}
API cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, void *stream) {
    IN_CONTEXT;
    bool known = on_device.has((void *)from, bytes) && on_host.has(to, bytes);
    return known ? copy(to, (void *)from, bytes, stream) : INVALID_VALUE;
}

API cuModuleLoadData(void **module, const void *program) {
    IN_CONTEXT;
    Dl_info self;
    if (memcmp(program, "\x7f""ELF", 4) || !dladdr((void *)cuInit, &self)) return INVALID_VALUE;
    return (*module = dlopen(self.dli_fname, RTLD_NOW)) ? DONE : INVALID_VALUE;
}
API cuModuleUnload(void *module) { return module ? DONE : INVALID_VALUE; }
API cuModuleGetFunction(void **function, void *module, const char *name) {
    IN_CONTEXT;
    return (*function = dlsym(module, name)) ? DONE : NOT_FOUND;
}
API cuLaunchKernel(void *function, u32 groups, u32 y, u32 z, u32 threads, u32 v, u32 w, u32 shared, void *stream,
                   void **arguments, void **extra) {
    IN_CONTEXT;
    Work work = *(Work *)arguments[0];
    u64 all = (u64)groups * threads;
    auto serves = [=](u64 wanted) { return all >= wanted && all - wanted < threads; };
    bool shape = y == 1 && z == 1 && v == 1 && w == 1 && !shared && !extra && threads == WARPS * LANES;
    if (!shape || !groups || !(serves(work.len) || serves(work.units * LANES))) return INVALID_VALUE;
    return of(stream)->ask([=] { ((void (*)(Work))function)(work); }), DONE;
}
