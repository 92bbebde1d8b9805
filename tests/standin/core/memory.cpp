#include "memory.h"
#include "knobs.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace standin {
namespace {

constexpr int devices_max = 64;

struct State {
    std::mutex lock;
    std::map<uintptr_t, RangeRef> ranges; // by base
    uint64_t next_id = 1;
    std::atomic<size_t> used[devices_max] = {};
};
State &state() {
    static State *const made = new State;
    return *made;
}

// Returns the range that contains the address; the lock is held.
RangeRef at(State &all, uintptr_t address) {
    auto next = all.ranges.upper_bound(address);
    if (next == all.ranges.begin()) return nullptr;
    const RangeRef &range = std::prev(next)->second;
    return address - range->base < range->size ? range : nullptr;
}

bool overlaps(State &all, uintptr_t base, size_t size) {
    const auto next = all.ranges.lower_bound(base);
    return at(all, base) != nullptr || (next != all.ranges.end() && next->first - base < size);
}

std::shared_ptr<Backing> wrap(int file, size_t size, int device) {
    if (file < 0) return nullptr;
    auto made = std::make_shared<Backing>();
    made->file = file;
    made->size = size;
    made->device = device;
    struct stat info;
    if (fstat(file, &info) != 0 || static_cast<size_t>(info.st_size) < size) return nullptr;
    void *alias = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (alias == MAP_FAILED) return nullptr;
    made->alias = static_cast<char *>(alias);
    return made;
}

} // namespace

Backing::~Backing() {
    if (alias != nullptr) munmap(alias, size);
    if (file >= 0) close(file);
    state().used[device % devices_max] -= charged;
}

std::shared_ptr<Backing> make_backing(size_t size, int device, const char *label) {
    const size_t whole = round_up(size, page_bytes);
    const size_t limit = static_cast<size_t>(knob(Knob::memory_mb)) << 20;
    std::atomic<size_t> &used = state().used[device % devices_max];
    size_t before = used;
    do {
        if (whole < size || (limit != 0 && (before > limit || whole > limit - before))) return nullptr;
    } while (!used.compare_exchange_weak(before, before + whole));
    char name[64];
    snprintf(name, sizeof name, "standin-%s-%d", label, device);
    const int file = memfd_create(name, MFD_CLOEXEC);
    std::shared_ptr<Backing> made;
    if (file >= 0 && ftruncate(file, static_cast<off_t>(whole)) == 0) made = wrap(file, whole, device);
    if (made == nullptr) {
        used -= whole;
        return nullptr;
    }
    made->charged = whole;
    return made;
}

std::shared_ptr<Backing> open_backing(int process, int file, size_t size, int device) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, file);
    return wrap(open(path, O_RDWR | O_CLOEXEC), round_up(size, page_bytes), device);
}

std::shared_ptr<Backing> dup_backing(int file, size_t size, int device) {
    return wrap(fcntl(file, F_DUPFD_CLOEXEC, 0), size, device);
}

char *Range::alias(uintptr_t address) const {
    // The host may touch host memory at its own address, and ThreadSanitizer orders accesses by address: a flag that the
    // device sets there is the one that the host looks at.
    if (backing == nullptr || kind == Kind::host) return reinterpret_cast<char *>(address);
    return backing->alias + offset + (address - base);
}

