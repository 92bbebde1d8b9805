/* The part of AscendCL that ferry may use: names, signatures, layouts and values, as facts. */
#ifndef STANDIN_ACL_H
#define STANDIN_ACL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ACL_SUCCESS = 0,
    ACL_ERROR_INVALID_PARAM = 100000,
    ACL_ERROR_UNINITIALIZE = 100001,
    ACL_ERROR_REPEAT_INITIALIZE = 100002,
    ACL_ERROR_BAD_ALLOC = 200000,
    ACL_ERROR_RT_PARAM_INVALID = 107000,
    ACL_ERROR_RT_INVALID_DEVICEID = 107001,
    ACL_ERROR_RT_CONTEXT_NULL = 107002,
    ACL_ERROR_RT_STREAM_CONTEXT = 107003,
    ACL_ERROR_RT_INVALID_HANDLE = 107017,
    ACL_ERROR_RT_WAIT_TIMEOUT = 107019,
    ACL_ERROR_RT_STREAM_ABORT = 107023,
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000,
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001,
    ACL_ERROR_RT_NO_PERMISSION = 207006,
    ACL_ERROR_RT_DEVICE_MEMORY_ALLOCATION = 207018,
    ACL_ERROR_RT_IPC = 507022,
    ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046,
    ACL_ERROR_RT_EVENT_SYNC_TIMEOUT = 507047,
    ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899,
    ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 507910,
    ACL_ERROR_HOST_MEMORY_NOT_REGISTERED = 507911,
};
enum { ACL_MEMCPY_HOST_TO_HOST, ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST, ACL_MEMCPY_DEVICE_TO_DEVICE,
       ACL_MEMCPY_DEFAULT };
enum { ACL_MEM_MALLOC_HUGE_FIRST, ACL_MEM_MALLOC_HUGE_ONLY, ACL_MEM_MALLOC_NORMAL_ONLY, ACL_MEM_MALLOC_HUGE_FIRST_P2P,
       ACL_MEM_MALLOC_HUGE_ONLY_P2P, ACL_MEM_MALLOC_NORMAL_ONLY_P2P };
enum { ACL_MEM_LOCATION_TYPE_HOST, ACL_MEM_LOCATION_TYPE_DEVICE, ACL_MEM_LOCATION_TYPE_UNREGISTERED,
       ACL_MEM_LOCATION_TYPE_MANAGED, ACL_MEM_LOCATION_TYPE_HOST_NUMA };
enum { ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT = 1, ACL_MEM_SHARE_HANDLE_TYPE_FABRIC = 2 };
enum { ACL_EVENT_SYNC = 1, ACL_EVENT_TIME_LINE = 8 };
enum { ACL_CONTINUE_ON_FAILURE, ACL_STOP_ON_FAILURE };
enum { ACL_STREAM_STATUS_COMPLETE, ACL_STREAM_STATUS_NOT_READY };
enum { ACL_EVENT_RECORDED_STATUS_NOT_READY, ACL_EVENT_RECORDED_STATUS_COMPLETE };
#define ACL_DISABLE_PID_VALIDATION 1u       /* exporting */
#define ACL_IPC_IMPORT_ENABLE_PEER_ACCESS 1u /* importing */
#define ACL_IPC_KEY_BYTES 65

typedef int aclError;
typedef struct { uint32_t id; int32_t type; } aclrtMemLocation;
typedef struct { aclrtMemLocation location; uint32_t pageSize, rsv[4]; } aclrtPtrAttributes;
typedef struct { int32_t handleType, allocationType, memAttr; aclrtMemLocation location; uint64_t reserve; } aclrtPhysicalMemProp;
typedef struct { aclrtMemLocation dstLoc, srcLoc; uint8_t rsv[16]; } aclrtMemcpyBatchAttr;
typedef struct { uint8_t data[128]; } aclrtMemFabricHandle;

