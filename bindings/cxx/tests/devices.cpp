// ferry.hpp with device memory: registration, transfers both ways, starts after an event, and streams that wait. run.sh
// builds it with the stand-in for the CUDA driver, or, with ASCEND defined, with the one for AscendCL; ferry opens the
// same library.
#include "engines.hpp"

#include <gtest/gtest.h>
#include <program.h>
#include <thread>

#ifdef ASCEND
static constexpr ferry::MemoryKind KIND = ferry::MemoryKind::ascend;
static constexpr ferry::StartAfter AFTER_EVENT = ferry::StartAfter::acl_event;
static constexpr ferry::StartAfter AFTER_STREAM = ferry::StartAfter::acl_stream;
#else
static constexpr ferry::MemoryKind KIND = ferry::MemoryKind::cuda;
static constexpr ferry::StartAfter AFTER_EVENT = ferry::StartAfter::cuda_event;
static constexpr ferry::StartAfter AFTER_STREAM = ferry::StartAfter::cuda_stream;
#endif

// More than a piece of staging memory.
static constexpr std::size_t LENGTH = (2 << 20) + (64 << 10);
static constexpr std::size_t SMALL = 4096;

using Words = std::vector<std::uint64_t>;

// Each 8 bytes encode their position.
static Words words(std::size_t bytes, std::uint64_t seed)
{
    Words made(bytes / 8);
    for (std::size_t i = 0; i < made.size(); i++) made[i] = seed << 40 | (i + 1);
    return made;
}

// Checks at the end that all objects of the library have been freed, ferry's included.
class Audit : public testing::Environment {
    void SetUp() override { program_begin(); }
    void TearDown() override { EXPECT_EQ(program_end(), 0); }
};
static testing::Environment *const audit = testing::AddGlobalTestEnvironment(new Audit);

class DeviceMemory {
public:
    DeviceMemory(int device, std::size_t size) : address_(program_alloc(device, size)), size_(size) {}
    DeviceMemory(const DeviceMemory &) = delete;
    ~DeviceMemory() { program_free(address_); }
    std::uint64_t address() const { return address_; }
    void *data() const { return reinterpret_cast<void *>(address_); }
    void put(const Words &from) { program_put(address_, from.data(), from.size() * 8); }
    Words get() const
    {
        Words into(size_ / 8);
        program_get(into.data(), address_, size_);
        return into;
    }

private:
    std::uint64_t address_;
    std::size_t size_;
};

// A stream of the program, memory that it copies from and to, and a gate that it waits at.
class Stream {
public:
    Stream() : made_(program_stream_make(SMALL)) {}
    Stream(const Stream &) = delete;
    ~Stream() { program_stream_end(made_); }
    void *handle() const { return made_->handle; }
    void block() { program_stream_block(made_); }
    void go() { program_stream_go(made_); }
    // Makes the stream write to a device, and records the event after that.
    void *write(const DeviceMemory &to, const Words &from)
    {
        std::copy(from.begin(), from.end(), static_cast<std::uint64_t *>(made_->staged));
        program_stream_write(made_, to.address());
        program_stream_record(made_);
        return made_->event;
    }
    void read(const DeviceMemory &from) { program_stream_read(made_, from.address()); }
    Words staged() const
    {
        const auto *first = static_cast<const std::uint64_t *>(made_->staged);
        return Words(first, first + SMALL / 8);
    }
    bool is_done() const { return program_stream_is_done(made_) != 0; }
    void wait() const
    {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!is_done()) {
            if (std::chrono::steady_clock::now() > until) give_up("the stream is stuck");
            std::this_thread::yield();
        }
    }

private:
    program_stream *made_;
};

