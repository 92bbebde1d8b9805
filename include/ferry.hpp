/** @file
 * ferry for C++17: ownership, results and spans over ferry.h. Header only; link libferry.
 *
 * ferry.h has the contract of each call, its constants (FERRY_*) and its plain structs, which this header uses
 * directly. This header adds:
 *
 * - Errors. A call that can fail returns a Result. Test it (`if (!result)`, status(), message()), or call
 *   value(), which throws ferry::Error on failure; without exceptions it ends the process instead. Nothing
 *   else here throws, except std::bad_alloc where a std::string or std::vector is returned.
 * - Ownership. A type that owns a resource is move-only and releases it in its destructor. An engine and the
 *   objects made from it are destroyed in any order: each object keeps its engine alive.
 * - Views. A list or text is borrowed for the length of a call. What options keep is borrowed until the call that takes
 *   them; a temporary does not compile there.
 * - Threads. Calls are const: any thread may make them at any time on one object. Moving, assigning and
 *   destroying an object needs exclusive access.
 * - Waiting. A timeout is any std::chrono duration, or ferry::forever; zero only looks. The documentation
 *   names the destructors that wait. A queue's callback cannot wait: destroy such objects elsewhere.
 * - Allocation. submit, write, read, notify, wait, next, drain and dispatch allocate nothing here.
 *
 * The file is above 500 lines because it is copied, installed and included alone.
 */
#ifndef FERRY_HPP
#define FERRY_HPP

#include <ferry.h>

#include <cassert>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__cpp_impl_coroutine) && defined(__has_include)
#if __has_include(<coroutine>)
#include <coroutine>
#define FERRY_HAS_COROUTINES 1
#endif
#endif

namespace ferry {

/* ---- Results ----------------------------------------------------------------------------------- */

/// The exception that Result::value() throws. It holds the ferry_error of the call; what() is "STALE: a
/// sentence".
class Error : public std::exception {
public:
    /// Takes a filled ferry_error.
    explicit Error(const ferry_error &info) noexcept : info_(info)
    {
        std::snprintf(text_, sizeof text_, "%s: %s", ferry_status_name(info.status), info.message);
    }
    /// "STALE: a sentence".
    const char *what() const noexcept override { return text_; }
    /// The call's status; negative.
    ferry_status status() const noexcept { return info_.status; }
    /// errno, device code, transport, and the index of the failed request.
    const ferry_error &info() const noexcept { return info_; }

private:
    ferry_error info_;
    char text_[sizeof(ferry_error::message) + 32];
};

/// The outcome of a call: the part of a Result that does not depend on its type.
class Outcome {
public:
    Outcome() noexcept
    {
        error_.struct_size = sizeof error_;
        error_.status = FERRY_OK;
    }
    /// Copies the outcome as a value.
    /// @{
    Outcome(const Outcome &other) noexcept { copy(other); }
    Outcome &operator=(const Outcome &other) noexcept
    {
        copy(other);
        return *this;
    }
    /// @}
    ~Outcome() = default;

    /// True if the call succeeded.
    /// @{
    bool ok() const noexcept { return error_.status == FERRY_OK; }
    explicit operator bool() const noexcept { return ok(); }
    /// @}
    /// True if a transfer is not final yet: FERRY_PENDING or FERRY_DRAINING. This is neither success nor
    /// failure.
    bool pending() const noexcept { return error_.status > 0; }
    /// The call's status: FERRY_OK, positive if pending(), negative if it failed.
    ferry_status status() const noexcept { return error_.status; }
    /// The status as text, "STALE".
    const char *name() const noexcept { return ferry_status_name(error_.status); }
    /// A sentence for people; "" unless the call failed.
    const char *message() const noexcept { return error_.status < 0 ? error_.message : ""; }
    /// The whole error; only if the call failed.
    const ferry_error &error() const noexcept
    {
        assert(!ok());
        return error_;
    }
    /// Throws Error unless ok(). Without exceptions, ends the process unless ok().
    void check() const
    {
        if (!ok()) raise();
    }

    /// The `error` argument, for code that wraps functions of ferry.h.
    ferry_error *slot() noexcept { return &error_; }
    /// Stores the status of such a function; true if it is FERRY_OK.
    bool take(ferry_status status) noexcept
    {
        error_.status = status;
        if (status > 0) clear();
        return status == FERRY_OK;
    }
    /// Makes the outcome a failure of the wrapping code.
    void fail(ferry_status status, const char *message) noexcept
    {
        clear();
        error_.status = status;
        std::snprintf(error_.message, sizeof error_.message, "%s", message);
    }

private:
    void clear() noexcept
    {
        error_.os_error = error_.vendor_error = 0;
        error_.request_index = UINT64_MAX;
        error_.transport = FERRY_TRANSPORT_NONE;
        error_.reserved = 0;
        error_.message[0] = 0;
    }
    // A success leaves all but two fields unwritten: that keeps 280 bytes off the fast path.
    void copy(const Outcome &other) noexcept
    {
        if (this == &other) return;
        if (other.ok()) {
            error_.struct_size = sizeof error_;
            error_.status = FERRY_OK;
        } else {
            error_ = other.error_;
        }
    }
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    [[noreturn]] void raise() const { throw Error(error_); }
#else
    [[noreturn]] void raise() const { std::abort(); }
#endif

    ferry_error error_;
};

/// A value, or the error of the call. T is default-constructible.
template <class T> class [[nodiscard]] Result : public Outcome {
public:
    Result() = default;
    /// Takes the failure of another call.
    explicit Result(const Outcome &failure) : Outcome(failure) { assert(!failure.ok()); }

    /// Returns the value. Throws Error if the call failed (Outcome::check).
    /// @{
    T &value() &
    {
        check();
        return value_;
    }
    const T &value() const &
    {
        check();
        return value_;
    }
    T value() &&
    {
        check();
        return std::move(value_);
    }
    /// @}
    /// Returns the value; only if ok().
    /// @{
    T &operator*() noexcept
    {
        assert(ok());
        return value_;
    }
    const T &operator*() const noexcept
    {
        assert(ok());
        return value_;
    }
    T *operator->() noexcept { return &**this; }
    const T *operator->() const noexcept { return &**this; }
    /// @}

private:
    T value_{};
};

/// The result of a call without a value.
template <> class [[nodiscard]] Result<void> : public Outcome {
public:
    Result() = default;
    /// Copies the outcome of another call.
    explicit Result(const Outcome &outcome) : Outcome(outcome) {}
    /// Throws Error if the call failed (Outcome::check).
    void value() const { check(); }
};

/* ---- Small types of parameters ----------------------------------------------------------------- */

/// A list that is borrowed for the length of a call. Made from an array, from an object with data() and
/// size() (std::vector, std::array, std::span), from one element, or from {a, b, c}.
template <class T> class Span {
public:
    constexpr Span() noexcept = default;
    /// As std::span.
    /// @{
    constexpr Span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    constexpr Span(T &element) noexcept : data_(&element), size_(1) {}
    template <class List, class Element = std::remove_pointer_t<decltype(std::data(std::declval<List &>()))>,
              class = std::enable_if_t<std::is_convertible_v<Element (*)[], T (*)[]>>>
    constexpr Span(List &&list) noexcept : data_(std::data(list)), size_(std::size(list))
    {
    }
    template <class U = T, class = std::enable_if_t<std::is_const_v<U>>>
    constexpr Span(std::initializer_list<std::remove_const_t<U>> list) noexcept : Span(list.begin(), list.size())
    {
    }
    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t index) const noexcept { return data_[index]; }
    /// @}

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/// Terminated text, borrowed for the length of a call.
class Text {
public:
    /// Borrows the text without a copy.
    /// @{
    constexpr Text(const char *text) noexcept : text_(text) {}
    Text(const std::string &text) noexcept : text_(text.c_str()) {}
    constexpr const char *c_str() const noexcept { return text_; }
    /// @}

private:
    const char *text_;
};

/// Bytes, borrowed for the length of a call: a text without its zero, or a vector or array of plain values.
class Bytes {
public:
    /// Borrows the bytes without a copy. Sizes are in bytes.
    /// @{
    Bytes(const char *text) noexcept : data_(text), size_(std::strlen(text)) {}
    Bytes(std::string_view text) noexcept : data_(text.data()), size_(text.size()) {}
    Bytes(const std::string &text) noexcept : data_(text.data()), size_(text.size()) {}
    constexpr Bytes(const void *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <class List, class Element = std::remove_pointer_t<decltype(std::data(std::declval<const List &>()))>,
              class = std::enable_if_t<std::is_trivially_copyable_v<Element> && !std::is_array_v<List>>>
    Bytes(const List &list) noexcept : data_(std::data(list)), size_(std::size(list) * sizeof(Element))
    {
    }
    constexpr const void *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    /// @}

private:
    const void *data_;
    std::size_t size_;
};

/// Time from now: any std::chrono duration. A negative duration is zero; a duration that does not fit
/// into nanoseconds is ferry::forever.
class Timeout {
public:
    /// Converts any duration.
    template <class Count, class Period>
    constexpr Timeout(std::chrono::duration<Count, Period> time) noexcept : ns_(nanoseconds_of(time))
    {
    }
    /// ferry::forever.
    static constexpr Timeout never() noexcept { return Timeout(); }
    /// Nanoseconds, in the form that ferry.h takes.
    constexpr std::uint64_t ns() const noexcept { return ns_; }

private:
    constexpr Timeout() noexcept : ns_(FERRY_FOREVER) {}
    template <class Count, class Period>
    static constexpr std::uint64_t nanoseconds_of(std::chrono::duration<Count, Period> time) noexcept
    {
        using Seconds = std::chrono::duration<double>;
        if (!(time > std::chrono::duration<Count, Period>::zero())) return 0;
        if (std::chrono::duration_cast<Seconds>(time).count() >= 9e9) return FERRY_FOREVER;
        return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
    }

