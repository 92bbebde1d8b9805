// HIXL's C interface over loopback: servers that expose memory, and clients that put and get.
#include "hixl.h"
#include "../ascend/below.h"
#include "wire.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

static_assert(sizeof(EndpointDesc) == 160 && offsetof(EndpointDesc, loc) == 44, "layout");
static_assert(sizeof(HixlClientDesc) == 128 && offsetof(HixlClientDesc, tc) == 28, "layout");
static_assert(sizeof(HixlServerDesc) == 128 && offsetof(HixlServerDesc, endpoint_list_num) == 20, "layout");

namespace {

using namespace standin;
constexpr uint64_t outstanding_max = 4096;
constexpr uint64_t hccs_bytes = 2 << 20;

struct Registrations {
    std::map<void *, net::Region> all; // by handle
    std::vector<net::Region> list() const {
        std::vector<net::Region> out;
        for (const auto &entry : all) out.push_back(entry.second);
        return out;
    }
    HixlStatus add(const EndpointDesc &endpoint, const char *tag, const CommMem *memory, void **handle) {
        if (memory == nullptr || handle == nullptr) return HIXL_PARAM_INVALID;
        if (!net::is_memory(memory->type, memory->addr, memory->size)) return HIXL_PARAM_INVALID;
        const bool host_nic = endpoint.loc.locType == ENDPOINT_LOC_TYPE_HOST;
        // A NIC of the host accepts only plain memory, HCCS only whole huge pages.
        if (host_nic && standin_acl_where(memory->addr, memory->size) == standin_pinned) return HIXL_PARAM_INVALID;
        const auto address = reinterpret_cast<uint64_t>(memory->addr);
        if (endpoint.protocol == COMM_PROTOCOL_HCCS && (address % hccs_bytes != 0)) return HIXL_FAILED;
        net::Region region = {address, memory->size, memory->type, {}};
        if (tag != nullptr) strncpy(region.tag, tag, sizeof region.tag - 1);
        *handle = new char;
        all[*handle] = region;
        return HIXL_SUCCESS;
    }
    HixlStatus remove(void *handle) {
        if (all.erase(handle) == 0) return HIXL_PARAM_INVALID;
        delete static_cast<char *>(handle);
        return HIXL_SUCCESS;
    }
    ~Registrations() {
        for (const auto &entry : all) delete static_cast<char *>(entry.first);
    }
};

std::string bytes_of(const EndpointDesc &endpoint) {
    return std::string(reinterpret_cast<const char *>(&endpoint), sizeof endpoint);
}

bool needs_device(const EndpointDesc &endpoint) { return endpoint.loc.locType == ENDPOINT_LOC_TYPE_DEVICE; }

struct HixlServer {
    std::vector<EndpointDesc> endpoints;
    uint16_t port;
    Registrations memory;
    std::mutex lock;
    int listener = -1, wake[2] = {-1, -1};
    std::vector<std::unique_ptr<net::Server>> clients;
    std::thread acceptor;

    size_t connected() { // the lock is held
        clients.erase(std::remove_if(clients.begin(), clients.end(), [](const auto &one) { return one->ended(); }),
                      clients.end());
        return clients.size();
    }
    void accept_all() {
        std::vector<std::string> greetings;
        for (const EndpointDesc &endpoint : endpoints) greetings.push_back(bytes_of(endpoint));
        while (true) {
            pollfd both[2] = {{listener, POLLIN, 0}, {wake[0], POLLIN, 0}};
            poll(both, 2, -1);
            if (both[1].revents != 0) return;
            const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
            if (connection < 0) continue;
            const std::lock_guard<std::mutex> hold(lock);
            clients.push_back(std::make_unique<net::Server>(connection, memory.list(), greetings));
        }
    }
    ~HixlServer() {
        if (acceptor.joinable()) {
            if (write(wake[1], "x", 1) != 1) abort();
            acceptor.join();
            for (const int file : {listener, wake[0], wake[1]}) close(file);
        }
    }
};

struct Batch {
    std::vector<HixlOneSideOpDesc> descs;
    bool is_put;
    enum { waiting, done, failed } state = waiting;
};

struct HixlClient {
    EndpointDesc local, remote;
    uint16_t port;
    Registrations memory;
    std::mutex lock;
    std::unique_ptr<net::Client> wire;
    std::unique_ptr<Stream> worker;
    bool broken = false, fetched = false;
    std::vector<net::Region> regions;
    std::vector<CommMem> shown;
    std::vector<char *> tags;
    std::map<void *, std::shared_ptr<Batch>> batches; // unfinished, or finished and not asked for yet
    uint64_t outstanding = 0;

