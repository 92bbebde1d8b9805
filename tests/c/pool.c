/* ferry_pool.h: what one node puts, the others get; what exists; keys; calls that nobody waits for; what is counted. */
#include "arguments.h"
#include "pool_nodes.h"

enum { BYTES = 100000, KEYS = 8 };

static const uint64_t lent[] = {32 << 20, 32 << 20, 0};
static pool_node nodes[POOL_NODES_MAX];

static uint64_t id_of(const pool_node *node, const char *name)
{
    ferry_pool_node_info found[POOL_NODES_MAX];
    size_t count = 0;
    CHECK_OK(ferry_pool_nodes(node->pool, found, sizeof found[0], POOL_NODES_MAX, &count, NULL));
    CHECK(count == POOL_NODES_MAX);
    for (size_t i = 0; i < count; i++)
        if (strcmp(found[i].name, name) == 0) return found[i].id;
    FAIL("no node has the name %s", name);
}

static void what_one_node_puts_every_node_gets(void)
{
    pool_open(nodes, 3, lent);
    for (size_t from = 0; from < 3; from++) {
        ferry_pool_range ranges[KEYS][2];
        ferry_pool_value values[KEYS];
        ferry_pool_result results[KEYS];
        fill(nodes[from].memory, KEYS * BYTES, 1 + from);
        for (size_t k = 0; k < KEYS; k++) {
            values[k] = pool_value(&nodes[from], 100 * from + k, ranges[k], k * BYTES, 8);
            ranges[k][1].address = ranges[k][0].address + 8;
            ranges[k][1].length = BYTES - 8;
            values[k].memory_count = 2;
        }
        CHECK_OK(ferry_pool_put(nodes[from].pool, values, KEYS, NULL, PATIENCE_NS, results, NULL));
        for (size_t k = 0; k < KEYS; k++) {
            CHECK_OUTCOME(ferry_pool_outcome_name(results[k].outcome), "OK");
            CHECK(results[k].reserved == 0 && results[k].bytes == BYTES);
            if (from < 2) CHECK(results[k].node == id_of(&nodes[2], from == 0 ? "node 0" : "node 1"));
        }
        /* A client's put goes to the node that has most room, which may have become the other one. */
        if (from < 2) CHECK_OUTCOME(pool_put(&nodes[from], 100 * from, 0, BYTES), "HERE");
        for (size_t to = 0; to < 3; to++) {
            memset(nodes[to].memory, 0, POOL_MEMORY);
            for (size_t k = 0; k < KEYS; k++) {
                CHECK_OUTCOME(pool_get(&nodes[to], 100 * from + k, k * BYTES, BYTES), "OK");
                CHECK(holds(nodes[to].memory, k * BYTES, BYTES, 1 + from, k * BYTES));
            }
        }
    }
    CHECK_OUTCOME(pool_get(&nodes[1], 4711, 0, 8), "ABSENT");
    CHECK_OUTCOME(pool_get(&nodes[1], 0, 0, BYTES - 8), "LENGTH");
    CHECK_OUTCOME(pool_get(&nodes[1], 0, 0, BYTES + 8), "LENGTH");
    pool_close(nodes, 3);
}

static void a_prefix_exists_up_to_its_first_miss(void)
{
    const uint32_t flags[] = {0, FERRY_POOL_PREFIX};
    ferry_pool_call_options options = FERRY_POOL_CALL_OPTIONS_INIT;
    ferry_pool_key keys[5];
    ferry_pool_result results[5];
    pool_open(nodes, 3, lent);
    for (size_t k = 0; k < 5; k++) {
        keys[k] = pool_key(k);
        if (k != 3) CHECK_OUTCOME(pool_put(&nodes[0], k, 0, 64), "OK");
    }
    for (size_t f = 0; f < 2; f++) {
        options.flags = flags[f];
        CHECK_OK(ferry_pool_exists(nodes[2].pool, keys, 5, &options, PATIENCE_NS, results, NULL));
        CHECK(results[0].outcome == FERRY_POOL_OUTCOME_OK && results[2].outcome == FERRY_POOL_OUTCOME_OK);
        CHECK(results[3].outcome == FERRY_POOL_OUTCOME_ABSENT);
        CHECK(results[4].outcome == (f == 0 ? FERRY_POOL_OUTCOME_OK : FERRY_POOL_OUTCOME_ABSENT));
    }
    CHECK_OK(ferry_pool_remove(nodes[1].pool, keys, 4, NULL, PATIENCE_NS, results, NULL));
    CHECK(results[0].outcome == FERRY_POOL_OUTCOME_OK && results[3].outcome == FERRY_POOL_OUTCOME_ABSENT);
    for (size_t i = 0; i < 3; i++) {
        /* The index hears of it after the caller. */
        const char *outcome = pool_get(&nodes[i], 0, 0, 64);
        CHECK(strcmp(outcome, "ABSENT") == 0 || strcmp(outcome, "EVICTED") == 0);
    }
    pool_close(nodes, 3);
}