    std::uint64_t ns_;
};

/// A timeout or deadline that never ends.
inline constexpr Timeout forever = Timeout::never();

/// Options, or nothing for ferry's defaults.
template <class Options> class OrDefault {
public:
    constexpr OrDefault() noexcept = default;
    /// Borrows the options for the length of a call.
    OrDefault(const Options &options) noexcept : c_(options.c()) {}
    /// The struct for ferry.h; NULL for the defaults.
    const typename Options::C *c() const noexcept { return c_; }

private:
    const typename Options::C *c_ = nullptr;
};

class Engine;

namespace detail {

/// An object's share of its engine, which is closed and freed with the last share. An engine that comes from ferry.h as
/// a bare pointer has no shares: the program keeps that engine.
using Share = std::shared_ptr<ferry_engine>;
/// Wraps a bare pointer. Allocates nothing.
inline Share borrowed(ferry_engine *engine) noexcept { return Share(std::shared_ptr<void>(), engine); }

/// A handle and its engine. A move empties the source.
template <class Handle> class Owned {
public:
    Owned() noexcept = default;
    /// Takes ownership of a handle, and keeps the engine alive.
    Owned(Share engine, Handle handle) noexcept : engine_(std::move(engine)), handle_(handle) {}
    /// As above, with a share of this engine.
    inline Owned(const Engine &engine, Handle handle) noexcept;
    /// Takes ownership of a handle. The engine must outlive this object.
    Owned(ferry_engine *engine, Handle handle) noexcept : engine_(borrowed(engine)), handle_(handle) {}
    /// Leaves `other` empty.
    Owned(Owned &&other) noexcept
        : engine_(std::move(other.engine_)), handle_(std::exchange(other.handle_, Handle{})),
          has_ended_(std::exchange(other.has_ended_, false))
    {
    }
    /// The engine of the handle; NULL if empty.
    ferry_engine *engine() const noexcept { return engine_.get(); }
    /// The handle for ferry.h; this object still owns it. 0 if empty; stale after the object has been ended early.
    Handle handle() const noexcept { return handle_; }
    /// Gives up ownership of the handle, and the share of the engine.
    Handle detach() noexcept
    {
        const Handle handle = std::exchange(handle_, Handle{});
        engine_.reset();
        return handle;
    }
    /// True if this object owns a handle.
    explicit operator bool() const noexcept { return handle_ != Handle{} && !has_ended_; }

protected:
    ~Owned() = default;
    Owned &operator=(Owned &&) = delete;
    /// For derived classes.
    void swap(Owned &other) noexcept
    {
        engine_.swap(other.engine_);
        std::swap(handle_, other.handle_);
        std::swap(has_ended_, other.has_ended_);
    }
    /// Ends what the handle names, before the destructor does. Does nothing the second time.
    template <class Call, class... Arguments> Result<void> end(Call call, Arguments... arguments) noexcept
    {
        Result<void> result;
        if (!has_ended_) has_ended_ = result.take(call(engine(), handle_, arguments..., result.slot()));
        return result;
    }
    Share engine_;           ///< Empty if this object is.
    Handle handle_{};        ///< 0 if empty.
    bool has_ended_ = false; ///< end() has succeeded.
};

/// Makes a call of ferry.h. The error is its last argument.
template <class Call, class... Arguments> Result<void> run(Call call, Arguments... arguments) noexcept
{
    Result<void> result;
    result.take(call(arguments..., result.slot()));
    return result;
}

/// Makes a call that writes a value before its error.
template <class T, class Call, class... Arguments> Result<T> get(Call call, Arguments... arguments) noexcept
{
    Result<T> result;
    result.take(call(arguments..., &*result, result.slot()));
    return result;
}

/// Fetches a list in two steps: asks for the number of elements, then for all of them. Most lists take the size of an
/// element.
template <class Item, class Call, class... Arguments> Result<std::vector<Item>> list(Call call, Arguments... arguments)
{
    Result<std::vector<Item>> result;
    std::size_t count = 0;
    ferry_status status;
    do {
        result->resize(count);
        if constexpr (std::is_invocable_v<Call, Arguments..., Item *, std::size_t, std::size_t *, ferry_error *>)
            status = call(arguments..., result->data(), result->size(), &count, result.slot());
        else
            status = call(arguments..., result->data(), sizeof(Item), result->size(), &count, result.slot());
        if (!result.take(status)) return result;
    } while (count > result->size());
    result->resize(count);
    return result;
}

/// Fetches a text or bytes in two steps. Some extra room and more tries allow for growth between the
/// steps.
template <class Buffer, class Call, class... Arguments> Result<Buffer> text(Call call, Arguments... arguments)
{
    Result<Buffer> result;
    Buffer buffer;
    std::size_t length = 0;
    if (!result.take(call(arguments..., nullptr, 0, &length, result.slot()))) return result;
    for (int tries = 0; tries < 8; ++tries) {
        buffer.resize(length + 512);
        const ferry_status status = call(arguments..., buffer.data(), buffer.size(), &length, result.slot());
        if (status == FERRY_ERR_LIMIT) {
            length = 2 * buffer.size();
            continue;
        }
        if (!result.take(status)) return result;
        buffer.resize(length);
        *result = std::move(buffer);
        return result;
    }
    result.take(FERRY_ERR_LIMIT);
    return result;
}

/// True if a view of this argument is valid after the call: of a variable, a literal, a pointer, or another view, whose
/// data() is the same for const. A temporary that owns its elements is gone by then.
/// @{
template <class From, class = void>
struct Stays : std::bool_constant<std::is_lvalue_reference_v<From> || std::is_pointer_v<From>> {};
template <class From>
struct Stays<From, std::enable_if_t<!std::is_reference_v<From> &&
                                    std::is_same_v<decltype(std::declval<From &>().data()),
                                                   decltype(std::declval<const From &>().data())>>>
    : std::is_trivially_destructible<From> {};
/// @}

/// Text, Bytes or a Span that is kept after the call. A temporary is refused.
template <class View> class Kept : public View {
public:
    constexpr Kept() = default;
    /// As View's constructor.
    template <class From, class = std::enable_if_t<std::is_constructible_v<View, From &&> &&
                                                   !std::is_base_of_v<Kept, std::decay_t<From>>>>
    constexpr Kept(From &&from) noexcept : View(std::forward<From>(from))
    {
        static_assert(Stays<From>::value, "a temporary is gone before ferry reads it: keep it in a variable");
        using Number = std::remove_cv_t<std::remove_reference_t<From>>;
        static_assert(!std::is_arithmetic_v<Number> || std::is_constructible_v<View, Number (&)[1]>,
                      "a number of another type is converted to a temporary: keep one of the element's type");
    }
};

/// An address as ferry.h takes it.
inline std::uint64_t address_of(const void *pointer) noexcept
{
    return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer));
}

/// Ids of blocks on both sides: two lists of std::int32_t or std::int64_t, borrowed and of one length.
template <class Fields, class LocalIds, class RemoteIds>
void set_pairs(Fields &fields, Outcome &outcome, LocalIds &&local_ids, RemoteIds &&remote_ids) noexcept
{
    using Id = std::remove_cv_t<std::remove_reference_t<decltype(*std::data(local_ids))>>;
    using RemoteId = std::remove_cv_t<std::remove_reference_t<decltype(*std::data(remote_ids))>>;
    static_assert(std::is_same_v<Id, RemoteId>, "both lists have ids of one type");
    static_assert(std::is_same_v<Id, std::int32_t> || std::is_same_v<Id, std::int64_t>);
    static_assert(Stays<LocalIds>::value && Stays<RemoteIds>::value, "keep the ids in variables until the submit");
    if (std::size(local_ids) != std::size(remote_ids))
        return outcome.fail(FERRY_ERR_INVALID, "the lists of local and remote block ids have different lengths");
    fields.id_bytes = sizeof(Id);
    fields.pair_count = std::size(local_ids);
    fields.local_blocks = std::data(local_ids);
    fields.remote_blocks = std::data(remote_ids);
}

} // namespace detail

