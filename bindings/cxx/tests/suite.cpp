// ferry.hpp over a real engine: every class, with data checks, failures and moves. run.sh builds this with
// ASan and UBSan. Above 500 lines: the cases are short, and one program is built only once under the
// sanitizers.
#include "count.hpp"
#include "engines.hpp"

#include <array>
#include <cstdio>
#include <cstring>
#include <gtest/gtest.h>
#include <thread>
#include <unistd.h>

using namespace std::chrono_literals;

/* ---- Results and parameters -------------------------------------------------------------------- */

TEST(Results, ValueThrowsWhatTheCallSaid)
{
    ferry::Config config = must(ferry::Config::create());
    ferry::Result<void> result = config.set("lanez", "4");
    EXPECT_FALSE(result);
    EXPECT_FALSE(result.pending());
    EXPECT_EQ(result.status(), FERRY_ERR_INVALID);
    EXPECT_STREQ(result.name(), "INVALID");
    try {
        result.value();
        FAIL() << "value() did not throw";
    } catch (const ferry::Error &error) {
        EXPECT_EQ(error.status(), FERRY_ERR_INVALID);
        EXPECT_EQ(error.info().request_index, UINT64_MAX);
        EXPECT_EQ(std::string(error.what()), std::string("INVALID: ") + result.message());
    }
    EXPECT_THROW(ferry::Engine().connect("127.0.0.1:1").value(), ferry::Error);
}

TEST(Results, AFailureIsCopiedWhole)
{
    ferry::Result<int> failed;
    failed.fail(FERRY_ERR_STALE, "gone");
    ferry::Result<std::string> passed_on(failed);
    ferry::Result<std::string> assigned;
    assigned = passed_on;
    EXPECT_EQ(assigned.status(), FERRY_ERR_STALE);
    EXPECT_STREQ(assigned.message(), "gone");
    EXPECT_EQ(assigned.error().struct_size, sizeof(ferry_error));
    ferry::Result<int> good;
    *good = 7;
    const ferry::Result<int> copy = good;
    EXPECT_EQ(copy.value(), 7);
    EXPECT_EQ(*copy, 7);
    EXPECT_STREQ(copy.message(), "");
}

TEST(Results, PendingIsNeitherOkNorAFailure)
{
    ferry::Result<void> result;
    EXPECT_FALSE(result.take(FERRY_PENDING));
    EXPECT_TRUE(result.pending());
    EXPECT_FALSE(result.ok());
    EXPECT_STREQ(result.message(), "");
    EXPECT_THROW(result.value(), ferry::Error);
}

// The initializers of ferry.h are valid C++ too, without a warning.
TEST(Structs, AreInitializedAsInC)
{
    ferry_transfer_options options = FERRY_TRANSFER_OPTIONS_INIT;
    const ferry_transfer_options zeroed{};
    EXPECT_EQ(options.struct_size, sizeof options);
    options.struct_size = 0;
    EXPECT_EQ(std::memcmp(&options, &zeroed, sizeof options), 0);
    ferry_error error = FERRY_ERROR_INIT;
    EXPECT_EQ(ferry_config_set(nullptr, "lanes", "2", &error), FERRY_ERR_INVALID);
    EXPECT_STREQ(error.message, "config is NULL");
    const ferry_blocks blocks = FERRY_BLOCKS_INIT;
    const ferry_region_info info = FERRY_REGION_INFO_INIT;
    EXPECT_EQ(blocks.struct_size + info.struct_size, sizeof blocks + sizeof info);
}

TEST(Parameters, TimeoutsSaturate)
{
    EXPECT_EQ(ferry::Timeout(5ms).ns(), 5000000u);
    EXPECT_EQ(ferry::Timeout(1.5s).ns(), 1500000000u);
    EXPECT_EQ(ferry::Timeout(-1s).ns(), 0u);
    EXPECT_EQ(ferry::Timeout(0ns).ns(), 0u);
    EXPECT_EQ(ferry::Timeout(8999999999s).ns(), 8999999999000000000u);
    EXPECT_EQ(ferry::Timeout(9000000000s).ns(), FERRY_FOREVER);
    EXPECT_EQ(ferry::Timeout(std::chrono::hours::max()).ns(), FERRY_FOREVER);
    EXPECT_EQ(ferry::Timeout(std::chrono::nanoseconds::max()).ns(), FERRY_FOREVER);
    EXPECT_EQ(ferry::Timeout(std::chrono::hours::min()).ns(), 0u);
    EXPECT_EQ(ferry::forever.ns(), FERRY_FOREVER);
}

static std::size_t count_of(ferry::Span<const int> list) { return list.size(); }
static std::size_t size_of(ferry::Bytes bytes) { return bytes.size(); }

