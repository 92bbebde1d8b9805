/** @file
 * ferry: moves bytes between the memories of machines.
 *
 * Generated from ffi/src by `UPDATE=1 cargo test -p ferry-ffi --test header`; don't edit. Above 500 lines,
 * because a program includes one file. ffi/README.md has the contract as a whole. These rules hold everywhere:
 *
 * - Every function that can fail returns a ferry_status. Outputs (out_*) are written only on success.
 *   `error` may be NULL; otherwise the call fills it when the status is negative.
 * - Any thread may make any call, unless its documentation says otherwise. It needs 64 KiB of stack. ferry
 *   borrows nothing beyond a call, except registered memory, the memory of transfers, and callbacks.
 * - Timeouts and deadlines are nanoseconds from now. Timeout 0 only looks, FERRY_FOREVER waits.
 * - Structs begin with a struct_size, so that programs and libraries of different versions agree. The caller
 *   sets it to sizeof and zeroes the other fields: `ferry_transfer_options options =
 *   FERRY_TRANSFER_OPTIONS_INIT;` does both. Reserved fields must be 0. ferry_request has no struct_size.
 * - In a forked child, every call on an inherited engine returns FERRY_ERR_CLOSED; closing and freeing
 *   do nothing. The child may open its own engines.
 * - ferry installs no signal handlers and prints nothing. A call that runs out of memory returns
 *   FERRY_ERR_NO_MEMORY; the process aborts only when one of the smallest allocations fails.
 */
#ifndef FERRY_H
#define FERRY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and version ------------------------------------------------------------------------ */

/// First number of the version of the library that this header belongs to.
#define FERRY_VERSION_MAJOR 0

/// Second number of the version.
#define FERRY_VERSION_MINOR 1

/// Third number of the version.
#define FERRY_VERSION_PATCH 0

/// Major number of the ABI, also in the SONAME libferry.so.N. It rises when programs must be compiled again.
#define FERRY_ABI_MAJOR 0

/// The outcome of a call. 0 means success. A positive number means that a transfer is not final yet. A
/// negative number is a failure; failures are grouped by the object that is harmed. The numbers are fixed and
/// never reused. A program should treat an unknown negative number like any failure of its group.
typedef int32_t ferry_status;

/// Success.
#define FERRY_OK 0

/// The transfer is not final yet.
#define FERRY_PENDING 1

/// A failure, a cancel or the deadline has stopped the transfer. The transfer is not final yet, and its
/// memory is not yet the caller's.
#define FERRY_DRAINING 2

/// An argument is wrong; the message names the argument. All of -1xx: the caller made a mistake, or the call
/// is not possible now. The call did nothing; FERRY_ERR_BUSY names the one exception.
#define FERRY_ERR_INVALID (-100)

/// The memory is outside every registered region, or the region never existed.
#define FERRY_ERR_NOT_REGISTERED (-101)

/// The memory overlaps a region that is registered.
#define FERRY_ERR_OVERLAP (-102)

/// The region does not grant this operation.
#define FERRY_ERR_ACCESS (-103)

/// The object of the handle is gone (unregistered, released, destroyed), or the handle belongs to another
/// engine or to an earlier incarnation of this engine.
#define FERRY_ERR_STALE (-104)

/// The object is in use, an operation is still in progress, or a callback made the call. Try again later. The call
/// did nothing, unless its timeout has passed while it unregistered a region or closed a peer, an engine or a KV cache
/// (that object then stays closed for new work), or retracted tokens of an offer (they stay taken back, but no block is
/// free yet). A region is unchanged if the timeout was 0.
#define FERRY_ERR_BUSY (-105)

/// A limit is reached: room in a queue or table, a size, the caller's buffer.
#define FERRY_ERR_LIMIT (-106)

/// This version or build does not support the operation.
#define FERRY_ERR_UNSUPPORTED (-107)

/// The engine is closed or closing, or this process inherited it by fork.
#define FERRY_ERR_CLOSED (-108)

/// The deadline of a transfer, or the timeout of a call, has passed. All of -2xx: this transfer or call
/// failed.
#define FERRY_ERR_TIMEOUT (-200)

/// The transfer was cancelled by request, or because an earlier ORDERED transfer failed.
#define FERRY_ERR_CANCELLED (-201)

/// A checksum doesn't match.
#define FERRY_ERR_CORRUPT (-202)

/// Some requests failed and others did not; ferry_transfer_results lists them.
#define FERRY_ERR_PARTIAL (-203)

/// Nothing answers at the address. All of -3xx: the peer failed, or every path to the peer.
#define FERRY_ERR_UNREACHABLE (-300)

/// The peer was reached before and is lost now.
#define FERRY_ERR_PEER_LOST (-301)

/// The peer refused the session: authentication failed, or the peer is at a limit.
#define FERRY_ERR_REFUSED (-302)

/// The other side uses another version of the wire format or of descriptors.
#define FERRY_ERR_VERSION (-303)

/// The process that answers at the address is not a ferry engine.
#define FERRY_ERR_NOT_FERRY (-304)

/// Memory is exhausted. All of -4xx: this engine or machine failed.
#define FERRY_ERR_NO_MEMORY (-400)

/// The operating system refused; ferry_error.os_error is the errno.
#define FERRY_ERR_SYSTEM (-401)

/// A required library, device or transport is missing.
#define FERRY_ERR_UNAVAILABLE (-402)

/// ferry has a bug and caught a panic; the message says where.
#define FERRY_ERR_PANIC (-403)

/// Returns the name of a status: its constant without FERRY_ and FERRY_ERR_, for example "OK" or "INVALID".
/// Returns "UNKNOWN" for any other number. The text is static. Never fails; any thread.
const char *ferry_status_name(ferry_status status);

/// Returns the version of the loaded library, for example "0.1.0". The text is static. Never fails; any
/// thread.
const char *ferry_version(void);

/* ---- Errors ------------------------------------------------------------------------------------ */

/// Why a call failed. The caller sets struct_size to sizeof(ferry_error) before the call, by FERRY_ERROR_INIT for
/// example. The call fills the other fields when it returns a negative status, and leaves them alone otherwise.
/// NULL is allowed wherever a ferry_error is. If struct_size is 0, the call takes the struct as that of this
/// version, the first, so that a program that only zeroes its errors learns why a call failed. If struct_size is
/// not 0 and below the size in this version, the call does nothing and returns FERRY_ERR_INVALID.
typedef struct ferry_error {
    /// In: sizeof(ferry_error). Out: how many bytes were written.
    uint32_t struct_size;
    /// The status that the call returned.
    ferry_status status;
    /// errno of the operating system, or 0.
    int32_t os_error;
    /// Code of the device library (work-completion status, ACL code), or 0.
    int32_t vendor_error;
    /// Index of the failed request or region in the caller's list; UINT64_MAX if the error concerns none.
    uint64_t request_index;
    /// FERRY_TRANSPORT_* on which the error happened, or FERRY_TRANSPORT_NONE.
    uint32_t transport;
    /// Always 0.
    uint32_t reserved;
    /// A sentence for people: UTF-8, terminated, cut if it is too long. Programs must not parse it.
    char message[256];
} ferry_error;

/// Initializes a ferry_error: its struct_size, and zero in all other fields.
#define FERRY_ERROR_INIT \
    { (uint32_t)sizeof(ferry_error), 0, 0, 0, 0, 0, 0, {0} }

/* ---- Handles ----------------------------------------------------------------------------------- */

/* Handles are numbers that carry an engine tag and a generation. ferry refuses a stale handle, and
   a handle of another engine; it never follows one. */

/// A timeout or deadline that never ends.
#define FERRY_FOREVER UINT64_MAX

/// A registered region of this engine or of a peer. 0 is no region.
typedef uint64_t ferry_region;

/// A peer: a remote engine, whichever side connected. 0 is no peer.
typedef uint64_t ferry_peer;

/// A transfer, from its submission to its release. 0 is no transfer.
typedef uint64_t ferry_transfer;

/// A queue of events. 0 is no queue.
typedef uint64_t ferry_queue;

/* ---- Configuration ----------------------------------------------------------------------------- */

/* Every setting has a default, a FERRY_* environment variable that overrides it, and a key here
   that overrides both. ferry_config_settings lists them with their descriptions. */

/// The settings for a new engine. Not thread-safe: one thread at a time.
typedef struct ferry_config ferry_config;

/// One setting that ferry knows. The texts are static.
typedef struct ferry_setting_info {
    /// Out: how many bytes were written.
    uint32_t struct_size;
    /// Always 0.
    uint32_t reserved;
    /// The key; it ends in the unit if the setting has one.
    const char *key;
    /// The environment variable that overrides the default.
    const char *variable;
    /// The default, in the form that ferry_config_set takes.
    const char *default_value;
    /// The valid values, in words.
    const char *valid;
    /// The effect of the setting, in one sentence.
    const char *description;
} ferry_setting_info;

