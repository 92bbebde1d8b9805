// A remote agent: its address, and the session with its engine. NIXL expects no call to wait for a connection, so a
// separate thread dials, and transfers and notifications wait meanwhile.
#pragma once

#include <ferry.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "endpoint.h"
#include "nixl_abi.h"

namespace ferry_nixl {

// A transfer or notification for a peer. Each `Peer::reach` calls exactly one of the two functions, once.
class Waiter {
public:
    virtual ~Waiter() = default;
    virtual void reached(ferry_peer peer) = 0;
    virtual void failed(nixl_status_t status, const std::string &why) = 0;
};

// Counts the threads that dial, so that an agent ends after they have.
class Dials {
public:
    void begin();
    void end();
    void wait();

private:
    std::mutex mutex;
    std::condition_variable none;
    std::size_t running = 0;
};

class Peer;

// Bytes for the peer's application that go without a NIXL transfer. They go with a ferry transfer of their own, whose
// end is an event in the endpoint's queue; the engine then calls `end`.
class Notification : public Waiter, public std::enable_shared_from_this<Notification> {
public:
    // `otherwise`: bytes to send if these do not arrive; empty for none.
    Notification(std::shared_ptr<Peer> peer, std::string bytes, std::string otherwise)
        : peer(std::move(peer)), bytes(std::move(bytes)), otherwise(std::move(otherwise)) {}

    void reached(ferry_peer handle) override;
    void failed(nixl_status_t status, const std::string &why) override;
    // Called once if the bytes were submitted, with the status of their transfer.
    void end(ferry_status status);
    void cancel();
    // SUCCESS if the peer has the bytes, a failure, or IN_PROG when the time is over.
    nixl_status_t wait(std::uint64_t timeout_ns);

private:
    void conclude(nixl_status_t status);
    void send_otherwise();

    const std::shared_ptr<Peer> peer;
    const std::string bytes, otherwise;
    std::mutex mutex;
    std::condition_variable ended;
    ferry_transfer transfer = 0;
    bool again = false;
    nixl_status_t result = NIXL_IN_PROG;
};

class Peer : public std::enable_shared_from_this<Peer> {
public:
    // `handle`: of a peer that needs no connection, the agent itself.
    Peer(const Endpoint &from, Dials &dials, std::string agent, Address address, ferry_peer handle = 0)
        : from(from), dials(dials), agent(std::move(agent)), address(std::move(address)), handle(handle) {}

    // Calls the waiter now, or from another thread once the peer is connected or cannot be. Waiters are called in
    // order.
    void reach(std::shared_ptr<Waiter> waiter);
    // Connects now, and waits for the outcome.
    nixl_status_t connect();
    // Sends bytes to the peer's application, after those that were sent before, without waiting.
    std::shared_ptr<Notification> notify(std::string bytes, std::string otherwise = "");
    // A call with this handle has failed. Returns true if the session has ended: the next `reach` dials again.
    bool lost(ferry_peer handle);

    const Endpoint &from;
    Dials &dials;
    const std::string agent;
    const Address address;

private:
    void start_dialling();
    // Connects, and calls the waiters until none is left.
    void dial();

    std::mutex mutex;
    ferry_peer handle;
    bool dialling = false;
    std::deque<std::shared_ptr<Waiter>> waiting;
};

} // namespace ferry_nixl
