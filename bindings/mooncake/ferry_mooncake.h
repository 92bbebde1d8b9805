/*
 * The C interface of Mooncake's Transfer Engine, as libferry_mooncake.so provides it. Programs that are
 * written or compiled for Mooncake's own header need no other one; this is for those that have none.
 *
 * Strings and lists are read before a call returns and not kept. Memory that is registered, or that a
 * transfer names, is the caller's to keep until it is unregistered and the transfer's tasks are final.
 * Every function but destroyTransferEngine may be called from any thread at any time.
 *
 * Failures are numbers below zero, those of submitTransfer, submitTransferWithNotify, getTransferStatus and
 * freeBatchID above: 1 a wrong argument, 2 too many, 3 memory that is not registered or not granted, 4 busy,
 * 7 overlap, 8 no such transport, 102 no answer, 104 refused by the peer, 202 the engine or the system,
 * 302 no memory. With FERRY_LOG=1 in the environment a line on stderr says more.
 */
#ifndef FERRY_MOONCAKE_H
#define FERRY_MOONCAKE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *transfer_engine_t;
typedef void *transport_t;
typedef int32_t segment_id_t;
typedef int32_t segment_handle_t;
typedef uint64_t batch_id_t;

#define LOCAL_SEGMENT (0)
#define INVALID_BATCH UINT64_MAX

#define OPCODE_READ (0)
#define OPCODE_WRITE (1)

#define STATUS_WAITING (0)
#define STATUS_PENDING (1)
#define STATUS_INVALID (2)
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT (5)
#define STATUS_FAILED (6)

/* One task: `length` bytes between `source` here and the address `target_offset` in the segment. */
struct transfer_request {
    int opcode;
    void *source;
    segment_id_t target_id;
    uint64_t target_offset;
    uint64_t length;
};
typedef struct transfer_request transfer_request_t;

struct transfer_status {
    int status;
    uint64_t transferred_bytes;
};
typedef struct transfer_status transfer_status_t;

struct notify_msg {
    char *name;
    char *msg;
};
typedef struct notify_msg notify_msg_t;

struct buffer_entry {
    void *addr;
    size_t length;
};
typedef struct buffer_entry buffer_entry_t;

struct nic_load_stat {
    char device_name[64];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
};
typedef struct nic_load_stat nic_load_stat_t;

/* Listens on a free port of `local_server_name`, whose own port is ignored; NULL if that can't be.
 * `metadata_conn_string` is "P2PHANDSHAKE"; `ip_or_host_name` and `rpc_port` mean nothing with it. With
 * `auto_discover` every transport is installed. An address that other hosts can reach takes FERRY_SECRET_FILE,
 * or FERRY_ALLOW_UNAUTHENTICATED=1. */
transfer_engine_t createTransferEngine(const char *metadata_conn_string, const char *local_server_name,
                                       const char *ip_or_host_name, uint64_t rpc_port, int auto_discover);

/* Ends what is under way and frees the engine, which nobody may use from then on. Memory that was registered
 * is the caller's alone when this returns. */
void destroyTransferEngine(transfer_engine_t engine);

/* "host:port", by which others open this engine as a segment. What does not fit is cut off and a failure. */
int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* "tcp"; "rdma", which is TCP where a side has no RDMA device; "ascend", the best path for memory of NPUs; NULL for
 * others. Not to be dereferenced. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);
int uninstallTransport(transfer_engine_t engine, const char *proto);
int discoverTopology(transfer_engine_t engine);

/* The number of the engine at "host:port", above zero; or a failure. It stays good when the peer is lost
 * and another one answers there. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);
/* The same, and the peer must answer now. */
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);
/* Keeps the number and the connection. */
int closeSegment(transfer_engine_t engine, segment_id_t segment_id);
/* Forgets the number. */
int removeLocalSegment(transfer_engine_t engine, const char *segment_name);
int syncSegmentCache(transfer_engine_t engine);
int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);

/* Memory of the host, or of a CUDA or Ascend device. `location` "cuda:0" or "npu:0" says which, and is checked;
 * otherwise, and with NULL, it is found out. Without `remote_accessible` no peer reaches the memory; this engine's
 * transfers may use it. -7 if it overlaps what is registered, -1 for NULL or no bytes. */
int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                        int remote_accessible);
/* Waits until nothing reaches the memory any more. -3 if it is not registered. */
int unregisterLocalMemory(transfer_engine_t engine, void *addr);
/* All of it or none. */
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
                             const char *location);
/* All that is registered; -3 if some is not. */
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* Room for so many tasks, over all submits; or INVALID_BATCH. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);
/* Adds tasks, numbered from 0 in the order of submission. A failure adds none, and nothing of it is under way. */
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries, size_t count);
/* The target gets the message when the data of these entries is there. They have one target and one opcode. */
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
                             size_t count, notify_msg_t notify_msg);
/* WAITING until the task is final, and with it all that were submitted with it to the same segment in the
 * same direction; any other status is for good, and the task touches no memory any more. */
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
                      struct transfer_status *status);
/* 4 while a task is not final. */
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* The messages that came, `size` of them; NULL if there are none. freeNotifsMsgBuf frees the list. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);
int freeNotifsMsgBuf(notify_msg_t *msg, int size);
/* Sends a message, and waits until the peer has taken it in. */
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* The segments and the paths to them, for people or as JSON. What does not fit is cut off and a failure. */
int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json);
/* `count` becomes 0: there are no such figures. */
int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count);
/* Does nothing: ferry installs no signal handlers. */
void enableGracefulShutdown(transfer_engine_t engine);

#ifdef __cplusplus
}
#endif

#endif