/// Initializes a ferry_setting_info: its struct_size, and zero in all other fields.
#define FERRY_SETTING_INFO_INIT \
    { (uint32_t)sizeof(ferry_setting_info), 0, NULL, NULL, NULL, NULL, NULL }

/// Creates a configuration from the defaults and the FERRY_* environment variables, which override the
/// defaults. Free it with ferry_config_free.
///
/// FERRY_ERR_INVALID: an environment variable has a bad value; the message names the variable.
ferry_status ferry_config_new(ferry_config **out_config,
                              ferry_error *error);

/// Changes one setting and overrides the environment. Copies both texts.
///
/// FERRY_ERR_INVALID: the key is unknown (the message suggests the nearest known key), or the value is bad
/// (the message says what is valid). The configuration is unchanged.
ferry_status ferry_config_set(ferry_config *config,
                              const char *key,
                              const char *value,
                              ferry_error *error);

/// Reads one setting as text, in the form that ferry_config_set takes; a secret reads as "(hidden)".
///
/// All functions return texts and bytes in this way: *out_length gets the length, without the terminating
/// zero of a text. With a capacity of 0 the call writes only the length, and buffer may be NULL. Otherwise
/// the call writes everything into the buffer, or fails with FERRY_ERR_LIMIT and writes nothing.
ferry_status ferry_config_get(const ferry_config *config,
                              const char *key,
                              char *buffer,
                              size_t capacity,
                              size_t *out_length,
                              ferry_error *error);

/// Lists every setting that this library knows.
///
/// All functions return lists in this way: out_settings has room for `capacity` elements of `element_size`
/// bytes, normally sizeof. The call writes as many elements as fit. *out_count gets the number of elements
/// that exist; if it is above `capacity`, some are missing. With a capacity of 0, out_settings may be NULL.
ferry_status ferry_config_settings(ferry_setting_info *out_settings,
                                   size_t element_size,
                                   size_t capacity,
                                   size_t *out_count,
                                   ferry_error *error);

/// Frees a configuration. NULL does nothing. Engines opened with the configuration keep their own copy.
void ferry_config_free(ferry_config *config);

/* ---- Engines ----------------------------------------------------------------------------------- */

/// An engine registers memory, connects to peers, and moves bytes. All threads may use an engine at the same
/// time; only ferry_engine_free must be alone.
typedef struct ferry_engine ferry_engine;

/// Opens an engine: listens where the configuration says, and starts its threads. End it with
/// ferry_engine_close, then ferry_engine_free.
///
/// `config` is copied; NULL means the defaults and the environment. FERRY_ERR_INVALID: settings contradict
/// each other. FERRY_ERR_SYSTEM: the engine cannot listen, or the system is out of descriptors or threads.
ferry_status ferry_engine_open(const ferry_config *config,
                               ferry_engine **out_engine,
                               ferry_error *error);

/// Closes an engine: refuses new work, makes every transfer final, returns every wait, ends sessions and
/// callbacks. After FERRY_OK neither the engine nor a peer touches registered memory.
///
/// After FERRY_OK every later call returns FERRY_ERR_CLOSED, with two exceptions: ferry_queue_drain first
/// returns the events that are left in its queue, and ferry_engine_close returns FERRY_OK again.
/// A peer that does not take the end of its session delays the call by half a second at most.
/// FERRY_ERR_BUSY: transfers are not final, or a callback has not returned, within the timeout. The engine is still
/// closing, and threads can still wait for transfers; call again. Also FERRY_ERR_BUSY inside a callback. In a forked
/// child the call does nothing and returns FERRY_OK.
ferry_status ferry_engine_close(ferry_engine *engine,
                                uint64_t timeout_ns,
                                ferry_error *error);

/// Frees an engine and the remaining memory of ferry_memory_alloc. NULL does nothing.
///
/// Call it only after ferry_engine_close has returned FERRY_OK, and while no other call uses the engine. If
/// the engine is not closed, this call closes it first, however long that takes. Inside a callback of the
/// engine, and in a forked child, it does nothing, and the engine's memory is never returned.
void ferry_engine_free(ferry_engine *engine);

/// Returns warnings from opening the engine: one sentence on each line, "" if there are none. Such a sentence names a
/// FERRY_* variable of the environment that is no setting, and the setting with the nearest name. Returns texts as
/// ferry_config_get does.
ferry_status ferry_engine_warnings(const ferry_engine *engine,
                                   char *buffer,
                                   size_t capacity,
                                   size_t *out_length,
                                   ferry_error *error);

/// Returns the engine as a peer of itself. The handle takes part in every call that takes a peer, needs no connect and
/// no listener, and is the same at each call. It is UP until the engine is closed; ferry_peer_list does not list it.
///
/// A transfer to oneself moves between two regions of this engine. It needs no access rights, and takes the transport
/// FERRY_TRANSPORT_LOCAL (between devices that copy directly, theirs) whatever `transports` and `transports_allowed`
/// name. FERRY_TRANSFER_CHECKSUM adds nothing, because no byte leaves the process. The regions at both ends are in use
/// until the transfer is final. If the source overlaps the destination, the bytes in the destination are undefined.
/// Notifications come to this engine's own queues. ferry_peer_probe and ferry_peer_fence return at once.
///
/// FERRY_ERR_LIMIT: a thread for device memory cannot be started; the message gives the cause.
ferry_status ferry_engine_own_peer(ferry_engine *engine,
                                   ferry_peer *out_peer,
                                   ferry_error *error);

/// Returns the "host:port" at which peers reach the engine, or "" if it does not listen. Returns texts as
/// ferry_config_get does.
///
/// An engine that listens at any address (0.0.0.0, [::]) reports advertise_address as the host if that is set, else
/// the source address of the default route, else the only interface address besides the loopback. Without any of
/// these, the engine does not open (FERRY_ERR_INVALID).
ferry_status ferry_engine_address(const ferry_engine *engine,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *out_length,
                                  ferry_error *error);

/* ---- Memory ------------------------------------------------------------------------------------ */

/* A peer can touch only registered memory, in the direction that the region grants. */

/// Peers may READ the region.
#define FERRY_ACCESS_REMOTE_READ 1

/// Peers may WRITE the region.
#define FERRY_ACCESS_REMOTE_WRITE 2

/// ferry detects the kind: memory of a device whose library this process has loaded, or host memory.
#define FERRY_MEMORY_AUTO 0

/// Host memory.
#define FERRY_MEMORY_HOST 1

/// Memory of a CUDA device.
#define FERRY_MEMORY_CUDA 2

/// Memory of an Ascend device.
#define FERRY_MEMORY_ASCEND 3

/// Managed memory of CUDA.
#define FERRY_MEMORY_CUDA_MANAGED 4

/// Host memory that CUDA has pinned.
#define FERRY_MEMORY_CUDA_PINNED 5

/// A range of a file or of a block device: ferry_region_register_file.
#define FERRY_MEMORY_FILE 6

/// Options of a region. Zero the struct, set struct_size to sizeof, then set the fields that you need.
typedef struct ferry_region_options {
    /// sizeof(ferry_region_options).
    uint32_t struct_size;
    /// FERRY_ACCESS_* bits; at least one.
    uint32_t access;
    /// FERRY_MEMORY_*.
    uint32_t kind;
    /// Number of the device, for the kinds that have one; otherwise 0.
    int32_t device;
    /// Must be 0.
    uint32_t grant_scope;
    /// Must be 0.
    uint32_t reserved;
    /// Name under which peers find the region: at most 63 bytes, copied. NULL means no name.
    const char *name;
} ferry_region_options;

/// Initializes a ferry_region_options: its struct_size, and zero in all other fields.
#define FERRY_REGION_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_region_options), 0, 0, 0, 0, 0, NULL }

/// Options of allocated memory, as in ferry_region_options.
typedef struct ferry_alloc_options {
    /// sizeof(ferry_alloc_options).
    uint32_t struct_size;
    /// FERRY_ACCESS_* bits; at least one.
    uint32_t access;
    /// FERRY_MEMORY_*.
    uint32_t kind;
    /// Number of the device, for the kinds that have one; otherwise 0.
    int32_t device;
    /// Must be 0.
    uint32_t flags;
    /// Must be 0.
    uint32_t reserved;
    /// Name under which peers find the region: at most 63 bytes, copied. NULL means no name.
    const char *name;
} ferry_alloc_options;

