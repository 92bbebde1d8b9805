/** @file
 * ferry: moves bytes between the memories of machines.
 *
 * Generated from ffi/src by `UPDATE=1 cargo test -p ferry-ffi --test header`; don't edit. The contract
 * as a whole is in ffi/README.md. What holds everywhere:
 *
 * - Every function that can fail returns a ferry_status. Outputs (out_*) are written only on success.
 *   `error` may be NULL; if it isn't, it is filled when the status is negative.
 * - Any call from any thread, save where it says otherwise. Nothing is borrowed beyond a call, save
 *   registered memory and callbacks.
 * - Timeouts and deadlines are nanoseconds from now. Timeout 0 only looks, FERRY_FOREVER waits.
 * - Structs that carry struct_size: the caller sets it to sizeof, so that programs and libraries of
 *   different versions agree. Zero the rest; what is reserved must be 0.
 * - In a process that inherited an engine by fork, every call on it returns FERRY_ERR_CLOSED, and
 *   closing and freeing do nothing. Such a process may open engines of its own.
 * - ferry installs no signal handlers, prints nothing, and never ends the process. The smallest
 *   allocations excepted, running out of memory is FERRY_ERR_NO_MEMORY.
 */
#ifndef FERRY_H
#define FERRY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and version ------------------------------------------------------------------------ */

/// Version of the library that this header belongs to: the first number.
#define FERRY_VERSION_MAJOR 0

/// Its second number.
#define FERRY_VERSION_MINOR 1

/// And its third.
#define FERRY_VERSION_PATCH 0

/// Rises when a program must be compiled anew; the number in the SONAME libferry.so.N.
#define FERRY_ABI_MAJOR 0

/// What became of a call: 0 it did what it was asked; positive, a transfer is not final yet; negative,
/// a failure, grouped by what is harmed. The numbers are fixed and never reused. A program should treat
/// a negative number that it doesn't know like any failure of its group.
typedef int32_t ferry_status;

/// Success.
#define FERRY_OK 0

/// The transfer is not final yet.
#define FERRY_PENDING 1

/// The transfer was struck by failure, cancel or deadline, and is not final yet: its memory is not yet
/// the caller's.
#define FERRY_DRAINING 2

/// An argument is wrong; the message names it. This and all of -1xx: the caller's mistake, or not now;
/// nothing was done.
#define FERRY_ERR_INVALID (-100)

/// Memory outside every registered region, or a region that never was.
#define FERRY_ERR_NOT_REGISTERED (-101)

/// The memory overlaps a region that is registered.
#define FERRY_ERR_OVERLAP (-102)

/// The region does not grant this operation.
#define FERRY_ERR_ACCESS (-103)

/// A handle whose object is gone (unregistered, released, destroyed), or of another engine, or of an
/// engine since restarted.
#define FERRY_ERR_STALE (-104)

/// In use, still going on, or not allowed inside a callback. Try again later.
#define FERRY_ERR_BUSY (-105)

/// A bound is reached: room in a queue or table, a size, the caller's buffer.
#define FERRY_ERR_LIMIT (-106)

/// Not part of this version or build.
#define FERRY_ERR_UNSUPPORTED (-107)

/// The engine is closed or closing, or this process inherited it by fork.
#define FERRY_ERR_CLOSED (-108)

/// The deadline of a transfer, or the timeout of a call, has passed. -2xx: this transfer or call.
#define FERRY_ERR_TIMEOUT (-200)

/// Cancelled on request, or because an earlier ORDERED transfer failed.
#define FERRY_ERR_CANCELLED (-201)

/// A checksum doesn't match.
#define FERRY_ERR_CORRUPT (-202)

/// Some requests failed and others did not; ferry_transfer_results says which.
#define FERRY_ERR_PARTIAL (-203)

/// Nothing answers at the address. -3xx: the peer, or every path to it.
#define FERRY_ERR_UNREACHABLE (-300)

/// The peer was reached and then lost.
#define FERRY_ERR_PEER_LOST (-301)

/// The peer refused: authentication, or its limits.
#define FERRY_ERR_REFUSED (-302)

/// The other side speaks another version of the wire format, or of descriptors.
#define FERRY_ERR_VERSION (-303)

/// What answers is not a ferry engine.
#define FERRY_ERR_NOT_FERRY (-304)

/// No memory. -4xx: this engine or machine.
#define FERRY_ERR_NO_MEMORY (-400)

/// The operating system refused; ferry_error.os_error is the errno.
#define FERRY_ERR_SYSTEM (-401)

/// A library, device or transport that is needed is not there.
#define FERRY_ERR_UNAVAILABLE (-402)

/// A bug in ferry, caught at its border; the message says where.
#define FERRY_ERR_PANIC (-403)

/// The name of a status as its constant spells it, without FERRY_ and FERRY_ERR_: "OK", "INVALID".
/// "UNKNOWN" for any other number. The text is static. Never fails; any thread.
const char *ferry_status_name(ferry_status status);

/// The version of the library that is loaded, as "0.1.0". The text is static. Never fails; any thread.
const char *ferry_version(void);

/* ---- Errors ------------------------------------------------------------------------------------ */

/// Why a call failed. The caller sets struct_size to sizeof(ferry_error) before the call; the rest is
/// written when the call returns a negative status, and left alone otherwise. Every function that takes
/// one takes NULL too. With a struct_size below this version's the call does nothing and returns
/// FERRY_ERR_INVALID.
typedef struct ferry_error {
    /// In: sizeof(ferry_error). Out: how many bytes were written.
    uint32_t struct_size;
    /// The status that the call returned.
    ferry_status status;
    /// errno of the operating system, or 0.
    int32_t os_error;
    /// A device library's own code (work-completion status, ACL code), or 0.
    int32_t vendor_error;
    /// Index in the caller's list of the request or region at fault; UINT64_MAX if it concerns none.
    uint64_t request_index;
    /// FERRY_TRANSPORT_* over which it happened; FERRY_TRANSPORT_NONE if over none.
    uint32_t transport;
    /// 0.
    uint32_t reserved;
    /// A sentence for a person, UTF-8, terminated, cut if too long. Not for programs to parse.
    char message[256];
} ferry_error;

/* ---- Handles ----------------------------------------------------------------------------------- */

/* Handles are numbers that carry the engine and a generation: one that is stale, or that belongs
   to another engine, is refused and never followed. */

/// As a timeout or deadline: without end.
#define FERRY_FOREVER UINT64_MAX