static ferry_pool_keyspace *keyspace_of(const char *tenant, const char *rope)
{
    const ferry_pool_pair pair = {"layers", "0-15", 4};
    ferry_pool_identity identity = FERRY_POOL_IDENTITY_INIT;
    ferry_pool_keyspace *keyspace = NULL;
    identity.tenant = tenant;
    identity.model = "llama";
    identity.rope = rope;
    identity.rope_length = strlen(rope);
    identity.pairs = &pair;
    identity.pair_count = 1;
    CHECK_OK(ferry_pool_keyspace_new(&identity, &keyspace, NULL));
    return keyspace;
}

static void keys_name_what_their_bytes_depend_on(void)
{
    ferry_pool_keyspace *one = keyspace_of("a", "yarn"), *other = keyspace_of("a", "llama3");
    ferry_pool_key key, again, different;
    char text[FERRY_POOL_KEY_TEXT_BYTES];
    CHECK_OK(ferry_pool_key_of(one, "hash", 4, &key, NULL));
    CHECK_OK(ferry_pool_key_of(one, "hash", 4, &again, NULL));
    CHECK_OK(ferry_pool_key_of(other, "hash", 4, &different, NULL));
    CHECK(memcmp(&key, &again, sizeof key) == 0 && memcmp(&key, &different, sizeof key) != 0);
    CHECK_OK(ferry_pool_key_format(&key, text, sizeof text, NULL));
    CHECK(strlen(text) == 64);
    memset(&again, 0, sizeof again);
    CHECK_OK(ferry_pool_key_parse(text, &again, NULL));
    CHECK(memcmp(&key, &again, sizeof key) == 0);
    ferry_pool_keyspace_free(one);
    ferry_pool_keyspace_free(other);
    ferry_pool_keyspace_free(NULL);
}

/* The digits are those that Python's hmac and hashlib make of the bytes in pool/src/key/mod.rs. */
static void a_secret_decides_the_keys_of_its_tenant(void)
{
    static const char secret[] = "a secret of the tenant a";
    static const char *const expected[] = {"414ea2c617ae69b84496f6f25d29155420a6a72ac6cc0fc9d030a2009d01eff0",
                                           "30543e292430a73659f379673597179283d8d3c5fb9aeab6436f1564782704be"};
    ferry_pool_identity identity = FERRY_POOL_IDENTITY_INIT;
    for (size_t i = 0; i < 2; i++) {
        ferry_pool_keyspace *keyspace = NULL;
        ferry_pool_key key;
        char text[FERRY_POOL_KEY_TEXT_BYTES];
        identity.tenant = "a";
        identity.model = "llama";
        identity.secret = i == 0 ? NULL : secret;
        identity.secret_length = i == 0 ? 0 : sizeof secret - 1;
        CHECK_OK(ferry_pool_keyspace_new(&identity, &keyspace, NULL));
        CHECK_OK(ferry_pool_key_of(keyspace, "hash", 4, &key, NULL));
        CHECK_OK(ferry_pool_key_format(&key, text, sizeof text, NULL));
        CHECK(strcmp(text, expected[i]) == 0);
        ferry_pool_keyspace_free(keyspace);
    }
}