/* ---- Numbers with names -------------------------------------------------------------------------- */

/// Numbers of ferry.h, which says what each means; `TransferState(result.state)` is that of a field. A newer library
/// may have numbers that are not here.
/// @{
enum class Op : std::uint32_t { read = FERRY_OP_READ, write = FERRY_OP_WRITE };
enum class EventKind : std::uint32_t {
    transfer = FERRY_EVENT_TRANSFER,
    notification = FERRY_EVENT_NOTIFICATION,
    peer_up = FERRY_EVENT_PEER_UP,
    peer_lost = FERRY_EVENT_PEER_LOST,
    late_apply = FERRY_EVENT_LATE_APPLY,
    peer_connected = FERRY_EVENT_PEER_CONNECTED,
    peer_down = FERRY_EVENT_PEER_DOWN
};
enum class TransferState : std::uint32_t {
    done = FERRY_STATE_DONE,
    failed = FERRY_STATE_FAILED,
    cancelled = FERRY_STATE_CANCELLED,
    timed_out = FERRY_STATE_TIMED_OUT
};
enum class Fence : std::uint32_t {
    confirmed = FERRY_FENCE_CONFIRMED,
    dead = FERRY_FENCE_DEAD,
    lease = FERRY_FENCE_LEASE
};
enum class Notification : std::uint32_t {
    none = FERRY_NOTIFICATION_NONE,
    delivered = FERRY_NOTIFICATION_DELIVERED,
    not_sent = FERRY_NOTIFICATION_NOT_SENT,
    unknown = FERRY_NOTIFICATION_UNKNOWN
};
enum class Results : std::uint32_t { all = FERRY_RESULTS_ALL, failed = FERRY_RESULTS_FAILED };
enum class PeerState : std::uint32_t {
    connecting = FERRY_PEER_CONNECTING,
    up = FERRY_PEER_UP,
    down = FERRY_PEER_DOWN,
    lost = FERRY_PEER_LOST
};
enum class Transport : std::uint32_t {
    none = FERRY_TRANSPORT_NONE,
    tcp = FERRY_TRANSPORT_TCP,
    local = FERRY_TRANSPORT_LOCAL,
    rdma = FERRY_TRANSPORT_RDMA,
    cuda = FERRY_TRANSPORT_CUDA,
    ascend = FERRY_TRANSPORT_ASCEND
};
enum class MemoryKind : std::uint32_t {
    detect = FERRY_MEMORY_AUTO,
    host = FERRY_MEMORY_HOST,
    cuda = FERRY_MEMORY_CUDA,
    ascend = FERRY_MEMORY_ASCEND,
    cuda_managed = FERRY_MEMORY_CUDA_MANAGED,
    cuda_pinned = FERRY_MEMORY_CUDA_PINNED,
    file = FERRY_MEMORY_FILE
};
enum class StartAfter : std::uint32_t {
    nothing = FERRY_START_NOW,
    cuda_event = FERRY_START_AFTER_CUDA_EVENT,
    cuda_stream = FERRY_START_AFTER_CUDA_STREAM,
    acl_event = FERRY_START_AFTER_ACL_EVENT,
    acl_stream = FERRY_START_AFTER_ACL_STREAM
};
/// @}

namespace detail {
/// The number for ferry.h.
template <class Enum> constexpr std::uint32_t number(Enum value) noexcept { return static_cast<std::uint32_t>(value); }
} // namespace detail

/// The name of a number: "PEER_LOST", or "UNKNOWN". For logs.
/// @{
inline const char *to_string(EventKind kind) noexcept { return ferry_event_name(detail::number(kind)); }
inline const char *to_string(TransferState state) noexcept { return ferry_state_name(detail::number(state)); }
inline const char *to_string(Fence fence) noexcept { return ferry_fence_name(detail::number(fence)); }
inline const char *to_string(Notification state) noexcept { return ferry_notification_name(detail::number(state)); }
inline const char *to_string(PeerState state) noexcept { return ferry_peer_state_name(detail::number(state)); }
inline const char *to_string(Transport transport) noexcept { return ferry_transport_name(detail::number(transport)); }
inline const char *to_string(MemoryKind kind) noexcept { return ferry_memory_name(detail::number(kind)); }
/// @}

/* ---- Structs of ferry.h that start with their size --------------------------------------------- */

/// How a transfer ended; the fields are those of ferry_result.
struct TransferResult : ferry_result {
    TransferResult() noexcept : ferry_result{} { struct_size = sizeof(ferry_result); }
};

/// Information about a peer; the fields are those of ferry_peer_info.
struct PeerInfo : ferry_peer_info {
    PeerInfo() noexcept : ferry_peer_info{} { struct_size = sizeof(ferry_peer_info); }
};

/// Counters of an engine; the fields are those of ferry_stats.
struct Stats : ferry_stats {
    Stats() noexcept : ferry_stats{} { struct_size = sizeof(ferry_stats); }
};

/// One range of a transfer.
using Request = ferry_request;
/// How one request ended.
using RequestResult = ferry_request_result;
/// A region that a peer registered.
using RegionInfo = ferry_region_info;
/// One path to a peer.
using PathInfo = ferry_path_info;

/// Returns the request that moves `length` bytes between `local` and the peer's region, at
/// `remote_offset` bytes from its start.
inline Request request(const void *local, std::uint64_t length, const RegionInfo &remote,
                       std::uint64_t remote_offset = 0) noexcept
{
    return {detail::address_of(local), remote.address + remote_offset,
            length, remote.region};
}

/* ---- Options ----------------------------------------------------------------------------------- */

/// Options of a region. The name is borrowed until the call that takes the options returns; a temporary is refused.
template <class COptions> class MemoryOptions {
public:
    /// The struct of ferry.h.
    using C = COptions;
    /// Peers may READ and WRITE, no name. register_memory detects the kind of memory; alloc takes host memory.
    MemoryOptions() noexcept : c_{}
    {
        c_.struct_size = sizeof c_;
        c_.access = FERRY_ACCESS_REMOTE_READ | FERRY_ACCESS_REMOTE_WRITE;
    }
    /// Name under which peers find the region; at most 63 bytes.
    MemoryOptions &name(detail::Kept<Text> name) noexcept
    {
        c_.name = name.c_str();
        return *this;
    }
    /// FERRY_ACCESS_* bits.
    MemoryOptions &access(std::uint32_t access) noexcept
    {
        c_.access = access;
        return *this;
    }
    /// The kind of the memory, and the number of the device for the kinds that have one.
    MemoryOptions &kind(MemoryKind kind, std::int32_t device = 0) noexcept
    {
        c_.kind = detail::number(kind);
        c_.device = device;
        return *this;
    }
    /// The struct for ferry.h.
    const C *c() const noexcept { return &c_; }

private:
    C c_;
};
/// For Engine::register_memory.
using RegionOptions = MemoryOptions<ferry_region_options>;
/// For Engine::alloc.
using AllocOptions = MemoryOptions<ferry_alloc_options>;

class Queue;
struct Completion;

