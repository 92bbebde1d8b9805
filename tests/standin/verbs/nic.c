// Stands in for libibverbs with one or two NICs, "nic0" and so on, that reach the queue pairs of their own process.
// The call that posts work does the work, by memcpy, and checks keys, rights and bounds. A dma-buf is the descriptor
// that the CUDA stand-in returns for one; its memory is mapped here, from the descriptor's position.
//
// `nic_set` turns a knob: nics (number of NICs), refuse_dmabuf (an errno), hold (posted work waits until hold is 0),
// answer (the status of the next WRITE or READ), answers (the status of all WRITEs until answers is 0), down (the
// ports go down and held work is flushed). `nic_count` returns a counter: see COUNTS.
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_get_device_list
#undef ibv_reg_mr

enum { NICS = 2, KEYS = 4096, QPS = 256, HELD = 2048, CQES = 16384, RECEIVES = 4096, PAGE = 4096 };

// COUNTS: registrations of dma-bufs made and ended; WRITEs, inline or not, and READs by their memory; bytes that were
// read to prove that WRITEs are visible; payload posted on each NIC, held or not.
enum count { DMABUFS, DMABUFS_ENDED, WRITES_TO_DMABUF, WRITES_FROM_DMABUF, READS_FROM_DMABUF, INLINE, PROOFS_OF_DMABUF,
             PROOFS_OF_HOST, BYTES_0, BYTES_1, COUNTS };
static const char *const count_names[COUNTS] = {"dmabufs", "dmabufs_ended", "writes_to_dmabuf", "writes_from_dmabuf",
                                                "reads_from_dmabuf", "inline", "proofs_of_dmabuf", "proofs_of_host",
                                                "bytes_0", "bytes_1"};

