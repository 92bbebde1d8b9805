/*
 * Sizes and offsets of every struct of the ABI, as numbers. Structs may only grow at the end. tests/abi.rs
 * compiles this file and does not run it. Each offset is the sum of the sizes before it, so the file also
 * proves that the structs have no implicit padding.
 */
#include "ferry.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
/* C99 has no static assertion; an array of negative size does the same. */
#define ASSERT(condition) typedef char JOIN(assertion_, __LINE__)[(condition) ? 1 : -1];
#define FIELD(type, field, offset, size) \
    ASSERT(offsetof(type, field) == (offset) && sizeof(((type *)0)->field) == (size))
#define SIZE(type, size) ASSERT(sizeof(type) == (size))

ASSERT(sizeof(ferry_status) == 4)
ASSERT((ferry_status)-1 < 0)
ASSERT(sizeof(ferry_region) == 8 && sizeof(ferry_peer) == 8)
ASSERT(sizeof(ferry_transfer) == 8 && sizeof(ferry_queue) == 8)
ASSERT(sizeof(ferry_callback) == sizeof(void *))

/* ferry_error */
FIELD(ferry_error, struct_size, 0, 4)
FIELD(ferry_error, status, 4, 4)
FIELD(ferry_error, os_error, 8, 4)
FIELD(ferry_error, vendor_error, 12, 4)
FIELD(ferry_error, request_index, 16, 8)
FIELD(ferry_error, transport, 24, 4)
FIELD(ferry_error, reserved, 28, 4)
FIELD(ferry_error, message, 32, 256)
SIZE(ferry_error, 288)

/* ferry_setting_info */
FIELD(ferry_setting_info, struct_size, 0, 4)
FIELD(ferry_setting_info, reserved, 4, 4)
FIELD(ferry_setting_info, key, 8, 8)
FIELD(ferry_setting_info, variable, 16, 8)
FIELD(ferry_setting_info, default_value, 24, 8)
FIELD(ferry_setting_info, valid, 32, 8)
FIELD(ferry_setting_info, description, 40, 8)
SIZE(ferry_setting_info, 48)

/* ferry_region_options */
FIELD(ferry_region_options, struct_size, 0, 4)
FIELD(ferry_region_options, access, 4, 4)
FIELD(ferry_region_options, kind, 8, 4)
FIELD(ferry_region_options, device, 12, 4)
FIELD(ferry_region_options, grant_scope, 16, 4)
FIELD(ferry_region_options, reserved, 20, 4)
FIELD(ferry_region_options, name, 24, 8)
SIZE(ferry_region_options, 32)

/* ferry_alloc_options */
FIELD(ferry_alloc_options, struct_size, 0, 4)
FIELD(ferry_alloc_options, access, 4, 4)
FIELD(ferry_alloc_options, kind, 8, 4)
FIELD(ferry_alloc_options, device, 12, 4)
FIELD(ferry_alloc_options, flags, 16, 4)
FIELD(ferry_alloc_options, reserved, 20, 4)
FIELD(ferry_alloc_options, name, 24, 8)
SIZE(ferry_alloc_options, 32)

/* ferry_peer_info */
FIELD(ferry_peer_info, struct_size, 0, 4)
FIELD(ferry_peer_info, state, 4, 4)
FIELD(ferry_peer_info, engine_id, 8, 16)
FIELD(ferry_peer_info, incarnation, 24, 8)
FIELD(ferry_peer_info, round_trip_ns, 32, 8)
FIELD(ferry_peer_info, transfers_active, 40, 8)
FIELD(ferry_peer_info, lanes, 48, 4)
FIELD(ferry_peer_info, same_host, 52, 4)
FIELD(ferry_peer_info, address, 56, 264)
SIZE(ferry_peer_info, 320)

/* ferry_region_info */
FIELD(ferry_region_info, struct_size, 0, 4)
FIELD(ferry_region_info, access, 4, 4)
FIELD(ferry_region_info, region, 8, 8)
FIELD(ferry_region_info, address, 16, 8)
FIELD(ferry_region_info, length, 24, 8)
FIELD(ferry_region_info, name, 32, 64)
FIELD(ferry_region_info, kind, 96, 4)
FIELD(ferry_region_info, device, 100, 4)
FIELD(ferry_region_info, order, 104, 8)
SIZE(ferry_region_info, 112)

/* ferry_path_info */
FIELD(ferry_path_info, struct_size, 0, 4)
FIELD(ferry_path_info, transport, 4, 4)
FIELD(ferry_path_info, chosen, 8, 4)
FIELD(ferry_path_info, reserved, 12, 4)
FIELD(ferry_path_info, why, 16, 240)
SIZE(ferry_path_info, 256)

/* ferry_transfer_options */
FIELD(ferry_transfer_options, struct_size, 0, 4)
FIELD(ferry_transfer_options, flags, 4, 4)
FIELD(ferry_transfer_options, deadline_ns, 8, 8)
FIELD(ferry_transfer_options, user_data, 16, 8)
FIELD(ferry_transfer_options, queue, 24, 8)
FIELD(ferry_transfer_options, notify, 32, 8)
FIELD(ferry_transfer_options, notify_length, 40, 8)
FIELD(ferry_transfer_options, transports_allowed, 48, 8)
FIELD(ferry_transfer_options, priority, 56, 4)
FIELD(ferry_transfer_options, event_kind, 60, 4)
FIELD(ferry_transfer_options, event, 64, 8)
SIZE(ferry_transfer_options, 72)

