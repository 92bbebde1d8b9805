// Shared by the C++ tests: two engines of one process, memory whose bytes encode their position, and waiting
// for events by poll. No sleeps.
#ifndef ENGINES_HPP
#define ENGINES_HPP

#include <ferry.hpp>

#include <cstdio>
#include <cstdlib>
#include <poll.h>

// Long enough that only a lost answer exceeds it.
inline constexpr ferry::Timeout patience = std::chrono::seconds(60);

[[noreturn]] inline void give_up(const char *what)
{
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

template <class T> T must(ferry::Result<T> result)
{
    if (!result) give_up(result.error().message);
    return std::move(result).value();
}

inline void must(ferry::Result<void> result)
{
    if (!result) give_up(result.error().message);
}

inline ferry::Engine open_engine(const char *transports = nullptr)
{
    ferry::Config config = must(ferry::Config::create());
    must(config.set("workers", 1));
    if (transports) must(config.set("transports", transports));
    return must(ferry::Engine::open(config));
}

// Engine a is connected to b, which has memory named "b". The engines are destroyed last.
struct Pair {
    explicit Pair(std::size_t size = 4096, const char *transports = nullptr)
        : a(open_engine(transports)), b(open_engine(transports)), a_memory(must(a.alloc(size))), b_memory(must(b.alloc(size, ferry::AllocOptions().name("b")))),
          peer(must(a.connect(must(b.address()), patience))), remote(must(peer.region("b")))
    {
    }
    // Returns the request that moves `length` bytes between these offsets.
    ferry::Request range(std::size_t a_offset, std::size_t b_offset, std::size_t length) const
    {
        return ferry::request(a_memory.data() + a_offset, length, remote, b_offset);
    }
    // Returns b's only peer.
    ferry::Peer back() const
    {
        auto peers = must(b.peers());
        if (peers.size() != 1) give_up("b has not one peer");
        return peers[0];
    }

    ferry::Engine a, b;
    ferry::Memory a_memory, b_memory;
    ferry::Peer peer;
    ferry::RegionInfo remote;
};

// Fills memory: each 8 bytes encode `seed` and their place.
inline void fill(const ferry::Memory &memory, std::uint64_t seed)
{
    std::uint64_t place = 0;
    for (std::uint64_t &word : memory.as<std::uint64_t>()) word = seed << 40 | ++place;
}

// Returns how many of these 8-byte words differ from the words that `fill` put at `from_offset`.
inline std::size_t misplaced(const ferry::Memory &memory, std::size_t offset, std::size_t length, std::uint64_t seed,
                             std::size_t from_offset)
{
    std::size_t wrong = 0;
    for (std::size_t step = 0; step + 8 <= length; step += 8) {
        const std::uint64_t word = memory.as<std::uint64_t>()[(offset + step) / 8];
        wrong += word != (seed << 40 | ((from_offset + step) / 8 + 1));
    }
    return wrong;
}

inline void wait_readable(const ferry::Queue &queue)
{
    pollfd entry = {must(queue.fd()), POLLIN, 0};
    if (poll(&entry, 1, 60000) != 1) give_up("no event came in 60 seconds");
}

// Waits until the queue has an event of this kind and takes it; skips others.
inline ferry::Event next_event(const ferry::Queue &queue, std::uint32_t kind)
{
    for (;;) {
        ferry::Event event;
        if (must(queue.drain(event)).empty()) wait_readable(queue);
        else if (event->kind == kind) return event;
    }
}

// The number of notifications that may wait at b's application (engine/src/limits.rs). hold_transfer sends one more, so
// its transfer stays pending until b's notifications are drained.
inline constexpr int notifications_ahead = 1024;
inline ferry::Transfer hold_transfer(const Pair &pair, ferry::TransferOptions options)
{
    for (int i = 0; i < notifications_ahead; i++) must(pair.peer.notify("ahead"));
    return must(pair.peer.submit(ferry::Op::write, pair.range(0, 0, 8), options.notify("ahead").deadline(ferry::forever)));
}

#endif