/// A registered region, of this engine or of a peer. 0 is none.
typedef uint64_t ferry_region;

/// A peer: another engine, whether it was connected to or has connected to this one. 0 is none.
typedef uint64_t ferry_peer;

/// A transfer, from its submission to its release. 0 is none.
typedef uint64_t ferry_transfer;

/// A queue of events. 0 is none.
typedef uint64_t ferry_queue;

/* ---- Configuration ----------------------------------------------------------------------------- */

/* Every setting has a default, a FERRY_* environment variable that overrides it, and a key here
   that overrides both. ferry_config_settings lists them with what they do. */

/// The settings of an engine to be. Not thread-safe: one thread at a time.
typedef struct ferry_config ferry_config;

/// One setting that ferry knows. The texts are static.
typedef struct ferry_setting_info {
    /// How many bytes ferry wrote.
    uint32_t struct_size;
    /// 0.
    uint32_t reserved;
    /// The key; units at its end where it has one.
    const char *key;
    /// The environment variable that overrides the default.
    const char *variable;
    /// The default, as ferry_config_set takes it.
    const char *default_value;
    /// What it may be, in words.
    const char *valid;
    /// What it does, in a sentence.
    const char *description;
} ferry_setting_info;

/// A new configuration: the defaults, overridden by the FERRY_* variables of the environment.
///
/// FERRY_ERR_INVALID names the variable whose value is no good. Free it with ferry_config_free.
ferry_status ferry_config_new(ferry_config **out_config, ferry_error *error);

/// Changes one setting; explicit settings override the environment.
///
/// FERRY_ERR_INVALID for an unknown key (the message has the nearest known one) or a bad value (the
/// message says what is valid); the configuration is then as it was. Both texts are copied.
ferry_status ferry_config_set(ferry_config *config,
                              const char *key,
                              const char *value,
                              ferry_error *error);

/// Reads one setting as text, as ferry_config_set takes it; a secret reads as "(hidden)".
///
/// Texts and bytes are returned alike everywhere: *out_length gets the length, without the terminating
/// zero that a text has. With a capacity of 0 that is all (buffer may be NULL); otherwise all of it goes
/// into the buffer, or the call fails with FERRY_ERR_LIMIT and nothing is written.
ferry_status ferry_config_get(const ferry_config *config,
                              const char *key,
                              char *buffer,
                              size_t capacity,
                              size_t *out_length,
                              ferry_error *error);

/// Lists every setting that this library knows.
///
/// Lists are returned alike everywhere: out_settings has room for `capacity` elements of `element_size`
/// bytes, normally sizeof. As many as fit are written, and *out_count gets how many there are: more than
/// `capacity` means that some are missing. With a capacity of 0, out_settings may be NULL.
ferry_status ferry_config_settings(ferry_setting_info *out_settings,
                                   size_t element_size,
                                   size_t capacity,
                                   size_t *out_count,
                                   ferry_error *error);

/// Frees a configuration; NULL is none. Engines opened with it keep their own copy.
void ferry_config_free(ferry_config *config);

/* ---- Engines ----------------------------------------------------------------------------------- */

/// An engine: registers memory, connects to peers, and moves bytes. Any thread may use it at any time,
/// save for ferry_engine_free.
typedef struct ferry_engine ferry_engine;

/// Opens an engine: listens where the configuration says, and starts its threads.
///
/// `config` NULL: the defaults and the environment. It is copied. FERRY_ERR_INVALID for settings that
/// contradict each other; FERRY_ERR_SYSTEM when it cannot listen, or for lack of descriptors or threads.
/// End it with ferry_engine_close, then ferry_engine_free.
ferry_status ferry_engine_open(const ferry_config *config,
                               ferry_engine **out_engine,
                               ferry_error *error);

/// Ends an engine: new work is refused, every transfer becomes final, waits return, sessions end,
/// callbacks stop, and nothing of it or of a peer touches registered memory any more.
///
/// Once it has returned FERRY_OK every later call returns FERRY_ERR_CLOSED; only ferry_queue_drain first
/// hands out what its queue still holds, and ferry_engine_close says FERRY_OK again. FERRY_ERR_BUSY when
/// transfers are not final within the timeout: the engine is still closing, transfers can still be waited
/// for; call again. FERRY_ERR_BUSY inside a callback. In a forked child it does nothing and returns
/// FERRY_OK.
ferry_status ferry_engine_close(ferry_engine *engine,
                                uint64_t timeout_ns,
                                ferry_error *error);

/// Frees an engine, and the memory of ferry_memory_alloc that is left; NULL is none.
///
/// Only after ferry_engine_close has returned FERRY_OK, and with no other call on it in progress. One
/// that is not closed is closed first, however long that takes; inside one of its own callbacks, and in a
/// forked child, this does nothing and the engine's memory is never returned.
void ferry_engine_free(ferry_engine *engine);

/// "host:port" at which peers reach the engine; "" if it does not listen. How texts are returned:
/// ferry_config_get.
ferry_status ferry_engine_address(const ferry_engine *engine,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *out_length,
                                  ferry_error *error);

/* ---- Memory ------------------------------------------------------------------------------------ */

/* A peer can touch only what is registered, in the direction granted. */

/// Peers may READ the region.
#define FERRY_ACCESS_REMOTE_READ 1

/// Peers may WRITE the region.
#define FERRY_ACCESS_REMOTE_WRITE 2

/// ferry finds out what kind of memory it is: of a device whose library this process has open, or host memory.
#define FERRY_MEMORY_AUTO 0

/// Memory of the CPU.
#define FERRY_MEMORY_HOST 1

/// Memory of a CUDA device.
#define FERRY_MEMORY_CUDA 2

/// Memory of an Ascend device.
#define FERRY_MEMORY_ASCEND 3

/// CUDA's managed memory.
#define FERRY_MEMORY_CUDA_MANAGED 4

/// Memory of the CPU that CUDA has locked.
#define FERRY_MEMORY_CUDA_PINNED 5

/// What may be done with a region. Zero it, set struct_size to sizeof, then what is wanted.
typedef struct ferry_region_options {
    /// sizeof(ferry_region_options).
    uint32_t struct_size;
    /// FERRY_ACCESS_* bits; at least one.
    uint32_t access;
    /// FERRY_MEMORY_*.
    uint32_t kind;
    /// Number of the device for the kinds that have one; 0 otherwise.
    int32_t device;
    /// 0.
    uint32_t grant_scope;
    /// 0.
    uint32_t reserved;
    /// Told to peers, to find the region by; at most 63 bytes, copied. NULL: none.
    const char *name;
} ferry_region_options;

