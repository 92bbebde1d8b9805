// ferry_kv.hpp over real engines: sequences are handed over between ranks that divide the model differently, and every
// element is compared with the model of kv_ranks.hpp. Each offer and each take has one end.
#include "kv_ranks.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>

using namespace std::chrono_literals;
using kv::Arrangement;

namespace {

constexpr Shape producer_shape = {1, 8, kv::Arrangement::block_pair_token_head}, consumer_shape = {1, 12};

// A producer and a consumer of one rank each.
struct Two {
    explicit Two(ferry::Timeout silence = 60s)
        : producer(producer_shape, 0, silence), consumer(consumer_shape, 0, silence), peer(consumer.connect(producer)),
          id(must(kv::new_id()))
    {
    }
    Rank producer, consumer;
    ferry::Peer peer; // the producer, as the consumer knows it
    kv::Id id;
};

void expect_end(const Rank &rank, const kv::Id &id, std::uint32_t kind, ferry_status status)
{
    const kv::Event event = rank.end();
    EXPECT_EQ(event.id(), id);
    EXPECT_EQ(event->kind, kind) << event.message();
    EXPECT_EQ(event->status, status) << event.message();
    EXPECT_EQ(event.message()[0] == 0, status == FERRY_OK);
    EXPECT_EQ(must(rank.cache.state(id)).kind, static_cast<std::uint32_t>(FERRY_KV_STATE_ENDED));
    EXPECT_EQ(must(rank.cache.state(id)).event, kind);
    EXPECT_TRUE(rank.cache.poll().pending());
}

void hand_over(Shape from, Shape to, kv::Mode mode)
{
    const std::deque<Rank> producers = instance(from), consumers = instance(to);
    const kv::Id id = must(kv::new_id());
    for (const Rank &consumer : consumers)
        consumer.take(id, connect_all(consumer, producers), kv::TakeOptions().mode(mode));
    for (const Rank &producer : producers) {
        producer.offer(id);
        producer.finish(id);
    }
    for (const Rank &consumer : consumers) {
        const kv::Event event = consumer.end();
        EXPECT_EQ(event->kind, static_cast<std::uint32_t>(FERRY_KV_EVENT_RECEIVED)) << event.message();
        EXPECT_EQ(event->valid_tokens, kv_tokens);
        EXPECT_TRUE(event.untrusted().empty());
        EXPECT_TRUE(consumer.holds(0, kv_tokens)) << from.tp << " to " << to.tp << ", mode " << static_cast<int>(mode);
    }
    for (const Rank &producer : producers) expect_end(producer, id, FERRY_KV_EVENT_SENT, FERRY_OK);
}

bool readable(const kv::Cache &cache, int timeout_ms)
{
    pollfd entry = {must(cache.fd()), POLLIN, 0};
    return poll(&entry, 1, timeout_ms) == 1;
}

} // namespace

TEST(Handoffs, WhatIsTakenEqualsWhatWasOffered)
{
    for (const kv::Mode mode : {kv::Mode::automatic, kv::Mode::pull, kv::Mode::push}) {
        hand_over({1, 8}, {1, 8}, mode);
        hand_over({2, 8, Arrangement::pair_block_token_head}, {1, 12, Arrangement::block_head_pair_token}, mode);
        hand_over({1, 16, Arrangement::block_pair_head_token, 3}, {2, 4, Arrangement::pair_block_head_token}, mode);
    }
}

