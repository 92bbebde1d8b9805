// ferry.hpp with memory of devices: registered, moved both ways, after an event, before a stream. run.sh has
// FERRY_CUDA_LIBRARY name the stand-in for CUDA's driver; the program opens it as any other would.
#include "engines.hpp"

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <thread>

// More than a piece of staging memory.
static constexpr std::size_t LENGTH = (2 << 20) + (64 << 10);
static constexpr std::size_t SMALL = 4096;

using Words = std::vector<std::uint64_t>;

// Each 8 bytes say where they belong.
static Words words(std::size_t bytes, std::uint64_t seed)
{
    Words made(bytes / 8);
    for (std::size_t i = 0; i < made.size(); i++) made[i] = seed << 40 | (i + 1);
    return made;
}

static void ok(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s: %d\n", call, static_cast<int>(result));
    std::abort();
}

// The driver's functions, by dlsym.
#define CALL(function, ...) ok(find<decltype(&function)>(#function)(__VA_ARGS__), #function)

static void *library()
{
    const char *name = std::getenv("FERRY_CUDA_LIBRARY");
    if (!name) give_up("FERRY_CUDA_LIBRARY names no stand-in: run.sh builds one");
    static void *const opened = dlopen(name, RTLD_NOW);
    if (!opened) give_up(dlerror());
    return opened;
}

template <class Function> static Function find(const char *name)
{
    void *symbol = dlsym(library(), name);
    if (!symbol) give_up(name);
    return reinterpret_cast<Function>(symbol);
}

static CUcontext contexts[2];

// What follows is of this device, on this thread.
static void use(int device)
{
    if (!contexts[device]) {
        CALL(cuInit, 0);
        CALL(cuDevicePrimaryCtxRetain, &contexts[device], device);
    }
    CALL(cuCtxSetCurrent, contexts[device]);
}

// At the end everything has been given back to the driver, by ferry too.
class Audit : public testing::Environment {
    void TearDown() override
    {
        CALL(cuCtxSetCurrent, nullptr);
        for (int device = 0; device < 2; device++)
            if (contexts[device]) CALL(cuDevicePrimaryCtxRelease_v2, device);
        EXPECT_EQ(find<long (*)()>("standin_audit")(), 0);
    }
};
static testing::Environment *const audit = testing::AddGlobalTestEnvironment(new Audit);

class DeviceMemory {
public:
    DeviceMemory(int device, std::size_t size) : size_(size)
    {
        use(device);
        CALL(cuMemAlloc_v2, &address_, size);
        CALL(cuMemsetD8_v2, address_, 0, size);
    }
    DeviceMemory(const DeviceMemory &) = delete;
    ~DeviceMemory() { CALL(cuMemFree_v2, address_); }
    CUdeviceptr address() const { return address_; }
    void *data() const { return reinterpret_cast<void *>(address_); }
    void put(const Words &from) { CALL(cuMemcpyHtoD_v2, address_, from.data(), from.size() * 8); }
    Words get() const
    {
        Words into(size_ / 8);
        CALL(cuMemcpyDtoH_v2, into.data(), address_, size_);
        return into;
    }

private:
    CUdeviceptr address_ = 0;
    std::size_t size_;
};

