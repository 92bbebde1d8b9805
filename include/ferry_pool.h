/** @file
 * ferry's pool: a KV cache for a whole cluster, whose owners move the bytes. Part of libferry.
 *
 * Generated from ffi/src/pool by `UPDATE=1 cargo test -p ferry-ffi --test header`; don't edit. Above 500
 * lines, because a program includes one file. docs/pool.md has examples. The rules of ferry.h hold, and:
 *
 * - A node of the pool lives on an engine, and lends memory or is a client. Any number of threads may use it; only
 *   ferry_pool_free must be alone. In a forked child each call returns FERRY_ERR_CLOSED, and closing and freeing do
 *   nothing. Keys, keyspaces and parts need no engine, never wait, and work in a child.
 * - A value's memory belongs to its call until the call has ended: until a waiting call has returned something else
 *   than FERRY_ERR_TIMEOUT, else until ferry_pool_poll or ferry_pool_wait has returned its end.
 * - A call's status says whether the call was made. What became of each key is in its result.
 * - In an array of structs with a struct_size that the caller fills, each element has its struct_size, all the same,
 *   and the elements lie that far apart.
 */
#ifndef FERRY_POOL_H
#define FERRY_POOL_H

#include "ferry_kv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Keys -------------------------------------------------------------------------------------- */

/* A value has a key of 32 bytes, equal in every process and language that means the same value. */

/// Length of a key as text: 64 hexadecimal digits and the terminating zero.
#define FERRY_POOL_KEY_TEXT_BYTES 65

/// 32 bytes that name a value, of a chunk of a KV cache for example. ferry_pool_key_of and ferry_pool_chain make keys.
/// A program may fill the 32 bytes itself: the last 8 then say which tenant's value it is, for quotas. This struct
/// never grows.
typedef struct ferry_pool_key {
    /// The bytes. Compare keys with memcmp.
    uint8_t bytes[32];
} ferry_pool_key;

/// Writes a key as 64 hexadecimal digits. `buffer` has room for FERRY_POOL_KEY_TEXT_BYTES; `capacity` is its size.
/// FERRY_ERR_LIMIT: the buffer is smaller.
ferry_status ferry_pool_key_format(const ferry_pool_key *key,
                                   char *buffer,
                                   size_t capacity,
                                   ferry_error *error);

/// Reads a key as ferry_pool_key_format writes it. FERRY_ERR_INVALID: `text` is not 64 hexadecimal digits.
ferry_status ferry_pool_key_parse(const char *text,
                                  ferry_pool_key *out_key,
                                  ferry_error *error);

/* ---- Keys of a model --------------------------------------------------------------------------- */

/// The keys of one tenant under one identity. It needs no engine and never changes; threads may share it, and a forked
/// child may use it.
typedef struct ferry_pool_keyspace ferry_pool_keyspace;

/// A further name and value of an identity. This struct never grows.
typedef struct ferry_pool_pair {
    /// The name, which no other pair and no field of the identity has; 1 to 4,096 bytes, terminated.
    const char *name;
    /// The value; NULL if it is empty.
    const void *value;
    /// Bytes of value; at most 4,096.
    uint64_t value_length;
} ferry_pool_pair;

/// All that the bytes of a chunk depend on besides its tokens: two engines share values where all of it is equal.
/// Texts have at most 4,096 bytes of UTF-8; NULL is the empty text. FERRY_POOL_IDENTITY_INIT sets struct_size.
typedef struct ferry_pool_identity {
    /// sizeof(ferry_pool_identity).
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// Whose values they are; 1 to 255 bytes.
    const char *tenant;
    /// The model; not empty.
    const char *model;
    /// The commit or version of the weights.
    const char *revision;
    /// The type of the cache's elements.
    const char *dtype;
    /// The scales of a quantised cache, in any form that is the same everywhere; NULL if there are none.
    const void *scales;
    /// Bytes of scales.
    uint64_t scales_length;
    /// The parameters of the rotary position embedding, in any form that is the same everywhere; NULL if there are
    /// none.
    const void *rope;
    /// Bytes of rope.
    uint64_t rope_length;
    /// Further names and values, in any order.
    const ferry_pool_pair *pairs;
    /// Length of pairs; at most 64.
    uint64_t pair_count;
    /// The tenant's secret: 16 to 1,024 bytes that cannot be guessed. Nobody makes a key of the keyspace without it. It
    /// is not kept. NULL: whoever knows the identity can make its keys.
    const void *secret;
    /// Bytes of secret.
    uint64_t secret_length;
} ferry_pool_identity;

/// Initializes a ferry_pool_identity: its struct_size, and zero in all other fields.
#define FERRY_POOL_IDENTITY_INIT \
    { (uint32_t)sizeof(ferry_pool_identity), 0, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, 0 }

/// Makes a keyspace. The identity is copied. Free it with ferry_pool_keyspace_free.
///
/// FERRY_ERR_INVALID: the message names the field, for example a tenant that is empty, or a secret that is too short.
/// FERRY_ERR_LIMIT: too many pairs.
ferry_status ferry_pool_keyspace_new(const ferry_pool_identity *identity,
                                     ferry_pool_keyspace **out_keyspace,
                                     ferry_error *error);

/// Frees a keyspace, which no other call uses any more. NULL does nothing.
void ferry_pool_keyspace_free(ferry_pool_keyspace *keyspace);

/// Makes the key of a value that the caller names by a hash of its own: any 1 to 1,024 bytes. Never waits.
///
/// FERRY_ERR_INVALID: the hash has another length.
ferry_status ferry_pool_key_of(const ferry_pool_keyspace *keyspace,
                               const void *hash,
                               size_t length,
                               ferry_pool_key *out_key,
                               ferry_error *error);