/// How ferry allocates memory, and what may be done with it; as ferry_region_options.
typedef struct ferry_alloc_options {
    /// sizeof(ferry_alloc_options).
    uint32_t struct_size;
    /// FERRY_ACCESS_* bits; at least one.
    uint32_t access;
    /// FERRY_MEMORY_*.
    uint32_t kind;
    /// Number of the device for the kinds that have one; 0 otherwise.
    int32_t device;
    /// 0.
    uint32_t flags;
    /// 0.
    uint32_t reserved;
    /// Told to peers, to find the region by; at most 63 bytes, copied. NULL: none.
    const char *name;
} ferry_alloc_options;

/// Registers `length` bytes at `address` and tells every peer. Transfers may run meanwhile.
///
/// `options` NULL: memory that peers may READ and WRITE, without a name, of the host or of a device, as is found
/// out. *out_region is also what peers name as remote_region. The memory must stay mapped, with the rights that the access needs, until
/// ferry_region_unregister has returned FERRY_OK or the engine is closed; ferry borrows it until then.
///
/// FERRY_ERR_INVALID (zero length, NULL, overflow, no access, nothing mapped there, or memory of a device that
/// ferry doesn't know or that is not where the options say), FERRY_ERR_OVERLAP with a registered region,
/// FERRY_ERR_LIMIT; FERRY_ERR_UNAVAILABLE without the library of the device that the options name;
/// FERRY_ERR_NO_MEMORY or FERRY_ERR_SYSTEM where an RDMA device can't register it.
ferry_status ferry_region_register(ferry_engine *engine,
                                   void *address,
                                   size_t length,
                                   const ferry_region_options *options,
                                   ferry_region *out_region,
                                   ferry_error *error);

/// Registers `count` pieces of memory with the same options, all or none: as ferry_region_register for
/// each, but peers are told at once. out_regions has room for `count` handles, in the same order.
/// ferry_error.request_index is the index of the piece at fault.
ferry_status ferry_region_register_batch(ferry_engine *engine,
                                         void *const *addresses,
                                         const size_t *lengths,
                                         size_t count,
                                         const ferry_region_options *options,
                                         ferry_region *out_regions,
                                         ferry_error *error);

/// Takes a region back: after FERRY_OK nothing can reach the memory any more, from anywhere. Transfers
/// that name it afterwards fail with FERRY_ERR_STALE at its peers and FERRY_ERR_NOT_REGISTERED here.
///
/// Waits while it is in use, and until connected peers have given up its RDMA keys. FERRY_ERR_BUSY with a timeout
/// of 0: not yet, and nothing has changed; with a longer one: still in use, but revoked for new work: call
/// again. FERRY_ERR_STALE if unregistered before. FERRY_ERR_INVALID for memory of ferry_memory_alloc, which
/// ferry_memory_free takes back.
ferry_status ferry_region_unregister(ferry_engine *engine,
                                     ferry_region region,
                                     uint64_t timeout_ns,
                                     ferry_error *error);

/// Allocates memory that is registered: page-aligned, zeroed, in huge pages where there are some. Processes
/// of this user on this host map it and copy directly. For that all of it is allocated now, which takes about
/// as long as filling it with zeros does.
///
/// `options` NULL: host memory that peers may READ and WRITE. Give it back with ferry_memory_free; what
/// is left is unmapped by ferry_engine_free. FERRY_ERR_NO_MEMORY, FERRY_ERR_INVALID for a length of 0.
ferry_status ferry_memory_alloc(ferry_engine *engine,
                                size_t length,
                                const ferry_alloc_options *options,
                                void **out_address,
                                ferry_region *out_region,
                                ferry_error *error);

/// Unregisters memory of ferry_memory_alloc and unmaps it. Waits and fails as ferry_region_unregister;
/// FERRY_ERR_INVALID for a region that ferry did not allocate.
ferry_status ferry_memory_free(ferry_engine *engine,
                               ferry_region region,
                               uint64_t timeout_ns,
                               ferry_error *error);

/* ---- Peers: what is known ---------------------------------------------------------------------- */

/// The session is being set up.
#define FERRY_PEER_CONNECTING 0

/// Transfers flow.
#define FERRY_PEER_UP 1

/// The session is lost, and is being set up again; transfers wait.
#define FERRY_PEER_DOWN 2

/// Lost for good: gone, given up, or replaced by a new incarnation. Connect again for a new handle.
#define FERRY_PEER_LOST 3

/// No transport.
#define FERRY_TRANSPORT_NONE 0

/// TCP connections.
#define FERRY_TRANSPORT_TCP 1

/// Copies between processes of one user on one host.
#define FERRY_TRANSPORT_LOCAL 2

/// InfiniBand or RoCE.
#define FERRY_TRANSPORT_RDMA 3

/// Copies between CUDA devices of one host. Other memory of devices goes through memory of the hosts, and results
/// name what carried it between them.
#define FERRY_TRANSPORT_CUDA 4

/// The same for Ascend devices.
#define FERRY_TRANSPORT_ASCEND 5

/// A peer. The caller sets struct_size before the call.
typedef struct ferry_peer_info {
    /// In: sizeof(ferry_peer_info). Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_PEER_*.
    uint32_t state;
    /// Stable across restarts of an engine on a fixed port of one machine.
    uint8_t engine_id[16];
    /// New with each start of the engine.
    uint64_t incarnation;
    /// Of the last probe, nanoseconds; 0 before one.
    uint64_t round_trip_ns;
    /// Transfers of this engine to the peer that are not final.
    uint64_t transfers_active;
    /// TCP connections that carry data now; 0 before something is to go over them.
    uint32_t lanes;
    /// 1 if the peer has proven to be on this host, else 0.
    uint32_t same_host;
    /// "host:port" at which it can be reached, terminated; "" if it doesn't listen.
    char address[264];
} ferry_peer_info;

/// A region that a peer registered.
typedef struct ferry_region_info {
    /// How many bytes ferry wrote.
    uint32_t struct_size;
    /// FERRY_ACCESS_* bits.
    uint32_t access;
    /// What ferry_request.remote_region takes.
    ferry_region region;
    /// As the peer knows it.
    uint64_t address;
    /// Bytes.
    uint64_t length;
    /// Terminated; "" if it has none.
    char name[64];
    /// FERRY_MEMORY_*: what kind of memory it is there.
    uint32_t kind;
    /// Number of the device in the peer's process, for the kinds that have one; 0 otherwise.
    int32_t device;
} ferry_region_info;