static void a_tenant_at_its_quota_loses_its_own_values(void)
{
    static char text[16384];
    ferry_pool_quota quota = {"tests", NULL, 0, 2 << 14};
    ferry_pool_options options = FERRY_POOL_OPTIONS_INIT;
    ferry_pool_key raw;
    ferry_pool_range range;
    ferry_pool_value value;
    ferry_pool_result result;
    void *memory = NULL;
    size_t length = 0;
    pool_node node = {NULL, NULL, NULL, 0};
    node.engine = open_engine();
    options.memory_bytes = 1 << 20;
    options.quotas = &quota;
    options.quota_count = 1;
    CHECK_OK(ferry_pool_open(node.engine, &options, &node.pool, NULL));
    CHECK_OK(ferry_memory_alloc(node.engine, POOL_MEMORY, NULL, &memory, &node.region, NULL));
    node.memory = memory;
    /* A key that the program made: the tenant of its last 8 bytes has no quota. */
    memset(&raw, 7, sizeof raw);
    value = pool_value(&node, 0, &range, 0, 3 << 14);
    value.key = raw;
    CHECK_OK(ferry_pool_put(node.pool, &value, 1, NULL, PATIENCE_NS, &result, NULL));
    CHECK_OUTCOME(ferry_pool_outcome_name(result.outcome), "OK");
    for (uint64_t k = 0; k < 3; k++) CHECK_OUTCOME(pool_put(&node, k, 0, 100), "OK");
    CHECK_OUTCOME(pool_put(&node, 3, 0, (2 << 14) + 1), "TOO_LONG");
    CHECK_OUTCOME(pool_get(&node, 0, 0, 100), "ABSENT");
    CHECK_OUTCOME(pool_get(&node, 2, 0, 100), "OK");
    CHECK_OK(ferry_pool_get(node.pool, &value, 1, NULL, PATIENCE_NS, &result, NULL));
    CHECK_OUTCOME(ferry_pool_outcome_name(result.outcome), "OK");
    CHECK_OK(ferry_pool_metrics(node.pool, text, sizeof text, &length, NULL));
    CHECK(strstr(text, "ferry_pool_tenant_evictions_total{tenant=\"tests\"} 1\n") != NULL);
    pool_close(&node, 1);
}

static void a_chain_goes_on_from_its_parent(void)
{
    ferry_pool_keyspace *keyspace = keyspace_of("a", "");
    ferry_pool_chain_options options = FERRY_POOL_CHAIN_OPTIONS_INIT;
    ferry_pool_extra extra = FERRY_POOL_EXTRA_INIT;
    ferry_pool_key keys[5], parts[5];
    ferry_pool_hash last;
    uint32_t tokens[11];
    size_t count = 0;
    for (uint32_t t = 0; t < 11; t++) tokens[t] = 1000 + t;
    CHECK_OK(ferry_pool_chain(keyspace, NULL, tokens, 11, keys, 5, &count, &last, NULL));
    CHECK(count == 0); /* A chunk has 256 tokens. */
    options.chunk_tokens = 2;
#define CHAIN(from, length, out, room) ferry_pool_chain(keyspace, &options, tokens + (from), length, out, room, &count, &last, NULL)
    CHECK_OK(CHAIN(0, 11, keys, 5));
    CHECK(count == 5);
    CHECK_OK(CHAIN(0, 4, parts, 5));
    CHECK(count == 2);
    options.parent = &last;
    CHECK_OK(CHAIN(4, 7, parts + 2, 3));
    CHECK(count == 3 && memcmp(keys, parts, sizeof keys) == 0);
    options.parent = NULL;
    /* Writes as many as fit, and says how many there are. */
    memset(parts, 0, sizeof parts);
    CHECK_OK(CHAIN(0, 11, parts, 1));
    CHECK(count == 5 && memcmp(keys, parts, sizeof keys[0]) == 0 && is_zero(parts[1].bytes, 32));
    extra.kind = FERRY_POOL_EXTRA_IMAGE;
    extra.bytes = "image";
    extra.length = 5;
    extra.first_token = 5;
    extra.token_count = 1;
    options.extras = &extra;
    options.extra_count = 1;
    CHECK_OK(CHAIN(0, 11, parts, 5));
    CHECK(memcmp(keys, parts, 2 * sizeof keys[0]) == 0 && memcmp(keys + 2, parts + 2, sizeof keys[0]) != 0);
    extra.kind = FERRY_POOL_EXTRA_LORA;
    extra.first_token = extra.token_count = 0;
    CHECK_OK(CHAIN(0, 11, parts, 5));
    CHECK(memcmp(keys, parts, sizeof keys[0]) != 0);
#undef CHAIN
    ferry_pool_keyspace_free(keyspace);
}

/* Waits for the end of a call by the pool's descriptor. */
static ferry_pool_event next_end(const pool_node *node)
{
    ferry_pool_event event = FERRY_POOL_EVENT_INIT;
    int fd = -1;
    CHECK_OK(ferry_pool_fd(node->pool, &fd, NULL));
    for (;;) {
        const ferry_status status = ferry_pool_poll(node->pool, &event, NULL);
        if (status == FERRY_OK) return event;
        CHECK(status == FERRY_PENDING);
        CHECK(readable(fd, 60000));
    }
}

