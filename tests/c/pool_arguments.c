/*
 * Wrong arguments of ferry_pool.h: each call fails, names the argument and does nothing. Nodes that cannot be of one
 * cluster say why. A closed pool and a forked child refuse each call.
 */
#define _POSIX_C_SOURCE 200809L
#include "arguments.h"
#include "pool_nodes.h"

#include <sys/wait.h>
#include <unistd.h>

static const uint64_t lent[] = {32 << 20, 32 << 20, 0};
/* Kept reachable, so that valgrind does not report the memory that a child leaves alone as lost. */
static pool_node nodes[POOL_NODES_MAX];

static void null_pointers(void)
{
    ferry_pool_identity identity = FERRY_POOL_IDENTITY_INIT;
    ferry_pool_keyspace *keyspace = NULL;
    ferry_pool *other = NULL;
    ferry_pool *pool;
    ferry_pool_key key = pool_key(1);
    ferry_pool_range range;
    ferry_pool_value value;
    ferry_pool_result result;
    ferry_pool_event event = FERRY_POOL_EVENT_INIT;
    ferry_pool_stats stats = FERRY_POOL_STATS_INIT;
    ferry_pool_drained drained = FERRY_POOL_DRAINED_INIT;
    ferry_pool_cost cost = FERRY_POOL_COST_INIT;
    char text[FERRY_POOL_KEY_TEXT_BYTES];
    uint32_t token = 1;
    uint64_t number = 7;
    size_t count = 7;
    int fd = -7;
    pool_open(nodes, 1, lent);
    pool = nodes[0].pool;
    value = pool_value(&nodes[0], 1, &range, 0, 64);
    identity.tenant = "a";
    identity.model = "b";
    CHECK_NULL(ferry_pool_keyspace_new(NULL, &keyspace, &error), "identity");
    CHECK_NULL(ferry_pool_keyspace_new(&identity, NULL, &error), "out_keyspace");
    CHECK_OK(ferry_pool_keyspace_new(&identity, &keyspace, &error));
    CHECK_NULL(ferry_pool_key_of(NULL, "x", 1, &key, &error), "keyspace");
    CHECK_NULL(ferry_pool_key_of(keyspace, NULL, 1, &key, &error), "hash");
    CHECK_NULL(ferry_pool_key_of(keyspace, "x", 1, NULL, &error), "out_key");
    CHECK_NULL(ferry_pool_key_format(NULL, text, sizeof text, &error), "key");
    CHECK_NULL(ferry_pool_key_format(&key, NULL, sizeof text, &error), "buffer");
    CHECK_NULL(ferry_pool_key_parse(NULL, &key, &error), "text");
    CHECK_NULL(ferry_pool_key_parse(text, NULL, &error), "out_key");
    CHECK_NULL(ferry_pool_chain(NULL, NULL, &token, 1, &key, 1, &count, NULL, &error), "keyspace");
    CHECK_NULL(ferry_pool_chain(keyspace, NULL, NULL, 1, &key, 1, &count, NULL, &error), "tokens");
    CHECK_NULL(ferry_pool_chain(keyspace, NULL, &token, 1, NULL, 1, &count, NULL, &error), "out_keys");
    CHECK_NULL(ferry_pool_chain(keyspace, NULL, &token, 1, &key, 1, NULL, NULL, &error), "out_count");
    CHECK_NULL(ferry_pool_open(NULL, NULL, &other, &error), "engine");
    CHECK_NULL(ferry_pool_open(nodes[0].engine, NULL, NULL, &error), "out_pool");
    CHECK_NULL(ferry_pool_close(NULL, 0, &error), "pool");
    CHECK_NULL(ferry_pool_put(NULL, &value, 1, NULL, 0, &result, &error), "pool");
    CHECK_NULL(ferry_pool_put(pool, NULL, 1, NULL, 0, &result, &error), "values");
    CHECK_NULL(ferry_pool_put(pool, &value, 1, NULL, 0, NULL, &error), "out_results");
    CHECK_NULL(ferry_pool_get(NULL, &value, 1, NULL, 0, &result, &error), "pool");
    CHECK_NULL(ferry_pool_get(pool, NULL, 1, NULL, 0, &result, &error), "values");
    CHECK_NULL(ferry_pool_get(pool, &value, 1, NULL, 0, NULL, &error), "out_results");
    CHECK_NULL(ferry_pool_exists(NULL, &key, 1, NULL, 0, &result, &error), "pool");
    CHECK_NULL(ferry_pool_exists(pool, NULL, 1, NULL, 0, &result, &error), "keys");
    CHECK_NULL(ferry_pool_exists(pool, &key, 1, NULL, 0, NULL, &error), "out_results");
    CHECK_NULL(ferry_pool_remove(NULL, &key, 1, NULL, 0, &result, &error), "pool");
    CHECK_NULL(ferry_pool_remove(pool, NULL, 1, NULL, 0, &result, &error), "keys");
    CHECK_NULL(ferry_pool_remove(pool, &key, 1, NULL, 0, NULL, &error), "out_results");
    CHECK_NULL(ferry_pool_prefetch(NULL, &key, 1, NULL, 0, &result, &error), "pool");
    CHECK_NULL(ferry_pool_prefetch(pool, NULL, 1, NULL, 0, &result, &error), "keys");
    CHECK_NULL(ferry_pool_prefetch(pool, &key, 1, NULL, 0, NULL, &error), "out_results");
    CHECK_NULL(ferry_pool_submit_prefetch(pool, NULL, 1, NULL, &error), "keys");
    CHECK_NULL(ferry_pool_estimate(NULL, &key, &result, 1, NULL, &cost, &error), "pool");
    CHECK_NULL(ferry_pool_estimate(pool, NULL, &result, 1, NULL, &cost, &error), "keys");
    CHECK_NULL(ferry_pool_estimate(pool, &key, NULL, 1, NULL, &cost, &error), "results");
    CHECK_NULL(ferry_pool_estimate(pool, &key, &result, 1, NULL, NULL, &error), "out_cost");
    CHECK_NULL(ferry_pool_submit_put(NULL, &value, 1, NULL, &error), "pool");
    CHECK_NULL(ferry_pool_submit_get(pool, NULL, 1, NULL, &error), "values");
    CHECK_NULL(ferry_pool_submit_exists(pool, NULL, 1, NULL, &error), "keys");
    CHECK_NULL(ferry_pool_submit_remove(NULL, &key, 1, NULL, &error), "pool");
    CHECK_NULL(ferry_pool_poll(NULL, &event, &error), "pool");
    CHECK_NULL(ferry_pool_poll(pool, NULL, &error), "out_event");
    CHECK_NULL(ferry_pool_wait(NULL, 0, &event, &error), "pool");
    CHECK_NULL(ferry_pool_fd(NULL, &fd, &error), "pool");
    CHECK_NULL(ferry_pool_fd(pool, NULL, &error), "out_fd");
    CHECK_NULL(ferry_pool_nodes(NULL, NULL, sizeof(ferry_pool_node_info), 0, &count, &error), "pool");
    CHECK_NULL(ferry_pool_nodes(pool, NULL, sizeof(ferry_pool_node_info), 1, &count, &error), "out_nodes");
    CHECK_NULL(ferry_pool_nodes(pool, NULL, sizeof(ferry_pool_node_info), 0, NULL, &error), "out_count");
    CHECK_NULL(ferry_pool_wait_nodes(NULL, 1, 0, &error), "pool");
    CHECK_NULL(ferry_pool_drain(NULL, 0, &drained, &error), "pool");
    CHECK_NULL(ferry_pool_drain(pool, 0, NULL, &error), "out_drained");
    CHECK_NULL(ferry_pool_get_stats(NULL, &stats, &error), "pool");
    CHECK_NULL(ferry_pool_get_stats(pool, NULL, &error), "out_stats");
    CHECK_NULL(ferry_pool_gets_ended(NULL, 0, &number, &error), "pool");
    CHECK_NULL(ferry_pool_puts_ended(pool, 0, NULL, &error), "out_count");
    CHECK_NULL(ferry_pool_metrics(NULL, NULL, 0, &count, &error), "pool");
    CHECK(count == 7 && number == 7 && fd == -7 && other == NULL);
    ferry_pool_keyspace_free(keyspace);
    ferry_pool_free(NULL);
    pool_close(nodes, 1);
}

