#include "shim.h"

static ferry_transfer_options full(const ferry_go_options *options, const void *notify, size_t notify_length)
{
    ferry_transfer_options out = {sizeof out};
    out.flags = options->flags;
    out.priority = options->priority;
    out.deadline_ns = options->deadline_ns;
    out.user_data = options->user_data;
    out.queue = options->queue;
    out.transports_allowed = options->transports_allowed;
    out.event_kind = options->event_kind;
    out.event = options->event;
    out.channel = options->channel;
    out.notify = notify;
    out.notify_length = notify_length;
    return out;
}

static ferry_status look(ferry_engine *engine, ferry_transfer transfer, uint64_t timeout_ns, bool keep,
                         ferry_result *out_result, ferry_error *error)
{
    ferry_status status;
    out_result->struct_size = sizeof *out_result;
    out_result->state = 0;
    error->struct_size = sizeof *error;
    status = ferry_transfer_wait(engine, transfer, timeout_ns, out_result, error);
    if (status == FERRY_OK && !keep) ferry_transfer_release(engine, transfer, NULL);
    return status;
}

ferry_status ferry_go_submit(ferry_engine *engine, ferry_peer peer, uint32_t op, const ferry_request *requests,
                             size_t count, const ferry_go_options *options, const void *notify,
                             size_t notify_length, uint64_t look_ns, bool keep,
                             ferry_transfer *out_transfer, ferry_result *out_result, ferry_status *out_looked, ferry_error *error)
{
    ferry_transfer_options all = full(options, notify, notify_length);
    ferry_status status;
    error->struct_size = sizeof *error;
    status = ferry_transfer_submit(engine, peer, op, requests, count, &all, out_transfer, error);
    if (status == FERRY_OK) *out_looked = look(engine, *out_transfer, look_ns, keep, out_result, error);
    return status;
}

ferry_status ferry_go_submit_blocks(ferry_engine *engine, ferry_peer peer, uint32_t op, const ferry_blocks *blocks,
                                    const ferry_go_options *options, const void *notify, size_t notify_length,
                                    ferry_transfer *out_transfer, ferry_error *error)
{
    ferry_transfer_options all = full(options, notify, notify_length);
    error->struct_size = sizeof *error;
    return ferry_transfer_submit_blocks(engine, peer, op, blocks, &all, out_transfer, error);
}

ferry_status ferry_go_submit_uniform(ferry_engine *engine, ferry_peer peer, uint32_t op, const ferry_uniform_blocks *layers,
                                    const ferry_go_options *options, const void *notify, size_t notify_length,
                                    ferry_transfer *out_transfer, ferry_error *error)
{
    ferry_transfer_options all = full(options, notify, notify_length);
    error->struct_size = sizeof *error;
    return ferry_transfer_submit_uniform(engine, peer, op, layers, &all, out_transfer, error);
}

ferry_status ferry_go_look(ferry_engine *engine, ferry_transfer transfer, bool keep, ferry_result *out_result,
                           ferry_error *error)
{
    return look(engine, transfer, 0, keep, out_result, error);
}
