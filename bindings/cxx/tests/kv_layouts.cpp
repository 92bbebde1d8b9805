// ferry_kv.hpp without an engine: layouts, their bytes, plans, and the bytes to move, against the model of
// kv_ranks.hpp.
#include "kv_ranks.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <unordered_set>

namespace {

// A model with memory of its own.
struct Host {
    explicit Host(Shape shape, std::uint32_t rank = 0)
        : model(shape, rank), memory(model.size), layout(model.layout(memory.data())), lists(model.lists())
    {
    }
    Model model;
    std::vector<std::uint32_t> memory;
    kv::Layout layout;
    std::vector<kv::BlockList> lists;
};

kv::Part part_of(const Host &source, const Host &target, std::uint64_t first, std::uint64_t end)
{
    kv::Part part;
    part.first_token = first;
    part.end_token = end;
    part.source = source.lists;
    part.target = target.lists;
    return part;
}

// Copies what the moves say; returns the bytes.
std::uint64_t copy(const kv::Moves &moves)
{
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < must(moves.count()); i++)
        must(moves.get(i)).pieces([&](std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
            std::memcpy(reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from), bytes);
            sum += bytes;
        });
    return sum;
}

// Moves tokens first to end between all ranks, and compares every element of every rank.
void reshard(Shape from, Shape to, std::uint64_t first, std::uint64_t end)
{
    std::deque<Host> sources;
    for (std::uint32_t rank = 0; rank < from.tp; rank++) {
        sources.emplace_back(from, rank);
        sources.back().model.write(sources.back().memory.data(), 0, kv_tokens);
    }
    for (std::uint32_t rank = 0; rank < to.tp; rank++) {
        Host target(to, rank);
        const kv::Plan plan = must(kv::Plan::create(sources[0].layout, target.layout));
        for (std::uint32_t sender : must(plan.sources(rank))) {
            const Host &source = sources[sender];
            (void)copy(must(plan.lower(source.layout, target.layout, part_of(source, target, first, end))));
        }
        EXPECT_EQ(target.memory, target.model.expected(first, end))
            << "rank " << rank << " of " << to.tp << ", from " << from.tp << ", arrangements "
            << static_cast<int>(from.arrangement) << " and " << static_cast<int>(to.arrangement)
            << ", blocks of " << from.block_tokens << " and " << to.block_tokens;
    }
}

std::string why(const ferry::Outcome &outcome) { return std::string(outcome.name()) + ": " + outcome.message(); }

} // namespace

