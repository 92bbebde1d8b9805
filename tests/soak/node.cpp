// A process of the soak (soak.py), in C++; node.c documents the commands and the memory.
#include <ferry.hpp>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <poll.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
constexpr std::uint64_t slots = 16, slot_bytes = 1 << 20, bad = std::uint64_t{1} << 63;
constexpr auto patience = 10s;

struct Notice {
    std::uint64_t slot, bytes, pieces, serial;
};

// Bytes that are not what they should be.
struct Corrupt : std::runtime_error {
    using std::runtime_error::runtime_error;
};

std::uint64_t turned(std::uint64_t place, const Notice &notice)
{
    const std::uint64_t piece = notice.bytes / notice.pieces;
    return (notice.pieces - 1 - place / piece) * piece + place % piece;
}

bool is_right(const std::byte *slot, const Notice &notice)
{
    for (std::uint64_t at = 0; at < notice.bytes; at += 8) {
        std::uint64_t word;
        std::memcpy(&word, slot + at, 8);
        if (word != (notice.serial << 32 | turned(at, notice) / 8)) return false;
    }
    return true;
}

// Checks what the notifications name, and acknowledges it.
class Checker {
public:
    Checker(const ferry::Memory &soak, const ferry::Queue &queue)
        : soak_(soak), queue_(queue), thread_([this] { run(); })
    {
    }
    ~Checker()
    {
        ending_ = true;
        thread_.join();
    }

private:
    void run()
    {
        ferry::Event storage[8];
        pollfd entry = {queue_.fd().value(), POLLIN, 0};
        while (!ending_) {
            const auto events = queue_.drain(storage).value();
            for (const ferry::Event &event : events) take(event);
            if (events.empty()) poll(&entry, 1, 200);
        }
    }
    void take(const ferry::Event &event)
    {
        Notice notice;
        if (event->kind != FERRY_EVENT_NOTIFICATION || event.bytes().size() != sizeof notice) return;
        std::memcpy(&notice, event.bytes().data(), sizeof notice);
        if (notice.slot >= slots || notice.bytes > slot_bytes || notice.pieces == 0) return;
        const bool right = is_right(soak_.data() + notice.slot * slot_bytes, notice);
        auto *words = reinterpret_cast<std::uint64_t *>(soak_.data() + slots * slot_bytes);
        __atomic_store_n(words + notice.slot, right ? notice.serial : notice.serial | bad, __ATOMIC_RELEASE);
    }

    const ferry::Memory &soak_;
    const ferry::Queue &queue_;
    std::atomic<bool> ending_{false};
    std::thread thread_;
};

// One round: WRITE, READ, and the peer's answer. Returns the microseconds of the WRITE.
double round_of(const ferry::Peer &peer, const ferry::RegionInfo &there, const ferry::Memory &here, const Notice &notice)
{
    const std::uint64_t piece = notice.bytes / notice.pieces, remote = there.address + notice.slot * slot_bytes;
    const std::uint64_t local = reinterpret_cast<std::uintptr_t>(here.data());
    std::byte *back = here.data() + slot_bytes;
    for (std::uint64_t k = 0; k < notice.bytes / 8; k++) {
        const std::uint64_t word = notice.serial << 32 | k;
        std::memcpy(here.data() + 8 * k, &word, 8);
    }
    std::vector<ferry::Request> requests;
    for (std::uint64_t at = 0; at < notice.bytes; at += piece)
        requests.push_back({local + at, remote + turned(at, notice), piece, there.region});
    const auto before = std::chrono::steady_clock::now();
    peer.write(requests, ferry::TransferOptions().notify(ferry::Bytes(&notice, sizeof notice))).value();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - before;
    std::memset(back, 0, notice.bytes);
    peer.read(ferry::Request{local + slot_bytes, remote, notice.bytes, there.region}).value();
    if (!is_right(back, notice)) throw Corrupt("what was read back");
    const ferry::Request acknowledgement = {local + 2 * slot_bytes, there.address + slots * slot_bytes + notice.slot * 8, 8,
                                            there.region};
    for (const auto end = before + patience; std::chrono::steady_clock::now() < end;) {
        std::uint64_t word;
        peer.read(acknowledgement).value();
        std::memcpy(&word, here.data() + 2 * slot_bytes, 8);
        if (word == notice.serial) return took.count();
        if (word == (notice.serial | bad)) throw Corrupt("what the peer found");
    }
    throw std::runtime_error("the peer did not answer");
}

std::string obey(const ferry::Engine &engine, std::istream &words)
{
    std::string address;
    Notice notice;
    std::uint64_t count;
    words >> address >> notice.slot >> notice.bytes >> notice.pieces >> count >> notice.serial;
    if (!words || notice.bytes > slot_bytes || notice.pieces == 0) return "FAILED no such command";
    std::ostringstream answer("OK", std::ios::ate);
    answer.precision(1);
    answer << std::fixed;
    try {
        const ferry::Peer peer = engine.connect(address.c_str(), patience).value();
        const ferry::RegionInfo there = peer.region("soak").value();
        const ferry::Memory here = engine.alloc(2 * slot_bytes + 64).value();
        for (std::uint64_t i = 0; i < count; i++, notice.serial++) answer << ' ' << round_of(peer, there, here, notice);
    } catch (const Corrupt &error) {
        return "CORRUPT " + std::string(error.what()) + ", serial " + std::to_string(notice.serial);
    } catch (const std::exception &error) {
        return "FAILED " + std::string(error.what());
    }
    return answer.str();
}

} // namespace

int main()
try {
    const ferry::Engine engine = ferry::Engine::open().value();
    const ferry::Memory soak = engine.alloc(slots * slot_bytes + slots * 8, ferry::AllocOptions().name("soak")).value();
    const ferry::Queue queue = engine.queue(FERRY_QUEUE_NOTIFICATIONS, 64).value();
    const Checker checker(soak, queue);
    std::cout << "ADDRESS " << engine.address().value() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string command;
        words >> command;
        std::cout << (command == "exchange" ? obey(engine, words) : "FAILED no such command") << std::endl;
    }
    return 0;
} catch (const std::exception &error) {
    std::cerr << "node: " << error.what() << '\n';
    return 1;
}
