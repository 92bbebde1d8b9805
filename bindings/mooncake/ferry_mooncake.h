/*
 * The C interface of Mooncake's Transfer Engine, as libferry_mooncake.so provides it. Programs written or compiled
 * for Mooncake's own header need no other header; this one is for programs without it.
 *
 * A call reads its strings and lists before it returns and does not keep them. The caller keeps registered memory
 * until it is unregistered, and the memory of a transfer until the transfer's tasks are final. Any thread may call
 * any function at any time, except destroyTransferEngine.
 *
 * Failures are negative numbers. submitTransfer, submitTransferWithNotify, getTransferStatus and freeBatchID return
 * them as positive numbers. 1: a wrong argument. 2: a limit. 3: memory that is not registered or not granted.
 * 4: busy. 7: overlap. 8: no such transport. 102: no answer. 104: refused by the peer. 202: the engine or the
 * system failed. 302: no memory. With FERRY_LOG=1 in the environment a line on stderr gives the reason.
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

/* Creates an engine that listens on a free port of `local_server_name`, whose own port is ignored; NULL on failure.
 * `metadata_conn_string` must be "P2PHANDSHAKE"; `ip_or_host_name` and `rpc_port` are ignored. With `auto_discover`
 * every transport is installed. An address that other hosts can reach requires FERRY_SECRET_FILE or
 * FERRY_ALLOW_UNAUTHENTICATED=1. */
transfer_engine_t createTransferEngine(const char *metadata_conn_string, const char *local_server_name,
                                       const char *ip_or_host_name, uint64_t rpc_port, int auto_discover);

/* Makes all transfers final and frees the engine; no other call may use the engine then. After the call, registered
 * memory is the caller's alone. */
void destroyTransferEngine(transfer_engine_t engine);

/* Writes "host:port", the name by which others open this engine as a segment. A text that does not fit is cut, and
 * the call fails. */
int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* Installs "tcp"; "rdma", which uses TCP if a side has no RDMA device; or "ascend", the best path for NPU memory.
 * Returns NULL for others. Don't dereference the result. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);
/* Checks its arguments only: installed transports stay installed. */
int uninstallTransport(transfer_engine_t engine, const char *proto);
/* Checks its argument only: ferry finds the devices when the engine is created. */
int discoverTopology(transfer_engine_t engine);

/* Returns the number of the engine at "host:port", above zero, or a failure. The number stays valid when the peer is
 * lost and another engine answers there. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);
/* Opens a segment whose peer must answer now. */
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);
/* Checks the number. The number and the connection stay, because other code may use them. */
int closeSegment(transfer_engine_t engine, segment_id_t segment_id);
/* Forgets the segment's number. Transfers in progress continue. */
int removeLocalSegment(transfer_engine_t engine, const char *segment_name);
/* Checks its argument only: peers announce their memory themselves. */
int syncSegmentCache(transfer_engine_t engine);
/* Checks its arguments only: openSegment makes the connections. */
int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);

/* Registers memory of the host, or of a CUDA or Ascend device. `location` "cuda:0" or "npu:0" names the device and is
 * checked; for NULL and other words ferry detects the device. Without `remote_accessible` only this engine's
 * transfers reach the memory. -7 if registered memory overlaps, -1 for NULL or 0 bytes. */
int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                        int remote_accessible);
/* Unregisters memory; waits until nothing reaches it any more. -3 if it is not registered. */
int unregisterLocalMemory(transfer_engine_t engine, void *addr);
/* Registers all ranges or none. */
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
                             const char *location);
/* Unregisters every registered range; -3 if some are not registered. */
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* Allocates a batch with room for `batch_size` tasks over all its submits; or returns INVALID_BATCH. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);
/* Adds tasks, numbered from 0 in the order of submission. A failed submit adds no task and moves nothing. */
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries, size_t count);
/* Adds tasks of one target and one opcode. The target gets the message when their data has arrived. */
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
                             size_t count, notify_msg_t notify_msg);
/* Returns WAITING until the task is final, together with all tasks of the same submit to the same segment in the same
 * direction. Any other status is final: the task touches no memory any more. */
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
                      struct transfer_status *status);
/* Frees a batch; 4 while a task is not final. */
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* Returns the messages that have arrived, and their number in `size`; NULL for none. freeNotifsMsgBuf frees them. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);
int freeNotifsMsgBuf(notify_msg_t *msg, int size);
/* Sends a message, and waits until the peer has received it. */
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* Writes the segments and the paths to them, for people or as JSON. A text that does not fit is cut, and the call
 * fails. */
int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json);
/* Sets `count` to 0: ferry has no such figures. */
int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count);
/* Does nothing: ferry installs no signal handlers. */
void enableGracefulShutdown(transfer_engine_t engine);

#ifdef __cplusplus
}
#endif

#endif
