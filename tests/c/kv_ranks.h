/*
 * Ranks for the tests of handoffs: each has an engine, a cache of known elements in memory of that engine
 * (kv_cache.h), and what ferry_kv.h opens over both.
 */
#ifndef KV_RANKS_H
#define KV_RANKS_H

#include "kv_cache.h"

typedef struct {
    ferry_engine *engine;
    kv_cache cache; /* the elements, and where they belong */
    ferry_kv_memory memory;
    ferry_kv_cache *kv;
} kv_rank;

/* Peers may be silent for a minute: a busy machine makes them so. */
kv_rank kv_rank_open(uint32_t arrangement, uint32_t tp_rank, uint32_t tp_size, uint32_t block_tokens);
kv_rank kv_rank_open_with(uint32_t arrangement, uint32_t tp_rank, uint32_t tp_size, uint32_t block_tokens,
                          uint32_t silence_ms);
/* Closes the cache and the engine; fails the test if one does not close. */
void kv_rank_close(kv_rank *rank);
/* Connects `rank` to another. */
ferry_peer kv_connect(const kv_rank *rank, const kv_rank *other);

/* The blocks of the sequence from block `first` to before `end`. */
ferry_kv_block_list kv_list(const kv_rank *rank, uint32_t first, uint32_t end);
/* Offers the sequence's blocks that hold `tokens` tokens, with a lease of `lease_ms`. */
void kv_offer(const kv_rank *rank, const ferry_kv_id *id, uint32_t tokens, uint32_t lease_ms);
/* Computes these tokens of all layers, and says that they are ready. */
void kv_compute(kv_rank *rank, const ferry_kv_id *id, uint32_t first_token, uint32_t end_token);
/* Returns the options of a take of `tokens` tokens into `list`, which kv_list made. */
ferry_kv_take_options kv_take_options(const ferry_kv_block_list *list, const ferry_peer *producers, size_t count,
                                      uint64_t tokens, uint32_t mode);

/* Waits for the next event, which must be of this id and kind. Release it. */
ferry_kv_event kv_next(const kv_rank *rank, const ferry_kv_id *id, uint32_t kind);
/* The same for an event of which only the kind matters. */
void kv_expect(const kv_rank *rank, const ferry_kv_id *id, uint32_t kind);
ferry_kv_id kv_new_id(void);
ferry_kv_state kv_state(const kv_rank *rank, const ferry_kv_id *id);

#endif
