// HCCL's one-sided communication over loopback, for communicators of two ranks. Each rank serves the memory
// that it bound, and asks the other rank; the two find each other by a note in FERRY_STANDIN_DIR.
#include "hccl.h"
#include "../ascend/below.h"
#include "../core/share.h"
#include "wire.h"

#include <cstring>
#include <map>
#include <memory>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>

namespace {

using namespace standin;

struct Memory {
    net::Region region;
    int bound = 0;
};

struct Comm {
    std::string name; // of the communicator and its table
    uint32_t rank = 0, other = 0;
    std::set<Memory *> memory;
    int listener = -1;
    std::unique_ptr<net::Server> server;
    std::shared_ptr<net::Client> client; // also held by tasks
    std::vector<net::Region> regions;

    std::string note(uint32_t of) const { return "hccl-" + name + "-" + std::to_string(of); }
    std::vector<net::Region> own() const {
        std::vector<net::Region> out;
        for (const Memory *one : memory) out.push_back(one->region);
        return out;
    }
    ~Comm() {
        if (listener >= 0) close(listener);
    }
};

struct State {
    std::recursive_mutex lock;
    std::set<Memory *> memory;
    std::set<Comm *> comms;
};
State &state() {
    static State *const made = new State;
    return *made;
}
using Hold = std::unique_lock<std::recursive_mutex>;

#define ENTER()                                                                                                        \
    static Call call(__func__);                                                                                        \
    if (const int code = call.enter()) return code;                                                                    \
    if (forked()) return HCCL_E_INTERNAL
#define COMM(handle)                                                                                                   \
    Hold hold(state().lock);                                                                                           \
    if (handle == nullptr) return HCCL_E_PTR;                                                                          \
    auto *own = static_cast<Comm *>(handle);                                                                           \
    if (state().comms.count(own) == 0) return HCCL_E_PARA

// Returns the string values of "key" in the table. Enough of JSON for rank tables of version 1.0.
std::vector<std::string> values_of(const std::string &table, const std::string &key) {
    std::vector<std::string> out;
    const std::string quoted = '"' + key + '"';
    for (size_t at = table.find(quoted); at != std::string::npos; at = table.find(quoted, at + 1)) {
        const size_t colon = table.find_first_not_of(" \t\r\n", at + quoted.size());
        if (colon == std::string::npos || table[colon] != ':') continue;
        const size_t open = table.find_first_not_of(" \t\r\n", colon + 1);
        if (open == std::string::npos || table[open] != '"') continue; // a list or a number
        const size_t end = table.find('"', open + 1);
        if (end == std::string::npos) break;
        out.push_back(table.substr(open + 1, end - open - 1));
    }
    return out;
}

bool is_table(const std::string &table, uint32_t rank) {
    const auto ranks = values_of(table, "rank_id"), servers = values_of(table, "server_id");
    if (values_of(table, "version") != std::vector<std::string>{"1.0"}) return false;
    if (values_of(table, "status") != std::vector<std::string>{"completed"}) return false;
    if (values_of(table, "server_count") != std::vector<std::string>{std::to_string(servers.size())}) return false;
    if (values_of(table, "device_id").size() != 2 || values_of(table, "device_ip").size() != 2) return false;
    const std::set<std::string> distinct(ranks.begin(), ranks.end());
    return distinct == std::set<std::string>{"0", "1"} && ranks.size() == 2 && rank < 2;
}

std::string hash_of(const std::string &text) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    return std::to_string(hash);
}

// Waits for the other rank's port; 0 if the time has passed.
uint16_t meet(const Comm &comm, Deadline deadline) {
    while (Clock::now() < deadline.at) {
        const std::string text = read_note(comm.note(comm.other));
        if (!text.empty()) return static_cast<uint16_t>(std::stoi(text));
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return 0;
}

struct Work {
    std::shared_ptr<net::Client> client;
    std::vector<HcclOneSideOpDesc> descs;
    bool is_put;
};

int run(void *argument) {
    const auto *work = static_cast<const Work *>(argument);
    for (const HcclOneSideOpDesc &one : work->descs) {
        const auto remote = reinterpret_cast<uint64_t>(one.remoteAddr);
        const bool good = work->is_put ? work->client->put(remote, one.localAddr, one.count)
                                       : work->client->get(remote, one.localAddr, one.count);
        if (!good) return 507018; // what the device reports when its task fails
    }
    return 0;
}

int submit(void *handle, uint32_t rank, const HcclOneSideOpDesc *descs, uint32_t count, void *stream, bool is_put) {
    COMM(handle);
    if (descs == nullptr) return HCCL_E_PTR;
    if (count == 0 || rank != own->other) return HCCL_E_PARA;
    if (own->client == nullptr) return HCCL_E_UNAVAIL; // before HcclCommPrepare
    auto work = std::make_unique<Work>(Work{own->client, {descs, descs + count}, is_put});
    size_t bytes = 0;
    for (const HcclOneSideOpDesc &one : work->descs) {
        if (one.dataType != HCCL_DATA_TYPE_UINT8) return HCCL_E_NOT_SUPPORT;
        if (!net::is_inside(own->own(), one.localAddr, one.count)) return HCCL_E_PARA;
        if (!net::is_inside(own->regions, one.remoteAddr, one.count)) return HCCL_E_PARA;
        bytes += one.count;
    }
    const auto finish = [](void *argument) { delete static_cast<Work *>(argument); };
    if (standin_acl_task(stream, run, finish, work.get(), bytes) != 0) return HCCL_E_PARA;
    work.release(); // the stream's now
    return HCCL_SUCCESS;
}

void audit() {
    const Hold hold(state().lock);
    for (Comm *comm : state().comms) leaked("HCCL communicator %p", static_cast<void *>(comm));
    for (Memory *one : state().memory) leaked("HCCL memory %#lx of %lu bytes", one->region.address, one->region.size);
}

__attribute__((destructor)) void at_exit() {
    if (!forked()) audit();
}

} // namespace