static void identities_and_hashes(void)
{
    static const char long_hash[10000] = "x";
    static char long_name[257];
    ferry_pool_pair pair = {"model", NULL, 0};
    ferry_pool_identity identity = FERRY_POOL_IDENTITY_INIT;
    ferry_pool_keyspace *keyspace = NULL;
    ferry_pool_key key = {{7}};
    char text[FERRY_POOL_KEY_TEXT_BYTES];
#define NEW ferry_pool_keyspace_new(&identity, &keyspace, &error)
    memset(long_name, 'x', sizeof long_name - 1);
    identity.model = "llama";
    CHECK_BAD(NEW, "tenant: 0 bytes");
    identity.tenant = long_name;
    CHECK_BAD(NEW, "tenant: 256 bytes, which are not 1 to 255");
    identity.tenant = "\xff";
    CHECK_BAD(NEW, "identity.tenant is not UTF-8");
    identity.tenant = "a";
    identity.model = NULL;
    CHECK_BAD(NEW, "model: 0 bytes");
    identity.model = "llama";
    identity.scales_length = 4;
    CHECK_BAD(NEW, "identity.scales is NULL");
    identity.scales_length = UINT64_MAX;
    CHECK_BAD(NEW, "identity.scales_length is");
    identity.scales_length = 0;
    identity.pair_count = 1;
    CHECK_BAD(NEW, "identity.pairs is NULL");
    identity.pairs = &pair;
    CHECK_BAD(NEW, "model: twice in the identity");
    pair.name = NULL;
    CHECK_BAD(NEW, "identity.pairs[0].name is NULL");
    identity.pair_count = 65;
    CHECK_NAMES(NEW, FERRY_ERR_LIMIT, "identity.pairs has 65 entries");
    identity.pair_count = 0;
    identity.reserved = 1;
    CHECK_BAD(NEW, "identity.reserved");
    identity.reserved = 0;
    identity.secret_length = 16;
    CHECK_BAD(NEW, "identity.secret is NULL");
    identity.secret = long_hash;
    identity.secret_length = 15;
    CHECK_BAD(NEW, "secret: 15 bytes, which are not 16 to 1024; take 32 random bytes, or no secret");
    identity.secret_length = 0;
    CHECK_BAD(NEW, "secret: 0 bytes");
    identity.secret_length = UINT64_MAX;
    CHECK_BAD(NEW, "identity.secret has");
    identity.secret_length = 1025;
    CHECK_BAD(NEW, "secret: 1025 bytes");
    identity.secret = NULL;
    identity.secret_length = 0;
    identity.struct_size = 87;
    CHECK_BAD(NEW, "identity.struct_size");
    identity.struct_size = sizeof identity;
    CHECK(keyspace == NULL);
    CHECK_OK(NEW);
#undef NEW
    CHECK_BAD(ferry_pool_key_of(keyspace, NULL, 0, &key, &error), "hash: 0 bytes, which are not 1 to 1024");
    CHECK_BAD(ferry_pool_key_of(keyspace, long_hash, sizeof long_hash, &key, &error), "hash: 10000 bytes");
    CHECK(key.bytes[0] == 7);
    CHECK_NAMES(ferry_pool_key_format(&key, text, 64, &error), FERRY_ERR_LIMIT, "65 bytes");
    CHECK_NAMES(ferry_pool_key_format(&key, NULL, 0, &error), FERRY_ERR_LIMIT, "65 bytes");
    CHECK_BAD(ferry_pool_key_parse("abc", &key, &error), "64 hexadecimal digits");
    ferry_pool_keyspace_free(keyspace);
}