/* ---- Keys of token ids ------------------------------------------------------------------------- */

/// An adapter: its name. It counts for all chunks of a prompt.
#define FERRY_POOL_EXTRA_LORA 1

/// A salt: any bytes that keep prompts apart whose tokens are equal. It counts for all chunks of a prompt.
#define FERRY_POOL_EXTRA_SALT 2

/// An image, or anything else whose place the prompt holds with token ids: its hash. It counts from the first chunk
/// with one of these tokens on.
#define FERRY_POOL_EXTRA_IMAGE 3

/// The hash of a chunk of a prompt, from which later tokens go on. A hash is no key: a keyspace makes the key of it.
/// This struct never grows.
typedef struct ferry_pool_hash {
    /// The bytes.
    uint8_t bytes[32];
} ferry_pool_hash;

/// What the bytes of some chunks depend on besides the tokens. FERRY_POOL_EXTRA_INIT sets struct_size.
typedef struct ferry_pool_extra {
    /// sizeof(ferry_pool_extra).
    uint32_t struct_size;
    /// FERRY_POOL_EXTRA_*.
    uint32_t kind;
    /// The name, salt or hash.
    const void *bytes;
    /// Bytes of bytes; 1 to 1,024.
    uint64_t length;
    /// An image's first token, counted from the first of the tokens of the call: negative if it began before them.
    /// Else 0.
    int64_t first_token;
    /// How many tokens an image has; else 0.
    uint32_t token_count;
    /// Must be 0.
    uint32_t reserved;
} ferry_pool_extra;

/// Initializes a ferry_pool_extra: its struct_size, and zero in all other fields.
#define FERRY_POOL_EXTRA_INIT \
    { (uint32_t)sizeof(ferry_pool_extra), 0, NULL, 0, 0, 0, 0 }

/// How a prompt is hashed. FERRY_POOL_CHAIN_OPTIONS_INIT sets struct_size.
typedef struct ferry_pool_chain_options {
    /// sizeof(ferry_pool_chain_options).
    uint32_t struct_size;
    /// Tokens of a chunk: 1 to 65,536; 0 means 256. Nodes of a cluster agree on it (ferry_pool_options).
    uint32_t chunk_tokens;
    /// The hash of the chunk before the first token; NULL: the tokens begin the prompt. FERRY_POOL_EXTRA_LORA and
    /// FERRY_POOL_EXTRA_SALT count in it already, and are ignored.
    const ferry_pool_hash *parent;
    /// The extras.
    const ferry_pool_extra *extras;
    /// Length of extras; at most 4,096.
    uint64_t extra_count;
} ferry_pool_chain_options;

/// Initializes a ferry_pool_chain_options: its struct_size, and zero in all other fields.
#define FERRY_POOL_CHAIN_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_pool_chain_options), 0, NULL, NULL, 0 }

/// Makes the key of each full chunk of a prompt; tokens that fill no chunk have none. The key of a chunk depends on
/// all tokens up to its end, and on nothing else: the same tokens have the same keys in every process and language.
/// Writes `capacity` keys at most, and to *out_count how many there are: token_count / chunk_tokens. `options` NULL
/// means the defaults. `out_last`, which may be NULL, gets the hash of the last chunk, for a call that goes on from
/// there; without a full chunk it is left alone. Never waits.
///
/// FERRY_ERR_INVALID: chunk_tokens, the parent or an extra cannot be; the message names it. FERRY_ERR_LIMIT: more than
/// 16,777,216 tokens.
ferry_status ferry_pool_chain(const ferry_pool_keyspace *keyspace,
                              const ferry_pool_chain_options *options,
                              const uint32_t *tokens,
                              size_t token_count,
                              ferry_pool_key *out_keys,
                              size_t capacity,
                              size_t *out_count,
                              ferry_pool_hash *out_last,
                              ferry_error *error);

/* ---- Nodes ------------------------------------------------------------------------------------- */

/// A node of a pool: a cache for a whole cluster. All threads may use it at the same time; only ferry_pool_free must
/// be alone.
typedef struct ferry_pool ferry_pool;

/// How much of a node one tenant may have. This struct never grows.
typedef struct ferry_pool_quota {
    /// The tenant, as in ferry_pool_identity; terminated.
    const char *tenant;
    /// The secret that the tenant's keys are made with; NULL if it has none. It is not kept.
    const void *secret;
    /// Bytes of secret.
    uint64_t secret_length;
    /// Bytes of memory, at least one unit. The tenant may have the same share of the file. Beyond them the tenant's
    /// values that were used longest ago go for its later ones.
    uint64_t bytes;
} ferry_pool_quota;

