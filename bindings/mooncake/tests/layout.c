/* Sizes, offsets and numbers of the interface, as programs compiled for Mooncake have them. */
#include <ferry_mooncake.h>

#define ASSERT(line, condition) typedef char assertion_##line[(condition) ? 1 : -1]
#define ASSERT_AT(line, condition) ASSERT(line, condition)
#define IS(found, wanted) ASSERT_AT(__LINE__, (found) == (wanted))

IS(sizeof(struct transfer_request), 40);
IS(offsetof(struct transfer_request, opcode), 0);
IS(offsetof(struct transfer_request, source), 8);
IS(offsetof(struct transfer_request, target_id), 16);
IS(offsetof(struct transfer_request, target_offset), 24);
IS(offsetof(struct transfer_request, length), 32);
IS(sizeof(struct transfer_status), 16);
IS(offsetof(struct transfer_status, status), 0);
IS(offsetof(struct transfer_status, transferred_bytes), 8);
IS(sizeof(struct notify_msg), 16);
IS(offsetof(struct notify_msg, name), 0);
IS(offsetof(struct notify_msg, msg), 8);
IS(sizeof(struct buffer_entry), 16);
IS(offsetof(struct buffer_entry, addr), 0);
IS(offsetof(struct buffer_entry, length), 8);
IS(sizeof(struct nic_load_stat), 80);
IS(offsetof(struct nic_load_stat, inflight_bytes), 64);
IS(offsetof(struct nic_load_stat, ewma_bandwidth_bps), 72);
IS(sizeof(segment_id_t), 4);
IS(sizeof(segment_handle_t), 4);
IS(sizeof(batch_id_t), 8);

IS(LOCAL_SEGMENT, 0);
IS(INVALID_BATCH, UINT64_MAX);
IS(OPCODE_READ, 0);
IS(OPCODE_WRITE, 1);
IS(STATUS_WAITING, 0);
IS(STATUS_PENDING, 1);
IS(STATUS_INVALID, 2);
IS(STATUS_CANCELED, 3);
IS(STATUS_COMPLETED, 4);
IS(STATUS_TIMEOUT, 5);
IS(STATUS_FAILED, 6);