static void chains(void)
{
    ferry_pool_identity identity = FERRY_POOL_IDENTITY_INIT;
    ferry_pool_keyspace *keyspace = NULL;
    ferry_pool_chain_options options = FERRY_POOL_CHAIN_OPTIONS_INIT;
    ferry_pool_extra extra = FERRY_POOL_EXTRA_INIT;
    ferry_pool_hash zero;
    ferry_pool_key key;
    uint32_t token = 1;
    size_t count = 7;
    memset(&zero, 0, sizeof zero);
    identity.tenant = identity.model = "a";
    CHECK_OK(ferry_pool_keyspace_new(&identity, &keyspace, &error));
#define CHAIN ferry_pool_chain(keyspace, &options, &token, 1, &key, 1, &count, NULL, &error)
    options.chunk_tokens = 65537;
    CHECK_BAD(CHAIN, "options.chunk_tokens: 65537, not 1 to 65536");
    options.chunk_tokens = 1;
    options.parent = &zero;
    CHECK_BAD(CHAIN, "parent: 32 zero bytes");
    options.parent = NULL;
    options.extra_count = 4097;
    CHECK_NAMES(CHAIN, FERRY_ERR_LIMIT, "options.extras has 4097 entries");
    options.extra_count = 1;
    CHECK_BAD(CHAIN, "options.extras is NULL");
    options.extras = &extra;
    CHECK_BAD(CHAIN, "options.extras[0].kind is 0");
    extra.kind = FERRY_POOL_EXTRA_LORA;
    CHECK_BAD(CHAIN, "lora: 0 bytes");
    extra.length = 1;
    CHECK_BAD(CHAIN, "options.extras[0].bytes is NULL");
    extra.bytes = "\xff";
    CHECK_BAD(CHAIN, "options.extras[0].bytes is not UTF-8");
    extra.kind = FERRY_POOL_EXTRA_IMAGE;
    CHECK_BAD(CHAIN, "image: it has no tokens");
    extra.reserved = 1;
    CHECK_BAD(CHAIN, "options.extras[0].reserved");
    CHECK_NAMES(ferry_pool_chain(keyspace, NULL, &token, SIZE_MAX / 4, &key, 1, &count, NULL, &error), FERRY_ERR_INVALID,
                "tokens has");
    CHECK(count == 7);
#undef CHAIN
    ferry_pool_keyspace_free(keyspace);
}

