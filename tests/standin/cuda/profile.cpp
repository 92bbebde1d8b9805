// Which version of CUDA the driver has; the build says.
namespace cuda {
extern const int driver_version;
const int driver_version = STANDIN_CUDA;
} // namespace cuda
