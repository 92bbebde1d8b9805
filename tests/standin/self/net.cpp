// HIXL and HCCL: their rules, and data between two processes.
#include "../ascend/acl.h"
#include "../net/hccl.h"
#include "../net/hixl.h"
#include "check.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

constexpr size_t huge = 2 << 20;

// A port that nobody listens at or connects from.
std::string free_port() {
    const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    socklen_t size = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT(0, bind(probe, reinterpret_cast<const sockaddr *>(&address), size));
    EXPECT(0, getsockname(probe, reinterpret_cast<sockaddr *>(&address), &size));
    close(probe);
    return std::to_string(ntohs(address.sin_port));
}

EndpointDesc endpoint(int place) {
    EndpointDesc out;
    memset(&out, 0xff, sizeof out);
    out.protocol = COMM_PROTOCOL_ROCE;
    out.commAddr.type = COMM_ADDR_TYPE_IP_V4;
    const in_addr address = {htonl(0x7f000001)};
    memcpy(out.commAddr.value, &address, sizeof address);
    out.loc.locType = place;
    return out;
}

HixlClientDesc client_of(const EndpointDesc *both, uint32_t port) {
    HixlClientDesc out = {};
    out.local_endpoint = out.remote_endpoint = both;
    out.server_ip = "127.0.0.1";
    out.server_port = port;
    return out;
}

void start() {
    OK(aclInit(nullptr));
    OK(aclrtSetDevice(0));
}

// A HIXL server with 2 MiB of device memory; prints its address. Commands: `check SEED`, `end`.
int serve(const std::string &port) {
    start();
    std::vector<uint64_t> words(huge / 8);
    void *device, *plain = words.data(), *server, *handle;
    const EndpointDesc place = endpoint(ENDPOINT_LOC_TYPE_DEVICE);
    HixlServerDesc desc = {};
    desc.endpoint_list = &place;
    desc.endpoint_list_num = 1;
    desc.server_ip = "127.0.0.1";
    desc.server_port = static_cast<uint32_t>(atoi(port.c_str()));
    OK(aclrtMalloc(&device, huge, ACL_MEM_MALLOC_HUGE_ONLY));
    OK(HixlCSServerCreate(&desc, nullptr, &server));
    CommMem memory = {COMM_MEM_TYPE_HOST, device, huge};
    EXPECT(HIXL_PARAM_INVALID, HixlCSServerRegMem(server, "wrong", &memory, &handle)); // it is the device's
    memory.type = COMM_MEM_TYPE_DEVICE;
    OK(HixlCSServerRegMem(server, "pool", &memory, &handle));
    OK(HixlCSServerListen(server, 8));
    EXPECT(HIXL_FAILED, HixlCSServerListen(server, 8));
    char text[64];
    snprintf(text, sizeof text, "%p", device);
    said(text);
    while (true) {
        const std::string line = heard();
        if (line == "end") break;
        if (line == "busy") { // with a client
            void *other;
            EXPECT(HIXL_FAILED, HixlCSServerRegMem(server, "late", &memory, &other));
            EXPECT(HIXL_FAILED, HixlCSServerUnregMem(server, handle));
            EXPECT(HIXL_FAILED, HixlCSServerDestroy(server));
            said("busy");
            continue;
        }
        OK(aclrtMemcpy(plain, huge, device, huge, ACL_MEMCPY_DEVICE_TO_HOST));
        said(is_filled(plain, huge, strtoull(line.c_str() + 6, nullptr, 10)) ? "good" : "bad");
    }
    while (HixlCSServerUnregMem(server, handle) == HIXL_FAILED) usleep(1000); // until the client's end is noticed
    OK(HixlCSServerDestroy(server));
    EXPECT(HIXL_PARAM_INVALID, HixlCSServerDestroy(server));
    return 0;
}

