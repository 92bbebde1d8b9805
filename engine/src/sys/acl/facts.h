/*
 * What ferry uses of AscendCL, as facts of its binary interface: the names, numbers and layouts that are
 * documented, in ferry's own words. Not a copy of a vendor's header, and not complete.
 *
 * Functions are typedefs, because they are looked up at run time: `aclInit` is the type of a pointer to
 * that function. Every one returns 0 or an error, unless it says otherwise. bindings.rs is made from this file:
 * UPDATE=1 cargo test -p ferry --test acl
 */
#ifndef FERRY_ACL_FACTS_H
#define FERRY_ACL_FACTS_H

#include <stddef.h>
#include <stdint.h>

/* ---- errors ---- */

#define ACL_INVALID 100000
#define ACL_UNINITIALISED 100001
#define ACL_INITIALISED_BEFORE 100002
#define ACL_BAD_ALLOCATION 200000
#define ACL_PARAMETER 107000
#define ACL_DEVICE_ID 107001
#define ACL_NO_CONTEXT 107002
#define ACL_STREAM_OF_OTHER_CONTEXT 107003
#define ACL_HANDLE 107017
#define ACL_WAIT_TIMEOUT 107019
#define ACL_NOT_SUPPORTED 207000
#define ACL_OUT_OF_MEMORY 207001
#define ACL_NO_PERMISSION 207006
#define ACL_OUT_OF_DEVICE_MEMORY 207018
/* From here on what the device or its driver reports. */
#define ACL_DEVICE_ERRORS_MIN 507000
#define ACL_IPC 507022
#define ACL_HOST_REGISTERED_BEFORE 507910
#define ACL_HOST_NOT_REGISTERED 507911
#define ACL_DEVICE_ERRORS_MAX 507999

/* ---- values of parameters ---- */

#define ACL_COPY_HOST_TO_DEVICE 1
#define ACL_COPY_DEVICE_TO_HOST 2
#define ACL_COPY_DEVICE_TO_DEVICE 3
#define ACL_MALLOC_HUGE_FIRST 0
#define ACL_MALLOC_HUGE_ONLY 1
#define ACL_AT_HOST 0
#define ACL_AT_DEVICE 1
#define ACL_AT_UNREGISTERED 2
#define ACL_AT_MANAGED 3
#define ACL_HOST_REGISTER_MAPPED 0
#define ACL_STREAM_FAST_LAUNCH 1
#define ACL_STREAM_FAST_SYNC 2
#define ACL_STREAM_COMPLETE 0
#define ACL_STREAM_NOT_READY 1
/* Else a stream goes on behind a task that failed. */
#define ACL_STOP_ON_FAILURE 1
/* An event that can be asked whether the stream has got to it. */
#define ACL_EVENT_PROGRESS 2
#define ACL_EVENT_NOT_READY 0
#define ACL_EVENT_COMPLETE 1
#define ACL_IPC_ENABLE_PEER_ACCESS 1
/* With the terminating zero. */
#define ACL_IPC_KEY_BYTES 65

/* ---- layouts ---- */

typedef struct {
    uint32_t id;
    int32_t type;
} acl_location;

typedef struct {
    acl_location location;
    uint32_t page_size;
    uint32_t reserved[4];
} acl_pointer_attributes;

typedef struct {
    acl_location target;
    acl_location source;
    uint8_t reserved[16];
} acl_batch_attribute;

/* ---- the library ---- */

typedef int (*aclInit)(const char *config_path);
typedef int (*aclFinalize)(void);
/* Undoes one aclInit, also one that said "initialised before"; the last one ends everything. */
typedef int (*aclFinalizeReference)(uint64_t *left);
/* Of the calling thread's last failed call; may be NULL. */
typedef const char *(*aclGetRecentErrMsg)(void);

/* ---- devices and contexts; a thread has at most one current context ---- */

