// Ranks of a small model for the tests of ferry_kv.hpp: a naive model of one rank's cache, in which each element
// encodes its layer, pair, head, token and place, and the same cache over an engine. Places are computed here, not by
// ferry.
#ifndef KV_RANKS_HPP
#define KV_RANKS_HPP

#include "engines.hpp"

#include <ferry_kv.hpp>

#include <algorithm>
#include <deque>

namespace kv = ferry::kv;

inline constexpr std::uint32_t kv_elements = 4, kv_window = 20;
inline constexpr std::uint64_t kv_blocks = 24, kv_tokens = 75;

// How one instance divides the model. All its ranks have the same shape.
struct Shape {
    std::uint32_t tp = 1, block_tokens = 8;
    kv::Arrangement arrangement = kv::Arrangement::block_pair_head_token;
    std::uint32_t padding = 0; // elements after each row; then the layout has strides of its own
};

// The layers of the model: full attention, a window, and latents. Each is the only layer of its group.
struct ModelLayer {
    const char *name;
    std::uint32_t kind, pairs, heads;
};
inline constexpr ModelLayer model_layers[] = {{"model.layers.0.attn", FERRY_KV_GROUP_FULL, 2, 4},
                                              {"model.layers.1.attn", FERRY_KV_GROUP_WINDOW, 2, 4},
                                              {"model.layers.2.mla", FERRY_KV_GROUP_LATENT, 1, 1}};
inline constexpr std::uint32_t model_layer_count = 3;

// Place of a row in a layer.
struct Row {
    std::uint64_t block = 0, pair = 0, head = 0, token = 0;
};

// One rank's memory, and the expected value of each element.
class Model {
public:
    Model(Shape of, std::uint32_t tp_rank) : shape(of), rank(tp_rank)
    {
        for (std::uint32_t layer = 0; layer < model_layer_count; layer++) {
            starts[layer] = size;
            size += kv_blocks * model_layers[layer].pairs * heads(layer) * shape.block_tokens * row();
            // No two shapes use the same blocks, and none uses neighbours.
            for (std::uint64_t i = 0; i < kv_blocks; i++)
                ids[layer].push_back(static_cast<std::uint32_t>((i * 7 + shape.tp + tp_rank + layer) % kv_blocks));
        }
    }
    std::size_t bytes() const { return size * sizeof(std::uint32_t); }
    // Heads of this rank.
    std::uint32_t heads(std::uint32_t layer) const { return std::max(model_layers[layer].heads / shape.tp, 1u); }
    std::uint32_t first_head(std::uint32_t layer) const
    {
        return model_layers[layer].heads < shape.tp ? 0 : rank * heads(layer);
    }
    // Index of a row's first element in the rank's memory.
    std::size_t place(std::uint32_t layer, Row at) const
    {
        const std::uint64_t pairs = model_layers[layer].pairs, of_heads = heads(layer), tokens = shape.block_tokens;
        std::uint64_t index = 0;
        switch (shape.arrangement) {
        case kv::Arrangement::pair_block_token_head:
            index = ((at.pair * kv_blocks + at.block) * tokens + at.token) * of_heads + at.head;
            break;
        case kv::Arrangement::pair_block_head_token:
            index = ((at.pair * kv_blocks + at.block) * of_heads + at.head) * tokens + at.token;
            break;
        case kv::Arrangement::block_pair_token_head:
            index = ((at.block * pairs + at.pair) * tokens + at.token) * of_heads + at.head;
            break;
        case kv::Arrangement::block_pair_head_token:
            index = ((at.block * pairs + at.pair) * of_heads + at.head) * tokens + at.token;
            break;
        case kv::Arrangement::block_head_pair_token:
            index = ((at.block * of_heads + at.head) * pairs + at.pair) * tokens + at.token;
            break;
        default: give_up("no such arrangement");
        }
        return starts[layer] + index * row();
    }
    // Writes the elements of these tokens in one layer. A window has only its last tokens before `end`.
    void write(std::uint32_t *memory, std::uint32_t layer, std::uint64_t first, std::uint64_t end) const
    {
        const bool window = model_layers[layer].kind == FERRY_KV_GROUP_WINDOW && end > kv_window;
        if (window) first = std::max(first, end - kv_window);
        for (std::uint64_t token = first; token < end; token++)
            for (std::uint32_t pair = 0; pair < model_layers[layer].pairs; pair++)
                for (std::uint32_t head = 0; head < heads(layer); head++)
                    for (std::uint32_t element = 0; element < kv_elements; element++) {
                        const std::uint64_t block = ids[layer][token / shape.block_tokens];
                        const std::uint64_t which =
                            ((token * 8 + first_head(layer) + head) * 2 + pair) * model_layer_count + layer;
                        memory[place(layer, {block, pair, head, token % shape.block_tokens}) + element] =
                            static_cast<std::uint32_t>(which * 8 + element + 1);
                    }
    }
    void write(std::uint32_t *memory, std::uint64_t first, std::uint64_t end) const
    {
        for (std::uint32_t layer = 0; layer < model_layer_count; layer++) write(memory, layer, first, end);
    }
    // The expected memory, if it was zero and these tokens have come.
    std::vector<std::uint32_t> expected(std::uint64_t first, std::uint64_t end) const
    {
        std::vector<std::uint32_t> memory(size);
        write(memory.data(), first, end);
        return memory;
    }
    // Describes the cache at `memory`.
    kv::Description describe(const std::uint32_t *memory) const
    {
        kv::Description desc;
        desc.model = "llama";
        desc.revision = "main";
        desc.cache = "u32";
        desc.rope = "default";
        desc.tp_rank = rank;
        desc.tp_size = shape.tp;
        desc.groups = {kv::Group::full(shape.block_tokens), kv::Group::window(shape.block_tokens, kv_window),
                       kv::Group::latent(shape.block_tokens)};
        for (std::uint32_t i = 0; i < model_layer_count; i++) desc.layers.push_back(layer(i, memory));
        return desc;
    }
    kv::Layout layout(const std::uint32_t *memory) const { return must(kv::Layout::create(describe(memory))); }
    // The blocks that hold a sequence of `tokens` tokens, without those that the window has left behind.
    std::vector<kv::BlockList> lists(std::uint64_t tokens = kv_tokens) const
    {
        std::vector<kv::BlockList> lists;
        for (std::uint32_t layer = 0; layer < model_layer_count; layer++) {
            const bool window = model_layers[layer].kind == FERRY_KV_GROUP_WINDOW && tokens > kv_window;
            const std::uint64_t first = window ? (tokens - kv_window) / shape.block_tokens : 0;
            const std::uint64_t end = (tokens + shape.block_tokens - 1) / shape.block_tokens;
            const ferry::Span<const std::uint32_t> all = ids[layer];
            lists.emplace_back(ferry::Span<const std::uint32_t>(all.data() + first, end - first),
                               first * shape.block_tokens);
        }
        return lists;
    }