static void ends_of_submitted_calls_have_their_number(void)
{
    ferry_pool_call_options options = FERRY_POOL_CALL_OPTIONS_INIT;
    ferry_pool_range range;
    ferry_pool_value value;
    ferry_pool_key keys[2];
    ferry_pool_event event = FERRY_POOL_EVENT_INIT;
    pool_open(nodes, 3, lent);
    fill(nodes[0].memory, 4096, 9);
    keys[0] = pool_key(1);
    keys[1] = pool_key(2);
    value = pool_value(&nodes[0], 1, &range, 0, 4096);
    options.user_data = 11;
    options.preferred = "node 1";
    CHECK_OK(ferry_pool_submit_put(nodes[0].pool, &value, 1, &options, NULL));
    event = next_end(&nodes[0]);
    CHECK(event.user_data == 11 && event.result_count == 1 && event.results[0].outcome == FERRY_POOL_OUTCOME_OK);
    CHECK(event.results[0].node == id_of(&nodes[0], "node 1"));
    ferry_pool_event_release(&event);
    CHECK(event.results == NULL && event.result_count == 0);
    ferry_pool_event_release(&event);
    ferry_pool_event_release(NULL);
    options.preferred = NULL;
    options.user_data = 12;
    value = pool_value(&nodes[2], 1, &range, 8192, 4096);
    CHECK_OK(ferry_pool_submit_get(nodes[2].pool, &value, 1, &options, NULL));
    event = next_end(&nodes[2]);
    CHECK(event.user_data == 12 && event.results[0].outcome == FERRY_POOL_OUTCOME_OK);
    CHECK(holds(nodes[2].memory, 8192, 4096, 9, 0));
    ferry_pool_event_release(&event);
    options.user_data = 13;
    CHECK_OK(ferry_pool_submit_exists(nodes[2].pool, keys, 2, &options, NULL));
    event = next_end(&nodes[2]);
    CHECK(event.user_data == 13 && event.result_count == 2 && event.results[1].outcome == FERRY_POOL_OUTCOME_ABSENT);
    ferry_pool_event_release(&event);
    CHECK_OK(ferry_pool_submit_remove(nodes[2].pool, keys, 1, NULL, NULL));
    CHECK_OK(ferry_pool_wait(nodes[2].pool, PATIENCE_NS, &event, NULL));
    CHECK(event.user_data == 0 && event.results[0].outcome == FERRY_POOL_OUTCOME_OK);
    ferry_pool_event_release(&event);
    CHECK_STATUS(ferry_pool_wait(nodes[2].pool, 1000000, &event, NULL), FERRY_PENDING);
    /* A call that has passed its timeout goes on, and has its number. */
    options.user_data = 14;
    {
        ferry_pool_result result;
        const ferry_status status = ferry_pool_exists(nodes[2].pool, keys, 1, &options, 0, &result, NULL);
        if (status != FERRY_OK) {
            CHECK(status == FERRY_ERR_TIMEOUT);
            event = next_end(&nodes[2]);
            CHECK(event.user_data == 14 && event.result_count == 1);
            ferry_pool_event_release(&event);
        }
    }
    pool_close(nodes, 3);
}

