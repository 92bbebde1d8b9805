// The transfer side of an inference engine's worker. A prefill worker computes requests layer by layer and
// pushes the KV blocks of each layer to a decode worker at once. One queue reports finished transfers, and
// only then their blocks return to the free list. The notification after a request's last layer tells the
// decode worker. Both run here as threads with their own engines.
//
// The loop allocates nothing and waits for no single transfer: storage for events, tables and requests is
// made once, and the loop sleeps in poll only when no other work is left.
#include <ferry.hpp>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

using namespace std::chrono_literals;

constexpr std::size_t layers = 16, pool_blocks = 64, request_blocks = 8, requests_total = 200;
constexpr std::uint64_t block_bytes = 4096, layer_bytes = pool_blocks * block_bytes;
using Blocks = std::array<std::int32_t, request_blocks>;

// The 8 bytes of a request at each place, so that a misplaced block shows.
std::uint64_t word(std::uint64_t request, std::uint64_t layer, std::uint64_t block, std::uint64_t place)
{
    return request << 40 | layer << 32 | block << 16 | place;
}

// The notification after a request's last layer: where the decode worker finds the request.
struct Arrival {
    std::uint64_t request;
    Blocks blocks;
};

// Free blocks: here the prefill worker has half of its own pool, from block 0, and borrows half of the decode
// worker's cache, from block 32. A request waits until enough blocks are free.
class FreeList {
public:
    explicit FreeList(std::int32_t first)
    {
        // Scattered, as after some use.
        for (std::int32_t i = 0; i < half; i++) ids_[count_++] = first + i * 5 % half;
    }
    std::optional<Blocks> take()
    {
        if (count_ < request_blocks) return {};
        Blocks blocks;
        for (std::int32_t &id : blocks) id = ids_[--count_];
        return blocks;
    }
    void put(const Blocks &blocks)
    {
        for (std::int32_t id : blocks) ids_[count_++] = id;
    }

private:
    static constexpr std::int32_t half = pool_blocks / 2;
    std::array<std::int32_t, half> ids_{};
    std::size_t count_ = 0;
};

void wait_for(const ferry::Queue &queue)
{
    pollfd entry = {queue.fd().value(), POLLIN, 0};
    if (poll(&entry, 1, 30000) <= 0) throw std::runtime_error("nothing happened for 30 seconds");
}

class Prefill {
public:
    explicit Prefill(const std::string &decode)
        : cache_(engine_.alloc(layers * layer_bytes).value()),
          queue_(engine_.queue(FERRY_QUEUE_TRANSFERS | FERRY_QUEUE_NOTIFICATIONS, slots_max * layers).value()),
          peer_(engine_.connect(decode, 30s).value()), remote_(peer_.region("kv").value())
    {
        const auto local = reinterpret_cast<std::uintptr_t>(cache_.data());
        for (std::size_t layer = 0; layer < layers; layer++) {
            local_base_[layer] = local + layer * layer_bytes;
            remote_base_[layer] = remote_.address + layer * layer_bytes;
        }
    }

    void run()
    {
        while (finished_ < requests_total || under_way_ > 0) {
            bool moved = start_requests();
            moved = drain() || moved;
            if (!moved) wait_for(queue_);
        }
    }

private:
    static constexpr std::size_t slots_max = 4;
    // A request in progress: its blocks belong to the transfers until the last layer is done.
    struct Slot {
        std::uint64_t request = 0;
        Blocks local{}, remote{};
        std::size_t layers_left = 0;
    };

    // Computes and submits while slots and blocks are free on both sides.
    bool start_requests()
    {
        bool started = false;
        for (Slot &slot : slots_) {
            if (slot.layers_left > 0 || started_ == requests_total) continue;
            const auto local = local_free_.take();
            if (!local) return started;
            const auto remote = remote_free_.take();
            if (!remote) {
                local_free_.put(*local);
                return started;
            }
            slot = {started_++, *local, *remote, layers};
            under_way_ += layers;
            for (std::size_t layer = 0; layer < layers; layer++) submit_layer(slot, layer);
            started = true;
        }
        return started;
    }

    void submit_layer(Slot &slot, std::size_t layer)
    {
        compute(slot, layer);
        const std::size_t index = static_cast<std::size_t>(&slot - slots_.data());
        // ORDERED: the notification of the last layer comes after all layers.
        ferry::TransferOptions options;
        options.queue(queue_).user_data(index).flags(FERRY_TRANSFER_ORDERED);
        const Arrival arrival = {slot.request, slot.remote};
        if (layer + 1 == layers) options.notify(ferry::Bytes(&arrival, sizeof arrival));
        const ferry::BlockLayers tables = {local_base_[layer], remote_base_[layer], block_bytes, block_bytes,
                                           block_bytes,        remote_.region};
        const ferry::Blocks blocks = ferry::Blocks::create(tables, slot.local, slot.remote).value();
        // The transfer's event takes over its ownership.
        peer_.submit(ferry::Op::write, blocks, options).value().detach();
    }

