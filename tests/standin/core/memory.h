// Device memory. Each allocation is a memfd that is mapped twice. The program gets a PROT_NONE mapping, so
// that any access of the host to a "device" address faults; copies use the other mapping.
//
// The table here knows every address that the library has returned or was told of. The faces (CUDA, AscendCL)
// check which operations they allow on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace standin {

constexpr size_t page_bytes = 4096, huge_bytes = size_t(2) << 20;
inline size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Physical memory, shared by mappings, handles and other processes; the last of them frees it.
struct Backing {
    int file = -1;
    size_t size = 0;
    char *alias = nullptr; // how the stand-in itself gets at the bytes
    int device = 0;
    size_t charged = 0; // of the device's memory, if it was allocated here

    ~Backing();
};

// Allocates zeroed memory; null if the device has no room left. The memfd's name has `label`.
std::shared_ptr<Backing> make_backing(size_t size, int device, const char *label);
// Opens memory that another process allocated and still holds; null if it doesn't. Charges no device memory.
std::shared_ptr<Backing> open_backing(int process, int file, size_t size, int device);
// Opens memory from a descriptor, which stays the caller's.
std::shared_ptr<Backing> dup_backing(int file, size_t size, int device);

enum class Kind {
    device,     // PROT_NONE for the host
    managed,    // both may access it
    host,       // pinned memory that the library allocated
    registered, // the program's own, pinned
    shadow,     // an address that stands for registered memory, good for kernels only
};

// A run of addresses.
struct Range {
    uintptr_t base = 0;
    size_t size = 0;
    Kind kind = Kind::device;
    int device = 0; // where the memory is
    std::shared_ptr<Backing> backing; // none for `registered` and `shadow`
    size_t offset = 0;                // of `base` in it
    size_t page = page_bytes;
    uint64_t id = 0;           // never used twice
    uintptr_t reservation = 0; // of virtual memory: its base, and mappings within one adjoin
    void *handle = nullptr;    // what is mapped there
    std::string key;           // under which it was imported
    bool imported = false;
    std::atomic<uint64_t> access{~0ULL}; // devices that may use it, one bit each
    std::atomic<int> in_flight{0};       // tasks that name it and are not done

    bool is_host() const { return kind == Kind::host || kind == Kind::registered; }
    char *alias(uintptr_t address) const;
};
using RangeRef = std::shared_ptr<Range>;

// Reserves addresses for `size` bytes that nobody may touch, with a gap behind; then maps a backing there.
uintptr_t reserve_addresses(size_t size, size_t alignment);
void release_addresses(uintptr_t base, size_t size);
bool map_backing(uintptr_t at, size_t size, const Backing &backing, size_t offset, bool accessible);
// Removes the mapping; the addresses stay reserved.
void hide_addresses(uintptr_t at, size_t size);

// Adds a range to the table; false if it overlaps a known range.
bool add_range(const RangeRef &range);
// Maps a range's backing at addresses of its own and adds the range; false if no addresses are left.
bool place_range(const RangeRef &range, bool accessible);
// The sizes of reserved addresses by their bases.
using Reservations = std::map<uintptr_t, size_t>;
// Returns a range for physical memory, known as `handle`, that is to be mapped at reserved addresses; null if no
// reservation has all of them.
RangeRef range_within(const Reservations &all, uintptr_t base, size_t size, std::shared_ptr<Backing> backing, void *handle);
// Removes a range from the table and unmaps it, unless it is the program's memory or part of a reservation.
void drop_range(const RangeRef &range);
RangeRef find_range(const void *address);
// Returns the range that begins at the address.
RangeRef find_base(const void *address);
std::vector<RangeRef> all_ranges();
// Returns the ranges within one reservation.
std::vector<RangeRef> ranges_of(uintptr_t reservation);

// The ranges of [address, address + size). Several ranges only if mappings of one reservation adjoin.
struct Span {
    bool inside = false;          // wholly in known memory, or wholly outside
    std::vector<RangeRef> ranges; // none: pageable host memory
    uintptr_t address = 0;
    size_t size = 0;

    bool pageable() const { return ranges.empty(); }
    bool host() const { return ranges.empty() || ranges[0]->is_host(); }
    bool device_side() const { return !ranges.empty() && !ranges[0]->is_host(); }
};
Span resolve(const void *address, size_t size);
// Marks the span's ranges as used by a task, or as no longer used.
void enter(const Span &span);
void leave(const Span &span);
// Copies by memcpy through the aliases.
void copy_spans(const Span &target, const Span &source);
// Calls `each(alias, bytes)` for consecutive parts.
void for_each_part(const Span &span, const std::function<void(char *, size_t)> &each);

// Returns the used device memory; backings held by handles, not by ranges, count too.
size_t device_bytes(int device);

} // namespace standin
