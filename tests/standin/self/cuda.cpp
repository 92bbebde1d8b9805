// Breaks each rule of the CUDA driver on purpose. cuda_memory.cpp has the rules of virtual memory and of
// other processes. STANDIN_CUDA_HEADER may name NVIDIA's header: these tests compile against it too.
#include "cuda_self.h"

#include <dlfcn.h>
#include <thread>

namespace {

void test_contexts() {
    int count, version;
    CUcontext first, second, got;
    CUdeviceptr memory;
    OK(cuDriverGetVersion(&version));
    EXPECT(12080, version);
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    EXPECT(2, count);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&memory, 64));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&first, 2));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&memory, 64)); // retained, not current
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc_v2(&memory, 64));
    std::thread([&] { EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemFree_v2(memory)); }).join();
    OK(cuMemFree_v2(memory));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxPushCurrent_v2(second));
    CUdevice device;
    OK(cuCtxGetDevice(&device));
    EXPECT(1, device);
    OK(cuCtxPopCurrent_v2(&got));
    CHECK(got == second);
    OK(cuCtxGetCurrent(&got));
    CHECK(got == first);
    OK(cuDevicePrimaryCtxRelease_v2(1));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(second));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(1));
    unsigned flags;
    int active;
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    EXPECT(0, active);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&memory, 64));
    OK(cuCtxSetCurrent(nullptr));
    EXPECT(0, standin_audit());
}

void test_devices() {
    const CUcontext context = start();
    int value;
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0));
    EXPECT(1, value);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0));
    EXPECT(0, value);
    OK(standin_set("FERRY_STANDIN_POSIX_FD", "0"));
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
    EXPECT(0, value);
    OK(standin_set("FERRY_STANDIN_POSIX_FD", "1"));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_INTEGRATED, 5));
    char bus[32];
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, 1));
    EXPECT(0, strcmp(bus, "0000:02:00.0"));
    CUuuid one, two;
    OK(cuDeviceGetUuid_v2(&one, 0));
    OK(cuDeviceGetUuid_v2(&two, 1));
    CHECK(memcmp(&one, &two, sizeof one) != 0);
    const char *name;
    OK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name));
    EXPECT(0, strcmp(name, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(static_cast<CUresult>(12345), &name));
    OK(cuDeviceCanAccessPeer(&value, 0, 1));
    EXPECT(1, value);
    CUcontext peer;
    OK(cuDevicePrimaryCtxRetain(&peer, 1));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuCtxEnablePeerAccess(context, 0));
    OK(cuCtxEnablePeerAccess(peer, 0));
    EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(peer, 0));
    OK(cuDevicePrimaryCtxRelease_v2(1));

    // Newer functions by name; what is newer than the driver is not there.
    void *function;
    CUdriverProcAddressQueryResult status;
    OK(proc_address("cuMemAlloc", &function, 12080, &status));
    CHECK(function == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    OK(proc_address("cuInit", &function, 12080, &status));
    CHECK(function == dlsym(RTLD_DEFAULT, "cuInit"));
    EXPECT(CUDA_ERROR_NOT_FOUND, proc_address("cuNothing", &function, 12080, &status));
    EXPECT(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status);
    EXPECT(CUDA_ERROR_NOT_FOUND, proc_address("cuMemAlloc", &function, 13000, &status));
    EXPECT(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, status);
    finish();
}

