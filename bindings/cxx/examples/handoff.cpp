// A prefill worker hands a KV cache to a decode worker, layer by layer. Each of ferry's languages has this program;
// any two can talk.
//
//   handoff decode                        prints "ADDRESS host:port", and OK when it has a whole cache
//   handoff prefill HOST:PORT [DIES_IN]   pushes a cache; with DIES_IN it kills itself while that layer moves
#include <ferry.hpp>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace {

using namespace std::chrono_literals;
constexpr std::size_t layers = 64, blocks = 16, block_bytes = 16384, layer_bytes = blocks * block_bytes;

std::byte content(std::size_t layer, std::size_t i) { return static_cast<std::byte>(layer * 37 + i * 11); }

void compute(const ferry::Memory &cache, std::size_t layer)
{
    for (std::size_t i = 0; i < layer_bytes; i++) cache.data()[layer * layer_bytes + i] = content(layer, i);
}

void check(const ferry::Memory &cache, std::size_t layer, const char *whose)
{
    for (std::size_t i = 0; i < layer_bytes; i++)
        if (cache.data()[layer * layer_bytes + i] != content(layer, i))
            throw std::runtime_error("layer " + std::to_string(layer) + " is wrong in the " + whose + " cache");
}

ferry::Memory allocate(const ferry::Engine &engine)
{
    return engine.alloc(layers * layer_bytes, ferry::AllocOptions().name("kv")).value();
}

// Pulls the whole cache of the peer, and checks the copy.
void pull(const ferry::Engine &engine, const ferry::Peer &peer)
{
    const ferry::Memory copy = engine.alloc(layers * layer_bytes).value();
    ferry::UniformBlocks both(copy.data(), peer.region("kv").value(), layer_bytes, block_bytes);
    peer.submit(ferry::Op::read, both.range(0, layers).blocks(blocks)).value().wait().check();
    for (std::size_t layer = 0; layer < layers; layer++) check(copy, layer, "pulled");
}

void decode()
{
    const ferry::Engine engine = ferry::Engine::open().value();
    const ferry::Memory cache = allocate(engine);
    const auto what = FERRY_QUEUE_NOTIFICATIONS | FERRY_QUEUE_PEERS | FERRY_QUEUE_PEER_STATES;
    const ferry::Queue queue = engine.queue(what, 8).value();
    std::printf("ADDRESS %s\n", engine.address().value().c_str());
    std::fflush(stdout);
    ferry::Peer prefill;
    std::size_t come = 0;
    for (;;) {
        const ferry::Event event = queue.next(60s).value();
        const std::string text(event.text());
        if (event->kind == FERRY_EVENT_PEER_UP) {
            prefill = ferry::Peer(engine, event->peer);
            come = 0;
        } else if (event->kind == FERRY_EVENT_NOTIFICATION && text == "pull") {
            break;
        } else if (event->kind == FERRY_EVENT_NOTIFICATION) {
            // Every byte of the layer is here: the notification comes after the data.
            check(cache, std::stoul(text.substr(std::strlen("layer "))), "pushed");
            come++;
        } else if (event->kind != FERRY_EVENT_LATE_APPLY && prefill && event->peer == prefill.handle()) {
            // PEER_DOWN, or PEER_LOST.
            // After the fence nothing of the dead worker lands in the cache: the next one may have it.
            prefill.fence(10s).check();
            std::printf("LOST after %zu layers: %s\n", come, text.c_str());
            std::fflush(stdout);
            prefill = ferry::Peer();
        }
    }
    if (come != layers) throw std::runtime_error(std::to_string(come) + " layers have come");
    pull(engine, prefill);
    prefill.notify("done").check();
}

void prefill(const char *address, std::size_t dies_in)
{
    const ferry::Engine engine = ferry::Engine::open().value();
    const ferry::Memory cache = allocate(engine);
    const ferry::Queue queue = engine.queue(FERRY_QUEUE_NOTIFICATIONS, 8).value();
    const ferry::Peer peer = engine.connect(address, 10s).value();
    ferry::UniformBlocks both(cache.data(), peer.region("kv").value(), layer_bytes, block_bytes);
    std::vector<ferry::Transfer> pushes;
    for (std::size_t layer = 0; layer < layers; layer++) {
        compute(cache, layer);
        const std::string told = "layer " + std::to_string(layer);
        both.range(layer).blocks(blocks);
        pushes.push_back(peer.submit(ferry::Op::write, both, ferry::TransferOptions().notify(told)).value());
        if (layer == dies_in) std::raise(SIGKILL);
    }
    engine.wait_all(pushes).check();
    peer.notify("pull").check();
    if (queue.next(60s).value().text() != "done") throw std::runtime_error("the decoder is not done");
}

} // namespace

int main(int argc, char **argv)
{
    try {
        if (argc == 2 && std::strcmp(argv[1], "decode") == 0) {
            decode();
        } else if ((argc == 3 || argc == 4) && std::strcmp(argv[1], "prefill") == 0) {
            prefill(argv[2], argc == 4 ? std::stoul(argv[3]) : layers);
        } else {
            throw std::runtime_error("usage: handoff decode | prefill HOST:PORT [DIES_IN]");
        }
        std::puts("OK");
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "handoff: %s\n", error.what());
        return 1;
    }
}