static void options_of_nodes(void)
{
    static char long_name[257];
    const char *const nobody[] = {NULL};
    ferry_engine *engine = open_engine();
    ferry_pool_quota quotas[2] = {{"a", "short", 5, 1 << 14}, {"b", NULL, 0, 1 << 14}};
    ferry_pool_options options = FERRY_POOL_OPTIONS_INIT;
    ferry_pool *pool = NULL, *second = NULL;
#define OPEN ferry_pool_open(engine, &options, &pool, &error)
    memset(long_name, 'x', sizeof long_name - 1);
    options.name = long_name;
    CHECK_BAD(OPEN, "name");
    options.name = "\xff";
    CHECK_BAD(OPEN, "options.name is not UTF-8");
    options.name = NULL;
    options.unit_bytes = 1000;
    CHECK_BAD(OPEN, "options.unit_bytes: a power of two from 512 to 1 GiB");
    options.unit_bytes = 0;
    options.memory_bytes = 16383;
    CHECK_BAD(OPEN, "options.memory_bytes");
    options.memory_bytes = UINT64_C(1) << 62;
    CHECK_BAD(OPEN, "options.unit_bytes");
    options.memory_bytes = 0;
    options.replicas = 9;
    CHECK_BAD(OPEN, "options.replicas");
    options.replicas = 0;
    options.chunk_tokens = 65537;
    CHECK_BAD(OPEN, "options.chunk_tokens");
    options.chunk_tokens = 0;
    options.node_count = 1;
    CHECK_BAD(OPEN, "options.nodes is NULL");
    options.nodes = nobody;
    CHECK_BAD(OPEN, "options.nodes[0] is NULL");
    options.node_count = 4097;
    CHECK_NAMES(OPEN, FERRY_ERR_LIMIT, "options.nodes has 4097 entries");
    options.node_count = 0;
    options.quota_count = 4097;
    CHECK_NAMES(OPEN, FERRY_ERR_LIMIT, "options.quotas has 4097 entries");
    options.quota_count = 2;
    CHECK_BAD(OPEN, "options.quotas is NULL");
    options.quotas = quotas;
    CHECK_BAD(OPEN, "options.quotas[0].secret: 5 bytes, which are not 16 to 1024; take");
    quotas[0].secret_length = 0;
    CHECK_BAD(OPEN, "options.quotas[0].secret: 0 bytes");
    quotas[0].secret = NULL;
    CHECK_BAD(OPEN, "options.quotas: a node with quotas lends memory: give it memory_bytes");
    options.memory_bytes = 1 << 20;
    quotas[1].secret_length = 16;
    CHECK_BAD(OPEN, "options.quotas[1].secret is NULL");
    quotas[1].secret_length = 0;
    quotas[1].bytes = (1 << 14) - 1;
    CHECK_BAD(OPEN, "options.quotas: one has less than a unit of 16384 bytes; give it more");
    quotas[1].bytes = 1 << 14;
    quotas[1].tenant = "a";
    CHECK_BAD(OPEN, "options.quotas: a tenant is there twice; give each tenant one quota");
    quotas[1].tenant = "";
    CHECK_BAD(OPEN, "options.quotas[1].tenant: 0 bytes");
    quotas[1].tenant = NULL;
    CHECK_BAD(OPEN, "options.quotas[1].tenant is NULL");
    options.quotas = NULL;
    options.quota_count = options.memory_bytes = 0;
    options.directory = "\xff";
    CHECK_BAD(OPEN, "options.directory is not UTF-8");
    options.directory = "consul:a";
    CHECK_BAD(OPEN, "options.directory: url begins neither");
    options.directory = "etcd:http://127.0.0.1:1";
    options.directory_ttl_s = 3601;
    CHECK_BAD(OPEN, "options.directory: ttl is 3601s");
    options.directory_ttl_s = 0;
    options.directory_timeout_ms = 100;
    CHECK_NAMES(OPEN, FERRY_ERR_UNREACHABLE, "options.directory: url: etcd does not answer");
    options.directory = NULL;
    options.struct_size = 63;
    CHECK_BAD(OPEN, "options.struct_size");
    options.struct_size = sizeof options;
    CHECK(pool == NULL);
    CHECK_OK(OPEN);
    CHECK_NAMES(ferry_pool_open(engine, NULL, &second, &error), FERRY_ERR_BUSY, "the engine has a pool already");
#undef OPEN
    CHECK_OK(ferry_pool_close(pool, PATIENCE_NS, NULL));
    ferry_pool_free(pool);
    CHECK_OK(ferry_pool_open(engine, NULL, &second, &error));
    CHECK_OK(ferry_pool_close(second, PATIENCE_NS, NULL));
    ferry_pool_free(second);
    end_engine(engine);
}