TEST(Parameters, SpansTakeWhatHoldsElements)
{
    const std::vector<int> vector = {1, 2, 3};
    const std::array<int, 2> array = {1, 2};
    int plain[] = {1, 2, 3, 4};
    EXPECT_EQ(count_of(vector), 3u);
    EXPECT_EQ(count_of(array), 2u);
    EXPECT_EQ(count_of(plain), 4u);
    EXPECT_EQ(count_of(plain[0]), 1u);
    EXPECT_EQ(count_of({1, 2}), 2u);
    EXPECT_EQ(count_of({}), 0u);
    EXPECT_EQ(count_of({plain, 2}), 2u);
    EXPECT_EQ(ferry::Span<const int>(ferry::Span<int>(plain))[3], 4);
    static_assert(!std::is_constructible_v<ferry::Span<int>, const std::vector<int> &>, "const stays const");
    EXPECT_EQ(size_of("four"), 4u);
    EXPECT_EQ(size_of(std::string("\0\0", 2)), 2u);
    EXPECT_EQ(size_of(std::string_view("abc")), 3u);
    EXPECT_EQ(size_of(std::vector<std::uint16_t>(3)), 6u);
}

TEST(Configs, SettingsAreReadBack)
{
    ferry::Config config = must(ferry::Config::create());
    must(config.set("lanes", 4));
    must(config.set("local", false));
    EXPECT_EQ(must(config.get("lanes")), "4");
    EXPECT_EQ(must(config.get(std::string("local"))), "false");
    EXPECT_EQ(config.set("lanes", 17).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(must(config.get("lanes")), "4");
    EXPECT_EQ(config.get("lanez").status(), FERRY_ERR_INVALID);
    bool found = false;
    for (const ferry_setting_info &setting : must(ferry::Config::settings()))
        found = found || std::string_view(setting.key) == "lease_ms";
    EXPECT_TRUE(found);
}

/* ---- Transfers --------------------------------------------------------------------------------- */

TEST(Transfers, WriteAndReadPutEachByteInItsPlace)
{
    Pair pair(1 << 20);
    ferry::TransferResult result;
    fill(pair.a_memory, 1);
    const std::vector<ferry::Request> swapped = {pair.range(0, 1 << 19, 1 << 19), pair.range(1 << 19, 0, 1 << 19)};
    must(pair.peer.write(swapped, {}, &result));
    EXPECT_EQ(result.state, static_cast<std::uint32_t>(FERRY_STATE_DONE));
    EXPECT_EQ(result.bytes_confirmed, 1u << 20);
    EXPECT_EQ(misplaced(pair.b_memory, 0, 1 << 19, 1, 1 << 19), 0u);
    EXPECT_EQ(misplaced(pair.b_memory, 1 << 19, 1 << 19, 1, 0), 0u);
    fill(pair.b_memory, 2);
    must(pair.peer.read({pair.range(64, 4096, 8192), pair.range(65536, 0, 64)}));
    EXPECT_EQ(misplaced(pair.a_memory, 64, 8192, 2, 4096), 0u);
    EXPECT_EQ(misplaced(pair.a_memory, 65536, 64, 2, 0), 0u);
    EXPECT_EQ(misplaced(pair.a_memory, 64 + 8192, 32768, 1, 64 + 8192), 0u) << "other bytes were touched";
}

TEST(Transfers, SubmittedOnesAreWaitedForAndGivenBack)
{
    Pair pair;
    ferry::TransferResult result;
    fill(pair.a_memory, 3);
    {
        ferry::Transfer transfer =
            must(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 4096), ferry::TransferOptions().user_data(9)));
        must(transfer.wait(patience, &result));
        EXPECT_EQ(result.user_data, 9u);
        EXPECT_EQ(must(transfer.results()).size(), 1u);
        EXPECT_EQ(must(transfer.results(ferry::Results::failed)).size(), 0u);
        ferry::RequestResult first{};
        EXPECT_EQ(must(transfer.results(ferry::Results::all, first)), 1u);
        EXPECT_EQ(first.bytes_confirmed, 4096u);
        must(transfer.release());
        EXPECT_FALSE(transfer);
    }
    {
        ferry::Transfer transfer = must(pair.peer.submit(ferry::Op::read, pair.range(0, 0, 64)));
        must(transfer.wait());
    }
    EXPECT_EQ(misplaced(pair.b_memory, 0, 4096, 3, 0), 0u);
    EXPECT_EQ(must(pair.a.stats()).transfers, 0u);
}

TEST(Transfers, AnyOfSeveralIsWaitedFor)
{
    Pair pair;
    std::vector<ferry::Transfer> transfers;
    std::vector<ferry_transfer> handles;
    for (int i = 0; i < 3; i++) {
        transfers.push_back(must(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 64))));
        handles.push_back(transfers.back().handle());
    }
    const std::size_t index = must(pair.a.wait_any(handles, patience));
    must(transfers[index].wait(0ns));
}