typedef int (*aclrtGetDeviceCount)(uint32_t *count);
typedef int (*aclrtGetPhyDevIdByLogicDevId)(int32_t device, int32_t *physical);
typedef int (*aclrtCreateContext)(void **context, int32_t device);
typedef int (*aclrtDestroyContext)(void *context);
typedef int (*aclrtSetCurrentContext)(void *context);
typedef int (*aclrtGetCurrentContext)(void **context);
typedef int (*aclrtDeviceCanAccessPeer)(int32_t *can, int32_t device, int32_t peer);
typedef int (*aclrtDeviceEnablePeerAccess)(int32_t peer, uint32_t flags);
/* The process as the driver knows it, which differs from getpid in a container. */
typedef int (*aclrtDeviceGetBareTgid)(int32_t *process);

/* ---- memory ---- */

typedef int (*aclrtMalloc)(void **address, size_t length, int policy);
typedef int (*aclrtFree)(void *address);
typedef int (*aclrtMallocHost)(void **address, size_t length);
typedef int (*aclrtFreeHost)(void *address);
typedef int (*aclrtHostRegister)(void *address, uint64_t length, int type, void **device_address);
typedef int (*aclrtHostUnregister)(void *address);
typedef int (*aclrtPointerGetAttributes)(const void *address, acl_pointer_attributes *attributes);
typedef int (*aclrtMemGetAddressRange)(void *address, void **base, size_t *length);

/* ---- copies ---- */

/* Returns when the copy has been made. */
typedef int (*aclrtMemcpy)(void *target, size_t target_length, const void *source, size_t length, int kind);
/* Host memory that is not locked makes it synchronous. */
typedef int (*aclrtMemcpyAsync)(void *target, size_t target_length, const void *source, size_t length, int kind,
                                void *stream);
/* Between host and device only, all in one direction, in no order; an attribute holds from its index on. */
typedef int (*aclrtMemcpyBatchAsync)(void **targets, size_t *target_lengths, void **sources, size_t *lengths,
                                     size_t count, acl_batch_attribute *attributes, size_t *attribute_indexes,
                                     size_t attribute_count, size_t *failed_index, void *stream);

/* ---- streams and events ---- */

typedef int (*aclrtCreateStreamWithConfig)(void **stream, uint32_t priority, uint32_t flags);
typedef int (*aclrtDestroyStream)(void *stream);
/* Holds, on most devices, for all streams of the context. */
typedef int (*aclrtSetStreamFailureMode)(void *stream, uint64_t mode);
typedef int (*aclrtStreamQuery)(void *stream, int *status);
/* Stops what runs, and drops what has not begun. */
typedef int (*aclrtStreamAbort)(void *stream);
typedef int (*aclrtSynchronizeStreamWithTimeout)(void *stream, int32_t timeout_ms);
typedef int (*aclrtCreateEventWithFlag)(void **event, uint32_t flags);
typedef int (*aclrtDestroyEvent)(void *event);
typedef int (*aclrtRecordEvent)(void *event, void *stream);
typedef int (*aclrtQueryEventStatus)(void *event, int *status);

/* ---- memory of other processes ---- */

typedef int (*aclrtIpcMemGetExportKey)(void *base, size_t length, char *key, size_t key_bytes, uint64_t flags);
typedef int (*aclrtIpcMemSetImportPid)(const char *key, int32_t *processes, size_t count);
typedef int (*aclrtIpcMemImportByKey)(void **base, const char *key, uint64_t flags);
/* By the importers first, then by the exporter. */
typedef int (*aclrtIpcMemClose)(const char *key);

/* Takes the address that the memory was mapped at, and a reference. */
typedef int (*aclrtMemRetainAllocationHandle)(void *base, void **handle);
typedef int (*aclrtFreePhysical)(void *handle);
typedef int (*aclrtMemExportToShareableHandle)(void *handle, int type, uint64_t flags, uint64_t *shareable);
typedef int (*aclrtMemSetPidToShareableHandle)(uint64_t shareable, int32_t *processes, size_t count);
typedef int (*aclrtMemImportFromShareableHandle)(uint64_t shareable, int32_t device, void **handle);
typedef int (*aclrtReserveMemAddress)(void **address, size_t length, size_t alignment, void *wanted,
                                      uint64_t flags);