static void values_and_their_memory(void)
{
    static unsigned char stranger[64], readable_only[64];
    const ferry_pool_key *many = calloc(65537, sizeof *many);
    ferry_region_options read_only = FERRY_REGION_OPTIONS_INIT;
    ferry_pool_call_options options = FERRY_POOL_CALL_OPTIONS_INIT;
    ferry_pool_range ranges[2];
    ferry_pool_value values[2];
    ferry_pool_result results[2];
    ferry_region region = 0;
    uint64_t number = 7;
    ferry_pool *pool;
    CHECK(many != NULL);
    pool_open(nodes, 1, lent);
    pool = nodes[0].pool;
    values[0] = pool_value(&nodes[0], 1, &ranges[0], 0, 64);
    values[1] = pool_value(&nodes[0], 2, &ranges[1], 64, 64);
#define PUT ferry_pool_put(pool, values, 2, &options, PATIENCE_NS, results, &error)
#define GET ferry_pool_get(pool, values, 2, &options, PATIENCE_NS, results, &error)
    ranges[1].address = (uintptr_t)stranger;
    CHECK_NAMES(PUT, FERRY_ERR_NOT_REGISTERED, "values[1].memory[0]: ");
    CHECK(error.request_index == 1);
    CHECK_NAMES(GET, FERRY_ERR_NOT_REGISTERED, "values[1].memory[0]: ");
    read_only.access = FERRY_ACCESS_REMOTE_READ;
    CHECK_OK(ferry_region_register(nodes[0].engine, readable_only, 64, &read_only, &region, NULL));
    ranges[1].address = (uintptr_t)readable_only;
    CHECK_NAMES(GET, FERRY_ERR_ACCESS, "values[1].memory[0]: its region grants peers no REMOTE_WRITE");
    CHECK(error.request_index == 1);
    CHECK_OK(PUT);
    CHECK(results[1].outcome == FERRY_POOL_OUTCOME_OK);
    ranges[1].address = (uintptr_t)nodes[0].memory;
    ranges[1].length = POOL_MEMORY + 1;
    CHECK_NAMES(PUT, FERRY_ERR_NOT_REGISTERED, "values[1].memory[0]: ");
    ranges[1].length = 64;
    values[1].memory_count = 65537;
    CHECK_NAMES(PUT, FERRY_ERR_LIMIT, "values[1].memory has 65537 pieces");
    values[1].memory_count = 1;
    values[1].memory = NULL;
    CHECK_BAD(PUT, "values[1].memory is NULL");
    values[1].memory = &ranges[1];
    values[1].reserved = 1;
    CHECK_BAD(PUT, "values[1].reserved");
    values[1].reserved = 0;
    values[1].struct_size--;
    CHECK_BAD(PUT, "values[1].struct_size");
    values[1].struct_size++;
    options.replicas = 9;
    CHECK_BAD(PUT, "options.replicas: 9");
    options.replicas = 0;
    options.flags = FERRY_POOL_PREFIX;
    CHECK_BAD(PUT, "options.flags is 1");
    options.flags = 2;
    CHECK_BAD(ferry_pool_exists(pool, many, 1, &options, 0, results, &error), "options.flags is 2");
    options.flags = 0;
    options.reserved = 1;
    CHECK_BAD(GET, "options.reserved");
    options.reserved = 0;
    options.struct_size -= 8;
    CHECK_BAD(GET, "options.struct_size");
    options.struct_size += 8;
    CHECK_NAMES(ferry_pool_exists(pool, many, 65537, NULL, 0, results, &error), FERRY_ERR_LIMIT, "keys has 65537 entries");
    CHECK_NAMES(ferry_pool_get(pool, values, 65537, NULL, 0, results, &error), FERRY_ERR_LIMIT, "values has 65537 entries");
    CHECK_BAD(ferry_pool_gets_ended(pool, 12, &number, &error), "outcome: 12");
    CHECK(number == 7);
#undef PUT
#undef GET
    free((void *)many);
    pool_close(nodes, 1);
}