int HcclRegisterGlobalMem(HcclMem *memory, void **handle) {
    ENTER();
    if (memory == nullptr || handle == nullptr) return HCCL_E_PTR;
    if (!net::is_memory(memory->type, memory->addr, memory->size)) return HCCL_E_PARA;
    const Hold hold(state().lock);
    auto *made = new Memory{{reinterpret_cast<uint64_t>(memory->addr), memory->size, memory->type, {}}, 0};
    state().memory.insert(made);
    *handle = made;
    return HCCL_SUCCESS;
}

int HcclDeregisterGlobalMem(void *handle) {
    ENTER();
    const Hold hold(state().lock);
    auto *memory = static_cast<Memory *>(handle);
    if (state().memory.count(memory) == 0) return HCCL_E_NOT_FOUND;
    if (memory->bound != 0) return HCCL_E_PARA; // unbind first
    state().memory.erase(memory);
    delete memory;
    return HCCL_SUCCESS;
}

int HcclCommInitClusterInfoMemConfig(const char *rank_table, uint32_t rank, HcclCommConfig *config, void **comm) {
    ENTER();
    if (rank_table == nullptr || config == nullptr || comm == nullptr) return HCCL_E_PTR;
    if (!standin_acl_has_context()) return HCCL_E_INTERNAL;
    if (config->magic != HCCL_COMM_CONFIG_MAGIC_WORD || config->hcclCommName[0] == '\0') return HCCL_E_PARA;
    if (strnlen(config->hcclCommName, sizeof config->hcclCommName) == sizeof config->hcclCommName) return HCCL_E_PARA;
    if (!is_table(rank_table, rank)) return HCCL_E_PARA;
    auto made = std::make_unique<Comm>();
    made->name = hash_of(std::string(config->hcclCommName) + rank_table);
    made->rank = rank;
    made->other = 1 - rank;
    const Hold hold(state().lock);
    for (const Comm *known : state().comms) {
        if (known->name == made->name && known->rank == rank) return HCCL_E_PARA; // names are for one at a time
    }
    *comm = made.get();
    state().comms.insert(made.release());
    return HCCL_SUCCESS;
}

int HcclCommBindMem(void *comm, void *handle) {
    ENTER();
    COMM(comm);
    auto *memory = static_cast<Memory *>(handle);
    if (state().memory.count(memory) == 0) return HCCL_E_NOT_FOUND;
    if (own->client != nullptr) return HCCL_E_PARA; // bind, then prepare
    if (!own->memory.insert(memory).second) return HCCL_E_PARA;
    memory->bound++;
    return HCCL_SUCCESS;
}

int HcclCommUnbindMem(void *comm, void *handle) {
    ENTER();
    COMM(comm);
    auto *memory = static_cast<Memory *>(handle);
    if (own->memory.erase(memory) == 0) return HCCL_E_NOT_FOUND;
    memory->bound--;
    return HCCL_SUCCESS;
}

int HcclCommPrepare(void *comm, HcclPrepareConfig *config, int timeout_s) {
    ENTER();
    COMM(comm);
    if (config == nullptr) return HCCL_E_PTR;
    if (config->topoType != 0 || timeout_s <= 0 || own->listener >= 0) return HCCL_E_PARA;
    const Deadline deadline(timeout_s * 1000L);
    own->listener = net::listen_on(0, 1);
    if (own->listener < 0) return HCCL_E_TCP_CONNECT;
    write_note(own->note(own->rank), std::to_string(net::port_of(own->listener)));
    const std::string greeting = own->name + "/";
    hold.unlock(); // the other rank may be of this process

    const uint16_t port = meet(*own, deadline);
    int out = -1, in = -1;
    const net::Dial dialled = port == 0 ? net::Dial::timed_out : net::dial(port, deadline, &out);
    if (dialled == net::Dial::done) {
        pollfd ready = {own->listener, POLLIN, 0};
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.at - Clock::now()).count();
        if (poll(&ready, 1, static_cast<int>(left < 0 ? 0 : left)) == 1) in = accept4(own->listener, nullptr, nullptr, SOCK_CLOEXEC);
    }
    remove_note(own->note(own->rank));
    close(own->listener);
    own->listener = -1;
    std::shared_ptr<net::Client> client;
    if (out >= 0) client = std::make_shared<net::Client>(out);
    if (in < 0) return dialled == net::Dial::refused ? HCCL_E_TCP_CONNECT : HCCL_E_TIMEOUT;
    hold.lock();
    own->server = std::make_unique<net::Server>(in, own->own(), std::vector<std::string>{greeting});
    if (!client->greet(greeting) || !client->list(&own->regions)) return HCCL_E_TCP_CONNECT;
    own->client = client;
    return HCCL_SUCCESS;
}

int HcclBatchPut(void *comm, uint32_t rank, HcclOneSideOpDesc *descs, uint32_t count, void *stream) {
    ENTER();
    return submit(comm, rank, descs, count, stream, true);
}

int HcclBatchGet(void *comm, uint32_t rank, HcclOneSideOpDesc *descs, uint32_t count, void *stream) {
    ENTER();
    return submit(comm, rank, descs, count, stream, false);
}

int HcclCommDestroy(void *comm) {
    ENTER();
    COMM(comm);
    state().comms.erase(own);
    for (Memory *one : own->memory) one->bound--;
    hold.unlock();
    if (own->client != nullptr) own->client->cut(); // what is under way fails
    delete own;
    return HCCL_SUCCESS;
}

long standin_audit(void) {
    if (!forked()) audit();
    return complaints();
}
