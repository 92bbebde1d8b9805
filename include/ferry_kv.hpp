/** @file
 * KV caches and directories of peers for C++17, by ferry_kv.h: layouts, plans, handing sequences over, timelines, and
 * peers by name. Header only; link libferry.
 *
 * ferry_kv.h has the contract of each call, its constants (FERRY_KV_*, FERRY_DIRECTORY_*) and its plain structs.
 * docs/kv.md and docs/directory.md say what the words mean. The rules of ferry.hpp hold: results, ownership, threads
 * and timeouts are the same. Further:
 *
 * - Lists of blocks and of peers are borrowed for the length of a call. Layers own their names, events their lists.
 * - Calls that take a Description or a list may also throw std::bad_alloc. Cache::poll, Cache::wait, Cache::mark and
 *   Directory::poll allocate nothing here.
 *
 * Above 500 lines, because a user copies and includes one file.
 */
#ifndef FERRY_KV_HPP
#define FERRY_KV_HPP

#include <ferry.hpp>
#include <ferry_kv.h>

namespace ferry::kv {

/* ---- Numbers with names -------------------------------------------------------------------------- */

/// Numbers of ferry_kv.h, which says what each means. A newer library may have numbers that are not here.
/// @{
enum class EventKind : std::uint32_t {
    layers = FERRY_KV_EVENT_LAYERS,
    sent = FERRY_KV_EVENT_SENT,
    received = FERRY_KV_EVENT_RECEIVED,
    failed = FERRY_KV_EVENT_FAILED,
    cancelled = FERRY_KV_EVENT_CANCELLED,
    expired = FERRY_KV_EVENT_EXPIRED,
    peer_lost = FERRY_KV_EVENT_PEER_LOST
};
enum class StateKind : std::uint32_t {
    unknown = FERRY_KV_STATE_UNKNOWN,
    offered = FERRY_KV_STATE_OFFERED,
    taking = FERRY_KV_STATE_TAKING,
    ending = FERRY_KV_STATE_ENDING,
    ended = FERRY_KV_STATE_ENDED
};
enum class Mode : std::uint32_t {
    automatic = FERRY_KV_MODE_AUTO,
    pull = FERRY_KV_MODE_PULL,
    push = FERRY_KV_MODE_PUSH
};
enum class Arrangement : std::uint32_t {
    none, ///< The layer has a tensor or strides instead.
    pair_block_token_head = FERRY_KV_PAIR_BLOCK_TOKEN_HEAD,
    pair_block_head_token = FERRY_KV_PAIR_BLOCK_HEAD_TOKEN,
    block_pair_token_head = FERRY_KV_BLOCK_PAIR_TOKEN_HEAD,
    block_pair_head_token = FERRY_KV_BLOCK_PAIR_HEAD_TOKEN,
    block_head_pair_token = FERRY_KV_BLOCK_HEAD_PAIR_TOKEN
};
/// @}

/// The name of a number: "RECEIVED", or "UNKNOWN". For logs.
/// @{
inline const char *to_string(EventKind kind) noexcept { return ferry_kv_event_name(ferry::detail::number(kind)); }
inline const char *to_string(StateKind kind) noexcept { return ferry_kv_state_name(ferry::detail::number(kind)); }
/// @}

/* ---- Descriptions of layouts ------------------------------------------------------------------- */

/// Layers that share their block ids: `Group::full(16)` has blocks of 16 tokens. The fields are those of
/// ferry_kv_group.
struct Group : ferry_kv_group {
    /// Makes a group of each kind.
    /// @{
    static Group full(std::uint32_t tokens) noexcept { return Group(FERRY_KV_GROUP_FULL, tokens); }
    static Group window(std::uint32_t tokens, std::uint32_t window) noexcept
    {
        return Group(FERRY_KV_GROUP_WINDOW, tokens, window);
    }
    static Group latent(std::uint32_t tokens) noexcept { return Group(FERRY_KV_GROUP_LATENT, tokens); }
    static Group state() noexcept { return Group(FERRY_KV_GROUP_STATE, 1); }
    /// @}

private:
    explicit Group(std::uint32_t of_kind, std::uint32_t tokens, std::uint32_t window = 0) noexcept
        : ferry_kv_group{static_cast<std::uint32_t>(sizeof(ferry_kv_group)), of_kind, tokens, window}
    {
    }
};
static_assert(sizeof(Group) == sizeof(ferry_kv_group), "a list of Group is one of ferry_kv_group");

/// The distances in bytes from one block, pair, head, token or element of a layer to the next.
struct Strides {
    /// The strides of ferry_kv_layer.
    /// @{
    std::uint64_t block = 0, pair = 0, head = 0, token = 0, element = 0;
    /// @}
};

/// One tensor of the cache; the fields are those of ferry_kv_layer, which has their meaning. Layer::of describes a
/// tensor as frameworks do. Without it, set all fields down to `blocks`, and `arrangement` or `strides`.
struct Layer {
    /// Describes a tensor: `order` names its dimensions from the outermost, such as "block pair head token element",
    /// and `shape` has their sizes. pair, head and token may be missing. `strides` are the bytes from one element of a
    /// dimension to the next; without them the tensor is contiguous. If `heads` stays 0, the model has the heads of the
    /// shape, times tp_size. Layout::create reports what is wrong.
    template <class Element>
    static Layer of(std::string name, std::string order, const Element *data, std::vector<std::uint64_t> shape,
                    std::vector<std::uint64_t> strides = {})
    {
        static_assert(!std::is_void_v<Element>, "cast the address to a pointer to the type of the elements");
        Layer layer;
        layer.name = std::move(name);
        layer.address = data;
        layer.element_bytes = sizeof(Element);
        layer.order = std::move(order);
        layer.shape = std::move(shape);
        layer.steps = std::move(strides);
        return layer;
    }
    /// The same on all ranks and both sides.
    std::string name;
    /// Index into Description::groups.
    std::uint32_t group = 0;
    /// The pipeline stage that holds the layer.
    std::uint32_t stage = 0;
    /// KV heads of the whole model.
    std::uint32_t heads = 0;
    /// 2 for keys and values, 1 if there is one kind of row.
    std::uint32_t pairs = 2;
    /// Elements of one row.
    std::uint32_t elements = 0;
    /// Bytes of one element.
    std::uint32_t element_bytes = 0;
    /// Block 0 in this process, in memory of the host or of a device. NULL for a layer of another stage.
    const void *address = nullptr;
    /// How many blocks the tensor has.
    std::uint64_t blocks = 0;
    /// The order of the dimensions of a contiguous tensor.
    Arrangement arrangement = Arrangement::none;
    /// Used only without an arrangement.
    Strides strides;
    /// What Layer::of was given; then pairs, elements, blocks, arrangement and `strides` are not used.
    /// @{
    std::string order;
    std::vector<std::uint64_t> shape, steps;
    /// @}
};

/// One rank's cache; the fields are those of ferry_kv_layout_desc, which has their meaning.
struct Description {
    /// The four texts that are equal on both sides.
    /// @{
    std::string model, revision, cache, rope;
    /// @}
    /// Tensor, pipeline and context parallelism: this rank, and how many there are.
    /// @{
    std::uint32_t tp_rank = 0, tp_size = 1, pp_rank = 0, pp_size = 1, pcp_rank = 0, pcp_size = 1, dcp_size = 1;
    /// @}
    /// Context parallel ranks take turns of this many tokens.
    std::uint32_t turn_tokens = 1;
    /// The groups, 1 to 64.
    std::vector<Group> groups;
    /// The layers of all stages in the order of computation, 1 to 1,024.
    std::vector<Layer> layers;
};

namespace detail {

using ferry::detail::address_of;
using ferry::detail::get;
using ferry::detail::Kept;
using ferry::detail::list;
using ferry::detail::number;
using ferry::detail::Owned;
using ferry::detail::run;
using ferry::detail::text;

/// Frees what ferry_kv.h has made.
struct Free {
    /// By the type of the pointer.
    /// @{
    void operator()(ferry_kv_layout *layout) const noexcept { ferry_kv_layout_free(layout); }
    void operator()(ferry_kv_plan *plan) const noexcept { ferry_kv_plan_free(plan); }
    void operator()(ferry_kv_moves *moves) const noexcept { ferry_kv_moves_free(moves); }
    /// @}
};

/// True if a text can be given to C whole. Otherwise the outcome says which text has a zero.
inline bool whole(const std::string &text, const std::string &of, Outcome &outcome)
{
    if (text.find('\0') == std::string::npos) return true;
    outcome.fail(FERRY_ERR_INVALID, (of + " has a zero").c_str());
    return false;
}

/// The handles of peers, which must be peers of this engine: another engine's handles could be mistaken for its own.
inline Result<std::vector<ferry_peer>> handles(Span<const Peer> peers, ferry_engine *engine, const char *of)
{
    Result<std::vector<ferry_peer>> result;
    result->reserve(peers.size());
    for (const Peer &peer : peers) {
        if (!peer || peer.engine() != engine) {
            const std::string which = of + ("[" + std::to_string(result->size()) + "]");
            result.fail(FERRY_ERR_INVALID, (which + " is no peer of the cache's engine").c_str());
            return result;
        }
        result->push_back(peer.handle());
    }
    return result;
}

} // namespace detail

/* ---- Layouts ----------------------------------------------------------------------------------- */

/// Numbers of a layout; the fields are those of ferry_kv_layout_info.
struct LayoutInfo : ferry_kv_layout_info {
    LayoutInfo() noexcept : ferry_kv_layout_info{} { struct_size = sizeof(ferry_kv_layout_info); }
};

/// One rank's part of a paged KV cache. It never changes. The destructor frees it.
class Layout {
public:
    /// Empty; assign a layout to it.
    Layout() noexcept = default;
    /// Makes a layout from its description. The memory that it names is not touched.
    static Result<Layout> create(const Description &from)
    {
        Result<Layout> result;
        ferry_kv_layout_desc desc = FERRY_KV_LAYOUT_DESC_INIT;
        if (!texts(from, desc, result)) return result;
        desc.tp_rank = from.tp_rank;
        desc.tp_size = from.tp_size;
        desc.pp_rank = from.pp_rank;
        desc.pp_size = from.pp_size;
        desc.pcp_rank = from.pcp_rank;
        desc.pcp_size = from.pcp_size;
        desc.dcp_size = from.dcp_size;
        desc.turn_tokens = from.turn_tokens;
        desc.groups = from.groups.data();
        desc.group_count = from.groups.size();
        std::vector<ferry_kv_layer> layers(from.layers.size());
        for (std::size_t i = 0; i < layers.size(); i++)
            if (!layer(from.layers[i], "layers[" + std::to_string(i) + "]", desc, layers[i], result)) return result;
        desc.layers = layers.data();
        desc.layer_count = layers.size();
        ferry_kv_layout *layout = nullptr;
        if (result.take(ferry_kv_layout_new(&desc, &layout, result.slot()))) result->c_.reset(layout);
        return result;
    }
    /// Makes a layout from the bytes of `exported`, which need not be trusted.
    static Result<Layout> load(Bytes bytes) noexcept
    {
        Result<Layout> result;
        ferry_kv_layout *layout = nullptr;
        if (result.take(ferry_kv_layout_import(bytes.data(), bytes.size(), &layout, result.slot())))
            result->c_.reset(layout);
        return result;
    }
    /// Returns the layout as bytes, for the other ranks: at most 64 KiB.
    Result<std::vector<std::byte>> exported() const
    {
        return detail::text<std::vector<std::byte>>(ferry_kv_layout_export, handle());
    }
    /// Returns this rank's number, how many ranks there are, and how many groups and layers.
    Result<LayoutInfo> info() const noexcept
    {
        return detail::get<LayoutInfo>(ferry_kv_layout_get_info, handle());
    }
    /// The layout for ferry_kv.h; this object still owns it.
    const ferry_kv_layout *handle() const noexcept { return c_.get(); }
    /// True if this object owns a layout.
    explicit operator bool() const noexcept { return c_ != nullptr; }

private:
    static bool texts(const Description &from, ferry_kv_layout_desc &desc, Outcome &outcome)
    {
        if (!detail::whole(from.model, "model", outcome) || !detail::whole(from.revision, "revision", outcome) ||
            !detail::whole(from.cache, "cache", outcome) || !detail::whole(from.rope, "rope", outcome))
            return false;
        desc.model = from.model.c_str();
        desc.revision = from.revision.c_str();
        desc.cache = from.cache.c_str();
        desc.rope = from.rope.c_str();
        return true;
    }
    static bool layer(const Layer &from, const std::string &of, const ferry_kv_layout_desc &desc, ferry_kv_layer &out,
                      Outcome &outcome)
    {
        if (!detail::whole(from.name, of + ".name", outcome) || !detail::whole(from.order, of + ".order", outcome))
            return false;
        const Strides &to = from.strides;
        out = {sizeof out,    from.group,    from.name.c_str(),  from.stage, from.heads,
               from.pairs,    from.elements, from.element_bytes, 0,          detail::address_of(from.address),
               from.blocks,   to.block,      to.pair,            to.head,    to.token,
               to.element};
        // Without an address the strides are not used. ferry_kv_layout_new reports a wrong group, with its layer.
        const bool has_tensor = !from.order.empty() || !from.shape.empty();
        if (from.group >= desc.group_count || (from.address == nullptr && !has_tensor)) return true;
        Result<void> made;
        if (has_tensor) {
            const ferry_kv_tensor tensor = {sizeof tensor,       from.element_bytes, out.address,
                                            from.order.c_str(),  from.shape.size(),  from.shape.data(),
                                            from.steps.empty() ? nullptr : from.steps.data()};
            if (from.steps.empty() || from.steps.size() == from.shape.size())
                made = detail::run(ferry_kv_layer_of, &desc, &tensor, &out);
            else
                made.fail(FERRY_ERR_INVALID, "strides and shape have different lengths");
        } else if (from.arrangement != Arrangement::none) {
            made = detail::run(ferry_kv_layer_arrange, &desc, detail::number(from.arrangement), &out);
        } else if ((to.block | to.pair | to.head | to.token | to.element) == 0) {
            made.fail(FERRY_ERR_INVALID, "neither arrangement nor strides are set; Layer::of needs neither");
        }
        if (made) return true;
        outcome.fail(made.status(), (of + ", " + from.name + ": " + made.message()).c_str());
        return false;
    }

