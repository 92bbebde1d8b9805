#include "memory.h"

#include <cstdio>
#include <iterator>

#include "log.h"
#include "status.h"

namespace ferry_nixl {
namespace {

constexpr std::uint64_t UNREGISTER_NS = 5'000'000'000;

std::string range_of(std::uintptr_t address, std::size_t length)
{
    char text[64];
    std::snprintf(text, sizeof text, "0x%zx + %zu", static_cast<std::size_t>(address), length);
    return text;
}

nixl_status_t register_in(ferry_engine *engine, const Region &region, ferry_region &out)
{
    ferry_error error = FERRY_ERROR_INIT;
    void *address = reinterpret_cast<void *>(region.address);
    const ferry_status status = ferry_region_register(engine, address, region.length, nullptr, &out, &error);
    if (status == FERRY_OK) return NIXL_SUCCESS;
    const std::string range = range_of(region.address, region.length);
    return refuse(nixl_status(status), "registering " + range + ": " + text_of(error));
}

// ferry bounds how long a region stays in use: a transfer by its deadline, a peer that is gone by its lease.
nixl_status_t unregister(ferry_engine *engine, ferry_region region)
{
    for (;;) {
        ferry_error error = FERRY_ERROR_INIT;
        const ferry_status status = ferry_region_unregister(engine, region, UNREGISTER_NS, &error);
        if (status == FERRY_OK || status == FERRY_ERR_CLOSED) return NIXL_SUCCESS;
        if (status != FERRY_ERR_BUSY) return refuse(nixl_status(status), "deregistering memory: " + text_of(error));
        log(Level::Warning, "deregistering memory waits: " + text_of(error));
    }
}

} // namespace

nixl_status_t Memory::add(const nixlBlobDesc &piece, std::shared_ptr<Region> &out)
{
    const std::lock_guard<std::mutex> lock(mutex);
    auto after = regions.upper_bound(piece.addr);
    if (after != regions.begin()) {
        const std::shared_ptr<Region> &before = std::prev(after)->second;
        const std::uintptr_t into = piece.addr - before->address;
        if (into < before->length && piece.len <= before->length - into) {
            before->uses++;
            out = before;
            return NIXL_SUCCESS;
        }
    }
    auto region = std::make_shared<Region>(Region{piece.addr, piece.len, 0});
    const nixl_status_t status = register_in(engine, *region, region->handle);
    if (status != NIXL_SUCCESS) return status;
    regions.emplace(piece.addr, region);
    out = std::move(region);
    return NIXL_SUCCESS;
}

bool Memory::is_last(const Region &region)
{
    const std::lock_guard<std::mutex> lock(mutex);
    return region.uses == 1;
}

nixl_status_t Memory::remove(const std::shared_ptr<Region> &region)
{
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (--region->uses > 0) return NIXL_SUCCESS;
        regions.erase(region->address);
    }
    // The lock is not held, because ending a region may take as long as a peer's lease.
    return unregister(engine, region->handle);
}

} // namespace ferry_nixl