/// Options of a node. Texts and lists are copied. FERRY_POOL_OPTIONS_INIT sets struct_size; all other fields may be 0.
typedef struct ferry_pool_options {
    /// sizeof(ferry_pool_options).
    uint32_t struct_size;
    /// Tokens of a chunk, as in ferry_pool_chain_options; 0 means 256. Nodes with another number refuse each other.
    uint32_t chunk_tokens;
    /// The node's name, which no other node of the cluster has: 1 to 255 bytes, terminated. NULL: the engine's
    /// address.
    const char *name;
    /// Nodes of another cluster are refused; terminated. NULL: "ferry".
    const char *cluster;
    /// "host:port" of the engines of the other nodes, terminated; the node's own may be among them.
    const char *const *nodes;
    /// Length of nodes; at most 4,096.
    uint64_t node_count;
    /// Bytes of memory that the node lends. 0: the node is a client, which stores nothing.
    uint64_t memory_bytes;
    /// Each value takes a multiple of this: a power of two from 512 to 1 GiB; 0 means 16,384.
    uint64_t unit_bytes;
    /// How many nodes hold each value that is put: 1 to 8; 0 means 1.
    uint32_t replicas;
    /// The pause before a node that is not connected is dialed again, in milliseconds; 0 means 250.
    uint32_t redial_ms;
    /// A file, which is made if it is missing, or a block device: the node copies its values there, and finds them
    /// again when it is opened again with it. Terminated. NULL: values are in memory alone. The file is this node's
    /// alone.
    const char *file;
    /// Bytes of the file that the node uses, at least 1 MiB. The same each time.
    uint64_t file_bytes;
    /// The URL of a directory that lists the nodes which lend memory, as for ferry_directory_open; terminated. A node
    /// that lends memory registers there, as pool/CLUSTER/NAME; variables FERRY_ETCD_* give access. NULL: none.
    const char *directory;
    /// How long etcd lists a node that it does not hear from: 1 to 3,600 seconds; 0 means 10.
    uint32_t directory_ttl_s;
    /// How long ferry_pool_open waits for the directory, and for a name that another node has: milliseconds; 0 means
    /// 5,000.
    uint32_t directory_timeout_ms;
    /// Tenants whose share of this node is bounded. All others share what is free.
    const ferry_pool_quota *quotas;
    /// Length of quotas; at most 4,096.
    uint64_t quota_count;
} ferry_pool_options;

/// Initializes a ferry_pool_options: its struct_size, and zero in all other fields.
#define FERRY_POOL_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_pool_options), 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, 0, NULL, 0, 0, NULL, 0 }

/// Opens a node of a pool on an engine, and dials the other nodes in the background. End it with ferry_pool_close,
/// then ferry_pool_free. `options` NULL means the defaults: a client that knows no other node. The node takes the
/// engine's notifications of channel 2, has a thread, and allocates memory_bytes, which peers cannot reach.
///
/// FERRY_ERR_BUSY: the engine has a pool, or another queue takes channel 2. FERRY_ERR_INVALID: an option cannot be;
/// the message names it: for example a file of another program, or one of another size, format or hashing.
/// FERRY_ERR_BUSY: another node has the file. FERRY_ERR_NO_MEMORY: there is no room for memory_bytes.
/// FERRY_ERR_LIMIT: too many nodes or quotas. FERRY_ERR_SYSTEM: the system is out of descriptors or threads, or
/// refuses the file. With a directory: FERRY_ERR_UNREACHABLE if etcd does not answer in time, FERRY_ERR_REFUSED if it
/// refuses the user, FERRY_ERR_BUSY if another node has the name there, and inside a callback; FERRY_ERR_UNAVAILABLE
/// if a node that lends memory does not listen.
ferry_status ferry_pool_open(ferry_engine *engine,
                             const ferry_pool_options *options,
                             ferry_pool **out_pool,
                             ferry_error *error);

/// Closes a node: withdraws its name from the directory, refuses further calls, waits for those that are open, for
/// what the node serves and for what is copied to its file, tells the other nodes, and gives its memory back. Values
/// that only its memory held are lost. ferry_pool_poll still returns all ends afterwards. A later call returns
/// FERRY_OK again.
///
/// FERRY_ERR_BUSY: that took longer than the timeout. The node is still closing; call again. Also FERRY_ERR_BUSY
/// inside a callback, unless the timeout is 0. Closing the engine ends the node too, and all its calls with
/// FERRY_POOL_OUTCOME_CLOSED. In a forked child the call does nothing and returns FERRY_OK.
ferry_status ferry_pool_close(ferry_pool *pool,
                              uint64_t timeout_ns,
                              ferry_error *error);

/// Frees a pool and the ends that were not taken. NULL does nothing. The engine may be freed before or after.
///
/// Call it only after ferry_pool_close has returned FERRY_OK, and while no other call uses the pool. If the pool is
/// not closed, this call closes it and does not wait. The node's thread then ends the remaining calls, and the caller
/// does not learn when it owns their memory again; only ferry_engine_close makes that certain. In a forked child the
/// call does nothing.
void ferry_pool_free(ferry_pool *pool);

/* ---- The nodes of the cluster ------------------------------------------------------------------ */

/// A node of the cluster.
typedef struct ferry_pool_node_info {
    /// Out: how many bytes were written.
    uint32_t struct_size;
    /// 1 if the node lends memory, 0 if it is a client or has not greeted.
    uint32_t is_member;
    /// What ferry_pool_result.node says of it; 0 before it has greeted.
    uint64_t id;
    /// Bytes that it lends.
    uint64_t capacity;
    /// Bytes of these that hold no value, as it said last.
    uint64_t free;
    /// Its name, terminated; "" before it has greeted.
    char name[264];
    /// "host:port", as configured or as the engine knows it; terminated.
    char address[264];
    /// Why it is not connected, or cannot be a node of this cluster: a sentence for people, terminated, cut if it is
    /// too long. "" if it is one.
    char why[240];
} ferry_pool_node_info;

/// Initializes a ferry_pool_node_info: its struct_size, and zero in all other fields.
#define FERRY_POOL_NODE_INFO_INIT \
    { (uint32_t)sizeof(ferry_pool_node_info), 0, 0, 0, 0, {0}, {0}, {0} }

/// Lists this node, then those that it is, or is to be, connected to. Returns lists as ferry_config_settings does. A
/// closed pool still answers.
ferry_status ferry_pool_nodes(const ferry_pool *pool,
                              ferry_pool_node_info *out_nodes,
                              size_t element_size,
                              size_t capacity,
                              size_t *out_count,
                              ferry_error *error);

/// Waits until `count` nodes, this one among them, are connected and have greeted.
///
/// FERRY_ERR_TIMEOUT: they are not; the message names those that are missing, and why. FERRY_ERR_CLOSED: the pool or
/// its engine is closed. FERRY_ERR_BUSY: inside a callback, unless the timeout is 0.
ferry_status ferry_pool_wait_nodes(ferry_pool *pool,
                                   size_t count,
                                   uint64_t timeout_ns,
                                   ferry_error *error);