// A stream of the program's, memory that it copies from and to, and a gate that it waits at.
class Stream {
public:
    Stream()
    {
        use(0);
        CALL(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
        CALL(cuEventCreate, &event_, CU_EVENT_DISABLE_TIMING);
        CALL(cuMemHostAlloc, &gate_, SMALL, 0);
        CALL(cuMemHostAlloc, &staged_, SMALL, 0);
        *static_cast<volatile std::uint32_t *>(gate_) = 0;
        std::fill_n(static_cast<std::uint64_t *>(staged_), SMALL / 8, 0);
    }
    Stream(const Stream &) = delete;
    ~Stream()
    {
        CALL(cuStreamDestroy_v2, stream_);
        CALL(cuEventDestroy_v2, event_);
        CALL(cuMemFreeHost, gate_);
        CALL(cuMemFreeHost, staged_);
    }
    CUstream handle() const { return stream_; }
    void block()
    {
        CALL(cuStreamWaitValue32_v2, stream_, reinterpret_cast<CUdeviceptr>(gate_), 1, CU_STREAM_WAIT_VALUE_GEQ);
    }
    void go() { *static_cast<volatile std::uint32_t *>(gate_) = 1; }
    // Has the stream write to a device, and records the event behind that.
    CUevent write(const DeviceMemory &to, const Words &from)
    {
        std::copy(from.begin(), from.end(), static_cast<std::uint64_t *>(staged_));
        CALL(cuMemcpyHtoDAsync_v2, to.address(), staged_, SMALL, stream_);
        CALL(cuEventRecord, event_, stream_);
        return event_;
    }
    void read(const DeviceMemory &from) { CALL(cuMemcpyDtoHAsync_v2, staged_, from.address(), SMALL, stream_); }
    Words staged() const
    {
        const auto *first = static_cast<const std::uint64_t *>(staged_);
        return Words(first, first + SMALL / 8);
    }
    bool is_done() const
    {
        const CUresult result = find<decltype(&cuStreamQuery)>("cuStreamQuery")(stream_);
        if (result != CUDA_ERROR_NOT_READY) ok(result, "cuStreamQuery");
        return result == CUDA_SUCCESS;
    }
    void wait() const
    {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!is_done()) {
            if (std::chrono::steady_clock::now() > until) give_up("the stream is stuck");
            std::this_thread::yield();
        }
    }

private:
    CUstream stream_ = nullptr;
    CUevent event_ = nullptr;
    void *gate_ = nullptr, *staged_ = nullptr;
};

// A region of a in memory of its device 0, and one of b in memory of device 1, named "device".
struct Devices : Pair {
    explicit Devices(std::size_t size, const char *transports = nullptr)
        : Pair(4096, transports), a_device(0, size), b_device(1, size), a_region(must(a.register_memory(a_device.data(), size))),
          b_region(must(b.register_memory(b_device.data(), size,
                                          ferry::RegionOptions().name("device").kind(FERRY_MEMORY_CUDA, 1)))),
          there(find_there()), request(ferry::request(a_device.data(), size, there))
    {
    }
    ferry::RegionInfo find_there() const
    {
        must(peer.probe(patience));
        return must(peer.region("device"));
    }
    DeviceMemory a_device, b_device;
    ferry::Region a_region, b_region;
    ferry::RegionInfo there;
    ferry::Request request;
};

TEST(Devices, MemoryIsMovedBothWays)
{
    Devices devices(LENGTH);
    EXPECT_EQ(devices.there.kind, static_cast<std::uint32_t>(FERRY_MEMORY_CUDA));
    EXPECT_EQ(devices.there.device, 1);
    EXPECT_EQ(devices.remote.kind, static_cast<std::uint32_t>(FERRY_MEMORY_HOST));
    devices.a_device.put(words(LENGTH, 1));
    ferry::TransferResult result;
    must(devices.peer.write(devices.request, {}, &result));
    EXPECT_EQ(result.bytes_confirmed, LENGTH);
    EXPECT_EQ(devices.b_device.get(), words(LENGTH, 1));
    devices.b_device.put(words(LENGTH, 2));
    must(devices.peer.read(devices.request));
    EXPECT_EQ(devices.a_device.get(), words(LENGTH, 2));
}

TEST(Devices, OnOneHostTheyCopyByThemselves)
{
    Devices devices(LENGTH, "auto");
    devices.a_device.put(words(LENGTH, 1));
    ferry::TransferResult result;
    must(devices.peer.write(devices.request, {}, &result));
    EXPECT_EQ(result.transport, static_cast<std::uint32_t>(FERRY_TRANSPORT_CUDA));
    EXPECT_EQ(must(devices.a.stats()).bytes_device, LENGTH);
    EXPECT_EQ(devices.b_device.get(), words(LENGTH, 1));
}

