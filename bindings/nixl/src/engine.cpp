#include "engine.h"

#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "log.h"
#include "quiet.h"
#include "settings.h"
#include "status.h"

namespace ferry_nixl {
namespace {

// How long the first release of a request that is under way waits. A cancel is confirmed within a round trip, unless
// the peer does not answer.
constexpr std::uint64_t FIRST_RELEASE_NS = 100'000'000;
// The second release waits in steps, and logs a warning after each RELEASE_STEPS_SILENT of them.
constexpr std::uint64_t RELEASE_STEP_NS = 50'000'000;
constexpr int RELEASE_STEPS_SILENT = 100;
const char REGION_MAGIC[] = "FERRYMD1";
constexpr std::size_t REGION_MAGIC_BYTES = sizeof REGION_MAGIC - 1;

// The core's handle of a request. The request itself may outlive it while a peer is dialled.
struct Handle : nixlBackendReqH {
    explicit Handle(std::shared_ptr<Request> request) : request(std::move(request)) {}
    std::shared_ptr<Request> request;
};

nixl_status_t too_long()
{
    return refuse(NIXL_ERR_INVALID_PARAM, "a notification has at most " + std::to_string(NOTICE_BYTES_MAX) + " bytes");
}

std::shared_ptr<Request> request_of(nixlBackendReqH *handle) { return static_cast<Handle *>(handle)->request; }

} // namespace

Engine *Engine::open(const nixlBackendInitParams &init)
{
    std::string why;
    if (init.localAgent.size() > NAME_BYTES_MAX)
        why = "the agent's name has more than " + std::to_string(NAME_BYTES_MAX) + " bytes";
    const Config config = why.empty() ? configure(init.type, *init.customParams, why) : nullptr;
    std::unique_ptr<Endpoint> endpoint = config == nullptr ? nullptr : Endpoint::open(config.get(), why);
    if (endpoint != nullptr) return new Engine(init, std::move(endpoint));
    log(Level::Error, "no backend " + init.type + " for agent " + init.localAgent + ": " + why);
    return nullptr;
}

Engine::Engine(const nixlBackendInitParams &init, std::unique_ptr<Endpoint> opened)
    : nixlBackendEngine(init), endpoint(std::move(opened)), memory(endpoint->engine)
{
    std::size_t length = 0;
    ferry_engine_warnings(endpoint->engine, nullptr, 0, &length, nullptr);
    std::string text(length, '\0');
    ferry_engine_warnings(endpoint->engine, text.data(), length + 1, &length, nullptr);
    if (!text.empty()) log(Level::Warning, text);
    length = 0;
    ferry_engine_address(endpoint->engine, nullptr, 0, &length, nullptr);
    text.assign(length, '\0');
    ferry_engine_address(endpoint->engine, text.data(), length + 1, &length, nullptr);
    log(Level::Info, "agent " + localAgent + " is reached by ferry " + ferry_version() + " at " + text);
    reader = quiet_thread([this] { read(); });
}

// The core makes no other call meanwhile. First everything under way ends, then the threads, then the engine.
Engine::~Engine()
{
    if (getpid() != process) {
        // A forked child has neither the threads nor the engine's connections, and must not wait for them.
        new std::thread(std::move(reader));
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(spool_mutex);
        ending = true;
    }
    spool_has_room.notify_all();
    endpoint->close();
    dials.wait();
    reader.join();
    // The last events may have begun dials.
    dials.wait();
}

nixl_status_t Engine::registerMem(const nixlBlobDesc &mem, const nixl_mem_t &kind, nixlBackendMD *&out)
{
    if (kind != DRAM_SEG && kind != VRAM_SEG)
        return refuse(NIXL_ERR_NOT_SUPPORTED, "ferry registers memory of the host (DRAM) and of devices (VRAM) only");
    std::shared_ptr<Region> region;
    const nixl_status_t status = memory.add(mem, region);
    if (status == NIXL_SUCCESS) out = new Registration(std::move(region));
    return status;
}

nixl_status_t Engine::deregisterMem(nixlBackendMD *metadata)
{
    const std::unique_ptr<Registration> registration(static_cast<Registration *>(metadata));
    if (memory.is_last(*registration->region)) cancel_those_that_touch(*registration->region);
    return memory.remove(registration->region);
}

// The core does not end the transfers of memory that it deregisters. They are cancelled here, and Memory::remove then
// waits until nothing can land there.
void Engine::cancel_those_that_touch(const Region &region) const
{
    std::vector<std::shared_ptr<Request>> found;
    {
        const std::lock_guard<std::mutex> lock(requests_mutex);
        for (Request *request : requests)
            if (request->touches(region.address, region.length)) found.push_back(request->shared_from_this());
    }
    for (const auto &request : found) request->end(0);
}

nixl_status_t Engine::getPublicData(const nixlBackendMD *metadata, std::string &out) const
{
    const ferry_region handle = static_cast<const Registration *>(metadata)->region->handle;
    out.assign(REGION_MAGIC, REGION_MAGIC_BYTES);
    out.append(reinterpret_cast<const char *>(&handle), sizeof handle);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::loadLocalMD(nixlBackendMD *metadata, nixlBackendMD *&out)
{
    out = new Target(static_cast<Registration *>(metadata)->region->handle);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::loadRemoteMD(const nixlBlobDesc &mem, const nixl_mem_t &, const std::string &agent,
                                   nixlBackendMD *&out)
{
    ferry_region remote;
    if (mem.metaInfo.size() != REGION_MAGIC_BYTES + sizeof remote ||
        mem.metaInfo.compare(0, REGION_MAGIC_BYTES, REGION_MAGIC) != 0)
        return refuse(NIXL_ERR_MISMATCH, "the metadata of agent " + agent + " is not from ferry's plugin");
    std::memcpy(&remote, &mem.metaInfo[REGION_MAGIC_BYTES], sizeof remote);
    out = new Target(remote);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::unloadMD(nixlBackendMD *metadata)
{
    delete metadata;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::getConnInfo(std::string &out) const
{
    out = endpoint->address.encode();
    return NIXL_SUCCESS;
}

nixl_status_t Engine::loadRemoteConnInfo(const std::string &agent, const std::string &info)
{
    Address address;
    if (!Address::decode(info, address))
        return refuse(NIXL_ERR_MISMATCH, "the connection information of agent " + agent +
                                             " is not from ferry's plugin: both agents need the backend FERRY");
    auto peer = std::make_shared<Peer>(*endpoint, dials, agent, std::move(address));
    const std::lock_guard<std::mutex> lock(mutex);
    if (agent != localAgent) peers[agent] = std::move(peer);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::connect(const std::string &agent)
{
    if (agent == localAgent) return NIXL_SUCCESS;
    const std::shared_ptr<Peer> peer = find(agent);
    return peer == nullptr ? NIXL_ERR_NOT_FOUND : peer->connect();
}

// The session stays: the other agent may use it. Requests that are under way keep the peer.
nixl_status_t Engine::disconnect(const std::string &agent)
{
    const std::lock_guard<std::mutex> lock(mutex);
    return agent == localAgent || peers.erase(agent) > 0 ? NIXL_SUCCESS : NIXL_ERR_NOT_FOUND;
}

std::shared_ptr<Peer> Engine::find(const std::string &agent) const
{
    if (agent == localAgent) return self();
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = peers.find(agent);
    if (found != peers.end()) return found->second;
    log(Level::Error, "the connection information of agent " + agent + " was not loaded");
    return nullptr;
}

std::shared_ptr<Peer> Engine::self() const
{
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<Peer> &peer = peers[localAgent];
    if (peer != nullptr) return peer;
    ferry_peer own = 0;
    ferry_error error = FERRY_ERROR_INIT;
    if (ferry_engine_own_peer(endpoint->engine, &own, &error) == FERRY_OK)
        peer = std::make_shared<Peer>(*endpoint, dials, localAgent, endpoint->address, own);
    else
        log(Level::Error, "agent " + localAgent + " has no transfers to itself: " + text_of(error));
    return peer;
}

nixl_status_t Engine::prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local,
                               const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                               const nixlBackendOptionalArgs *) const
{
    const std::size_t count = local.descs.size();
    if (count == 0 || count != remote.descs.size())
        return refuse(NIXL_ERR_INVALID_PARAM, "a transfer needs as many local ranges as remote ones, and at least one");
    std::shared_ptr<Peer> peer = find(agent);
    if (peer == nullptr) return NIXL_ERR_NOT_FOUND;
    std::vector<ferry_request> ranges(count);
    for (std::size_t i = 0; i < count; i++) {
        const nixlMetaDesc &from = local.descs[i], &to = remote.descs[i];
        const auto *target = static_cast<const Target *>(to.metadataP);
        if (from.len != to.len || from.metadataP == nullptr || target == nullptr)
            return refuse(NIXL_ERR_INVALID_PARAM,
                          "range " + std::to_string(i) + ": the lengths differ, or a side is not registered");
        ranges[i] = {from.addr, to.addr, from.len, target->remote};
    }
    const std::uint32_t direction = op == NIXL_READ ? FERRY_OP_READ : FERRY_OP_WRITE;
    auto request = std::make_shared<Request>(std::move(peer), direction, std::move(ranges));
    {
        const std::lock_guard<std::mutex> lock(requests_mutex);
        requests.insert(request.get());
    }
    handle = new Handle(std::move(request));
    return NIXL_SUCCESS;
}

nixl_status_t Engine::postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                               const std::string &, nixlBackendReqH *&handle,
                               const nixlBackendOptionalArgs *options) const
{
    Notice notice;
    if (options != nullptr && options->hasNotif) {
        if (options->notifMsg.size() > NOTICE_BYTES_MAX) return too_long();
        const std::uint64_t id = next_notice++;
        notice.pieces = cut(localAgent, options->notifMsg, id);
        if (notice.pieces.size() > 1) notice.given_up = give_up(localAgent, id);
    }
    return request_of(handle)->post(std::move(notice));
}

nixl_status_t Engine::checkXfer(nixlBackendReqH *handle) const { return request_of(handle)->check(); }

// The first release may be refused. The core ignores the result of the second and frees its side, so the second returns
// only when nothing of the transfer can land any more.
nixl_status_t Engine::releaseReqH(nixlBackendReqH *handle) const
{
    const std::shared_ptr<Request> request = request_of(handle);
    if (!request->was_refused && !request->end(FIRST_RELEASE_NS)) {
        request->was_refused = true;
        log(Level::Warning, "a transfer is cancelled, and its peer has not confirmed that yet: release it again, which "
                            "waits");
        return NIXL_ERR_REPOST_ACTIVE;
    }
    for (int step = 1; !request->end(RELEASE_STEP_NS); step++) {
        if (step % RELEASE_STEPS_SILENT == 0)
            log(Level::Warning, "the release of a transfer waits until nothing can land");
        // The pieces of its notification end by events, and the readers take no events while the spool is full. So each
        // step takes up to 64 events itself, even into a full spool.
        const std::lock_guard<std::mutex> lock(spool_mutex);
        drain();
    }
    {
        const std::lock_guard<std::mutex> lock(requests_mutex);
        requests.erase(request.get());
    }
    delete handle;
    return NIXL_SUCCESS;
}

nixl_status_t Engine::getNotifs(notif_list_t &out)
{
    const std::lock_guard<std::mutex> lock(spool_mutex);
    drain();
    spool.give(out);
    spool_has_room.notify_all();
    return NIXL_SUCCESS;
}

nixl_status_t Engine::genNotif(const std::string &agent, const std::string &message) const
{
    if (message.size() > NOTICE_BYTES_MAX) return too_long();
    if (agent == localAgent) {
        const std::lock_guard<std::mutex> lock(spool_mutex);
        if (spool.is_full())
            return refuse(NIXL_ERR_NOT_ALLOWED, "too many notifications wait: the application must take some first");
        spool.put(localAgent, message);
        return NIXL_SUCCESS;
    }
    const std::shared_ptr<Peer> peer = find(agent);
    if (peer == nullptr) return NIXL_ERR_NOT_FOUND;
    const std::uint64_t id = next_notice++;
    std::string otherwise;
    for (const std::string &piece : cut(localAgent, message, id)) {
        const nixl_status_t status = peer->notify(piece, otherwise)->wait(0);
        if (status < 0) return status;
        // The peer keeps the pieces of an incomplete message until it hears that the rest will not come.
        otherwise = give_up(localAgent, id);
    }
    return NIXL_SUCCESS;
}

void Engine::read() const
{
    for (;;) {
        pollfd events = {endpoint->readable, POLLIN, 0};
        poll(&events, 1, -1);
        std::unique_lock<std::mutex> lock(spool_mutex);
        spool_has_room.wait(lock, [this] { return ending || !spool.is_full(); });
        if (!drain()) return;
    }
}

bool Engine::drain() const
{
    ferry_event events[64];
    std::size_t count = 0;
    do {
        if (ferry_queue_drain(endpoint->engine, endpoint->queue, events, sizeof *events, 64, &count, nullptr) != FERRY_OK)
            return false;
        for (std::size_t i = 0; i < count; i++) {
            take(events[i]);
            ferry_event_release(&events[i]);
        }
    } while (count == 64 && (ending || !spool.is_full()));
    return true;
}

void Engine::take(const ferry_event &event) const
{
    const char *data = static_cast<const char *>(event.data);
    switch (event.kind) {
    case FERRY_EVENT_NOTIFICATION:
        if (data != nullptr) spool.take(event.peer, data, event.data_length);
        break;
    case FERRY_EVENT_TRANSFER:
        endpoint->underway.take(event.user_data)->end(event.status);
        ferry_transfer_release(endpoint->engine, event.transfer, nullptr);
        break;
    case FERRY_EVENT_PEER_LOST:
        spool.forget(event.peer);
        log(Level::Info, "a peer is lost: " + name_of(event.status) + ": " +
                             (data == nullptr ? "" : std::string(data, event.data_length)));
        break;
    case FERRY_EVENT_LATE_APPLY:
        log(Level::Error, "a peer that was suspended in the middle of a transfer has written " +
                              std::to_string(event.length) + " bytes after its lease; their memory is undefined");
        break;
    default: break;
    }
}

} // namespace ferry_nixl