TEST(Handoffs, ByLayersAndChunks)
{
    Two two;
    two.consumer.take(two.id, two.peer, kv::TakeOptions().layers());
    // The blocks come in two parts: those of the first chunk, then the rest.
    constexpr std::uint64_t chunk = 40, split = chunk / producer_shape.block_tokens, whole = (kv_tokens + 7) / 8;
    std::vector<kv::BlockList> first, rest;
    for (const std::vector<std::uint32_t> &ids : two.producer.model.ids) {
        first.emplace_back(ferry::Span<const std::uint32_t>(ids.data(), split));
        rest.emplace_back(ferry::Span<const std::uint32_t>(ids.data() + split, whole - split));
    }
    must(two.producer.cache.offer(two.id, first));
    EXPECT_EQ(two.producer.cache.extend(two.id, {first.data(), 1}).status(), FERRY_ERR_INVALID);
    two.producer.model.write(two.producer.words(), 0, 0, chunk);
    must(two.producer.cache.ready(two.id, chunk, 0, 1));
    EXPECT_EQ(two.producer.cache.ready(two.id, chunk + 1, 0, 1).status(), FERRY_ERR_INVALID); // no blocks for them
    must(two.producer.cache.extend(two.id, rest));
    EXPECT_EQ(two.producer.cache.ready(two.id, kv_tokens, 2, 3).status(), FERRY_ERR_INVALID); // not in order
    for (std::uint32_t layer = 1; layer < model_layer_count; layer++) {
        two.producer.model.write(two.producer.words(), layer, 0, chunk);
        must(two.producer.cache.ready(two.id, chunk, layer, layer + 1));
    }
    for (std::uint32_t layer = 0; layer < model_layer_count; layer++) {
        two.producer.model.write(two.producer.words(), layer, 0, kv_tokens);
        must(two.producer.cache.ready(two.id, kv_tokens, layer, layer + 1));
        if (layer + 1 == model_layer_count) break;
        const kv::Event event = two.consumer.next();
        EXPECT_EQ(event->kind, static_cast<std::uint32_t>(FERRY_KV_EVENT_LAYERS)) << event.message();
        EXPECT_FALSE(event.terminal());
        EXPECT_EQ(event->layers, layer + 1);
        EXPECT_EQ(event.id(), two.id);
        // The announced layers may be read.
        std::vector<std::uint32_t> expected(two.consumer.model.size);
        for (std::uint32_t told = 0; told <= layer; told++)
            two.consumer.model.write(expected.data(), told, 0, kv_tokens);
        EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(
                                                     two.consumer.model.place(layer + 1, {})), two.consumer.words()));
    }
    must(two.producer.cache.seal(two.id, kv_tokens));
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
    expect_end(two.producer, two.id, FERRY_KV_EVENT_SENT, FERRY_OK);
    EXPECT_TRUE(two.consumer.holds(0, kv_tokens));
}

TEST(Handoffs, WithoutLayersOnlyTheEndIsTold)
{
    Two two;
    two.consumer.take(two.id, two.peer, kv::TakeOptions().layers().layers(false));
    two.producer.offer(two.id);
    two.producer.finish(two.id);
    EXPECT_TRUE(two.consumer.next().terminal());
}

TEST(Handoffs, TokensThatTheConsumerHasStay)
{
    Two two;
    two.consumer.take(two.id, two.peer, kv::TakeOptions().skip_tokens(50));
    two.producer.offer(two.id);
    two.producer.finish(two.id);
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
    EXPECT_TRUE(two.consumer.holds(50, kv_tokens));
    EXPECT_FALSE(two.consumer.holds(0, kv_tokens));
}

