// Two prefill ranks hand the KV cache of a sequence to one decode rank, layer by layer, by ferry_kv.hpp. The two sides
// divide the cache differently: heads, blocks and the order of the dimensions. docs/kv.md has the words.
//
//   kv                       all three in this process, as threads
//   kv prefill RANK          prints "ADDRESS host:port", serves one request, and prints OK
//   kv decode ADDRESS...     asks the prefill ranks, takes, checks each element, and prints OK
#include <ferry_kv.hpp>

#include <cstdio>
#include <cstring>
#include <future>
#include <stdexcept>

namespace {

using namespace std::chrono_literals;
namespace kv = ferry::kv;

constexpr std::uint32_t layers = 8, heads = 4, elements = 16, blocks = 16, prefill_ranks = 2;
constexpr std::uint64_t tokens = 100;

// How one side lays its cache out. The rest of a layout is the model's.
struct Side {
    std::uint32_t ranks, block_tokens;
    kv::Arrangement arrangement;
};
constexpr Side prefill_side = {prefill_ranks, 16, kv::Arrangement::block_pair_head_token};
constexpr Side decode_side = {1, 32, kv::Arrangement::pair_block_token_head};

// One rank: an engine, memory for the layers, and the cache over both.
struct Worker {
    Worker(Side of, std::uint32_t number)
        : side(of), rank(number), engine(ferry::Engine::open().value()),
          memory(engine.alloc(layers * layer_floats() * sizeof(float)).value()),
          cache(kv::Cache::open(engine, layout(), memory).value())
    {
        for (std::uint32_t i = 0; i < tokens; i += side.block_tokens) // scattered, as an allocator gives them
            ids.push_back((3 + i / side.block_tokens * 7) % blocks);
    }
    std::uint32_t heads_here() const { return heads / side.ranks; }
    std::size_t layer_floats() const { return std::size_t{blocks} * 2 * heads_here() * side.block_tokens * elements; }
    kv::Layout layout() const
    {
        kv::Description desc;
        desc.model = "llama";
        desc.revision = "main";
        desc.cache = "fp32";
        desc.rope = "default";
        desc.tp_rank = rank;
        desc.tp_size = side.ranks;
        desc.groups = {kv::Group::full(side.block_tokens)};
        for (std::uint32_t i = 0; i < layers; i++) {
            kv::Layer layer;
            layer.name = "model.layers." + std::to_string(i) + ".self_attn.attn";
            layer.heads = heads;
            layer.elements = elements;
            layer.element_bytes = sizeof(float);
            layer.address = memory.as<float>().data() + i * layer_floats();
            layer.blocks = blocks;
            layer.arrangement = side.arrangement;
            desc.layers.push_back(layer);
        }
        return kv::Layout::create(desc).value();
    }
    // Calls `each(float &, value)` for all elements of a layer that this rank holds.
    template <class Each> void walk(std::uint32_t layer, Each each) const
    {
        float *start = memory.as<float>().data() + layer * layer_floats();
        for (std::uint64_t token = 0; token < tokens; token++)
            for (std::uint32_t pair = 0; pair < 2; pair++)
                for (std::uint32_t head = 0; head < heads_here(); head++)
                    for (std::uint32_t element = 0; element < elements; element++)
                        each(start[place(token, pair, head) + element],
                             static_cast<float>(((token * 2 + pair) * heads + rank * heads_here() + head) * elements +
                                                element + layer));
    }