static void a_prefetch_brings_values_into_this_node(void)
{
    ferry_pool_call_options options = FERRY_POOL_CALL_OPTIONS_INIT;
    ferry_pool_key keys[4];
    ferry_pool_result results[4];
    ferry_pool_event event;
    ferry_pool_stats stats = FERRY_POOL_STATS_INIT;
    pool_open(nodes, 3, lent);
    fill(nodes[0].memory, BYTES, 1);
    for (size_t k = 0; k < 4; k++) {
        keys[k] = pool_key(k);
        if (k != 2) CHECK_OUTCOME(pool_put(&nodes[0], k, 0, BYTES), "OK");
    }
    options.flags = FERRY_POOL_PREFIX;
    CHECK_OK(ferry_pool_prefetch(nodes[1].pool, keys, 4, &options, PATIENCE_NS, results, NULL));
    for (size_t k = 0; k < 2; k++) {
        CHECK(results[k].outcome == FERRY_POOL_OUTCOME_OK && results[k].bytes == BYTES);
        CHECK(results[k].node == id_of(&nodes[1], "node 0"));
        CHECK(results[k + 2].outcome == FERRY_POOL_OUTCOME_ABSENT);
    }
    options.flags = 0;
    options.user_data = 15;
    CHECK_OK(ferry_pool_submit_prefetch(nodes[1].pool, keys, 4, &options, NULL));
    event = next_end(&nodes[1]);
    CHECK(event.user_data == 15 && event.result_count == 4);
    CHECK(event.results[0].outcome == FERRY_POOL_OUTCOME_HERE && event.results[1].outcome == FERRY_POOL_OUTCOME_HERE);
    CHECK(event.results[2].outcome == FERRY_POOL_OUTCOME_ABSENT && event.results[3].outcome == FERRY_POOL_OUTCOME_OK);
    ferry_pool_event_release(&event);
    CHECK_OUTCOME(pool_get(&nodes[1], 3, 0, BYTES), "OK");
    CHECK(holds(nodes[1].memory, 0, BYTES, 1, 0));
    CHECK_OK(ferry_pool_get_stats(nodes[1].pool, &stats, NULL));
    CHECK(stats.values == 3 && stats.gets == 1 && stats.hits_here == 1);
    pool_close(nodes, 3);
}

static void a_node_that_is_taken_out_moves_its_values(void)
{
    ferry_pool_drained drained = FERRY_POOL_DRAINED_INIT;
    ferry_pool_stats stats = FERRY_POOL_STATS_INIT;
    pool_open(nodes, 3, lent);
    fill(nodes[0].memory, BYTES, 1);
    for (uint64_t k = 0; k < 4; k++) CHECK_OUTCOME(pool_put(&nodes[0], k, 0, BYTES), "OK");
    CHECK_NAMES(ferry_pool_drain(nodes[2].pool, PATIENCE_NS, &drained, &error), FERRY_ERR_INVALID, "lends no memory");
    CHECK_OK(ferry_pool_drain(nodes[0].pool, PATIENCE_NS, &drained, NULL));
    CHECK(drained.moved == 4 && drained.here == 0 && drained.left == 0);
    CHECK_OK(ferry_pool_drain(nodes[0].pool, PATIENCE_NS, &drained, NULL));
    CHECK(drained.moved == 4);
    CHECK_NAMES(ferry_pool_drain(nodes[1].pool, PATIENCE_NS, &drained, &error), FERRY_ERR_INVALID, "node 1");
    CHECK_OUTCOME(pool_put(&nodes[0], 4, 0, BYTES), "OK");
    CHECK_OK(ferry_pool_get_stats(nodes[0].pool, &stats, NULL));
    CHECK(stats.values == 0 && stats.drained == 4 && stats.drained_here == 0 && stats.is_draining == 1);
    for (uint64_t k = 0; k < 5; k++) CHECK_OUTCOME(pool_get(&nodes[2], k, 0, BYTES), "OK");
    CHECK(holds(nodes[2].memory, 0, BYTES, 1, 0));
    pool_close(nodes, 3);
}

static void the_cost_of_a_prefix_follows_from_gets(void)
{
    ferry_pool_cost_options options = FERRY_POOL_COST_OPTIONS_INIT;
    ferry_pool_cost cost = FERRY_POOL_COST_INIT;
    ferry_pool_key keys[KEYS];
    ferry_pool_result results[KEYS];
    pool_open(nodes, 3, lent);
    for (size_t k = 0; k < KEYS; k++) {
        keys[k] = pool_key(k);
        if (k < 4) CHECK_OUTCOME(pool_put(&nodes[0], k, 0, BYTES), "OK");
    }
    CHECK_OK(ferry_pool_exists(nodes[2].pool, keys, KEYS, NULL, PATIENCE_NS, results, NULL));
    options.prefill_tokens_per_s = 1;
    options.value_bytes = BYTES;
#define ESTIMATE(pool) ferry_pool_estimate(pool, keys, results, KEYS, &options, &cost, NULL)
    CHECK_OK(ESTIMATE(nodes[2].pool));
    CHECK(cost.is_known == 0 && cost.get_ns == 0 && cost.best_ns == 0);
    CHECK(cost.keys == 4 && cost.load_keys == 4 && cost.bytes == 4 * BYTES);
    CHECK_OUTCOME(pool_get(&nodes[2], 0, 0, BYTES), "OK");
    CHECK_OK(ESTIMATE(nodes[2].pool));
    CHECK(cost.is_known == 1 && cost.get_ns > 0 && cost.keys == 4 && cost.load_keys == 4);
    /* Four chunks of 256 tokens are computed. */
    CHECK(cost.best_ns == cost.get_ns + 1024 * (uint64_t)1000000000);
    options.prefill_tokens_per_s = UINT64_MAX;
    CHECK_OK(ESTIMATE(nodes[2].pool));
    CHECK(cost.load_keys == 0 && cost.best_ns < cost.get_ns);
    CHECK_OK(ferry_pool_estimate(nodes[2].pool, NULL, NULL, 0, NULL, &cost, NULL));
    CHECK(cost.keys == 0 && cost.bytes == 0 && cost.get_ns == 0);
    CHECK_OK(ferry_pool_close(nodes[2].pool, PATIENCE_NS, NULL));
    CHECK_OK(ESTIMATE(nodes[2].pool));
#undef ESTIMATE
    pool_close(nodes, 3);
}