/// Options of a transfer. Reusable: submit copies the options; the bytes of a notification are borrowed
/// until submit returns, so a temporary is refused.
class TransferOptions {
public:
    /// The struct of ferry.h.
    using C = ferry_transfer_options;
    /// All defaults.
    TransferOptions() noexcept : c_{} { c_.struct_size = sizeof c_; }
    /// Adds FERRY_TRANSFER_* bits.
    TransferOptions &flags(std::uint32_t flags) noexcept
    {
        c_.flags |= flags;
        return *this;
    }
    /// Deadline from now; the transfer is stopped if it isn't done by then. Zero means the setting
    /// deadline_ms.
    TransferOptions &deadline(Timeout deadline) noexcept
    {
        c_.deadline_ns = deadline.ns();
        return *this;
    }
    /// Returned in the result and the event.
    TransferOptions &user_data(std::uint64_t user_data) noexcept
    {
        c_.user_data = user_data;
        return *this;
    }
    /// Reports the end of the transfer to the queue, as a FERRY_EVENT_TRANSFER.
    inline TransferOptions &queue(const Queue &queue) noexcept;
    /// Reports the end of the transfer to the queue; Queue::dispatch then calls `completion`. Uses
    /// user_data. The completion must not move until it has been called.
    inline TransferOptions &queue(const Queue &queue, Completion &completion) noexcept;
    /// Bytes for the peer's application, delivered after the data is visible there.
    TransferOptions &notify(detail::Kept<Bytes> bytes) noexcept
    {
        // Empty bytes may have no address, but NULL would mean no notification.
        c_.notify = bytes.data() ? bytes.data() : "";
        c_.notify_length = bytes.size();
        return *this;
    }
    /// The channel of the notification, 0 to FERRY_CHANNELS_MAX - 1.
    TransferOptions &channel(std::uint32_t channel) noexcept
    {
        c_.channel = channel;
        return *this;
    }
    /// FERRY_ALLOW_* bits.
    TransferOptions &transports(std::uint64_t allowed) noexcept
    {
        c_.transports_allowed = allowed;
        return *this;
    }
    /// Among transfers of about the same size, a higher priority goes first.
    TransferOptions &priority(std::uint32_t priority) noexcept
    {
        c_.priority = priority;
        return *this;
    }
    /// Starts the transfer after an event, or after the work that a stream has been given so far. `handle` is the
    /// CUevent, CUstream, aclrtEvent or aclrtStream, and nullptr is CUDA's default stream. An event must exist until the
    /// transfer is final. A stream must exist until the submit returns, and its context until the transfer is final. The
    /// context of an aclrtStream must be current in the submitting thread.
    TransferOptions &start_after(StartAfter kind, const void *handle) noexcept
    {
        c_.event_kind = detail::number(kind);
        c_.event = detail::address_of(handle);
        return *this;
    }
    /// The struct for ferry.h.
    const C *c() const noexcept { return &c_; }

private:
    C c_;
};

/* ---- Configuration ----------------------------------------------------------------------------- */

/// The settings for a new engine; docs/settings.md lists them. One thread at a time.
class Config {
public:
    /// Empty: Engine::open then uses the defaults and the environment.
    Config() noexcept = default;
    /// Creates a configuration from the defaults and the FERRY_* environment variables, which override
    /// the defaults.
    static Result<Config> create()
    {
        Result<Config> result;
        ferry_config *config = nullptr;
        if (result.take(ferry_config_new(&config, result.slot()))) result->c_.reset(config);
        return result;
    }
    /// Changes one setting: set("lanes", "4"). After FERRY_ERR_INVALID the configuration is unchanged.
    Result<void> set(Text key, Text value)
    {
        return detail::run(ferry_config_set, c_.get(), key.c_str(), value.c_str());
    }
    /// Changes a number or bool: set("lanes", 4).
    template <class Number, class = std::enable_if_t<std::is_integral_v<Number>>>
    Result<void> set(Text key, Number value)
    {
        if constexpr (std::is_same_v<Number, bool>) return set(key, Text(value ? "true" : "false"));
        else return set(key, std::to_string(value));
    }
    /// Returns one setting as text; a secret reads as "(hidden)".
    Result<std::string> get(Text key) const
    {
        return detail::text<std::string>(ferry_config_get, c_.get(), key.c_str());
    }
    /// Lists every setting that the library knows.
    static Result<std::vector<ferry_setting_info>> settings()
    {
        return detail::list<ferry_setting_info>(ferry_config_settings);
    }
    /// The configuration for ferry.h; this object still owns it.
    ferry_config *handle() const noexcept { return c_.get(); }

private:
    struct Free {
        void operator()(ferry_config *config) const noexcept { ferry_config_free(config); }
    };
    std::unique_ptr<ferry_config, Free> c_;
};

/* ---- Memory ------------------------------------------------------------------------------------ */

/// A registration of the caller's memory. The destructor unregisters the region and waits while it is in
/// use; nothing can reach the memory afterwards.
class Region : public detail::Owned<ferry_region> {
public:
    using Owned::Owned;
    /// Leaves the other empty. Assignment first destroys the old value, as the destructor does.
    /// @{
    Region(Region &&) noexcept = default;
    Region &operator=(Region &&other) noexcept
    {
        Region moved(std::move(other));
        swap(moved);
        return *this;
    }
    /// @}
    ~Region()
    {
        if (*this) ferry_region_unregister(engine(), handle_, FERRY_FOREVER, nullptr);
    }
    /// Unregisters early. After FERRY_ERR_BUSY the region is in use, and this object still owns it.
    Result<void> unregister(Timeout timeout = forever)
    {
        return end(ferry_region_unregister, timeout.ns());
    }
};

/// A registered range of a file: see Engine::register_file.
struct FileRegion {
    /// Unregisters the range when it is destroyed.
    Region region;
    /// The address of the range's first byte, for requests here and of peers. Nothing is mapped there.
    std::uint64_t address = 0;
};

/// Memory that ferry allocated and registered. The destructor unregisters and unmaps it, and waits while
/// the memory is in use.
class Memory : public detail::Owned<ferry_region> {
public:
    Memory() noexcept = default;
    /// Takes ownership of memory from ferry_memory_alloc. The engine is an Engine, which this object keeps alive, or a
    /// pointer of ferry.h.
    template <class Origin>
    Memory(Origin &&engine, ferry_region region, void *address, std::size_t size) noexcept
        : Owned(std::forward<Origin>(engine), region), address_(address), size_(size)
    {
    }
    /// Leaves the other empty. Assignment first destroys the old value, as the destructor does.
    /// @{
    Memory(Memory &&other) noexcept
        : Owned(std::move(other)), address_(std::exchange(other.address_, nullptr)),
          size_(std::exchange(other.size_, 0))
    {
    }
    Memory &operator=(Memory &&other) noexcept
    {
        Memory moved(std::move(other));
        swap(moved);
        std::swap(address_, moved.address_);
        std::swap(size_, moved.size_);
        return *this;
    }
    /// @}
    ~Memory()
    {
        if (*this) ferry_memory_free(engine(), handle_, FERRY_FOREVER, nullptr);
    }
    /// Start of the memory: page-aligned, zeroed when it was allocated.
    std::byte *data() const noexcept { return static_cast<std::byte *>(address_); }
    /// Size in bytes.
    std::size_t size() const noexcept { return size_; }
    /// Returns the memory as a list of whole elements of T.
    template <class T> Span<T> as() const noexcept { return {static_cast<T *>(address_), size_ / sizeof(T)}; }
    /// Frees the memory early. After FERRY_ERR_BUSY the memory is in use, and this object still owns it.
    Result<void> free(Timeout timeout = forever)
    {
        const Result<void> result = end(ferry_memory_free, timeout.ns());
        if (result) address_ = nullptr, size_ = 0;
        return result;
    }

private:
    void *address_ = nullptr;
    std::size_t size_ = 0;
};

/* ---- Transfers --------------------------------------------------------------------------------- */

/// The progress of a transfer; ferry_transfer_progress has the contract.
struct Progress {
    std::uint64_t bytes_confirmed = 0; ///< Bytes confirmed to be at their destination so far.
    std::uint64_t bytes_total = 0;     ///< Bytes of all requests.
};

