// Opens the libraries as ferry does: by dlopen, each on its own. HIXL must see AscendCL's memory and context.
#include "../ascend/acl.h"
#include "../net/hixl.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

namespace {

void *open_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        printf("%s\n", dlerror());
        exit(1);
    }
    return library;
}

template <typename F> F *symbol(void *library, F *, const char *name) {
    auto *found = reinterpret_cast<F *>(dlsym(library, name));
    if (found == nullptr) {
        printf("no %s\n", name);
        exit(1);
    }
    return found;
}
#define SYMBOL(library, name) symbol(library, static_cast<decltype(&name)>(nullptr), #name)

void expect(long expected, long got, const char *what) {
    if (expected == got) return;
    printf("%s is %ld, not %ld\n", what, got, expected);
    exit(1);
}

} // namespace

int main() {
    void *acl = open_library("./cann-9.1/libascendcl.so"), *hixl = open_library("./cann-9.1/libcann_hixl.so");
    open_library("./cann-9.1/libhcomm.so");
    void *device, *client, *handle;
    EndpointDesc place;
    memset(&place, 0xff, sizeof place);
    place.protocol = COMM_PROTOCOL_ROCE;
    place.loc.locType = ENDPOINT_LOC_TYPE_DEVICE;
    HixlClientDesc desc = {};
    desc.local_endpoint = desc.remote_endpoint = &place;
    desc.server_ip = "127.0.0.1";
    desc.server_port = 1;
    const auto create = SYMBOL(hixl, HixlCSClientCreate);
    expect(HIXL_FAILED, create(&desc, nullptr, &client), "a client before aclrtSetDevice");
    expect(0, SYMBOL(acl, aclInit)(nullptr), "aclInit");
    expect(0, SYMBOL(acl, aclrtSetDevice)(0), "aclrtSetDevice");
    expect(0, SYMBOL(acl, aclrtMalloc)(&device, 4096, 0), "aclrtMalloc");
    expect(0, create(&desc, nullptr, &client), "a client");
    const CommMem memory = {COMM_MEM_TYPE_DEVICE, device, 4096};
    expect(0, SYMBOL(hixl, HixlCSClientRegMem)(client, nullptr, &memory, &handle), "HixlCSClientRegMem");
    expect(0, SYMBOL(hixl, HixlCSClientUnregMem)(client, handle), "HixlCSClientUnregMem");
    expect(0, SYMBOL(hixl, HixlCSClientDestroy)(client), "HixlCSClientDestroy");
    expect(0, SYMBOL(acl, aclrtFree)(device), "aclrtFree");
    expect(0, SYMBOL(acl, aclrtResetDevice)(0), "aclrtResetDevice");
    expect(0, SYMBOL(acl, aclFinalize)(), "aclFinalize");
    printf("opened: passed\n");
    return 0;
}
