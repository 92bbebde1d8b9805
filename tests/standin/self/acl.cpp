// Breaks each of AscendCL's rules on purpose. acl_processes.cpp has the rules that need another process.
#include "../ascend/acl.h"
#include "check.h"

#include <sys/mman.h>
#include <thread>

void test_processes();
int play(const std::vector<std::string> &role);

namespace {

constexpr size_t huge = 2 << 20;

void start() {
    OK(aclInit(nullptr));
    OK(aclrtSetDevice(0));
}
void finish() {
    OK(aclrtResetDevice(0));
    EXPECT(0, standin_audit());
    OK(aclFinalize());
    EXPECT(0, standin_audit());
}

void test_contexts() {
    void *memory;
    EXPECT(ACL_ERROR_UNINITIALIZE, aclrtSetDevice(0));
    OK(aclInit(nullptr));
    EXPECT(ACL_ERROR_REPEAT_INITIALIZE, aclInit(nullptr));
    EXPECT(ACL_ERROR_RT_CONTEXT_NULL, aclrtMalloc(&memory, 64, 0));
    CHECK(strstr(aclGetRecentErrMsg(), "aclrtMalloc") != nullptr);
    EXPECT(ACL_ERROR_RT_INVALID_DEVICEID, aclrtSetDevice(2));
    EXPECT(ACL_ERROR_RT_INVALID_DEVICEID, aclrtSetDevice(-1));
    OK(aclrtSetDevice(0));
    std::thread([&] { EXPECT(ACL_ERROR_RT_CONTEXT_NULL, aclrtMalloc(&memory, 64, 0)); }).join();

    void *first, *second, *stream;
    OK(aclrtGetCurrentContext(&first));
    OK(aclrtCreateStream(&stream));
    OK(aclrtCreateContext(&second, 1));
    int32_t device;
    OK(aclrtGetDevice(&device));
    EXPECT(1, device);
    EXPECT(ACL_ERROR_RT_STREAM_CONTEXT, aclrtSynchronizeStream(stream));
    EXPECT(ACL_ERROR_RT_INVALID_HANDLE, aclrtSynchronizeStream(&device));
    OK(aclrtDestroyContext(second));
    EXPECT(ACL_ERROR_RT_CONTEXT_NULL, aclrtSetCurrentContext(second));
    OK(aclrtSetCurrentContext(first));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtDestroyContext(first)); // the default one
    OK(aclrtDestroyStream(stream));
    OK(aclrtSetDevice(0)); // counted
    OK(aclrtResetDevice(0));
    OK(aclrtMalloc(&memory, 64, 0));
    OK(aclrtFree(memory));
    OK(aclrtResetDevice(0));
    EXPECT(ACL_ERROR_RT_CONTEXT_NULL, aclrtMalloc(&memory, 64, 0));
    EXPECT(ACL_ERROR_RT_CONTEXT_NULL, aclrtResetDevice(0));
    OK(aclFinalize());
    EXPECT(ACL_ERROR_UNINITIALIZE, aclFinalize());
}