/// A submitted transfer. The destructor releases it. If the transfer is not final, the destructor first
/// cancels it and waits, because its memory is not the caller's before. Transfer(engine,
/// event->transfer) takes ownership of the transfer of an event; detach() gives up ownership until then.
class [[nodiscard]] Transfer : public detail::Owned<ferry_transfer> {
public:
    using Owned::Owned;
    /// Leaves the other empty. Assignment first destroys the old value, as the destructor does.
    /// @{
    Transfer(Transfer &&) noexcept = default;
    Transfer &operator=(Transfer &&other) noexcept
    {
        Transfer moved(std::move(other));
        swap(moved);
        return *this;
    }
    /// @}
    ~Transfer()
    {
        if (!*this || ferry_transfer_release(engine(), handle_, nullptr) != FERRY_ERR_BUSY) return;
        ferry_transfer_cancel(engine(), handle_, nullptr);
        ferry_transfer_wait(engine(), handle_, FERRY_FOREVER, nullptr, nullptr);
        ferry_transfer_release(engine(), handle_, nullptr);
    }
    /// Waits until the transfer is final, and returns its outcome: ok() if it is done, pending() if the
    /// timeout passes first. Writes `out_result` when the transfer is final.
    Result<void> wait(Timeout timeout = forever, TransferResult *out_result = nullptr) const noexcept
    {
        return detail::run(ferry_transfer_wait, engine(), handle_, timeout.ns(), out_result);
    }
    /// Returns the progress: bytes confirmed at their destination, and all bytes. Never waits.
    Result<Progress> progress() const noexcept
    {
        Result<Progress> result;
        result.take(ferry_transfer_progress(engine(), handle_, &result->bytes_confirmed, &result->bytes_total,
                                            result.slot()));
        return result;
    }
    /// Cancels the transfer; the final state has the outcome.
    Result<void> cancel() const noexcept
    {
        return detail::run(ferry_transfer_cancel, engine(), handle_);
    }
    /// Makes a CUstream or cudaStream_t wait until the transfer is final, however it ended; nullptr is
    /// the default stream. The call itself doesn't wait. FERRY_ERR_UNSUPPORTED for FERRY_MEMORY_ASCEND.
    Result<void> stream_wait(const void *stream, MemoryKind kind = MemoryKind::cuda) const noexcept
    {
        return detail::run(ferry_transfer_stream_wait, engine(), handle_, detail::address_of(stream),
                           detail::number(kind));
    }
    /// Releases a final transfer early. FERRY_ERR_BUSY before it is final.
    Result<void> release() noexcept
    {
        return end(ferry_transfer_release);
    }
    /// Lists the outcome of each request of a final transfer.
    Result<std::vector<RequestResult>> results(Results which = Results::all) const
    {
        return detail::list<RequestResult>(ferry_transfer_results, engine(), handle_, detail::number(which));
    }
    /// Writes the outcomes into the caller's array. Returns the number of outcomes; if it is above the
    /// size of the array, some are missing.
    Result<std::size_t> results(Results which, Span<RequestResult> out_results) const noexcept
    {
        return detail::get<std::size_t>(ferry_transfer_results, engine(), handle_, detail::number(which),
                                        out_results.data(), sizeof(RequestResult), out_results.size());
    }
};

/// The tables of paged memory: each list has one entry per layer. ferry_blocks has the formula.
/// remote_region may be empty. The lists are borrowed; temporaries are refused.
struct BlockLayers {
    /// The fields of ferry_blocks.
    /// @{
    detail::Kept<Span<const std::uint64_t>> local_base, remote_base, local_stride, remote_stride, block_bytes;
    detail::Kept<Span<const ferry_region>> remote_region;
    /// @}
};

/// Pairs of blocks to move, the same in every layer. Borrows its lists; they must outlive it.
class Blocks {
public:
    Blocks() noexcept = default;
    /// Checks and borrows the lists. FERRY_ERR_INVALID if their lengths differ. Ids are std::int32_t or
    /// std::int64_t.
    template <class LocalIds, class RemoteIds>
    static Result<Blocks> create(const BlockLayers &layers, LocalIds &&local_ids, RemoteIds &&remote_ids) noexcept
    {
        Result<Blocks> result;
        ferry_blocks &c = result->c_;
        const std::size_t count = layers.local_base.size();
        if (layers.remote_base.size() != count || layers.local_stride.size() != count ||
            layers.remote_stride.size() != count || layers.block_bytes.size() != count ||
            (!layers.remote_region.empty() && layers.remote_region.size() != count)) {
            result.fail(FERRY_ERR_INVALID, "the lists of layers have different lengths");
            return result;
        }
        c.struct_size = sizeof c;
        c.layer_count = count;
        c.local_base = layers.local_base.data();
        c.remote_base = layers.remote_base.data();
        c.local_stride = layers.local_stride.data();
        c.remote_stride = layers.remote_stride.data();
        c.block_bytes = layers.block_bytes.data();
        c.remote_region = layers.remote_region.data();
        detail::set_pairs(c, result, std::forward<LocalIds>(local_ids), std::forward<RemoteIds>(remote_ids));
        return result;
    }
    /// The struct for ferry.h.
    const ferry_blocks *c() const noexcept { return &c_; }

private:
    ferry_blocks c_{};
};

/// Blocks of layers of equal shape, one layer after the other, as in a cache that is one tensor; the fields are
/// those of ferry_uniform_blocks, which has the formula. Set them, or start from two dense caches of the same shape:
///
///     ferry::UniformBlocks blocks(memory.data(), *peer.region("kv"), layer_bytes, block_bytes);
///     blocks.range(5).blocks(count);                  // the first blocks of layer 5
///     auto push = peer.submit(ferry::Op::write, blocks);
struct UniformBlocks : ferry_uniform_blocks {
    /// No layers and no blocks.
    UniformBlocks() noexcept : ferry_uniform_blocks{} { struct_size = sizeof(ferry_uniform_blocks); }
    /// Layers of `layer_bytes`, which begin at `local` and at the start of the region.
    UniformBlocks(const void *local, const RegionInfo &remote, std::uint64_t layer_bytes,
                  std::uint64_t block_size) noexcept
        : UniformBlocks()
    {
        local_base = detail::address_of(local);
        remote_base = remote.address;
        local_layer_stride = remote_layer_stride = layer_bytes;
        block_bytes = block_size;
        remote_region = remote.region;
    }
    /// Moves these layers.
    UniformBlocks &range(std::size_t first, std::size_t count = 1) noexcept
    {
        first_layer = first;
        layer_count = count;
        return *this;
    }
    /// Moves the first blocks of each layer.
    UniformBlocks &blocks(std::size_t count) noexcept
    {
        pair_count = count;
        local_blocks = remote_blocks = nullptr;
        return *this;
    }
    /// Moves these pairs of blocks. Borrows the lists, which have ids of std::int32_t or std::int64_t.
    /// FERRY_ERR_INVALID if their lengths differ.
    template <class LocalIds, class RemoteIds> Result<void> pairs(LocalIds &&local_ids, RemoteIds &&remote_ids) noexcept
    {
        Result<void> result;
        detail::set_pairs(*this, result, std::forward<LocalIds>(local_ids), std::forward<RemoteIds>(remote_ids));
        return result;
    }
};

/* ---- Peers ------------------------------------------------------------------------------------- */

/// A peer, by its handle. It may be copied, and keeps its engine alive. Several connects to one engine return the
/// same peer, so no Peer ends the session: close() does, or a Session, or the end of the engine. Peer(engine,
/// event->peer) is the peer of an event.
class Peer {
public:
    Peer() noexcept = default;
    /// Wraps a handle, and keeps the engine alive.
    /// @{
    Peer(detail::Share engine, ferry_peer handle) noexcept : engine_(std::move(engine)), handle_(handle) {}
    inline Peer(const Engine &engine, ferry_peer handle) noexcept;
    /// @}
    /// Wraps a handle of ferry.h. The engine must outlive this object.
    Peer(ferry_engine *engine, ferry_peer handle) noexcept : engine_(detail::borrowed(engine)), handle_(handle) {}
    /// The engine and the handle.
    /// @{
    ferry_engine *engine() const noexcept { return engine_.get(); }
    ferry_peer handle() const noexcept { return handle_; }
    /// @}
    /// True if this is a peer.
    explicit operator bool() const noexcept { return handle_ != 0; }
    /// Compares handles.
    /// @{
    friend bool operator==(const Peer &a, const Peer &b) noexcept { return a.handle_ == b.handle_; }
    friend bool operator!=(const Peer &a, const Peer &b) noexcept { return a.handle_ != b.handle_; }
    /// @}

