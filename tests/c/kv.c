/* ferry_kv.h: layouts and their bytes, plans, and the bytes to move, moved as a program would and compared. */
#include "kv_cache.h"

enum { TOKENS = 100 };

/* What the rank of `source` sends to that of `target`. */
static ferry_kv_moves *lower(const kv_cache *source, const kv_cache *target, uint64_t first, uint64_t end)
{
    ferry_error error = new_error();
    ferry_kv_plan *plan = NULL;
    ferry_kv_moves *moves = NULL;
    ferry_kv_block_pairs blocks = FERRY_KV_BLOCK_PAIRS_INIT;
    ferry_kv_part part = FERRY_KV_PART_INIT;
    blocks.source_blocks = source->ids;
    blocks.source_count = (TOKENS + source->block_tokens - 1) / source->block_tokens;
    blocks.target_blocks = target->ids;
    blocks.target_count = (TOKENS + target->block_tokens - 1) / target->block_tokens;
    part.first_token = first;
    part.end_token = end;
    part.end_layer = UINT32_MAX;
    part.blocks = &blocks;
    part.group_count = 1;
    CHECK_OK(ferry_kv_plan_new(source->layout, target->layout, &plan, NULL));
    if (ferry_kv_plan_lower(plan, source->layout, target->layout, &part, &moves, &error) != FERRY_OK)
        FAIL("%s", error.message);
    ferry_kv_plan_free(plan);
    return moves;
}

static ferry_kv_move get(const ferry_kv_moves *moves, size_t index)
{
    ferry_kv_move move = FERRY_KV_MOVE_INIT;
    CHECK_OK(ferry_kv_moves_get(moves, index, &move, NULL));
    CHECK(move.struct_size == sizeof move);
    return move;
}

static size_t count(const ferry_kv_moves *moves)
{
    size_t count = SIZE_MAX;
    CHECK_OK(ferry_kv_moves_count(moves, &count, NULL));
    return count;
}

/* Moves the bytes as a program does that has both sides' memory. Returns how many. */
static uint64_t copy(const ferry_kv_move *move)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < move->pair_count; i++)
        for (uint64_t a = 0; a < move->counts[0]; a++)
            for (uint64_t b = 0; b < move->counts[1]; b++)
                for (uint64_t c = 0; c < move->counts[2]; c++)
                    for (uint64_t d = 0; d < move->counts[3]; d++) {
                        const uint64_t from =
                            move->source + move->source_blocks[i] * move->source_stride +
                            a * move->source_steps[0] + b * move->source_steps[1] +
                            c * move->source_steps[2] + d * move->source_steps[3];
                        const uint64_t to =
                            move->target + move->target_blocks[i] * move->target_stride +
                            a * move->target_steps[0] + b * move->target_steps[1] +
                            c * move->target_steps[2] + d * move->target_steps[3];
                        memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, (size_t)move->bytes);
                        bytes += move->bytes;
                    }
    return bytes;
}

/* Hands tokens first to end over from `from` ranks to `to`, and compares every element of every target. */
static void hand_over(uint32_t from, uint32_t from_arrangement, uint32_t to, uint32_t to_arrangement,
                      uint32_t first, uint32_t end)
{
    kv_cache source[4], target[4];
    const uint64_t row = KV_ELEMENTS * sizeof(uint32_t);
    uint64_t bytes = 0;
    for (uint32_t rank = 0; rank < from; rank++) {
        source[rank] = kv_open(from_arrangement, rank, from, 16, NULL);
        kv_write(&source[rank], 0, TOKENS);
    }
    for (uint32_t rank = 0; rank < to; rank++) {
        target[rank] = kv_open(to_arrangement, rank, to, 24, NULL);
        for (uint32_t sender = 0; sender < from; sender++) {
            ferry_kv_moves *moves = lower(&source[sender], &target[rank], first, end);
            for (size_t i = 0; i < count(moves); i++) {
                const ferry_kv_move move = get(moves, i);
                bytes += copy(&move);
            }
            ferry_kv_moves_free(moves);
        }
        if (!kv_holds(&target[rank], first, end))
            FAIL("rank %u of %u, %u ranks before, arrangements %u and %u, tokens %u to %u", rank, to, from,
                 from_arrangement, to_arrangement, first, end);
        kv_close(&target[rank]);
    }
    CHECK(bytes == KV_LAYERS * 2 * KV_HEADS * (end - first) * row);
    for (uint32_t rank = 0; rank < from; rank++) kv_close(&source[rank]);
}