/* ---- Taking a node out ------------------------------------------------------------------------- */

/// The values of a node that was taken out. The caller sets struct_size before the call.
typedef struct ferry_pool_drained {
    /// In: sizeof(ferry_pool_drained). Out: how many bytes were written.
    uint32_t struct_size;
    /// Always 0.
    uint32_t reserved;
    /// Values that drains have moved to other nodes since the node was opened.
    uint64_t moved;
    /// Values that another node had already.
    uint64_t here;
    /// Values that no other node took: they stay in this node until it is closed. If there are 1,024 or more, the drain
    /// ended early.
    uint64_t left;
} ferry_pool_drained;

/// Initializes a ferry_pool_drained: its struct_size, and zero in all other fields.
#define FERRY_POOL_DRAINED_INIT \
    { (uint32_t)sizeof(ferry_pool_drained), 0, 0, 0, 0 }

/// Takes a node out of the pool, before it is closed: it takes no puts any more, and moves its values to other nodes,
/// those used longest ago first. The others evict for them as for any put. The node serves gets all the while, and gets
/// find the values. Waits until that is done; a drain that is under way is joined. Close the node afterwards: it takes
/// puts again only if no other node could take what is left.
///
/// FERRY_ERR_TIMEOUT: the drain goes on; the next call tells its end. FERRY_ERR_INVALID: the node lends no memory, or
/// no other node takes values; the message names the node. FERRY_ERR_CLOSED: the pool or its engine is closed.
/// FERRY_ERR_BUSY: inside a callback.
ferry_status ferry_pool_drain(ferry_pool *pool,
                              uint64_t timeout_ns,
                              ferry_pool_drained *out_drained,
                              ferry_error *error);

/* ---- Values ------------------------------------------------------------------------------------ */

/// Exists and prefetch: the keys are the chunks of a prefix, in order. The first key that is missing makes all later
/// ones FERRY_POOL_OUTCOME_ABSENT.
#define FERRY_POOL_PREFIX 1

/// A piece of registered memory of this engine. This struct never grows.
typedef struct ferry_pool_range {
    /// Where it begins.
    uint64_t address;
    /// Its bytes.
    uint64_t length;
} ferry_pool_range;

/// A key, and the memory that its value is put from or that it comes into. Each piece lies in one registered region,
/// which grants FERRY_ACCESS_REMOTE_READ for a put and FERRY_ACCESS_REMOTE_WRITE for a get: the value's owner moves
/// the bytes. FERRY_POOL_VALUE_INIT sets struct_size.
typedef struct ferry_pool_value {
    /// sizeof(ferry_pool_value).
    uint32_t struct_size;
    /// Must be 0.
    uint32_t reserved;
    /// The key.
    ferry_pool_key key;
    /// The pieces, in the order of the value's bytes.
    const ferry_pool_range *memory;
    /// Length of memory; at most 65,536.
    uint64_t memory_count;
} ferry_pool_value;

/// Initializes a ferry_pool_value: its struct_size, and zero in all other fields.
#define FERRY_POOL_VALUE_INIT \
    { (uint32_t)sizeof(ferry_pool_value), 0, {{0}}, NULL, 0 }

/// What a call is told beyond its keys. FERRY_POOL_CALL_OPTIONS_INIT sets struct_size; all other fields may be 0.
typedef struct ferry_pool_call_options {
    /// sizeof(ferry_pool_call_options).
    uint32_t struct_size;
    /// Exists and prefetch: FERRY_POOL_PREFIX or 0. Other calls: 0.
    uint32_t flags;
    /// Any number: the end of the call has it, if the call was submitted or has passed its timeout.
    uint64_t user_data;
    /// Put: the name of the node that shall hold the values if it has room, terminated. NULL: no node is preferred. A
    /// put that prefers no node stores in this node while it has room.
    const char *preferred;
    /// Put: how many nodes shall hold each value, at most 8; 0: as ferry_pool_options says.
    uint32_t replicas;
    /// Must be 0.
    uint32_t reserved;
} ferry_pool_call_options;

/// Initializes a ferry_pool_call_options: its struct_size, and zero in all other fields.
#define FERRY_POOL_CALL_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_pool_call_options), 0, 0, NULL, 0, 0 }

/* ---- Results ----------------------------------------------------------------------------------- */

/// Get: the value is in the caller's memory. Put: it is stored. Exists: it exists. Remove: it is removed. Prefetch: it
/// was brought into this node's memory.
#define FERRY_POOL_OUTCOME_OK 0

/// Put: the value was stored already, and no byte was moved. Prefetch: it was in this node's memory.
#define FERRY_POOL_OUTCOME_HERE 1

/// No node has the value.
#define FERRY_POOL_OUTCOME_ABSENT 2

/// The value was not found, and a node may still have it: nodes are missing, or the index is being rebuilt.
#define FERRY_POOL_OUTCOME_UNKNOWN 3

/// Get: the index named an owner, which has evicted the value since.
#define FERRY_POOL_OUTCOME_EVICTED 4

/// Each owner of the value is lost or silent.
#define FERRY_POOL_OUTCOME_OWNER_LOST 5

/// Get: the bytes of each owner did not match their checksum. The owners drop them.
#define FERRY_POOL_OUTCOME_CORRUPT 6

/// Put: no node has room, even after eviction. Prefetch: this node has none.
#define FERRY_POOL_OUTCOME_FULL 7

/// Put: the value is longer than the memory of any node. Prefetch: it is longer than this node can bring.
#define FERRY_POOL_OUTCOME_TOO_LONG 8