typedef int (*aclrtReleaseMemAddress)(void *address);
typedef int (*aclrtMapMem)(void *address, size_t length, size_t offset, void *handle, uint64_t flags);
typedef int (*aclrtUnmapMem)(void *address);

/* ---- memory of other hosts: HIXL's C interface, in a library of its own, with these layouts from 9.1 on ---- */

#define HIXL_PARAMETER 103900
#define HIXL_TIMEOUT 103901
#define HIXL_NOT_CONNECTED 103902
#define HIXL_OVER_HCCS 0
#define HIXL_OVER_ROCE 1
#define HIXL_ADDRESS_IPV4 0
#define HIXL_ADDRESS_ID 2
#define HIXL_AT_DEVICE 0
#define HIXL_WAITING 0
#define HIXL_COMPLETED 1

/* What is not used is 0xff. */
typedef struct {
    int32_t protocol;
    int32_t address_type;
    /* An IPv4 address in the network's order, or a number. */
    uint8_t address[36];
    int32_t location;
    uint32_t physical_device;
    uint32_t super_device;
    uint8_t rest[104];
} hixl_endpoint;

typedef struct {
    int32_t location;
    void *address;
    uint64_t length;
} hixl_memory;

typedef struct {
    const hixl_endpoint *endpoints;
    const char *host;
    uint32_t port;
    uint32_t count;
    uint8_t reserved[104];
} hixl_server_description;

typedef struct {
    const hixl_endpoint *local;
    const hixl_endpoint *remote;
    const char *host;
    uint32_t port;
    uint8_t traffic_class;
    uint8_t service_level;
    uint8_t reserved[98];
} hixl_client_description;

/* All zeros: as the library likes it. */
typedef struct {
    uint8_t reserved[128];
} hixl_options;

typedef struct {
    void *remote;
    void *local;
    uint64_t length;
} hixl_piece;

typedef uint32_t (*HixlCSServerCreate)(const hixl_server_description *description, const hixl_options *options,
                                       void **server);
/* Memory is registered before the first client comes, and stays until the last has gone. */
typedef uint32_t (*HixlCSServerRegMem)(void *server, const char *tag, const hixl_memory *memory, void **handle);
typedef uint32_t (*HixlCSServerUnregMem)(void *server, void *handle);
typedef uint32_t (*HixlCSServerListen)(void *server, uint32_t backlog);
typedef uint32_t (*HixlCSServerDestroy)(void *server);
typedef uint32_t (*HixlCSClientCreate)(const hixl_client_description *description, const hixl_options *options,
                                       void **client);
/* Before it connects. */
typedef uint32_t (*HixlCSClientRegMem)(void *client, const char *tag, const hixl_memory *memory, void **handle);
typedef uint32_t (*HixlCSClientConnect)(void *client, uint32_t timeout_ms);
/* The lists are the client's, until the next call. */
typedef uint32_t (*HixlCSClientGetRemoteMem)(void *client, hixl_memory **memory, char ***tags, uint32_t *count,
                                             uint32_t timeout_ms);
/* At most 4,096 pieces are outstanding; `complete` names them until their status was asked for. */
typedef uint32_t (*HixlCSClientBatchPutAsync)(void *client, uint32_t count, const hixl_piece *pieces,
                                              void **complete);
typedef uint32_t (*HixlCSClientBatchGetAsync)(void *client, uint32_t count, const hixl_piece *pieces,
                                              void **complete);
/* Its presence tells of these layouts. */
typedef uint32_t (*HixlCSClientBatchPutSync)(void *client, uint32_t count, const hixl_piece *pieces,
                                             uint32_t timeout_ms);
typedef uint32_t (*HixlCSClientQueryCompleteStatus)(void *client, void *complete, int32_t *status);
/* After a failure or a time-out nothing else is left to do with a client. */
typedef uint32_t (*HixlCSClientDestroy)(void *client);

#endif