TEST(Transfers, AllOfSeveralAreWaitedFor)
{
    Pair pair;
    std::vector<ferry::Transfer> transfers;
    for (int i = 0; i < 3; i++) transfers.push_back(must(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 4096))));
    must(pair.a.wait_all(transfers, patience));
    for (const ferry::Transfer &transfer : transfers) must(transfer.wait(0ns));
    transfers.push_back(hold_transfer(pair, {}));
    std::size_t index = 0;
    EXPECT_TRUE(pair.a.wait_all(transfers, 1ms, &index).pending());
    EXPECT_EQ(index, 3u);
    must(transfers[3].cancel());
    EXPECT_EQ(pair.a.wait_all(transfers, patience, &index).status(), FERRY_ERR_CANCELLED);
    EXPECT_EQ(index, 3u);
    EXPECT_EQ(pair.a.wait_all(ferry::Span<const ferry_transfer>()).status(), FERRY_ERR_INVALID);
}

TEST(Transfers, LayersOfEqualShapeNeedNoTables)
{
    constexpr std::size_t blocks = 8, size = 512, layer_bytes = blocks * size;
    Pair pair(4 * layer_bytes);
    const ferry::RegionInfo remote = must(pair.peer.region("b"));
    fill(pair.a_memory, 5);
    ferry::UniformBlocks layers(pair.a_memory.data(), remote, layer_bytes, size);
    std::vector<ferry::Transfer> pushes;
    for (std::size_t layer = 0; layer < 4; layer++)
        pushes.push_back(must(pair.peer.submit(ferry::Op::write, layers.range(layer).blocks(blocks))));
    must(pair.a.wait_all(pushes, patience));
    EXPECT_EQ(misplaced(pair.b_memory, 0, 4 * layer_bytes, 5, 0), 0u);
    const std::vector<std::int32_t> from = {1, 2, 7}, to = {0, 3, 5}, short_list = {1};
    fill(pair.a_memory, 6);
    must(layers.pairs(from, to));
    must(must(pair.peer.submit(ferry::Op::write, layers.range(2, 2))).wait(patience));
    for (std::size_t layer = 2; layer < 4; layer++)
        for (std::size_t i = 0; i < from.size(); i++)
            EXPECT_EQ(misplaced(pair.b_memory, layer * layer_bytes + to[i] * size, size, 6,
                                layer * layer_bytes + from[i] * size), 0u);
    EXPECT_EQ(misplaced(pair.b_memory, 0, 2 * layer_bytes, 5, 0), 0u);
    EXPECT_EQ(layers.pairs(from, short_list).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(pair.peer.submit(ferry::Op::write, ferry::UniformBlocks()).status(), FERRY_ERR_INVALID);
}

TEST(Transfers, OneThatFallsOutOfScopeIsQuietFirst)
{
    Pair pair;
    {
        ferry::Transfer held = hold_transfer(pair, {});
        EXPECT_TRUE(held.wait(0ns).pending());
        EXPECT_EQ(held.release().status(), FERRY_ERR_BUSY);
        EXPECT_TRUE(held);
    }
    EXPECT_EQ(must(pair.a.stats()).transfers, 0u);
    EXPECT_EQ(must(pair.a.stats()).transfers_done, must(pair.a.stats()).transfers_submitted - 1);
}

// A transfer that is slow enough to be seen in the middle.
TEST(Transfers, ProgressShowsHowFarOneIs)
{
    constexpr std::size_t size = 4 << 20, rounds = 4096;
    Pair pair(size);
    const std::vector<ferry::Request> list(rounds, pair.range(0, 0, size));
    ferry::Transfer transfer = must(
        pair.peer.submit(ferry::Op::write, list, ferry::TransferOptions().flags(FERRY_TRANSFER_NO_COALESCE)));
    std::uint64_t last = 0;
    for (int steps = 0; steps < 3;) {
        const ferry::Progress progress = must(transfer.progress());
        ASSERT_EQ(progress.bytes_total, std::uint64_t{size} * rounds);
        ASSERT_LE(last, progress.bytes_confirmed);
        ASSERT_LT(progress.bytes_confirmed, progress.bytes_total);
        steps += progress.bytes_confirmed > last;
        last = progress.bytes_confirmed;
    }
    must(transfer.cancel());
    ferry::TransferResult result;
    EXPECT_EQ(transfer.wait(patience, &result).status(), FERRY_ERR_CANCELLED);
    EXPECT_EQ(must(transfer.progress()).bytes_confirmed, result.bytes_confirmed);
    EXPECT_LE(last, result.bytes_confirmed);
}

// One copy if the peer is reached by the same-host path, else nothing.
TEST(Transfers, AtOnceIsDoneOrPending)
{
    Pair pair;
    bool local = false;
    for (const ferry::PathInfo &path : must(pair.peer.paths()))
        local |= path.chosen && path.transport == FERRY_TRANSPORT_LOCAL;
    fill(pair.a_memory, 6);
    ferry::TransferResult result;
    const ferry::Result<void> tried = pair.peer.at_once(ferry::Op::write, pair.range(64, 128, 512), {}, &result);
    EXPECT_EQ(tried.ok(), local);
    EXPECT_EQ(tried.pending(), !local);
    EXPECT_EQ(result.bytes_confirmed, local ? 512u : 0u);
    EXPECT_EQ(misplaced(pair.b_memory, 128, 512, 6, 64), local ? 0u : 64u);
    EXPECT_TRUE(pair.peer.at_once(ferry::Op::write, {pair.range(0, 0, 8), pair.range(8, 8, 8)}).pending());
    const ferry::Queue queue = must(pair.a.queue(FERRY_QUEUE_TRANSFERS, 1));
    const ferry::TransferOptions options = ferry::TransferOptions().queue(queue);
    EXPECT_EQ(pair.peer.at_once(ferry::Op::write, pair.range(0, 0, 8), options).status(), FERRY_ERR_INVALID);
}

TEST(Transfers, CancelledOnesSaySo)
{
    Pair pair;
    ferry::TransferResult result;
    ferry::Transfer held = hold_transfer(pair, {});
    must(held.cancel());
    EXPECT_EQ(held.wait(patience, &result).status(), FERRY_ERR_CANCELLED);
    EXPECT_EQ(result.state, static_cast<std::uint32_t>(FERRY_STATE_CANCELLED));
}

TEST(Transfers, FailedRequestsAreNamed)
{
    Pair pair;
    ferry::Request wrong = pair.range(0, 0, 64);
    wrong.local += 1 << 30;
    ferry::Result<void> refused = pair.peer.write({pair.range(0, 0, 64), wrong});
    EXPECT_EQ(refused.status(), FERRY_ERR_NOT_REGISTERED);
    EXPECT_EQ(refused.error().request_index, 1u);

    ferry::Memory gone = must(pair.b.alloc(4096, ferry::AllocOptions().name("gone")));
    ferry::RegionInfo remote{};
    while (remote.region == 0) {
        // The answer to a probe comes after the region updates.
        must(pair.peer.probe(patience));
        ferry::Result<ferry::RegionInfo> found = pair.peer.region("gone");
        if (found) remote = *found;
    }
    must(gone.free());
    ferry::TransferResult result;
    ferry::Result<ferry::Transfer> transfer =
        pair.peer.submit(ferry::Op::write, {pair.range(0, 0, 64), ferry::request(pair.a_memory.data(), 64, remote)});
    if (!transfer) {
        EXPECT_EQ(transfer.status(), FERRY_ERR_STALE); // the news was here first
        return;
    }
    EXPECT_EQ(transfer->wait(patience, &result).status(), FERRY_ERR_PARTIAL);
    const auto failed = must(transfer->results(ferry::Results::failed));
    ASSERT_EQ(failed.size(), 1u);
    EXPECT_EQ(failed[0].request_index, 1u);
    EXPECT_EQ(failed[0].status, FERRY_ERR_STALE);
}

TEST(Transfers, BlocksGoWhereTheirIdsSay)
{
    Pair pair(64 * 256);
    fill(pair.a_memory, 5);
    const std::uint64_t local = reinterpret_cast<std::uintptr_t>(pair.a_memory.data());
    const std::vector<std::int32_t> from = {5, 6, 7, 12, 13}, to = {2, 3, 4, 8, 9}, short_list = {1};
    const std::uint64_t size = 256;
    const ferry::BlockLayers layers = {local, pair.remote.address, size, size, size, pair.remote.region};
    const ferry::Blocks blocks = must(ferry::Blocks::create(layers, from, to));
    ferry::TransferResult result;
    ferry::Transfer transfer = must(pair.peer.submit(ferry::Op::write, blocks));
    must(transfer.wait(patience, &result));
    EXPECT_EQ(result.slices_out, 2u);
    for (std::size_t i = 0; i < from.size(); i++)
        EXPECT_EQ(misplaced(pair.b_memory, to[i] * size, size, 5, from[i] * size), 0u);
    EXPECT_EQ(ferry::Blocks::create(layers, from, short_list).status(), FERRY_ERR_INVALID);
    const ferry::BlockLayers uneven = {local, {}, size, size, size, {}};
    EXPECT_EQ(ferry::Blocks::create(uneven, from, to).status(), FERRY_ERR_INVALID);
}

TEST(Transfers, TheDataPathAllocatesNothing)
{
    Pair pair;
    ferry::Queue queue = must(pair.a.queue(FERRY_QUEUE_TRANSFERS, 16));
    ferry::Event storage[4];
    const ferry::Request list[] = {pair.range(0, 0, 64), pair.range(128, 128, 64)};
    const std::size_t before = allocations.load();
    for (int i = 0; i < 100; i++) {
        ferry::TransferResult result;
        must(pair.peer.write(list, ferry::TransferOptions().notify("x").priority(1), &result));
        must(pair.peer.read(pair.range(0, 0, 8)));
        must(pair.peer.submit(ferry::Op::write, {pair.range(0, 0, 8)}, ferry::TransferOptions().queue(queue))).detach();
        ferry::Span<ferry::Event> events = must(queue.drain(storage));
        for (; events.empty(); events = must(queue.drain(storage))) wait_readable(queue);
        ferry::Transfer transfer(pair.a.handle(), events[0]->transfer);
        must(transfer.wait(0ns));
        must(transfer.progress());
        must(pair.peer.submit(ferry::Op::write, {pair.range(0, 0, 8)}, ferry::TransferOptions().queue(queue))).detach();
        events = must(queue.wait(storage, patience));
        ferry::Transfer another(pair.a.handle(), events[0]->transfer);
        const ferry_transfer both[] = {transfer.handle(), another.handle()};
        must(pair.a.wait_all(both, patience));
        (void)pair.peer.at_once(ferry::Op::write, pair.range(0, 0, 8));
    }
    EXPECT_EQ(allocations.load(), before);
}

/* ---- Memory and peers -------------------------------------------------------------------------- */

TEST(Peers, AnEngineIsItsOwn)
{
    const ferry::Engine engine = open_engine();
    const ferry::Memory from = must(engine.alloc(4096)), to = must(engine.alloc(4096, ferry::AllocOptions().name("to")));
    const ferry::Peer own = must(engine.own_peer());
    EXPECT_EQ(own.handle(), must(engine.own_peer()).handle());
    EXPECT_TRUE(must(engine.peers()).empty());
    from.data()[4095] = std::byte{7};
    must(own.write(ferry::request(from.data(), 4096, must(own.region("to")), 0)));
    EXPECT_EQ(to.data()[4095], std::byte{7});
    EXPECT_EQ(own.close().status(), FERRY_ERR_INVALID);
}

TEST(Memories, RegionsEndWithTheirObjects)
{
    Pair pair;
    std::vector<std::byte> mine(4096), other(4096);
    {
        ferry::Region region = must(pair.a.register_memory(mine.data(), mine.size()));
        EXPECT_NE(region.handle(), 0u);
        EXPECT_EQ(pair.a.register_memory(mine.data(), 1).status(), FERRY_ERR_OVERLAP);
        EXPECT_EQ(must(pair.a.stats()).regions, 2u);
    }
    EXPECT_EQ(must(pair.a.stats()).regions, 1u);
    {
        void *const addresses[] = {mine.data(), other.data()};
        const std::size_t sizes[] = {mine.size(), other.size()};
        auto regions = must(pair.a.register_batch(addresses, sizes, ferry::RegionOptions().name("batch")));
        EXPECT_EQ(regions.size(), 2u);
        EXPECT_EQ(must(pair.a.stats()).regions, 3u);
        must(regions[0].unregister());
        EXPECT_FALSE(regions[0]);
        EXPECT_EQ(pair.a.register_batch(addresses, {std::size_t{1}}).status(), FERRY_ERR_INVALID);
    }
    EXPECT_EQ(must(pair.a.stats()).regions, 1u);
    EXPECT_EQ(pair.a.register_memory(nullptr, 8).status(), FERRY_ERR_INVALID);
}

TEST(Memories, AFileIsReadAndWrittenAsMemory)
{
    Pair pair;
    std::FILE *file = std::tmpfile();
    ASSERT_NE(file, nullptr);
    const int fd = fileno(file);
    {
        const ferry::FileRegion target =
            must(pair.b.register_file(fd, 100, 4096, ferry::RegionOptions().kind(ferry::MemoryKind::file).name("file")));
        for (auto found = pair.peer.region("file"); !found; found = pair.peer.region("file")) must(pair.peer.probe(patience));
        ferry::Request request = pair.range(0, 0, 64);
        request.remote = target.address + 8;
        request.remote_region = target.region.handle();
        std::memset(pair.a_memory.data(), 0x5a, 64);
        must(pair.peer.write(request, ferry::TransferOptions().flags(FERRY_TRANSFER_DURABLE)));
        char found[64] = {};
        EXPECT_EQ(pread(fd, found, sizeof found, 108), 64);
        EXPECT_EQ(std::memcmp(found, pair.a_memory.data(), 64), 0);
        request.remote = target.address + 2000;
        EXPECT_EQ(pair.peer.read(request).status(), FERRY_ERR_SYSTEM);
    }
    EXPECT_EQ(pair.b.register_file(-1, 0, 64).status(), FERRY_ERR_INVALID);
    std::fclose(file);
}

TEST(Memories, AccessIsWhatWasGranted)
{
    Pair pair;
    ferry::Memory guarded = must(pair.b.alloc(64, ferry::AllocOptions().name("guarded").access(FERRY_ACCESS_REMOTE_READ)));
    ferry::Result<ferry::RegionInfo> found = pair.peer.region("guarded");
    for (; !found; found = pair.peer.region("guarded")) must(pair.peer.probe(patience));
    EXPECT_EQ(found->access, static_cast<std::uint32_t>(FERRY_ACCESS_REMOTE_READ));
    const ferry::Request request = ferry::request(pair.a_memory.data(), 64, *found);
    must(pair.peer.read(request));
    EXPECT_EQ(pair.peer.write(request).status(), FERRY_ERR_ACCESS);
    EXPECT_EQ(pair.peer.region("no such").status(), FERRY_ERR_NOT_REGISTERED);
    EXPECT_EQ(pair.peer.region(std::string_view("guarded\0", 8)).status(), FERRY_ERR_NOT_REGISTERED);
}

TEST(Peers, AreKnownByTheirHandles)
{
    Pair pair;
    EXPECT_EQ(must(pair.a.connect(must(pair.b.address()))), pair.peer);
    EXPECT_EQ(must(pair.a.connect_descriptor(must(pair.b.descriptor()), patience)), pair.peer);
    const ferry::PeerInfo info = must(pair.peer.info());
    EXPECT_EQ(info.state, static_cast<std::uint32_t>(FERRY_PEER_UP));
    EXPECT_EQ(must(pair.b.address()), info.address);
    EXPECT_EQ(must(pair.a.peers()).size(), 1u);
    EXPECT_GT(must(pair.peer.probe(patience)).count(), 0);
    EXPECT_FALSE(must(pair.peer.paths()).empty());
    EXPECT_NE(must(pair.a.metrics()).find("ferry_"), std::string::npos);
    EXPECT_EQ(pair.a.connect("nonsense").status(), FERRY_ERR_INVALID);
    ferry::Engine closed = open_engine();
    const std::string nobody = must(closed.address());
    must(closed.close());
    EXPECT_EQ(closed.connect(nobody).status(), FERRY_ERR_CLOSED);
    EXPECT_EQ(pair.a.connect(nobody, 2s).status(), FERRY_ERR_UNREACHABLE);
    EXPECT_EQ(pair.a.connect_descriptor("not one").status(), FERRY_ERR_INVALID);
    must(pair.back().fence(patience));
}

TEST(Peers, ASessionEndsWithItsScope)
{
    Pair pair;
    {
        ferry::Session session(pair.peer);
        ferry::Session moved = std::move(session);
        EXPECT_EQ(moved.peer(), pair.peer);
        must(moved.peer().write(pair.range(0, 0, 8)));
    }
    EXPECT_EQ(pair.peer.write(pair.range(0, 0, 8)).status(), FERRY_ERR_CLOSED);
}

/* ---- Queues and events ------------------------------------------------------------------------- */

TEST(Queues, ANotificationComesBehindItsData)
{
    Pair pair;
    ferry::Queue inbox = must(pair.b.queue(FERRY_QUEUE_NOTIFICATIONS, 4));
    fill(pair.a_memory, 6);
    must(pair.peer.write(pair.range(0, 0, 4096), ferry::TransferOptions().notify("layer 7")));
    ferry::Event event = next_event(inbox, FERRY_EVENT_NOTIFICATION);
    EXPECT_EQ(misplaced(pair.b_memory, 0, 4096, 6, 0), 0u);
    EXPECT_EQ(event.text(), "layer 7");
    EXPECT_EQ(event.bytes().size(), 7u);
    EXPECT_EQ(ferry::Peer(pair.b.handle(), event->peer), pair.back());
    must(pair.peer.write(pair.range(0, 0, 8), ferry::TransferOptions().notify(ferry::Bytes(nullptr, 0))));
    event = next_event(inbox, FERRY_EVENT_NOTIFICATION);
    EXPECT_EQ(event.text(), "");
    must(ferry::Peer(pair.b.handle(), event->peer).notify(std::string(FERRY_NOTIFY_BYTES_MAX, 'x')));
    EXPECT_EQ(pair.peer.notify(std::string(FERRY_NOTIFY_BYTES_MAX + 1, 'x')).status(), FERRY_ERR_LIMIT);
}

// Transfers without requests submit only their notification, also with an empty container.
TEST(Queues, AChannelHasAQueueOfItsOwn)
{
    Pair pair;
    ferry::Queue application = must(pair.b.queue(FERRY_QUEUE_NOTIFICATIONS, 4));
    ferry::Queue library = must(pair.b.queue(FERRY_QUEUE_NOTIFICATIONS, 4, FERRY_CHANNELS_MAX - 1));
    EXPECT_EQ(pair.b.queue(FERRY_QUEUE_NOTIFICATIONS, 4, FERRY_CHANNELS_MAX - 1).status(), FERRY_ERR_BUSY);
    const std::vector<ferry::Request> nothing;
    const auto options = ferry::TransferOptions().notify("fifteen").channel(FERRY_CHANNELS_MAX - 1);
    must(must(pair.peer.submit(ferry::Op::write, {}, options)).wait(patience));
    must(must(pair.peer.submit(ferry::Op::write, nothing, options)).wait(patience));
    must(pair.peer.write({}, options));
    must(pair.peer.notify("zero"));
    for (int i = 0; i < 3; i++) {
        const ferry::Event event = next_event(library, FERRY_EVENT_NOTIFICATION);
        EXPECT_EQ(event.text(), "fifteen");
        EXPECT_EQ(event->channel, 15u);
    }
    const ferry::Event event = next_event(application, FERRY_EVENT_NOTIFICATION);
    EXPECT_EQ(event.text(), "zero");
    EXPECT_EQ(event->channel, 0u);
    EXPECT_STREQ(pair.peer.write({}, ferry::TransferOptions().notify("x").channel(FERRY_CHANNELS_MAX)).message(),
                 "options.channel: 16 is not 0 to 15");
    EXPECT_STREQ(pair.b.queue(FERRY_QUEUE_NOTIFICATIONS, 4, FERRY_CHANNELS_MAX).message(),
                 "channel: 16 is not 0 to 15");
    EXPECT_EQ(pair.peer.submit(ferry::Op::write, {}).status(), FERRY_ERR_INVALID);
}

TEST(Queues, AnEventOutlivesItsQueueAndEngine)
{
    ferry::Event event;
    {
        Pair pair;
        ferry::Queue inbox = must(pair.b.queue(FERRY_QUEUE_NOTIFICATIONS, 4));
        must(pair.peer.notify("kept"));
        event = must(inbox.next(patience));
    }
    ferry::Event moved = std::move(event);
    EXPECT_EQ(moved.text(), "kept");
    EXPECT_EQ(event->data, nullptr);
    moved = ferry::Event();
    EXPECT_EQ(moved->data, nullptr);
}

TEST(Queues, OneArrayIsDrainedIntoForEver)
{
    Pair pair;
    ferry::Queue inbox = must(pair.b.queue(FERRY_QUEUE_NOTIFICATIONS, 4));
    ferry::Event storage[2];
    EXPECT_EQ(must(inbox.drain(storage)).size(), 0u);
    EXPECT_EQ(inbox.drain({}).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(inbox.wait({}).status(), FERRY_ERR_INVALID);
    EXPECT_TRUE(inbox.wait(storage, 1ms).pending());
    EXPECT_TRUE(inbox.next(0ns).pending());
    int seen = 0;
    for (int i = 0; i < 10; i++) must(pair.peer.notify(std::to_string(i)));
    while (seen < 10) {
        const ferry::Span<ferry::Event> drained = must(inbox.drain(storage));
        for (const ferry::Event &event : drained) EXPECT_EQ(event.text(), std::to_string(seen++));
        if (seen < 10) wait_readable(inbox);
    }
}

struct Counted : ferry::Completion {
    Counted() : Completion(&Counted::called) {}
    static void called(Completion &self, const ferry_event &event) noexcept
    {
        Counted &counted = static_cast<Counted &>(self);
        counted.calls++;
        counted.last = event;
    }
    int calls = 0;
    ferry_event last{};
};

TEST(Queues, DispatchCallsCompletions)
{
    Pair pair;
    ferry::Queue queue = must(pair.a.queue(FERRY_QUEUE_TRANSFERS | FERRY_QUEUE_PEERS | FERRY_QUEUE_NOTIFICATIONS, 8));
    Counted counted, connected;
    int others = 0;
    ferry::Event storage[4];
    ferry::Transfer known =
        must(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 8), ferry::TransferOptions().queue(queue, counted)));
    ferry::Transfer plain =
        must(pair.peer.submit(ferry::Op::write, pair.range(8, 8, 8), ferry::TransferOptions().queue(queue)));
    must(pair.a.connect_async(must(pair.b.address()), patience, queue, connected));
    must(pair.back().notify("hello"));
    bool greeted = false;
    for (;;) {
        const std::size_t count = must(queue.dispatch(storage, [&](ferry::Event &event) {
            greeted = greeted || event.text() == "hello";
            others += event->kind == FERRY_EVENT_TRANSFER || event->kind == FERRY_EVENT_NOTIFICATION;
        }));
        if (counted.calls + connected.calls == 2 && others == 2) break;
        if (count < std::size(storage)) wait_readable(queue);
    }
    EXPECT_TRUE(greeted);
    EXPECT_EQ(counted.last.transfer, known.handle());
    EXPECT_EQ(connected.last.status, FERRY_OK);
    EXPECT_EQ(connected.last.peer, pair.peer.handle());
}