/// Get: the memory has another length than the value, whose length is in bytes.
#define FERRY_POOL_OUTCOME_LENGTH 9

/// The transfer failed: the caller's memory was unregistered meanwhile, or cannot be read or written.
#define FERRY_POOL_OUTCOME_FAILED 10

/// The pool or its engine was closed.
#define FERRY_POOL_OUTCOME_CLOSED 11

/// How one key of a call ended. This struct never grows.
typedef struct ferry_pool_result {
    /// FERRY_POOL_OUTCOME_*. After a get, the memory of a key is undefined unless this is FERRY_POOL_OUTCOME_OK.
    uint32_t outcome;
    /// Always 0.
    uint32_t reserved;
    /// The length of the value where it is known, else 0.
    uint64_t bytes;
    /// The node that served, stored or has it: the id in ferry_pool_node_info. 0: no node did, or several.
    uint64_t node;
} ferry_pool_result;

/* ---- Calls ------------------------------------------------------------------------------------- */

/* Each call is for many keys, and each key has a result of its own. */

/// Gets values into the caller's memory, which belongs to the call until it has ended. Each owner that is asked
/// writes the bytes, and the call checks those that the CPU can read against the checksum that the put made. A value
/// shorter or longer than the memory is FERRY_POOL_OUTCOME_LENGTH. Waits for nodes at most about a second longer than
/// they answer.
///
/// FERRY_OK: all keys have ended, and `out_results` has one result for each, in their order. FERRY_ERR_TIMEOUT: the
/// call goes on, and cannot be taken back; its end comes by ferry_pool_poll with options.user_data. `options` may be
/// NULL.
///
/// FERRY_ERR_NOT_REGISTERED, FERRY_ERR_ACCESS: memory of the value that the message and error.request_index name is
/// not registered, or its region lacks FERRY_ACCESS_REMOTE_WRITE. FERRY_ERR_LIMIT: more than 65,536 values or open
/// calls beyond 16,384. FERRY_ERR_CLOSED: the pool or its engine is closed. FERRY_ERR_BUSY: inside a callback.
ferry_status ferry_pool_get(ferry_pool *pool,
                            const ferry_pool_value *values,
                            size_t count,
                            const ferry_pool_call_options *options,
                            uint64_t timeout_ns,
                            ferry_pool_result *out_results,
                            ferry_error *error);

/// Stores values from the caller's memory, which belongs to the call until it has ended. A value is immutable: a node
/// that has the key already moves no byte (FERRY_POOL_OUTCOME_HERE). All nodes find the value when the call has
/// ended. Everything else as for ferry_pool_get; the region grants FERRY_ACCESS_REMOTE_READ.
ferry_status ferry_pool_put(ferry_pool *pool,
                            const ferry_pool_value *values,
                            size_t count,
                            const ferry_pool_call_options *options,
                            uint64_t timeout_ns,
                            ferry_pool_result *out_results,
                            ferry_error *error);

/// Says which keys exist. It holds nothing: a get may still find a value gone. A key that exists is used, and so is
/// evicted later. Results, timeout and errors as for ferry_pool_get.
ferry_status ferry_pool_exists(ferry_pool *pool,
                               const ferry_pool_key *keys,
                               size_t count,
                               const ferry_pool_call_options *options,
                               uint64_t timeout_ns,
                               ferry_pool_result *out_results,
                               ferry_error *error);

/// Removes values from all nodes. A node that is absent removes them when it comes again within ten minutes. Results,
/// timeout and errors as for ferry_pool_get.
ferry_status ferry_pool_remove(ferry_pool *pool,
                               const ferry_pool_key *keys,
                               size_t count,
                               const ferry_pool_call_options *options,
                               uint64_t timeout_ns,
                               ferry_pool_result *out_results,
                               ferry_error *error);

/// Brings values into this node's memory, which must lend some: values of other nodes, and those that its file alone
/// has. Others are evicted for them, as for a put. With FERRY_POOL_PREFIX the keys are the chunks of a prefix, in
/// order, and nothing is brought from the first miss on. One prefetch of a node is under way at a time; others wait for
/// it.
///
/// FERRY_POOL_OUTCOME_OK: the value was brought, from the node in the result. FERRY_POOL_OUTCOME_HERE: it was in
/// memory. FERRY_POOL_OUTCOME_FULL: there is no room beside the keys before it, the values in use and those used since
/// the prefetch began. FERRY_POOL_OUTCOME_TOO_LONG: it has more bytes than the node lends, or more than 128 MiB. A miss
/// has its reason, as for ferry_pool_get. FERRY_ERR_INVALID: the node lends no memory. FERRY_ERR_NO_MEMORY: the first
/// prefetch allocates 128 MiB, or as much as the node lends if that is less. Results, timeout and other errors as for
/// ferry_pool_get.
ferry_status ferry_pool_prefetch(ferry_pool *pool,
                                 const ferry_pool_key *keys,
                                 size_t count,
                                 const ferry_pool_call_options *options,
                                 uint64_t timeout_ns,
                                 ferry_pool_result *out_results,
                                 ferry_error *error);

/// Begins a get as ferry_pool_get does, and does not wait: its end comes by ferry_pool_poll with options.user_data.
/// The arguments are copied; the memory belongs to the call until its end. Allowed inside callbacks.
ferry_status ferry_pool_submit_get(ferry_pool *pool,
                                   const ferry_pool_value *values,
                                   size_t count,
                                   const ferry_pool_call_options *options,
                                   ferry_error *error);

/// Begins a put as ferry_pool_put does, without waiting, as ferry_pool_submit_get.
ferry_status ferry_pool_submit_put(ferry_pool *pool,
                                   const ferry_pool_value *values,
                                   size_t count,
                                   const ferry_pool_call_options *options,
                                   ferry_error *error);