void test_memory() {
    start();
    CUdeviceptr device, managed, base;
    void *pinned;
    size_t size;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&device, 0));
    OK(cuMemAlloc_v2(&device, 1000));
    OK(cuMemGetAddressRange_v2(&base, &size, device + 999));
    CHECK(base == device && size == 1000);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, device + 1000));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(device + 8));
    OK(cuMemFree_v2(0));
    OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    *reinterpret_cast<volatile char *>(managed) = 7; // the host may
    OK(cuMemHostAlloc(&pinned, 4096, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(reinterpret_cast<CUdeviceptr>(pinned)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(reinterpret_cast<void *>(device)));

    std::vector<char> own(8192);
    EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own.data()));
    OK(cuMemHostRegister_v2(own.data(), own.size(), 1));
    EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(own.data() + 4096, 4096, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2(reinterpret_cast<void *>(device), 64, 0));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemHostRegister_v2(pinned, 64, 4));
    OK(cuMemHostGetDevicePointer_v2(&base, own.data() + 16, 0));
    CHECK(base == reinterpret_cast<CUdeviceptr>(own.data() + 16));

    // Attributes of all kinds; the list form knows no errors for unknown memory, the single one does.
    unsigned type = 0, is_managed = 9, capable = 9;
    int ordinal = 9;
    unsigned long long id = 0, other = 0;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));
    EXPECT(CU_MEMORYTYPE_DEVICE, type);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(own.data())));
    EXPECT(CU_MEMORYTYPE_HOST, type);
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
    EXPECT(1, is_managed);
    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, device));
    OK(cuMemHostUnregister(own.data()));
    const CUdeviceptr plain = reinterpret_cast<CUdeviceptr>(own.data());
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain));
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
    void *where[] = {&type, &is_managed, &ordinal, &capable};
    OK(cuPointerGetAttributes(4, which, where, plain));
    CHECK(type == 0 && is_managed == 0 && ordinal == -2 && capable == 0);
    OK(cuPointerGetAttributes(4, which, where, device));
    CHECK(type == CU_MEMORYTYPE_DEVICE && is_managed == 0 && ordinal == 0 && capable == 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttributes(0, which, where, device));
    int file;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED,
           cuMemGetHandleForAddressRange(&file, device, 1000, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    OK(standin_set("FERRY_STANDIN_DMA_BUF", "1"));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemGetHandleForAddressRange(&file, device, 1000, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemGetHandleForAddressRange(&file, device, 8192, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    OK(cuMemGetHandleForAddressRange(&file, device, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    CHECK(close(file) == 0);
    OK(standin_set("FERRY_STANDIN_DMA_BUF", "0"));
    // A buffer's identity is never used again, though its address may be.
    OK(cuMemFree_v2(device));
    OK(cuMemAlloc_v2(&device, 1000));
    OK(cuPointerGetAttribute(&other, CU_POINTER_ATTRIBUTE_BUFFER_ID, device));
    CHECK(id != other);
    OK(cuMemFree_v2(device));
    OK(cuMemFree_v2(managed));
    OK(cuMemFreeHost(pinned));
    OK(standin_set("FERRY_STANDIN_MEMORY_MB", "1"));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&device, (1 << 20) + 1));
    OK(cuMemAlloc_v2(&device, 1 << 20));
    OK(cuMemFree_v2(device));
    OK(standin_set("FERRY_STANDIN_MEMORY_MB", ""));
    finish();
}

void test_copies() {
    const CUcontext context = start();
    constexpr size_t size = 65536;
    CUdeviceptr device, far;
    void *pinned;
    CUstream stream;
    std::vector<char> plain(size), back(size);
    OK(cuMemAlloc_v2(&device, size));
    OK(cuMemAllocHost_v2(&pinned, size));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    fill(plain.data(), size, 5);
    OK(cuMemcpyHtoD_v2(device, plain.data(), size));
    OK(cuMemcpyDtoHAsync_v2(pinned, device, size, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(is_filled(pinned, size, 5));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(device + 8, plain.data(), size));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync_v2(static_cast<char *>(pinned) + 1, device, size, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyAsync(device - 8, device, 16, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync_v2(reinterpret_cast<CUdeviceptr>(pinned), plain.data(), 8, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync_v2(device, reinterpret_cast<CUdeviceptr>(pinned), 8, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(back.data(), 0, 8));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuMemcpyAsync(device, device, 8, reinterpret_cast<CUstream>(&plain)));
    OK(cuMemcpyHtoD_v2(device, plain.data(), 0));
    // Two registrations side by side are two, for a copy.
    OK(cuMemHostRegister_v2(plain.data(), size / 2, 0));
    OK(cuMemHostRegister_v2(plain.data() + size / 2, size / 2, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(device, plain.data(), size));
    OK(cuMemcpyHtoD_v2(device, plain.data(), size / 2));
    OK(cuMemHostUnregister(plain.data()));
    OK(cuMemHostUnregister(plain.data() + size / 2));
    OK(cuMemsetD8_v2(device, 0x11, size));
    OK(cuMemcpyDtoH_v2(back.data(), device, size));
    CHECK(back[0] == 0x11 && back[size - 1] == 0x11);

    // Between devices, without peer access too.
    CUcontext second;
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxPushCurrent_v2(second));
    OK(cuMemAlloc_v2(&far, size));
    OK(cuCtxPopCurrent_v2(nullptr));
    OK(cuMemcpyHtoD_v2(device, plain.data(), size));
    OK(cuMemcpyPeerAsync(far, second, device, context, size, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyPeerAsync(far, context, device, second, size, stream));
    OK(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(back.data()), far, size, stream));
    CHECK(is_filled(back.data(), size, 5));

    // Batches.
    fill(pinned, size, 6);
    CUdeviceptr targets[2] = {device, device + size / 2};
    CUdeviceptr sources[2] = {reinterpret_cast<CUdeviceptr>(pinned), reinterpret_cast<CUdeviceptr>(pinned) + size / 2};
    size_t sizes[2] = {size / 2, size / 2}, index[2] = {0, 1}, failed;
    CUmemcpyAttributes attributes[2] = {};
    attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(targets, sources, sizes, 2, attributes, index, 1, &failed, nullptr));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(targets, sources, sizes, 2, attributes, index, 2, &failed, stream));
    OK(cuMemcpyBatchAsync(targets, sources, sizes, 2, attributes, index, 1, &failed, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(back.data(), device, size));
    CHECK(is_filled(back.data(), size, 6));
    sizes[1]++;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(targets, sources, sizes, 2, attributes, index, 1, &failed, stream));
    EXPECT(1, failed);

    OK(cuMemFree_v2(device));
    OK(cuCtxPushCurrent_v2(second));
    OK(cuMemFree_v2(far));
    OK(cuCtxPopCurrent_v2(nullptr));
    OK(cuDevicePrimaryCtxRelease_v2(1));
    OK(cuMemFreeHost(pinned));
    OK(cuStreamDestroy_v2(stream));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(stream));
    finish();
}

void call_driver(void *out) {
    int count;
    *static_cast<CUresult *>(out) = cuDeviceGetCount(&count);
}

void test_streams() {
    const CUcontext context = start();
    constexpr size_t size = 4096;
    CUdeviceptr device;
    void *pinned;
    CUstream one, two;
    CUevent event, timed, untimed;
    CUcontext got;
    std::vector<char> plain(size);
    OK(cuMemAlloc_v2(&device, size));
    OK(cuMemAllocHost_v2(&pinned, size));
    OK(cuStreamCreateWithPriority(&one, CU_STREAM_NON_BLOCKING, -1));
    OK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    OK(cuStreamGetCtx(two, &got));
    CHECK(got == context);
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&timed, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&untimed, CU_EVENT_DEFAULT));
    OK(cuEventQuery(event)); // never recorded

    OK(standin_set("FERRY_STANDIN_COPY_US", "60000"));
    OK(cuEventRecord(timed, one));
    long from = now_ms();
    OK(cuMemcpyHtoDAsync_v2(device, pinned, size, one));
    CHECK(now_ms() - from < 50);
    OK(cuEventRecord(event, one));
    OK(cuStreamWaitEvent(two, event, 0));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(two));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    OK(cuStreamSynchronize(two));
    OK(cuEventQuery(event));
    OK(cuEventRecord(untimed, one));
    OK(cuEventSynchronize(untimed));
    float ms;
    OK(cuEventElapsedTime(&ms, timed, untimed));
    CHECK(ms >= 60);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, timed, event));
    from = now_ms();
    OK(cuMemcpyHtoDAsync_v2(device, plain.data(), size, one)); // pageable
    CHECK(now_ms() - from >= 60);
    // Freeing waits for what is under way.
    from = now_ms();
    OK(cuMemcpyHtoDAsync_v2(device, pinned, size, one));
    OK(cuMemFree_v2(device));
    CHECK(now_ms() - from >= 60);
    OK(standin_set("FERRY_STANDIN_COPY_US", "0"));
    OK(cuMemAlloc_v2(&device, size));

    // A word of pinned memory: waited for by one stream, written by the other.
    auto *word = static_cast<volatile uint32_t *>(pinned);
    const CUdeviceptr at = reinterpret_cast<CUdeviceptr>(pinned);
    *word = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32_v2(one, at + 2, 1, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64_v2(one, reinterpret_cast<CUdeviceptr>(plain.data()), 1, 0));
    OK(cuStreamWaitValue32_v2(one, at, 3, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamWriteValue32_v2(one, at, 4, 0));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(one));
    OK(cuStreamWriteValue32_v2(two, at, 3, 0));
    OK(cuStreamSynchronize(one));
    EXPECT(4, *word);
    OK(cuStreamWaitValue64_v2(one, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamSynchronize(one));

    CUresult inside = CUDA_SUCCESS;
    OK(cuLaunchHostFunc(one, call_driver, &inside));
    OK(cuCtxSynchronize());
    EXPECT(CUDA_ERROR_NOT_PERMITTED, inside);

    // A copy that hangs goes on when the time is over, or when it is let go.
    OK(standin_set("FERRY_STANDIN_HANG", "1:50"));
    from = now_ms();
    OK(cuMemcpyHtoDAsync_v2(device, pinned, size, one));
    OK(cuStreamSynchronize(one));
    CHECK(now_ms() - from >= 50);
    OK(standin_set("FERRY_STANDIN_HANG", "1"));
    OK(cuMemcpyHtoDAsync_v2(device, pinned, size, one));
    usleep(30000);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(one));
    standin_release();
    OK(cuStreamSynchronize(one));

    OK(standin_set("FERRY_STANDIN_FAULT", "cuEventQuery:2:999"));
    OK(cuEventQuery(event));
    EXPECT(CUDA_ERROR_UNKNOWN, cuEventQuery(event));
    OK(cuEventDestroy_v2(event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(event));
    OK(cuEventDestroy_v2(timed));
    OK(cuEventDestroy_v2(untimed));
    OK(cuStreamDestroy_v2(one));
    OK(cuStreamDestroy_v2(two));
    OK(cuMemFree_v2(device));
    OK(cuMemFreeHost(pinned));
    finish();
}