/// Initializes a ferry_alloc_options: its struct_size, and zero in all other fields.
#define FERRY_ALLOC_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_alloc_options), 0, 0, 0, 0, 0, NULL }

/// Registers `length` bytes at `address` and announces the region to every peer. Transfers may run meanwhile.
///
/// `options` NULL means: peers may READ and WRITE, no name, kind FERRY_MEMORY_AUTO. Peers use *out_region as
/// remote_region. ferry borrows the memory until ferry_region_unregister has returned FERRY_OK or the engine
/// is closed; until then it must stay mapped, with the rights that the access needs.
///
/// FERRY_ERR_INVALID: zero length, NULL, overflow, no access, nothing is mapped there, ferry doesn't know the
/// device, or the memory is not of the kind or device in the options. FERRY_ERR_OVERLAP: a registered region
/// overlaps. FERRY_ERR_LIMIT. FERRY_ERR_UNAVAILABLE: the library of the device in the options is missing.
/// FERRY_ERR_NO_MEMORY or FERRY_ERR_SYSTEM: an RDMA device cannot register the memory.
ferry_status ferry_region_register(ferry_engine *engine,
                                   void *address,
                                   size_t length,
                                   const ferry_region_options *options,
                                   ferry_region *out_region,
                                   ferry_error *error);

/// Registers `count` pieces of memory with the same options, all or none, and announces them together.
/// Behaves as ferry_region_register otherwise. out_regions has room for `count` handles, in the same order.
/// ferry_error.request_index is the index of the piece that failed.
ferry_status ferry_region_register_batch(ferry_engine *engine,
                                         void *const *addresses,
                                         const size_t *lengths,
                                         size_t count,
                                         const ferry_region_options *options,
                                         ferry_region *out_regions,
                                         ferry_error *error);

/// Registers `length` bytes of a file or of a block device, from `offset` on, and announces the region to every peer.
/// Behaves as ferry_region_register otherwise; options.kind is FERRY_MEMORY_AUTO or FERRY_MEMORY_FILE.
///
/// *out_address is the address of the first byte, for requests here and of peers. Nothing is mapped there: no memory of
/// a process or a device has such an address. The range of a file may lie beyond its end. A WRITE there extends the
/// file; a READ there fails with FERRY_ERR_SYSTEM and ENODATA. ferry opens the file anew with the rights of `fd`, which
/// the caller may close afterwards.
///
/// FERRY_ERR_INVALID: `fd` is no descriptor, or not of a file or a block device, or open with O_APPEND; zero length,
/// overflow, or a range beyond the end of a block device. FERRY_ERR_ACCESS, with EBADF: `fd` is not open for what the
/// access lets peers do. FERRY_ERR_LIMIT. FERRY_ERR_UNAVAILABLE: the setting file_io asks for io_uring, which the
/// kernel refuses. FERRY_ERR_SYSTEM: the kernel's errno.
ferry_status ferry_region_register_file(ferry_engine *engine,
                                        int32_t fd,
                                        uint64_t offset,
                                        uint64_t length,
                                        const ferry_region_options *options,
                                        uint64_t *out_address,
                                        ferry_region *out_region,
                                        ferry_error *error);

/// Unregisters a region. After FERRY_OK nothing can reach the memory through ferry any more. Transfers that
/// name the region afterwards fail with FERRY_ERR_STALE at peers and FERRY_ERR_NOT_REGISTERED here.
///
/// Waits while the region is in use, and until connected peers have given up its RDMA keys. FERRY_ERR_BUSY with a
/// timeout of 0: the region cannot be unregistered at once, and nothing has changed. FERRY_ERR_BUSY with a longer
/// timeout: the region is still in use, but closed for new work; call again. FERRY_ERR_STALE: the region was
/// unregistered before. Memory of ferry_memory_alloc stays mapped until ferry_memory_free.
ferry_status ferry_region_unregister(ferry_engine *engine,
                                     ferry_region region,
                                     uint64_t timeout_ns,
                                     ferry_error *error);

/// Allocates registered memory: page-aligned, zeroed, in huge pages if the system has some. Processes of the
/// same user on this host map it and copy directly. The call therefore allocates all pages now, which takes
/// about as long as filling them with zeros.
///
/// `options` NULL: host memory that peers may READ and WRITE. Free it with ferry_memory_free; ferry_engine_free
/// unmaps the rest. FERRY_ERR_NO_MEMORY: the machine (MemAvailable) or a control group of the process has less memory
/// left. The call checks this for lengths from 1 MiB on, and again before each 256 MiB of memory that other processes
/// can map. Other programs may take the memory between the check and the allocation; the kernel then ends a process
/// of its choice. FERRY_ERR_INVALID for a length of 0.
ferry_status ferry_memory_alloc(ferry_engine *engine,
                                size_t length,
                                const ferry_alloc_options *options,
                                void **out_address,
                                ferry_region *out_region,
                                ferry_error *error);

/// Unregisters memory of ferry_memory_alloc, unless that was done before, and unmaps it. Waits and fails as
/// ferry_region_unregister does. FERRY_ERR_INVALID: ferry did not allocate the region.
ferry_status ferry_memory_free(ferry_engine *engine,
                               ferry_region region,
                               uint64_t timeout_ns,
                               ferry_error *error);

/* ---- Peers: information ------------------------------------------------------------------------ */

/// The session is being established.
#define FERRY_PEER_CONNECTING 0

/// The session is up.
#define FERRY_PEER_UP 1

/// The session is lost and is being established again; transfers wait.
#define FERRY_PEER_DOWN 2

/// The peer is lost for good: gone, given up, or replaced by a new incarnation. Connect again for a new
/// handle.
#define FERRY_PEER_LOST 3

/// No transport.
#define FERRY_TRANSPORT_NONE 0

/// TCP connections.
#define FERRY_TRANSPORT_TCP 1

/// Copies between processes of the same user on one host.
#define FERRY_TRANSPORT_LOCAL 2

/// InfiniBand or RoCE.
#define FERRY_TRANSPORT_RDMA 3

/// Copies between CUDA devices of one host. Other device memory is staged through host memory; results then
/// name the transport that carried it between the engines.
#define FERRY_TRANSPORT_CUDA 4

/// Copies between Ascend devices of one host, or between hosts with the setting ascend_fabric.
#define FERRY_TRANSPORT_ASCEND 5

/// Information about a peer. The caller sets struct_size before the call.
typedef struct ferry_peer_info {
    /// In: sizeof(ferry_peer_info). Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_PEER_*.
    uint32_t state;
    /// Identity of the engine, drawn when it opens; a restarted engine has another.
    uint8_t engine_id[16];
    /// Number of this start of the engine, drawn when it opens.
    uint64_t incarnation;
    /// Round trip of the last probe in nanoseconds; 0 before the first probe.
    uint64_t round_trip_ns;
    /// Transfers from this engine to the peer that are not final.
    uint64_t transfers_active;
    /// TCP connections that carry data now; 0 until data is first sent over TCP.
    uint32_t lanes;
    /// 1 if the peer has proven that it is on this host, by its user or over the same-host path, else 0.
    uint32_t same_host;
    /// "host:port" at which the peer can be reached, terminated; "" if the peer doesn't listen.
    char address[264];
} ferry_peer_info;

/// Initializes a ferry_peer_info: its struct_size, and zero in all other fields.
#define FERRY_PEER_INFO_INIT \
    { (uint32_t)sizeof(ferry_peer_info), 0, {0}, 0, 0, 0, 0, 0, {0} }

/// A region that a peer registered.
typedef struct ferry_region_info {
    /// In, for ferry_peer_region: sizeof(ferry_region_info). Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_ACCESS_* bits.
    uint32_t access;
    /// The value for ferry_request.remote_region.
    ferry_region region;
    /// Address in the peer's process.
    uint64_t address;
    /// Length in bytes.
    uint64_t length;
    /// Name, terminated; "" if the region has none.
    char name[64];
    /// FERRY_MEMORY_* of the memory at the peer.
    uint32_t kind;
    /// Number of the device in the peer's process, for the kinds that have one; otherwise 0.
    int32_t device;
    /// Rises with each region that the peer registers: of two regions the one with the lower number came first.
    uint64_t order;
} ferry_region_info;

/// Initializes a ferry_region_info: its struct_size, and zero in all other fields.
#define FERRY_REGION_INFO_INIT \
    { (uint32_t)sizeof(ferry_region_info), 0, 0, 0, 0, {0}, 0, 0, 0 }

/// One path to a peer.
typedef struct ferry_path_info {
    /// Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_TRANSPORT_*.
    uint32_t transport;
    /// 1 if transfers take this path now, else 0.
    uint32_t chosen;
    /// Always 0.
    uint32_t reserved;
    /// Why the path is or is not chosen, for people; terminated, cut if it is too long.
    char why[240];
} ferry_path_info;