static void what_a_prefetch_and_an_estimate_refuse(void)
{
    const uint64_t client[] = {0};
    const ferry_pool_key key = pool_key(1);
    ferry_pool_call_options options = FERRY_POOL_CALL_OPTIONS_INIT;
    ferry_pool_cost_options cost_options = FERRY_POOL_COST_OPTIONS_INIT;
    ferry_pool_cost cost = FERRY_POOL_COST_INIT;
    ferry_pool_result result = {FERRY_POOL_OUTCOME_OK, 0, 64, 1};
    pool_open(nodes, 1, client);
#define ESTIMATE ferry_pool_estimate(nodes[0].pool, &key, &result, 1, &cost_options, &cost, &error)
    CHECK_BAD(ferry_pool_prefetch(nodes[0].pool, &key, 1, NULL, 0, &result, &error), "prefetch: this node lends no memory");
    CHECK_BAD(ferry_pool_submit_prefetch(nodes[0].pool, &key, 1, NULL, &error), "prefetch: this node lends no memory");
    options.flags = 2;
    CHECK_BAD(ferry_pool_prefetch(nodes[0].pool, &key, 1, &options, 0, &result, &error), "options.flags is 2");
    result.reserved = 1;
    CHECK_BAD(ESTIMATE, "results.reserved");
    result.reserved = 0;
    result.outcome = 12;
    CHECK_BAD(ESTIMATE, "results: 12 is no FERRY_POOL_OUTCOME_*");
    result.outcome = FERRY_POOL_OUTCOME_OK;
    cost_options.struct_size -= 8;
    CHECK_BAD(ESTIMATE, "options.struct_size");
    cost_options.struct_size += 8;
    cost.struct_size -= 8;
    CHECK_BAD(ESTIMATE, "out_cost");
    cost.struct_size += 8;
    CHECK_OK(ESTIMATE);
    CHECK(cost.is_known == 0 && cost.keys == 1 && cost.bytes == 64 && cost.load_keys == 1);
#undef ESTIMATE
    pool_close(nodes, 1);
}

