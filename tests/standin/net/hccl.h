/* HCCL's one-sided communication: names, signatures, layouts and values, as facts. */
#ifndef STANDIN_HCCL_H
#define STANDIN_HCCL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HCCL_SUCCESS = 0, HCCL_E_PARA = 1, HCCL_E_PTR = 2, HCCL_E_INTERNAL = 4, HCCL_E_NOT_SUPPORT = 5,
       HCCL_E_NOT_FOUND = 6, HCCL_E_UNAVAIL = 7, HCCL_E_TIMEOUT = 9, HCCL_E_TCP_CONNECT = 11 };
enum { HCCL_MEM_TYPE_DEVICE = 0, HCCL_MEM_TYPE_HOST = 1 };
enum { HCCL_DATA_TYPE_UINT8 = 7 };

typedef struct { int32_t type; void *addr; uint64_t size; } HcclMem;
typedef struct { void *localAddr, *remoteAddr; uint64_t count; int32_t dataType; } HcclOneSideOpDesc;
typedef struct { int32_t topoType; uint64_t rsvd[3]; } HcclPrepareConfig;
/* The head of it, as HcclCommConfigInit fills it in. */
typedef struct { size_t size; uint32_t magic, version; uint64_t reserved; uint32_t hcclBufferSize, hcclDeterministic;
                 char hcclCommName[128]; } HcclCommConfig;
#define HCCL_COMM_CONFIG_MAGIC_WORD 0xf0f0f0f0u

#pragma GCC visibility push(default)
int HcclRegisterGlobalMem(HcclMem *memory, void **handle);
int HcclDeregisterGlobalMem(void *handle);
int HcclCommInitClusterInfoMemConfig(const char *rank_table, uint32_t rank, HcclCommConfig *config, void **comm);
int HcclCommBindMem(void *comm, void *memory);
int HcclCommUnbindMem(void *comm, void *memory);
int HcclCommPrepare(void *comm, HcclPrepareConfig *config, int timeout_s);
int HcclBatchPut(void *comm, uint32_t remote_rank, HcclOneSideOpDesc *descs, uint32_t count, void *stream);
int HcclBatchGet(void *comm, uint32_t remote_rank, HcclOneSideOpDesc *descs, uint32_t count, void *stream);
int HcclCommDestroy(void *comm);
#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