static void four_ranks_to_two(void)
{
    for (uint32_t from = FERRY_KV_PAIR_BLOCK_TOKEN_HEAD; from <= FERRY_KV_BLOCK_HEAD_PAIR_TOKEN; from++)
        for (uint32_t to = FERRY_KV_PAIR_BLOCK_TOKEN_HEAD; to <= FERRY_KV_BLOCK_HEAD_PAIR_TOKEN; to++)
            hand_over(4, from, 2, to, 0, TOKENS);
}

static void other_numbers_of_ranks(void)
{
    hand_over(2, FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 4, FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 0, TOKENS);
    hand_over(1, FERRY_KV_PAIR_BLOCK_TOKEN_HEAD, 1, FERRY_KV_PAIR_BLOCK_TOKEN_HEAD, 0, TOKENS);
}

static void a_part_of_the_tokens(void)
{
    hand_over(4, FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 2, FERRY_KV_PAIR_BLOCK_TOKEN_HEAD, 17, 95);
    hand_over(4, FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 2, FERRY_KV_PAIR_BLOCK_TOKEN_HEAD, 50, 51);
    hand_over(4, FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 2, FERRY_KV_PAIR_BLOCK_TOKEN_HEAD, 50, 50);
}

/* Layer by layer, as the layers are computed, with lists that begin in the middle. */
static void a_part_of_the_layers(void)
{
    kv_cache source = kv_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16, NULL);
    kv_cache target = kv_open(FERRY_KV_BLOCK_PAIR_TOKEN_HEAD, 0, 1, 16, NULL);
    ferry_kv_plan *plan = NULL;
    ferry_kv_block_pairs blocks = FERRY_KV_BLOCK_PAIRS_INIT;
    ferry_kv_part part = FERRY_KV_PART_INIT;
    kv_write(&source, 0, TOKENS);
    blocks.source_blocks = &source.ids[1];
    blocks.source_count = 4;
    blocks.source_first_token = 16;
    blocks.target_blocks = &target.ids[2];
    blocks.target_count = 3;
    blocks.target_first_token = 32;
    part.first_token = 32;
    part.end_token = 80;
    part.blocks = &blocks;
    part.group_count = 1;
    CHECK_OK(ferry_kv_plan_new(source.layout, target.layout, &plan, NULL));
    for (part.first_layer = 0; part.first_layer < KV_LAYERS; part.first_layer++) {
        ferry_kv_moves *moves = NULL;
        ferry_kv_move move;
        part.end_layer = part.first_layer + 1;
        CHECK_OK(ferry_kv_plan_lower(plan, source.layout, target.layout, &part, &moves, NULL));
        CHECK(count(moves) == 1 && !kv_holds(&target, 32, 80));
        move = get(moves, 0);
        /* Equal blocks: whole ones, without loops. */
        CHECK(move.layer == part.first_layer && move.pair_count == 3);
        CHECK(move.bytes == 16 * 2 * KV_HEADS * KV_ELEMENTS * sizeof(uint32_t) && move.counts[0] == 1);
        CHECK(copy(&move) == 3 * move.bytes);
        ferry_kv_moves_free(moves);
    }
    CHECK(kv_holds(&target, 32, 80));
    ferry_kv_plan_free(plan);
    kv_close(&source);
    kv_close(&target);
}