void test_memory() {
    start();
    void *memory, *base;
    size_t size;
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMalloc(&memory, 0, 0));
    OK(aclrtMalloc(&memory, huge + 64, ACL_MEM_MALLOC_HUGE_FIRST));
    EXPECT(0, reinterpret_cast<uintptr_t>(memory) % huge);
    OK(aclrtMemGetAddressRange(static_cast<char *>(memory) + 100, &base, &size));
    CHECK(base == memory && size == huge + 64);
    aclrtPtrAttributes attributes;
    OK(aclrtPointerGetAttributes(static_cast<char *>(memory) + huge, &attributes));
    CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_DEVICE && attributes.location.id == 0);
    EXPECT(huge, attributes.pageSize);
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtFree(static_cast<char *>(memory) + 64));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtFree(nullptr));

    // Plain memory, as three kinds of driver tell it.
    int plain;
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtPointerGetAttributes(&plain, &attributes));
    OK(standin_set("FERRY_STANDIN_POINTER", "host"));
    OK(aclrtPointerGetAttributes(&plain, &attributes));
    EXPECT(ACL_MEM_LOCATION_TYPE_HOST, attributes.location.type);
    OK(standin_set("FERRY_STANDIN_POINTER", "unregistered"));
    OK(aclrtPointerGetAttributes(&plain, &attributes));
    EXPECT(ACL_MEM_LOCATION_TYPE_UNREGISTERED, attributes.location.type);
    OK(standin_set("FERRY_STANDIN_POINTER", ""));

    void *pinned, *shadow;
    OK(aclrtMallocHost(&pinned, 8192));
    memset(pinned, 1, 8192); // it is the host's
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtFree(pinned));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtFreeHost(memory));
    OK(aclrtFreeHost(pinned));
    char *pages = static_cast<char *>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtHostRegister(pages + 64, 4096, 0, &shadow));
    OK(aclrtHostRegister(pages, 8192, 0, &shadow));
    EXPECT(ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED, aclrtHostRegister(pages + 4096, 4096, 0, &shadow));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(memory, huge, shadow, 64, ACL_MEMCPY_HOST_TO_DEVICE));
    OK(aclrtHostUnregister(pages));
    EXPECT(ACL_ERROR_HOST_MEMORY_NOT_REGISTERED, aclrtHostUnregister(pages));
    munmap(pages, 8192);
    OK(aclrtFree(memory));

    OK(standin_set("FERRY_STANDIN_MEMORY_MB", "4"));
    OK(aclrtMalloc(&memory, 2 * huge, 0));
    EXPECT(ACL_ERROR_RT_DEVICE_MEMORY_ALLOCATION, aclrtMalloc(&base, 64, 0));
    OK(aclrtFree(memory));
    OK(standin_set("FERRY_STANDIN_MEMORY_MB", ""));
    finish();
}