    std::unique_ptr<ferry_kv_layout, detail::Free> c_;
};

/* ---- Lists of blocks --------------------------------------------------------------------------- */

/// The blocks of one group that hold a sequence; the fields are those of ferry_kv_block_list. Borrows the ids, which
/// must outlive it; temporaries are refused. Without ids: a group that is not needed, or has no blocks yet.
struct BlockList : ferry_kv_block_list {
    BlockList() noexcept : BlockList(detail::Kept<Span<const std::uint32_t>>()) {}
    /// Takes the ids, and which of the rank's tokens the first block begins with.
    explicit BlockList(detail::Kept<Span<const std::uint32_t>> ids, std::uint64_t first = 0) noexcept
        : ferry_kv_block_list{static_cast<std::uint32_t>(sizeof(ferry_kv_block_list)), 0, first, ids.data(), ids.size()}
    {
    }
};
static_assert(sizeof(BlockList) == sizeof(ferry_kv_block_list), "a list of BlockList is one of ferry_kv_block_list");

/* ---- Plans ------------------------------------------------------------------------------------- */

/// Bytes of one layer, by strides; the fields are those of ferry_kv_move, which has the formula. The lists of blocks
/// belong to the Moves.
struct Move : ferry_kv_move {
    Move() noexcept : ferry_kv_move{} { struct_size = sizeof(ferry_kv_move); }
    /// Calls `piece(source, target, bytes)` for each run of contiguous bytes, with its two addresses.
    template <class Piece> void pieces(Piece &&piece) const
    {
        for (std::uint64_t pair = 0; pair < pair_count; pair++)
            steps(source + source_blocks[pair] * source_stride, target + target_blocks[pair] * target_stride, piece);
    }

private:
    // The four loops of one pair of blocks, the outermost first.
    template <class Piece> void steps(std::uint64_t from, std::uint64_t to, Piece &piece, int loop = 0) const
    {
        if (loop == 4) return static_cast<void>(piece(from, to, bytes));
        for (std::uint64_t step = 0; step < counts[loop]; step++)
            steps(from + step * source_steps[loop], to + step * target_steps[loop], piece, loop + 1);
    }
};

/// The bytes that one rank of the source sends to one rank of the target. They never change. The destructor frees them.
class Moves {
public:
    /// Empty; assign moves to it.
    Moves() noexcept = default;
    /// Returns how many moves there are.
    Result<std::size_t> count() const noexcept
    {
        return detail::get<std::size_t>(ferry_kv_moves_count, handle());
    }
    /// Returns one move; valid as long as the moves.
    Result<Move> get(std::size_t index) const noexcept
    {
        return detail::get<Move>(ferry_kv_moves_get, handle(), index);
    }
    /// The moves for ferry_kv.h; this object still owns them.
    const ferry_kv_moves *handle() const noexcept { return c_.get(); }
    /// True if this object owns a list of moves, which may be empty.
    explicit operator bool() const noexcept { return c_ != nullptr; }

private:
    friend class Plan;
    std::unique_ptr<ferry_kv_moves, detail::Free> c_;
};

/// Which part of a sequence to move; ferry_kv_part has the meaning. Borrows its lists; they must outlive it.
struct Part {
    /// The tokens from first_token to before end_token.
    /// @{
    std::uint64_t first_token = 0, end_token = 0;
    /// @}
    /// The layers from first_layer to before end_layer, as indices into the target's layers.
    /// @{
    std::uint32_t first_layer = 0, end_layer = UINT32_MAX;
    /// @}
    /// Both sides' blocks, one list for each group of the target.
    /// @{
    detail::Kept<Span<const BlockList>> source, target;
    /// @}
};

/// Which rank sends what to which, for two instances. A plan never changes. The destructor frees it.
class Plan {
public:
    /// Empty; assign a plan to it.
    Plan() noexcept = default;
    /// Plans how the instance of `target` gets what the instance of `source` holds. The layouts may be destroyed before
    /// the plan.
    static Result<Plan> create(const Layout &source, const Layout &target) noexcept
    {
        Result<Plan> result;
        ferry_kv_plan *plan = nullptr;
        if (result.take(ferry_kv_plan_new(source.handle(), target.handle(), &plan, result.slot())))
            result->c_.reset(plan);
        return result;
    }
    /// Lists the ranks of the source that send to a rank of the target.
    Result<std::vector<std::uint32_t>> sources(std::uint32_t target_rank) const
    {
        return detail::list<std::uint32_t>(ferry_kv_plan_sources, handle(), target_rank);
    }
    /// Lists the ranks of the target to which a rank of the source sends.
    Result<std::vector<std::uint32_t>> targets(std::uint32_t source_rank) const
    {
        return detail::list<std::uint32_t>(ferry_kv_plan_targets, handle(), source_rank);
    }
    /// Returns a page for people: who sends how much to whom, and in pieces of what size.
    Result<std::string> explain() const
    {
        return detail::text<std::string>(ferry_kv_plan_explain, handle());
    }
    /// Finds the bytes that the rank of `source` sends to the rank of `target`. Nothing is moved. FERRY_ERR_INVALID
    /// also if the part's lists have different lengths.
    Result<Moves> lower(const Layout &source, const Layout &target, const Part &part) const
    {
        Result<Moves> result;
        if (part.source.size() != part.target.size()) {
            result.fail(FERRY_ERR_INVALID, "the lists of source and target blocks have different lengths");
            return result;
        }
        std::vector<ferry_kv_block_pairs> blocks(part.target.size());
        for (std::size_t i = 0; i < blocks.size(); i++) {
            const BlockList &from = part.source[i], &to = part.target[i];
            blocks[i] = {sizeof(ferry_kv_block_pairs), 0,         from.blocks,    from.block_count,
                         from.first_token,        to.blocks, to.block_count, to.first_token};
        }
        ferry_kv_part c_part = FERRY_KV_PART_INIT;
        c_part.first_token = part.first_token;
        c_part.end_token = part.end_token;
        c_part.first_layer = part.first_layer;
        c_part.end_layer = part.end_layer;
        c_part.blocks = blocks.data();
        c_part.group_count = blocks.size();
        ferry_kv_moves *moves = nullptr;
        if (result.take(ferry_kv_plan_lower(handle(), source.handle(), target.handle(), &c_part, &moves,
                                            result.slot())))
            result->c_.reset(moves);
        return result;
    }
    /// The plan for ferry_kv.h; this object still owns it.
    const ferry_kv_plan *handle() const noexcept { return c_.get(); }
    /// True if this object owns a plan.
    explicit operator bool() const noexcept { return c_ != nullptr; }

private:
    std::unique_ptr<ferry_kv_plan, detail::Free> c_;
};

/* ---- Ids and events ---------------------------------------------------------------------------- */

/// 128 bits that name one attempt to hand a sequence over; `bytes` has them. to_string and parse carry an id to another
/// process as 32 hexadecimal digits. Keep ids out of logs: anyone who knows an id may take its offer.
struct Id : ferry_kv_id {
    /// All zeros: no id that new_id draws.
    Id() noexcept : ferry_kv_id{} {}
    /// Takes an id of ferry_kv.h.
    Id(const ferry_kv_id &id) noexcept : ferry_kv_id(id) {}
    /// Reads what to_string wrote.
    static Result<Id> parse(Text text) noexcept { return detail::get<Id>(ferry_kv_id_parse, text.c_str()); }
    /// Compares the bits.
    /// @{
    friend bool operator==(const Id &a, const Id &b) noexcept { return compare(a, b) == 0; }
    friend bool operator!=(const Id &a, const Id &b) noexcept { return compare(a, b) != 0; }
    friend bool operator<(const Id &a, const Id &b) noexcept { return compare(a, b) < 0; }
    /// @}

private:
    static int compare(const Id &a, const Id &b) noexcept { return std::memcmp(a.bytes, b.bytes, sizeof a.bytes); }
};

/// Draws an id.
inline Result<Id> new_id() noexcept { return detail::get<Id>(ferry_kv_id_new); }
/// The id as 32 hexadecimal digits.
inline std::string to_string(const Id &id)
{
    char text[FERRY_KV_ID_TEXT_BYTES];
    (void)ferry_kv_id_format(&id, text, sizeof text, nullptr);
    return text;
}

/// A block of a group.
using Block = ferry_kv_block;

/// An event of an offer or a take, with its lists. operator-> gives the fields of ferry_kv_event, such as `peer` and
/// `rank`, which say who has ended the handoff. It may outlive the cache and the engine.
class Event {
public:
    Event() noexcept : c_(none()) {}
    /// Moves the lists too. Assignment frees the old lists.
    /// @{
    Event(Event &&other) noexcept : c_(std::exchange(other.c_, none())) {}
    Event &operator=(Event &&other) noexcept
    {
        Event moved(std::move(other));
        std::swap(c_, moved.c_);
        return *this;
    }
    /// @}
    ~Event() { ferry_kv_event_release(&c_); }
    /// The fields of ferry_kv_event.
    /// @{
    const ferry_kv_event *operator->() const noexcept { return &c_; }
    const ferry_kv_event &operator*() const noexcept { return c_; }
    /// @}
    /// The kind, by which to switch.
    EventKind kind() const noexcept { return static_cast<EventKind>(c_.kind); }
    /// The offer or take.
    Id id() const noexcept { return c_.id; }
    /// True if the offer or take has ended: its blocks are the caller's.
    bool terminal() const noexcept { return c_.kind != 0 && c_.kind != FERRY_KV_EVENT_LAYERS; }
    /// Why, in a sentence; "" for FERRY_OK. Valid as long as the event.
    const char *message() const noexcept { return c_.message ? c_.message : ""; }
    /// Blocks of a take whose contents are undefined. Valid as long as the event.
    Span<const Block> untrusted() const noexcept
    {
        return {c_.untrusted, static_cast<std::size_t>(c_.untrusted_count)};
    }

private:
    friend class Cache;
    static ferry_kv_event none() noexcept { return FERRY_KV_EVENT_INIT; }
    ferry_kv_event c_;
};

/// The state of an id; the fields are those of ferry_kv_state.
struct State : ferry_kv_state {
    State() noexcept : ferry_kv_state{} { struct_size = sizeof(ferry_kv_state); }
};

/// A cache's counters; the fields are those of ferry_kv_stats.
struct Stats : ferry_kv_stats {
    Stats() noexcept : ferry_kv_stats{} { struct_size = sizeof(ferry_kv_stats); }
};

/* ---- Timelines --------------------------------------------------------------------------------- */

/// One step of a handoff, or a mark of the application; the fields are those of ferry_kv_timeline_entry. Times are
/// nanoseconds of std::chrono::steady_clock, which is CLOCK_MONOTONIC, the same in all processes of a host.
struct TimelineEntry : ferry_kv_timeline_entry {
    TimelineEntry() noexcept : ferry_kv_timeline_entry{} { struct_size = sizeof(ferry_kv_timeline_entry); }
};
static_assert(sizeof(TimelineEntry) == sizeof(ferry_kv_timeline_entry),
              "a list of TimelineEntry is one of ferry_kv_timeline_entry");

/// Draws entries as a picture, SVG: a lane for each layer, with compute and transfers as bars, and the ends of handoffs
/// as lines. The entries may be of several caches of one host, in any order. Needs no cache. FERRY_ERR_LIMIT: more than
/// 1,048,576 entries.
inline Result<std::string> timeline_svg(Span<const TimelineEntry> entries)
{
    return detail::text<std::string>(ferry_kv_timeline_svg, entries.data(), entries.size());
}

/* ---- Options ----------------------------------------------------------------------------------- */

namespace detail {

/// Milliseconds for a field in which 0 means the default: a time of zero becomes 1 ms, the shortest.
inline std::uint32_t milliseconds(Timeout time) noexcept
{
    const std::uint64_t ms = time.ns() / 1000000 + (time.ns() % 1000000 != 0);
    if (ms == 0) return 1;
    return ms > UINT32_MAX ? UINT32_MAX : static_cast<std::uint32_t>(ms);
}

} // namespace detail

/// Registered memory that has layers of a cache; the fields are those of ferry_kv_memory.
struct Range : ferry_kv_memory {
    /// All of this memory, or a part of a region.
    /// @{
    Range(const ferry::Memory &memory) noexcept : Range(memory.handle(), memory.data(), memory.size()) {}
    Range(const Region &of, const void *start, std::size_t bytes) noexcept : Range(of.handle(), start, bytes) {}
    /// @}

private:
    Range(ferry_region of, const void *start, std::size_t bytes) noexcept
        : ferry_kv_memory{static_cast<std::uint32_t>(sizeof(ferry_kv_memory)), 0, of,
                          detail::address_of(start), bytes}
    {
    }
};
static_assert(sizeof(Range) == sizeof(ferry_kv_memory), "a list of Range is one of ferry_kv_memory");

/// Options of a cache.
class CacheOptions {
public:
    /// The struct of ferry_kv.h.
    using C = ferry_kv_cache_options;
    /// How long a peer that should answer may be silent before it is given up. 1 second if this is not called.
    CacheOptions &silence(Timeout silence) noexcept
    {
        c_.silence_ms = detail::milliseconds(silence);
        return *this;
    }
    /// The most blocks in offers that are sealed and that nobody has taken; a seal that exceeds this ends the oldest of
    /// them. No bound if this is not called.
    CacheOptions &leased_blocks_max(std::uint64_t blocks) noexcept
    {
        c_.leased_blocks_max = blocks;
        return *this;
    }
    /// The struct for ferry_kv.h.
    const C *c() const noexcept { return &c_; }

private:
    C c_ = FERRY_KV_CACHE_OPTIONS_INIT;
};

/// Options of an offer. Reusable.
class OfferOptions {
public:
    /// Consumers that take the offer, each with all of its ranks, 1 to 64. One if this is not called.
    OfferOptions &takers(std::uint32_t takers) noexcept
    {
        takers_ = takers;
        return *this;
    }
    /// The peers that may take the offer, at least one. Every peer if this is not called.
    OfferOptions &only(Span<const Peer> peers)
    {
        only_.assign(peers.begin(), peers.end());
        is_open_ = false;
        return *this;
    }
    /// The time from Cache::seal on within which all takers must be there. 30 seconds if this is not called; about 49
    /// days are the longest.
    OfferOptions &lease(Timeout lease) noexcept
    {
        lease_ms_ = detail::milliseconds(lease);
        return *this;
    }

private:
    friend class Cache;
    std::vector<Peer> only_;
    bool is_open_ = true;
    std::uint32_t takers_ = 1, lease_ms_ = 0;
};

/// Options of a take. Reusable.
class TakeOptions {
public:
    /// Which side moves the bytes. Mode::automatic if this is not called.
    TakeOptions &mode(Mode mode) noexcept
    {
        c_.mode = detail::number(mode);
        return *this;
    }
    /// Any number that all ranks of one consumer have, and no other consumer of the offer. 1 if this is not called.
    TakeOptions &taker(std::uint64_t taker) noexcept
    {
        c_.taker = taker;
        return *this;
    }
    /// Tokens at the beginning that the consumer has already.
    TakeOptions &skip_tokens(std::uint64_t tokens) noexcept
    {
        c_.skip_tokens = tokens;
        return *this;
    }
    /// The take fails with FERRY_ERR_TIMEOUT if it is not complete by then. Zero is not the default: it has passed.
    TakeOptions &deadline(Timeout deadline) noexcept
    {
        c_.deadline_ns = deadline.ns() == 0 ? 1 : deadline.ns();
        return *this;
    }
    /// Reports layers by FERRY_KV_EVENT_LAYERS as they become complete.
    TakeOptions &layers(bool tell = true) noexcept
    {
        c_.flags = tell ? FERRY_KV_TAKE_LAYERS : 0;
        return *this;
    }

private:
    friend class Cache;
    static ferry_kv_take_options defaults() noexcept
    {
        ferry_kv_take_options options = FERRY_KV_TAKE_OPTIONS_INIT;
        options.taker = 1;
        return options;
    }
    ferry_kv_take_options c_ = defaults();
};

/* ---- Caches ------------------------------------------------------------------------------------ */

/// One rank's cache: hands sequences over to the caches of other engines, and takes theirs. The destructor closes it:
/// it ends all offers and takes, and waits until nothing touches their blocks. Keep the memory until then.
class Cache : public detail::Owned<ferry_kv_cache *> {
public:
    using Owned::Owned;
    /// Leaves the other empty. Assignment first destroys the old value, as the destructor does.
    /// @{
    Cache(Cache &&) noexcept = default;
    Cache &operator=(Cache &&other) noexcept
    {
        Cache moved(std::move(other));
        swap(moved);
        return *this;
    }
    /// @}
    ~Cache()
    {
        if (!*this) return;
        ferry_kv_cache_close(handle_, FERRY_FOREVER, nullptr);
        ferry_kv_cache_free(handle_);
    }
    /// Opens the cache that the layout describes. Each layer of the rank's own stage lies in one of the ranges. An
    /// engine has one cache.
    /// @{
    static Result<Cache> open(const Engine &engine, const Layout &layout, Span<const Range> memory,
                              OrDefault<CacheOptions> options = {}) noexcept
    {
        Result<Cache> result;
        ferry_kv_cache *cache = nullptr;
        if (result.take(ferry_kv_cache_open(engine.handle(), layout.handle(), memory.data(), memory.size(),
                                            options.c(), &cache, result.slot())))
            *result = Cache(engine, cache);
        return result;
    }
    static Result<Cache> open(const Engine &engine, const Layout &layout, const ferry::Memory &memory,
                              OrDefault<CacheOptions> options = {}) noexcept
    {
        return open(engine, layout, Range(memory), options);
    }
    /// @}

