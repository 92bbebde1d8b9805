// Counts the suite's allocations in C++. A separate file, so that the compiler cannot inline it.
#include "count.hpp"

#include <cstdlib>
#include <new>

std::atomic<std::size_t> allocations{0};

void *operator new(std::size_t size)
{
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (void *memory = std::malloc(size)) return memory;
    throw std::bad_alloc();
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