    /// WRITEs local memory to the peer. Returns when the bytes are visible there, or the failure. Writes
    /// `out_result` when a transfer took place. The options must have no queue.
    Result<void> write(Span<const Request> requests, OrDefault<TransferOptions> options = {},
                       TransferResult *out_result = nullptr) const noexcept
    {
        return detail::run(ferry_write, engine(), handle_, requests.data(), requests.size(), options.c(), out_result);
    }
    /// READs the peer's memory into local memory. Returns when the bytes are here, or the failure.
    Result<void> read(Span<const Request> requests, OrDefault<TransferOptions> options = {},
                      TransferResult *out_result = nullptr) const noexcept
    {
        return detail::run(ferry_read, engine(), handle_, requests.data(), requests.size(), options.c(), out_result);
    }
    /// Completes a small transfer with a peer on this host at once: ok() if it is done. pending():
    /// nothing was done; submit the transfer. Never waits. The
    /// options must have no queue.
    Result<void> at_once(Op op, Span<const Request> requests, OrDefault<TransferOptions> options = {},
                         TransferResult *out_result = nullptr) const noexcept
    {
        return detail::run(ferry_transfer_try, engine(), handle_, detail::number(op), requests.data(), requests.size(),
                           options.c(), out_result);
    }
    /// Starts a transfer; Never waits. The memory that the
    /// requests name belongs to the transfer until it is final; the list itself is not borrowed. A WRITE
    /// of an empty list sends its notification alone.
    /// @{
    Result<Transfer> submit(Op op, Span<const Request> requests,
                            OrDefault<TransferOptions> options = {}) const noexcept
    {
        Result<Transfer> result;
        ferry_transfer transfer = 0;
        if (result.take(ferry_transfer_submit(engine(), handle_, detail::number(op), requests.data(), requests.size(),
                                              options.c(), &transfer, result.slot())))
            *result = Transfer(engine_, transfer);
        return result;
    }
    Result<Transfer> submit(Op op, std::initializer_list<Request> requests,
                            OrDefault<TransferOptions> options = {}) const noexcept
    {
        return submit(op, Span<const Request>(requests), options);
    }
    /// @}
    /// Starts a transfer of blocks.
    Result<Transfer> submit(Op op, const Blocks &blocks,
                            OrDefault<TransferOptions> options = {}) const noexcept
    {
        Result<Transfer> result;
        ferry_transfer transfer = 0;
        if (result.take(ferry_transfer_submit_blocks(engine(), handle_, detail::number(op), blocks.c(), options.c(),
                                                     &transfer, result.slot())))
            *result = Transfer(engine_, transfer);
        return result;
    }
    /// Starts a transfer of blocks in layers of equal shape.
    Result<Transfer> submit(Op op, const UniformBlocks &blocks,
                            OrDefault<TransferOptions> options = {}) const noexcept
    {
        Result<Transfer> result;
        ferry_transfer transfer = 0;
        if (result.take(ferry_transfer_submit_uniform(engine(), handle_, detail::number(op), &blocks, options.c(),
                                                      &transfer, result.slot())))
            *result = Transfer(engine_, transfer);
        return result;
    }
    /// Sends bytes to the peer's application on channel 0. Returns when the peer has taken them in. A deadline of zero
    /// means the setting deadline_ms. For another channel, write an empty list with TransferOptions::channel.
    Result<void> notify(Bytes bytes, Timeout deadline = std::chrono::nanoseconds(0)) const noexcept
    {
        return detail::run(ferry_notify, engine(), handle_, bytes.data(), bytes.size(), deadline.ns());
    }

    /// Returns information about the peer.
    Result<PeerInfo> info() const noexcept
    {
        return detail::get<PeerInfo>(ferry_peer_get_info, engine(), handle_);
    }
    /// Lists the regions that the peer has announced, in order of address.
    Result<std::vector<RegionInfo>> regions() const
    {
        return detail::list<RegionInfo>(ferry_peer_regions, engine(), handle_);
    }
    /// Returns the region of this name, or the last registered one if several have the name; FERRY_ERR_NOT_REGISTERED
    /// if the peer has announced no such region.
    Result<RegionInfo> region(std::string_view name) const
    {
        const std::string terminated(name);
        Result<RegionInfo> result;
        if (name.find('\0') != std::string_view::npos) {
            result.fail(FERRY_ERR_NOT_REGISTERED, "name: the name of a region has no zero");
            return result;
        }
        result->struct_size = sizeof(RegionInfo);
        result.take(ferry_peer_region(engine(), handle_, terminated.c_str(), &*result, result.slot()));
        return result;
    }
    /// Lists every path to the peer, chosen or not, and why.
    Result<std::vector<PathInfo>> paths() const
    {
        return detail::list<PathInfo>(ferry_peer_paths, engine(), handle_);
    }
    /// Sends a probe and waits for the answer; returns the round trip.
    Result<std::chrono::nanoseconds> probe(Timeout timeout = forever) const noexcept
    {
        Result<std::chrono::nanoseconds> result;
        std::uint64_t round_trip_ns = 0;
        if (result.take(ferry_peer_probe(engine(), handle_, timeout.ns(), &round_trip_ns, result.slot())))
            *result = std::chrono::nanoseconds(static_cast<std::int64_t>(round_trip_ns));
        return result;
    }
    /// Fences the peer: returns when nothing that the peer sends can land here any more.
    Result<void> fence(Timeout timeout = forever) const noexcept
    {
        return detail::run(ferry_peer_fence, engine(), handle_, timeout.ns());
    }
    /// Closes the session, for every user of this peer. Does nothing if the session is closed.
    Result<void> close(Timeout timeout = forever) const noexcept
    {
        const Result<void> result = detail::run(ferry_peer_close, engine(), handle_, timeout.ns());
        return result.status() == FERRY_ERR_CLOSED ? Result<void>() : result;
    }

private:
    friend class Session;
    detail::Share engine_;
    ferry_peer handle_ = 0;
};

/// Closes the session with a peer in its destructor, and waits until the transfers to the peer are
/// final.
class Session : public detail::Owned<ferry_peer> {
public:
    Session() noexcept = default;
    /// Takes over the session of a connected peer.
    explicit Session(const Peer &peer) noexcept : Owned(peer.engine_, peer.handle_) {}
    /// Leaves the other empty. Assignment first destroys the old value, as the destructor does.
    /// @{
    Session(Session &&) noexcept = default;
    Session &operator=(Session &&other) noexcept
    {
        Session moved(std::move(other));
        swap(moved);
        return *this;
    }
    /// @}
    ~Session()
    {
        if (*this) ferry_peer_close(engine(), handle_, FERRY_FOREVER, nullptr);
    }
    /// The peer of the session.
    Peer peer() const noexcept { return {engine_, handle_}; }
};

/* ---- Events and queues ------------------------------------------------------------------------- */

/// One event and its bytes. operator-> gives the fields of ferry_event.
class Event {
public:
    Event() noexcept = default;
    /// Moves the bytes too. Assignment frees the old bytes.
    /// @{
    Event(Event &&other) noexcept : c_(std::exchange(other.c_, ferry_event{})) {}
    Event &operator=(Event &&other) noexcept
    {
        Event moved(std::move(other));
        std::swap(c_, moved.c_);
        return *this;
    }
    /// @}
    ~Event() { reset(); }
    /// Frees the bytes.
    void reset() noexcept
    {
        if (c_.data != nullptr) ferry_event_release(&c_);
    }
    /// The fields of ferry_event.
    /// @{
    const ferry_event *operator->() const noexcept { return &c_; }
    const ferry_event &operator*() const noexcept { return c_; }
    /// @}
    /// The kind, by which to switch.
    EventKind kind() const noexcept { return static_cast<EventKind>(c_.kind); }
    /// The bytes of a notification, or the sentence of another event; valid as long as the event.
    /// @{
    Span<const std::byte> bytes() const noexcept { return {static_cast<const std::byte *>(c_.data), c_.data_length}; }
    std::string_view text() const noexcept { return {static_cast<const char *>(c_.data), c_.data_length}; }
    /// @}

private:
    friend class Queue;
    ferry_event c_{};
};
static_assert(sizeof(Event) == sizeof(ferry_event), "drain fills an array of Event in place");

/// A hook for event loops, schedulers and coroutines: Queue::dispatch calls it when its transfer or
/// connect has ended. Derive from it, or make it the first member. It is not copied and must not move
/// until it has been called.
struct Completion {
    /// The type of the hook; it runs on the thread that dispatches.
    using Function = void (*)(Completion &self, const ferry_event &event) noexcept;
    /// Takes the function to call.
    explicit Completion(Function called) noexcept : function(called) {}
    Completion(const Completion &) = delete;
    Completion &operator=(const Completion &) = delete;
    /// The function to call.
    Function function;
};