/// Initializes a ferry_path_info: its struct_size, and zero in all other fields.
#define FERRY_PATH_INFO_INIT \
    { (uint32_t)sizeof(ferry_path_info), 0, 0, 0, {0} }

/// Returns information about a peer. FERRY_ERR_STALE if the engine has forgotten the peer.
ferry_status ferry_peer_get_info(ferry_engine *engine,
                                 ferry_peer peer,
                                 ferry_peer_info *out_info,
                                 ferry_error *error);

/// Lists the regions that a peer has announced, in order of address. After connect the list has all regions
/// of the peer; later changes follow shortly after they happen. Returns lists as ferry_config_settings does.
ferry_status ferry_peer_regions(ferry_engine *engine,
                                ferry_peer peer,
                                ferry_region_info *out_regions,
                                size_t element_size,
                                size_t capacity,
                                size_t *out_count,
                                ferry_error *error);

/// Returns the region of a peer that has this name; of several, the region that was registered last.
/// FERRY_ERR_NOT_REGISTERED: the peer has announced no region of this name. The caller sets struct_size.
ferry_status ferry_peer_region(ferry_engine *engine,
                               ferry_peer peer,
                               const char *name,
                               ferry_region_info *out_region,
                               ferry_error *error);

/// Lists every path to a peer, chosen or not, and why. Returns lists as ferry_config_settings does.
ferry_status ferry_peer_paths(ferry_engine *engine,
                              ferry_peer peer,
                              ferry_path_info *out_paths,
                              size_t element_size,
                              size_t capacity,
                              size_t *out_count,
                              ferry_error *error);

/* ---- Peers ------------------------------------------------------------------------------------- */

/* A peer has one handle, whichever side connected. */

/// Connects to the engine at `address` ("host:port") and waits until transfers can be submitted.
///
/// If the two engines are connected already, whichever side connected, the call returns the existing handle.
/// A restarted peer has a new handle. The attempt ends after the setting connect_timeout_ms at the latest.
///
/// FERRY_ERR_UNREACHABLE: nothing answers, nobody knows the name, or the connection is closed at once.
/// FERRY_ERR_TIMEOUT: nothing answers in time, neither the peer nor a name server; the message names the bound.
/// FERRY_ERR_NOT_FERRY, FERRY_ERR_VERSION, FERRY_ERR_REFUSED. FERRY_ERR_INVALID: `address` is no "host:port"; the
/// message says what to write. FERRY_ERR_BUSY inside a callback.
ferry_status ferry_peer_connect(ferry_engine *engine,
                                const char *address,
                                uint64_t timeout_ns,
                                ferry_peer *out_peer,
                                ferry_error *error);

/// Starts to connect, without waiting, also for name servers. `queue`, which must take FERRY_QUEUE_PEERS, gets one
/// FERRY_EVENT_PEER_CONNECTED with `user_data` and the outcome. A callback may make this call.
///
/// The call reserves room in the queue, and returns FERRY_ERR_LIMIT if the queue is full. A call that fails
/// reports nothing to the queue.
ferry_status ferry_peer_connect_async(ferry_engine *engine,
                                      const char *address,
                                      uint64_t timeout_ns,
                                      ferry_queue queue,
                                      uint64_t user_data,
                                      ferry_error *error);

/// Lists the handles of all known peers, in no order; lost peers stay for a while. Returns lists as
/// ferry_config_settings does, without element_size.
ferry_status ferry_peer_list(ferry_engine *engine,
                             ferry_peer *out_peers,
                             size_t capacity,
                             size_t *out_count,
                             ferry_error *error);

/// Sends a probe to a peer and waits for the answer. *out_round_trip_ns (may be NULL) gets the round trip.
///
/// FERRY_ERR_TIMEOUT: no answer came in time. FERRY_ERR_PEER_LOST, or the cause of the loss: the peer is
/// lost. FERRY_ERR_BUSY inside a callback.
ferry_status ferry_peer_probe(ferry_engine *engine,
                              ferry_peer peer,
                              uint64_t timeout_ns,
                              uint64_t *out_round_trip_ns,
                              ferry_error *error);

/// Fences a peer: returns when nothing of the peer can land here any more. The peer's transfers to this
/// engine are cut off. This incarnation of the peer is refused until this engine connects to it.
///
/// A decode worker calls this before it reuses the blocks of a prefill worker that has died. The call closes
/// this side's connections and so does not wait for a silent peer. FERRY_ERR_TIMEOUT: not yet; call again.
/// FERRY_ERR_BUSY inside a callback, unless the timeout is 0.
ferry_status ferry_peer_fence(ferry_engine *engine,
                              ferry_peer peer,
                              uint64_t timeout_ns,
                              ferry_error *error);

/// Closes the session with a peer. Transfers to the peer fail with FERRY_ERR_CLOSED; when they are final, the call
/// returns FERRY_OK. Over TCP, transfers in progress become final only after lease_ms: wait for them or cancel them
/// first. The handle then names a lost peer. Calls with it return FERRY_ERR_CLOSED, and FERRY_ERR_STALE after 1,024
/// later peers were lost. FERRY_ERR_BUSY: the timeout has passed and the peer is still closing; call again. The call
/// also returns FERRY_ERR_BUSY inside a callback, unless the timeout is 0.
ferry_status ferry_peer_close(ferry_engine *engine,
                              ferry_peer peer,
                              uint64_t timeout_ns,
                              ferry_error *error);

/* ---- Descriptors ------------------------------------------------------------------------------- */

/* Engines find each other by descriptors, which programs pass around out of band. */

/// Writes this engine's descriptor: its address and identity. A descriptor has at most 300 bytes, a version
/// and a checksum. It is a hint, neither a secret nor a permission. Returns bytes as ferry_config_get does.
/// FERRY_ERR_UNAVAILABLE if the engine doesn't listen.
ferry_status ferry_descriptor_export(ferry_engine *engine,
                                     void *buffer,
                                     size_t capacity,
                                     size_t *out_length,
                                     ferry_error *error);

/// Connects to the engine that a descriptor names. Behaves as ferry_peer_connect otherwise.
///
/// FERRY_ERR_INVALID: the bytes are no descriptor. FERRY_ERR_CORRUPT: the descriptor is damaged.
/// FERRY_ERR_VERSION: the descriptor has another version. FERRY_ERR_STALE: another engine, or another
/// incarnation of the engine, answers at the address.
ferry_status ferry_descriptor_import(ferry_engine *engine,
                                     const void *descriptor,
                                     size_t length,
                                     uint64_t timeout_ns,
                                     ferry_peer *out_peer,
                                     ferry_error *error);

/* ---- Transfers: options ------------------------------------------------------------------------ */

/// Post each request as it is, in the caller's order; do not merge neighbours.
#define FERRY_TRANSFER_NO_COALESCE 1

/// Apply no byte before the earlier ORDERED transfers to the peer are done. If one that is not final yet
/// fails, this transfer fails with FERRY_ERR_CANCELLED and moves nothing.
#define FERRY_TRANSFER_ORDERED 2

/// Verify the payload end to end; a mismatch is FERRY_ERR_CORRUPT. Such transfers use TCP.
#define FERRY_TRANSFER_CHECKSUM 4

/// A WRITE may be done when the peer's device has acknowledged the data, before the data is visible to the
/// peer's CPU. Only RDMA makes this difference; the flag changes nothing on other transports.
#define FERRY_TRANSFER_ACKED_ONLY 8

/// The transfer is done when fdatasync has returned for the files that it has written (FERRY_MEMORY_FILE): at the
/// target for a WRITE, here for a READ. The flag changes nothing for other memory.
#define FERRY_TRANSFER_DURABLE 16

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

/// Start without waiting.
#define FERRY_START_NOW 0

/// Start after a recorded CUDA event: options.event is the CUevent or cudaEvent_t. The event must exist until the
/// transfer is final. While it waits, the transfer keeps its place among ORDERED transfers and notifications.
/// If the work before the event fails, the transfer fails.
#define FERRY_START_AFTER_CUDA_EVENT 1

/// Start after an event of AscendCL: options.event is the aclrtEvent, which must exist until the transfer is final.
#define FERRY_START_AFTER_ACL_EVENT 2

/// Start after all work that a CUDA stream has been given so far: options.event is the CUstream or
/// cudaStream_t; 0 is the default stream. The stream must exist until the call returns, and its context until the
/// transfer is final.
#define FERRY_START_AFTER_CUDA_STREAM 3

