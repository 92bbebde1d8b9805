// Two prefill ranks hand the KV cache of a sequence to a decode rank that arranges it otherwise. Each of ferry's
// languages has this program; any three can talk.
//
//   kv_handoff prefill RANK               prints "ADDRESS host:port", reads an id, and offers its heads layer by layer
//   kv_handoff decode ADDRESS0 ADDRESS1   prints "ID hex", takes, and checks the bytes; exits with 3 if the take fails
#include <ferry_kv.hpp>

#include <cstdio>
#include <thread>

namespace kv = ferry::kv;
constexpr std::uint32_t layers = 32, blocks = 16, block_tokens = 16, tokens = blocks * block_tokens, elements = 64;

// The prefill ranks share the four heads. The decode rank has all of them, and the sequence's blocks in reverse.
struct Rank {
    Rank(bool is_prefill, std::uint32_t number) : prefill(is_prefill), rank(number), heads(is_prefill ? 2 : 4)
    {
        kv::Description desc;
        desc.model = "example", desc.revision = "1", desc.cache = "fp16", desc.rope = "none";
        desc.tp_rank = rank, desc.tp_size = 4 / heads, desc.groups = {kv::Group::full(block_tokens)};
        const char *order = prefill ? "block pair head token element" : "block pair token head element";
        const std::vector<std::uint64_t> shape = {blocks, 2, prefill ? heads : block_tokens,
                                                  prefill ? block_tokens : heads, elements};
        for (std::uint32_t i = 0; i < layers; i++)
            desc.layers.push_back(kv::Layer::of("layers." + std::to_string(i), order, &words[i * size], shape));
        for (std::uint32_t i = 0; i < blocks; i++) ids.push_back(prefill ? i : blocks - 1 - i);
        cache = kv::Cache::open(engine, kv::Layout::create(desc).value(), memory).value();
    }
    // Calls `each(element, value)` for all elements of a layer, with the value that the model computes.
    template <class Each> void visit(std::uint32_t layer, Each each) const
    {
        for (std::uint32_t i = 0; i < size; i++) {
            const auto row = i / elements % (heads * block_tokens), pair = i / elements / (heads * block_tokens);
            const auto head = rank * heads + (prefill ? row / block_tokens : row % heads);
            const auto token = ids[pair / 2] * block_tokens + (prefill ? row % block_tokens : row / heads);
            const auto value = layer * 7919 + pair % 2 * 104729 + head * 1299709 + token * 31 + i % elements;
            each(words[layer * size + i], static_cast<std::uint16_t>(value));
        }
    }
    // Prints each event up to the terminal one, after which the blocks are this rank's again. 3 if it is a failure.
    int end() const
    {
        kv::Event event = cache.wait().value();
        for (; !event.terminal(); event = cache.wait().value()) std::printf("LAYERS %u\n", event->layers);
        if (event->status == FERRY_OK) return std::puts(to_string(event.kind())), 0;
        std::printf("ended: %s %s", to_string(event.kind()), ferry_status_name(event->status));
        if (const ferry::Peer peer(engine, event->peer); peer)
            std::printf(" by rank %u (peer %s)", event->rank, peer.info().value().address);
        return std::printf(": %s; %d tokens valid\n", event.message(), static_cast<int>(event->valid_tokens)), 3;
    }

    const bool prefill;
    const std::uint32_t rank, heads, size = blocks * 2 * heads * block_tokens * elements;
    ferry::Engine engine = ferry::Engine::open().value();
    ferry::Memory memory = engine.alloc(layers * size * sizeof(std::uint16_t)).value();
    ferry::Span<std::uint16_t> words = memory.as<std::uint16_t>();
    std::vector<std::uint32_t> ids; // the sequence's blocks
    kv::Cache cache;
};

int main(int argc, char **argv)
try {
    if (argc != 3 && argc != 4) return std::fputs("usage: prefill RANK | decode ADDRESS0 ADDRESS1\n", stderr), 2;
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
    const Rank rank(argc == 3, argc == 3 && argv[2][0] == '1');
    if (rank.prefill) {
        char text[FERRY_KV_ID_TEXT_BYTES] = "";
        std::printf("ADDRESS %s\n", rank.engine.address().value().c_str());
        (void)!std::scanf("%32s", text);
        const kv::Id id = kv::Id::parse(text).value();
        rank.cache.offer(id, kv::BlockList(rank.ids)).value();
        ferry::Result<void> made; // fails when the offer has ended; its event says why
        for (std::uint32_t layer = 0; made && layer < layers; layer++) {
            rank.visit(layer, [](std::uint16_t &element, std::uint16_t value) { element = value; });
            std::this_thread::sleep_for(std::chrono::milliseconds(5)); // the model's work
            made = rank.cache.ready(id, tokens, layer, layer + 1);
        }
        if (made) made = rank.cache.seal(id, tokens);
        return rank.end();
    }
    const ferry::Peer peers[] = {rank.engine.connect(argv[2]).value(), rank.engine.connect(argv[3]).value()};
    const kv::Id id = kv::new_id().value();
    rank.cache.take(id, peers, kv::BlockList(rank.ids), tokens, kv::TakeOptions().layers()).value();
    std::printf("ID %s\n", to_string(id).c_str());
    int status = rank.end();
    for (std::uint32_t layer = 0; status == 0 && layer < layers; layer++)
        rank.visit(layer, [&](std::uint16_t element, std::uint16_t value) { status |= element != value; });
    return status;
} catch (const std::exception &error) {
    return std::fprintf(stderr, "kv_handoff: %s\n", error.what()), 1;
}
