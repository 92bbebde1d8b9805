// Which version of CANN this library is; the build says. What older versions lack, profile.sh hides.
namespace ascend {
extern const int cann_version;
const int cann_version = STANDIN_CANN;
} // namespace ascend