uintptr_t reserve_addresses(size_t size, size_t alignment) {
    const size_t whole = round_up(size, page_bytes) + page_bytes, slack = whole + alignment;
    if (slack < size) return 0;
    void *got = mmap(nullptr, slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return 0;
    const uintptr_t from = reinterpret_cast<uintptr_t>(got), base = round_up(from, alignment);
    if (base > from) munmap(got, base - from);
    const uintptr_t end = base + whole;
    if (from + slack > end) munmap(reinterpret_cast<void *>(end), from + slack - end);
    return base;
}

void release_addresses(uintptr_t base, size_t size) {
    munmap(reinterpret_cast<void *>(base), round_up(size, page_bytes) + page_bytes);
}

bool map_backing(uintptr_t where, size_t size, const Backing &backing, size_t offset, bool accessible) {
    const int protection = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
    return mmap(reinterpret_cast<void *>(where), round_up(size, page_bytes), protection, MAP_SHARED | MAP_FIXED,
                backing.file, static_cast<off_t>(offset)) != MAP_FAILED;
}

void hide_addresses(uintptr_t where, size_t size) {
    mmap(reinterpret_cast<void *>(where), round_up(size, page_bytes), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

bool add_range(const RangeRef &range) {
    State &all = state();
    const std::lock_guard<std::mutex> hold(all.lock);
    if (range->base + range->size < range->base || overlaps(all, range->base, range->size)) return false;
    range->id = all.next_id++;
    all.ranges[range->base] = range;
    return true;
}

bool place_range(const RangeRef &range, bool accessible) {
    range->base = reserve_addresses(round_up(range->size, range->page), range->page);
    return range->base != 0 && map_backing(range->base, range->size, *range->backing, 0, accessible) && add_range(range);
}

RangeRef range_within(const Reservations &all, uintptr_t base, size_t size, std::shared_ptr<Backing> backing, void *handle) {
    auto reservation = all.upper_bound(base);
    if (reservation == all.begin()) return nullptr;
    --reservation;
    const size_t before = base - reservation->first;
    if (before > reservation->second || size > reservation->second - before) return nullptr;
    auto range = std::make_shared<Range>();
    range->base = base;
    range->size = size;
    range->device = backing->device;
    range->backing = std::move(backing);
    range->page = huge_bytes;
    range->reservation = reservation->first;
    range->handle = handle;
    return range;
}

void drop_range(const RangeRef &range) {
    {
        State &all = state();
        const std::lock_guard<std::mutex> hold(all.lock);
        all.ranges.erase(range->base);
    }
    if (range->reservation != 0) {
        hide_addresses(range->base, range->size);
    } else if (range->kind != Kind::registered) {
        release_addresses(range->base, range->size);
    }
}

RangeRef find_range(const void *address) {
    State &all = state();
    const std::lock_guard<std::mutex> hold(all.lock);
    return at(all, reinterpret_cast<uintptr_t>(address));
}

RangeRef find_base(const void *address) {
    const RangeRef range = find_range(address);
    return range != nullptr && range->base == reinterpret_cast<uintptr_t>(address) ? range : nullptr;
}

std::vector<RangeRef> all_ranges() {
    State &all = state();
    const std::lock_guard<std::mutex> hold(all.lock);
    std::vector<RangeRef> out;
    for (const auto &entry : all.ranges) out.push_back(entry.second);
    return out;
}

std::vector<RangeRef> ranges_of(uintptr_t reservation) {
    std::vector<RangeRef> out = all_ranges();
    out.erase(std::remove_if(out.begin(), out.end(),
                             [&](const RangeRef &range) { return range->reservation != reservation; }),
              out.end());
    return out;
}

Span resolve(const void *address, size_t size) {
    Span span;
    span.address = reinterpret_cast<uintptr_t>(address);
    span.size = size;
    if (span.address + size < span.address) return span;
    State &all = state();
    const std::lock_guard<std::mutex> hold(all.lock);
    RangeRef range = at(all, span.address);
    if (range == nullptr) {
        span.inside = !overlaps(all, span.address, size);
        return span;
    }
    const uintptr_t end = span.address + size;
    span.ranges.push_back(range);
    while (end > range->base + range->size) {
        const RangeRef beyond = at(all, range->base + range->size);
        if (beyond == nullptr || range->reservation == 0 || beyond->reservation != range->reservation) return span;
        span.ranges.push_back(beyond);
        range = beyond;
    }
    span.inside = true;
    return span;
}

void enter(const Span &span) {
    for (const RangeRef &range : span.ranges) range->in_flight++;
}

void leave(const Span &span) {
    for (const RangeRef &range : span.ranges) range->in_flight--;
}

void for_each_part(const Span &span, const std::function<void(char *, size_t)> &each) {
    if (span.pageable()) return each(reinterpret_cast<char *>(span.address), span.size);
    uintptr_t from = span.address;
    const uintptr_t end = span.address + span.size;
    for (const RangeRef &range : span.ranges) {
        const size_t bytes = std::min(end, range->base + range->size) - from;
        each(range->alias(from), bytes);
        from += bytes;
    }
}

// Stores eight aligned bytes at once, and only once, as a device does. memmove may store them twice; a host
// that has seen the first store may itself have written there before the second.
static void copy_bytes(char *to, const char *from, size_t bytes) {
    if (bytes != sizeof(uint64_t) || reinterpret_cast<uintptr_t>(to) % sizeof(uint64_t) != 0) {
        memmove(to, from, bytes);
        return;
    }
    uint64_t word;
    memcpy(&word, from, sizeof word);
    __atomic_store_n(reinterpret_cast<uint64_t *>(to), word, __ATOMIC_RELEASE);
}

void copy_spans(const Span &target, const Span &source) {
    std::vector<std::pair<char *, size_t>> to;
    for_each_part(target, [&](char *part, size_t bytes) { to.emplace_back(part, bytes); });
    size_t index = 0, done = 0;
    for_each_part(source, [&](char *part, size_t bytes) {
        while (bytes != 0) {
            const size_t now = std::min(bytes, to[index].second - done);
            copy_bytes(to[index].first + done, part, now);
            part += now;
            bytes -= now;
            done += now;
            if (done == to[index].second) {
                index++;
                done = 0;
            }
        }
    });
}

size_t device_bytes(int device) {
    return state().used[device % devices_max];
}

} // namespace standin
