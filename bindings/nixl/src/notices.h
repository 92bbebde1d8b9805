// Notifications between agents: how their bytes travel in ferry's notifications, and where received ones wait for the
// application.
#pragma once

#include <ferry.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nixl_abi.h"

namespace ferry_nixl {

// The most bytes of one notification. NIXL has no bound, but peers must not be able to fill an agent's memory.
inline constexpr std::size_t NOTICE_BYTES_MAX = 64 << 20;
// The most bytes of an agent's name.
inline constexpr std::size_t NAME_BYTES_MAX = 1024;

// Cuts a message of agent `sender` into pieces that fit ferry's notifications; at least one. `id` is the sender's own
// number of the message. The message is complete at the receiver when the last piece has come.
std::vector<std::string> cut(const std::string &sender, const std::string &message, std::uint64_t id);
// Returns a piece that ends message `id` early, because the transfer that was to carry the last piece has failed.
std::string give_up(const std::string &sender, std::uint64_t id);

// The received notifications of all peers. Only one thread may use it at a time.
class Spool {
public:
    // Takes in a piece. Pieces of one peer come in the order in which they were sent.
    void take(ferry_peer peer, const char *bytes, std::size_t length);
    // Adds a complete message.
    void put(const std::string &sender, const std::string &message);
    // Forgets the incomplete messages of a peer.
    void forget(ferry_peer peer);
    // Appends all complete messages to `out`, and forgets them.
    void give(notif_list_t &out);
    // True if the application must take messages before more are let in; the senders wait for their credits meanwhile.
    bool is_full() const { return bytes_held > HELD_MAX || complete.size() > MESSAGES_MAX; }

private:
    static constexpr std::size_t HELD_MAX = 256 << 20, MESSAGES_MAX = 1 << 20;
    // Bounds of one peer's incomplete messages: their number, and their bytes.
    static constexpr std::size_t UNFINISHED_MAX = 256, UNFINISHED_BYTES_MAX = 2 * NOTICE_BYTES_MAX;
    struct Unfinished {
        std::string sender, bytes;
        std::uint64_t total;
    };
    struct Begun {
        std::map<std::uint64_t, Unfinished> messages;
        std::size_t bytes = 0;
    };
    static void drop(Begun &begun, std::uint64_t id);

    notif_list_t complete;
    // Bytes of complete messages.
    std::size_t bytes_held = 0;
    std::map<ferry_peer, Begun> unfinished;
};

} // namespace ferry_nixl
