// AscendCL between processes: IPC keys and shareable handles.
#include "../ascend/acl.h"
#include "check.h"

namespace {

constexpr size_t huge = 2 << 20;

// Says the code of each line that it is told to do: `allow`, `key KEY FLAGS`, `copy`, `close`, `handle N`,
// `fabric HEX`, `free`.
int importer() {
    OK(aclInit(nullptr));
    OK(aclrtSetDevice(0));
    void *stream, *local, *plain = malloc(huge), *address = nullptr, *handle = nullptr;
    OK(aclrtCreateStream(&stream));
    OK(aclrtMalloc(&local, huge, 0));
    std::string key;
    while (true) {
        const std::string line = heard();
        char word[16] = "", text[300] = "";
        unsigned long number = 0;
        sscanf(line.c_str(), "%15s %299s %lu", word, text, &number);
        int code = -1;
        const std::string what = word;
        if (what == "key") {
            key = text;
            code = aclrtIpcMemImportByKey(&address, text, number);
        } else if (what == "peer") {
            code = aclrtDeviceEnablePeerAccess(1, 0);
        } else if (what == "copy") { // what is there, checked, and something else put in its place
            code = aclrtMemcpyAsync(local, huge, address, huge, ACL_MEMCPY_DEVICE_TO_DEVICE, stream);
            if (code == 0) {
                OK(aclrtSynchronizeStream(stream));
                OK(aclrtMemcpy(plain, huge, local, huge, ACL_MEMCPY_DEVICE_TO_HOST));
                CHECK(is_filled(plain, huge, 11));
                fill(plain, huge, 12);
                OK(aclrtMemcpy(local, huge, plain, huge, ACL_MEMCPY_HOST_TO_DEVICE));
                OK(aclrtMemcpyAsync(address, huge, local, huge, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
                OK(aclrtSynchronizeStream(stream));
            }
        } else if (what == "host") {
            code = aclrtMemcpyAsync(plain, huge, address, huge, ACL_MEMCPY_DEVICE_TO_HOST, stream);
        } else if (what == "default") {
            code = aclrtMemcpyAsync(local, huge, address, huge, ACL_MEMCPY_DEFAULT, stream);
        } else if (what == "sync") {
            code = aclrtMemcpy(local, huge, address, huge, ACL_MEMCPY_DEVICE_TO_DEVICE);
        } else if (what == "close") {
            code = aclrtIpcMemClose(key.c_str());
        } else if (what == "touch") {
            *static_cast<volatile char *>(address) = 1;
        } else if (what == "handle") {
            code = aclrtMemImportFromShareableHandle(strtoull(text, nullptr, 10), 0, &handle);
            if (code == 0) {
                OK(aclrtReserveMemAddress(&address, huge, 0, nullptr, 0));
                OK(aclrtMapMem(address, huge, 0, handle, 0));
            }
        } else if (what == "free") {
            OK(aclrtUnmapMem(address));
            OK(aclrtReleaseMemAddress(address));
            code = aclrtFreePhysical(handle);
        }
        said(std::to_string(code));
    }
}

long ask(Other &other, const std::string &line) {
    other.say(line);
    return atol(other.hear().c_str());
}

void test_keys() {
    void *device;
    std::vector<char> data(huge);
    char key[ACL_IPC_KEY_BYTES];
    OK(aclrtMalloc(&device, huge, ACL_MEM_MALLOC_HUGE_ONLY));
    fill(data.data(), huge, 11);
    OK(aclrtMemcpy(device, huge, data.data(), huge, ACL_MEMCPY_HOST_TO_DEVICE));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtIpcMemGetExportKey(device, huge, key, 64, 0));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, aclrtIpcMemGetExportKey(static_cast<char *>(device) + 4096, 4096, key, 65, 0));
    OK(aclrtIpcMemGetExportKey(device, huge, key, 65, 0));
    EXPECT(64, strlen(key));
    void *own;
    EXPECT(ACL_ERROR_RT_IPC, aclrtIpcMemImportByKey(&own, key, 0)); // the same process

    Other other({"importer"});
    const std::string import = std::string("key ") + key;
    EXPECT(ACL_ERROR_RT_NO_PERMISSION, ask(other, import + " 0"));
    int32_t process = other.process;
    OK(aclrtIpcMemSetImportPid(key, &process, 1));
    EXPECT(ACL_ERROR_RT_IPC, ask(other, "key " + std::string(64, 'a') + " 0"));
    OK(ask(other, import + " 0"));
    EXPECT(ACL_ERROR_RT_IPC, ask(other, import + " 0")); // once is enough
    OK(ask(other, "copy"));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, ask(other, "host"));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, ask(other, "default"));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, ask(other, "sync"));
    OK(aclrtMemcpy(data.data(), huge, device, huge, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(is_filled(data.data(), huge, 12));
    // Importers close first.
    EXPECT(ACL_ERROR_RT_IPC, aclrtIpcMemClose(key));
    EXPECT(ACL_ERROR_RT_DRV_INTERNAL_ERROR, aclrtFree(device));
    OK(ask(other, "close"));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, ask(other, "close"));
    OK(aclrtIpcMemClose(key));
    EXPECT(ACL_ERROR_RT_IPC, ask(other, import + " 0"));
    EXPECT(0, other.end());

    // Without a whitelist; a process that ended no longer counts; and nobody touches what was imported.
    OK(aclrtIpcMemGetExportKey(device, huge, key, 65, 1));
    Other toucher({"importer"});
    OK(ask(toucher, std::string("key ") + key + " 1"));
    EXPECT(ACL_ERROR_RT_IPC, aclrtIpcMemClose(key));
    toucher.say("touch");
    CHECK(WIFSIGNALED(toucher.end()));
    OK(aclrtIpcMemClose(key));

    // Memory of another device: by flag, or by enabling access to it.
    void *far, *first;
    OK(aclrtGetCurrentContext(&first));
    OK(aclrtSetDevice(1));
    OK(aclrtMalloc(&far, huge, 0));
    OK(aclrtIpcMemGetExportKey(far, huge, key, 65, 1));
    fill(data.data(), huge, 11);
    OK(aclrtMemcpy(far, huge, data.data(), huge, ACL_MEMCPY_HOST_TO_DEVICE));
    Other apart({"importer"});
    OK(ask(apart, std::string("key ") + key + " 0"));
    EXPECT(ACL_ERROR_RT_PARAM_INVALID, ask(apart, "copy"));
    OK(ask(apart, "peer"));
    OK(ask(apart, "copy"));
    OK(ask(apart, "close"));
    OK(aclrtMemcpy(far, huge, data.data(), huge, ACL_MEMCPY_HOST_TO_DEVICE));
    EXPECT(0, apart.end());
    Other flagged({"importer"});
    OK(ask(flagged, std::string("key ") + key + " 1"));
    OK(ask(flagged, "copy"));
    OK(ask(flagged, "close"));
    EXPECT(0, flagged.end());
    OK(aclrtIpcMemClose(key));
    OK(aclrtFree(far));
    OK(aclrtResetDevice(1));
    OK(aclrtSetCurrentContext(first));

    // PCIe: keys can be made, and not imported.
    OK(aclrtIpcMemGetExportKey(device, huge, key, 65, 1));
    setenv("FERRY_STANDIN_PCIE", "1", 1);
    Other pcie({"importer"});
    unsetenv("FERRY_STANDIN_PCIE");
    EXPECT(ACL_ERROR_RT_DRV_INTERNAL_ERROR, ask(pcie, std::string("key ") + key + " 0"));
    EXPECT(0, pcie.end());
    OK(aclrtIpcMemClose(key));
    OK(aclrtFree(device));
    OK(aclrtMalloc(&device, 1000, 0));
    EXPECT(ACL_ERROR_RT_DRV_INTERNAL_ERROR, aclrtIpcMemGetExportKey(device, 1000, key, 65, 0));
    OK(aclrtFree(device));
}

