// A transfer of NIXL, which is prepared once, posted many times, and released.
#pragma once

#include <ferry.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nixl_abi.h"
#include "peer.h"

namespace ferry_nixl {

// The notification of a transfer, cut into pieces. The last piece goes with the transfer, and so arrives after the
// data; the others go ahead.
struct Notice {
    std::vector<std::string> pieces;
    // The message to send if the transfer fails; empty for one piece.
    std::string given_up;
};

// Any thread may call any function. ferry's transfer is final exactly when nothing can touch its memory any more, so no
// call reports earlier that a transfer has ended or that a request is released.
class Request : public Waiter, public std::enable_shared_from_this<Request> {
public:
    Request(std::shared_ptr<Peer> peer, std::uint32_t op, std::vector<ferry_request> ranges)
        : peer(std::move(peer)), op(op), ranges(std::move(ranges)) {}

    // Starts the transfer. IN_PROG, SUCCESS if the transfer is done already, or the reason why it is not under way.
    nixl_status_t post(Notice notice);
    nixl_status_t check();
    // Cancels the transfer if it is under way. False if the transfer is not final within `timeout_ns`.
    bool end(std::uint64_t timeout_ns);
    // True if the request reads or writes memory of this process in the range.
    bool touches(std::uintptr_t address, std::size_t length) const;

    void reached(ferry_peer handle) override;
    void failed(nixl_status_t status, const std::string &why) override;

    // The core's first call to release an active request may be refused, and the second may not.
    bool was_refused = false;

private:
    enum class State { Idle, Waiting, Active, Final };

    // The caller of these functions holds the mutex.
    void conclude(nixl_status_t status, const std::string &why);
    void look();
    bool ahead_has_ended();

    const std::shared_ptr<Peer> peer;
    const std::uint32_t op;
    const std::vector<ferry_request> ranges;
    std::mutex mutex;
    State state = State::Idle;
    ferry_transfer transfer = 0;
    nixl_status_t outcome = NIXL_ERR_NOT_POSTED;
    Notice notice;
    // The pieces of the notification that went ahead. The transfer is done only with all of them.
    std::vector<std::shared_ptr<Notification>> ahead;
    nixl_status_t ahead_status = NIXL_SUCCESS;
    // True if a lost peer was dialled again for this post.
    bool again = false;
    bool cancelled = false;
    using Clock = std::chrono::steady_clock;
    Clock::time_point looked;
};

} // namespace ferry_nixl
