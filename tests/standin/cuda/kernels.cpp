// Modules, functions and launches.
#include "kernels.h"

#include <cstring>

using namespace cuda;

namespace cuda {

bool View::reach(uint64_t address, uint64_t size, Span *out) const {
    *out = resolve(pointer(address), size);
    if (!out->inside || out->pageable()) return false;
    for (const RangeRef &range : out->ranges) {
        if (range->is_host()) continue;
        const bool near = range->device == context_->device || (context_->peers >> range->device & 1) != 0;
        // Mapped memory has its own rights, and needs no peer access.
        if (range->handle != nullptr ? (range->access >> context_->device & 1) == 0 : !near) return false;
    }
    return true;
}

bool View::copy(uint64_t target, uint64_t source, uint64_t size) const {
    Span to, from;
    if (size == 0) return true;
    if (!reach(target, size, &to) || !reach(source, size, &from)) return false;
    enter(to);
    enter(from);
    if (spend_copy_time(stream_, size)) copy_spans(to, from);
    leave(to);
    leave(from);
    return true;
}

bool View::read(uint64_t source, void *out, size_t size) const {
    Span from;
    if (!reach(source, size, &from)) return false;
    char *to = static_cast<char *>(out);
    for_each_part(from, [&](char *part, size_t bytes) {
        memcpy(to, part, bytes);
        to += bytes;
    });
    return true;
}

namespace {

template <typename T> T value(const void *parameter) {
    T out;
    memcpy(&out, parameter, sizeof out);
    return out;
}

int copy_pieces(const View &view, const std::vector<const void *> &parameters) {
    const auto pieces = value<uint64_t>(parameters[0]);
    const auto count = value<uint32_t>(parameters[1]);
    for (uint32_t i = 0; i < count; i++) {
        Piece piece;
        if (!view.read(pieces + i * sizeof piece, &piece, sizeof piece)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        if (!view.copy(piece.destination, piece.source, piece.length)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return 0;
}

CUresult load(CUmodule *module, const void *image) {
    CHECK_ARGUMENT(module != nullptr && image != nullptr);
    const Hold hold(state().lock);
    void *made = new char;
    state().modules[made] = current();
    *module = static_cast<CUmodule>(made);
    return CUDA_SUCCESS;
}

} // namespace

const std::vector<Kernel> kernels = {
    {"ferry_copy_pieces", {sizeof(uint64_t), sizeof(uint32_t)}, copy_pieces},
};

} // namespace cuda

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER_WITH_CONTEXT();
    return load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int, CUjit_option *, void **) {
    ENTER_WITH_CONTEXT();
    return load(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
    ENTER_WITH_CONTEXT();
    const Hold hold(state().lock);
    if (state().modules.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
    delete reinterpret_cast<char *>(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER_WITH_CONTEXT();
    CHECK_ARGUMENT(function != nullptr && name != nullptr);
    const Hold hold(state().lock);
    if (state().modules.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
    for (const Kernel &kernel : kernels) {
        if (strcmp(kernel.name, name) != 0) continue;
        *function = reinterpret_cast<CUfunction>(const_cast<Kernel *>(&kernel));
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int,
                        CUstream handle, void **parameters, void **extra) {
    ENTER_WITH_CONTEXT();
    const Kernel *kernel = nullptr;
    for (const Kernel &known : kernels) {
        if (reinterpret_cast<const Kernel *>(function) == &known) kernel = &known;
    }
    if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    CHECK_ARGUMENT(grid_x != 0 && grid_y != 0 && grid_z != 0 && block_x != 0 && block_y != 0 && block_z != 0);
    CHECK_ARGUMENT(static_cast<uint64_t>(block_x) * block_y * block_z <= 1024);
    CHECK_ARGUMENT(parameters != nullptr && extra == nullptr);
    const StreamRef stream = stream_of(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::vector<std::vector<char>> copies;
    for (size_t i = 0; i < kernel->parameter_sizes.size(); i++) {
        CHECK_ARGUMENT(parameters[i] != nullptr);
        const auto *from = static_cast<const char *>(parameters[i]);
        copies.emplace_back(from, from + kernel->parameter_sizes[i]);
    }
    stream->push({[kernel, copies](Stream &own) {
                      std::vector<const void *> pointers;
                      for (const auto &copy : copies) pointers.push_back(copy.data());
                      return kernel->run(View(own, static_cast<const Context *>(own.context)), pointers);
                  },
                  [](bool) {}});
    return CUDA_SUCCESS;
}