/// Begins what ferry_pool_exists does, without waiting, as ferry_pool_submit_get.
ferry_status ferry_pool_submit_exists(ferry_pool *pool,
                                      const ferry_pool_key *keys,
                                      size_t count,
                                      const ferry_pool_call_options *options,
                                      ferry_error *error);

/// Begins what ferry_pool_remove does, without waiting, as ferry_pool_submit_get.
ferry_status ferry_pool_submit_remove(ferry_pool *pool,
                                      const ferry_pool_key *keys,
                                      size_t count,
                                      const ferry_pool_call_options *options,
                                      ferry_error *error);

/// Begins what ferry_pool_prefetch does, without waiting, as ferry_pool_submit_get.
ferry_status ferry_pool_submit_prefetch(ferry_pool *pool,
                                        const ferry_pool_key *keys,
                                        size_t count,
                                        const ferry_pool_call_options *options,
                                        ferry_error *error);

/* ---- Ends of calls ----------------------------------------------------------------------------- */

/// The end of a call that was submitted, or that has passed its timeout. Each has exactly one, after which nothing
/// touches its memory. The caller sets struct_size before the call.
typedef struct ferry_pool_event {
    /// In: sizeof(ferry_pool_event). Out: how many bytes were written.
    uint32_t struct_size;
    /// Always 0.
    uint32_t reserved;
    /// The number from ferry_pool_call_options.
    uint64_t user_data;
    /// One result for each key, in the order of the call; NULL if the call had none. The event owns the list.
    const ferry_pool_result *results;
    /// Length of results.
    uint64_t result_count;
} ferry_pool_event;

/// Initializes a ferry_pool_event: its struct_size, and zero in all other fields.
#define FERRY_POOL_EVENT_INIT \
    { (uint32_t)sizeof(ferry_pool_event), 0, 0, NULL, 0 }

/// Takes the end of a call, oldest first. Never waits. Release it with ferry_pool_event_release.
///
/// FERRY_PENDING: there is none, and *out_event is as it was. FERRY_ERR_CLOSED: the pool or its engine is closed, and
/// there are no more. Several threads may take ends of one pool; each end goes to one thread.
ferry_status ferry_pool_poll(ferry_pool *pool,
                             ferry_pool_event *out_event,
                             ferry_error *error);

/// Waits until a call has ended, then takes its end as ferry_pool_poll does.
///
/// FERRY_PENDING: the timeout has passed. FERRY_ERR_BUSY: the call was made inside a callback with a timeout other
/// than 0. FERRY_ERR_CLOSED: as for ferry_pool_poll; closing the pool ends the wait. Signals do not end it.
ferry_status ferry_pool_wait(ferry_pool *pool,
                             uint64_t timeout_ns,
                             ferry_pool_event *out_event,
                             ferry_error *error);

/// Returns a descriptor for poll, epoll or an event loop. It is readable when ferry_pool_poll has an end, and when
/// the pool or its engine is closed.
///
/// ferry owns the descriptor: don't read, write or close it. So poll, take ends until ferry_pool_poll returns
/// FERRY_PENDING, and poll again. The descriptor is valid until the pool is freed.
ferry_status ferry_pool_fd(ferry_pool *pool,
                           int *out_fd,
                           ferry_error *error);

/// Frees the list of an event and sets it to NULL. The call does nothing for NULL, for an event without a list, and
/// for the same struct a second time. Release only one copy of an event. Any thread; also after the pool is gone.
void ferry_pool_event_release(ferry_pool_event *event);

/* ---- Engines that are sharded differently ------------------------------------------------------ */

/* An engine's blocks become values by a layout of ferry_kv.h, so that engines with other numbers of ranks, other
   blocks or another order of dimensions get what it has put. docs/pool.md has an example. */

/// The parts of a chunk of one model, and what of them one rank of an engine holds. It needs no engine and never
/// changes. Threads may share it, and a forked child may use it.
typedef struct ferry_pool_parts ferry_pool_parts;

/// Values whose memory is that of blocks. It owns its arrays, and none of the memory that the values name.
typedef struct ferry_pool_value_list ferry_pool_value_list;

/// How chunks are cut into parts. Engines share what they cut alike: what another engine has cut in another way, an
/// engine does not find unless the part is the same. FERRY_POOL_CUT_INIT sets struct_size; all other fields may be 0.
typedef struct ferry_pool_cut {
    /// sizeof(ferry_pool_cut).
    uint32_t struct_size;
    /// Tokens of a chunk, as in ferry_pool_chain_options; 0 means 256.
    uint32_t chunk_tokens;
    /// Into how many parts the heads of a layer are divided: a common multiple of the tensor parallel sizes of the
    /// engines, at most 1,024. A layer of fewer heads is divided into single heads. 0 means 1.
    uint32_t head_parts;
    /// Into how many parts the layers are divided, in their order. No part may have layers of two stages of an engine.
    /// 0 means 1.
    uint32_t layer_parts;
    /// The order of the bytes of a layer in a part, FERRY_KV_PAIR_* or FERRY_KV_BLOCK_*; 0 means
    /// FERRY_KV_BLOCK_PAIR_TOKEN_HEAD. That of most engines makes the fewest pieces.
    uint32_t arrangement;
    /// Must be 0.
    uint32_t reserved;
} ferry_pool_cut;

/// Initializes a ferry_pool_cut: its struct_size, and zero in all other fields.
#define FERRY_POOL_CUT_INIT \
    { (uint32_t)sizeof(ferry_pool_cut), 0, 0, 0, 0, 0 }