/// One way to reach a peer.
typedef struct ferry_path_info {
    /// How many bytes ferry wrote.
    uint32_t struct_size;
    /// FERRY_TRANSPORT_*.
    uint32_t transport;
    /// 1 if transfers take it now, else 0.
    uint32_t chosen;
    /// 0.
    uint32_t reserved;
    /// Why it is or is not chosen, for a person; terminated, cut if too long.
    char why[240];
} ferry_path_info;

/// What is known of a peer. FERRY_ERR_STALE when it is known no more.
ferry_status ferry_peer_get_info(ferry_engine *engine,
                                 ferry_peer peer,
                                 ferry_peer_info *out_info,
                                 ferry_error *error);

/// Lists what a peer has registered, in order of address, as far as it has told us: everything by the
/// time it is connected, changes since then shortly after they happen. How lists are returned:
/// ferry_config_settings.
ferry_status ferry_peer_regions(ferry_engine *engine,
                                ferry_peer peer,
                                ferry_region_info *out_regions,
                                size_t element_size,
                                size_t capacity,
                                size_t *out_count,
                                ferry_error *error);

/// Lists every path to a peer, chosen or not, and why. How lists are returned: ferry_config_settings.
ferry_status ferry_peer_paths(ferry_engine *engine,
                              ferry_peer peer,
                              ferry_path_info *out_paths,
                              size_t element_size,
                              size_t capacity,
                              size_t *out_count,
                              ferry_error *error);

/* ---- Peers ------------------------------------------------------------------------------------- */

/* Peers that this engine connects to and peers that connect to it have the same handles. */

/// Connects to the engine at `address` ("host:port") and waits until transfers can be submitted.
///
/// Idempotent: a peer that is connected already, from whichever side, is returned as it is; a peer that
/// has been restarted has a new handle. The attempt ends after the setting connect_timeout_ms at the
/// latest. Looking up the name may block beyond the timeout.
///
/// FERRY_ERR_UNREACHABLE or FERRY_ERR_TIMEOUT (nothing answers, or not in time), FERRY_ERR_NOT_FERRY,
/// FERRY_ERR_VERSION, FERRY_ERR_REFUSED;
/// FERRY_ERR_INVALID for an address that is none. FERRY_ERR_BUSY inside a callback.
ferry_status ferry_peer_connect(ferry_engine *engine,
                                const char *address,
                                uint64_t timeout_ns,
                                ferry_peer *out_peer,
                                ferry_error *error);

/// The same without waiting: `queue`, which must take FERRY_QUEUE_PEERS, gets one
/// FERRY_EVENT_PEER_CONNECTED with `user_data` and the outcome. May be called inside a callback.
///
/// Room in the queue is reserved now: FERRY_ERR_LIMIT when there is none. A call that fails reports
/// nothing to the queue.
ferry_status ferry_peer_connect_async(ferry_engine *engine,
                                      const char *address,
                                      uint64_t timeout_ns,
                                      ferry_queue queue,
                                      uint64_t user_data,
                                      ferry_error *error);

/// Lists the peers that are known, lost ones included for a while: handles in no order. How
/// lists are returned: ferry_config_settings.
ferry_status ferry_peer_list(ferry_engine *engine,
                             ferry_peer *out_peers,
                             size_t capacity,
                             size_t *out_count,
                             ferry_error *error);

/// Asks a peer for a sign of life. *out_round_trip_ns (NULL: not wanted) gets the round trip.
///
/// FERRY_ERR_TIMEOUT when no answer comes in time, FERRY_ERR_PEER_LOST and the like when the peer is
/// lost. FERRY_ERR_BUSY inside a callback.
ferry_status ferry_peer_probe(ferry_engine *engine,
                              ferry_peer peer,
                              uint64_t timeout_ns,
                              uint64_t *out_round_trip_ns,
                              ferry_error *error);

/// Returns when nothing of this peer can land here any more: its transfers towards this engine are cut
/// off, and this incarnation of it is refused until it is connected to from here.
///
/// What a decode worker calls before it uses the blocks of a prefill worker that has died. It closes this
/// side's connections, so that a silent peer is not waited for. FERRY_ERR_TIMEOUT: not yet; call again.
/// FERRY_ERR_BUSY inside a callback.
ferry_status ferry_peer_fence(ferry_engine *engine,
                              ferry_peer peer,
                              uint64_t timeout_ns,
                              ferry_error *error);

/// Ends the session with a peer. Its transfers fail with FERRY_ERR_CLOSED, and when they are final this
/// returns FERRY_OK; the handle then names a lost peer, whose use is FERRY_ERR_CLOSED and, some thousand
/// lost peers later, FERRY_ERR_STALE. FERRY_ERR_BUSY when that takes longer than the timeout:
/// the peer is still closing; call again. FERRY_ERR_BUSY inside a callback.
ferry_status ferry_peer_close(ferry_engine *engine,
                              ferry_peer peer,
                              uint64_t timeout_ns,
                              ferry_error *error);

/* ---- Descriptors ------------------------------------------------------------------------------- */

/* What engines can pass around out of band, to find each other. */

/// Writes this engine's descriptor: where to connect, and whom to expect there. At most 300 bytes,
/// versioned, with a checksum; a hint, not a secret and not a permission. How bytes are returned:
/// ferry_config_get. FERRY_ERR_UNAVAILABLE if the engine doesn't listen.
ferry_status ferry_descriptor_export(ferry_engine *engine,
                                     void *buffer,
                                     size_t capacity,
                                     size_t *out_length,
                                     ferry_error *error);

/// Connects to the engine that a descriptor describes; as ferry_peer_connect otherwise.
///
/// FERRY_ERR_INVALID if the bytes are no descriptor, FERRY_ERR_CORRUPT if they are damaged,
/// FERRY_ERR_VERSION for one of another version, FERRY_ERR_STALE if another engine, or another incarnation
/// of that one, answers at its address.
ferry_status ferry_descriptor_import(ferry_engine *engine,
                                     const void *descriptor,
                                     size_t length,
                                     uint64_t timeout_ns,
                                     ferry_peer *out_peer,
                                     ferry_error *error);

/* ---- Transfers: options ------------------------------------------------------------------------ */

/// Post each request as it is, in the caller's order, without merging neighbours.
#define FERRY_TRANSFER_NO_COALESCE 1