static void a_value_longer_than_any_node(void)
{
    const uint64_t little[] = {64 << 10, 128 << 10, 0};
    pool_open(nodes, 3, little);
    CHECK_OUTCOME(pool_put(&nodes[2], 1, 0, (128 << 10) + 1), "TOO_LONG");
    CHECK_OUTCOME(pool_get(&nodes[2], 1, 0, (128 << 10) + 1), "ABSENT");
    pool_close(nodes, 3);
}

/* Opens a node that dials the first one, and expects that the two cannot be of one cluster. */
static void check_refused(const ferry_pool_options *changed, const char *sentence)
{
    ferry_engine *engine = open_engine();
    ferry_pool_options options = *changed;
    ferry_pool_node_info found[2];
    ferry_pool *pool = NULL;
    char address[300];
    const char *const list[] = {address};
    size_t count = 0;
    strcpy(address, address_of(nodes[0].engine));
    options.nodes = list;
    options.node_count = 1;
    CHECK_OK(ferry_pool_open(engine, &options, &pool, NULL));
    do {
        /* Not a sleep: the call drives the node, and ends early when the two know one another. */
        CHECK_NAMES(ferry_pool_wait_nodes(pool, 2, 10000000, &error), FERRY_ERR_TIMEOUT, "2 nodes are not there yet");
        CHECK_OK(ferry_pool_nodes(pool, found, sizeof found[0], 2, &count, NULL));
        CHECK(count == 2 && found[0].why[0] == 0 && found[1].id == 0 && strcmp(found[1].address, address) == 0);
    } while (strstr(found[1].why, sentence) == NULL);
    CHECK_NAMES(ferry_pool_wait_nodes(pool, 2, 0, &error), FERRY_ERR_TIMEOUT, sentence);
    CHECK_OK(ferry_pool_close(pool, PATIENCE_NS, NULL));
    ferry_pool_free(pool);
    end_engine(engine);
}

static void nodes_that_cannot_be_of_one_cluster(void)
{
    const ferry_pool_options empty = FERRY_POOL_OPTIONS_INIT;
    ferry_pool_options options = empty;
    pool_open(nodes, 1, lent);
    options.name = "node 0";
    check_refused(&options, "two nodes have the name \"node 0\"");
    options = empty;
    options.chunk_tokens = 16;
    check_refused(&options, "give all nodes the same chunk_tokens");
    options = empty;
    options.cluster = "another";
    check_refused(&options, "is of cluster \"");
    pool_close(nodes, 1);
}

static void files_that_cannot_be_taken(void)
{
    const ferry_pool_options empty = FERRY_POOL_OPTIONS_INIT;
    ferry_pool_options options = empty;
    ferry_engine *engine = open_engine();
    ferry_pool *pool = NULL;
    options.memory_bytes = 1 << 20;
    options.file = "/no/such/folder/pool";
    options.file_bytes = 1 << 20;
    CHECK_NAMES(ferry_pool_open(engine, &options, &pool, &error), FERRY_ERR_SYSTEM, "options.file: /no/such/folder/pool");
    options.file_bytes = 4096;
    CHECK_NAMES(ferry_pool_open(engine, &options, &pool, &error), FERRY_ERR_INVALID, "options.file.bytes");
    options.file = "/proc/self/cmdline";
    options.file_bytes = 1 << 20;
    CHECK(ferry_pool_open(engine, &options, &pool, &error) != FERRY_OK);
    CHECK(strstr(error.message, "options.file: /proc/self/cmdline") != NULL);
    options.memory_bytes = 0;
    CHECK_NAMES(ferry_pool_open(engine, &options, &pool, &error), FERRY_ERR_INVALID, "options.file: a node with a file");
    options.file = NULL;
    CHECK_NAMES(ferry_pool_open(engine, &options, &pool, &error), FERRY_ERR_INVALID, "options.file_bytes: 1048576 of no file");
    end_engine(engine);
}

