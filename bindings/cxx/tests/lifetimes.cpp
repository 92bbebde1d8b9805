// Lifetimes: an engine and the objects made from it are destroyed in every order, and every object that is left works.
#include "engines.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

// The threads of this process that have not ended. An engine has some, so the count tells whether it has ended. The
// kernel lists a thread for a moment after its join, with PF_EXITING among its flags.
static std::ptrdiff_t threads()
{
    std::ptrdiff_t count = 0;
    for (const auto &thread : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string line, state;
        std::getline(std::ifstream(thread.path() / "stat"), line);
        std::istringstream fields(line.substr(line.rfind(')') + 1)); // the name before it may hold anything
        int parent, group, session, terminal, terminal_group;
        unsigned flags = 4;
        fields >> state >> parent >> group >> session >> terminal >> terminal_group >> flags;
        count += (flags & 4) == 0;
    }
    return count;
}

// Waits until at most `count` threads are left, and returns whether that has happened. An engine has several threads.
// The target looks at each peer's memory with a thread that may outlast the peer.
static bool threads_fall_to(std::ptrdiff_t count)
{
    for (int waited_ms = 0; threads() > count && waited_ms < 10000; waited_ms++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return threads() <= count;
}

// One engine with one object of each kind, connected to `target`. Each is used and destroyed by its number.
struct Kinds {
    enum Kind { ENGINE, MEMORY, REGION, PEER, TRANSFER, QUEUE, COUNT };

    Kinds(const ferry::Engine &target, std::vector<std::byte> &bytes)
    {
        engine = open_engine();
        memory = must(engine->alloc(4096));
        region = must(engine->register_memory(bytes.data(), bytes.size()));
        peer = must(engine->connect(must(target.address()), patience));
        const ferry::RegionInfo remote = must(peer->region("target"));
        queue = must(engine->queue(FERRY_QUEUE_NOTIFICATIONS, 4));
        transfer = must(peer->submit(ferry::Op::write, ferry::request(bytes.data(), bytes.size(), remote)));
        must(transfer->wait(patience));
    }

    // Calls the library through this object; the call needs the open engine.
    bool works(int kind) const
    {
        ferry_stats stats = FERRY_STATS_INIT;
        std::array<ferry::Event, 1> events;
        switch (kind) {
        case ENGINE: return engine->stats().ok();
        case MEMORY:
            memory->data()[4095] = std::byte(7); // a fault if the engine has unmapped it
            return ferry_engine_get_stats(memory->engine(), &stats, nullptr) == FERRY_OK && stats.regions > 0;
        case REGION: return ferry_engine_get_stats(region->engine(), &stats, nullptr) == FERRY_OK && stats.regions > 0;
        case PEER: return peer->info().ok();
        case TRANSFER: return transfer->wait(std::chrono::seconds(0)).ok();
        default: return queue->drain(events).ok();
        }
    }

    void destroy(int kind)
    {
        switch (kind) {
        case ENGINE: return engine.reset();
        case MEMORY: return memory.reset();
        case REGION: return region.reset();
        case PEER: return peer.reset();
        case TRANSFER: return transfer.reset();
        default: return queue.reset();
        }
    }

    std::optional<ferry::Engine> engine;
    std::optional<ferry::Memory> memory;
    std::optional<ferry::Region> region;
    std::optional<ferry::Peer> peer;
    std::optional<ferry::Transfer> transfer;
    std::optional<ferry::Queue> queue;
};

TEST(Lifetimes, AnEngineAndItsObjectsAreDestroyedInAnyOrder)
{
    const ferry::Engine target = open_engine();
    const ferry::Memory offered = must(target.alloc(4096, ferry::AllocOptions().name("target")));
    std::vector<std::byte> bytes(4096);
    { // The target's threads that begin with its first peer.
        Kinds first(target, bytes);
    }
    const auto before = threads();
    std::array<int, Kinds::COUNT> order = {0, 1, 2, 3, 4, 5};
    int orders = 0;
    do {
        Kinds kinds(target, bytes);
        for (std::size_t gone = 0; gone < order.size(); gone++) {
            for (std::size_t left = gone; left < order.size(); left++)
                ASSERT_TRUE(kinds.works(order[left])) << "object " << order[left] << ", " << gone << " are gone";
            ASSERT_GT(threads(), before);
            kinds.destroy(order[gone]);
        }
        ASSERT_TRUE(threads_fall_to(before)) << "the last object was of kind " << order.back();
        orders++;
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(orders, 720);
}

// Each object may be the only one left: moved, assigned and given up, it takes its share of the engine with it.
TEST(Lifetimes, AShareMovesWithItsObject)
{
    const ferry::Engine target = open_engine();
    { // The target's threads that begin with its first peer.
        const ferry::Engine first = open_engine();
        must(first.connect(must(target.address()), patience));
    }
    const auto before = threads();
    std::optional<ferry::Engine> engine = open_engine();
    ferry::Peer peer = must(engine->connect(must(target.address()), patience)), copy = peer;
    ferry::Memory memory = must(engine->alloc(64));
    engine.reset();
    peer = ferry::Peer();
    EXPECT_TRUE(copy.probe(patience).ok());
    ferry::Session session(copy);
    copy = session.peer();
    ferry::Memory moved = std::move(memory);
    moved.data()[63] = std::byte(1);
    EXPECT_TRUE(copy.info().ok());
    moved = ferry::Memory();
    copy = ferry::Peer();
    EXPECT_TRUE(session.peer().probe(patience).ok());
    session = ferry::Session();
    EXPECT_TRUE(threads_fall_to(before));
}

TEST(Lifetimes, ATransferOutlivesEngineAndPeer)
{
    Pair pair;
    std::optional<ferry::Transfer> transfer;
    const std::array<std::byte, 8> source{};
    {
        // An engine of its own, whose peer b takes no more notifications.
        ferry::Engine engine = open_engine();
        ferry::Peer peer = must(engine.connect(must(pair.b.address()), patience));
        auto region = must(engine.register_memory(const_cast<std::byte *>(source.data()), source.size()));
        for (int i = 0; i < notifications_ahead; i++) must(peer.notify("ahead"));
        transfer = must(peer.submit(ferry::Op::write, ferry::request(source.data(), 8, must(peer.region("b"))),
                                    ferry::TransferOptions().notify("ahead").deadline(ferry::forever)));
        region.detach(); // its destructor would wait for the transfer
    }
    EXPECT_TRUE(transfer->wait(std::chrono::seconds(0)).pending());
    EXPECT_TRUE(transfer->cancel().ok());
    EXPECT_EQ(transfer->wait(patience).status(), FERRY_ERR_CANCELLED);
}

TEST(Lifetimes, AClosedEngineAnswersClosed)
{
    ferry::Engine engine = open_engine();
    ferry::Memory memory = must(engine.alloc(64));
    must(engine.close());
    EXPECT_EQ(memory.free().status(), FERRY_ERR_CLOSED);
    memory.data()[63] = std::byte(1); // still mapped
    engine = ferry::Engine();
    memory.data()[0] = std::byte(1);
}

// Objects made from a bare pointer of ferry.h have no share: the program frees that engine itself.
TEST(Lifetimes, OfABarePointerTheProgramKeepsTheEngine)
{
    const auto before = threads();
    ferry_engine *bare = nullptr;
    ASSERT_EQ(ferry_engine_open(nullptr, &bare, nullptr), FERRY_OK);
    {
        void *address = nullptr;
        ferry_region region = 0;
        ASSERT_EQ(ferry_memory_alloc(bare, 64, nullptr, &address, &region, nullptr), FERRY_OK);
        ferry::Memory memory(bare, region, address, 64);
    }
    ferry_stats stats = FERRY_STATS_INIT;
    EXPECT_EQ(ferry_engine_get_stats(bare, &stats, nullptr), FERRY_OK);
    EXPECT_EQ(stats.regions, 0u);
    ferry_engine_free(bare);
    EXPECT_TRUE(threads_fall_to(before));
}

TEST(Lifetimes, ObjectsOfEventsShareTheEngine)
{
    const ferry::Engine target = open_engine();
    const ferry::Memory offered = must(target.alloc(64, ferry::AllocOptions().name("target")));
    for (const bool transfer_is_left : {true, false}) {
        std::optional<ferry::Engine> engine = open_engine();
        std::optional<ferry::Peer> peer = must(engine->connect(must(target.address()), patience));
        std::optional<ferry::Memory> memory = must(engine->alloc(64));
        std::optional<ferry::Queue> queue = must(engine->queue(FERRY_QUEUE_TRANSFERS, 4));
        must(peer->submit(ferry::Op::write, ferry::request(memory->data(), 64, must(peer->region("target"))),
                          ferry::TransferOptions().queue(*queue)))
            .detach();
        const ferry::Event event = next_event(*queue, FERRY_EVENT_TRANSFER);
        std::optional<ferry::Transfer> transfer = ferry::Transfer(*engine, event->transfer);
        std::optional<ferry::Peer> of_event = ferry::Peer(*engine, event->peer);
        if (transfer_is_left) of_event.reset();
        else transfer.reset();
        queue.reset(), memory.reset(), peer.reset(), engine.reset();
        if (transfer_is_left) EXPECT_TRUE(transfer->wait(std::chrono::seconds(0)).ok());
        else EXPECT_TRUE(of_event->info().ok());
    }
}

// The objects that a callback uses may be gone after its queue, also while another thread closes the engine.
TEST(Lifetimes, AQueueThatIsDestroyedWhileTheEngineClosesWaitsForItsCallback)
{
    Pair pair;
    std::promise<void> entered, go_on;
    std::atomic<bool> ended{false};
    auto stay = [&](const ferry_event &) {
        entered.set_value();
        go_on.get_future().wait();
        ended = true;
    };
    std::optional<ferry::Queue> queue = must(pair.a.queue(FERRY_QUEUE_TRANSFERS, 4));
    must(queue->callback(stay));
    must(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 8), ferry::TransferOptions().queue(*queue))).detach();
    entered.get_future().wait();
    std::thread closing([&] { must(pair.a.close()); });
    const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    ferry_status status = FERRY_OK;
    while (status != FERRY_ERR_CLOSED && std::chrono::steady_clock::now() < last)
        status = pair.peer.write(pair.range(0, 0, 8)).status();
    EXPECT_EQ(status, FERRY_ERR_CLOSED);
    // The destructor should begin first, but the test cannot see that it has begun.
    std::thread helper([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        go_on.set_value();
    });
    queue.reset();
    EXPECT_TRUE(ended);
    helper.join();
    closing.join();
}