    /// Offers blocks of a sequence, one list for each group of the layout. Nothing is ready yet. The blocks belong to
    /// the offer until its terminal event.
    Result<void> offer(const Id &id, Span<const BlockList> blocks, const OfferOptions &options = {}) const
    {
        Result<void> result;
        const auto only = detail::handles(options.only_, engine(), "only");
        if (!only) return Result<void>(only);
        if (!options.is_open_ && only->empty()) {
            result.fail(FERRY_ERR_INVALID, "only has no peers: nobody could take the offer");
            return result;
        }
        ferry_kv_offer_options c_options = FERRY_KV_OFFER_OPTIONS_INIT;
        c_options.takers = options.takers_;
        c_options.blocks = blocks.data();
        c_options.group_count = blocks.size();
        c_options.only = only->data();
        c_options.only_count = only->size();
        c_options.lease_ms = options.lease_ms_;
        result.take(ferry_kv_offer(handle_, &id, &c_options, result.slot()));
        return result;
    }
    /// Adds blocks to an offer, one list for each group.
    Result<void> extend(const Id &id, Span<const BlockList> blocks) const noexcept
    {
        return detail::run(ferry_kv_offer_extend, handle_, &id, blocks.data(), blocks.size());
    }
    /// Says that the first `tokens` tokens are in their blocks: in all layers, or in those from `first_layer` to before
    /// `end_layer`.
    /// @{
    Result<void> ready(const Id &id, std::uint64_t tokens) const noexcept { return ready(id, tokens, 0, UINT32_MAX); }
    Result<void> ready(const Id &id, std::uint64_t tokens, std::uint32_t first_layer,
                       std::uint32_t end_layer) const noexcept
    {
        return detail::run(ferry_kv_offer_ready, handle_, &id, first_layer, end_layer, tokens);
    }
    /// @}
    /// The same, once the program's own work on a device has come to a point: its event or stream, as in
    /// TransferOptions::start_after. The point is taken in the call. If the work fails, so does the offer.
    Result<void> ready_after(const Id &id, std::uint64_t tokens, std::uint32_t first_layer, std::uint32_t end_layer,
                             StartAfter kind, const void *handle) const noexcept
    {
        return detail::run(ferry_kv_offer_ready_after, handle_, &id, first_layer, end_layer, tokens,
                           detail::number(kind), detail::address_of(handle));
    }
    /// Takes back the tokens from `from_token` on, and the seal. Returns when nothing reads or writes them any more:
    /// the blocks that hold only such tokens are the caller's, and the offer continues. FERRY_ERR_BUSY: nothing is
    /// free; call again. FERRY_ERR_STALE: the offer has ended or is ending.
    Result<void> retract(const Id &id, std::uint64_t from_token, Timeout timeout = forever) const noexcept
    {
        return detail::run(ferry_kv_offer_retract, handle_, &id, from_token, timeout.ns());
    }
    /// Frees the blocks of a window group that have only tokens before `before_token`. Fails as retract() does.
    Result<void> retract_window(const Id &id, std::uint32_t group, std::uint64_t before_token,
                                Timeout timeout = forever) const noexcept
    {
        return detail::run(ferry_kv_offer_retract_window, handle_, &id, group, before_token, timeout.ns());
    }
    /// Says that the sequence has `tokens` tokens, and no more blocks come. The lease begins.
    Result<void> seal(const Id &id, std::uint64_t tokens) const noexcept
    {
        return detail::run(ferry_kv_offer_seal, handle_, &id, tokens);
    }
    /// Asks an offer to end; its terminal event follows.
    Result<void> cancel_offer(const Id &id) const noexcept
    {
        return detail::run(ferry_kv_offer_cancel, handle_, &id);
    }
    /// Ends sealed offers that nobody has taken until `blocks` blocks are free; returns how many are.
    Result<std::size_t> reclaim(std::size_t blocks) const noexcept
    {
        return detail::get<std::size_t>(ferry_kv_reclaim, handle_, blocks);
    }