/// No byte is applied before the earlier ORDERED transfers to the peer are done; if one of them fails,
/// this one fails with FERRY_ERR_CANCELLED and nothing has moved.
#define FERRY_TRANSFER_ORDERED 2

/// Verify the payload end to end; a mismatch is FERRY_ERR_CORRUPT. Such transfers go by TCP.
#define FERRY_TRANSFER_CHECKSUM 4

/// A WRITE may be done when the peer's device has acknowledged it, before it is visible to the peer's
/// CPU. Only RDMA knows the difference: by other transports done always means visible, and this changes
/// nothing.
#define FERRY_TRANSFER_ACKED_ONLY 8

/// In transports_allowed: the bit of FERRY_TRANSPORT_TCP.
#define FERRY_ALLOW_TCP 2

/// The bit of FERRY_TRANSPORT_LOCAL.
#define FERRY_ALLOW_LOCAL 4

/// The bit of FERRY_TRANSPORT_RDMA.
#define FERRY_ALLOW_RDMA 8

/// The bit of FERRY_TRANSPORT_CUDA.
#define FERRY_ALLOW_CUDA 16

/// The bit of FERRY_TRANSPORT_ASCEND.
#define FERRY_ALLOW_ASCEND 32

/// The transfer waits for nothing but its peer.
#define FERRY_START_NOW 0

/// Start after a CUDA event that has been recorded: options.event is the CUevent or cudaEvent_t, which lives
/// until the transfer is final. Until then it keeps its place among ORDERED transfers and notifications. If
/// the work before it fails, so does the transfer.
#define FERRY_START_AFTER_CUDA_EVENT 1

/// The same for an event of AscendCL, an aclrtEvent.
#define FERRY_START_AFTER_ACL_EVENT 2

/// Start after all that a CUDA stream has been given so far: options.event is the CUstream or cudaStream_t, 0
/// the default stream.
#define FERRY_START_AFTER_CUDA_STREAM 3

/// The same for a stream of AscendCL, an aclrtStream, whose context must be the calling thread's current one:
/// FERRY_ERR_UNSUPPORTED otherwise.
#define FERRY_START_AFTER_ACL_STREAM 4

/// Options of a transfer. Zero it, set struct_size to sizeof, then what is wanted; NULL is all defaults.
typedef struct ferry_transfer_options {
    /// sizeof(ferry_transfer_options).
    uint32_t struct_size;
    /// FERRY_TRANSFER_* bits.
    uint32_t flags;
    /// When the transfer is struck if it isn't done, in nanoseconds from now; 0 the setting deadline_ms,
    /// FERRY_FOREVER never. It is final within the setting lease_ms after that.
    uint64_t deadline_ns;
    /// Comes back in the result and the event.
    uint64_t user_data;
    /// Gets a FERRY_EVENT_TRANSFER when the transfer is final; it must take FERRY_QUEUE_TRANSFERS. 0:
    /// none, for transfers that are waited for. Room is reserved at submit.
    ferry_queue queue;
    /// Bytes delivered to the peer's application after the data is visible there, in order with other
    /// notifications to that peer; copied by submit. NULL: none.
    const void *notify;
    /// At most FERRY_NOTIFY_BYTES_MAX. With a notify that isn't NULL, 0 is an empty notification.
    size_t notify_length;
    /// FERRY_ALLOW_* bits: with none of these transports usable the transfer fails rather than fall back.
    /// 0: all that the engine may use.
    uint64_t transports_allowed;
    /// Higher goes first among transfers of about the same size.
    uint32_t priority;
    /// FERRY_START_*.
    uint32_t event_kind;
    /// The event or stream to start after; 0 with FERRY_START_NOW.
    uint64_t event;
} ferry_transfer_options;

/* ---- Transfers: results ------------------------------------------------------------------------ */

/// Every byte is where it belongs, and visible there.
#define FERRY_STATE_DONE 3

/// It failed; status says why.
#define FERRY_STATE_FAILED 4

/// It was cancelled.
#define FERRY_STATE_CANCELLED 5

/// It passed its deadline.
#define FERRY_STATE_TIMED_OUT 6

/// The target has confirmed that nothing of the transfer can touch memory any more.
#define FERRY_FENCE_CONFIRMED 1

/// The peer's process is known to be gone.
#define FERRY_FENCE_DEAD 2

/// The target's lease on the data has run out.
#define FERRY_FENCE_LEASE 3

/// The transfer had no notification.
#define FERRY_NOTIFICATION_NONE 0

/// The peer has it.
#define FERRY_NOTIFICATION_DELIVERED 1

/// The peer doesn't have it, and never will.
#define FERRY_NOTIFICATION_NOT_SENT 2

/// It was given up, or the peer lost, before the peer said whether it has it.
#define FERRY_NOTIFICATION_UNKNOWN 3

/// ferry_transfer_results: every request.
#define FERRY_RESULTS_ALL 0

/// ferry_transfer_results: those that are not FERRY_OK.
#define FERRY_RESULTS_FAILED 1

/// How one request of a final transfer ended.
typedef struct ferry_request_result {
    /// How many bytes ferry wrote.
    uint32_t struct_size;
    /// FERRY_OK, or the cause.
    ferry_status status;
    /// Place in the caller's list; for blocks, layer * pair_count + pair.
    uint64_t request_index;
    /// Of the request, bytes known to be where they belong.
    uint64_t bytes_confirmed;
    /// errno behind the failure, or 0.
    int32_t os_error;
    /// A device library's own code, or 0.
    int32_t vendor_error;
    /// FERRY_TRANSPORT_* that carried it.
    uint32_t transport;
    /// 0.
    uint32_t reserved;
} ferry_request_result;

/// How a transfer ended. The caller sets struct_size before the call. Times are CLOCK_MONOTONIC, in
/// nanoseconds.
typedef struct ferry_result {
    /// In: sizeof(ferry_result). Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_STATE_*.
    uint32_t state;
    /// FERRY_OK when DONE, else the cause: FERRY_ERR_PARTIAL if requests fared differently, save that
    /// FERRY_ERR_TIMEOUT and FERRY_ERR_CANCELLED outrank it.
    ferry_status status;
    /// FERRY_FENCE_*: why the memory is the caller's again.
    uint32_t fence;
    /// FERRY_NOTIFICATION_*.
    uint32_t notification;
    /// FERRY_TRANSPORT_* that carried it.
    uint32_t transport;
    /// errno behind the failure, or 0.
    int32_t os_error;
    /// 0.
    uint32_t reserved;
    /// From ferry_transfer_options.
    uint64_t user_data;
    /// Bytes known to be where they belong. What isn't confirmed is undefined.
    uint64_t bytes_confirmed;
    /// Requests that are not FERRY_OK.
    uint64_t requests_failed;
    /// Requests submitted.
    uint64_t requests_in;
    /// The slices that they became after merging and cutting.
    uint64_t slices_out;
    /// When it was submitted.
    uint64_t submitted_ns;
    /// When the first slice was posted; 0 if none was.
    uint64_t started_ns;
    /// When it became final.
    uint64_t finished_ns;
} ferry_result;

