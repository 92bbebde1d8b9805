// The version of CUDA of the driver; the build sets it.
namespace cuda {
extern const int driver_version;
const int driver_version = STANDIN_CUDA;
} // namespace cuda