/// Makes the parts that a rank with this layout puts and gets. A part has neighbouring heads of neighbouring layers,
/// and is a value with a key of its own, which depends on the chunk's key and on all that decides the bytes of the
/// part: the model and the names, shapes and order of its layers in `layout`, and `cut`. Replicated heads and latent
/// vectors, which several ranks hold alike, are one part. `cut` NULL means the defaults. The layout may be freed before
/// the parts. Free the parts with ferry_pool_parts_free.
///
/// FERRY_ERR_INVALID: the rank would hold a piece of a part; the message says which field of the cut must be larger. Or
/// a field cannot be. FERRY_ERR_UNSUPPORTED: the layout has windows, states or context parallelism. FERRY_ERR_LIMIT: a
/// part would be longer than 2^40 bytes, head_parts is above 1,024, or the plan takes too many steps.
ferry_status ferry_pool_parts_new(const ferry_kv_layout *layout,
                                  const ferry_pool_cut *cut,
                                  ferry_pool_parts **out_parts,
                                  ferry_error *error);

/// Frees parts, which no other call uses any more. NULL does nothing. Lists that were made from them stay.
void ferry_pool_parts_free(ferry_pool_parts *parts);

/// Makes the keys of all parts of chunks, those of other ranks too: all of the first chunk, then all of the second, and
/// so on. They are for ferry_pool_exists and ferry_pool_remove. Writes `capacity` keys at most, and to *out_count how
/// many there are: equally many for each chunk. Never waits. FERRY_ERR_LIMIT: more than 65,536 keys.
ferry_status ferry_pool_parts_keys(const ferry_pool_parts *parts,
                                   const ferry_pool_key *chunks,
                                   size_t chunk_count,
                                   ferry_pool_key *out_keys,
                                   size_t capacity,
                                   size_t *out_count,
                                   ferry_error *error);

/// Makes the values of the parts that this rank holds, for ferry_pool_put and ferry_pool_get: all of the first chunk,
/// then all of the second, and so on, equally many for each. `chunks` has the keys of consecutive chunks of a sequence,
/// of which the first is chunk `first_chunk`, counted from 0. `blocks` has a list for each group of the layout, whose
/// blocks hold at least the tokens of the chunks. Blocks and chunks need not begin together. Each layer's memory must
/// lie in one registered region. Never waits, and touches none of the memory. Free the list with
/// ferry_pool_value_list_free.
///
/// FERRY_ERR_INVALID: a list of `blocks` lacks a token of the chunks, names a block twice, or names one that a layer
/// does not have. FERRY_ERR_LIMIT: more than 65,536 values, a value in more than 65,536 pieces, or 2^22 pieces in all,
/// before neighbours are joined; the message says what mends it.
ferry_status ferry_pool_parts_values(const ferry_pool_parts *parts,
                                     const ferry_pool_key *chunks,
                                     size_t chunk_count,
                                     uint64_t first_chunk,
                                     const ferry_kv_block_list *blocks,
                                     uint64_t group_count,
                                     ferry_pool_value_list **out_list,
                                     ferry_error *error);

/// Returns the array of a list, which belongs to the list; *out_values is NULL if it is empty.
ferry_status ferry_pool_value_list_get(const ferry_pool_value_list *list,
                                       const ferry_pool_value **out_values,
                                       size_t *out_count,
                                       ferry_error *error);

/// Frees a list. NULL does nothing. A call that was made of it has copied it.
void ferry_pool_value_list_free(ferry_pool_value_list *list);

/// Makes one result for each chunk of the results of a call whose keys or values came from ferry_pool_parts: a chunk is
/// FERRY_POOL_OUTCOME_OK if all of its parts are, FERRY_POOL_OUTCOME_HERE if all were; otherwise it is what the first
/// of its parts is that was neither, with 0 bytes. `out_results` has room for chunk_count results, and may be
/// `results`.
///
/// FERRY_ERR_INVALID: the results are not equally many for each chunk, or an outcome is no FERRY_POOL_OUTCOME_*.
/// FERRY_ERR_LIMIT: more than 65,536 chunks.
ferry_status ferry_pool_results_fold(const ferry_pool_result *results,
                                     size_t count,
                                     size_t chunk_count,
                                     ferry_pool_result *out_results,
                                     ferry_error *error);

/* ---- Load or compute --------------------------------------------------------------------------- */

/// Arguments of an estimate beyond its keys. FERRY_POOL_COST_OPTIONS_INIT sets struct_size; all other fields may be 0.
typedef struct ferry_pool_cost_options {
    /// sizeof(ferry_pool_cost_options).
    uint32_t struct_size;
    /// Tokens of a chunk; 0: as ferry_pool_options says.
    uint32_t chunk_tokens;
    /// Bytes of each value whose result does not say them; 0: the mean of the values that this node's gets brought and
    /// its puts stored.
    uint64_t value_bytes;
    /// Tokens whose cache the caller computes in a second; 0: the caller does not compute.
    uint64_t prefill_tokens_per_s;
} ferry_pool_cost_options;

/// Initializes a ferry_pool_cost_options: its struct_size, and zero in all other fields.
#define FERRY_POOL_COST_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_pool_cost_options), 0, 0, 0 }

/// The cost of a get of a prefix. The caller sets struct_size before the call.
typedef struct ferry_pool_cost {
    /// In: sizeof(ferry_pool_cost). Out: how many bytes were written.
    uint32_t struct_size;
    /// 1: the times are known. 0: no get through this node has been measured that they follow from, and they are 0.
    uint32_t is_known;
    /// Leading keys that exist.
    uint64_t keys;
    /// Bytes of their values.
    uint64_t bytes;
    /// How long a get of these takes, in nanoseconds.
    uint64_t get_ns;
    /// Leading keys to load: the caller computes from there on. All that exist if the times are not known, or no
    /// prefill rate was given.
    uint64_t load_keys;
    /// How long the get of these and the computing of all other keys take together, in nanoseconds. 0 without a prefill
    /// rate.
    uint64_t best_ns;
} ferry_pool_cost;