/// A queue of events. The destructor removes the callback and destroys the queue. A queue to which
/// transfers or connects have yet to report stays in the engine until the engine is closed.
class Queue : public detail::Owned<ferry_queue> {
public:
    using Owned::Owned;
    /// Leaves the other empty. Assignment first destroys the old value, as the destructor does.
    /// @{
    Queue(Queue &&) noexcept = default;
    Queue &operator=(Queue &&other) noexcept
    {
        Queue moved(std::move(other));
        swap(moved);
        return *this;
    }
    /// @}
    ~Queue()
    {
        if (!*this) return;
        ferry_queue_callback(engine(), handle_, nullptr, nullptr, nullptr);
        ferry_queue_destroy(engine(), handle_, nullptr);
    }
    /// Returns a descriptor for poll or an event loop; it is readable when drain has events. Poll, drain
    /// until a drain returns fewer events than it had room for, and poll again. ferry owns the
    /// descriptor: only poll it.
    Result<int> fd() const noexcept
    {
        return detail::get<int>(ferry_queue_fd, engine(), handle_);
    }
    /// Takes up to storage.size() events, oldest first; returns the filled part of `storage`. Never
    /// waits. Frees the old events in `storage` first, so one array can be reused.
    Result<Span<Event>> drain(Span<Event> storage) const noexcept
    {
        Result<Span<Event>> result;
        std::size_t count = 0;
        for (Event &event : storage) event.reset();
        if (result.take(ferry_queue_drain(engine(), handle_, storage.empty() ? nullptr : &storage[0].c_, sizeof(Event),
                                          storage.size(), &count, result.slot())))
            *result = Span<Event>(storage.data(), count);
        return result;
    }
    /// Waits until there are events, then takes them as drain does. pending() if the timeout passes first. BUSY in a
    /// callback. Destroying the queue or closing the engine on another thread ends the wait.
    Result<Span<Event>> wait(Span<Event> storage, Timeout timeout = forever) const noexcept
    {
        Result<Span<Event>> result;
        std::size_t count = 0;
        for (Event &event : storage) event.reset();
        if (result.take(ferry_queue_wait(engine(), handle_, timeout.ns(), storage.empty() ? nullptr : &storage[0].c_,
                                         sizeof(Event), storage.size(), &count, result.slot())))
            *result = Span<Event>(storage.data(), count);
        return result;
    }
    /// Waits for the next event and takes it. Otherwise as wait.
    Result<Event> next(Timeout timeout = forever) const noexcept
    {
        Result<Event> result;
        std::size_t count = 0;
        result.take(ferry_queue_wait(engine(), handle_, timeout.ns(), &result->c_, sizeof(Event), 1, &count,
                                     result.slot()));
        return result;
    }
    /// Drains once. For each event it calls the event's Completion, or `other(Event &)` for transfers
    /// and connects with user_data 0, notifications and peer events. Returns the number of events; if
    /// `storage` was full, more may be left. On such a queue, user_data of all transfers and connects
    /// must be 0 or a Completion (TransferOptions::queue).
    template <class Other> Result<std::size_t> dispatch(Span<Event> storage, Other &&other) const
    {
        Result<std::size_t> result;
        Result<Span<Event>> events = drain(storage);
        if (!events) return Result<std::size_t>(events);
        for (Event &event : *events) {
            const bool ended = event->kind == FERRY_EVENT_TRANSFER || event->kind == FERRY_EVENT_PEER_CONNECTED;
            if (ended && event->user_data != 0) {
                Completion &completion = *reinterpret_cast<Completion *>(static_cast<std::uintptr_t>(event->user_data));
                completion.function(completion, *event);
            } else {
                other(event);
            }
        }
        *result = events->size();
        return result;
    }
    /// Sets the callback: ferry calls `function(const ferry_event &)` with each event on its callback
    /// thread, one event at a time. The event is valid until the function returns. The function must not
    /// throw, and must not move until the callback is removed or the queue destroyed.
    template <class Function> Result<void> callback(Function &function) const noexcept
    {
        Result<void> result;
        const ferry_callback call = [](void *context, const ferry_event *event) {
            (*static_cast<Function *>(context))(*event);
        };
        void *context = const_cast<void *>(static_cast<const void *>(std::addressof(function)));
        result.take(ferry_queue_callback(engine(), handle_, call, context, result.slot()));
        return result;
    }
    /// Removes the callback. Returns when it no longer runs.
    Result<void> no_callback() const noexcept
    {
        return detail::run(ferry_queue_callback, engine(), handle_, nullptr, nullptr);
    }
    /// Destroys the queue early. FERRY_ERR_BUSY while a transfer or connect has yet to report to it.
    Result<void> destroy() noexcept
    {
        return end(ferry_queue_destroy);
    }
};

inline TransferOptions &TransferOptions::queue(const Queue &queue) noexcept
{
    c_.queue = queue.handle();
    return *this;
}

inline TransferOptions &TransferOptions::queue(const Queue &queue, Completion &completion) noexcept
{
    c_.user_data = detail::address_of(&completion);
    return this->queue(queue);
}

/* ---- Engines ----------------------------------------------------------------------------------- */

/// An engine registers memory, connects to peers, and moves bytes. The engine and all objects made from it may be
/// destroyed in any order, on any thread but ferry's callback thread: the last of them closes and frees the engine, and
/// waits until its transfers are final. close() ends the engine earlier.
class Engine {
public:
    /// Empty; assign an engine to it.
    Engine() noexcept = default;
    /// Leaves the other empty. Assignment gives up the share of the old engine.
    /// @{
    Engine(Engine &&) noexcept = default;
    Engine &operator=(Engine &&) noexcept = default;
    /// @}
    ~Engine() = default;
    /// Opens an engine: listens where the configuration says, and starts its threads.
    static Result<Engine> open(const Config &config = Config())
    {
        Result<Engine> result;
        ferry_engine *engine = nullptr;
        if (result.take(ferry_engine_open(config.handle(), &engine, result.slot()))) result->c_.reset(engine, Free());
        return result;
    }
    /// Refuses new work and makes all transfers final; nothing touches registered memory afterwards.
    /// FERRY_ERR_BUSY: the engine is still closing; call again.
    Result<void> close(Timeout timeout = forever) const noexcept
    {
        return detail::run(ferry_engine_close, handle(), timeout.ns());
    }
    /// Returns the "host:port" at which peers reach the engine.
    Result<std::string> address() const
    {
        return detail::text<std::string>(ferry_engine_address, handle());
    }

    /// Returns the warnings of an engine that has opened nevertheless: one sentence on each line.
    Result<std::string> warnings() const
    {
        return detail::text<std::string>(ferry_engine_warnings, handle());
    }

    /// Allocates `size` bytes of registered memory.
    Result<Memory> alloc(std::size_t size, OrDefault<AllocOptions> options = {}) const noexcept
    {
        Result<Memory> result;
        void *address = nullptr;
        ferry_region region = 0;
        if (result.take(ferry_memory_alloc(handle(), size, options.c(), &address, &region, result.slot())))
            *result = Memory(c_, region, address, size);
        return result;
    }
    /// Registers the caller's memory, of the host or of a device (a CUdeviceptr as void *). It must stay
    /// mapped as long as the Region lives. ferry detects the kind of memory unless RegionOptions::kind
    /// says it.
    Result<Region> register_memory(void *address, std::size_t size,
                                   OrDefault<RegionOptions> options = {}) const noexcept
    {
        Result<Region> result;
        ferry_region region = 0;
        if (result.take(ferry_region_register(handle(), address, size, options.c(), &region, result.slot())))
            *result = Region(c_, region);
        return result;
    }
    /// Registers `size` bytes of a file or of a block device, from `offset` on. ferry opens the file anew with the
    /// rights of `fd`, which may be closed afterwards. See ferry_region_register_file.
    Result<FileRegion> register_file(int fd, std::uint64_t offset, std::uint64_t size,
                                     OrDefault<RegionOptions> options = {}) const noexcept
    {
        Result<FileRegion> result;
        std::uint64_t address = 0;
        ferry_region region = 0;
        if (result.take(ferry_region_register_file(handle(), fd, offset, size, options.c(), &address, &region,
                                                   result.slot()))) {
            result->region = Region(c_, region);
            result->address = address;
        }
        return result;
    }
    /// Registers several pieces of memory, all or none, and announces them together. Returns regions in
    /// the same order.
    Result<std::vector<Region>> register_batch(Span<void *const> addresses, Span<const std::size_t> sizes,
                                               OrDefault<RegionOptions> options = {}) const
    {
        Result<std::vector<Region>> result;
        if (addresses.size() != sizes.size()) {
            result.fail(FERRY_ERR_INVALID, "the lists of addresses and sizes have different lengths");
            return result;
        }
        std::vector<ferry_region> regions(addresses.size());
        result->reserve(regions.size());
        if (result.take(ferry_region_register_batch(handle(), addresses.data(), sizes.data(), addresses.size(),
                                                    options.c(), regions.data(), result.slot())))
            for (ferry_region region : regions) result->emplace_back(c_, region);
        return result;
    }