void test_handles() {
    aclrtPhysicalMemProp properties = {};
    properties.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    void *handle, *base;
    uint64_t shareable;
    std::vector<char> data(huge);
    OK(aclrtMallocPhysical(&handle, huge, &properties, 0));
    OK(aclrtReserveMemAddress(&base, huge, 0, nullptr, 0));
    OK(aclrtMapMem(base, huge, 0, handle, 0));
    fill(data.data(), huge, 11);
    OK(aclrtMemcpy(base, huge, data.data(), huge, ACL_MEMCPY_HOST_TO_DEVICE));
    OK(aclrtMemExportToShareableHandle(handle, 0, 0, &shareable));
    Other other({"importer"});
    const std::string import = "handle " + std::to_string(shareable);
    EXPECT(ACL_ERROR_RT_NO_PERMISSION, ask(other, import));
    int32_t process = other.process;
    OK(aclrtMemSetPidToShareableHandle(shareable, &process, 1));
    EXPECT(ACL_ERROR_RT_DRV_INTERNAL_ERROR, ask(other, "handle 17"));
    OK(ask(other, import));
    EXPECT(ACL_ERROR_RT_DRV_INTERNAL_ERROR, ask(other, import));
    OK(ask(other, "copy"));
    OK(aclrtMemcpy(data.data(), huge, base, huge, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(is_filled(data.data(), huge, 12));
    // The exporter's end of it may come first; the memory is there until the last one lets go.
    fill(data.data(), huge, 11);
    OK(aclrtMemcpy(base, huge, data.data(), huge, ACL_MEMCPY_HOST_TO_DEVICE));
    OK(aclrtUnmapMem(base));
    OK(aclrtReleaseMemAddress(base));
    OK(aclrtFreePhysical(handle));
    OK(ask(other, "copy"));
    OK(ask(other, "free"));
    EXPECT(ACL_ERROR_RT_DRV_INTERNAL_ERROR, ask(other, import));
    EXPECT(0, other.end());
}

} // namespace

int play(const std::vector<std::string> &role) { return role[0] == "importer" ? importer() : 2; }

void test_processes() {
    OK(aclInit(nullptr));
    OK(aclrtSetDevice(0));
    test_keys();
    test_handles();
    OK(aclrtResetDevice(0));
    EXPECT(0, standin_audit());
    OK(aclFinalize());
}