    ~HixlClient() {
        if (wire != nullptr) wire->cut();
        if (worker != nullptr) worker->abort();
        worker.reset();
    }
};

struct State {
    std::mutex lock;
    std::set<HixlServer *> servers;
    std::set<HixlClient *> clients;
};
State &state() {
    static State *const made = new State;
    return *made;
}

template <typename T> T *find(std::set<T *> &all, void *handle) {
    const std::lock_guard<std::mutex> hold(state().lock);
    const auto found = all.find(static_cast<T *>(handle));
    return found == all.end() ? nullptr : *found;
}

template <typename T> HixlStatus keep(std::set<T *> &all, std::unique_ptr<T> made, void **handle) {
    const std::lock_guard<std::mutex> hold(state().lock);
    *handle = made.get();
    all.insert(made.release());
    return HIXL_SUCCESS;
}

// Of the description of a server or a client.
template <typename T> bool has_address(const T &desc) {
    return desc.server_ip != nullptr && desc.server_port != 0 && desc.server_port <= 65535;
}

#define ENTER()                                                                                                        \
    static Call call(__func__);                                                                                        \
    if (const int code = call.enter()) return static_cast<HixlStatus>(code);                                           \
    if (forked()) return HIXL_FAILED
#define SERVER(handle)                                                                                                 \
    HixlServer *server = find(state().servers, handle);                                                                \
    if (server == nullptr) return HIXL_PARAM_INVALID;                                                                  \
    const std::lock_guard<std::mutex> hold(server->lock)
#define CLIENT(handle)                                                                                                 \
    HixlClient *client = find(state().clients, handle);                                                                \
    if (client == nullptr) return HIXL_PARAM_INVALID

int run_batch(Stream &stream, net::Client &wire, const Batch &batch) {
    for (const HixlOneSideOpDesc &one : batch.descs) {
        if (!spend_copy_time(stream, one.len)) return 1;
        const auto remote = reinterpret_cast<uint64_t>(one.remote_buf);
        if (batch.is_put ? !wire.put(remote, one.local_buf, one.len) : !wire.get(remote, one.local_buf, one.len)) return 1;
    }
    return 0;
}

// Queues a batch; the client's lock is held.
HixlStatus submit(HixlClient *client, uint32_t count, const HixlOneSideOpDesc *descs, bool is_put,
                  std::shared_ptr<Batch> *out) {
    if (count == 0 || descs == nullptr) return HIXL_PARAM_INVALID;
    // After a failure or time-out the client can only be destroyed.
    if (client->wire == nullptr || client->broken || !client->fetched) return HIXL_FAILED;
    for (uint32_t i = 0; i < count; i++) {
        if (!net::is_inside(client->memory.list(), descs[i].local_buf, descs[i].len) ||
            !net::is_inside(client->regions, descs[i].remote_buf, descs[i].len)) {
            return HIXL_PARAM_INVALID;
        }
    }
    if (count > outstanding_max - client->outstanding) return HIXL_FAILED;
    client->outstanding += count;
    auto batch = std::make_shared<Batch>();
    batch->descs.assign(descs, descs + count);
    batch->is_put = is_put;
    client->worker->push({[client, batch](Stream &own) {
                              const int code = run_batch(own, *client->wire, *batch);
                              const std::lock_guard<std::mutex> hold(client->lock);
                              batch->state = code == 0 ? Batch::done : Batch::failed;
                              if (code != 0) client->broken = true;
                              return 0;
                          },
                          [](bool) {}});
    *out = batch;
    return HIXL_SUCCESS;
}

HixlStatus submit_async(void *handle, uint32_t count, const HixlOneSideOpDesc *descs, bool is_put, void **complete) {
    CLIENT(handle);
    if (complete == nullptr) return HIXL_PARAM_INVALID;
    const std::lock_guard<std::mutex> hold(client->lock);
    std::shared_ptr<Batch> batch;
    if (const HixlStatus code = submit(client, count, descs, is_put, &batch)) return code;
    client->batches[batch.get()] = batch;
    *complete = batch.get();
    return HIXL_SUCCESS;
}

HixlStatus submit_sync(void *handle, uint32_t count, const HixlOneSideOpDesc *descs, bool is_put, uint32_t timeout_ms) {
    CLIENT(handle);
    std::shared_ptr<Batch> batch;
    {
        const std::lock_guard<std::mutex> hold(client->lock);
        if (const HixlStatus code = submit(client, count, descs, is_put, &batch)) return code;
    }
    const Outcome outcome = client->worker->wait(Deadline(timeout_ms));
    const std::lock_guard<std::mutex> hold(client->lock);
    if (outcome == Outcome::timed_out) { // which stops nothing
        client->broken = true;
        return HIXL_TIMEOUT;
    }
    client->outstanding -= count;
    return batch->state == Batch::done ? HIXL_SUCCESS : HIXL_FAILED;
}

void audit() {
    const std::lock_guard<std::mutex> hold(state().lock);
    for (HixlServer *server : state().servers) leaked("HIXL server %p", static_cast<void *>(server));
    for (HixlClient *client : state().clients) leaked("HIXL client %p", static_cast<void *>(client));
}

__attribute__((destructor)) void at_exit() {
    if (!forked()) audit();
}

} // namespace