/* Writes the bytes of a move to the peer: one layer of ferry_blocks for each step of the loops. */
static void write_blocks(const pair *pair, const ferry_kv_move *move)
{
    enum { STEPS_MAX = 256 };
    static uint64_t local[STEPS_MAX], remote[STEPS_MAX], local_stride[STEPS_MAX], remote_stride[STEPS_MAX],
        bytes[STEPS_MAX];
    ferry_blocks blocks = FERRY_BLOCKS_INIT;
    ferry_transfer transfer = 0;
    for (uint64_t a = 0; a < move->counts[0]; a++)
        for (uint64_t b = 0; b < move->counts[1]; b++)
            for (uint64_t c = 0; c < move->counts[2]; c++)
                for (uint64_t d = 0; d < move->counts[3]; d++) {
                    const size_t at = blocks.layer_count++;
                    CHECK(at < STEPS_MAX);
                    local[at] = move->source + a * move->source_steps[0] + b * move->source_steps[1] +
                                c * move->source_steps[2] + d * move->source_steps[3];
                    remote[at] = move->target + a * move->target_steps[0] + b * move->target_steps[1] +
                                 c * move->target_steps[2] + d * move->target_steps[3];
                    local_stride[at] = move->source_stride;
                    remote_stride[at] = move->target_stride;
                    bytes[at] = move->bytes;
                }
    blocks.id_bytes = 4;
    blocks.local_base = local;
    blocks.remote_base = remote;
    blocks.local_stride = local_stride;
    blocks.remote_stride = remote_stride;
    blocks.block_bytes = bytes;
    blocks.pair_count = (size_t)move->pair_count;
    blocks.local_blocks = move->source_blocks;
    blocks.remote_blocks = move->target_blocks;
    CHECK_OK(ferry_transfer_submit_blocks(pair->a, pair->peer, FERRY_OP_WRITE, &blocks, NULL, &transfer,
                                          NULL));
    CHECK_OK(ferry_transfer_wait(pair->a, transfer, PATIENCE_NS, NULL, NULL));
    CHECK_OK(ferry_transfer_release(pair->a, transfer, NULL));
}

static void moves_are_blocks_of_a_transfer(void)
{
    pair pair = open_pair(1 << 20);
    kv_cache target = kv_open(FERRY_KV_PAIR_BLOCK_TOKEN_HEAD, 0, 2, 24, pair.b_memory);
    for (uint32_t rank = 0; rank < 2; rank++) {
        kv_cache source = kv_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, rank, 4, 16, pair.a_memory);
        ferry_kv_moves *moves = lower(&source, &target, 0, TOKENS);
        CHECK(KV_LAYERS * kv_layer_elements(&target) * sizeof(uint32_t) <= pair.length);
        kv_write(&source, 0, TOKENS);
        CHECK(count(moves) > 0);
        for (size_t i = 0; i < count(moves); i++) {
            const ferry_kv_move move = get(moves, i);
            write_blocks(&pair, &move);
        }
        ferry_kv_moves_free(moves);
        kv_close(&source);
    }
    CHECK(kv_holds(&target, 0, TOKENS));
    kv_close(&target);
    end_pair(&pair);
}

static void a_layout_survives_its_bytes(void)
{
    kv_cache cache = kv_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 3, 4, 16, NULL);
    ferry_kv_layout_info info = FERRY_KV_LAYOUT_INFO_INIT, again = FERRY_KV_LAYOUT_INFO_INIT;
    ferry_kv_layout *imported = NULL;
    unsigned char bytes[1024], bytes_again[1024];
    size_t length = 0, length_again = 0;
    CHECK_OK(ferry_kv_layout_export(cache.layout, NULL, 0, &length, NULL));
    CHECK(length > 100 && length <= sizeof bytes);
    CHECK_STATUS(ferry_kv_layout_export(cache.layout, bytes, length - 1, &length_again, NULL),
                 FERRY_ERR_LIMIT);
    CHECK_OK(ferry_kv_layout_export(cache.layout, bytes, length, &length_again, NULL));
    CHECK(length_again == length);
    CHECK_OK(ferry_kv_layout_import(bytes, length, &imported, NULL));
    CHECK_OK(ferry_kv_layout_export(imported, bytes_again, sizeof bytes_again, &length_again, NULL));
    CHECK(length_again == length && memcmp(bytes, bytes_again, length) == 0);
    CHECK_OK(ferry_kv_layout_get_info(cache.layout, &info, NULL));
    CHECK(info.rank == 3 && info.ranks == 4 && info.group_count == 1 && info.layer_count == KV_LAYERS);
    CHECK_OK(ferry_kv_layout_get_info(imported, &again, NULL));
    CHECK(memcmp(&info, &again, sizeof info) == 0 && info.struct_size == sizeof info);
    ferry_kv_layout_free(imported);
    kv_close(&cache);
}