TEST(Layouts, TheirBytesMakeThemAgain)
{
    const Host host({2, 8}, 1);
    const kv::LayoutInfo info = must(host.layout.info());
    EXPECT_EQ(info.rank, 1u);
    EXPECT_EQ(info.ranks, 2u);
    EXPECT_EQ(info.group_count, 3u);
    EXPECT_EQ(info.layer_count, 3u);
    const std::vector<std::byte> bytes = must(host.layout.exported());
    EXPECT_GT(bytes.size(), 50u);
    kv::Layout again = must(kv::Layout::load(bytes));
    EXPECT_EQ(must(again.exported()), bytes);
    EXPECT_EQ(must(again.info()).rank, 1u);
    // One byte less, and none.
    EXPECT_EQ(kv::Layout::load(ferry::Bytes(bytes.data(), bytes.size() - 1)).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(kv::Layout::load("").status(), FERRY_ERR_INVALID);
}

TEST(Layouts, EveryFieldOfTheDescriptionArrives)
{
    const Model model({4, 8}, 3);
    std::vector<std::uint32_t> memory(model.size);
    kv::Description desc = model.describe(memory.data());
    desc.pp_size = 2, desc.pp_rank = 1;
    desc.pcp_size = 2, desc.pcp_rank = 1;
    desc.turn_tokens = 4;
    for (kv::Layer &layer : desc.layers) layer.stage = 1;
    const kv::LayoutInfo info = must(must(kv::Layout::create(desc)).info());
    EXPECT_EQ(info.rank, (1u * 2 + 1) * 4 + 3);
    EXPECT_EQ(info.ranks, 16u);
    // Each change of a field makes another layout.
    std::set<std::vector<std::byte>> seen = {must(must(kv::Layout::create(desc)).exported())};
    const auto differs = [&](auto change) {
        kv::Description changed = desc;
        change(changed);
        const auto layout = kv::Layout::create(changed);
        EXPECT_TRUE(layout.ok()) << why(layout);
        EXPECT_TRUE(layout.ok() && seen.insert(must(layout->exported())).second) << "change " << seen.size();
    };
    differs([](kv::Description &d) { d.model = "other"; });
    differs([](kv::Description &d) { d.revision = "other"; });
    differs([](kv::Description &d) { d.cache = "other"; });
    differs([](kv::Description &d) { d.rope = "other"; });
    differs([](kv::Description &d) { d.tp_rank = 2; });
    differs([](kv::Description &d) { d.pcp_rank = 0; });
    differs([](kv::Description &d) { d.turn_tokens = 2; });
    differs([](kv::Description &d) { d.pp_rank = 0, d.layers[0].stage = d.layers[1].stage = d.layers[2].stage = 0; });
    differs([](kv::Description &d) { d.layers[0].heads = d.layers[1].heads = 1; });
    differs([](kv::Description &d) { d.layers[0].heads = d.layers[1].heads = 1, d.dcp_size = 4; });
    differs([](kv::Description &d) { d.groups[1].window_tokens = 99; });
    differs([](kv::Description &d) { d.groups[2].block_tokens = 4; });
    differs([](kv::Description &d) { d.layers[0].name = "other"; });
    differs([](kv::Description &d) { d.layers[0].elements = 3; });
    differs([](kv::Description &d) { d.layers[0].element_bytes = 2; });
    differs([](kv::Description &d) { d.layers[0].blocks = 3; });
    differs([](kv::Description &d) { d.layers[0].pairs = 1; });
    differs([](kv::Description &d) { d.layers[0].arrangement = kv::Arrangement::pair_block_token_head; });
    differs([&](kv::Description &d) { d.layers[0].address = memory.data() + 1; });
}

TEST(Layouts, LayersOfOtherStagesNeedNoMemory)
{
    const Model model({}, 0);
    std::vector<std::uint32_t> memory(model.size);
    kv::Description desc = model.describe(memory.data());
    desc.pp_size = 2;
    desc.layers[2].stage = 1;
    desc.layers[2].address = nullptr;
    desc.layers[2].arrangement = static_cast<kv::Arrangement>(99);
    EXPECT_TRUE(kv::Layout::create(desc).ok());
    desc.layers[1].address = nullptr;
    EXPECT_EQ(kv::Layout::create(desc).status(), FERRY_ERR_INVALID);
}

// A tensor in words makes the same layout as an arrangement, and one with padding the same as strides.
TEST(Layouts, ATensorInWordsMakesTheSame)
{
    const std::pair<kv::Arrangement, const char *> orders[] = {
        {kv::Arrangement::pair_block_token_head, "pair block token head element"},
        {kv::Arrangement::pair_block_head_token, "pair block head token element"},
        {kv::Arrangement::block_pair_token_head, "block pair token head element"},
        {kv::Arrangement::block_pair_head_token, "block pair head token element"},
        {kv::Arrangement::block_head_pair_token, "block head pair token element"}};
    for (const auto &[arrangement, order] : orders) {
        for (const std::uint32_t padding : {0u, 3u}) {
            const Model model({2, 8, arrangement, padding}, 1);
            std::vector<std::uint32_t> memory(model.size);
            const kv::Description desc = model.describe(memory.data());
            kv::Description in_words = desc;
            for (std::uint32_t i = 0; i < model_layer_count; i++) {
                const std::map<std::string, std::uint64_t> sizes = {{"block", kv_blocks},
                                                                    {"pair", model_layers[i].pairs},
                                                                    {"head", model.heads(i)},
                                                                    {"token", 8},
                                                                    {"element", kv_elements}};
                std::vector<std::uint64_t> shape, strides;
                std::istringstream words(order);
                for (std::string word; words >> word;) shape.push_back(sizes.at(word));
                if (padding != 0) strides = {(kv_elements + padding) * sizeof(std::uint32_t), sizeof(std::uint32_t)};
                for (std::size_t at = 3; padding != 0 && at > 0; at--)
                    strides.insert(strides.begin(), strides[0] * shape[at]);
                const auto *data = static_cast<const std::uint32_t *>(desc.layers[i].address);
                in_words.layers[i] = kv::Layer::of(desc.layers[i].name, order, data, shape, strides);
                in_words.layers[i].group = i;
            }
            EXPECT_EQ(must(must(kv::Layout::create(in_words)).exported()), must(model.layout(memory.data()).exported()))
                << order;
        }
    }
}

TEST(Layouts, WhatIsWrongIsNamed)
{
    const Model model({}, 0);
    std::vector<std::uint32_t> memory(model.size);
    const auto refused = [&](auto change) {
        kv::Description desc = model.describe(memory.data());
        change(desc);
        return why(kv::Layout::create(desc));
    };
    EXPECT_EQ(refused([](kv::Description &d) { d.layers[1].name = std::string("a\0b", 3); }),
              "INVALID: layers[1].name has a zero");
    EXPECT_EQ(refused([](kv::Description &d) { d.model = std::string("\0", 1); }), "INVALID: model has a zero");
    EXPECT_EQ(refused([](kv::Description &d) { d.rope = std::string("r\0", 2); }), "INVALID: rope has a zero");
    const std::string unknown =
        refused([](kv::Description &d) { d.layers[2].arrangement = static_cast<kv::Arrangement>(9); });
    EXPECT_EQ(unknown.rfind("INVALID: layers[2], model.layers.2.mla: arrangement is 9", 0), 0u) << unknown;
    const std::string group = refused([](kv::Description &d) { d.layers[2].group = 3; });
    EXPECT_NE(group.find("model.layers.2.mla"), std::string::npos) << group;
    const std::string overlap = refused([](kv::Description &d) {
        d.layers[0].arrangement = kv::Arrangement::none;
        d.layers[0].strides = {8, 8, 8, 8, 4};
    });
    EXPECT_NE(overlap.find("model.layers.0.attn"), std::string::npos) << overlap;
    const auto none = [](kv::Description &d) { d.groups.clear(); };
    EXPECT_EQ(refused(none).rfind("INVALID: ", 0), 0u) << refused(none);
    EXPECT_EQ(refused([](kv::Description &d) { d.layers.clear(); }).rfind("INVALID: ", 0), 0u);
    EXPECT_THROW(kv::Layout::create(kv::Description()).value(), ferry::Error);
}

TEST(Plans, MovesEqualTheModel)
{
    using kv::Arrangement;
    constexpr Arrangement all[] = {Arrangement::pair_block_token_head, Arrangement::pair_block_head_token,
                                   Arrangement::block_pair_token_head, Arrangement::block_pair_head_token,
                                   Arrangement::block_head_pair_token};
    for (const Arrangement from : all)
        for (const Arrangement to : all) {
            reshard({2, 8, from}, {1, 12, to}, 0, kv_tokens);
            reshard({1, 16, from}, {4, 4, to, 3}, 0, kv_tokens);
        }
    const Arrangement usual = Arrangement::block_pair_token_head;
    reshard({4, 8, usual, 1}, {2, 8, usual, 2}, 0, kv_tokens);
    reshard({1, 8}, {1, 8}, 0, kv_tokens);
}

TEST(Plans, APartOfTheTokens)
{
    reshard({2, 8}, {1, 12, kv::Arrangement::pair_block_token_head}, 17, kv_tokens);
    reshard({2, 8}, {1, 12, kv::Arrangement::pair_block_token_head}, 60, 61 + 14);
}

TEST(Plans, APartOfTheLayers)
{
    Host source({}), target({});
    source.model.write(source.memory.data(), 0, kv_tokens);
    const kv::Plan plan = must(kv::Plan::create(source.layout, target.layout));
    kv::Part part = part_of(source, target, 0, kv_tokens);
    std::vector<std::uint32_t> expected(target.memory.size());
    for (std::uint32_t layer = 0; layer < model_layer_count; layer++) {
        part.first_layer = layer;
        part.end_layer = layer + 1;
        const kv::Moves moves = must(plan.lower(source.layout, target.layout, part));
        for (std::size_t i = 0; i < must(moves.count()); i++) EXPECT_EQ(must(moves.get(i)).layer, layer);
        copy(moves);
        target.model.write(expected.data(), layer, 0, kv_tokens);
        EXPECT_EQ(target.memory, expected);
    }
    part.first_layer = 1;
    part.end_layer = 1;
    EXPECT_EQ(copy(must(plan.lower(source.layout, target.layout, part))), 0u);
}

TEST(Plans, SayWhoSendsToWhom)
{
    const Host source({4, 8}), target({2, 8});
    const kv::Plan plan = must(kv::Plan::create(source.layout, target.layout));
    const std::vector<std::uint32_t> to_first = must(plan.sources(0)), of_last = must(plan.targets(3));
    // Heads come from two ranks; latents, which all ranks have, come from any.
    EXPECT_EQ(std::vector<std::uint32_t>(to_first.begin(), to_first.begin() + 2), (std::vector<std::uint32_t>{0, 1}));
    EXPECT_EQ(of_last.back(), 1u);
    EXPECT_EQ(plan.sources(2).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(plan.targets(4).status(), FERRY_ERR_INVALID);
    const std::string page = must(plan.explain());
    EXPECT_NE(page.find("source: 4 ranks"), std::string::npos) << page;
    EXPECT_EQ(page.find('\0'), std::string::npos);
}

TEST(Plans, WhatDoesNotFitIsRefused)
{
    const Host source({}), target({});
    std::vector<std::uint32_t> memory(source.model.size);
    kv::Description desc = source.model.describe(memory.data());
    desc.cache = "fp8";
    const auto other = kv::Plan::create(source.layout, must(kv::Layout::create(desc)));
    EXPECT_EQ(other.status(), FERRY_ERR_INVALID);
    EXPECT_NE(std::string(other.message()).find("fp8"), std::string::npos) << other.message();
    desc = source.model.describe(memory.data());
    desc.groups[1].window_tokens = kv_window + 1;
    EXPECT_EQ(kv::Plan::create(source.layout, must(kv::Layout::create(desc))).status(), FERRY_ERR_UNSUPPORTED);

    const kv::Plan plan = must(kv::Plan::create(source.layout, target.layout));
    kv::Part part = part_of(source, target, 0, kv_tokens);
    part.source = ferry::Span<const kv::BlockList>(source.lists.data(), 2);
    EXPECT_EQ(why(plan.lower(source.layout, target.layout, part)),
              "INVALID: the lists of source and target blocks have different lengths");
    part.target = ferry::Span<const kv::BlockList>(target.lists.data(), 2);
    EXPECT_EQ(plan.lower(source.layout, target.layout, part).status(), FERRY_ERR_INVALID);
    part = part_of(source, target, 0, kv_tokens + 8);
    EXPECT_EQ(plan.lower(source.layout, target.layout, part).status(), FERRY_ERR_INVALID);
}

TEST(Plans, AndMovesOutliveWhatTheyWereMadeFrom)
{
    Host source({}), target({1, 12});
    source.model.write(source.memory.data(), 0, kv_tokens);
    kv::Plan plan = must(kv::Plan::create(source.layout, target.layout));
    kv::Moves moves = must(plan.lower(source.layout, target.layout, part_of(source, target, 0, kv_tokens)));
    source.layout = kv::Layout();
    target.layout = kv::Layout();
    EXPECT_EQ(must(plan.sources(0)).size(), 1u);
    plan = kv::Plan();
    const kv::Moves moved = std::move(moves);
    const std::size_t count = must(moved.count());
    EXPECT_GT(count, 2u);
    EXPECT_EQ(moved.get(count).status(), FERRY_ERR_INVALID);
    copy(moved);
    EXPECT_EQ(target.memory, target.model.expected(0, kv_tokens));
}

TEST(Moved, LayoutsPlansAndMovesAreEmptyAndSaySo)
{
    Host source({}), target({});
    kv::Layout layout = std::move(source.layout);
    EXPECT_TRUE(layout);
    EXPECT_FALSE(source.layout);
    EXPECT_EQ(why(source.layout.info()), "INVALID: layout is NULL");
    EXPECT_EQ(source.layout.exported().status(), FERRY_ERR_INVALID);
    EXPECT_EQ(why(kv::Plan::create(source.layout, target.layout)), "INVALID: source is NULL");
    kv::Plan plan = must(kv::Plan::create(layout, target.layout)), other = std::move(plan);
    EXPECT_TRUE(other && !plan);
    EXPECT_EQ(plan.sources(0).status(), FERRY_ERR_INVALID);
    EXPECT_EQ(plan.explain().status(), FERRY_ERR_INVALID);
    EXPECT_EQ(plan.lower(layout, target.layout, part_of(source, target, 0, 1)).status(), FERRY_ERR_INVALID);
    EXPECT_FALSE(kv::Moves());
    EXPECT_EQ(why(kv::Moves().count()), "INVALID: moves is NULL");
    layout = std::move(target.layout);
    EXPECT_TRUE(layout && !target.layout);
}

TEST(Ids, AreRandomAndComparable)
{
    const kv::Id first = must(kv::new_id()), second = must(kv::new_id());
    EXPECT_NE(first, second);
    EXPECT_NE(first, kv::Id());
    EXPECT_TRUE((first < second) != (second < first));
    EXPECT_EQ(kv::Id(static_cast<const ferry_kv_id &>(first)), first);
    const std::unordered_set<kv::Id> ids = {first, second, first};
    EXPECT_EQ(ids.size(), 2u);
    EXPECT_EQ(ids.count(second), 1u);
    EXPECT_NE(std::hash<kv::Id>()(first), std::hash<kv::Id>()(second));
    EXPECT_EQ(must(kv::Id::parse(to_string(first))), first);
    EXPECT_EQ(to_string(kv::Id()), std::string(32, '0'));
    EXPECT_EQ(kv::Id::parse("12").status(), FERRY_ERR_INVALID);
}