HixlStatus HixlCSServerCreate(const HixlServerDesc *desc, const HixlServerConfig *, void **handle) {
    ENTER();
    if (desc == nullptr || handle == nullptr || desc->endpoint_list == nullptr || desc->endpoint_list_num == 0 ||
        !has_address(*desc)) {
        return HIXL_PARAM_INVALID;
    }
    auto made = std::make_unique<HixlServer>();
    made->endpoints.assign(desc->endpoint_list, desc->endpoint_list + desc->endpoint_list_num);
    made->port = static_cast<uint16_t>(desc->server_port);
    for (const EndpointDesc &endpoint : made->endpoints) {
        if (needs_device(endpoint) && !standin_acl_has_context()) return HIXL_FAILED;
    }
    return keep(state().servers, std::move(made), handle);
}

HixlStatus HixlCSServerRegMem(void *handle, const char *tag, const CommMem *memory, void **memory_handle) {
    ENTER();
    SERVER(handle);
    if (server->connected() != 0) return HIXL_FAILED; // all memory before the first client
    return server->memory.add(server->endpoints[0], tag, memory, memory_handle);
}

HixlStatus HixlCSServerListen(void *handle, uint32_t backlog) {
    ENTER();
    SERVER(handle);
    if (server->listener >= 0) return HIXL_FAILED;
    server->listener = net::listen_on(server->port, static_cast<int>(std::min(backlog, 1024u)));
    if (server->listener < 0 || pipe(server->wake) != 0) return HIXL_FAILED;
    server->acceptor = std::thread([server] { server->accept_all(); });
    return HIXL_SUCCESS;
}

HixlStatus HixlCSServerUnregMem(void *handle, void *memory_handle) {
    ENTER();
    SERVER(handle);
    if (server->connected() != 0) return HIXL_FAILED;
    return server->memory.remove(memory_handle);
}

HixlStatus HixlCSServerDestroy(void *handle) {
    ENTER();
    {
        SERVER(handle);
        if (server->connected() != 0) return HIXL_FAILED;
        const std::lock_guard<std::mutex> all(state().lock);
        state().servers.erase(server);
    }
    delete static_cast<HixlServer *>(handle);
    return HIXL_SUCCESS;
}

HixlStatus HixlCSClientCreate(const HixlClientDesc *desc, const HixlClientConfig *, void **handle) {
    ENTER();
    if (desc == nullptr || handle == nullptr || desc->local_endpoint == nullptr || desc->remote_endpoint == nullptr ||
        !has_address(*desc)) {
        return HIXL_PARAM_INVALID;
    }
    if (desc->local_endpoint->protocol != desc->remote_endpoint->protocol) return HIXL_PARAM_INVALID;
    if (needs_device(*desc->local_endpoint) && !standin_acl_has_context()) return HIXL_FAILED;
    auto made = std::make_unique<HixlClient>();
    made->local = *desc->local_endpoint;
    made->remote = *desc->remote_endpoint;
    made->port = static_cast<uint16_t>(desc->server_port);
    return keep(state().clients, std::move(made), handle);
}