    Side side;
    std::uint32_t rank;
    ferry::Engine engine;
    ferry::Memory memory;
    kv::Cache cache;
    std::vector<std::uint32_t> ids; // the sequence's blocks

private:
    std::size_t place(std::uint64_t token, std::uint32_t pair, std::uint32_t head) const
    {
        const std::size_t block = ids[token / side.block_tokens], offset = token % side.block_tokens;
        const std::size_t here = heads_here(), in_block = side.block_tokens;
        if (side.arrangement == kv::Arrangement::block_pair_head_token)
            return (((block * 2 + pair) * here + head) * in_block + offset) * elements;
        return (((pair * blocks + block) * in_block + offset) * here + head) * elements;
    }
};

// Waits for the terminal event. Then the blocks are this worker's again.
void await_end(const Worker &worker, std::uint32_t expected)
{
    for (;;) {
        const kv::Event event = worker.cache.wait(60s).value();
        if (event->kind == FERRY_KV_EVENT_LAYERS) std::printf("%u layers may be read\n", event->layers);
        if (!event.terminal()) continue;
        if (event->kind != expected) throw std::runtime_error(event.message());
        return;
    }
}

// Serves one request. `told` gets the address.
template <class Told> void prefill(std::uint32_t rank, Told told)
{
    const Worker worker(prefill_side, rank);
    const ferry::Queue requests = worker.engine.queue(FERRY_QUEUE_NOTIFICATIONS, 8).value();
    told(worker.engine.address().value());
    const ferry::Event request = requests.next(60s).value();
    kv::Id id;
    if (request.bytes().size() != sizeof id.bytes) throw std::runtime_error("the request is no id");
    std::memcpy(id.bytes, request.bytes().data(), sizeof id.bytes);

    worker.cache.offer(id, kv::BlockList(worker.ids)).value();
    for (std::uint32_t layer = 0; layer < layers; layer++) {
        worker.walk(layer, [](float &element, float value) { element = value; }); // the model computes
        worker.cache.ready(id, tokens, layer, layer + 1).value();                 // and the layer goes
    }
    worker.cache.seal(id, tokens).value();
    await_end(worker, FERRY_KV_EVENT_SENT);
}

void decode(const std::vector<std::string> &addresses)
{
    const Worker worker(decode_side, 0);
    std::vector<ferry::Peer> producers;
    for (const std::string &address : addresses) producers.push_back(worker.engine.connect(address, 10s).value());
    // This program is its own router: it draws the id, and tells it to the producer's ranks.
    const kv::Id id = kv::new_id().value();
    const auto options = kv::TakeOptions().layers().deadline(60s);
    worker.cache.take(id, producers, kv::BlockList(worker.ids), tokens, options).value();
    for (const ferry::Peer &producer : producers) producer.notify({id.bytes, sizeof id.bytes}).value();
    await_end(worker, FERRY_KV_EVENT_RECEIVED);
    for (std::uint32_t layer = 0; layer < layers; layer++)
        worker.walk(layer, [](const float &element, float value) {
            if (element != value) throw std::runtime_error("an element is wrong");
        });
}

void all_here()
{
    std::vector<std::future<void>> ranks;
    std::vector<std::string> addresses;
    for (std::uint32_t rank = 0; rank < prefill_ranks; rank++) {
        std::promise<std::string> address;
        std::future<std::string> told = address.get_future();
        ranks.push_back(std::async(std::launch::async, [rank, told = std::move(address)]() mutable {
            prefill(rank, [&](const std::string &at) { told.set_value(at); });
        }));
        addresses.push_back(told.get());
    }
    decode(addresses);
    for (std::future<void> &rank : ranks) rank.get();
}

} // namespace

int main(int argc, char **argv)
{
    try {
        const std::vector<std::string> words(argv + 1, argv + argc);
        if (words.empty()) {
            all_here();
        } else if (words.size() == 2 && words[0] == "prefill" && std::stoul(words[1]) < prefill_ranks) {
            prefill(static_cast<std::uint32_t>(std::stoul(words[1])), [](const std::string &address) {
                std::printf("ADDRESS %s\n", address.c_str());
                std::fflush(stdout);
            });
        } else if (words.size() == 1 + prefill_ranks && words[0] == "decode") {
            decode({words.begin() + 1, words.end()});
        } else {
            throw std::runtime_error("usage: kv | kv prefill RANK | kv decode ADDRESS ADDRESS");
        }
        std::puts("OK");
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "kv: %s\n", error.what());
        return 1;
    }
}