static void a_plan_says_who_sends_to_whom(void)
{
    kv_cache source = kv_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 0, 4, 16, NULL);
    kv_cache target = kv_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 1, 2, 16, NULL);
    ferry_kv_plan *plan = NULL;
    uint32_t ranks[4] = {9, 9, 9, 9};
    size_t found = 0, length = 0;
    char page[4096];
    CHECK_OK(ferry_kv_plan_new(source.layout, target.layout, &plan, NULL));
    CHECK_OK(ferry_kv_plan_sources(plan, 1, NULL, 0, &found, NULL));
    CHECK(found == 2);
    CHECK_OK(ferry_kv_plan_sources(plan, 1, ranks, 1, &found, NULL));
    CHECK(found == 2 && ranks[0] == 2 && ranks[1] == 9);
    CHECK_OK(ferry_kv_plan_sources(plan, 1, ranks, 4, &found, NULL));
    CHECK(found == 2 && ranks[0] == 2 && ranks[1] == 3 && ranks[2] == 9);
    CHECK_OK(ferry_kv_plan_targets(plan, 3, ranks, 4, &found, NULL));
    CHECK(found == 1 && ranks[0] == 1);
    CHECK_OK(ferry_kv_plan_explain(plan, NULL, 0, &length, NULL));
    CHECK(length > 100 && length < sizeof page);
    CHECK_OK(ferry_kv_plan_explain(plan, page, sizeof page, &length, NULL));
    CHECK(page[length] == 0 && strlen(page) == length);
    CHECK(strstr(page, "model \"llama\"") != NULL && strstr(page, "source: 4 ranks") != NULL);
    CHECK(strstr(page, "\n3 -> 1: ") != NULL && strstr(page, "\n3 -> 0: ") == NULL);
    ferry_kv_plan_free(plan);
    kv_close(&source);
    kv_close(&target);
}

/* Two ranks that exchange nothing, and objects that outlive what they were made from. */
static void no_moves_and_late_moves(void)
{
    kv_cache source = kv_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 0, 4, 16, NULL);
    kv_cache other = kv_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 1, 2, 16, NULL);
    kv_cache target = kv_open(FERRY_KV_BLOCK_PAIR_HEAD_TOKEN, 0, 2, 16, NULL);
    ferry_kv_moves *none = lower(&source, &other, 0, TOKENS), *late = lower(&source, &target, 0, TOKENS);
    ferry_kv_move move = FERRY_KV_MOVE_INIT;
    ferry_error error = new_error();
    CHECK(count(none) == 0);
    CHECK_INVALID(ferry_kv_moves_get(none, 0, &move, &error));
    CHECK_MESSAGE(error, "index is 0, and there are 0 moves");
    ferry_kv_layout_free(source.layout);
    ferry_kv_layout_free(target.layout);
    source.layout = target.layout = NULL;
    CHECK(count(late) == 2 * KV_LAYERS);
    for (size_t i = 0; i < count(late); i++) {
        move = get(late, i);
        CHECK(move.layer < KV_LAYERS && move.pair_count == (i < KV_LAYERS ? 6 : 1));
    }
    CHECK_INVALID(ferry_kv_moves_get(late, count(late), &move, NULL));
    ferry_kv_moves_free(none);
    ferry_kv_moves_free(late);
    kv_close(&source);
    kv_close(&other);
    kv_close(&target);
}

SUITE(kv, CASE(four_ranks_to_two), CASE(other_numbers_of_ranks), CASE(a_part_of_the_tokens),
      CASE(a_part_of_the_layers), CASE(moves_are_blocks_of_a_transfer), CASE(a_layout_survives_its_bytes),
      CASE(a_plan_says_who_sends_to_whom), CASE(no_moves_and_late_moves));