#pragma GCC visibility push(default)
aclError aclInit(const char *config);
aclError aclFinalize(void);
aclError aclFinalizeReference(uint64_t *left);
const char *aclGetRecentErrMsg(void);
const char *aclrtGetSocName(void);
aclError aclrtSetDevice(int32_t device);
aclError aclrtGetDevice(int32_t *device);
aclError aclrtResetDevice(int32_t device);
aclError aclrtGetDeviceCount(uint32_t *count);
aclError aclrtGetPhyDevIdByLogicDevId(int32_t logical, int32_t *physical);
aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer);
aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags);
aclError aclrtDeviceGetBareTgid(int32_t *process);
aclError aclrtCreateContext(void **context, int32_t device);
aclError aclrtDestroyContext(void *context);
aclError aclrtSetCurrentContext(void *context);
aclError aclrtGetCurrentContext(void **context);

aclError aclrtMalloc(void **address, size_t size, int policy);
aclError aclrtFree(void *address);
aclError aclrtMallocHost(void **address, size_t size);
aclError aclrtFreeHost(void *address);
aclError aclrtHostRegister(void *address, uint64_t size, int type, void **device_address);
aclError aclrtHostUnregister(void *address);
aclError aclrtPointerGetAttributes(const void *address, aclrtPtrAttributes *attributes);
aclError aclrtMemGetAddressRange(void *address, void **base, size_t *size);
aclError aclrtMemcpy(void *target, size_t target_max, const void *source, size_t size, int kind);
aclError aclrtMemcpyAsync(void *target, size_t target_max, const void *source, size_t size, int kind, void *stream);
aclError aclrtMemcpyBatch(void **targets, size_t *target_max, void **sources, size_t *sizes, size_t count,
                          aclrtMemcpyBatchAttr *attributes, size_t *attribute_index, size_t attribute_count,
                          size_t *fail_index);
aclError aclrtMemcpyBatchAsync(void **targets, size_t *target_max, void **sources, size_t *sizes, size_t count,
                               aclrtMemcpyBatchAttr *attributes, size_t *attribute_index, size_t attribute_count,
                               size_t *fail_index, void *stream);

aclError aclrtCreateStream(void **stream);
aclError aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flag);
aclError aclrtDestroyStream(void *stream);
aclError aclrtSetStreamFailureMode(void *stream, uint64_t mode);
aclError aclrtStreamQuery(void *stream, int *status);
aclError aclrtStreamAbort(void *stream);
aclError aclrtSynchronizeStream(void *stream);
aclError aclrtSynchronizeStreamWithTimeout(void *stream, int32_t ms);
aclError aclrtStreamWaitEvent(void *stream, void *event);
aclError aclrtCreateEventWithFlag(void **event, uint32_t flag);
aclError aclrtDestroyEvent(void *event);
aclError aclrtRecordEvent(void *event, void *stream);
aclError aclrtQueryEventStatus(void *event, int *status);
aclError aclrtSynchronizeEventWithTimeout(void *event, int32_t ms);

aclError aclrtIpcMemGetExportKey(void *address, size_t size, char *key, size_t key_size, uint64_t flags);
aclError aclrtIpcMemSetImportPid(const char *key, int32_t *processes, size_t count);
aclError aclrtIpcMemImportByKey(void **address, const char *key, uint64_t flags);
aclError aclrtIpcMemClose(const char *key);

aclError aclrtMallocPhysical(void **handle, size_t size, const aclrtPhysicalMemProp *properties, uint64_t flags);
aclError aclrtFreePhysical(void *handle);
aclError aclrtReserveMemAddress(void **address, size_t size, size_t alignment, void *wanted, uint64_t flags);
aclError aclrtReleaseMemAddress(void *address);
aclError aclrtMapMem(void *address, size_t size, size_t offset, void *handle, uint64_t flags);
aclError aclrtUnmapMem(void *address);
aclError aclrtMemRetainAllocationHandle(void *address, void **handle);
aclError aclrtMemExportToShareableHandle(void *handle, int handle_type, uint64_t flags, uint64_t *shareable);
aclError aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t *processes, size_t count);
aclError aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, void **handle);
aclError aclrtMemExportToShareableHandleV2(void *handle, uint64_t flags, int share_type, void *shareable);
aclError aclrtMemSetPidToShareableHandleV2(void *shareable, int share_type, int32_t *processes, size_t count);
aclError aclrtMemImportFromShareableHandleV2(void *shareable, int share_type, uint64_t flags, void **handle);
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