    /// Takes the first `tokens` tokens of a handoff into blocks, one list for each group of the layout. `producers` are
    /// all ranks of the producer, by their numbers. The blocks belong to the take until its terminal event.
    Result<void> take(const Id &id, Span<const Peer> producers, Span<const BlockList> blocks, std::uint64_t tokens,
                      const TakeOptions &options = {}) const
    {
        Result<void> result;
        const auto peers = detail::handles(producers, engine(), "producers");
        if (!peers) return Result<void>(peers);
        ferry_kv_take_options c_options = options.c_;
        c_options.producers = peers->data();
        c_options.producer_count = peers->size();
        c_options.blocks = blocks.data();
        c_options.group_count = blocks.size();
        c_options.tokens = tokens;
        result.take(ferry_kv_take(handle_, &id, &c_options, result.slot()));
        return result;
    }
    /// Asks a take to end; its terminal event follows.
    Result<void> cancel_take(const Id &id) const noexcept
    {
        return detail::run(ferry_kv_take_cancel, handle_, &id);
    }

    /// Takes the next event, oldest first. Never waits: pending() if there is none. FERRY_ERR_CLOSED: the cache or its
    /// engine is closed, and there are no more.
    Result<Event> poll() const noexcept
    {
        Result<Event> result;
        result.take(ferry_kv_poll(handle_, &result->c_, result.slot()));
        return result;
    }
    /// Waits for the next event and takes it. pending() if the timeout passes first. Closing the cache ends the wait.
    Result<Event> wait(Timeout timeout = forever) const noexcept
    {
        Result<Event> result;
        result.take(ferry_kv_wait(handle_, timeout.ns(), &result->c_, result.slot()));
        return result;
    }
    /// Returns a descriptor for poll or an event loop; it is readable when there are events, and when the cache is
    /// closed. Take events until poll() is pending(). ferry owns the descriptor: only poll it.
    Result<int> fd() const noexcept
    {
        return detail::get<int>(ferry_kv_fd, handle_);
    }