/// What became of each request of a final transfer, in the caller's order; `which` is FERRY_RESULTS_*.
/// Until the transfer is released they can be asked for again. FERRY_PENDING or FERRY_DRAINING, with
/// nothing written, when it is not final yet. How lists are returned: ferry_config_settings.
ferry_status ferry_transfer_results(ferry_engine *engine,
                                    ferry_transfer transfer,
                                    uint32_t which,
                                    ferry_request_result *out_results,
                                    size_t element_size,
                                    size_t capacity,
                                    size_t *out_count,
                                    ferry_error *error);

/* ---- Transfers --------------------------------------------------------------------------------- */

/* A transfer reaches exactly one final state, and only when nothing can touch the memory that it
   named any more, on either side. Deadline and cancel are requests; the final state is the promise. */

/// From the peer's memory into local memory.
#define FERRY_OP_READ 1

/// From local memory into the peer's memory.
#define FERRY_OP_WRITE 2

/// One range of a transfer. Frozen: 32 bytes for ever, so arrays of it take no element size.
typedef struct ferry_request {
    /// Address in this process.
    uint64_t local;
    /// Address as the peer knows it.
    uint64_t remote;
    /// Bytes; not 0.
    uint64_t length;
    /// The peer's region that is meant: if it has been unregistered, the request fails with
    /// FERRY_ERR_STALE whatever is there now. 0: whatever is registered there at that moment.
    ferry_region remote_region;
} ferry_request;

/// Starts a transfer of all requests. A call that fails has done nothing.
///
/// Nothing is borrowed once it returns, but the memory that the requests name belongs to the transfer
/// until it is final. One failed request fails the transfer with FERRY_ERR_PARTIAL, and
/// ferry_transfer_results says what became of the others. Transfers to one peer are unordered unless
/// ORDERED; ranges that overlap in flight have no defined order, but nothing outside them is touched.
/// Release the transfer when it is final. May be called inside a callback.
///
/// FERRY_ERR_INVALID, FERRY_ERR_NOT_REGISTERED (local memory), FERRY_ERR_ACCESS, FERRY_ERR_STALE,
/// FERRY_ERR_LIMIT (no room in the queue, too many transfers or requests), FERRY_ERR_UNAVAILABLE
/// (transports_allowed), FERRY_ERR_PEER_LOST; ferry_error.request_index names the request at fault.
ferry_status ferry_transfer_submit(ferry_engine *engine,
                                   ferry_peer peer,
                                   uint32_t op,
                                   const ferry_request *requests,
                                   size_t count,
                                   const ferry_transfer_options *options,
                                   ferry_transfer *out_transfer,
                                   ferry_error *error);

/// Waits until a transfer is final, however it ends, and returns its status: FERRY_OK if it is done.
///
/// *out_result (NULL: not wanted) is written exactly when the transfer is final. FERRY_PENDING or
/// FERRY_DRAINING: it is not final when the timeout ends, and goes on. A negative status is the
/// transfer's own when out_result was written, else the call's: FERRY_ERR_STALE and FERRY_ERR_INVALID for
/// a handle, FERRY_ERR_BUSY for a wait inside a callback. ferry_error then has the first failed request.
ferry_status ferry_transfer_wait(ferry_engine *engine,
                                 ferry_transfer transfer,
                                 uint64_t timeout_ns,
                                 ferry_result *out_result,
                                 ferry_error *error);

/// Waits until one of several transfers is final; *out_index gets its place in the list. The transfer's
/// own status is for ferry_transfer_wait to tell. FERRY_PENDING when the timeout ends first.
/// FERRY_ERR_BUSY inside a callback, unless one is final or the timeout is 0.
ferry_status ferry_transfer_wait_any(ferry_engine *engine,
                                     const ferry_transfer *transfers,
                                     size_t count,
                                     uint64_t timeout_ns,
                                     size_t *out_index,
                                     ferry_error *error);

/// How far a transfer is: bytes known to be where they belong, and the bytes of all its requests.
///
/// *out_bytes_confirmed never goes back, is never above *out_bytes_total, and is the result's once the
/// transfer is final. It grows by what is confirmed at once, at most 2 MiB. FERRY_OK whatever state the
/// transfer is in. Never waits.
ferry_status ferry_transfer_progress(ferry_engine *engine,
                                     ferry_transfer transfer,
                                     uint64_t *out_bytes_confirmed,
                                     uint64_t *out_bytes_total,
                                     ferry_error *error);

/// Asks a transfer to stop. FERRY_OK means that it was asked, final or not: what came of it, the final
/// state tells. Never waits.
ferry_status ferry_transfer_cancel(ferry_engine *engine,
                                   ferry_transfer transfer,
                                   ferry_error *error);

/// Forgets a final transfer and its results; its handle is stale afterwards. FERRY_ERR_BUSY before it is
/// final.
ferry_status ferry_transfer_release(ferry_engine *engine,
                                    ferry_transfer transfer,
                                    ferry_error *error);

/// Has a stream of the caller's wait for a transfer: what is given to the stream from here on begins when the
/// transfer is final, however it ends; its result tells which. `stream` is the CUstream or cudaStream_t of
/// `kind` FERRY_MEMORY_CUDA, 0 the default stream; the call doesn't wait.
///
/// FERRY_ERR_UNSUPPORTED for FERRY_MEMORY_ASCEND, whose streams wait for nothing of the host's;
/// FERRY_ERR_UNAVAILABLE without the device's library; FERRY_ERR_INVALID for another kind, or a stream that is
/// being captured.
ferry_status ferry_transfer_stream_wait(ferry_engine *engine,
                                        ferry_transfer transfer,
                                        uint64_t stream,
                                        uint32_t kind,
                                        ferry_error *error);

/// WRITE in one call: submits, waits until the transfer is final, releases it, and returns its status.
/// *out_result (NULL: not wanted) is written exactly when a transfer took place. options.queue must be 0.
/// FERRY_ERR_BUSY inside a callback, with nothing done.
ferry_status ferry_write(ferry_engine *engine,
                         ferry_peer peer,
                         const ferry_request *requests,
                         size_t count,
                         const ferry_transfer_options *options,
                         ferry_result *out_result,
                         ferry_error *error);