    Shape shape;
    std::uint32_t rank;
    std::size_t size = 0; // in elements
    std::vector<std::uint32_t> ids[model_layer_count];

private:
    std::uint64_t row() const { return kv_elements + shape.padding; }
    kv::Layer layer(std::uint32_t i, const std::uint32_t *memory) const
    {
        kv::Layer layer;
        layer.name = model_layers[i].name;
        layer.group = i;
        layer.heads = model_layers[i].heads;
        layer.pairs = model_layers[i].pairs;
        layer.elements = kv_elements;
        layer.element_bytes = sizeof(std::uint32_t);
        layer.address = memory + starts[i];
        layer.blocks = kv_blocks;
        layer.arrangement = shape.arrangement;
        if (shape.padding != 0) {
            const auto stride = [&](Row next) { return (place(i, next) - starts[i]) * sizeof(std::uint32_t); };
            layer.arrangement = kv::Arrangement::none;
            layer.strides = {stride({1, 0, 0, 0}), stride({0, 1, 0, 0}), stride({0, 0, 1, 0}), stride({0, 0, 0, 1}),
                             sizeof(std::uint32_t)};
        }
        return layer;
    }

    std::size_t starts[model_layer_count] = {};
};

// One rank with its engine and its cache. Waits of a minute are for busy machines.
struct Rank {
    explicit Rank(Shape shape, std::uint32_t tp_rank = 0, ferry::Timeout silence = std::chrono::seconds(60))
        : Rank(shape, tp_rank, kv::CacheOptions().silence(silence))
    {
    }
    Rank(Shape shape, std::uint32_t tp_rank, const kv::CacheOptions &options)
        : model(shape, tp_rank), engine(open_engine()), memory(must(engine.alloc(model.bytes()))),
          cache(must(kv::Cache::open(engine, model.layout(words()), memory, options)))
    {
    }
    std::uint32_t *words() const { return memory.as<std::uint32_t>().data(); }
    ferry::Peer connect(const Rank &other) const
    {
        return must(engine.connect(must(other.engine.address()), patience));
    }
    // True if the memory has these tokens, and zeros in all other places.
    bool holds(std::uint64_t first, std::uint64_t end) const
    {
        const std::vector<std::uint32_t> expected = model.expected(first, end);
        return std::equal(expected.begin(), expected.end(), words());
    }
    void offer(const kv::Id &id, const kv::OfferOptions &options = {}) const
    {
        must(cache.offer(id, model.lists(), options));
    }
    // Computes the whole sequence and seals the offer.
    void finish(const kv::Id &id) const
    {
        model.write(words(), 0, kv_tokens);
        must(cache.ready(id, kv_tokens));
        must(cache.seal(id, kv_tokens));
    }
    void take(const kv::Id &id, ferry::Span<const ferry::Peer> producers, const kv::TakeOptions &options = {}) const
    {
        must(cache.take(id, producers, model.lists(), kv_tokens, options));
    }
    // The next event.
    kv::Event next() const
    {
        ferry::Result<kv::Event> event = cache.wait(patience);
        if (!event) give_up(event.pending() ? "no event came" : event.message());
        return std::move(event).value();
    }
    // The terminal event, after the events of layers.
    kv::Event end() const
    {
        for (;;) {
            kv::Event event = next();
            if (event.terminal()) return event;
        }
    }

    Model model;
    ferry::Engine engine;
    ferry::Memory memory;
    kv::Cache cache;
};

// Ranks cannot be moved, so a deque holds them.
inline std::deque<Rank> instance(Shape shape)
{
    std::deque<Rank> ranks;
    for (std::uint32_t rank = 0; rank < shape.tp; rank++) ranks.emplace_back(shape, rank);
    return ranks;
}

inline std::vector<ferry::Peer> connect_all(const Rank &consumer, const std::deque<Rank> &producers)
{
    std::vector<ferry::Peer> peers;
    for (const Rank &producer : producers) peers.push_back(consumer.connect(producer));
    return peers;
}

#endif