TEST(Handoffs, AnOfferHasAsManyTakersAsItSays)
{
    Two two;
    const Rank third(consumer_shape);
    two.producer.offer(two.id, kv::OfferOptions().takers(2));
    two.producer.finish(two.id);
    two.consumer.take(two.id, two.peer, kv::TakeOptions().taker(7));
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
    EXPECT_TRUE(two.producer.cache.poll().pending());
    const kv::State state = must(two.producer.cache.state(two.id));
    EXPECT_EQ(state.kind, static_cast<std::uint32_t>(FERRY_KV_STATE_OFFERED));
    EXPECT_EQ(state.takers, 1u);
    EXPECT_EQ(state.is_sealed, 1u);
    third.take(two.id, third.connect(two.producer), kv::TakeOptions().taker(8));
    expect_end(third, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
    expect_end(two.producer, two.id, FERRY_KV_EVENT_SENT, FERRY_OK);
}

// The second of two consumers with the same number is refused: its rank has taken already. The number is 1 if none is
// given.
TEST(Handoffs, ConsumersAreToldApartByTheirNumbers)
{
    Two two;
    const Rank third(consumer_shape);
    two.producer.offer(two.id, kv::OfferOptions().takers(2));
    two.producer.finish(two.id);
    two.consumer.take(two.id, two.peer);
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
    third.take(two.id, third.connect(two.producer), kv::TakeOptions().taker(1));
    const kv::Event refused = third.end();
    EXPECT_EQ(refused->kind, static_cast<std::uint32_t>(FERRY_KV_EVENT_FAILED));
    EXPECT_NE(std::string(refused.message()).find("has taken already"), std::string::npos) << refused.message();
}

TEST(Handoffs, OnlyPeersOfTheListMayTake)
{
    Two two;
    const Rank third(consumer_shape);
    const ferry::Peer allowed = two.producer.connect(two.consumer);
    two.producer.offer(two.id, kv::OfferOptions().only(allowed));
    two.producer.finish(two.id);
    third.take(two.id, third.connect(two.producer));
    const kv::Event refused = third.end();
    EXPECT_EQ(refused->kind, static_cast<std::uint32_t>(FERRY_KV_EVENT_FAILED));
    EXPECT_EQ(refused->valid_tokens, 0u);
    two.consumer.take(two.id, two.peer);
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
    expect_end(two.producer, two.id, FERRY_KV_EVENT_SENT, FERRY_OK);
}

// The second chunk is taken back, and computed again in other blocks. Nobody has taken it.
TEST(Handoffs, WhatIsTakenBackIsHandedOverAnew)
{
    Two two;
    two.producer.offer(two.id);
    two.producer.model.write(two.producer.words(), 0, 0, kv_tokens);
    must(two.producer.cache.ready(two.id, kv_tokens, 0, 1));
    must(two.producer.cache.seal(two.id, kv_tokens));
    must(two.producer.cache.retract(two.id, 40, 1s));
    EXPECT_EQ(must(two.producer.cache.state(two.id)).is_sealed, 0u);
    EXPECT_EQ(two.producer.cache.ready(two.id, kv_tokens, 0, 1).status(), FERRY_ERR_INVALID); // its blocks are gone
    std::vector<kv::BlockList> rest;
    for (const std::vector<std::uint32_t> &ids : two.producer.model.ids)
        rest.emplace_back(ferry::Span<const std::uint32_t>(ids.data() + 5, ids.size() - 5));
    must(two.producer.cache.extend(two.id, rest));
    two.consumer.take(two.id, two.peer);
    two.producer.finish(two.id);
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
    expect_end(two.producer, two.id, FERRY_KV_EVENT_SENT, FERRY_OK);
    EXPECT_TRUE(two.consumer.holds(0, kv_tokens));
    EXPECT_EQ(two.producer.cache.retract(two.id, 0, 1s).status(), FERRY_ERR_STALE);
    EXPECT_EQ(two.producer.cache.retract_window(two.id, 1, 8, 1s).status(), FERRY_ERR_STALE);
    EXPECT_EQ(two.producer.cache.ready_after(two.id, 1, 0, 1, ferry::StartAfter::acl_event, nullptr).ok(), false);
    const kv::Stats metrics = must(two.producer.cache.stats());
    EXPECT_EQ(metrics.ended_sent, 1u);
    EXPECT_EQ(metrics.offers, 0u);
    EXPECT_NE(must(two.producer.cache.metrics()).find("ferry_kv_handoffs_total{end=\"sent\"} 1"), std::string::npos);
}

TEST(Handoffs, LeasesAreBounded)
{
    const Rank producer(producer_shape, 0, kv::CacheOptions().leased_blocks_max(1));
    const kv::Id id = must(kv::new_id());
    producer.offer(id);
    must(producer.cache.seal(id, kv_tokens));
    expect_end(producer, id, FERRY_KV_EVENT_EXPIRED, FERRY_ERR_LIMIT);
}

TEST(Ends, AnAbortedOfferEndsItsTake)
{
    Two two;
    two.producer.offer(two.id);
    must(two.producer.cache.ready(two.id, kv_tokens, 0, 1));
    two.consumer.take(two.id, two.peer, kv::TakeOptions().layers());
    EXPECT_EQ(two.consumer.next()->layers, 1u); // the handoff is under way
    must(two.producer.cache.cancel_offer(two.id));
    expect_end(two.producer, two.id, FERRY_KV_EVENT_CANCELLED, FERRY_ERR_CANCELLED);
    const kv::Event event = two.consumer.end();
    EXPECT_EQ(event.kind(), kv::EventKind::failed);
    EXPECT_EQ(event->peer, two.peer.handle());
    EXPECT_EQ(event->rank, 0u);
    EXPECT_EQ(event->valid_tokens, 0u);
    std::vector<std::uint32_t> of_latents;
    for (const kv::Block &block : event.untrusted())
        if (block.group == 2) of_latents.push_back(block.block);
    const auto &ids = two.consumer.model.ids[2];
    EXPECT_EQ(std::set<std::uint32_t>(of_latents.begin(), of_latents.end()),
              std::set<std::uint32_t>(ids.begin(), ids.begin() + (kv_tokens + 11) / 12));
    EXPECT_EQ(two.producer.cache.cancel_offer(two.id).status(), FERRY_ERR_STALE);
    EXPECT_EQ(two.producer.cache.ready(two.id, kv_tokens, 1, 2).status(), FERRY_ERR_STALE);
    EXPECT_EQ(two.producer.cache.offer(two.id, two.producer.model.lists()).status(), FERRY_ERR_INVALID);
}

TEST(Ends, ACancelledTakeGivesItsBlocksBack)
{
    Two two;
    two.consumer.take(two.id, two.peer);
    EXPECT_EQ(must(two.consumer.cache.state(two.id)).kind, static_cast<std::uint32_t>(FERRY_KV_STATE_TAKING));
    must(two.consumer.cache.cancel_take(two.id));
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_CANCELLED, FERRY_ERR_CANCELLED);
    EXPECT_EQ(two.consumer.cache.cancel_take(two.id).status(), FERRY_ERR_STALE);
    EXPECT_EQ(two.consumer.cache.cancel_take(must(kv::new_id())).status(), FERRY_ERR_INVALID);
    EXPECT_TRUE(two.consumer.holds(0, 0));
}

