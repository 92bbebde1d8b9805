/* HIXL's C interface (9.1): names, signatures, layouts and values, as facts. */
#ifndef STANDIN_HIXL_H
#define STANDIN_HIXL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HIXL_SUCCESS = 0, HIXL_PARAM_INVALID = 103900, HIXL_TIMEOUT = 103901, HIXL_FAILED = 503900 };
enum { HIXL_COMPLETE_STATUS_WAITING, HIXL_COMPLETE_STATUS_COMPLETED, HIXL_COMPLETE_STATUS_TIMEOUT,
       HIXL_COMPLETE_STATUS_FAILED };
enum { COMM_PROTOCOL_HCCS = 0, COMM_PROTOCOL_ROCE = 1 };
enum { COMM_ADDR_TYPE_IP_V4 = 0, COMM_ADDR_TYPE_ID = 2 };
enum { ENDPOINT_LOC_TYPE_DEVICE = 0, ENDPOINT_LOC_TYPE_HOST = 1 };
enum { COMM_MEM_TYPE_DEVICE = 0, COMM_MEM_TYPE_HOST = 1 };

typedef uint32_t HixlStatus;
typedef struct { int32_t type; uint8_t value[36]; } CommAddr;
typedef struct { int32_t locType; uint8_t value[60]; } EndpointLoc;
/* 160 bytes; what is not used is 0xff. */
typedef struct { int32_t protocol; CommAddr commAddr; EndpointLoc loc; uint8_t rest[52]; } EndpointDesc;
typedef struct { int32_t type; void *addr; uint64_t size; } CommMem;
typedef struct { const EndpointDesc *local_endpoint, *remote_endpoint; const char *server_ip; uint32_t server_port;
                 uint8_t tc, sl, reserved[98]; } HixlClientDesc;
typedef struct { const EndpointDesc *endpoint_list; const char *server_ip; uint32_t server_port, endpoint_list_num;
                 uint8_t reserved[104]; } HixlServerDesc;
typedef struct { uint8_t reserved[128]; } HixlServerConfig;
typedef struct { uint8_t reserved[128]; } HixlClientConfig;
typedef struct { void *remote_buf, *local_buf; uint64_t len; } HixlOneSideOpDesc;

#pragma GCC visibility push(default)
HixlStatus HixlCSServerCreate(const HixlServerDesc *desc, const HixlServerConfig *config, void **server);
HixlStatus HixlCSServerRegMem(void *server, const char *tag, const CommMem *memory, void **handle);
HixlStatus HixlCSServerListen(void *server, uint32_t backlog);
HixlStatus HixlCSServerUnregMem(void *server, void *handle);
HixlStatus HixlCSServerDestroy(void *server);
HixlStatus HixlCSClientCreate(const HixlClientDesc *desc, const HixlClientConfig *config, void **client);
HixlStatus HixlCSClientConnect(void *client, uint32_t timeout_ms);
HixlStatus HixlCSClientGetRemoteMem(void *client, CommMem **memory, char ***tags, uint32_t *count, uint32_t timeout_ms);
HixlStatus HixlCSClientRegMem(void *client, const char *tag, const CommMem *memory, void **handle);
HixlStatus HixlCSClientUnregMem(void *client, void *handle);
HixlStatus HixlCSClientBatchPutAsync(void *client, uint32_t count, const HixlOneSideOpDesc *descs, void **complete);
HixlStatus HixlCSClientBatchGetAsync(void *client, uint32_t count, const HixlOneSideOpDesc *descs, void **complete);
HixlStatus HixlCSClientBatchPutSync(void *client, uint32_t count, const HixlOneSideOpDesc *descs, uint32_t timeout_ms);
HixlStatus HixlCSClientBatchGetSync(void *client, uint32_t count, const HixlOneSideOpDesc *descs, uint32_t timeout_ms);
HixlStatus HixlCSClientQueryCompleteStatus(void *client, void *complete, int *status);
HixlStatus HixlCSClientDestroy(void *client);
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