    /// Returns what the cache knows of an id.
    Result<State> state(const Id &id) const noexcept
    {
        return detail::get<State>(ferry_kv_get_state, handle_, &id);
    }
    /// Returns how many blocks belong to handoffs with silent peers that could not be fenced.
    Result<std::size_t> unfenced_blocks() const noexcept
    {
        return detail::get<std::size_t>(ferry_kv_unfenced_blocks, handle_);
    }
    /// Returns the cache's counters and its current numbers.
    Result<Stats> stats() const noexcept
    {
        return detail::get<Stats>(ferry_kv_get_stats, handle_);
    }
    /// Returns the same in Prometheus' text format.
    Result<std::string> metrics() const
    {
        return detail::text<std::string>(ferry_kv_metrics, handle_);
    }
    /// Records a timeline of the cache's handoffs from now on, and forgets an earlier one. It has at most `entries_max`
    /// entries, 1 to 1,048,576; new ones overwrite the oldest, which Stats::timeline_overwritten counts.
    Result<void> timeline_start(std::size_t entries_max) const noexcept
    {
        return detail::run(ferry_kv_timeline_start, handle_, entries_max);
    }
    /// Ends the recording, and forgets it. Does nothing while there is none.
    Result<void> timeline_stop() const noexcept
    {
        return detail::run(ferry_kv_timeline_stop, handle_);
    }
    /// Returns the recorded entries from the number `first` on, the oldest first; they stay recorded. The next ones are
    /// read from the last one's number + 1 on. Entries that were overwritten are missing. A closed cache answers too.
    Result<std::vector<TimelineEntry>> timeline(std::uint64_t first = 0) const
    {
        constexpr std::size_t some = 1024;
        Result<std::vector<TimelineEntry>> result;
        std::size_t count = 0;
        do {
            const std::size_t known = result->size();
            result->resize(known + some);
            if (!result.take(ferry_kv_timeline_read(handle_, first, result->data() + known, sizeof(TimelineEntry), some,
                                                    &count, result.slot())))
                return result;
            result->resize(known + count);
            if (count != 0) first = result->back().number + 1;
        } while (count == some);
        return result;
    }
    /// Adds the application's own work on a layer to the timeline, from `begin` to `end`. `kind` is
    /// FERRY_KV_MARK_COMPUTE, or a number of the application's. Does nothing while no recording is on; the id need not
    /// be that of an offer or a take. FERRY_ERR_INVALID: the work ends before it begins. Mark does this for a scope.
    Result<void> mark(const Id &id, std::uint32_t layer, std::chrono::steady_clock::time_point begin,
                      std::chrono::steady_clock::time_point end,
                      std::uint32_t kind = FERRY_KV_MARK_COMPUTE) const noexcept
    {
        const auto ns = [](std::chrono::steady_clock::time_point at) {
            return static_cast<std::uint64_t>(
                std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count());
        };
        return detail::run(ferry_kv_timeline_mark, handle_, &id, kind, layer, ns(begin), ns(end));
    }