void test_copies() {
    start();
    constexpr size_t size = 65536;
    void *device, *far, *pinned, *stream;
    std::vector<char> plain(size), back(size);
    OK(aclrtMalloc(&device, size, 0));
    OK(aclrtMallocHost(&pinned, size));
    OK(aclrtCreateStream(&stream));
    void *first, *second;
    OK(aclrtGetCurrentContext(&first));
    OK(aclrtSetDevice(1));
    OK(aclrtMalloc(&far, size, 0));
    OK(aclrtGetCurrentContext(&second));
    OK(aclrtSetCurrentContext(first));

    fill(plain.data(), size, 7);
    OK(aclrtMemcpyAsync(device, size, plain.data(), size, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    OK(aclrtMemcpyAsync(pinned, size, device, size, ACL_MEMCPY_DEFAULT, stream));
    OK(aclrtSynchronizeStream(stream));
    CHECK(is_filled(pinned, size, 7));

    // Out of bounds on either side, at either end; and with a target_max too small.
    char *d = static_cast<char *>(device);
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpyAsync(d + 8, size, pinned, size, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpyAsync(pinned, size, d + 8, size, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(d - 8, size, pinned, 16, ACL_MEMCPY_HOST_TO_DEVICE));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(device, size - 1, pinned, size, ACL_MEMCPY_HOST_TO_DEVICE));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(device, size, pinned, 0, ACL_MEMCPY_HOST_TO_DEVICE));
    OK(aclrtMemcpy(d + size - 8, 8, pinned, 8, ACL_MEMCPY_HOST_TO_DEVICE)); // the last that fits

    // Wrong kinds.
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpyAsync(device, size, pinned, 64, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpyAsync(device, size, pinned, 64, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    EXPECT(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
           aclrtMemcpyAsync(pinned, size, plain.data(), 64, ACL_MEMCPY_HOST_TO_HOST, stream));

    // Between devices only when access was enabled, in that direction.
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpyAsync(far, size, device, size, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtDeviceEnablePeerAccess(0, 0));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtDeviceEnablePeerAccess(1, 1));
    OK(aclrtDeviceEnablePeerAccess(1, 0));
    OK(aclrtMemcpyAsync(far, size, device, size, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtSetCurrentContext(second));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(device, size, far, 64, ACL_MEMCPY_DEVICE_TO_DEVICE));
    OK(aclrtMemcpy(back.data(), size, far, size, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(is_filled(back.data(), size - 8, 7));
    OK(aclrtSetCurrentContext(first));

    // Batches: one direction, attributes that fit, and no order.
    void *targets[2] = {d, d + 4096}, *sources[2] = {plain.data(), pinned};
    size_t most[2] = {4096, 4096}, sizes[2] = {4096, 4096}, index[2] = {0, 1}, failed;
    aclrtMemcpyBatchAttr h2d = {{0, ACL_MEM_LOCATION_TYPE_DEVICE}, {0, ACL_MEM_LOCATION_TYPE_HOST}, {}};
    aclrtMemcpyBatchAttr d2h = {{0, ACL_MEM_LOCATION_TYPE_HOST}, {0, ACL_MEM_LOCATION_TYPE_DEVICE}, {}};
    OK(aclrtMemcpyBatch(targets, most, sources, sizes, 2, &h2d, index, 1, &failed));
    aclrtMemcpyBatchAttr both[2] = {h2d, d2h};
    void *mixed_targets[2] = {d, pinned}, *mixed_sources[2] = {plain.data(), d + 4096};
    EXPECT(ACL_ERROR_RT_PARAM_INVALID,
           aclrtMemcpyBatch(mixed_targets, most, mixed_sources, sizes, 2, both, index, 2, &failed));
    EXPECT(1, failed);
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpyBatch(targets, most, sources, sizes, 2, &d2h, index, 1, &failed));
    EXPECT(0, failed);
    size_t late[1] = {1};
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpyBatch(targets, most, sources, sizes, 2, &h2d, late, 1, &failed));
    EXPECT(-1, failed);

    OK(aclrtFree(device));
    OK(aclrtFreeHost(pinned));
    OK(aclrtDestroyStream(stream));
    OK(aclrtSetCurrentContext(second));
    OK(aclrtFree(far));
    OK(aclrtResetDevice(1));
    OK(aclrtSetCurrentContext(first));
    finish();
}

void test_streams() {
    start();
    constexpr size_t size = 4096;
    void *device, *pinned, *one, *two, *event, *plain_event;
    std::vector<char> plain(size);
    int status;
    OK(aclrtMalloc(&device, size, 0));
    OK(aclrtMallocHost(&pinned, size));
    OK(aclrtCreateStreamWithConfig(&one, 0, 3));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtCreateStreamWithConfig(&two, 0, 4));
    OK(aclrtCreateStream(&two));
    OK(aclrtCreateEventWithFlag(&event, ACL_EVENT_SYNC));
    OK(aclrtCreateEventWithFlag(&plain_event, ACL_EVENT_TIME_LINE));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtStreamWaitEvent(two, plain_event));

    // Pinned memory: asynchronous. Pageable: done on return.
    OK(standin_set("FERRY_STANDIN_COPY_US", "60000"));
    long from = now_ms();
    OK(aclrtMemcpyAsync(device, size, pinned, size, ACL_MEMCPY_HOST_TO_DEVICE, one));
    CHECK(now_ms() - from < 50);
    OK(aclrtStreamQuery(one, &status));
    EXPECT(ACL_STREAM_STATUS_NOT_READY, status);
    OK(aclrtRecordEvent(event, one));
    OK(aclrtQueryEventStatus(event, &status));
    EXPECT(ACL_EVENT_RECORDED_STATUS_NOT_READY, status);
    OK(aclrtStreamWaitEvent(two, event));
    EXPECT(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, aclrtSynchronizeStreamWithTimeout(two, 5));
    EXPECT(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, aclrtSynchronizeEventWithTimeout(event, 5));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtSynchronizeEventWithTimeout(event, 0));
    OK(aclrtSynchronizeStreamWithTimeout(two, -1));
    OK(aclrtQueryEventStatus(event, &status));
    EXPECT(ACL_EVENT_RECORDED_STATUS_COMPLETE, status);
    OK(aclrtSynchronizeStream(one));
    OK(aclrtStreamQuery(one, &status));
    EXPECT(ACL_STREAM_STATUS_COMPLETE, status);
    from = now_ms();
    OK(aclrtMemcpyAsync(plain.data(), size, device, size, ACL_MEMCPY_DEVICE_TO_HOST, one));
    CHECK(now_ms() - from >= 60);
    OK(standin_set("FERRY_STANDIN_COPY_US", "0"));

    // The second copy hangs: time-outs, and only an abort gets the memory back.
    OK(standin_set("FERRY_STANDIN_HANG", "2"));
    memset(pinned, 1, size);
    OK(aclrtMemcpyAsync(device, size, pinned, size, ACL_MEMCPY_HOST_TO_DEVICE, one));
    OK(aclrtMemcpyAsync(pinned, size, device, size, ACL_MEMCPY_DEVICE_TO_HOST, one));
    OK(aclrtMemcpyAsync(pinned, size, device, size, ACL_MEMCPY_DEVICE_TO_HOST, one));
    OK(aclrtRecordEvent(event, one));
    OK(aclrtStreamWaitEvent(two, event));
    EXPECT(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, aclrtSynchronizeStreamWithTimeout(one, 20));
    memset(pinned, 2, size);
    std::thread waiter([&, context = [] { void *c; OK(aclrtGetCurrentContext(&c)); return c; }()] {
        OK(aclrtSetCurrentContext(context));
        EXPECT(ACL_ERROR_RT_STREAM_ABORT, aclrtSynchronizeEventWithTimeout(event, -1));
    });
    OK(aclrtStreamAbort(one));
    waiter.join();
    OK(aclrtSynchronizeStream(one));
    EXPECT(2, static_cast<char *>(pinned)[0]); // neither of the two was done
    // A stream that waits for what was aborted is stuck, until it is aborted too.
    EXPECT(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, aclrtSynchronizeStreamWithTimeout(two, 20));
    OK(aclrtStreamAbort(two));
    OK(aclrtMemcpyAsync(pinned, size, device, size, ACL_MEMCPY_DEVICE_TO_HOST, one));
    OK(aclrtSynchronizeStream(one));
    EXPECT(1, static_cast<char *>(pinned)[0]);

    // Faults: the third call from now; the next task, told when the stream is waited for, once.
    OK(standin_set("FERRY_STANDIN_FAULT", "aclrtMemcpyAsync:3:507899,task:2:507018"));
    CHECK(standin_set("FERRY_STANDIN_FAULT", "aclrtMemcpyAsync:0:1") != 0);
    OK(aclrtMemcpyAsync(pinned, size, device, size, ACL_MEMCPY_DEVICE_TO_HOST, one));
    OK(aclrtMemcpyAsync(pinned, size, device, size, ACL_MEMCPY_DEVICE_TO_HOST, one));
    EXPECT(507899, aclrtMemcpyAsync(pinned, size, device, size, ACL_MEMCPY_DEVICE_TO_HOST, one));
    EXPECT(507018, aclrtSynchronizeStream(one));
    OK(aclrtSynchronizeStream(one));
    OK(standin_set("FERRY_STANDIN_FAULT", ""));

    OK(aclrtDestroyEvent(event));
    EXPECT(ACL_ERROR_RT_INVALID_HANDLE, aclrtDestroyEvent(event));
    OK(aclrtDestroyEvent(plain_event));
    OK(aclrtDestroyStream(one));
    EXPECT(ACL_ERROR_RT_INVALID_HANDLE, aclrtDestroyStream(one));
    OK(aclrtDestroyStream(two));
    OK(aclrtFree(device));
    OK(aclrtFreeHost(pinned));
    finish();
}

