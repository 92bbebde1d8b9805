// Kernels that the stand-in knows by name. It cannot run PTX: a module may be any image, and its functions
// are looked up in this table by name.
//
// To add a kernel, add a row to `kernels` (kernels.cpp): its name, the size of each parameter, and a function
// that does on the host what the kernel does on the device. The function runs in the stream's order with a
// copy of the parameters. It must access memory by `View` only; an access that the device could not make is
// CUDA_ERROR_ILLEGAL_ADDRESS, which stays.
#pragma once

#include "driver.h"

namespace cuda {

class View {
  public:
    View(Stream &stream, const Context *context) : stream_(stream), context_(context) {}
    // Copies between any two places that the device can reach. After false the kernel must return
    // CUDA_ERROR_ILLEGAL_ADDRESS.
    bool copy(uint64_t target, uint64_t source, uint64_t size) const;
    bool read(uint64_t source, void *out, size_t size) const;

  private:
    bool reach(uint64_t address, uint64_t size, Span *out) const;
    Stream &stream_;
    const Context *context_;
};

struct Kernel {
    const char *name;
    std::vector<size_t> parameter_sizes;
    // `parameters[i]` points to a copy of the i-th parameter.
    int (*run)(const View &view, const std::vector<const void *> &parameters);
};
extern const std::vector<Kernel> kernels;

// The input of `ferry_copy_pieces(const struct piece *pieces, uint32_t count)`. In device or pinned memory.
struct Piece {
    uint64_t source, destination, length;
};

} // namespace cuda