/// Start after all work that a stream of AscendCL has been given so far: options.event is the aclrtStream.
/// The stream must exist until the call returns, and its context until the transfer is final. The context must be
/// current in the calling thread; otherwise the call returns FERRY_ERR_UNSUPPORTED.
#define FERRY_START_AFTER_ACL_STREAM 4

/// How many channels of notifications there are.
#define FERRY_CHANNELS_MAX 16

/// Options of a transfer. Zero the struct, set struct_size to sizeof, then set the fields that you need. NULL
/// means all defaults.
typedef struct ferry_transfer_options {
    /// sizeof(ferry_transfer_options).
    uint32_t struct_size;
    /// FERRY_TRANSFER_* bits.
    uint32_t flags;
    /// Deadline in nanoseconds from now; 0 means the setting deadline_ms, FERRY_FOREVER no deadline. A
    /// transfer that is not done by then is stopped, and is final within the setting lease_ms after that.
    uint64_t deadline_ns;
    /// Returned in the result and the event.
    uint64_t user_data;
    /// The queue that gets a FERRY_EVENT_TRANSFER when the transfer is final; it must take
    /// FERRY_QUEUE_TRANSFERS. Submit reserves room in it. 0 means no queue: wait for the transfer.
    ferry_queue queue;
    /// Bytes that the peer's application gets after the data is visible there, in order with other
    /// notifications to the peer. Submit copies them. NULL means no notification.
    const void *notify;
    /// At most FERRY_NOTIFY_BYTES_MAX. 0 with a notify that isn't NULL is an empty notification.
    size_t notify_length;
    /// FERRY_ALLOW_* bits. If no allowed transport is usable, the transfer fails rather than falls back. 0
    /// allows every transport that the engine may use.
    uint64_t transports_allowed;
    /// Among transfers of about the same size, a higher priority goes first.
    uint32_t priority;
    /// FERRY_START_*.
    uint32_t event_kind;
    /// The event or stream to start after; must be 0 with FERRY_START_NOW.
    uint64_t event;
    /// The channel of the notification: 0 to FERRY_CHANNELS_MAX - 1. A queue that takes notifications names its channel
    /// (ferry_queue_create_channel). Channels keep the notifications of libraries that share an engine apart. Each has
    /// an order and credits of its own.
    uint32_t channel;
    /// 0.
    uint32_t reserved;
} ferry_transfer_options;

/// Initializes a ferry_transfer_options: its struct_size, and zero in all other fields.
#define FERRY_TRANSFER_OPTIONS_INIT \
    { (uint32_t)sizeof(ferry_transfer_options), 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0, 0 }

/* ---- Transfers: results ------------------------------------------------------------------------ */

/// Every byte is at its destination and visible there.
#define FERRY_STATE_DONE 3

/// The transfer failed; status has the cause.
#define FERRY_STATE_FAILED 4

/// The transfer was cancelled.
#define FERRY_STATE_CANCELLED 5

/// The transfer passed its deadline.
#define FERRY_STATE_TIMED_OUT 6

/// The target has confirmed that nothing of the transfer can touch memory any more.
#define FERRY_FENCE_CONFIRMED 1

/// The peer's process is known to be gone.
#define FERRY_FENCE_DEAD 2

/// The target's lease on the data has ended. A transfer that is DONE has this fence if ferry sent a part of it again
/// after a lease had ended: the target reports late bytes of the first sending by FERRY_EVENT_LATE_APPLY.
#define FERRY_FENCE_LEASE 3

/// The transfer had no notification.
#define FERRY_NOTIFICATION_NONE 0

/// The peer has the notification.
#define FERRY_NOTIFICATION_DELIVERED 1

/// The peer doesn't have the notification, and never will.
#define FERRY_NOTIFICATION_NOT_SENT 2

/// The notification was given up, or the peer was lost, before the peer said whether it has the notification.
#define FERRY_NOTIFICATION_UNKNOWN 3

/// ferry_transfer_results lists every request.
#define FERRY_RESULTS_ALL 0

/// ferry_transfer_results lists the requests that are not FERRY_OK.
#define FERRY_RESULTS_FAILED 1

/// How one request of a final transfer ended.
typedef struct ferry_request_result {
    /// Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_OK, or the cause.
    ferry_status status;
    /// Index in the caller's list; for blocks, layer * pair_count + pair.
    uint64_t request_index;
    /// Bytes of the request confirmed to be at their destination.
    uint64_t bytes_confirmed;
    /// errno of the failure, or 0.
    int32_t os_error;
    /// Code of the device library, or 0.
    int32_t vendor_error;
    /// FERRY_TRANSPORT_* that carried the request.
    uint32_t transport;
    /// Always 0.
    uint32_t reserved;
} ferry_request_result;

/// Initializes a ferry_request_result: its struct_size, and zero in all other fields.
#define FERRY_REQUEST_RESULT_INIT \
    { (uint32_t)sizeof(ferry_request_result), 0, 0, 0, 0, 0, 0, 0 }

/// How a transfer ended. The caller sets struct_size before the call. Times are CLOCK_MONOTONIC, in
/// nanoseconds.
typedef struct ferry_result {
    /// In: sizeof(ferry_result). Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_STATE_*.
    uint32_t state;
    /// FERRY_OK when DONE, else the cause. FERRY_ERR_PARTIAL if some requests failed and others did not,
    /// unless the cause is FERRY_ERR_TIMEOUT or FERRY_ERR_CANCELLED.
    ferry_status status;
    /// FERRY_FENCE_*: why the memory is the caller's again.
    uint32_t fence;
    /// FERRY_NOTIFICATION_*.
    uint32_t notification;
    /// FERRY_TRANSPORT_* that carried the transfer.
    uint32_t transport;
    /// errno of the failure, or 0.
    int32_t os_error;
    /// Always 0.
    uint32_t reserved;
    /// The value from ferry_transfer_options.
    uint64_t user_data;
    /// Bytes confirmed to be at their destination. All other bytes of the target memory are undefined.
    uint64_t bytes_confirmed;
    /// Requests that are not FERRY_OK.
    uint64_t requests_failed;
    /// Requests submitted.
    uint64_t requests_in;
    /// Slices that ferry made of the requests by merging and cutting.
    uint64_t slices_out;
    /// When the transfer was submitted.
    uint64_t submitted_ns;
    /// When the first slice was posted; 0 if no slice was.
    uint64_t started_ns;
    /// When the transfer became final.
    uint64_t finished_ns;
} ferry_result;