TEST(Queues, CallbacksRunUntilTheyAreTakenAway)
{
    Pair pair;
    std::atomic<int> called{0};
    auto function = [&](const ferry_event &event) {
        if (event.kind == FERRY_EVENT_NOTIFICATION) called.fetch_add(1);
    };
    {
        ferry::Queue inbox = must(pair.b.queue(FERRY_QUEUE_NOTIFICATIONS, 4));
        must(inbox.callback(function));
        for (int i = 0; i < 3; i++) must(pair.peer.notify("x"));
        while (called.load() < 3) std::this_thread::yield();
        must(inbox.no_callback());
        must(inbox.callback(function));
    }
    must(pair.peer.notify("nobody is called"));
    EXPECT_EQ(called.load(), 3);
}

TEST(Queues, BusyOnesAreNotDestroyed)
{
    Pair pair;
    ferry::Queue queue = must(pair.a.queue(FERRY_QUEUE_TRANSFERS, 1));
    ferry::Transfer held = hold_transfer(pair, ferry::TransferOptions().queue(queue));
    EXPECT_EQ(queue.destroy().status(), FERRY_ERR_BUSY);
    EXPECT_TRUE(queue);
    EXPECT_EQ(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 8), ferry::TransferOptions().queue(queue)).status(),
              FERRY_ERR_LIMIT);
    held = ferry::Transfer();
    next_event(queue, FERRY_EVENT_TRANSFER);
    must(queue.destroy());
    EXPECT_FALSE(queue);
}

