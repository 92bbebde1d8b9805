// CUDA's virtual memory, and memory between processes: IPC handles and file descriptors.
#include "cuda_self.h"

#include <sys/socket.h>
#include <sys/un.h>

namespace {

constexpr size_t huge = 2 << 20;

CUmemAllocationProp properties(int types) {
    CUmemAllocationProp out = {};
    out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    out.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    out.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return out;
}

CUmemAccessDesc access_of(int device) {
    CUmemAccessDesc out = {};
    out.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    out.location.id = device;
    out.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return out;
}

CUdeviceptr map(CUmemGenericAllocationHandle handle) {
    CUdeviceptr address;
    const CUmemAccessDesc access = access_of(0);
    OK(cuMemAddressReserve(&address, huge, 0, 0, 0));
    OK(cuMemMap(address, huge, 0, handle, 0));
    OK(cuMemSetAccess(address, huge, &access, 1));
    return address;
}
void unmap(CUdeviceptr address) {
    OK(cuMemUnmap(address, huge));
    OK(cuMemAddressFree(address, huge));
}

std::string hex(const CUipcMemHandle &handle) { return std::string(handle.reserved, sizeof handle.reserved); }

// A byte and room for a descriptor (SCM_RIGHTS).
struct FileMessage {
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
    iovec part = {&byte, 1};
    msghdr message = {};
    FileMessage() {
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
    }
};
void send_file(int socket, int file) {
    FileMessage sent;
    msghdr &message = sent.message;
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &file, sizeof file);
    CHECK(sendmsg(socket, &message, 0) == 1);
}
int receive_file(const std::string &path) {
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, path.data(), path.size());
    CHECK(bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0 && listen(listener, 1) == 0);
    said("listening");
    const int peer = accept(listener, nullptr, nullptr);
    FileMessage received;
    CHECK(recvmsg(peer, &received.message, 0) == 1);
    int file;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&received.message)), sizeof file);
    close(peer);
    close(listener);
    return file;
}