/// Initializes a ferry_result: its struct_size, and zero in all other fields.
#define FERRY_RESULT_INIT \
    { (uint32_t)sizeof(ferry_result), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/// Lists the outcome of each request of a final transfer, in the caller's order; `which` is FERRY_RESULTS_*.
/// The call can be repeated until the transfer is released. Returns FERRY_PENDING or FERRY_DRAINING, and
/// writes nothing, if the transfer is not final yet. Returns lists as ferry_config_settings does.
ferry_status ferry_transfer_results(ferry_engine *engine,
                                    ferry_transfer transfer,
                                    uint32_t which,
                                    ferry_request_result *out_results,
                                    size_t element_size,
                                    size_t capacity,
                                    size_t *out_count,
                                    ferry_error *error);

/* ---- Transfers --------------------------------------------------------------------------------- */

/* A transfer reaches exactly one final state, and only when nothing can touch its memory any more,
   on either side. Deadline and cancel are requests; the final state is the promise. */

/// Moves bytes from the peer's memory into local memory.
#define FERRY_OP_READ 1

/// Moves bytes from local memory into the peer's memory.
#define FERRY_OP_WRITE 2

/// One range of a transfer. The layout is frozen at 32 bytes, so arrays of it take no element_size.
typedef struct ferry_request {
    /// Address in this process.
    uint64_t local;
    /// Address in the peer's process.
    uint64_t remote;
    /// Length in bytes; not 0.
    uint64_t length;
    /// The peer's region. If that region has been unregistered, the request fails with FERRY_ERR_STALE, even
    /// if another region is registered there now. 0 means the region that is registered there at that moment.
    ferry_region remote_region;
} ferry_request;

/// Starts a transfer of all requests. A call that fails has done nothing.
///
/// ferry borrows no argument after the call, but the memory that the requests name belongs to the transfer
/// until the transfer is final. If some requests fail, the transfer fails with FERRY_ERR_PARTIAL, and
/// ferry_transfer_results has the outcome of each. Transfers to one peer are unordered unless they are
/// ORDERED. Ranges that overlap in flight have no defined order, but nothing outside them is touched. Release
/// the transfer when it is final. A callback may make this call.
///
/// FERRY_ERR_INVALID, FERRY_ERR_NOT_REGISTERED (local memory), FERRY_ERR_ACCESS, FERRY_ERR_STALE,
/// FERRY_ERR_LIMIT (no room in the queue, too many transfers or requests), FERRY_ERR_UNAVAILABLE
/// (transports_allowed), FERRY_ERR_PEER_LOST; ferry_error.request_index names the request that failed.
ferry_status ferry_transfer_submit(ferry_engine *engine,
                                   ferry_peer peer,
                                   uint32_t op,
                                   const ferry_request *requests,
                                   size_t count,
                                   const ferry_transfer_options *options,
                                   ferry_transfer *out_transfer,
                                   ferry_error *error);

/// Waits until a transfer is final and returns its status: FERRY_OK if it is done.
///
/// *out_result (may be NULL) is written exactly when the transfer is final. FERRY_PENDING or FERRY_DRAINING:
/// the timeout has passed, and the transfer goes on. If out_result was written, a negative status is the
/// transfer's, and ferry_error has the first failed request. Otherwise a negative status is the call's:
/// FERRY_ERR_STALE or FERRY_ERR_INVALID for the handle, FERRY_ERR_BUSY for a wait inside a callback.
ferry_status ferry_transfer_wait(ferry_engine *engine,
                                 ferry_transfer transfer,
                                 uint64_t timeout_ns,
                                 ferry_result *out_result,
                                 ferry_error *error);

/// Waits until one of several transfers is final; *out_index gets its index in the list. Call
/// ferry_transfer_wait for the transfer's status. FERRY_PENDING: the timeout has passed. FERRY_ERR_BUSY
/// inside a callback, unless a transfer is final or the timeout is 0.
ferry_status ferry_transfer_wait_any(ferry_engine *engine,
                                     const ferry_transfer *transfers,
                                     size_t count,
                                     uint64_t timeout_ns,
                                     size_t *out_index,
                                     ferry_error *error);

/// Waits until every transfer of the list is final, and returns FERRY_OK if each is done. Otherwise returns the
/// status of the first in the list that is not done, fills ferry_error as ferry_transfer_wait does for that
/// transfer, and sets *out_index (may be NULL) to its index.
///
/// FERRY_PENDING: the timeout has passed, and *out_index is the index of the first transfer that is not final; all go
/// on. If the error is the call's own, *out_index is SIZE_MAX: FERRY_ERR_STALE or FERRY_ERR_INVALID for a handle,
/// FERRY_ERR_INVALID for an empty list, FERRY_ERR_BUSY inside a callback unless all are final or the timeout is 0.
ferry_status ferry_transfer_wait_all(ferry_engine *engine,
                                     const ferry_transfer *transfers,
                                     size_t count,
                                     uint64_t timeout_ns,
                                     size_t *out_index,
                                     ferry_error *error);

/// Returns the progress of a transfer: the bytes confirmed to be at their destination, and the bytes of all
/// requests.
///
/// *out_bytes_confirmed never decreases, never exceeds *out_bytes_total, and equals the result's
/// bytes_confirmed once the transfer is final. It grows by the size of one confirmation, at most 2 MiB.
/// Returns FERRY_OK in every state of the transfer. Never waits.
ferry_status ferry_transfer_progress(ferry_engine *engine,
                                     ferry_transfer transfer,
                                     uint64_t *out_bytes_confirmed,
                                     uint64_t *out_bytes_total,
                                     ferry_error *error);

/// Cancels a transfer. FERRY_OK means that the request was made, also for a final transfer; the final state
/// has the outcome. Never waits.
ferry_status ferry_transfer_cancel(ferry_engine *engine,
                                   ferry_transfer transfer,
                                   ferry_error *error);

/// Releases a final transfer and its results; the handle is stale afterwards. FERRY_ERR_BUSY before the
/// transfer is final.
ferry_status ferry_transfer_release(ferry_engine *engine,
                                    ferry_transfer transfer,
                                    ferry_error *error);

/// Makes a stream of the caller wait for a transfer: work given to the stream after this call begins when the
/// transfer is final, however it ended. The transfer's result has the outcome. `kind` is FERRY_MEMORY_CUDA
/// and `stream` is the CUstream or cudaStream_t, 0 the default stream. The call itself doesn't wait.
///
/// FERRY_ERR_UNSUPPORTED: FERRY_MEMORY_ASCEND, whose streams cannot wait for the host. FERRY_ERR_UNAVAILABLE:
/// the device's library is missing. FERRY_ERR_INVALID: another kind, or a stream that is being captured.
ferry_status ferry_transfer_stream_wait(ferry_engine *engine,
                                        ferry_transfer transfer,
                                        uint64_t stream,
                                        uint32_t kind,
                                        ferry_error *error);

/// Writes in one call: submits a WRITE, waits until it is final, releases it, and returns its status.
/// *out_result (may be NULL) is written exactly when a transfer took place. options.queue must be 0.
/// FERRY_ERR_BUSY inside a callback, with nothing done.
ferry_status ferry_write(ferry_engine *engine,
                         ferry_peer peer,
                         const ferry_request *requests,
                         size_t count,
                         const ferry_transfer_options *options,
                         ferry_result *out_result,
                         ferry_error *error);

/// Reads in one call: submits a READ. Behaves as ferry_write otherwise.
ferry_status ferry_read(ferry_engine *engine,
                        ferry_peer peer,
                        const ferry_request *requests,
                        size_t count,
                        const ferry_transfer_options *options,
                        ferry_result *out_result,
                        ferry_error *error);

/// Does as ferry_write or ferry_read, but waits no longer than `timeout_ns`, for programs whose waits may have to
/// end early. *out_transfer is 0 if the call has released the transfer, or made none.
///
/// FERRY_PENDING or FERRY_DRAINING: the timeout has passed, and the transfer *out_transfer goes on. The memory that
/// the requests name belongs to the transfer; wait for the transfer and release it. FERRY_ERR_BUSY inside a
/// callback, with nothing done, unless the timeout is 0.
ferry_status ferry_transfer_run(ferry_engine *engine,
                                ferry_peer peer,
                                uint32_t op,
                                const ferry_request *requests,
                                size_t count,
                                const ferry_transfer_options *options,
                                uint64_t timeout_ns,
                                ferry_transfer *out_transfer,
                                ferry_result *out_result,
                                ferry_error *error);

/// Completes a WRITE or READ at once if the calling thread can do so without waiting: with one copy, for one
/// request of at most the setting express_bytes_max, to or from a peer on this host. FERRY_OK: the transfer
/// is done, and *out_result (may be NULL) is written. FERRY_PENDING: nothing was done; submit the transfer.
/// options.queue must be 0. A callback may make this call.
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

/// Pairs of blocks, the same in every layer of a cache. ferry makes one request for each layer l and pair i:
///
///     local  = local_base[l]  + local_blocks[i]  * local_stride[l]
///     remote = remote_base[l] + remote_blocks[i] * remote_stride[l]
///     length = block_bytes[l]
///
/// with the index l * pair_count + i. ferry merges neighbours: local ids 5 6 7 12 13 with remote ids 2 3 4 8
/// 9 become two slices per layer if the strides equal block_bytes. Zero the struct, set struct_size to
/// sizeof, then set the other fields. ferry borrows nothing after the call.
typedef struct ferry_blocks {
    /// sizeof(ferry_blocks).
    uint32_t struct_size;
    /// Size of one block id: 4 for int32_t, 8 for int64_t.
    uint32_t id_bytes;
    /// Length of the next six arrays.
    size_t layer_count;
    /// Address of block 0 in this process, for each layer.
    const uint64_t *local_base;
    /// Address of block 0 in the peer's process, for each layer.
    const uint64_t *remote_base;
    /// Bytes from one local block to the next; at least block_bytes.
    const uint64_t *local_stride;
    /// Bytes from one block of the peer to the next; at least block_bytes.
    const uint64_t *remote_stride;
    /// Bytes of one block; not 0.
    const uint64_t *block_bytes;
    /// ferry_request.remote_region for each layer. NULL means 0 for every layer.
    const ferry_region *remote_region;
    /// Length of the two lists of ids.
    size_t pair_count;
    /// Ids of the local blocks.
    const void *local_blocks;
    /// Ids of the peer's blocks, paired with local_blocks.
    const void *remote_blocks;
} ferry_blocks;

/// Initializes a ferry_blocks: its struct_size, and zero in all other fields.
#define FERRY_BLOCKS_INIT \
    { (uint32_t)sizeof(ferry_blocks), 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL }

/// Starts a transfer of blocks. Behaves as ferry_transfer_submit otherwise.
ferry_status ferry_transfer_submit_blocks(ferry_engine *engine,
                                          ferry_peer peer,
                                          uint32_t op,
                                          const ferry_blocks *blocks,
                                          const ferry_transfer_options *options,
                                          ferry_transfer *out_transfer,
                                          ferry_error *error);

/* ---- Transfers of layers of equal shape -------------------------------------------------------- */

/// Pairs of blocks in layers of equal shape, one layer behind the other at equal distances, as in a cache that is one
/// tensor on each side. ferry makes one request for each l of layer_count layers, from first_layer on, and each pair i:
///
///     local  = local_base  + (first_layer + l) * local_layer_stride  + local_blocks[i]  * local_stride
///     remote = remote_base + (first_layer + l) * remote_layer_stride + remote_blocks[i] * remote_stride
///     length = block_bytes
///
/// with the index l * pair_count + i. Zero the struct, set struct_size to sizeof, then set the other fields. ferry
/// borrows nothing after the call.
typedef struct ferry_uniform_blocks {
    /// sizeof(ferry_uniform_blocks).
    uint32_t struct_size;
    /// Size of one block id: 4 for int32_t, 8 for int64_t. Not looked at without lists of ids.
    uint32_t id_bytes;
    /// Number of the first layer.
    size_t first_layer;
    /// How many layers; not 0.
    size_t layer_count;
    /// Address of block 0 of layer 0 in this process.
    uint64_t local_base;
    /// Address of block 0 of layer 0 in the peer's process.
    uint64_t remote_base;
    /// Bytes from one local layer to the next.
    uint64_t local_layer_stride;
    /// Bytes from one layer of the peer to the next.
    uint64_t remote_layer_stride;
    /// Bytes from one local block to the next, at least block_bytes; 0 means block_bytes.
    uint64_t local_stride;
    /// Bytes from one block of the peer to the next, at least block_bytes; 0 means block_bytes.
    uint64_t remote_stride;
    /// Bytes of one block; not 0.
    uint64_t block_bytes;
    /// ferry_request.remote_region of all requests.
    ferry_region remote_region;
    /// How many pairs of blocks; not 0.
    size_t pair_count;
    /// Ids of the local blocks. NULL means 0 to pair_count - 1.
    const void *local_blocks;
    /// Ids of the peer's blocks, paired with local_blocks. NULL means 0 to pair_count - 1.
    const void *remote_blocks;
} ferry_uniform_blocks;

/// Initializes a ferry_uniform_blocks: its struct_size, and zero in all other fields.
#define FERRY_UNIFORM_BLOCKS_INIT \
    { (uint32_t)sizeof(ferry_uniform_blocks), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL }

/// Starts a transfer of blocks in layers of equal shape. Behaves as ferry_transfer_submit otherwise.
ferry_status ferry_transfer_submit_uniform(ferry_engine *engine,
                                           ferry_peer peer,
                                           uint32_t op,
                                           const ferry_uniform_blocks *layers,
                                           const ferry_transfer_options *options,
                                           ferry_transfer *out_transfer,
                                           ferry_error *error);

/* ---- Notifications ----------------------------------------------------------------------------- */

/// Length of the longest notification in bytes.
#define FERRY_NOTIFY_BYTES_MAX 16384

/// Sends bytes to the peer's application, in order with the notifications of transfers to the peer. Returns
/// when the peer has taken them in. The peer gets them once, as FERRY_EVENT_NOTIFICATION.
///
/// `deadline_ns` is counted from now; 0 means the setting deadline_ms, FERRY_FOREVER no deadline.
/// FERRY_ERR_TIMEOUT: the deadline has passed, for example because the peer's application does not drain its
/// notifications; then the message counts those that wait there. A peer that does not answer may have taken them in, or
/// may do so later. FERRY_ERR_LIMIT above FERRY_NOTIFY_BYTES_MAX. FERRY_ERR_BUSY inside a callback.
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

/// A session with the peer is established; either side may have connected. A queue that takes
/// FERRY_QUEUE_PEER_STATES gets the event again when the peer's connection stands again.
#define FERRY_EVENT_PEER_UP 3

/// The peer is lost, and none of its transfers can land here any more: status and os_error are set. If the
/// reason is known, data has a sentence: the failed operation, the addresses, the system's text for errno.
/// UTF-8, not terminated.
#define FERRY_EVENT_PEER_LOST 4

/// Bytes of a peer were applied here after their lease had ended, because this process or the peer was
/// suspended in the middle: region, address and length are set. The contents of that memory are undefined. If
/// more bytes of a region are late before the event is drained, one event names the range that spans all of them.
#define FERRY_EVENT_LATE_APPLY 5

/// A ferry_peer_connect_async has ended: user_data and status are set. If status is FERRY_OK, peer is set.
/// Otherwise os_error is set, and data has the sentence that ferry_peer_connect would have put into its
/// ferry_error. UTF-8, not terminated.
#define FERRY_EVENT_PEER_CONNECTED 6

/// The connection to the peer is lost: status and os_error are set, and data has a sentence that says why. UTF-8,
/// not terminated. ferry connects again, and what was submitted waits; FERRY_EVENT_PEER_UP follows, or
/// FERRY_EVENT_PEER_LOST. If the state changes again before the event is drained, the newest state is told.
#define FERRY_EVENT_PEER_DOWN 7

/// One event. Fields that the kind doesn't set are 0.
typedef struct ferry_event {
    /// Out: how many bytes were written.
    uint32_t struct_size;
    /// FERRY_EVENT_*; a program should ignore unknown kinds.
    uint32_t kind;
    /// The peer of the event.
    ferry_peer peer;
    /// The transfer, for FERRY_EVENT_TRANSFER.
    ferry_transfer transfer;
    /// The value from ferry_transfer_options or from ferry_peer_connect_async.
    uint64_t user_data;
    /// How the transfer or connect ended, or why the peer is lost or down.
    ferry_status status;
    /// errno of the operating system behind a peer that is lost or down, or a failed connect, or 0.
    int32_t os_error;
    /// The bytes of a notification, or the sentence of FERRY_EVENT_PEER_LOST, of FERRY_EVENT_PEER_DOWN or of a
    /// failed FERRY_EVENT_PEER_CONNECTED; NULL if empty. The caller owns the data of a drained event until
    /// ferry_event_release. In a callback ferry owns the data, and it is valid until the callback returns.
    const void *data;
    /// Length of data in bytes.
    size_t data_length;
    /// The region of this engine, for FERRY_EVENT_LATE_APPLY.
    ferry_region region;
    /// Where the late bytes begin.
    uint64_t address;
    /// How many late bytes there may be.
    uint64_t length;
    /// The channel of a notification.
    uint32_t channel;
    /// 0.
    uint32_t reserved;
} ferry_event;

/// Initializes a ferry_event: its struct_size, and zero in all other fields.
#define FERRY_EVENT_INIT \
    { (uint32_t)sizeof(ferry_event), 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0, 0 }

/// The function that ferry calls for each event of a queue, on its callback thread; see ferry_queue_callback.
typedef void (*ferry_callback)(void *context, const struct ferry_event *event);

/// Frees the data of a drained event and sets it to NULL. FERRY_EVENT_NOTIFICATION, FERRY_EVENT_PEER_LOST,
/// FERRY_EVENT_PEER_DOWN and a failed FERRY_EVENT_PEER_CONNECTED have data. The call does nothing for other
/// events, for NULL, and for the same struct a second time. Release only one copy of an event. Any
/// thread; also after the queue or engine is gone.
void ferry_event_release(ferry_event *event);

/* ---- Queues ------------------------------------------------------------------------------------ */

/* Each event goes to one queue, and is never taken from the reader of another queue. */

/// Transfers that were submitted with this queue.
#define FERRY_QUEUE_TRANSFERS 1

/// Notifications of all peers on one channel; at most one queue of an engine takes those of a channel.
#define FERRY_QUEUE_NOTIFICATIONS 2

/// Peers that come up or are lost, late applies, and the outcome of ferry_peer_connect_async.
#define FERRY_QUEUE_PEERS 4

/// Connections of known peers that go down (FERRY_EVENT_PEER_DOWN), and stand again (FERRY_EVENT_PEER_UP).
#define FERRY_QUEUE_PEER_STATES 8

/// Creates a queue for the kinds of events in `what`, FERRY_QUEUE_* bits.
///
/// `capacity`, 1 to 1048576, bounds the transfers and connects that are in progress or wait to be drained.
/// Submit reserves room and fails with FERRY_ERR_LIMIT when the queue is full, so no event is lost.
/// Notifications are bounded by the credit of their senders. When several peer events of the same kind are about
/// one peer, the queue keeps the newest. A queue that takes notifications starts with those that came while no
/// queue took them.
///
/// Its notifications are those of channel 0. FERRY_ERR_BUSY: another queue takes them. FERRY_ERR_LIMIT above 4096
/// queues. FERRY_ERR_SYSTEM: the system is out of descriptors.
ferry_status ferry_queue_create(ferry_engine *engine,
                                uint32_t what,
                                size_t capacity,
                                ferry_queue *out_queue,
                                ferry_error *error);

/// Creates a queue as ferry_queue_create does, which takes the notifications of `channel` instead of those of channel
/// 0. `channel` is 0 to FERRY_CHANNELS_MAX - 1. FERRY_ERR_BUSY: another queue takes the notifications of this
/// channel.
ferry_status ferry_queue_create_channel(ferry_engine *engine,
                                        uint32_t what,
                                        size_t capacity,
                                        uint32_t channel,
                                        ferry_queue *out_queue,
                                        ferry_error *error);

/// Returns a descriptor for poll, epoll or an event loop. It is readable when ferry_queue_drain has events, and when
/// the engine has been closed or is broken.
///
/// ferry owns the descriptor: don't read, write or close it. It becomes readable with the first event after a
/// drain that returned fewer events than it had room for. So poll, drain until a drain returns fewer, and
/// poll again. The descriptor is valid until the queue is destroyed or the engine freed.
ferry_status ferry_queue_fd(ferry_engine *engine,
                            ferry_queue queue,
                            int *out_fd,
                            ferry_error *error);

/// Takes up to `capacity` (not 0) events, oldest first; *out_count gets their number. Never waits.
///
/// Fewer than `capacity` events mean that the queue was empty and its eventfd is armed. Elements of
/// out_events are `element_size` bytes apart, normally sizeof(ferry_event). Release the data of each drained
/// event with ferry_event_release. Several threads may drain one queue; each event goes to one thread. After
/// the engine is closed the call returns the remaining events, then FERRY_ERR_CLOSED; on a broken engine,
/// FERRY_ERR_PANIC.
ferry_status ferry_queue_drain(ferry_engine *engine,
                               ferry_queue queue,
                               ferry_event *out_events,
                               size_t element_size,
                               size_t capacity,
                               size_t *out_count,
                               ferry_error *error);

/// Waits until the queue has events, then takes up to `capacity` events as ferry_queue_drain does; after
/// FERRY_OK there is at least one. No descriptor and no loop are needed.
///
/// FERRY_PENDING: the timeout has passed, and *out_count is 0. FERRY_ERR_BUSY inside a callback, unless there are
/// events or the timeout is 0. FERRY_ERR_STALE: the queue was destroyed meanwhile. FERRY_ERR_CLOSED and
/// FERRY_ERR_PANIC as of ferry_queue_drain; closing the engine ends the wait. Several threads may wait for one
/// queue; each event goes to one thread. Signals do not end the wait.
ferry_status ferry_queue_wait(ferry_engine *engine,
                              ferry_queue queue,
                              uint64_t timeout_ns,
                              ferry_event *out_events,
                              size_t element_size,
                              size_t capacity,
                              size_t *out_count,
                              ferry_error *error);

/// Sets the callback of a queue. ferry calls it with each event on its callback thread, one event at a time and
/// without holding a lock. NULL removes the callback, also while the engine closes. On a broken engine, NULL removes
/// it too, and the call returns FERRY_ERR_PANIC. The call returns when the old callback no longer runs; inside a
/// callback it returns at once, and the change takes effect with the next event.
///
/// The callback may make every call that doesn't wait, submit included. Calls that wait, and
/// ferry_engine_close, return FERRY_ERR_BUSY there. The event and its data are valid until the callback
/// returns; don't release them. The callback must not throw, longjmp or end its thread. ferry passes `context` through.
ferry_status ferry_queue_callback(ferry_engine *engine,
                                  ferry_queue queue,
                                  ferry_callback callback,
                                  void *context,
                                  ferry_error *error);

/// Destroys a queue, also while the engine closes. When the call returns, the callback has ended and will not run
/// again, and the descriptor is closed. Undrained notifications wait for the next queue that takes them; other
/// events are dropped. FERRY_ERR_BUSY while transfers or connects have yet to report to the queue, and inside its
/// own callback. FERRY_ERR_PANIC on a broken engine, whose queue may stay; its callback is removed all the same.
ferry_status ferry_queue_destroy(ferry_engine *engine,
                                 ferry_queue queue,
                                 ferry_error *error);

/* ---- Statistics -------------------------------------------------------------------------------- */

/// Counters since the engine was opened, and the current number of objects. The caller sets struct_size
/// before the call. ferry reads each number on its own, so the numbers are no snapshot.
typedef struct ferry_stats {
    /// In: sizeof(ferry_stats). Out: how many bytes were written.
    uint32_t struct_size;
    /// Always 0.
    uint32_t reserved;
    /// Transfers that were submitted.
    uint64_t transfers_submitted;
    /// Transfers that ended as DONE.
    uint64_t transfers_done;
    /// Transfers that ended as FAILED.
    uint64_t transfers_failed;
    /// Transfers that ended as CANCELLED.
    uint64_t transfers_cancelled;
    /// Transfers that ended as TIMED_OUT.
    uint64_t transfers_timed_out;
    /// Requests in submitted transfers.
    uint64_t requests_in;
    /// Slices that ferry made of the requests by merging and cutting.
    uint64_t slices_out;
    /// Payload bytes of WRITEs confirmed by their targets.
    uint64_t bytes_written;
    /// Payload bytes of READs that arrived.
    uint64_t bytes_read;
    /// Payload bytes of peers' WRITEs placed in this engine's regions.
    uint64_t bytes_applied;
    /// Payload bytes sent for peers' READs.
    uint64_t bytes_served;
    /// Requests of peers that this engine's checks refused.
    uint64_t requests_refused;
    /// Notifications that this engine took in from peers.
    uint64_t notifications_received;
    /// Sessions established.
    uint64_t sessions_up;
    /// Sessions lost, whether ferry establishes them again or not.
    uint64_t sessions_lost;
    /// Data connections and RDMA endpoints that broke.
    uint64_t lanes_lost;
    /// Inbound connections that were refused.
    uint64_t handshakes_refused;
    /// FERRY_EVENT_LATE_APPLY events, drained or not.
    uint64_t late_applies;
    /// System calls that sent on data connections.
    uint64_t send_calls;
    /// System calls that received on data connections.
    uint64_t receive_calls;
    /// Peers whose session is up now.
    uint64_t peers_up;
    /// Regions registered now.
    uint64_t regions;
    /// Transfers that are not released, final or not.
    uint64_t transfers;
    /// Payload bytes that this engine copied over same-host paths.
    uint64_t bytes_local;
    /// Payload bytes that devices of this engine copied by themselves from or to memory of a peer's devices.
    uint64_t bytes_device;
} ferry_stats;

/// Initializes a ferry_stats: its struct_size, and zero in all other fields.
#define FERRY_STATS_INIT \
    { (uint32_t)sizeof(ferry_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/// Reads the engine's statistics.
ferry_status ferry_engine_get_stats(const ferry_engine *engine,
                                    ferry_stats *out_stats,
                                    ferry_error *error);

/// Returns the statistics in Prometheus' text format. The text grows with the counters, so leave some room in
/// the buffer. Returns texts as ferry_config_get does.
ferry_status ferry_engine_metrics(const ferry_engine *engine,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *out_length,
                                  ferry_error *error);

/* ---- Names of numbers -------------------------------------------------------------------------- */

/* For logs. */

/// Returns the name of a kind of event: its constant without FERRY_EVENT_, for example "PEER_LOST". Returns "UNKNOWN"
/// for any other number, as all functions here do. The text is static. Never fails; any thread.
const char *ferry_event_name(uint32_t kind);

/// Returns the name of a FERRY_TRANSPORT_*, for example "TCP".
const char *ferry_transport_name(uint32_t transport);

/// Returns the name of a FERRY_MEMORY_*, for example "CUDA".
const char *ferry_memory_name(uint32_t kind);

/// Returns the name of a peer's state, a FERRY_PEER_*, for example "UP".
const char *ferry_peer_state_name(uint32_t state);

/// Returns the name of a transfer's final state, a FERRY_STATE_*, for example "TIMED_OUT".
const char *ferry_state_name(uint32_t state);

/// Returns the name of a FERRY_FENCE_*, for example "CONFIRMED".
const char *ferry_fence_name(uint32_t fence);

/// Returns the name of the state of a transfer's notification, a FERRY_NOTIFICATION_*, for example "DELIVERED".
const char *ferry_notification_name(uint32_t notification);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FERRY_H */