void test_hixl() {
    start();
    const std::string port = free_port();
    const EndpointDesc place = endpoint(ENDPOINT_LOC_TYPE_DEVICE);
    const HixlClientDesc desc = client_of(&place, static_cast<uint32_t>(atoi(port.c_str())));
    std::vector<uint64_t> words(huge / 8);
    void *client, *handle, *complete, *device, *plain = words.data();
    OK(aclrtMalloc(&device, huge, ACL_MEM_MALLOC_HUGE_ONLY));
    CommMem memory = {COMM_MEM_TYPE_DEVICE, device, huge};
    EXPECT(HIXL_PARAM_INVALID, HixlCSClientCreate(nullptr, nullptr, &client));
    OK(HixlCSClientCreate(&desc, nullptr, &client));
    EXPECT(HIXL_FAILED, HixlCSClientConnect(client, 1000)); // nobody listens
    EXPECT(HIXL_FAILED, HixlCSClientConnect(client, 1000)); // and one failure is the end of it
    OK(HixlCSClientDestroy(client));
    EXPECT(HIXL_PARAM_INVALID, HixlCSClientDestroy(client));

    Other other({"serve", port});
    void *remote = reinterpret_cast<void *>(strtoull(other.hear().c_str(), nullptr, 16));
    // An endpoint that the server doesn't have.
    EndpointDesc wrong = place;
    wrong.loc.value[0] = 7;
    HixlClientDesc wrong_desc = desc;
    wrong_desc.remote_endpoint = &wrong;
    OK(HixlCSClientCreate(&wrong_desc, nullptr, &client));
    EXPECT(HIXL_FAILED, HixlCSClientConnect(client, 1000));
    OK(HixlCSClientDestroy(client));

    OK(HixlCSClientCreate(&desc, nullptr, &client));
    OK(HixlCSClientRegMem(client, "local", &memory, &handle));
    HixlOneSideOpDesc all = {remote, device, huge};
    EXPECT(HIXL_FAILED, HixlCSClientBatchPutSync(client, 1, &all, 1000)); // not connected
    OK(HixlCSClientConnect(client, 1000));
    void *late;
    EXPECT(HIXL_FAILED, HixlCSClientRegMem(client, "late", &memory, &late));
    EXPECT(HIXL_FAILED, HixlCSClientBatchPutSync(client, 1, &all, 1000)); // the remote memory is not known yet
    CommMem *list;
    char **tags;
    uint32_t count;
    OK(HixlCSClientGetRemoteMem(client, &list, &tags, &count, 1000));
    CHECK(count == 1 && list[0].addr == remote && list[0].size == huge && strcmp(tags[0], "pool") == 0);
    other.say("busy");
    CHECK(other.hear() == "busy");

    fill(plain, huge, 31);
    OK(aclrtMemcpy(device, huge, plain, huge, ACL_MEMCPY_HOST_TO_DEVICE));
    OK(HixlCSClientBatchPutSync(client, 1, &all, 5000));
    other.say("check 31");
    CHECK(other.hear() == "good");
    EXPECT(HIXL_PARAM_INVALID, HixlCSClientBatchPutAsync(client, 0, &all, &complete));
    HixlOneSideOpDesc beyond = {static_cast<char *>(remote) + 8, device, huge};
    EXPECT(HIXL_PARAM_INVALID, HixlCSClientBatchPutSync(client, 1, &beyond, 1000));
    HixlOneSideOpDesc foreign = {remote, plain, huge};
    EXPECT(HIXL_PARAM_INVALID, HixlCSClientBatchPutSync(client, 1, &foreign, 1000));

    // Asynchronously, with exchanged halves; each batch is asked for once.
    HixlOneSideOpDesc halves[2] = {{remote, static_cast<char *>(device) + huge / 2, huge / 2},
                                   {static_cast<char *>(remote) + huge / 2, device, huge / 2}};
    OK(HixlCSClientBatchGetAsync(client, 2, halves, &complete));
    int status = HIXL_COMPLETE_STATUS_WAITING;
    while (status == HIXL_COMPLETE_STATUS_WAITING) OK(HixlCSClientQueryCompleteStatus(client, complete, &status));
    EXPECT(HIXL_COMPLETE_STATUS_COMPLETED, status);
    EXPECT(HIXL_PARAM_INVALID, HixlCSClientQueryCompleteStatus(client, complete, &status));
    OK(aclrtMemcpy(plain, huge, device, huge, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(is_filled(plain, huge / 2, 31 + huge / 16) && is_filled(static_cast<char *>(plain) + huge / 2, huge / 2, 31));

    // At most 4,096 descriptors may be outstanding, including finished ones that were not asked for.
    std::vector<HixlOneSideOpDesc> many(4096, HixlOneSideOpDesc{remote, device, 8});
    OK(HixlCSClientBatchPutAsync(client, 4096, many.data(), &complete));
    void *refused;
    EXPECT(HIXL_FAILED, HixlCSClientBatchPutAsync(client, 1, many.data(), &refused));
    status = HIXL_COMPLETE_STATUS_WAITING;
    while (status == HIXL_COMPLETE_STATUS_WAITING) OK(HixlCSClientQueryCompleteStatus(client, complete, &status));
    OK(HixlCSClientBatchPutSync(client, 1, many.data(), 1000));
    OK(HixlCSClientUnregMem(client, handle));
    OK(HixlCSClientDestroy(client));
    other.say("end");
    EXPECT(0, other.end());
    OK(aclrtFree(device));
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
}

// With FERRY_STANDIN_HANG=1 the first transfer hangs and times out, and the client is unusable then.
int hang(const std::string &port) {
    start();
    Other other({"serve", port});
    void *remote = reinterpret_cast<void *>(strtoull(other.hear().c_str(), nullptr, 16));
    const EndpointDesc place = endpoint(ENDPOINT_LOC_TYPE_DEVICE);
    const HixlClientDesc desc = client_of(&place, static_cast<uint32_t>(atoi(port.c_str())));
    void *client, *handle, *device;
    OK(aclrtMalloc(&device, huge, ACL_MEM_MALLOC_HUGE_ONLY));
    const CommMem memory = {COMM_MEM_TYPE_DEVICE, device, huge};
    OK(HixlCSClientCreate(&desc, nullptr, &client));
    OK(HixlCSClientRegMem(client, nullptr, &memory, &handle));
    OK(HixlCSClientConnect(client, 1000));
    CommMem *list;
    char **tags;
    uint32_t count;
    OK(HixlCSClientGetRemoteMem(client, &list, &tags, &count, 1000));
    HixlOneSideOpDesc one = {remote, device, 64};
    EXPECT(HIXL_TIMEOUT, HixlCSClientBatchPutSync(client, 1, &one, 50));
    EXPECT(HIXL_FAILED, HixlCSClientBatchPutSync(client, 1, &one, 1000));
    OK(HixlCSClientDestroy(client));
    OK(HixlCSClientCreate(&desc, nullptr, &client)); // a new one works
    OK(HixlCSClientRegMem(client, nullptr, &memory, &handle));
    OK(HixlCSClientConnect(client, 1000));
    OK(HixlCSClientGetRemoteMem(client, &list, &tags, &count, 1000));
    OK(HixlCSClientBatchPutSync(client, 1, &one, 1000));
    OK(HixlCSClientDestroy(client));
    other.say("end");
    EXPECT(0, other.end());
    return 0;
}

const char *const table =
    R"({"version":"1.0","server_count":"2","server_list":[)"
    R"({"server_id":"a","device":[{"device_id":"0","device_ip":"10.0.0.1","rank_id":"0"}]},)"
    R"({"server_id":"b","device":[{"device_id":"0","device_ip":"10.0.0.2","rank_id":"1"}]}],"status":"completed"})";

HcclCommConfig config_named(const std::string &name) {
    HcclCommConfig out = {};
    out.size = sizeof out;
    out.magic = HCCL_COMM_CONFIG_MAGIC_WORD;
    strncpy(out.hcclCommName, name.c_str(), sizeof out.hcclCommName - 1);
    return out;
}

// The other rank: binds, prepares, prints its address, checks.
int rank_one(const std::string &name) {
    start();
    std::vector<uint64_t> words(huge / 8);
    void *device, *handle, *comm, *plain = words.data();
    OK(aclrtMalloc(&device, huge, 0));
    HcclMem memory = {HCCL_MEM_TYPE_DEVICE, device, huge};
    OK(HcclRegisterGlobalMem(&memory, &handle));
    HcclCommConfig config = config_named(name);
    OK(HcclCommInitClusterInfoMemConfig(table, 1, &config, &comm));
    OK(HcclCommBindMem(comm, handle));
    HcclPrepareConfig prepare = {};
    OK(HcclCommPrepare(comm, &prepare, 10));
    char text[64];
    snprintf(text, sizeof text, "%p", device);
    said(text);
    heard();
    OK(aclrtMemcpy(plain, huge, device, huge, ACL_MEMCPY_DEVICE_TO_HOST));
    said(is_filled(plain, huge, 41) ? "good" : "bad");
    heard();
    OK(HcclCommDestroy(comm));
    OK(HcclDeregisterGlobalMem(handle));
    return 0;
}

void test_hccl() {
    start();
    std::vector<uint64_t> words(huge / 8);
    void *device, *handle, *comm, *stream, *plain = words.data(), *same;
    OK(aclrtMalloc(&device, huge, 0));
    OK(aclrtCreateStream(&stream));
    HcclMem memory = {HCCL_MEM_TYPE_HOST, device, huge};
    EXPECT(HCCL_E_PARA, HcclRegisterGlobalMem(&memory, &handle));
    memory.type = HCCL_MEM_TYPE_DEVICE;
    OK(HcclRegisterGlobalMem(&memory, &handle));
    const std::string name = "standin-" + std::to_string(getpid());
    HcclCommConfig config = config_named("");
    EXPECT(HCCL_E_PARA, HcclCommInitClusterInfoMemConfig(table, 0, &config, &comm));
    config = config_named(name);
    EXPECT(HCCL_E_PARA, HcclCommInitClusterInfoMemConfig(table, 2, &config, &comm));
    EXPECT(HCCL_E_PARA, HcclCommInitClusterInfoMemConfig("{\"version\":\"1.0\"}", 0, &config, &comm));
    OK(HcclCommInitClusterInfoMemConfig(table, 0, &config, &comm));
    EXPECT(HCCL_E_PARA, HcclCommInitClusterInfoMemConfig(table, 0, &config, &same));
    OK(HcclCommBindMem(comm, handle));
    EXPECT(HCCL_E_PARA, HcclDeregisterGlobalMem(handle)); // bound
    HcclOneSideOpDesc one = {device, device, huge, HCCL_DATA_TYPE_UINT8};
    EXPECT(HCCL_E_UNAVAIL, HcclBatchPut(comm, 1, &one, 1, stream)); // not prepared
    HcclPrepareConfig prepare = {};
    const long from = now_ms();
    EXPECT(HCCL_E_TIMEOUT, HcclCommPrepare(comm, &prepare, 1)); // nobody there
    CHECK(now_ms() - from >= 1000);

    Other other({"rank-one", name});
    OK(HcclCommPrepare(comm, &prepare, 10));
    void *remote = reinterpret_cast<void *>(strtoull(other.hear().c_str(), nullptr, 16));
    void *late;
    OK(HcclRegisterGlobalMem(&memory, &late));
    EXPECT(HCCL_E_PARA, HcclCommBindMem(comm, late));
    OK(HcclDeregisterGlobalMem(late));
    fill(plain, huge, 41);
    OK(aclrtMemcpy(device, huge, plain, huge, ACL_MEMCPY_HOST_TO_DEVICE));
    one.remoteAddr = remote;
    EXPECT(HCCL_E_PARA, HcclBatchPut(comm, 0, &one, 1, stream)); // oneself
    one.count++;
    EXPECT(HCCL_E_PARA, HcclBatchPut(comm, 1, &one, 1, stream));
    one.count--;
    one.dataType = 3;
    EXPECT(HCCL_E_NOT_SUPPORT, HcclBatchPut(comm, 1, &one, 1, stream));
    one.dataType = HCCL_DATA_TYPE_UINT8;
    OK(HcclBatchPut(comm, 1, &one, 1, stream));
    OK(aclrtSynchronizeStream(stream));
    other.say("check");
    CHECK(other.hear() == "good");
    memset(plain, 0, huge);
    OK(aclrtMemcpy(device, huge, plain, huge, ACL_MEMCPY_HOST_TO_DEVICE));
    OK(HcclBatchGet(comm, 1, &one, 1, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(plain, huge, device, huge, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(is_filled(plain, huge, 41));
    // The other end closes: later requests to it fail on the stream.
    other.say("end");
    EXPECT(0, other.end());
    OK(HcclBatchGet(comm, 1, &one, 1, stream));
    EXPECT(507018, aclrtSynchronizeStream(stream));
    OK(HcclCommUnbindMem(comm, handle));
    OK(HcclCommDestroy(comm));
    OK(HcclDeregisterGlobalMem(handle));
    OK(aclrtDestroyStream(stream));
    OK(aclrtFree(device));
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
}

} // namespace

int main(int count, char **arguments) {
    const std::vector<std::string> role(arguments + 1, arguments + count);
    if (role.size() == 2) {
        if (role[0] == "serve") return serve(role[1]);
        if (role[0] == "hang") return hang(role[1]);
        return rank_one(role[1]);
    }
    printf("net: HIXL\n");
    test_hixl();
    printf("net: HIXL, hanging\n");
    setenv("FERRY_STANDIN_HANG", "1", 1);
    Other other({"hang", free_port()});
    EXPECT(0, other.end());
    unsetenv("FERRY_STANDIN_HANG");
    printf("net: HCCL\n");
    test_hccl();
    printf("net: passed\n");
    return 0;
}