// A region of a in memory of its device 0, and a region of b in memory of device 1, named "device".
struct Devices : Pair {
    explicit Devices(std::size_t size, const char *transports = nullptr)
        : Pair(4096, transports), a_device(0, size), b_device(1, size), a_region(must(a.register_memory(a_device.data(), size))),
          b_region(must(b.register_memory(b_device.data(), size,
                                          ferry::RegionOptions().name("device").kind(KIND, 1)))),
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
    EXPECT_EQ(ferry::MemoryKind(devices.there.kind), KIND);
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

// They do if the library lets a process map its own exports; AscendCL refuses a key of its own process.
TEST(Devices, OnOneHostTheyCopyByThemselves)
{
#ifdef ASCEND
    constexpr std::uint32_t best = FERRY_TRANSPORT_LOCAL;
    constexpr std::uint64_t copied = 0;
#else
    constexpr std::uint32_t best = FERRY_TRANSPORT_CUDA;
    constexpr std::uint64_t copied = LENGTH;
#endif
    Devices devices(LENGTH, "auto");
    devices.a_device.put(words(LENGTH, 1));
    ferry::TransferResult result;
    must(devices.peer.write(devices.request, {}, &result));
    EXPECT_EQ(result.transport, best);
    EXPECT_EQ(must(devices.a.stats()).bytes_device, copied);
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
    EXPECT_NE(refused(memory.data(), Options().kind(KIND, 0)).find("options.device"), std::string::npos);
    EXPECT_NE(refused(memory.data(), Options().kind(ferry::MemoryKind::host)).find("options.kind"), std::string::npos);
    std::vector<std::uint64_t> plain(SMALL / 8);
    EXPECT_NE(refused(plain.data(), Options().kind(KIND)).find("options.kind"), std::string::npos);
}

// A transfer waits for the pending writes of a stream, by the stream's event or by the stream itself.
static void starts_after(ferry::StartAfter kind)
{
    Devices devices(SMALL);
    Stream stream;
    stream.block();
    const void *event = stream.write(devices.a_device, words(SMALL, 5));
    const void *handle = kind == AFTER_EVENT ? event : stream.handle();
    const ferry::Transfer transfer = must(devices.peer.submit(
        ferry::Op::write, devices.request, ferry::TransferOptions().start_after(kind, handle)));
    EXPECT_TRUE(transfer.wait(std::chrono::milliseconds(50)).pending());
    EXPECT_EQ(devices.b_device.get(), Words(SMALL / 8));
    stream.go();
    must(transfer.wait(patience));
    EXPECT_EQ(devices.b_device.get(), words(SMALL, 5));
}

TEST(Streams, ATransferStartsAfterAnEvent) { starts_after(AFTER_EVENT); }
TEST(Streams, ATransferStartsAfterTheWorkOfAStream) { starts_after(AFTER_STREAM); }

#ifdef ASCEND
TEST(Streams, NoStreamWaitsForATransfer)
{
    Devices devices(SMALL);
    Stream stream;
    const ferry::Transfer transfer = must(devices.peer.submit(ferry::Op::write, devices.request));
    const ferry::Result<void> refused = transfer.stream_wait(stream.handle(), KIND);
    EXPECT_EQ(refused.status(), FERRY_ERR_UNSUPPORTED);
    EXPECT_NE(std::string(refused.message()).find("no way to hold a stream"), std::string::npos);
    must(transfer.wait(patience));
}

// Streams have a context, and a context belongs to a thread.
TEST(Streams, AnotherThreadNamesAnEventRatherThanTheStream)
{
    Devices devices(SMALL);
    Stream stream;
    const void *event = stream.write(devices.a_device, words(SMALL, 7));
    const auto write = [&](ferry::StartAfter kind, const void *handle) {
        return devices.peer.write(devices.request, ferry::TransferOptions().start_after(kind, handle));
    };
    std::thread([&] {
        const ferry::Result<void> refused = write(AFTER_STREAM, stream.handle());
        EXPECT_EQ(refused.status(), FERRY_ERR_UNSUPPORTED);
        EXPECT_NE(std::string(refused.message()).find("record an event there"), std::string::npos);
        must(write(AFTER_EVENT, event));
    }).join();
    EXPECT_EQ(devices.b_device.get(), words(SMALL, 7));
}
#else
TEST(Streams, AStreamWaitsForATransfer)
{
    Devices devices(SMALL);
    devices.b_device.put(words(SMALL, 6));
    Stream held_up, waiting;
    held_up.block();
    const void *event = held_up.write(devices.a_device, Words(SMALL / 8));
    const ferry::Transfer transfer = must(devices.peer.submit(
        ferry::Op::read, devices.request, ferry::TransferOptions().start_after(AFTER_EVENT, event)));
    must(transfer.stream_wait(waiting.handle()));
    waiting.read(devices.a_device);
    EXPECT_FALSE(waiting.is_done());
    held_up.go();
    waiting.wait();
    EXPECT_EQ(waiting.staged(), words(SMALL, 6));
    must(transfer.wait(patience));
    EXPECT_EQ(transfer.stream_wait(waiting.handle(), ferry::MemoryKind::host).status(), FERRY_ERR_INVALID);
}
#endif

TEST(Streams, WhatIsNoEventIsRefused)
{
    Pair pair;
    const auto submit = [&](ferry::StartAfter kind) {
        return pair.peer.submit(ferry::Op::write, pair.range(0, 0, 8),
                                ferry::TransferOptions().start_after(kind, nullptr));
    };
    EXPECT_EQ(submit(AFTER_EVENT).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(submit(static_cast<ferry::StartAfter>(99)).status(), FERRY_ERR_INVALID);
}