    /// Refuses new work, ends all offers and takes, and waits until nothing touches their blocks. Their events can
    /// still be taken. FERRY_ERR_BUSY: the cache is still closing; call again.
    Result<void> close(Timeout timeout = forever) const noexcept
    {
        return detail::run(ferry_kv_cache_close, handle_, timeout.ns());
    }
};

/// Marks the work on a layer from this object's construction to its destruction: Cache::mark for a scope. A failure is
/// not reported. Borrows the cache, which must outlive it.
class Mark {
public:
    /// The work begins. `kind` is as in Cache::mark.
    Mark(const Cache &cache, const Id &id, std::uint32_t layer, std::uint32_t kind = FERRY_KV_MARK_COMPUTE) noexcept
        : cache_(cache), id_(id), layer_(layer), kind_(kind)
    {
    }
    /// It is neither copied nor moved.
    /// @{
    Mark(const Mark &) = delete;
    Mark &operator=(const Mark &) = delete;
    /// @}
    /// The work ends.
    ~Mark() { (void)cache_.mark(id_, layer_, begin_, std::chrono::steady_clock::now(), kind_); }

private:
    const Cache &cache_;
    const Id id_;
    const std::uint32_t layer_, kind_;
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

} // namespace ferry::kv

namespace ferry {

/* ---- Directories ------------------------------------------------------------------------------- */

/// What a directory knows of a name; the fields are those of ferry_directory_entry.
struct DirectoryEntry : ferry_directory_entry {
    DirectoryEntry() noexcept : ferry_directory_entry{} { struct_size = sizeof(ferry_directory_entry); }
};
static_assert(sizeof(DirectoryEntry) == sizeof(ferry_directory_entry),
              "a list of DirectoryEntry is one of ferry_directory_entry");

/// What has changed in a directory; ferry_kv.h says what each means.
enum class ChangeKind : std::uint32_t {
    added = FERRY_DIRECTORY_ADDED,
    changed = FERRY_DIRECTORY_CHANGED,
    removed = FERRY_DIRECTORY_REMOVED,
    list_anew = FERRY_DIRECTORY_LIST_ANEW
};
/// The name of a change: "ADDED". For logs.
inline const char *to_string(ChangeKind kind) noexcept { return ferry_directory_change_name(detail::number(kind)); }

/// A change of a directory.
struct DirectoryChange {
    /// What has happened.
    ChangeKind kind{};
    /// The entry, for a removal as it was; empty for ChangeKind::list_anew.
    DirectoryEntry entry;
};

/// The state of a directory; the fields are those of ferry_directory_info.
struct DirectoryInfo : ferry_directory_info {
    DirectoryInfo() noexcept : ferry_directory_info{} { struct_size = sizeof(ferry_directory_info); }
};

/// Options of a directory in etcd; a `static:` directory has no use for them. Texts are borrowed until the call that
/// takes the options returns; temporaries are refused. A user or file that is not set comes from the environment,
/// FERRY_ETCD_*.
class DirectoryOptions {
public:
    /// The struct of ferry_kv.h.
    using C = ferry_directory_options;
    /// How long etcd keeps the names of an engine that it does not hear from: whole seconds, rounded up, 1 to 3,600. 10
    /// if this is not called.
    DirectoryOptions &ttl(Timeout ttl) noexcept
    {
        const std::uint64_t ms = kv::detail::milliseconds(ttl);
        c_.ttl_s = static_cast<std::uint32_t>((ms + 999) / 1000);
        return *this;
    }
    /// How long Directory::open waits for etcd's first answer. 5 seconds if this is not called; about 49 days are the
    /// longest.
    DirectoryOptions &open_timeout(Timeout timeout) noexcept
    {
        c_.open_timeout_ms = kv::detail::milliseconds(timeout);
        return *this;
    }
    /// Directory::open does not wait for etcd: the directory keeps trying to reach it.
    DirectoryOptions &no_wait(bool no_wait = true) noexcept
    {
        c_.flags = no_wait ? FERRY_DIRECTORY_NO_WAIT : 0;
        return *this;
    }
    /// etcd's user, and the password.
    DirectoryOptions &user(detail::Kept<Text> user, detail::Kept<Text> password) noexcept
    {
        c_.user = user.c_str();
        c_.password = password.c_str();
        return *this;
    }
    /// File with the certificates of the authorities that etcd's certificate may come from, in PEM, for https.
    DirectoryOptions &ca_file(detail::Kept<Text> file) noexcept
    {
        c_.ca_file = file.c_str();
        return *this;
    }
    /// Files with this client's certificate and its key, in PEM.
    DirectoryOptions &certificate(detail::Kept<Text> cert_file, detail::Kept<Text> key_file) noexcept
    {
        c_.cert_file = cert_file.c_str();
        c_.key_file = key_file.c_str();
        return *this;
    }
    /// The struct for ferry_kv.h.
    const C *c() const noexcept { return &c_; }

private:
    C c_ = FERRY_DIRECTORY_OPTIONS_INIT;
};

/// Peers of an engine, by name: in a list, or in etcd. The destructor closes it: its names are withdrawn, which takes a
/// second at most, and peers stay connected.
class Directory : public detail::Owned<ferry_directory *> {
public:
    using Owned::Owned;
    /// Leaves the other empty. Assignment first destroys the old value, as the destructor does.
    /// @{
    Directory(Directory &&) noexcept = default;
    Directory &operator=(Directory &&other) noexcept
    {
        Directory moved(std::move(other));
        swap(moved);
        return *this;
    }
    /// @}
    ~Directory() { ferry_directory_free(handle_); }
    /// Opens a directory of the engine's peers. `url` is "static:name=host:port,...", "static:/file", "static:" (names
    /// are addresses), or "etcd:http://host:port,.../prefix". FERRY_ERR_UNREACHABLE: etcd does not answer in time.
    static Result<Directory> open(const Engine &engine, Text url, OrDefault<DirectoryOptions> options = {}) noexcept
    {
        Result<Directory> result;
        ferry_directory *directory = nullptr;
        if (result.take(ferry_directory_open(engine.handle(), url.c_str(), options.c(), &directory, result.slot())))
            *result = Directory(engine, directory);
        return result;
    }