HixlStatus HixlCSClientRegMem(void *handle, const char *tag, const CommMem *memory, void **memory_handle) {
    ENTER();
    CLIENT(handle);
    const std::lock_guard<std::mutex> hold(client->lock);
    if (client->wire != nullptr) return HIXL_FAILED; // before connecting
    return client->memory.add(client->local, tag, memory, memory_handle);
}

HixlStatus HixlCSClientUnregMem(void *handle, void *memory_handle) {
    ENTER();
    CLIENT(handle);
    const std::lock_guard<std::mutex> hold(client->lock);
    if (client->worker != nullptr && !client->worker->idle()) return HIXL_FAILED;
    return client->memory.remove(memory_handle);
}

HixlStatus HixlCSClientConnect(void *handle, uint32_t timeout_ms) {
    ENTER();
    CLIENT(handle);
    const std::lock_guard<std::mutex> hold(client->lock);
    if (client->wire != nullptr || client->broken) return HIXL_FAILED;
    int connection;
    const net::Dial dialled = net::dial(client->port, Deadline(timeout_ms), &connection);
    if (dialled == net::Dial::done) {
        client->wire = std::make_unique<net::Client>(connection);
        client->worker = std::make_unique<Stream>(client, 0);
        if (client->wire->greet(bytes_of(client->remote))) return HIXL_SUCCESS;
    }
    client->broken = true;
    return dialled == net::Dial::timed_out ? HIXL_TIMEOUT : HIXL_FAILED;
}

HixlStatus HixlCSClientGetRemoteMem(void *handle, CommMem **memory, char ***tags, uint32_t *count, uint32_t) {
    ENTER();
    CLIENT(handle);
    if (memory == nullptr || tags == nullptr || count == nullptr) return HIXL_PARAM_INVALID;
    const std::lock_guard<std::mutex> hold(client->lock);
    if (client->wire == nullptr || client->broken || !client->wire->list(&client->regions)) return HIXL_FAILED;
    client->fetched = true;
    client->shown.clear(); // what the last call gave is gone
    client->tags.clear();
    for (net::Region &region : client->regions) {
        client->shown.push_back({region.type, reinterpret_cast<void *>(region.address), region.size});
        client->tags.push_back(region.tag);
    }
    *memory = client->shown.data();
    *tags = client->tags.data();
    *count = static_cast<uint32_t>(client->shown.size());
    return HIXL_SUCCESS;
}

HixlStatus HixlCSClientBatchPutAsync(void *client, uint32_t count, const HixlOneSideOpDesc *descs, void **complete) {
    ENTER();
    return submit_async(client, count, descs, true, complete);
}

HixlStatus HixlCSClientBatchGetAsync(void *client, uint32_t count, const HixlOneSideOpDesc *descs, void **complete) {
    ENTER();
    return submit_async(client, count, descs, false, complete);
}

HixlStatus HixlCSClientBatchPutSync(void *client, uint32_t count, const HixlOneSideOpDesc *descs, uint32_t timeout_ms) {
    ENTER();
    return submit_sync(client, count, descs, true, timeout_ms);
}

HixlStatus HixlCSClientBatchGetSync(void *client, uint32_t count, const HixlOneSideOpDesc *descs, uint32_t timeout_ms) {
    ENTER();
    return submit_sync(client, count, descs, false, timeout_ms);
}

HixlStatus HixlCSClientQueryCompleteStatus(void *handle, void *complete, int *status) {
    ENTER();
    CLIENT(handle);
    if (status == nullptr) return HIXL_PARAM_INVALID;
    const std::lock_guard<std::mutex> hold(client->lock);
    const auto found = client->batches.find(complete);
    if (found == client->batches.end()) return HIXL_PARAM_INVALID;
    *status = HIXL_COMPLETE_STATUS_WAITING;
    if (found->second->state == Batch::waiting) return HIXL_SUCCESS;
    const bool good = found->second->state == Batch::done;
    client->outstanding -= found->second->descs.size();
    client->batches.erase(found); // told once
    if (good) *status = HIXL_COMPLETE_STATUS_COMPLETED;
    return good ? HIXL_SUCCESS : HIXL_FAILED;
}

HixlStatus HixlCSClientDestroy(void *handle) {
    ENTER();
    CLIENT(handle);
    {
        const std::lock_guard<std::mutex> hold(state().lock);
        state().clients.erase(client);
    }
    delete client;
    return HIXL_SUCCESS;
}

long standin_audit(void) {
    if (!forked()) audit();
    return complaints();
}