    // Stands for the model: writes the layer's bytes into the request's blocks.
    void compute(const Slot &slot, std::size_t layer)
    {
        for (std::size_t i = 0; i < request_blocks; i++) {
            const std::size_t offset = layer * layer_bytes + static_cast<std::size_t>(slot.local[i]) * block_bytes;
            auto *words = reinterpret_cast<std::uint64_t *>(cache_.data() + offset);
            for (std::size_t place = 0; place < block_bytes / 8; place++) words[place] = word(slot.request, layer, i, place);
        }
    }

    // Takes finished transfers and frees their blocks. The decode worker tells which of its blocks are free
    // again.
    bool drain()
    {
        const ferry::Span<ferry::Event> events = queue_.drain(events_).value();
        for (const ferry::Event &event : events) {
            if (event->kind == FERRY_EVENT_TRANSFER) {
                const ferry::Transfer transfer(engine_, event->transfer);
                transfer.wait(0ns).value(); // throws why it failed
                Slot &slot = slots_[event->user_data];
                under_way_--;
                if (--slot.layers_left == 0) local_free_.put(slot.local);
            } else if (event->kind == FERRY_EVENT_NOTIFICATION && event.bytes().size() == sizeof(Blocks)) {
                Blocks blocks;
                std::memcpy(blocks.data(), event.bytes().data(), sizeof blocks);
                remote_free_.put(blocks);
                finished_++;
            }
        }
        return !events.empty();
    }

    ferry::Engine engine_ = ferry::Engine::open().value();
    ferry::Memory cache_;
    ferry::Queue queue_;
    ferry::Peer peer_;
    ferry::RegionInfo remote_;
    std::array<std::uint64_t, layers> local_base_{}, remote_base_{};
    std::array<Slot, slots_max> slots_{};
    std::array<ferry::Event, 32> events_;
    FreeList local_free_{0}, remote_free_{32};
    std::uint64_t started_ = 0, finished_ = 0;
    std::size_t under_way_ = 0;
};

class Decode {
public:
    std::string address() const { return engine_.address().value(); }

    // Checks each request at its destination, and frees its blocks.
    void run()
    {
        for (std::uint64_t arrived = 0; arrived < requests_total;) {
            const ferry::Span<ferry::Event> events = inbox_.drain(events_).value();
            for (const ferry::Event &event : events) {
                Arrival arrival;
                if (event.bytes().size() != sizeof arrival) throw std::runtime_error("a strange notification");
                std::memcpy(&arrival, event.bytes().data(), sizeof arrival);
                check(arrival);
                arrived++;
                ferry::Peer(engine_, event->peer).notify(arrival.blocks).value();
            }
            if (events.empty()) wait_for(inbox_);
        }
    }

private:
    void check(const Arrival &arrival) const
    {
        for (std::size_t layer = 0; layer < layers; layer++) {
            for (std::size_t i = 0; i < request_blocks; i++) {
                const std::size_t offset = layer * layer_bytes + static_cast<std::size_t>(arrival.blocks[i]) * block_bytes;
                const auto *words = reinterpret_cast<const std::uint64_t *>(cache_.data() + offset);
                for (std::size_t place = 0; place < block_bytes / 8; place++)
                    if (words[place] != word(arrival.request, layer, i, place)) throw std::runtime_error("a misplaced word");
            }
        }
    }

    ferry::Engine engine_ = ferry::Engine::open().value();
    ferry::Memory cache_ = engine_.alloc(layers * layer_bytes, ferry::AllocOptions().name("kv")).value();
    ferry::Queue inbox_ = engine_.queue(FERRY_QUEUE_NOTIFICATIONS, 1).value();
    std::array<ferry::Event, 32> events_;
};

} // namespace

int main()
{
    try {
        Decode decode;
        std::exception_ptr failed;
        std::thread prefill([&, address = decode.address()] {
            try {
                Prefill(address).run();
            } catch (...) {
                failed = std::current_exception();
            }
        });
        try {
            decode.run();
        } catch (const std::exception &error) {
            std::fprintf(stderr, "decode: %s\n", error.what());
            std::_Exit(1); // the prefill worker would wait for ever
        }
        prefill.join();
        if (failed) std::rethrow_exception(failed);
        std::printf("worker: %zu requests, %zu layers of %zu blocks each, every word in its place\n", requests_total,
                    layers, request_blocks);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "worker: %s\n", error.what());
        return 1;
    }
}