/* ferry_request_result */
FIELD(ferry_request_result, struct_size, 0, 4)
FIELD(ferry_request_result, status, 4, 4)
FIELD(ferry_request_result, request_index, 8, 8)
FIELD(ferry_request_result, bytes_confirmed, 16, 8)
FIELD(ferry_request_result, os_error, 24, 4)
FIELD(ferry_request_result, vendor_error, 28, 4)
FIELD(ferry_request_result, transport, 32, 4)
FIELD(ferry_request_result, reserved, 36, 4)
SIZE(ferry_request_result, 40)

/* ferry_result */
FIELD(ferry_result, struct_size, 0, 4)
FIELD(ferry_result, state, 4, 4)
FIELD(ferry_result, status, 8, 4)
FIELD(ferry_result, fence, 12, 4)
FIELD(ferry_result, notification, 16, 4)
FIELD(ferry_result, transport, 20, 4)
FIELD(ferry_result, os_error, 24, 4)
FIELD(ferry_result, reserved, 28, 4)
FIELD(ferry_result, user_data, 32, 8)
FIELD(ferry_result, bytes_confirmed, 40, 8)
FIELD(ferry_result, requests_failed, 48, 8)
FIELD(ferry_result, requests_in, 56, 8)
FIELD(ferry_result, slices_out, 64, 8)
FIELD(ferry_result, submitted_ns, 72, 8)
FIELD(ferry_result, started_ns, 80, 8)
FIELD(ferry_result, finished_ns, 88, 8)
SIZE(ferry_result, 96)

/* ferry_request */
FIELD(ferry_request, local, 0, 8)
FIELD(ferry_request, remote, 8, 8)
FIELD(ferry_request, length, 16, 8)
FIELD(ferry_request, remote_region, 24, 8)
SIZE(ferry_request, 32)

/* ferry_blocks */
FIELD(ferry_blocks, struct_size, 0, 4)
FIELD(ferry_blocks, id_bytes, 4, 4)
FIELD(ferry_blocks, layer_count, 8, 8)
FIELD(ferry_blocks, local_base, 16, 8)
FIELD(ferry_blocks, remote_base, 24, 8)
FIELD(ferry_blocks, local_stride, 32, 8)
FIELD(ferry_blocks, remote_stride, 40, 8)
FIELD(ferry_blocks, block_bytes, 48, 8)
FIELD(ferry_blocks, remote_region, 56, 8)
FIELD(ferry_blocks, pair_count, 64, 8)
FIELD(ferry_blocks, local_blocks, 72, 8)
FIELD(ferry_blocks, remote_blocks, 80, 8)
SIZE(ferry_blocks, 88)

/* ferry_event */
FIELD(ferry_event, struct_size, 0, 4)
FIELD(ferry_event, kind, 4, 4)
FIELD(ferry_event, peer, 8, 8)
FIELD(ferry_event, transfer, 16, 8)
FIELD(ferry_event, user_data, 24, 8)
FIELD(ferry_event, status, 32, 4)
FIELD(ferry_event, os_error, 36, 4)
FIELD(ferry_event, data, 40, 8)
FIELD(ferry_event, data_length, 48, 8)
FIELD(ferry_event, region, 56, 8)
FIELD(ferry_event, address, 64, 8)
FIELD(ferry_event, length, 72, 8)
SIZE(ferry_event, 80)

/* ferry_stats */
FIELD(ferry_stats, struct_size, 0, 4)
FIELD(ferry_stats, reserved, 4, 4)
FIELD(ferry_stats, transfers_submitted, 8, 8)
FIELD(ferry_stats, transfers_done, 16, 8)
FIELD(ferry_stats, transfers_failed, 24, 8)
FIELD(ferry_stats, transfers_cancelled, 32, 8)
FIELD(ferry_stats, transfers_timed_out, 40, 8)
FIELD(ferry_stats, requests_in, 48, 8)
FIELD(ferry_stats, slices_out, 56, 8)
FIELD(ferry_stats, bytes_written, 64, 8)
FIELD(ferry_stats, bytes_read, 72, 8)
FIELD(ferry_stats, bytes_applied, 80, 8)
FIELD(ferry_stats, bytes_served, 88, 8)
FIELD(ferry_stats, requests_refused, 96, 8)
FIELD(ferry_stats, notifications_received, 104, 8)
FIELD(ferry_stats, sessions_up, 112, 8)
FIELD(ferry_stats, sessions_lost, 120, 8)
FIELD(ferry_stats, lanes_lost, 128, 8)
FIELD(ferry_stats, handshakes_refused, 136, 8)
FIELD(ferry_stats, late_applies, 144, 8)
FIELD(ferry_stats, send_calls, 152, 8)
FIELD(ferry_stats, receive_calls, 160, 8)
FIELD(ferry_stats, peers_up, 168, 8)
FIELD(ferry_stats, regions, 176, 8)
FIELD(ferry_stats, transfers, 184, 8)
FIELD(ferry_stats, bytes_local, 192, 8)
FIELD(ferry_stats, bytes_device, 200, 8)
SIZE(ferry_stats, 208)