TEST(Ends, ALeaseThatNobodyTakesExpires)
{
    Two two;
    two.producer.offer(two.id, kv::OfferOptions().lease(0s)); // the shortest, not the default
    must(two.producer.cache.seal(two.id, 0));
    expect_end(two.producer, two.id, FERRY_KV_EVENT_EXPIRED, FERRY_ERR_TIMEOUT);
}

TEST(Ends, MemoryPressureEndsOffersThatNobodyTakes)
{
    Two two;
    two.producer.offer(two.id, kv::OfferOptions().lease(ferry::forever));
    EXPECT_EQ(must(two.producer.cache.reclaim(1)), 0u); // not sealed
    must(two.producer.cache.seal(two.id, kv_tokens));
    std::size_t blocks = 0;
    for (const kv::BlockList &list : two.producer.model.lists()) blocks += list.block_count;
    EXPECT_EQ(must(two.producer.cache.reclaim(1)), blocks);
    expect_end(two.producer, two.id, FERRY_KV_EVENT_EXPIRED, FERRY_ERR_LIMIT);
    EXPECT_EQ(must(two.producer.cache.unfenced_blocks()), 0u);
}

TEST(Ends, ATakeWhoseDeadlinePassesFails)
{
    Two two;
    for (const ferry::Timeout deadline : {ferry::Timeout(0s), ferry::Timeout(-1s), ferry::Timeout(20ms)}) {
        const kv::Id id = must(kv::new_id());
        two.consumer.take(id, two.peer, kv::TakeOptions().deadline(deadline));
        expect_end(two.consumer, id, FERRY_KV_EVENT_FAILED, FERRY_ERR_TIMEOUT);
    }
    two.consumer.take(two.id, two.peer, kv::TakeOptions().deadline(ferry::forever));
    two.producer.offer(two.id);
    two.producer.finish(two.id);
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
}