void test_kernels() {
    start();
    constexpr size_t size = 4096;
    struct {
        uint64_t source, destination, length;
    } pieces[2];
    CUdeviceptr device, list;
    CUmodule module;
    CUfunction function;
    std::vector<char> data(size), back(size);
    OK(cuMemAlloc_v2(&device, 2 * size));
    OK(cuMemAlloc_v2(&list, sizeof pieces));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, nullptr));
    OK(cuModuleLoadData(&module, ".version 7.0"));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "nothing"));
    OK(cuModuleGetFunction(&function, module, "ferry_copy_pieces"));
    fill(data.data(), size, 9);
    OK(cuMemcpyHtoD_v2(device, data.data(), size));
    // The two halves, exchanged.
    pieces[0] = {device, device + size + size / 2, size / 2};
    pieces[1] = {device + size / 2, device + size, size / 2};
    OK(cuMemcpyHtoD_v2(list, pieces, sizeof pieces));
    uint32_t count = 2;
    void *parameters[] = {&list, &count};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, nullptr, parameters, nullptr));
    OK(cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(back.data(), device + size, size));
    CHECK(is_filled(back.data(), size / 2, 9 + size / 16) && is_filled(back.data() + size / 2, size / 2, 9));
    OK(cuModuleUnload(module));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
    OK(cuMemFree_v2(device));
    OK(cuMemFree_v2(list));
    finish();
}