void test_virtual_memory() {
    start();
    aclrtPhysicalMemProp properties = {};
    properties.memAttr = 4;
    properties.location = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
    void *one, *two, *far, *base, *retained;
    OK(aclrtMallocPhysical(&one, huge, &properties, 0));
    OK(aclrtMallocPhysical(&two, huge, &properties, 0));
    properties.location.id = 1;
    OK(aclrtMallocPhysical(&far, huge, &properties, 0));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtReserveMemAddress(&base, 2 * huge, 64, nullptr, 0));
    OK(aclrtReserveMemAddress(&base, 2 * huge, 0, nullptr, 0));
    char *address = static_cast<char *>(base);
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMapMem(base, huge / 2, 0, one, 0));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMapMem(address + 2 * huge, huge, 0, one, 0));
    OK(aclrtMapMem(base, huge, 0, one, 0));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMapMem(base, huge, 0, two, 0));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMapMem(address + huge, huge, 0, far, 0)); // two devices in one reservation
    std::vector<char> data(256), back(256);
    fill(data.data(), 256, 3);
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemcpy(address + huge - 128, 256, data.data(), 256, ACL_MEMCPY_HOST_TO_DEVICE));
    OK(aclrtMapMem(address + huge, huge, 0, two, 0));
    OK(aclrtMemcpy(address + huge - 128, 256, data.data(), 256, ACL_MEMCPY_HOST_TO_DEVICE)); // over both
    OK(aclrtMemcpy(back.data(), 256, address + huge - 128, 256, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(is_filled(back.data(), 256, 3));
    OK(aclrtMemRetainAllocationHandle(base, &retained));
    CHECK(retained == one);
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtMemRetainAllocationHandle(address + 64, &retained));
    OK(aclrtFreePhysical(one));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtReleaseMemAddress(base));
    uint64_t shareable;
    OK(aclrtMemExportToShareableHandle(two, 0, 1, &shareable));
    EXPECT(ACL_ERROR_RT_DRV_INTERNAL_ERROR, aclrtMemExportToShareableHandle(two, 0, 1, &shareable));
    EXPECT(ACL_ERROR_RT_DRV_INTERNAL_ERROR, aclrtMemImportFromShareableHandle(shareable, 0, &retained)); // same process
    OK(aclrtUnmapMem(base));
    OK(aclrtUnmapMem(address + huge));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtUnmapMem(base));
    OK(aclrtReleaseMemAddress(base));
    OK(aclrtFreePhysical(one));
    EXPECT(ACL_ERROR_RT_INVALID_HANDLE, aclrtFreePhysical(one));
    OK(aclrtFreePhysical(two));
    OK(aclrtFreePhysical(far));
    aclrtMemFabricHandle fabric;
    EXPECT(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, aclrtMemExportToShareableHandleV2(one, 0, 2, &fabric));
    finish();
}