TEST(Devices, TheHostAndADeviceExchange)
{
    Devices devices(SMALL);
    fill(devices.a_memory, 3);
    const ferry::Request request = ferry::request(devices.a_memory.data(), SMALL, devices.there);
    must(devices.peer.write(request));
    EXPECT_EQ(devices.b_device.get(), words(SMALL, 3));
    devices.b_device.put(words(SMALL, 4));
    must(devices.peer.read(request));
    EXPECT_EQ(misplaced(devices.a_memory, 0, SMALL, 4, 0), 0u);
}

TEST(Devices, AWrongStatementIsRefused)
{
    Pair pair;
    DeviceMemory memory(1, SMALL);
    const auto refused = [&](void *address, const ferry::RegionOptions &options) {
        const ferry::Result<ferry::Region> result = pair.a.register_memory(address, SMALL, options);
        EXPECT_EQ(result.status(), FERRY_ERR_INVALID);
        return std::string(result.message());
    };
    using Options = ferry::RegionOptions;
    EXPECT_NE(refused(memory.data(), Options().kind(FERRY_MEMORY_CUDA, 0)).find("options.device"), std::string::npos);
    EXPECT_NE(refused(memory.data(), Options().kind(FERRY_MEMORY_HOST)).find("options.kind"), std::string::npos);
    std::vector<std::uint64_t> plain(SMALL / 8);
    EXPECT_NE(refused(plain.data(), Options().kind(FERRY_MEMORY_CUDA)).find("options.kind"), std::string::npos);
}

// A transfer waits for what the stream has yet to write, by its event or by itself.
static void starts_after(std::uint32_t kind)
{
    Devices devices(SMALL);
    Stream stream;
    stream.block();
    const CUevent event = stream.write(devices.a_device, words(SMALL, 5));
    const void *handle = event;
    if (kind == FERRY_START_AFTER_CUDA_STREAM) handle = stream.handle();
    const ferry::Transfer transfer = must(devices.peer.submit(
        FERRY_OP_WRITE, devices.request, ferry::TransferOptions().start_after(kind, handle)));
    EXPECT_TRUE(transfer.wait(std::chrono::milliseconds(50)).pending());
    EXPECT_EQ(devices.b_device.get(), Words(SMALL / 8));
    stream.go();
    must(transfer.wait(patience));
    EXPECT_EQ(devices.b_device.get(), words(SMALL, 5));
}

TEST(Streams, ATransferStartsAfterAnEvent) { starts_after(FERRY_START_AFTER_CUDA_EVENT); }
TEST(Streams, ATransferStartsAfterTheWorkOfAStream) { starts_after(FERRY_START_AFTER_CUDA_STREAM); }

TEST(Streams, AStreamWaitsForATransfer)
{
    Devices devices(SMALL);
    devices.b_device.put(words(SMALL, 6));
    Stream held_up, waiting;
    held_up.block();
    const CUevent event = held_up.write(devices.a_device, Words(SMALL / 8));
    const ferry::Transfer transfer = must(devices.peer.submit(
        FERRY_OP_READ, devices.request, ferry::TransferOptions().start_after(FERRY_START_AFTER_CUDA_EVENT, event)));
    must(transfer.stream_wait(waiting.handle()));
    waiting.read(devices.a_device);
    EXPECT_FALSE(waiting.is_done());
    held_up.go();
    waiting.wait();
    EXPECT_EQ(waiting.staged(), words(SMALL, 6));
    must(transfer.wait(patience));
    EXPECT_EQ(transfer.stream_wait(waiting.handle(), FERRY_MEMORY_HOST).status(), FERRY_ERR_INVALID);
}

TEST(Streams, WhatIsNoEventIsRefused)
{
    Pair pair;
    const auto submit = [&](std::uint32_t kind) {
        return pair.peer.submit(FERRY_OP_WRITE, pair.range(0, 0, 8), ferry::TransferOptions().start_after(kind, nullptr));
    };
    EXPECT_EQ(submit(FERRY_START_AFTER_CUDA_EVENT).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(submit(99).status(), FERRY_ERR_INVALID);
}