struct mr { struct ibv_mr base; uint64_t start; char *memory; int access, dmabuf; void *map; size_t map_bytes; };
struct cq { struct ibv_cq base; struct ibv_wc entries[CQES]; unsigned head, tail; int armed, reported; };
struct srq { struct ibv_srq base; struct { uint64_t id; struct ibv_sge piece; } entries[RECEIVES]; unsigned head, tail; };
struct held { struct ibv_send_wr wr; struct ibv_sge piece; };
struct qp { struct ibv_qp base; uint32_t peer; struct held held[HELD]; unsigned held_count; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mr *keys[KEYS];
static struct qp *qps[QPS];
static long counts[COUNTS], nics = 1, refuse_dmabuf, hold, answer, answers, down;
static struct ibv_device devices[NICS] = {
    {.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "nic0"},
    {.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "nic1"},
};
static struct ibv_device *listed[NICS + 1];
static struct { struct ibv_context *context; int told; } contexts[64];

static void *fail(int code) { errno = code; return NULL; }

// Functions below `locked` are called with the lock held.

static void complete(struct ibv_cq *base, const struct ibv_wc *entry) {
    struct cq *cq = (struct cq *)base;
    cq->entries[cq->tail++ % CQES] = *entry;
    if (cq->armed && base->channel != NULL) {
        uint64_t one = 1;
        cq->armed = 0;
        cq->reported = 1;
        if (write(base->channel->fd, &one, sizeof one) != sizeof one) abort();
    }
}

static void finish(struct qp *qp, uint64_t id, enum ibv_wc_status status, enum ibv_wc_opcode opcode, uint32_t bytes) {
    struct ibv_wc entry = {.wr_id = id, .status = status, .opcode = opcode, .byte_len = bytes, .qp_num = qp->base.qp_num};
    complete(qp->base.send_cq, &entry);
}

static void flush(struct qp *qp) {
    qp->base.state = IBV_QPS_ERR;
    for (unsigned i = 0; i < qp->held_count; i++) finish(qp, qp->held[i].wr.wr_id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE, 0);
    qp->held_count = 0;
}

// Returns the memory of a key; null if the key does not grant it.
static char *reach(uint32_t key, uint64_t address, uint32_t length, int right, struct mr **out_mr) {
    struct mr *mr = key / KEYS == 7 ? keys[key % KEYS] : NULL;
    if (mr == NULL || address < mr->start || length > mr->base.length || address - mr->start > mr->base.length - length)
        return NULL;
    if ((mr->access & right) != right) return NULL;
    *out_mr = mr;
    return mr->memory + (address - mr->start);
}

static enum ibv_wc_status carry_out(struct qp *qp, const struct ibv_send_wr *wr) {
    static char nothing[1];
    struct qp *peer = qps[qp->peer % QPS];
    struct mr *mine = NULL, *theirs = NULL;
    const struct ibv_sge piece = wr->num_sge == 0 ? (struct ibv_sge){0} : *wr->sg_list;
    const int inlined = (wr->send_flags & IBV_SEND_INLINE) != 0, is_read = wr->opcode == IBV_WR_RDMA_READ;
    char *local = nothing, *remote;
    if (peer == NULL || peer->base.state < IBV_QPS_RTR || peer->base.state == IBV_QPS_ERR) return IBV_WC_RETRY_EXC_ERR;
    // The CPU itself reads inline data.
    if (inlined) local = (char *)(uintptr_t)piece.addr;
    else if (piece.length != 0) local = reach(piece.lkey, piece.addr, piece.length, is_read ? IBV_ACCESS_LOCAL_WRITE : 0, &mine);
    if (local == NULL) return IBV_WC_LOC_PROT_ERR;
    if (wr->opcode == IBV_WR_SEND) {
        struct srq *srq = (struct srq *)peer->base.srq;
        if (srq->head == srq->tail) return IBV_WC_RNR_RETRY_EXC_ERR;
        const unsigned at = srq->head++ % RECEIVES;
        struct mr *into;
        char *to = reach(srq->entries[at].piece.lkey, srq->entries[at].piece.addr, piece.length, IBV_ACCESS_LOCAL_WRITE, &into);
        if (to == NULL) return IBV_WC_REM_OP_ERR;
        memcpy(to, local, piece.length);
        struct ibv_wc entry = {.wr_id = srq->entries[at].id, .opcode = IBV_WC_RECV, .byte_len = piece.length, .qp_num = peer->base.qp_num};
        complete(peer->base.recv_cq, &entry);
        return IBV_WC_SUCCESS;
    }
    if (!is_read && answers != IBV_WC_SUCCESS) return (enum ibv_wc_status)answers;
    if (answer != IBV_WC_SUCCESS) {
        const enum ibv_wc_status given = (enum ibv_wc_status)answer;
        answer = IBV_WC_SUCCESS;
        return given;
    }
    remote = reach(wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, piece.length,
                   is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE, &theirs);
    if (remote == NULL) return IBV_WC_REM_ACCESS_ERR;
    counts[INLINE] += inlined;
    if (is_read) {
        counts[READS_FROM_DMABUF] += piece.length > 1 && theirs->dmabuf;
        counts[PROOFS_OF_DMABUF] += piece.length == 1 && theirs->dmabuf;
        counts[PROOFS_OF_HOST] += piece.length == 1 && !theirs->dmabuf;
    } else {
        counts[WRITES_TO_DMABUF] += theirs->dmabuf;
        counts[WRITES_FROM_DMABUF] += mine != NULL && mine->dmabuf;
    }
    if (is_read) memcpy(local, remote, piece.length);
    else memcpy(remote, local, piece.length);
    return IBV_WC_SUCCESS;
}

static void perform(struct qp *qp, const struct ibv_send_wr *wr) {
    const enum ibv_wc_opcode opcode = wr->opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE;
    const int broken = qp->base.state == IBV_QPS_ERR;
    const enum ibv_wc_status status = broken ? IBV_WC_WR_FLUSH_ERR : carry_out(qp, wr);
    if (status != IBV_WC_SUCCESS) qp->base.state = IBV_QPS_ERR;
    if (status != IBV_WC_SUCCESS || (wr->send_flags & IBV_SEND_SIGNALED) != 0)
        finish(qp, wr->wr_id, status, opcode, wr->num_sge == 0 ? 0 : wr->sg_list->length);
}

// Inline data is read from the poster's memory: no code here touches memory in progress.
static void let_go(struct qp *qp) {
    for (unsigned i = 0; i < qp->held_count; i++) {
        qp->held[i].wr.sg_list = &qp->held[i].piece;
        perform(qp, &qp->held[i].wr);
    }
    qp->held_count = 0;
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct qp *qp = (struct qp *)base;
    pthread_mutex_lock(&lock);
    for (; wr != NULL; wr = wr->next) {
        const struct ibv_sge piece = wr->num_sge == 0 ? (struct ibv_sge){0} : *wr->sg_list;
        // One byte is enough for a proof.
        if (wr->opcode != IBV_WR_SEND && piece.length > 1) counts[BYTES_0 + (base->context->device - devices)] += piece.length;
        if (hold && wr->opcode != IBV_WR_SEND && base->state != IBV_QPS_ERR) {
            if (qp->held_count == HELD) { *bad = wr; pthread_mutex_unlock(&lock); return ENOMEM; }
            qp->held[qp->held_count++] = (struct held){*wr, piece};
        } else {
            perform(qp, wr);
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct srq *srq = (struct srq *)base;
    int code = 0;
    pthread_mutex_lock(&lock);
    if (srq->tail - srq->head == RECEIVES) {
        *bad = wr;
        code = ENOMEM;
    } else {
        srq->entries[srq->tail % RECEIVES].id = wr->wr_id;
        srq->entries[srq->tail++ % RECEIVES].piece = *wr->sg_list;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int poll_cq(struct ibv_cq *base, int room, struct ibv_wc *out) {
    struct cq *cq = (struct cq *)base;
    int count = 0;
    pthread_mutex_lock(&lock);
    while (count < room && cq->head != cq->tail) out[count++] = cq->entries[cq->head++ % CQES];
    pthread_mutex_unlock(&lock);
    return count;
}

static int req_notify_cq(struct ibv_cq *base, int solicited) {
    (void)solicited;
    pthread_mutex_lock(&lock);
    ((struct cq *)base)->armed = 1;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int count_named(const char *name) {
    int at = 0;
    while (at < COUNTS && strcmp(count_names[at], name) != 0) at++;
    return at;
}

long nic_count(const char *name) {
    const int at = count_named(name);
    pthread_mutex_lock(&lock);
    const long count = at < COUNTS ? counts[at] : -1;
    pthread_mutex_unlock(&lock);
    return count;
}

int nic_set(const char *knob, long value) {
    int code = 0;
    pthread_mutex_lock(&lock);
    if (strcmp(knob, "refuse_dmabuf") == 0) refuse_dmabuf = value;
    else if (strcmp(knob, "nics") == 0 && value >= 1 && value <= NICS) nics = value;
    else if (strcmp(knob, "answer") == 0) answer = value;
    else if (strcmp(knob, "answers") == 0) answers = value;
    else if (strcmp(knob, "hold") == 0) {
        hold = value;
        for (int i = 0; !hold && i < QPS; i++)
            if (qps[i] != NULL) let_go(qps[i]);
    }
    else if (strcmp(knob, "down") == 0) {
        down = value;
        for (int i = 0; i < 64; i++) {
            uint64_t one = 1;
            if (contexts[i].context == NULL) continue;
            contexts[i].told = 0;
            if (write(contexts[i].context->async_fd, &one, sizeof one) != sizeof one) abort();
        }
        for (int i = 0; down && i < QPS; i++)
            if (qps[i] != NULL) flush(qps[i]);
    } else code = -1;
    pthread_mutex_unlock(&lock);
    return code;
}

int ibv_fork_init(void) { return 0; }
struct ibv_device **ibv_get_device_list(int *count) {
    *count = (int)nics;
    for (int i = 0; i < NICS; i++) listed[i] = i < nics ? &devices[i] : NULL;
    return listed;
}
void ibv_free_device_list(struct ibv_device **list) { (void)list; }
const char *ibv_get_device_name(struct ibv_device *of) { return of->name; }

struct ibv_context *ibv_open_device(struct ibv_device *of) {
    struct ibv_context *context = calloc(1, sizeof *context);
    int at = 0;
    context->device = of;
    context->async_fd = eventfd(0, EFD_CLOEXEC);
    context->ops.poll_cq = poll_cq;
    context->ops.req_notify_cq = req_notify_cq;
    context->ops.post_send = post_send;
    context->ops.post_srq_recv = post_srq_recv;
    pthread_mutex_lock(&lock);
    while (at < 64 && contexts[at].context != NULL) at++;
    if (at < 64) contexts[at].context = context;
    pthread_mutex_unlock(&lock);
    return at < 64 ? context : fail(EMFILE);
}

int ibv_close_device(struct ibv_context *context) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 64; i++)
        if (contexts[i].context == context) contexts[i].context = NULL;
    pthread_mutex_unlock(&lock);
    close(context->async_fd);
    free(context);
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    uint64_t count;
    if (read(context->async_fd, &count, sizeof count) != sizeof count) return -1;
    event->event_type = down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE;
    event->element.port_num = 1;
    return 0;
}
void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *out) {
    (void)context;
    *out = (struct ibv_device_attr){.max_qp_wr = 4096, .max_sge = 1, .max_cqe = CQES - 1, .max_qp = QPS, .max_srq_wr = RECEIVES,
                                    .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16, .max_mr_size = 1ULL << 40, .phys_port_cnt = 1};
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *raw) {
    struct ibv_port_attr *out = (struct ibv_port_attr *)raw;
    (void)context;
    (void)port;
    out->state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    out->active_mtu = IBV_MTU_4096;
    out->gid_tbl_len = 1;
    out->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    static const union ibv_gid address = {.raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1}};
    (void)context;
    (void)port;
    *gid = address;
    return index == 0 ? 0 : -1;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}
int ibv_dealloc_pd(struct ibv_pd *pd) { free(pd); return 0; }

static struct ibv_mr *enter(struct ibv_pd *pd, struct mr *mr, size_t length) {
    int at = 0;
    mr->base.context = pd->context;
    mr->base.pd = pd;
    mr->base.length = length;
    pthread_mutex_lock(&lock);
    while (at < KEYS && keys[at] != NULL) at++;
    if (at < KEYS) keys[at] = mr;
    counts[DMABUFS] += at < KEYS && mr->dmabuf;
    pthread_mutex_unlock(&lock);
    if (at == KEYS) return fail(ENOMEM);
    mr->base.lkey = mr->base.rkey = 7 * KEYS + (uint32_t)at;
    return &mr->base;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned int access) {
    struct mr *mr = calloc(1, sizeof *mr);
    mr->start = iova;
    mr->memory = address;
    mr->access = (int)access;
    return enter(pd, mr, length);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    // As in mlx5, both must have the same offset in their page.
    if (refuse_dmabuf != 0) return fail((int)refuse_dmabuf);
    if (offset % PAGE != iova % PAGE) return fail(EINVAL);
    const off_t begin = lseek(fd, 0, SEEK_CUR);
    if (begin < 0) return fail(EINVAL);
    const uint64_t from = (uint64_t)begin + offset, first = from / PAGE * PAGE;
    struct mr *mr = calloc(1, sizeof *mr);
    mr->map_bytes = (size_t)(from - first) + length;
    mr->map = mmap(NULL, mr->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)first);
    if (mr->map == MAP_FAILED) {
        free(mr);
        return fail(EINVAL);
    }
    mr->memory = (char *)mr->map + (from - first);
    mr->start = iova;
    mr->access = access;
    mr->dmabuf = 1;
    return enter(pd, mr, length);
}

int ibv_dereg_mr(struct ibv_mr *base) {
    struct mr *mr = (struct mr *)base;
    pthread_mutex_lock(&lock);
    keys[base->lkey % KEYS] = NULL;
    counts[DMABUFS_ENDED] += mr->dmabuf;
    pthread_mutex_unlock(&lock);
    if (mr->dmabuf) munmap(mr->map, mr->map_bytes);
    free(mr);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
    channel->context = context;
    channel->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    return channel;
}
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) { close(channel->fd); free(channel); return 0; }