/// READ in one call; otherwise as ferry_write.
ferry_status ferry_read(ferry_engine *engine,
                        ferry_peer peer,
                        const ferry_request *requests,
                        size_t count,
                        const ferry_transfer_options *options,
                        ferry_result *out_result,
                        ferry_error *error);

/// WRITE or READ here and now, if this thread can do that without waiting: by one copy, for one request of at
/// most the setting express_bytes_max, to or from a peer on this host. FERRY_OK: it is done, and *out_result
/// (NULL: not wanted) is written. FERRY_PENDING: it is not done; submit it. options.queue must be 0. May be
/// called inside a callback.
ferry_status ferry_transfer_try(ferry_engine *engine,
                                ferry_peer peer,
                                uint32_t op,
                                const ferry_request *requests,
                                size_t count,
                                const ferry_transfer_options *options,
                                ferry_result *out_result,
                                ferry_error *error);

/* ---- Transfers of blocks ----------------------------------------------------------------------- */

/* For paged memory: a KV cache is a table of equal blocks per layer. */

/// Pairs of blocks, the same in every layer of a cache. For each layer l and pair i one request is made:
///
///     local  = local_base[l]  + local_blocks[i]  * local_stride[l]
///     remote = remote_base[l] + remote_blocks[i] * remote_stride[l]
///     length = block_bytes[l]
///
/// with the index l * pair_count + i. Neighbours are merged: local ids 5 6 7 12 13 with remote ids
/// 2 3 4 8 9 are two slices per layer where the strides equal block_bytes. Zero the struct, set
/// struct_size to sizeof, then the rest; nothing is borrowed after the call.
typedef struct ferry_blocks {
    /// sizeof(ferry_blocks).
    uint32_t struct_size;
    /// Size of one block id: 4 for int32_t, 8 for int64_t.
    uint32_t id_bytes;
    /// Length of the next six arrays.
    size_t layer_count;
    /// Address of block 0 in this process, for each layer.
    const uint64_t *local_base;
    /// The same as the peer knows it.
    const uint64_t *remote_base;
    /// Bytes from one block to the next; at least block_bytes.
    const uint64_t *local_stride;
    /// The same at the peer.
    const uint64_t *remote_stride;
    /// Bytes of one block; not 0.
    const uint64_t *block_bytes;
    /// As ferry_request.remote_region. NULL: 0 for every layer.
    const ferry_region *remote_region;
    /// Length of the two lists of ids.
    size_t pair_count;
    /// Ids here.
    const void *local_blocks;
    /// Ids at the peer, paired with them.
    const void *remote_blocks;
} ferry_blocks;

/// Starts a transfer of blocks; otherwise as ferry_transfer_submit.
ferry_status ferry_transfer_submit_blocks(ferry_engine *engine,
                                          ferry_peer peer,
                                          uint32_t op,
                                          const ferry_blocks *blocks,
                                          const ferry_transfer_options *options,
                                          ferry_transfer *out_transfer,
                                          ferry_error *error);

/* ---- Notifications ----------------------------------------------------------------------------- */

/// Longest notification, in bytes.
#define FERRY_NOTIFY_BYTES_MAX 16384

/// Sends bytes to the peer's application, in order with the notifications of transfers to it, and returns
/// when the peer has taken them in. The peer gets them as FERRY_EVENT_NOTIFICATION, once.
///
/// `deadline_ns` from now; 0 the setting deadline_ms, FERRY_FOREVER none. A peer whose application does
/// not drain its notifications holds up further ones: FERRY_ERR_TIMEOUT. FERRY_ERR_LIMIT above
/// FERRY_NOTIFY_BYTES_MAX. FERRY_ERR_BUSY inside a callback.
ferry_status ferry_notify(ferry_engine *engine,
                          ferry_peer peer,
                          const void *bytes,
                          size_t length,
                          uint64_t deadline_ns,
                          ferry_error *error);

/* ---- Events ------------------------------------------------------------------------------------ */

/// A transfer is final: transfer, user_data and status are set.
#define FERRY_EVENT_TRANSFER 1

/// The peer has sent bytes: data and data_length are set.
#define FERRY_EVENT_NOTIFICATION 2

/// A session with the peer is established, from whichever side.
#define FERRY_EVENT_PEER_UP 3

/// The peer is lost and nothing of it can land here any more: status is set, and data, if it is known, to a sentence
/// that says why: the operation that failed, the addresses, the system's word for its errno. UTF-8, not terminated.
#define FERRY_EVENT_PEER_LOST 4

/// Bytes of a peer were applied here after its lease had run out, because this process or its peer stood
/// still in the middle of it: region, address and length are set. What is there is undefined.
#define FERRY_EVENT_LATE_APPLY 5

/// A ferry_peer_connect_async has ended: user_data and status are set, and peer if it is FERRY_OK.
#define FERRY_EVENT_PEER_CONNECTED 6

/// One thing that has happened. Fields that its kind doesn't set are 0.
typedef struct ferry_event {
    /// How many bytes ferry wrote.
    uint32_t struct_size;
    /// FERRY_EVENT_*; a program should ignore kinds that it doesn't know.
    uint32_t kind;
    /// The peer concerned.
    ferry_peer peer;
    /// Of FERRY_EVENT_TRANSFER.
    ferry_transfer transfer;
    /// From the options of the transfer, or from ferry_peer_connect_async.
    uint64_t user_data;
    /// How it ended, or why the peer is lost.
    ferry_status status;
    /// 0.
    uint32_t reserved;
    /// A notification's bytes, or a sentence of FERRY_EVENT_PEER_LOST; NULL if empty. Of a drained event they are the caller's until
    /// ferry_event_release, of a callback's event ferry's, for the length of the callback.
    const void *data;
    /// Bytes at data.
    size_t data_length;
    /// Of FERRY_EVENT_LATE_APPLY: the region of this engine.
    ferry_region region;
    /// Where the bytes begin.
    uint64_t address;
    /// How many there may be.
    uint64_t length;
} ferry_event;

/// Called for each event of a queue, on ferry's callback thread; see ferry_queue_callback.
typedef void (*ferry_callback)(void *context, const struct ferry_event *event);