/* ---- Moves ------------------------------------------------------------------------------------- */

TEST(Moves, EmptyTheSourceAndEndWhatWasThere)
{
    Pair pair;
    ferry::Memory first = must(pair.a.alloc(4096)), second = must(pair.a.alloc(4096));
    const ferry_region handle = first.handle();
    EXPECT_EQ(must(pair.a.stats()).regions, 3u);
    second = std::move(first);
    EXPECT_EQ(second.handle(), handle);
    EXPECT_EQ(second.size(), 4096u);
    EXPECT_EQ(first.data(), nullptr);
    EXPECT_FALSE(first);
    EXPECT_EQ(must(pair.a.stats()).regions, 2u);
    ferry::Memory &self = second;
    second = std::move(self);
    EXPECT_EQ(second.handle(), handle);

    std::vector<std::byte> bytes(64);
    ferry::Region region = must(pair.a.register_memory(bytes.data(), bytes.size()));
    region = ferry::Region();
    EXPECT_EQ(must(pair.a.stats()).regions, 2u);

    ferry::Queue queue = must(pair.a.queue(FERRY_QUEUE_NOTIFICATIONS, 1));
    queue = ferry::Queue();
    queue = must(pair.a.queue(FERRY_QUEUE_NOTIFICATIONS, 1)); // only one at a time

    ferry::Transfer transfer = must(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 8)));
    must(transfer.wait());
    ferry::Transfer later = std::move(transfer);
    EXPECT_FALSE(transfer);
    later = must(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 8)));
    EXPECT_EQ(must(pair.a.stats()).transfers, 1u);

    // Objects made from an engine still work when the engine is moved.
    ferry::Engine moved = std::move(pair.a);
    must(pair.peer.write(pair.range(0, 0, 8)));
    EXPECT_FALSE(pair.a);
    EXPECT_EQ(pair.a.stats().status(), FERRY_ERR_INVALID);
    pair.a = std::move(moved);
    must(pair.peer.write(pair.range(0, 0, 8)));
}

