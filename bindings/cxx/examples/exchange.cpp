// Two programs exchange a MiB by READ and WRITE. Each of ferry's languages has this example, and any two of
// them can talk.
//
//   exchange serve              prints "ADDRESS host:port", waits for "done", checks its memory
//   exchange connect HOST:PORT  reads and checks the server's memory, writes it again, and then sends "done"
//
// Each prints OK and exits 0, or says why not and exits 1.
#include <ferry.hpp>

#include <cstdio>
#include <cstring>

namespace {

using namespace std::chrono_literals;
constexpr std::size_t size = 1 << 20;
constexpr auto patience = 30s;

// The bytes that the server starts with, and those that the client leaves there.
unsigned char first(std::size_t i) { return static_cast<unsigned char>(i * 7 + 3); }
unsigned char second(std::size_t i) { return static_cast<unsigned char>(i * 11 + 5); }

void fill(const ferry::Memory &memory, unsigned char (*pattern)(std::size_t))
{
    for (std::size_t i = 0; i < memory.size(); i++) memory.data()[i] = std::byte{pattern(i)};
}

bool holds(const ferry::Memory &memory, unsigned char (*pattern)(std::size_t))
{
    for (std::size_t i = 0; i < memory.size(); i++) {
        if (memory.data()[i] == std::byte{pattern(i)}) continue;
        std::fprintf(stderr, "byte %zu is %d, not %d\n", i, static_cast<int>(memory.data()[i]), pattern(i));
        return false;
    }
    return true;
}

// Waits for an event of this kind; false if none came in time. The timeout is for each event: other events are few.
bool await(const ferry::Queue &queue, std::uint32_t kind, const char *text, std::chrono::seconds timeout)
{
    for (;;) {
        ferry::Result<ferry::Event> event = queue.next(timeout);
        if (event.pending()) return false;
        event.check();
        if ((*event)->kind == kind && (text == nullptr || event->text() == text)) return true;
    }
}

bool serve()
{
    const ferry::Engine engine = ferry::Engine::open().value();
    const ferry::Memory memory = engine.alloc(size, ferry::AllocOptions().name("exchange")).value();
    const ferry::Queue queue = engine.queue(FERRY_QUEUE_NOTIFICATIONS | FERRY_QUEUE_PEERS, 8).value();
    fill(memory, first);
    std::printf("ADDRESS %s\n", engine.address().value().c_str());
    std::fflush(stdout);
    if (!await(queue, FERRY_EVENT_NOTIFICATION, "done", patience)) {
        std::fputs("nobody sent \"done\"\n", stderr);
        return false;
    }
    if (!holds(memory, second)) return false;
    std::puts("OK");
    // The client is told that its transfer is done before this engine goes; it ends the session.
    await(queue, FERRY_EVENT_PEER_LOST, nullptr, 5s);
    return true;
}

bool connect(const char *address)
{
    const ferry::Engine engine = ferry::Engine::open().value();
    const ferry::Memory memory = engine.alloc(size).value();
    const ferry::Peer peer = engine.connect(address, patience).value();
    const ferry::RegionInfo remote = peer.region("exchange").value();
    if (remote.length != size) {
        std::fputs("the region is not of 1 MiB\n", stderr);
        return false;
    }
    const ferry::Request all = ferry::request(memory.data(), size, remote);
    peer.read(all).value();
    if (!holds(memory, first)) return false;
    fill(memory, second);
    peer.write(all, ferry::TransferOptions().notify("done")).value();
    std::puts("OK");
    return true;
}

} // namespace

int main(int argc, char **argv)
{
    try {
        if (argc == 2 && std::strcmp(argv[1], "serve") == 0) return serve() ? 0 : 1;
        if (argc == 3 && std::strcmp(argv[1], "connect") == 0) return connect(argv[2]) ? 0 : 1;
        std::fputs("usage: exchange serve | exchange connect HOST:PORT\n", stderr);
    } catch (const ferry::Error &error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    return 1;
}
