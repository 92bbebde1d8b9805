#include "peer.h"

#include <chrono>
#include <future>
#include <system_error>

#include "log.h"
#include "quiet.h"
#include "status.h"

namespace ferry_nixl {
namespace {

// The largest number of transfers and notifications that wait for one connection.
constexpr std::size_t WAITING_MAX = 65'536;

struct Arrival : Waiter {
    std::promise<nixl_status_t> outcome;
    void reached(ferry_peer) override { outcome.set_value(NIXL_SUCCESS); }
    void failed(nixl_status_t status, const std::string &why) override { outcome.set_value(refuse(status, why)); }
};

} // namespace

void Notification::reached(ferry_peer handle)
{
    ferry_transfer_options options = FERRY_TRANSFER_OPTIONS_INIT;
    options.queue = peer->from.queue;
    options.notify = bytes.data();
    options.notify_length = bytes.size();
    const Address &target = peer->address;
    const ferry_request word = {peer->from.address.mailbox, target.mailbox, 8, target.mailbox_region};
    ferry_error error = FERRY_ERROR_INIT;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        // The notification may have been cancelled while the peer was dialled.
        if (result != NIXL_IN_PROG) return;
        options.user_data = peer->from.underway.add(shared_from_this());
        if (ferry_transfer_submit(peer->from.engine, handle, FERRY_OP_WRITE, &word, 1, &options, &transfer, &error) ==
            FERRY_OK)
            return;
        peer->from.underway.take(options.user_data);
    }
    if (!again && peer->lost(handle)) {
        again = true;
        peer->reach(shared_from_this());
        return;
    }
    failed(nixl_status(error.status), text_of(error));
}

void Notification::failed(nixl_status_t status, const std::string &why)
{
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (result != NIXL_IN_PROG) return;
        conclude(refuse(status, "a notification for agent " + peer->agent + " was not sent: " + why));
    }
    send_otherwise();
}

void Notification::end(ferry_status status)
{
    {
        const std::lock_guard<std::mutex> lock(mutex);
        conclude(nixl_status(status));
    }
    if (status == FERRY_OK) return;
    log(Level::Warning, "a notification for agent " + peer->agent + " was not delivered: " + name_of(status));
    if (status != FERRY_ERR_CLOSED && status != FERRY_ERR_PEER_LOST) send_otherwise();
}

void Notification::send_otherwise()
{
    if (!otherwise.empty()) peer->notify(otherwise);
}

void Notification::conclude(nixl_status_t status)
{
    result = status;
    ended.notify_all();
}

void Notification::cancel()
{
    const std::lock_guard<std::mutex> lock(mutex);
    if (result != NIXL_IN_PROG) return;
    if (transfer == 0)
        conclude(NIXL_ERR_CANCELED);
    else
        ferry_transfer_cancel(peer->from.engine, transfer, nullptr);
}

nixl_status_t Notification::wait(std::uint64_t timeout_ns)
{
    std::unique_lock<std::mutex> lock(mutex);
    ended.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return result != NIXL_IN_PROG; });
    return result;
}

void Dials::begin()
{
    const std::lock_guard<std::mutex> lock(mutex);
    running++;
}

void Dials::end()
{
    const std::lock_guard<std::mutex> lock(mutex);
    if (--running == 0) none.notify_all();
}

void Dials::wait()
{
    std::unique_lock<std::mutex> lock(mutex);
    none.wait(lock, [this] { return running == 0; });
}

void Peer::reach(std::shared_ptr<Waiter> waiter)
{
    ferry_peer now = 0;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (handle != 0 && !dialling) {
            now = handle;
        } else if (waiting.size() < WAITING_MAX) {
            waiting.push_back(std::move(waiter));
            if (dialling) return;
            dialling = true;
        }
    }
    if (now != 0) {
        waiter->reached(now);
    } else if (waiter != nullptr) {
        waiter->failed(NIXL_ERR_NOT_ALLOWED, std::to_string(WAITING_MAX) + " wait for the connection to agent " + agent);
    } else {
        start_dialling();
    }
}

void Peer::start_dialling()
{
    dials.begin();
    try {
        quiet_thread([self = shared_from_this()]() mutable {
            self->dial();
            Dials &count = self->dials;
            self.reset();
            count.end();
        }).detach();
    } catch (const std::system_error &error) {
        std::deque<std::shared_ptr<Waiter>> batch;
        {
            const std::lock_guard<std::mutex> lock(mutex);
            batch.swap(waiting);
            dialling = false;
        }
        dials.end();
        for (const auto &waiter : batch)
            waiter->failed(NIXL_ERR_BACKEND, std::string("no thread to connect with: ") + error.what());
    }
}

void Peer::dial()
{
    ferry_peer found = 0;
    ferry_error error = FERRY_ERROR_INIT;
    // The setting connect_timeout_ms bounds the attempt.
    const ferry_status status = ferry_descriptor_import(from.engine, address.descriptor.data(),
                                                        address.descriptor.size(), FERRY_FOREVER, &found, &error);
    for (;;) {
        std::deque<std::shared_ptr<Waiter>> batch;
        {
            const std::lock_guard<std::mutex> lock(mutex);
            if (waiting.empty() || status != FERRY_OK) dialling = false;
            if (!dialling) handle = status == FERRY_OK ? found : 0;
            batch.swap(waiting);
        }
        if (status != FERRY_OK) {
            // Another incarnation answers there, or nothing does: the intended agent is gone.
            const bool gone = status == FERRY_ERR_STALE || status == FERRY_ERR_TIMEOUT;
            const nixl_status_t told = gone ? NIXL_ERR_REMOTE_DISCONNECT : nixl_status(status);
            for (const auto &waiter : batch) waiter->failed(told, "agent " + agent + " is not reached: " + text_of(error));
            return;
        }
        if (batch.empty()) return;
        for (const auto &waiter : batch) waiter->reached(found);
    }
}

bool Peer::lost(ferry_peer failed)
{
    ferry_peer_info info = FERRY_PEER_INFO_INIT;
    const ferry_status status = ferry_peer_get_info(from.engine, failed, &info, nullptr);
    if (status == FERRY_OK && info.state != FERRY_PEER_LOST) return false;
    const std::lock_guard<std::mutex> lock(mutex);
    if (handle == failed) handle = 0;
    return true;
}

nixl_status_t Peer::connect()
{
    const auto arrival = std::make_shared<Arrival>();
    std::future<nixl_status_t> outcome = arrival->outcome.get_future();
    reach(arrival);
    return outcome.get();
}

std::shared_ptr<Notification> Peer::notify(std::string bytes, std::string otherwise)
{
    auto notification = std::make_shared<Notification>(shared_from_this(), std::move(bytes), std::move(otherwise));
    reach(notification);
    return notification;
}

} // namespace ferry_nixl
