// Mistakes that programs make in their first hours: each call fails, and its sentence names the argument and the mend.
// refused.cpp has those that the compiler refuses.
#include "kv_ranks.hpp"

#include <gtest/gtest.h>

using namespace std::chrono_literals;

namespace {

// A call, and what its status and sentence must contain.
struct Mistake {
    ferry::Outcome outcome;
    const char *status, *words;
};

void expect_named(const std::vector<Mistake> &mistakes)
{
    for (const Mistake &mistake : mistakes) {
        EXPECT_STREQ(mistake.outcome.name(), mistake.status) << mistake.words;
        EXPECT_NE(std::string(mistake.outcome.message()).find(mistake.words), std::string::npos)
            << mistake.words << ": " << mistake.outcome.message();
    }
}

// A layout with one layer, which `change` spoils.
template <class Change> ferry::Outcome layout(Change change)
{
    static const std::uint16_t numbers[4 * 2 * 8 * 2] = {};
    kv::Description desc;
    desc.model = "example";
    desc.groups = {kv::Group::full(8)};
    desc.layers = {kv::Layer::of("layers.0", "block pair token element", numbers, {4, 2, 8, 2})};
    change(desc, desc.layers[0]);
    return kv::Layout::create(desc);
}

} // namespace

TEST(Mistakes, OfAnEngineAndItsMemory)
{
    Pair pair;
    const ferry::Engine &engine = pair.a;
    ferry::Config config = must(ferry::Config::create());
    expect_named({
        {config.set("lane", 4), "INVALID", "did you mean \"lanes\"?"},
        {config.set("lanes", 400), "INVALID", "lanes: \"400\" is refused: out of range; valid: 1 to 16"},
        {config.set("transports", "tpc"), "INVALID", "\"tpc\" is not a transport; valid: auto, or a comma list of tcp"},
        {engine.connect("127.0.0.1", 1s), "INVALID", "address: \"127.0.0.1\""},
        {engine.connect("127.0.0.1:70000", 1s), "INVALID", "address: \"127.0.0.1:70000\""},
        {engine.alloc(0), "INVALID", "length is 0"},
        {engine.alloc(64, ferry::AllocOptions().access(0)), "INVALID", "options.access is 0"},
        {engine.register_memory(nullptr, 64), "INVALID", "address is null"},
        {engine.register_memory(pair.a_memory.data(), 64), "OVERLAP", "overlaps the region at"},
        {engine.queue(0, 4), "INVALID", "what: 0x0 is not a set of known kinds of events"},
        {engine.queue(FERRY_QUEUE_PEERS, 0), "INVALID", "capacity: 0 is not 1 to"},
        {ferry::Engine().alloc(64), "INVALID", "engine is NULL"},
    });
}

TEST(Mistakes, OfTransfersAndQueues)
{
    Pair pair;
    const ferry::Queue transfers = must(pair.a.queue(FERRY_QUEUE_TRANSFERS, 4));
    const ferry::Queue notifications = must(pair.a.queue(FERRY_QUEUE_NOTIFICATIONS, 4));
    const ferry::Request request = pair.range(0, 0, 8);
    const auto to = [](const ferry::Queue &queue) { return ferry::TransferOptions().queue(queue); };
    std::uint64_t elsewhere = 0;
    expect_named({
        {pair.peer.region("kv"), "NOT_REGISTERED", "the peer has announced no region named \"kv\""},
        {pair.peer.write(ferry::request(&elsewhere, 8, pair.remote)), "NOT_REGISTERED", "requests[0].local"},
        {pair.peer.write(pair.range(0, 64, 4096)), "INVALID", "requests[0].remote"},
        {pair.peer.write({}), "INVALID", "requests: the list is empty"},
        {pair.peer.write(request, to(transfers)), "INVALID", "options.queue must be 0"},
        {pair.peer.submit(ferry::Op::write, request, to(notifications)), "INVALID",
         "the queue does not take transfers"},
        {pair.peer.submit(ferry::Op::write, ferry::UniformBlocks()), "INVALID", "is empty"},
        {pair.a.connect_async("127.0.0.1:1", 1s, transfers), "INVALID", "the queue does not take peer events"},
        {pair.a.queue(FERRY_QUEUE_NOTIFICATIONS, 4), "BUSY", "another queue takes the notifications of channel 0"},
        {ferry::Peer().write(request), "INVALID", "engine is NULL"},
    });
}