/* Returns NULL if each call is CLOSED, else the first that is not. Contains no checks: a forked child calls it too. */
static const char *first_pool_not_closed(ferry_pool *pool, const ferry_pool_value *value)
{
    ferry_pool_event event = FERRY_POOL_EVENT_INIT;
    ferry_pool_drained drained = FERRY_POOL_DRAINED_INIT;
    ferry_pool_result result;
#define REFUSES(call)                                                                              \
    do {                                                                                           \
        if ((call) != FERRY_ERR_CLOSED) return #call;                                              \
    } while (0)
    REFUSES(ferry_pool_put(pool, value, 1, NULL, FERRY_FOREVER, &result, NULL));
    REFUSES(ferry_pool_get(pool, value, 1, NULL, FERRY_FOREVER, &result, NULL));
    REFUSES(ferry_pool_exists(pool, &value->key, 1, NULL, FERRY_FOREVER, &result, NULL));
    REFUSES(ferry_pool_remove(pool, &value->key, 1, NULL, FERRY_FOREVER, &result, NULL));
    REFUSES(ferry_pool_prefetch(pool, &value->key, 1, NULL, FERRY_FOREVER, &result, NULL));
    REFUSES(ferry_pool_submit_put(pool, value, 1, NULL, NULL));
    REFUSES(ferry_pool_submit_get(pool, value, 1, NULL, NULL));
    REFUSES(ferry_pool_submit_exists(pool, &value->key, 1, NULL, NULL));
    REFUSES(ferry_pool_submit_remove(pool, &value->key, 1, NULL, NULL));
    REFUSES(ferry_pool_submit_prefetch(pool, &value->key, 1, NULL, NULL));
    REFUSES(ferry_pool_poll(pool, &event, NULL));
    REFUSES(ferry_pool_wait(pool, FERRY_FOREVER, &event, NULL));
    REFUSES(ferry_pool_wait_nodes(pool, 2, FERRY_FOREVER, NULL));
    REFUSES(ferry_pool_drain(pool, FERRY_FOREVER, &drained, NULL));
#undef REFUSES
    return NULL;
}

static void a_closed_pool_refuses_calls(void)
{
    ferry_pool_stats stats = FERRY_POOL_STATS_INIT;
    ferry_pool_range range;
    ferry_pool_value value;
    const char *call;
    int fd = -1;
    pool_open(nodes, 2, lent);
    value = pool_value(&nodes[0], 1, &range, 0, 64);
    CHECK_OK(ferry_pool_close(nodes[0].pool, PATIENCE_NS, NULL));
    call = first_pool_not_closed(nodes[0].pool, &value);
    if (call != NULL) FAIL("of a closed pool: %s", call);
    CHECK_OK(ferry_pool_fd(nodes[0].pool, &fd, NULL));
    CHECK(readable(fd, 60000));
    CHECK_OK(ferry_pool_get_stats(nodes[0].pool, &stats, NULL));
    CHECK(stats.gets == 0);
    /* The engine is closed first. */
    value = pool_value(&nodes[1], 1, &range, 0, 64);
    CHECK_OK(ferry_pool_fd(nodes[1].pool, &fd, NULL));
    CHECK_OK(ferry_engine_close(nodes[1].engine, PATIENCE_NS, NULL));
    CHECK(readable(fd, 60000));
    call = first_pool_not_closed(nodes[1].pool, &value);
    if (call != NULL) FAIL("of a closed engine: %s", call);
    pool_close(nodes, 2);
}

static void a_forked_child_is_refused(void)
{
    ferry_pool_range range;
    ferry_pool_value value;
    pid_t child;
    int status = -1;
    pool_open(nodes, 1, lent);
    value = pool_value(&nodes[0], 1, &range, 0, 64);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const char *call = first_pool_not_closed(nodes[0].pool, &value);
        if (call == NULL && ferry_pool_close(nodes[0].pool, FERRY_FOREVER, NULL) != FERRY_OK) call = "close";
        ferry_pool_free(nodes[0].pool);
        leave_child(call != NULL);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_OUTCOME(pool_put(&nodes[0], 1, 0, 64), "OK");
    pool_close(nodes, 1);
}

SUITE(pool_arguments, CASE(null_pointers), CASE(identities_and_hashes), CASE(chains), CASE(options_of_nodes),
      CASE(values_and_their_memory), CASE(what_a_prefetch_and_an_estimate_refuse), CASE(a_value_longer_than_any_node),
      CASE(nodes_that_cannot_be_of_one_cluster), CASE(files_that_cannot_be_taken), CASE(a_closed_pool_refuses_calls), CASE(a_forked_child_is_refused));