/// Gives back what a drained event owns, and sets its data to NULL. Only notifications and
/// FERRY_EVENT_PEER_LOST own anything; for other events, for NULL, and a second time on the same struct it does nothing. Of copies of an event
/// release one. Any thread; also when the queue or the engine is gone.
void ferry_event_release(ferry_event *event);

/* ---- Queues ------------------------------------------------------------------------------------ */

/* Each queue has its own events; none is taken from another's reader. */

/// Transfers that were submitted with the queue.
#define FERRY_QUEUE_TRANSFERS 1

/// Notifications of all peers; one queue of an engine at a time.
#define FERRY_QUEUE_NOTIFICATIONS 2

/// Peers that come and go, late applies, and the outcome of ferry_peer_connect_async.
#define FERRY_QUEUE_PEERS 4

/// Creates a queue for the kinds of events in `what`, FERRY_QUEUE_* bits.
///
/// `capacity`, 1 to 1048576, is how many transfers and connects may be under way or wait to be drained:
/// room is reserved when they are submitted, which fails with FERRY_ERR_LIMIT rather than lose an event.
/// Notifications are bounded by what peers may send ahead, and of events about one peer that say the same
/// the newest is kept. A queue that takes notifications starts with those that came while none did.
///
/// FERRY_ERR_BUSY while another queue takes notifications; FERRY_ERR_LIMIT above 4096 queues;
/// FERRY_ERR_SYSTEM when out of descriptors.
ferry_status ferry_queue_create(ferry_engine *engine,
                                uint32_t what,
                                size_t capacity,
                                ferry_queue *out_queue,
                                ferry_error *error);

/// A descriptor for poll, epoll or an event loop: readable when ferry_queue_drain has something.
///
/// ferry owns it: don't read, write or close it. It becomes readable with the first event after a drain
/// that returned fewer events than it had room for, so: poll, drain until that happens, poll again. Good
/// until the queue is destroyed or the engine freed.
ferry_status ferry_queue_eventfd(ferry_engine *engine,
                                 ferry_queue queue,
                                 int *out_fd,
                                 ferry_error *error);

/// Takes up to `capacity` (not 0) events, oldest first; *out_count gets how many. Never waits.
///
/// Fewer than `capacity`: the queue was empty, and its eventfd is armed. Elements of out_events are
/// `element_size` bytes apart, normally sizeof(ferry_event). Release each drained event's data with
/// ferry_event_release. Several threads may drain one queue: each event goes to one of them. Of a closed
/// engine's queue it hands out what is left, then returns FERRY_ERR_CLOSED; of a broken one's, FERRY_ERR_PANIC.
ferry_status ferry_queue_drain(ferry_engine *engine,
                               ferry_queue queue,
                               ferry_event *out_events,
                               size_t element_size,
                               size_t capacity,
                               size_t *out_count,
                               ferry_error *error);

/// Has ferry call `callback` with each event of the queue, on a thread of its own, one at a time and
/// under no lock; NULL takes the callback away. Returns when a running call of the old one has ended, save
/// inside a callback, where the change takes effect with the next event.
///
/// Inside it, every call that doesn't wait is allowed, submit included; calls that wait, and
/// ferry_engine_close, return FERRY_ERR_BUSY. The event and its data are good for the length of the
/// callback; don't release it. It must not throw or longjmp. `context` is passed through.
ferry_status ferry_queue_callback(ferry_engine *engine,
                                  ferry_queue queue,
                                  ferry_callback callback,
                                  void *context,
                                  ferry_error *error);

/// Destroys a queue; when it returns, its callback has ended and will not run again, and its descriptor
/// is closed. Notifications that it holds wait for the next queue that takes them, other events are
/// dropped. FERRY_ERR_BUSY while transfers or connects have yet to report to it, and inside its own
/// callback.
ferry_status ferry_queue_destroy(ferry_engine *engine,
                                 ferry_queue queue,
                                 ferry_error *error);

/* ---- Statistics -------------------------------------------------------------------------------- */

/// Counters since the engine was opened, and what exists now. The caller sets struct_size before the
/// call. Each number is read on its own; together they are no snapshot.
typedef struct ferry_stats {
    /// In: sizeof(ferry_stats). Out: how many bytes were written.
    uint32_t struct_size;
    /// 0.
    uint32_t reserved;
    /// Transfers that were started.
    uint64_t transfers_submitted;
    /// Of those, DONE.
    uint64_t transfers_done;
    /// FAILED.
    uint64_t transfers_failed;
    /// CANCELLED.
    uint64_t transfers_cancelled;
    /// TIMED_OUT.
    uint64_t transfers_timed_out;
    /// Requests in submitted transfers.
    uint64_t requests_in;
    /// Slices that the requests became after merging and cutting.
    uint64_t slices_out;
    /// Payload bytes of WRITEs confirmed by their targets.
    uint64_t bytes_written;
    /// Payload bytes of READs that arrived.
    uint64_t bytes_read;
    /// Payload bytes of peers' WRITEs placed in this engine's regions.
    uint64_t bytes_applied;
    /// Payload bytes sent for peers' READs.
    uint64_t bytes_served;
    /// What peers asked for and this engine's checks refused.
    uint64_t requests_refused;
    /// Peers' notifications taken in.
    uint64_t notifications_received;
    /// Sessions established.
    uint64_t sessions_up;
    /// Sessions lost, to be set up again or for good.
    uint64_t sessions_lost;
    /// Data connections and RDMA endpoints that broke.
    uint64_t lanes_lost;
    /// Inbound connections turned away.
    uint64_t handshakes_refused;
    /// FERRY_EVENT_LATE_APPLY, drained or not.
    uint64_t late_applies;
    /// System calls on data connections.
    uint64_t send_calls;
    /// The same for receiving.
    uint64_t receive_calls;
    /// Peers with a session now.
    uint64_t peers_up;
    /// Regions registered now.
    uint64_t regions;
    /// Transfers not released, final or not.
    uint64_t transfers;
    /// Payload bytes that this engine copied over same-host paths.
    uint64_t bytes_local;
    /// Payload bytes that devices here copied by themselves from or to memory of a peer's devices.
    uint64_t bytes_device;
} ferry_stats;

/// Reads the engine's statistics.
ferry_status ferry_engine_stats(const ferry_engine *engine,
                                ferry_stats *out_stats,
                                ferry_error *error);

/// The same in Prometheus' text format. Counters grow, and the text with them: leave some room. How texts
/// are returned: ferry_config_get.
ferry_status ferry_engine_metrics(const ferry_engine *engine,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *out_length,
                                  ferry_error *error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FERRY_H */