// An engine without a cache does not answer, and nothing that it sends can land: a take waits for the cache.
TEST(Ends, AnEngineWithoutACacheIsWaitedFor)
{
    const Rank hasty(consumer_shape, 0, 50ms);
    const ferry::Engine late = open_engine();
    const kv::Id id = must(kv::new_id());
    hasty.take(id, must(hasty.engine.connect(must(late.address()), patience)));
    EXPECT_TRUE(hasty.cache.wait(300ms).pending());
    EXPECT_EQ(must(hasty.cache.state(id)).kind, static_cast<std::uint32_t>(FERRY_KV_STATE_TAKING));
    must(late.close());
    expect_end(hasty, id, FERRY_KV_EVENT_PEER_LOST, FERRY_ERR_PEER_LOST);
}

TEST(Events, ArriveByPollWaitAndDescriptor)
{
    Two two;
    EXPECT_TRUE(two.producer.cache.poll().pending());
    EXPECT_TRUE(two.producer.cache.wait(0s).pending());
    EXPECT_TRUE(two.producer.cache.wait(1ms).pending());
    EXPECT_FALSE(readable(two.producer.cache, 0));
    two.producer.offer(two.id);
    must(two.producer.cache.cancel_offer(two.id));
    EXPECT_TRUE(readable(two.producer.cache, 60000));
    EXPECT_EQ(must(two.producer.cache.poll())->kind, static_cast<std::uint32_t>(FERRY_KV_EVENT_CANCELLED));
    EXPECT_TRUE(two.producer.cache.poll().pending());
    EXPECT_FALSE(readable(two.producer.cache, 0));
    must(two.producer.cache.close());
    EXPECT_TRUE(readable(two.producer.cache, 60000));
}

TEST(Events, OutliveTheCacheAndMove)
{
    kv::Event event;
    EXPECT_FALSE(event.terminal());
    EXPECT_STREQ(event.message(), "");
    {
        Two two;
        two.producer.offer(two.id);
        must(two.producer.cache.ready(two.id, kv_tokens, 0, 1));
        two.consumer.take(two.id, two.peer, kv::TakeOptions().layers());
        two.consumer.next();
        must(two.consumer.cache.cancel_take(two.id));
        event = two.consumer.end();
    }
    const std::string message = event.message();
    const std::size_t blocks = event.untrusted().size();
    EXPECT_FALSE(message.empty());
    EXPECT_GT(blocks, 0u);
    kv::Event moved = std::move(event);
    EXPECT_EQ(moved.message(), message);
    EXPECT_EQ(moved.untrusted().size(), blocks);
    EXPECT_EQ(event->untrusted, nullptr);
    EXPECT_EQ(event->struct_size, sizeof(ferry_kv_event));
    EXPECT_TRUE(event.untrusted().empty() && !event.terminal());
    event = std::move(moved);
    EXPECT_EQ(event.message(), message);
    event = kv::Event();
    EXPECT_STREQ(event.message(), "");
}