/// Initializes a ferry_pool_cost: its struct_size, and zero in all other fields.
#define FERRY_POOL_COST_INIT \
    { (uint32_t)sizeof(ferry_pool_cost), 0, 0, 0, 0, 0, 0 }

/// Says how long a get of a prefix would take, and how many of its leading keys are worth loading. `results` are those
/// of ferry_pool_exists with the same keys: this call moves nothing and waits for nobody. Gets through this node are
/// measured as they end: each node that they came from, and this node's file, has a time for a call and one for a byte.
/// Any thread, and inside callbacks. `options` may be NULL. A closed pool still answers. FERRY_ERR_LIMIT: more than
/// 65,536 keys. FERRY_ERR_INVALID: a result has an outcome that is no FERRY_POOL_OUTCOME_*.
ferry_status ferry_pool_estimate(const ferry_pool *pool,
                                 const ferry_pool_key *keys,
                                 const ferry_pool_result *results,
                                 size_t count,
                                 const ferry_pool_cost_options *options,
                                 ferry_pool_cost *out_cost,
                                 ferry_error *error);

/* ---- Statistics -------------------------------------------------------------------------------- */

/// Counters since the pool was opened, and what is there now, all of one moment. The caller sets struct_size before
/// the call.
typedef struct ferry_pool_stats {
    /// In: sizeof(ferry_pool_stats). Out: how many bytes were written.
    uint32_t struct_size;
    /// Always 0.
    uint32_t reserved;
    /// Keys of gets through this node that have ended; by outcome from ferry_pool_gets_ended.
    uint64_t gets;
    /// Those that ended with FERRY_POOL_OUTCOME_OK.
    uint64_t hits;
    /// Hits that this node's own memory served.
    uint64_t hits_here;
    /// Bytes that hits brought.
    uint64_t got_bytes;
    /// Keys of puts through this node that have ended; by outcome from ferry_pool_puts_ended.
    uint64_t puts;
    /// Bytes of values that puts through this node stored.
    uint64_t put_bytes;
    /// Nodes that owed this node an answer, were silent, and were fenced.
    uint64_t silent_nodes;
    /// Values that this node has stored, whoever put them.
    uint64_t values_stored;
    /// Bytes of these.
    uint64_t bytes_stored;
    /// Bytes that this node has sent for gets, whoever asked.
    uint64_t bytes_served;
    /// Values that this node has evicted.
    uint64_t evictions;
    /// Values of this node that did not match their checksum, and were dropped.
    uint64_t corrupt;
    /// Values that this node holds.
    uint64_t values;
    /// Bytes that this node lends.
    uint64_t capacity;
    /// Bytes of these that hold no value.
    uint64_t free;
    /// Entries of this node's part of the index.
    uint64_t index_entries;
    /// Bytes of that part.
    uint64_t index_bytes;
    /// Nodes that are connected, this one included.
    uint64_t nodes;
    /// Values in the node's file.
    uint64_t file_values;
    /// Bytes of the file for values.
    uint64_t file_capacity;
    /// Bytes of these that hold no value.
    uint64_t file_free;
    /// Values that were copied to the file.
    uint64_t file_saved;
    /// Values that were brought back from it, for gets.
    uint64_t file_loaded;
    /// Values that the file has evicted.
    uint64_t file_evictions;
    /// Copies to or from the file, and writes of its table, that have failed.
    uint64_t file_failures;
    /// Values whose copy here was bad, and that were brought again from another node.
    uint64_t repaired;
    /// Values of these that could not be brought, though another node may have them.
    uint64_t repair_failures;
    /// Values that ferry_pool_drain has moved to other nodes.
    uint64_t drained;
    /// Values that it found there.
    uint64_t drained_here;
    /// 1: the node is drained, and takes no puts.
    uint64_t is_draining;
} ferry_pool_stats;

/// Initializes a ferry_pool_stats: its struct_size, and zero in all other fields.
#define FERRY_POOL_STATS_INIT \
    { (uint32_t)sizeof(ferry_pool_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/// Reads the node's counts. A closed pool still answers.
ferry_status ferry_pool_get_stats(const ferry_pool *pool,
                                  ferry_pool_stats *out_stats,
                                  ferry_error *error);

/// Returns how many keys of gets through this node have ended with this FERRY_POOL_OUTCOME_*: hits and, by their
/// reason, misses. A closed pool still answers. FERRY_ERR_INVALID: there is no such outcome.
ferry_status ferry_pool_gets_ended(const ferry_pool *pool,
                                   uint32_t outcome,
                                   uint64_t *out_count,
                                   ferry_error *error);

/// The same for puts.
ferry_status ferry_pool_puts_ended(const ferry_pool *pool,
                                   uint32_t outcome,
                                   uint64_t *out_count,
                                   ferry_error *error);

/// Returns all of these numbers in Prometheus' text format. The text grows with the counters, so leave some room in
/// the buffer. Returns texts as ferry_config_get does. A closed pool still answers.
ferry_status ferry_pool_metrics(const ferry_pool *pool,
                                char *buffer,
                                size_t capacity,
                                size_t *out_length,
                                ferry_error *error);

/* ---- Names of numbers -------------------------------------------------------------------------- */

/* For logs. */

/// Returns the name of an outcome: its constant without FERRY_POOL_OUTCOME_, for example "EVICTED". Returns "UNKNOWN"
/// for any other number, which a newer library may have added. The text is static. Never fails; any thread.
const char *ferry_pool_outcome_name(uint32_t outcome);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FERRY_POOL_H */