    /// Connects to the engine at "host:port" and waits until transfers can be submitted.
    Result<Peer> connect(Text address, Timeout timeout = forever) const noexcept
    {
        Result<Peer> result;
        ferry_peer peer = 0;
        if (result.take(ferry_peer_connect(handle(), address.c_str(), timeout.ns(), &peer, result.slot())))
            *result = Peer(c_, peer);
        return result;
    }
    /// Starts to connect, without waiting: the queue gets one FERRY_EVENT_PEER_CONNECTED with
    /// `user_data`.
    Result<void> connect_async(Text address, Timeout timeout, const Queue &queue,
                               std::uint64_t user_data = 0) const noexcept
    {
        return detail::run(ferry_peer_connect_async, handle(), address.c_str(), timeout.ns(), queue.handle(),
                           user_data);
    }
    /// Starts to connect, without waiting; Queue::dispatch calls the completion.
    Result<void> connect_async(Text address, Timeout timeout, const Queue &queue, Completion &completion) const noexcept
    {
        const auto user_data = detail::address_of(&completion);
        return connect_async(address, timeout, queue, user_data);
    }
    /// Connects to the engine that a descriptor names.
    Result<Peer> connect_descriptor(Bytes descriptor, Timeout timeout = forever) const noexcept
    {
        Result<Peer> result;
        ferry_peer peer = 0;
        if (result.take(ferry_descriptor_import(handle(), descriptor.data(), descriptor.size(), timeout.ns(), &peer,
                                                result.slot())))
            *result = Peer(c_, peer);
        return result;
    }
    /// Returns this engine's descriptor, with which other engines connect; at most 300 bytes.
    Result<std::vector<std::byte>> descriptor() const
    {
        return detail::text<std::vector<std::byte>>(ferry_descriptor_export, handle());
    }
    /// Returns the engine as a peer of itself, for transfers between its own regions (ferry_engine_own_peer).
    Result<Peer> own_peer() const noexcept
    {
        Result<Peer> result;
        ferry_peer peer = 0;
        if (result.take(ferry_engine_own_peer(handle(), &peer, result.slot()))) *result = Peer(c_, peer);
        return result;
    }
    /// Lists the known peers; lost peers stay for a while.
    Result<std::vector<Peer>> peers() const
    {
        const auto handles = detail::list<ferry_peer>(ferry_peer_list, handle());
        if (!handles) return Result<std::vector<Peer>>(handles);
        Result<std::vector<Peer>> result;
        for (ferry_peer handle : *handles) result->emplace_back(c_, handle);
        return result;
    }

    /// Creates a queue for the kinds of events in `what`, FERRY_QUEUE_* bits. `capacity` bounds the
    /// transfers and connects that are in progress or wait to be drained. Notifications are those of `channel`.
    Result<Queue> queue(std::uint32_t what, std::size_t capacity, std::uint32_t channel = 0) const noexcept
    {
        Result<Queue> result;
        ferry_queue queue = 0;
        if (result.take(ferry_queue_create_channel(handle(), what, capacity, channel, &queue, result.slot())))
            *result = Queue(c_, queue);
        return result;
    }
    /// Waits until one of several transfers is final; returns its index in the list. pending() if the
    /// timeout passes first.
    Result<std::size_t> wait_any(Span<const ferry_transfer> transfers, Timeout timeout = forever) const noexcept
    {
        return detail::get<std::size_t>(ferry_transfer_wait_any, handle(), transfers.data(), transfers.size(),
                                        timeout.ns());
    }

    /// Waits until every transfer of the list is final: ok() if each is done, otherwise the failure of the first that is
    /// not done, whose index `out_index` gets. pending() if the timeout passes first; then the index of the first that
    /// is not final.
    Result<void> wait_all(Span<const ferry_transfer> transfers, Timeout timeout = forever,
                          std::size_t *out_index = nullptr) const noexcept
    {
        return detail::run(ferry_transfer_wait_all, handle(), transfers.data(), transfers.size(), timeout.ns(),
                           out_index);
    }
    /// Waits until all of these transfers are final.
    Result<void> wait_all(Span<const Transfer> transfers, Timeout timeout = forever,
                          std::size_t *out_index = nullptr) const
    {
        std::vector<ferry_transfer> handles;
        handles.reserve(transfers.size());
        for (const Transfer &transfer : transfers) handles.push_back(transfer.handle());
        return wait_all(handles, timeout, out_index);
    }

    /// Returns the counters since the engine was opened, and the current number of objects.
    Result<Stats> stats() const noexcept
    {
        return detail::get<Stats>(ferry_engine_get_stats, handle());
    }
    /// Returns the statistics in Prometheus' text format.
    Result<std::string> metrics() const
    {
        return detail::text<std::string>(ferry_engine_metrics, handle());
    }

    /// The engine for ferry.h; this object still owns it.
    ferry_engine *handle() const noexcept { return c_.get(); }
    /// True if this object owns an engine.
    explicit operator bool() const noexcept { return c_ != nullptr; }

private:
    struct Free {
        void operator()(ferry_engine *engine) const noexcept { ferry_engine_free(engine); }
    };
    template <class Handle> friend class detail::Owned;
    friend class Peer;
    detail::Share c_;
};

template <class Handle>
inline detail::Owned<Handle>::Owned(const Engine &engine, Handle handle) noexcept : Owned(engine.c_, handle)
{
}

inline Peer::Peer(const Engine &engine, ferry_peer handle) noexcept : Peer(engine.c_, handle) {}

/* ---- Coroutines -------------------------------------------------------------------------------- */

#ifdef FERRY_HAS_COROUTINES

/// co_await Move(peer, Op::write, requests, queue) submits a transfer and resumes when it is final,
/// on the thread that calls queue.dispatch. The result is a Result<void>: the outcome of the transfer,
/// or why it was not submitted. It allocates nothing: the awaiter lives in the coroutine's frame, which
/// must not be destroyed before the coroutine resumes.
class Move : Completion {
public:
    /// As Peer::submit. Borrows the requests until it is awaited. Writes `out_result` when the transfer
    /// is final.
    Move(const Peer &peer, Op op, Span<const Request> requests, const Queue &queue,
         TransferOptions options = {}, TransferResult *out_result = nullptr) noexcept
        : Completion(&Move::ended), peer_(peer), op_(op), requests_(requests), options_(options), out_result_(out_result)
    {
        options_.queue(queue, *this);
    }
    /// The awaiter's interface.
    /// @{
    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiting) noexcept
    {
        Result<void> submitted;
        ferry_transfer transfer = 0;
        waiting_ = waiting;
        // After submit the transfer may end on another thread, which may destroy this object before the
        // call returns.
        if (submitted.take(ferry_transfer_submit(peer_.engine(), peer_.handle(), detail::number(op_), requests_.data(),
                                                 requests_.size(), options_.c(), &transfer, submitted.slot())))
            return true;
        result_ = submitted;
        return false;
    }
    Result<void> await_resume() noexcept
    {
        if (transfer_ == 0) return result_;
        return Transfer(peer_.engine(), transfer_).wait(std::chrono::nanoseconds(0), out_result_);
    }
    /// @}

private:
    static void ended(Completion &self, const ferry_event &event) noexcept
    {
        Move &move = static_cast<Move &>(self);
        move.transfer_ = event.transfer;
        move.waiting_.resume();
    }

    Peer peer_;
    Op op_;
    Span<const Request> requests_;
    TransferOptions options_;
    TransferResult *out_result_;
    std::coroutine_handle<> waiting_;
    ferry_transfer transfer_ = 0;
    Result<void> result_;
};

#endif // FERRY_HAS_COROUTINES

} // namespace ferry

#endif // FERRY_HPP