TEST(Caches, CloseWithOpenOffersAndTakes)
{
    Two two;
    const kv::Id other = must(kv::new_id());
    two.producer.offer(two.id);
    two.producer.take(other, two.producer.connect(two.consumer));
    must(two.producer.cache.close(patience));
    must(two.producer.cache.close());
    for (int i = 0; i < 2; i++) {
        const kv::Event event = must(two.producer.cache.poll());
        EXPECT_TRUE(event.id() == two.id || event.id() == other);
        EXPECT_EQ(event->kind, static_cast<std::uint32_t>(FERRY_KV_EVENT_CANCELLED));
        EXPECT_EQ(event->status, FERRY_ERR_CLOSED);
    }
    EXPECT_EQ(two.producer.cache.poll().status(), FERRY_ERR_CLOSED);
    EXPECT_EQ(two.producer.cache.wait().status(), FERRY_ERR_CLOSED);
    EXPECT_EQ(two.producer.cache.offer(must(kv::new_id()), two.producer.model.lists()).status(), FERRY_ERR_CLOSED);
}

TEST(Caches, ClosingEndsTheWaitOfAnotherThread)
{
    const Rank rank(consumer_shape);
    std::thread waits([&] { EXPECT_EQ(rank.cache.wait().status(), FERRY_ERR_CLOSED); });
    must(rank.cache.close());
    waits.join();
}

TEST(Caches, AreClosedByTheirDestructor)
{
    Two two;
    two.producer.offer(two.id);
    const kv::Layout layout = two.producer.model.layout(two.producer.words());
    EXPECT_EQ(kv::Cache::open(two.producer.engine, layout, two.producer.memory).status(), FERRY_ERR_BUSY);
    two.producer.cache = kv::Cache();
    // Closed at once: the engine accepts the next cache.
    two.producer.cache = must(kv::Cache::open(two.producer.engine, layout, two.producer.memory));
    EXPECT_EQ(must(two.producer.cache.state(two.id)).kind, static_cast<std::uint32_t>(FERRY_KV_STATE_UNKNOWN));
    two.id = must(kv::new_id());
    two.consumer.take(two.id, two.peer);
    two.producer.offer(two.id);
    two.producer.finish(two.id);
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
}