void test_audit() {
    const std::string path = "audit." + std::to_string(getpid());
    OK(standin_set("FERRY_STANDIN_AUDIT", path.c_str()));
    start();
    void *thing, *shadow;
    static char pages[8192] __attribute__((aligned(4096)));
    OK(aclrtCreateStream(&thing));
    OK(aclrtCreateEventWithFlag(&thing, 1));
    OK(aclrtMalloc(&thing, 64, 0));
    OK(aclrtMallocHost(&thing, 64));
    OK(aclrtHostRegister(pages, 8192, 0, &shadow));
    OK(aclFinalize());
    const std::string lines = read_file(path);
    for (const char *part : {"leak stream", "leak event", "leak device memory", "leak host memory",
                             "leak registered host memory", "leak device 0 set 1 times"}) {
        if (lines.find(part) == std::string::npos) FAIL("no \"%s\" in:\n%s", part, lines.c_str());
    }
    unlink(path.c_str());
    OK(standin_set("FERRY_STANDIN_AUDIT", ""));
}

} // namespace

// Tests that end the process, each in its own.
int crash(const std::string &what) {
    start();
    void *device, *pinned, *stream;
    OK(aclrtMalloc(&device, 4096, 0));
    OK(aclrtMallocHost(&pinned, 4096));
    OK(aclrtCreateStream(&stream));
    if (what == "crash-read") return *static_cast<volatile char *>(device);
    if (what == "crash-write") *static_cast<volatile char *>(device) = 1;
    OK(standin_set("FERRY_STANDIN_HANG", "1"));
    OK(aclrtMemcpyAsync(device, 4096, pinned, 4096, ACL_MEMCPY_HOST_TO_DEVICE, stream));
    if (what == "crash-free") aclrtFree(device);
    if (what == "crash-free-host") aclrtFreeHost(pinned);
    return 0;
}

int main(int count, char **arguments) {
    const std::vector<std::string> role(arguments + 1, arguments + count);
    if (!role.empty()) return role[0].rfind("crash", 0) == 0 ? crash(role[0]) : play(role);
    const struct {
        const char *name;
        void (*run)();
    } tests[] = {{"contexts", test_contexts}, {"memory", test_memory},     {"copies", test_copies},
                 {"streams", test_streams},   {"virtual memory", test_virtual_memory},
                 {"processes", test_processes}, {"audit", test_audit}};
    for (const auto &test : tests) {
        printf("acl: %s\n", test.name);
        test.run();
    }
    for (const char *role_name : {"crash-read", "crash-write", "crash-free", "crash-free-host"}) expect_crash(role_name);
    printf("acl: passed\n");
    return 0;
}