TEST(Mistakes, OfLayouts)
{
    using Desc = kv::Description;
    using Layer = kv::Layer;
    EXPECT_TRUE(layout([](Desc &, Layer &) {}).ok());
    expect_named({
        {layout([](Desc &d, Layer &) { d.groups.clear(); }), "INVALID", "groups"},
        {layout([](Desc &d, Layer &) { d.groups = {kv::Group::full(16)}; }), "INVALID",
         "layers[0], layers.0: tensor has 8 tokens in a block, but block_tokens of group 0 is 16"},
        {layout([](Desc &d, Layer &) { d.groups = {kv::Group::window(8, 0)}; }), "INVALID", "window"},
        {layout([](Desc &, Layer &l) { l.group = 1; }), "INVALID", "layers[0] \"layers.0\": group 1 of 1 groups"},
        {layout([](Desc &, Layer &l) { l.heads = 2; }), "INVALID", "heads counts those of the whole model"},
        {layout([](Desc &, Layer &l) { l.order = "blocks pair token element"; }), "INVALID",
         "layers[0], layers.0: order: \"blocks\" is none of block, pair, token, head and element"},
        {layout([](Desc &, Layer &l) { l.order.clear(); }), "INVALID", "order \"\" lacks block"},
        {layout([](Desc &, Layer &l) { l.shape.pop_back(); }), "INVALID", "names 4 dimensions, but the tensor has 3"},
        {layout([](Desc &, Layer &l) { l.steps = {64, 32, 4}; }), "INVALID",
         "strides and shape have different lengths"},
        {layout([](Desc &, Layer &l) { l.steps = {32, 16, 2, 1}; }), "INVALID", "strides.element 1 is less than"},
        {layout([](Desc &, Layer &l) { l.address = nullptr; }), "INVALID", "layers[0] \"layers.0\""},
        {layout([](Desc &, Layer &l) { l.order.clear(), l.shape.clear(), l.elements = 2; }), "INVALID",
         "layers[0], layers.0: neither arrangement nor strides are set"},
        {layout([](Desc &, Layer &l) { l.element_bytes = 0; }), "INVALID", "element_bytes is 0"},
    });
}

TEST(Mistakes, OfHandoffs)
{
    const Rank rank({1, 8}), other({1, 8});
    const kv::Id id = must(kv::new_id()), offered = must(kv::new_id());
    const auto lists = rank.model.lists();
    const std::vector<std::uint32_t> ids = {0, 1};
    rank.offer(offered);
    must(rank.cache.seal(offered, kv_tokens));
    expect_named({
        {kv::Id::parse("12"), "INVALID", "an id is 32 hexadecimal digits"},
        {rank.cache.offer(id, kv::BlockList(ids)), "INVALID", "blocks: 1 lists, and the layout has 3 groups"},
        {rank.cache.offer(offered, lists), "INVALID", "is in use"},
        {rank.cache.ready(id, 8), "INVALID", "is no offer"},
        {rank.cache.ready(offered, 1000), "INVALID", "tokens"},
        {rank.cache.seal(offered, 8), "INVALID", "is sealed"},
        {rank.cache.cancel_take(offered), "INVALID", "is no take"},
        {rank.cache.take(id, other.connect(rank), lists, 8), "INVALID",
         "producers[0] is no peer of the cache's engine"},
        {ferry::Directory::open(rank.engine, "127.0.0.1:1"), "INVALID",
         "url begins neither with static: nor with etcd:"},
    });
}

// Closing twice does nothing, and a use of a closed object says so.
TEST(Mistakes, AfterTheEnd)
{
    Pair pair;
    ferry::Queue queue = must(pair.a.queue(FERRY_QUEUE_TRANSFERS, 4));
    ferry::Memory memory = must(pair.a.alloc(64));
    ferry::Transfer transfer = must(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 8)));
    std::vector<std::byte> bytes(64);
    ferry::Region region = must(pair.a.register_memory(bytes.data(), bytes.size()));
    must(transfer.wait(patience));
    for (int twice = 0; twice < 2; twice++) {
        must(queue.destroy());
        must(memory.free());
        must(transfer.release());
        must(region.unregister());
        must(pair.peer.close());
    }
    EXPECT_FALSE(queue || memory || transfer || region);
    EXPECT_EQ(memory.data(), nullptr);
    expect_named({
        {queue.next(0s), "STALE", "has been destroyed"},
        {queue.fd(), "STALE", "has been destroyed"},
        {transfer.wait(), "STALE", "refers to a removed object"},
        {pair.peer.write(pair.range(0, 0, 8)), "CLOSED", "connect again"},
    });
    ferry::Queue moved = std::move(queue), fresh = must(pair.a.queue(FERRY_QUEUE_TRANSFERS, 4));
    EXPECT_EQ(moved.fd().status(), FERRY_ERR_STALE);
    EXPECT_EQ(queue.fd().status(), FERRY_ERR_INVALID);
    moved = std::move(fresh);
    must(moved.fd());
    must(pair.a.close());
    must(pair.a.close());
    must(pair.peer.close());
    EXPECT_EQ(pair.a.stats().status(), FERRY_ERR_CLOSED);
}

TEST(Names, AreThoseOfFerryH)
{
    EXPECT_STREQ(to_string(ferry::EventKind::peer_lost), "PEER_LOST");
    EXPECT_STREQ(to_string(ferry::TransferState::timed_out), "TIMED_OUT");
    EXPECT_STREQ(to_string(ferry::Fence::dead), "DEAD");
    EXPECT_STREQ(to_string(ferry::Notification::not_sent), "NOT_SENT");
    EXPECT_STREQ(to_string(ferry::PeerState::connecting), "CONNECTING");
    EXPECT_STREQ(to_string(ferry::Transport::rdma), "RDMA");
    EXPECT_STREQ(to_string(ferry::MemoryKind::cuda_pinned), "CUDA_PINNED");
    EXPECT_STREQ(to_string(ferry::ChangeKind::list_anew), "LIST_ANEW");
    EXPECT_STREQ(to_string(kv::EventKind::received), "RECEIVED");
    EXPECT_STREQ(to_string(kv::StateKind::offered), "OFFERED");
    EXPECT_STREQ(to_string(static_cast<kv::EventKind>(99)), "UNKNOWN");
}