static void a_call_without_keys_has_an_end(void)
{
    ferry_pool_event event = FERRY_POOL_EVENT_INIT;
    pool_open(nodes, 1, lent);
    CHECK_OK(ferry_pool_get(nodes[0].pool, NULL, 0, NULL, PATIENCE_NS, NULL, NULL));
    CHECK_OK(ferry_pool_exists(nodes[0].pool, NULL, 0, NULL, 0, NULL, NULL));
    CHECK_OK(ferry_pool_submit_put(nodes[0].pool, NULL, 0, NULL, NULL));
    CHECK_OK(ferry_pool_wait(nodes[0].pool, PATIENCE_NS, &event, NULL));
    CHECK(event.results == NULL && event.result_count == 0);
    pool_close(nodes, 1);
}

static void hits_and_misses_are_counted_by_their_reason(void)
{
    static char text[16384];
    ferry_pool_stats stats = FERRY_POOL_STATS_INIT;
    uint64_t count = 77;
    size_t length = 0;
    pool_open(nodes, 3, lent);
    CHECK_OUTCOME(pool_put(&nodes[0], 1, 0, BYTES), "OK");
    CHECK_OUTCOME(pool_put(&nodes[0], 1, 0, BYTES), "HERE");
    CHECK_OUTCOME(pool_put(&nodes[0], 2, 0, 0), "OK");
    CHECK_OUTCOME(pool_get(&nodes[0], 1, 0, BYTES), "OK");
    CHECK_OUTCOME(pool_get(&nodes[0], 3, 0, BYTES), "ABSENT");
    CHECK_OUTCOME(pool_get(&nodes[0], 1, 0, 8), "LENGTH");
    CHECK_OK(ferry_pool_get_stats(nodes[0].pool, &stats, NULL));
    CHECK(stats.gets == 3 && stats.hits == 1 && stats.hits_here == 1 && stats.got_bytes == BYTES);
    CHECK(stats.puts == 3 && stats.put_bytes == BYTES && stats.values == 2 && stats.values_stored == 2);
    CHECK(stats.capacity == lent[0] && stats.free < lent[0] && stats.nodes == 3);
    CHECK_OK(ferry_pool_gets_ended(nodes[0].pool, FERRY_POOL_OUTCOME_LENGTH, &count, NULL));
    CHECK(count == 1);
    CHECK_OK(ferry_pool_puts_ended(nodes[0].pool, FERRY_POOL_OUTCOME_HERE, &count, NULL));
    CHECK(count == 1);
    CHECK_OK(ferry_pool_metrics(nodes[0].pool, text, sizeof text, &length, NULL));
    CHECK(strlen(text) == length);
    CHECK(strstr(text, "ferry_pool_gets_total{outcome=\"ABSENT\"} 1\n") != NULL);
    pool_close(nodes, 3);
}

SUITE(pool, CASE(what_one_node_puts_every_node_gets), CASE(a_prefix_exists_up_to_its_first_miss),
      CASE(keys_name_what_their_bytes_depend_on), CASE(a_secret_decides_the_keys_of_its_tenant),
      CASE(a_tenant_at_its_quota_loses_its_own_values), CASE(a_chain_goes_on_from_its_parent),
      CASE(ends_of_submitted_calls_have_their_number), CASE(a_prefetch_brings_values_into_this_node),
      CASE(a_node_that_is_taken_out_moves_its_values), CASE(the_cost_of_a_prefix_follows_from_gets), CASE(a_call_without_keys_has_an_end),
      CASE(hits_and_misses_are_counted_by_their_reason));
