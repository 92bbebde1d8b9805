// Counts the suite's allocations in C++. A separate file, so that the compiler cannot inline it.
#include "count.hpp"

#include <cstdlib>
#include <new>

std::atomic<std::size_t> allocations{0};

void *operator new(std::size_t size, const std::nothrow_t &) noexcept
{
    allocations.fetch_add(1, std::memory_order_relaxed);
    return std::malloc(size);
}
void *operator new(std::size_t size)
{
    if (void *memory = operator new(size, std::nothrow)) return memory;
    throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