static struct { struct cq *all[QPS]; } queues;

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cookie, struct ibv_comp_channel *channel, int vector) {
    struct cq *cq = calloc(1, sizeof *cq);
    (void)vector;
    cq->base = (struct ibv_cq){.context = context, .channel = channel, .cq_context = cookie, .cqe = entries};
    pthread_mutex_lock(&lock);
    int at = 0;
    while (at < QPS && queues.all[at] != NULL) at++;
    if (at < QPS) queues.all[at] = cq;
    pthread_mutex_unlock(&lock);
    return at < QPS ? &cq->base : fail(ENOMEM);
}

int ibv_destroy_cq(struct ibv_cq *base) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < QPS; i++)
        if (queues.all[i] == (struct cq *)base) queues.all[i] = NULL;
    pthread_mutex_unlock(&lock);
    free(base);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **out, void **cookie) {
    uint64_t one;
    if (read(channel->fd, &one, sizeof one) != sizeof one) return -1;
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < QPS && found < 0; i++) {
        struct cq *cq = queues.all[i];
        if (cq == NULL || cq->base.channel != channel || !cq->reported) continue;
        cq->reported = 0;
        *out = &cq->base;
        *cookie = cq->base.cq_context;
        found = i;
    }
    pthread_mutex_unlock(&lock);
    if (found < 0) errno = EAGAIN; // its queue is gone
    return found < 0 ? -1 : 0;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count) { (void)cq; (void)count; }

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attributes) {
    struct srq *srq = calloc(1, sizeof *srq);
    (void)attributes;
    srq->base.context = pd->context;
    srq->base.pd = pd;
    return &srq->base;
}
int ibv_destroy_srq(struct ibv_srq *srq) { free(srq); return 0; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
    struct qp *qp = calloc(1, sizeof *qp);
    unsigned at = 1;
    qp->base = (struct ibv_qp){.context = pd->context, .pd = pd, .send_cq = attributes->send_cq,
                               .recv_cq = attributes->recv_cq, .srq = attributes->srq};
    pthread_mutex_lock(&lock);
    while (at < QPS && qps[at] != NULL) at++;
    if (at < QPS) qps[at] = qp;
    pthread_mutex_unlock(&lock);
    if (at == QPS) return fail(ENOMEM);
    qp->base.qp_num = at;
    return &qp->base;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attributes, int mask) {
    struct qp *qp = (struct qp *)base;
    pthread_mutex_lock(&lock);
    if (mask & IBV_QP_DEST_QPN) qp->peer = attributes->dest_qp_num;
    if (mask & IBV_QP_STATE) {
        if (attributes->qp_state == IBV_QPS_ERR) flush(qp);
        base->state = attributes->qp_state;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *base) {
    pthread_mutex_lock(&lock);
    qps[base->qp_num] = NULL;
    pthread_mutex_unlock(&lock);
    free(base);
    return 0;
}