    /// Makes the engine known under a name, and returns when etcd has it. The directory keeps the name by itself.
    /// FERRY_ERR_BUSY: another engine has the name. FERRY_ERR_UNREACHABLE: etcd has not answered within the timeout.
    /// A call that fails registers nothing.
    Result<void> register_name(Text name, Timeout timeout = forever) const noexcept
    {
        return detail::run(ferry_directory_register, handle_, name.c_str(), timeout.ns());
    }
    /// Withdraws a name, and returns when etcd has it no longer. FERRY_ERR_TIMEOUT: it is withdrawn when etcd answers.
    Result<void> unregister_name(Text name, Timeout timeout = forever) const noexcept
    {
        return detail::run(ferry_directory_unregister, handle_, name.c_str(), timeout.ns());
    }
    /// Returns what the directory knows of a name. Never waits. FERRY_ERR_UNREACHABLE: nobody has it.
    Result<DirectoryEntry> lookup(Text name) const noexcept
    {
        return detail::get<DirectoryEntry>(ferry_directory_lookup, handle_, name.c_str());
    }
    /// Lists the entries whose names begin with the prefix, in order of the names. Never waits.
    Result<std::vector<DirectoryEntry>> list(Text prefix = "") const
    {
        return detail::list<DirectoryEntry>(ferry_directory_list, handle_, prefix.c_str());
    }
    /// Connects to the incarnation that has the name, and waits until transfers can be submitted. Goes on trying while
    /// the name is missing, nothing answers or another engine does. When the timeout has passed: FERRY_ERR_UNREACHABLE,
    /// FERRY_ERR_TIMEOUT or FERRY_ERR_STALE. A name that a `static:` directory lacks ends the call at once.
    Result<Peer> connect(Text name, Timeout timeout = forever) const noexcept
    {
        Result<Peer> result;
        ferry_peer peer = 0;
        if (result.take(ferry_directory_connect(handle_, name.c_str(), timeout.ns(), &peer, result.slot())))
            *result = Peer(engine_, peer);
        return result;
    }
    /// Takes the next change. Never waits: pending() if there is none. Of several threads, one gets each change.
    Result<DirectoryChange> poll() const noexcept
    {
        Result<DirectoryChange> result;
        std::uint32_t kind = 0;
        if (result.take(ferry_directory_poll(handle_, &kind, &result->entry, result.slot())))
            result->kind = static_cast<ChangeKind>(kind);
        return result;
    }
    /// Returns a descriptor for poll or an event loop; it is readable while poll() has a change, and when the directory
    /// is closed. ferry owns the descriptor: only poll it.
    Result<int> fd() const noexcept
    {
        return detail::get<int>(ferry_directory_fd, handle_);
    }
    /// Tells whether etcd answers, and which names are published.
    Result<DirectoryInfo> info() const noexcept
    {
        return detail::get<DirectoryInfo>(ferry_directory_get_info, handle_);
    }
    /// Withdraws the names and ends the directory: other calls then return FERRY_ERR_CLOSED. Peers stay connected.
    Result<void> close() const noexcept
    {
        return detail::run(ferry_directory_close, handle_);
    }
};

} // namespace ferry

/// @cond
// Hashes an id for unordered containers: its first bits, since all are random.
template <> struct std::hash<ferry::kv::Id> {
    std::size_t operator()(const ferry::kv::Id &id) const noexcept
    {
        std::size_t bits = 0;
        std::memcpy(&bits, id.bytes, sizeof bits);
        return bits;
    }
};
/// @endcond

#endif // FERRY_KV_HPP