// `open HANDLE`, `copy`, `close`, `touch`, `file`: says the code of each.
int importer() {
    start();
    CUdeviceptr address = 0;
    std::vector<char> data(huge);
    while (true) {
        const std::string line = heard();
        const std::string what = line.substr(0, line.find(' '));
        int code = -1;
        if (what == "open") {
            CUipcMemHandle handle;
            memcpy(handle.reserved, line.c_str() + 5, sizeof handle.reserved);
            code = cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        } else if (what == "copy") {
            code = cuMemcpyDtoH_v2(data.data(), address, huge);
            CHECK(is_filled(data.data(), huge, 21));
            fill(data.data(), huge, 22);
            OK(cuMemcpyHtoD_v2(address, data.data(), huge));
        } else if (what == "close") {
            code = cuIpcCloseMemHandle(address);
        } else if (what == "free") {
            code = cuMemFree_v2(address);
        } else if (what == "touch") {
            code = *reinterpret_cast<volatile char *>(address);
        } else if (what == "file") {
            const int file = receive_file(line.substr(5));
            CUmemGenericAllocationHandle handle;
            void *as_pointer = reinterpret_cast<void *>(static_cast<intptr_t>(file));
            OK(cuMemImportFromShareableHandle(&handle, as_pointer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
            close(file); // the import has its own
            address = map(handle);
            OK(cuMemRelease(handle));
            code = 0;
        } else if (what == "unmap") {
            unmap(address);
            code = 0;
        }
        said(std::to_string(code));
    }
}

long ask(Other &other, const std::string &line) {
    other.say(line);
    return atol(other.hear().c_str());
}

int crash(const std::string &what) {
    start();
    CUdeviceptr device;
    OK(cuMemAlloc_v2(&device, huge));
    if (what == "crash-read") return *reinterpret_cast<volatile char *>(device);
    // crash-freed: memory that another process has open is freed.
    CUipcMemHandle handle;
    OK(cuIpcGetMemHandle(&handle, device));
    Other other({"importer"});
    OK(ask(other, "open " + hex(handle)));
    cuMemFree_v2(device);
    return 0;
}

} // namespace

int play(const std::vector<std::string> &role) {
    if (role[0].rfind("crash", 0) == 0) return crash(role[0]);
    return role[0] == "importer" ? importer() : 2;
}

void test_virtual_memory() {
    start();
    size_t granularity;
    CUmemAllocationProp plain = properties(CU_MEM_HANDLE_TYPE_NONE), shared = properties(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    OK(cuMemGetAllocationGranularity(&granularity, &plain, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT(huge, granularity);
    CUmemGenericAllocationHandle one, two, again;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&one, huge - 4096, &plain, 0));
    CUmemAllocationProp fabric = properties(CU_MEM_HANDLE_TYPE_FABRIC);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&one, huge, &fabric, 0));
    OK(cuMemCreate(&one, huge, &plain, 0));
    OK(cuMemCreate(&two, huge, &shared, 0));
    CUdeviceptr base;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&base, huge + 4096, 0, 0, 0));
    OK(cuMemAddressReserve(&base, 2 * huge, 0, 0, 0));
    OK(cuMemMap(base, huge, 0, one, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, huge, 0, two, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(base + 2 * huge, huge, 0, two, 0));
    OK(cuMemMap(base + huge, huge, 0, two, 0));
    std::vector<char> data(256), back(256);
    fill(data.data(), 256, 1);
    CUmemAccessDesc access = access_of(0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(base + huge - 128, data.data(), 256)); // no access yet
    OK(cuMemSetAccess(base, huge, &access, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(base + huge - 128, data.data(), 256)); // to the second neither
    OK(cuMemSetAccess(base + huge, huge, &access, 1));
    OK(cuMemcpyHtoD_v2(base + huge - 128, data.data(), 256));
    OK(cuMemcpyDtoH_v2(back.data(), base + huge - 128, 256));
    CHECK(is_filled(back.data(), 256, 1));
    uint64_t types = 0;
    OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, base + huge));
    EXPECT(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, types);
    CUipcMemHandle ipc;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, base));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(base));
    int file;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemExportToShareableHandle(&file, one, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(base + 100)));
    CHECK(again == one);
    OK(cuMemRelease(again));
    CUmemAllocationProp got;
    OK(cuMemGetAllocationPropertiesFromHandle(&got, two));
    EXPECT(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, got.requestedHandleTypes);
    OK(cuMemRelease(one)); // the mapping keeps it
    OK(cuMemcpyDtoH_v2(back.data(), base, 8));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(base, huge / 2));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, 2 * huge));
    OK(cuMemUnmap(base, 2 * huge));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, huge));
    OK(cuMemAddressFree(base, 2 * huge));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(one));
    OK(cuMemRelease(two));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemImportFromShareableHandle(&one, reinterpret_cast<void *>(intptr_t(1)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    finish();
}

void test_processes() {
    start();
    std::vector<char> data(huge);
    CUdeviceptr device, same;
    CUipcMemHandle handle, second;
    OK(cuMemAlloc_v2(&device, huge));
    fill(data.data(), huge, 21);
    OK(cuMemcpyHtoD_v2(device, data.data(), huge));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, device + 64));
    OK(cuIpcGetMemHandle(&handle, device));
    OK(cuIpcGetMemHandle(&second, device));
    EXPECT(0, memcmp(&handle, &second, sizeof handle));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle_v2(&same, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&same, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    Other other({"importer"});
    OK(ask(other, "open " + hex(handle)));
    OK(ask(other, "open " + hex(handle))); // counted
    OK(ask(other, "copy"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, ask(other, "free"));
    OK(ask(other, "close"));
    OK(cuMemcpyDtoH_v2(data.data(), device, huge));
    CHECK(is_filled(data.data(), huge, 22));
    OK(ask(other, "close"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, ask(other, "close"));
    OK(cuMemFree_v2(device));
    EXPECT(CUDA_ERROR_MAP_FAILED, ask(other, "open " + hex(handle)));

    // Virtual memory by descriptor; the importer's lives on when the exporter's is gone.
    CUmemAllocationProp shared = properties(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle physical;
    int file;
    OK(cuMemCreate(&physical, huge, &shared, 0));
    const CUdeviceptr mapped = map(physical);
    fill(data.data(), huge, 21);
    OK(cuMemcpyHtoD_v2(mapped, data.data(), huge));
    OK(cuMemExportToShareableHandle(&file, physical, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    const std::string path = "standin-self-" + std::to_string(getpid());
    other.say("file " + path);
    CHECK(other.hear() == "listening");
    const int client = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path + 1, path.data(), path.size());
    CHECK(connect(client, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
    send_file(client, file);
    EXPECT(0, atol(other.hear().c_str()));
    close(client);
    close(file);
    unmap(mapped);
    OK(cuMemRelease(physical));
    OK(ask(other, "copy"));
    OK(ask(other, "unmap"));
    EXPECT(0, other.end());
    finish();
}