TEST(Engines, WarnOfVariablesThatAreNoSettings)
{
    EXPECT_EQ(must(open_engine().warnings()), "");
    ASSERT_EQ(setenv("FERRY_LANE", "4", 1), 0);
    const ferry::Engine engine = open_engine();
    ASSERT_EQ(unsetenv("FERRY_LANE"), 0);
    EXPECT_EQ(must(engine.warnings()), "FERRY_LANE is not a setting; did you mean FERRY_LANES?");
}

static_assert(!std::is_copy_constructible_v<ferry::Config> && std::is_nothrow_move_constructible_v<ferry::Config>);
static_assert(!std::is_copy_constructible_v<ferry::Engine> && std::is_nothrow_move_constructible_v<ferry::Engine>);
static_assert(!std::is_copy_constructible_v<ferry::Region> && std::is_nothrow_move_constructible_v<ferry::Region>);
static_assert(!std::is_copy_constructible_v<ferry::Memory> && std::is_nothrow_move_constructible_v<ferry::Memory>);
static_assert(!std::is_copy_constructible_v<ferry::Transfer> && std::is_nothrow_move_assignable_v<ferry::Transfer>);
static_assert(!std::is_copy_constructible_v<ferry::Queue> && std::is_nothrow_move_assignable_v<ferry::Queue>);
static_assert(!std::is_copy_constructible_v<ferry::Event> && std::is_nothrow_move_assignable_v<ferry::Event>);
static_assert(!std::is_copy_constructible_v<ferry::Session> && std::is_nothrow_move_assignable_v<ferry::Session>);