TEST(Caches, MoveAndAMovedOneSaysSo)
{
    Two two;
    kv::Cache moved = std::move(two.producer.cache);
    EXPECT_TRUE(moved);
    EXPECT_FALSE(two.producer.cache);
    EXPECT_EQ(two.producer.cache.engine(), nullptr);
    EXPECT_STREQ(two.producer.cache.poll().message(), "cache is NULL");
    EXPECT_EQ(two.producer.cache.offer(two.id, two.producer.model.lists()).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(two.producer.cache.close().status(), FERRY_ERR_INVALID);
    EXPECT_EQ(two.producer.cache.fd().status(), FERRY_ERR_INVALID);
    must(moved.offer(two.id, two.producer.model.lists()));
    two.producer.cache = std::move(moved);
    two.consumer.take(two.id, two.peer);
    two.producer.finish(two.id);
    expect_end(two.producer, two.id, FERRY_KV_EVENT_SENT, FERRY_OK);
}

TEST(Caches, KeepTheirEngineAlive)
{
    Two two;
    std::uint32_t *words = two.producer.words();
    two.producer.memory.detach(); // it lives as long as the engine
    two.producer.engine = ferry::Engine();
    // Only the cache has a share of the engine now.
    two.producer.offer(two.id);
    two.producer.model.write(words, 0, kv_tokens);
    must(two.producer.cache.ready(two.id, kv_tokens));
    must(two.producer.cache.seal(two.id, kv_tokens));
    two.consumer.take(two.id, two.peer);
    expect_end(two.consumer, two.id, FERRY_KV_EVENT_RECEIVED, FERRY_OK);
    expect_end(two.producer, two.id, FERRY_KV_EVENT_SENT, FERRY_OK);
    EXPECT_TRUE(two.consumer.holds(0, kv_tokens));
    two.producer.cache = kv::Cache();
}

TEST(Caches, AnEngineThatClosesEndsItsCache)
{
    Two two;
    two.consumer.take(two.id, two.peer);
    must(two.consumer.engine.close());
    EXPECT_EQ(two.consumer.end().id(), two.id);
    EXPECT_EQ(two.consumer.cache.wait(patience).status(), FERRY_ERR_CLOSED);
}

TEST(Caches, LieInSeveralRanges)
{
    const Model model(consumer_shape, 0);
    std::vector<std::uint32_t> memory(model.size);
    const kv::Layout layout = model.layout(memory.data());
    const ferry::Engine engine = open_engine();
    const ferry::Region region = must(engine.register_memory(memory.data(), model.bytes()));
    const std::size_t half = model.place(1, {});
    const kv::Range first(region, memory.data(), half * sizeof(std::uint32_t));
    const kv::Range second(region, memory.data() + half, model.bytes() - half * sizeof(std::uint32_t));
    const auto lacks = kv::Cache::open(engine, layout, first);
    EXPECT_EQ(lacks.status(), FERRY_ERR_INVALID);
    EXPECT_NE(std::string(lacks.message()).find("model.layers.1.attn"), std::string::npos) << lacks.message();
    EXPECT_TRUE(kv::Cache::open(engine, layout, {first, second}).ok());
}

TEST(Arguments, WhatIsWrongIsNamed)
{
    Two two;
    const auto lists = two.consumer.model.lists();
    const ferry::Peer of_other = two.producer.connect(two.consumer);
    const auto said = [](const ferry::Outcome &call) { return std::string(call.name()) + ": " + call.message(); };
    EXPECT_EQ(said(two.consumer.cache.take(two.id, {two.peer, of_other}, lists, kv_tokens)),
              "INVALID: producers[1] is no peer of the cache's engine");
    EXPECT_EQ(said(two.consumer.cache.take(two.id, ferry::Peer(), lists, kv_tokens)),
              "INVALID: producers[0] is no peer of the cache's engine");
    EXPECT_EQ(two.consumer.cache.take(two.id, {}, lists, kv_tokens).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(two.consumer.cache.take(two.id, two.peer, {}, kv_tokens).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(two.consumer.cache.take(two.id, two.peer, lists, kv_tokens + 100).status(), FERRY_ERR_INVALID);
    const auto no_mode = kv::TakeOptions().mode(static_cast<kv::Mode>(3));
    EXPECT_EQ(said(two.consumer.cache.take(two.id, two.peer, lists, kv_tokens, no_mode)),
              "INVALID: options.mode is 3, which is none of FERRY_KV_MODE_*");
    EXPECT_EQ(said(two.consumer.cache.offer(two.id, lists, kv::OfferOptions().only({}))),
              "INVALID: only has no peers: nobody could take the offer");
    EXPECT_EQ(said(two.consumer.cache.offer(two.id, lists, kv::OfferOptions().only(of_other))),
              "INVALID: only[0] is no peer of the cache's engine");
    EXPECT_EQ(two.consumer.cache.offer(two.id, lists, kv::OfferOptions().takers(65)).status(), FERRY_ERR_INVALID);
    const std::vector<std::uint32_t> twice = {1, 1}, beyond = {kv_blocks};
    for (const auto &ids : {twice, beyond})
        EXPECT_EQ(two.consumer.cache.offer(two.id, {kv::BlockList(ids), kv::BlockList(), kv::BlockList()}).status(),
                  FERRY_ERR_INVALID);
    EXPECT_EQ(two.consumer.cache.seal(two.id, 1).status(), FERRY_ERR_INVALID);
    // None of this has left anything behind.
    EXPECT_EQ(must(two.consumer.cache.state(two.id)).kind, static_cast<std::uint32_t>(FERRY_KV_STATE_UNKNOWN));
    const kv::Layout layout = two.consumer.model.layout(two.consumer.words());
    EXPECT_EQ(kv::Cache::open(ferry::Engine(), layout, two.consumer.memory).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(kv::Cache::open(open_engine(), kv::Layout(), two.consumer.memory).status(), FERRY_ERR_INVALID);
}
