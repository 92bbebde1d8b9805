#include "request.h"

#include "log.h"
#include "status.h"

namespace ferry_nixl {
namespace {

constexpr auto AT_ONCE = std::chrono::microseconds(20);
constexpr std::uint64_t PATIENCE_NS = 200'000;

// Returns the status of a transfer for NIXL, which has one for all requests: the status of the first request that
// failed.
nixl_status_t status_of(ferry_engine *engine, ferry_transfer transfer, const ferry_result &result)
{
    ferry_request_result first = FERRY_REQUEST_RESULT_INIT;
    std::size_t count = 0;
    if (result.status == FERRY_ERR_PARTIAL &&
        ferry_transfer_results(engine, transfer, FERRY_RESULTS_FAILED, &first, sizeof first, 1, &count, nullptr) ==
            FERRY_OK &&
        count > 0)
        return nixl_status(first.status);
    return nixl_status(result.status);
}

} // namespace

nixl_status_t Request::post(Notice with)
{
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (state == State::Waiting || state == State::Active)
            return refuse(NIXL_ERR_REPOST_ACTIVE, "the transfer to agent " + peer->agent + " is still under way");
        state = State::Waiting;
        again = cancelled = false;
        notice = std::move(with);
        ahead.clear();
        ahead_status = NIXL_SUCCESS;
        for (std::size_t i = 0; i + 1 < notice.pieces.size(); i++)
            ahead.push_back(peer->notify(notice.pieces[i]));
    }
    peer->reach(shared_from_this());
    return check();
}

void Request::reached(ferry_peer handle)
{
    {
        const std::lock_guard<std::mutex> lock(mutex);
        // The application may have cancelled while the peer was dialled.
        if (state != State::Waiting) return;
        ferry_transfer_options options = FERRY_TRANSFER_OPTIONS_INIT;
        if (!notice.pieces.empty()) {
            options.notify = notice.pieces.back().data();
            options.notify_length = notice.pieces.back().size();
        }
        ferry_engine *engine = peer->from.engine;
        ferry_error error = FERRY_ERROR_INIT;
        // One small range of a peer on this host takes a single copy, and needs no transfer that is polled later.
        const bool one = ranges.size() == 1 && notice.pieces.empty();
        if (one && ferry_transfer_try(engine, handle, op, ranges.data(), 1, nullptr, nullptr, nullptr) == FERRY_OK)
            return conclude(NIXL_SUCCESS, "");
        const ferry_status status =
            ferry_transfer_submit(engine, handle, op, ranges.data(), ranges.size(), &options, &transfer, &error);
        if (status == FERRY_OK) {
            state = State::Active;
            return;
        }
        if (again || !peer->lost(handle)) return conclude(nixl_status(status), text_of(error));
        again = true;
    }
    peer->reach(shared_from_this());
}

void Request::failed(nixl_status_t status, const std::string &why)
{
    const std::lock_guard<std::mutex> lock(mutex);
    if (state == State::Waiting) conclude(status, why);
}

void Request::conclude(nixl_status_t status, const std::string &why)
{
    state = State::Final;
    outcome = status;
    if (status == NIXL_SUCCESS) return;
    if (!why.empty())
        log(Level::Error, std::string(op == FERRY_OP_READ ? "a READ from" : "a WRITE to") + " agent " + peer->agent + ": " +
                              why);
    for (const auto &piece : ahead) piece->cancel();
    if (!notice.given_up.empty()) peer->notify(notice.given_up);
}

nixl_status_t Request::check()
{
    const std::lock_guard<std::mutex> lock(mutex);
    if (state == State::Active) look();
    return state == State::Waiting || state == State::Active ? NIXL_IN_PROG : outcome;
}

void Request::look()
{
    ferry_engine *engine = peer->from.engine;
    ferry_result result = FERRY_RESULT_INIT;
    ferry_error error = FERRY_ERROR_INIT;
    // An application that asks again at once has nothing else to do. Its thread waits in ferry, where it copies or
    // leaves the CPU to other threads, instead of asking a few thousand times.
    const auto now = Clock::now();
    const std::uint64_t patience_ns = now - looked < AT_ONCE ? PATIENCE_NS : 0;
    const ferry_status status = ferry_transfer_wait(engine, transfer, patience_ns, &result, &error);
    looked = patience_ns == 0 ? now : Clock::now();
    if (result.state == 0) {
        // Without a result, a negative status is the call's own: the engine has ended, and moves nothing more.
        if (status < 0) conclude(nixl_status(status), text_of(error));
        return;
    }
    // Notifications arrive in order, so the pieces that went ahead have ended, or almost.
    if (!ahead_has_ended()) return;
    const nixl_status_t told = status_of(engine, transfer, result);
    ferry_transfer_release(engine, transfer, nullptr);
    if (result.state != FERRY_STATE_DONE)
        conclude(told, cancelled ? "" : text_of(error));
    else if (ahead_status != NIXL_SUCCESS)
        conclude(ahead_status, "the data has arrived, but its notification has not");
    else if (result.notification == FERRY_NOTIFICATION_NONE || result.notification == FERRY_NOTIFICATION_DELIVERED)
        conclude(NIXL_SUCCESS, "");
    else
        conclude(NIXL_ERR_REMOTE_DISCONNECT, "the data has arrived, but its notification may not have");
}

bool Request::end(std::uint64_t timeout_ns)
{
    ferry_transfer of;
    std::vector<std::shared_ptr<Notification>> pieces;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (state == State::Waiting) conclude(NIXL_ERR_CANCELED, "");
        if (state != State::Active) return true;
        cancelled = true;
        of = transfer;
        ferry_transfer_cancel(peer->from.engine, of, nullptr);
        pieces = ahead;
        for (const auto &piece : pieces) piece->cancel();
    }
    // One deadline for all: there may be thousands of pieces.
    const auto deadline = Clock::now() + std::chrono::nanoseconds(timeout_ns);
    ferry_transfer_wait(peer->from.engine, of, timeout_ns, nullptr, nullptr);
    for (const auto &piece : pieces) {
        const std::chrono::nanoseconds left = deadline - Clock::now();
        piece->wait(left.count() > 0 ? static_cast<std::uint64_t>(left.count()) : 0);
    }
    return check() != NIXL_IN_PROG;
}

bool Request::ahead_has_ended()
{
    while (!ahead.empty()) {
        const nixl_status_t status = ahead.back()->wait(0);
        if (status == NIXL_IN_PROG) return false;
        if (status != NIXL_SUCCESS) ahead_status = status;
        ahead.pop_back();
    }
    return true;
}

bool Request::touches(std::uintptr_t address, std::size_t length) const
{
    for (const ferry_request &range : ranges)
        if (range.local < address + length && address < range.local + range.length) return true;
    return false;
}

} // namespace ferry_nixl
