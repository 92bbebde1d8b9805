/* The frequent calls, each with one crossing from Go into C. */
#ifndef FERRY_GO_SHIM_H
#define FERRY_GO_SHIM_H

#include <ferry.h>
#include <stdbool.h>

/* ferry_transfer_options without pointers, so that Go can pass it from its stack without pinning. */
typedef struct ferry_go_options {
    uint32_t flags;
    uint32_t priority;
    uint64_t deadline_ns;
    uint64_t user_data;
    ferry_queue queue;
    uint64_t transports_allowed;
    uint64_t event;
    uint32_t event_kind;
    uint32_t channel;
} ferry_go_options;

/* Submits, then polls for the end for `look_ns`. Returns the status of the submit.
   out_result->state is 0 if the transfer is not final; *out_looked has the status of the poll. A transfer that
   is done is released, unless `keep` is set. */
ferry_status ferry_go_submit(ferry_engine *engine, ferry_peer peer, uint32_t op, const ferry_request *requests,
                             size_t count, const ferry_go_options *options, const void *notify,
                             size_t notify_length, uint64_t look_ns, bool keep,
                             ferry_transfer *out_transfer, ferry_result *out_result, ferry_status *out_looked, ferry_error *error);

/* Submits blocks, without polling. */
ferry_status ferry_go_submit_blocks(ferry_engine *engine, ferry_peer peer, uint32_t op, const ferry_blocks *blocks,
                                    const ferry_go_options *options, const void *notify, size_t notify_length,
                                    ferry_transfer *out_transfer, ferry_error *error);

/* Submits layers of equal shape, without polling. */
ferry_status ferry_go_submit_uniform(ferry_engine *engine, ferry_peer peer, uint32_t op, const ferry_uniform_blocks *layers,
                                    const ferry_go_options *options, const void *notify, size_t notify_length,
                                    ferry_transfer *out_transfer, ferry_error *error);

/* Waits with timeout 0; releases a transfer that is done, unless `keep` is set. */
ferry_status ferry_go_look(ferry_engine *engine, ferry_transfer transfer, bool keep, ferry_result *out_result,
                           ferry_error *error);

#endif
