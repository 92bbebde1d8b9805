#ifndef COUNT_HPP
#define COUNT_HPP

#include <atomic>
#include <cstddef>

// Returns how often this program has called operator new.
extern std::atomic<std::size_t> allocations;

#endif