// A kernel's error stays with the context: every later call fails.
int sticky() {
    start();
    CUdeviceptr list;
    CUmodule module;
    CUfunction function;
    uint64_t piece[3] = {0x1000, 0x2000, 64};
    OK(cuMemAlloc_v2(&list, sizeof piece));
    OK(cuMemcpyHtoD_v2(list, piece, sizeof piece));
    OK(cuModuleLoadData(&module, "x"));
    OK(cuModuleGetFunction(&function, module, "ferry_copy_pieces"));
    uint32_t count = 1;
    void *parameters[] = {&list, &count};
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree_v2(list));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&list, 64));
    EXPECT(0, standin_audit()); // nothing can be given back any more
    return 0;
}

int sticky_knob() {
    start();
    CUstream stream;
    CUdeviceptr device;
    void *pinned;
    OK(cuStreamCreate(&stream, 0));
    OK(cuMemAlloc_v2(&device, 64));
    OK(cuMemAllocHost_v2(&pinned, 64));
    OK(standin_set("FERRY_STANDIN_FAULT", "task:1:719"));
    // May tell it at once, if the task is that fast.
    const CUresult told = cuMemcpyHtoDAsync_v2(device, pinned, 64, stream);
    CHECK(told == CUDA_SUCCESS || told == CUDA_ERROR_LAUNCH_FAILED);
    EXPECT(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(stream));
    EXPECT(CUDA_ERROR_LAUNCH_FAILED, cuStreamQuery(stream));
    OK(standin_set("FERRY_STANDIN_STICKY", "700"));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(stream));
    return 0;
}

int forked_child() {
    start();
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int count;
        _exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

} // namespace

CUresult proc_address(const char *name, void **function, int version, CUdriverProcAddressQueryResult *status) {
    return cuGetProcAddress_v2(name, function, version, 0, status);
}

CUcontext start() {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}
void finish() {
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuCtxSetCurrent(nullptr));
    EXPECT(0, standin_audit());
}

int main(int count, char **arguments) {
    const std::vector<std::string> role(arguments + 1, arguments + count);
    if (!role.empty()) {
        if (role[0] == "sticky") return sticky();
        if (role[0] == "sticky-knob") return sticky_knob();
        if (role[0] == "forked") return forked_child();
        return play(role);
    }
    const struct {
        const char *name;
        void (*run)();
    } tests[] = {{"contexts", test_contexts}, {"devices", test_devices}, {"memory", test_memory},
                 {"copies", test_copies},     {"streams", test_streams}, {"kernels", test_kernels},
                 {"virtual memory", test_virtual_memory}, {"processes", test_processes}};
    for (const auto &test : tests) {
        printf("cuda: %s\n", test.name);
        test.run();
    }
    for (const char *one : {"sticky", "sticky-knob", "forked"}) {
        printf("cuda: %s\n", one);
        Other other({one});
        EXPECT(0, other.end());
    }
    expect_crash("crash-read");
    expect_crash("crash-freed");
    printf("cuda: passed\n");
    return 0;
}
