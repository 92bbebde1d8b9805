// The version of CANN of this library; the build sets it. profile.sh hides the functions that older versions
// lack.
namespace ascend {
extern const int cann_version;
const int cann_version = STANDIN_CANN;
} // namespace ascend
