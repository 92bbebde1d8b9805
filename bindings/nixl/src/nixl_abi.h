// NIXL's plugin interface as it is laid out in memory in NIXL 1.0.0 to 1.5.1: the types that its core passes to a
// plugin, and the functions of a plugin that it calls. Names and numbers are NIXL's. This file declares them again,
// because the plugin does not link the core, and the core's headers differ between releases in parts that plugins do
// not use. `guard.cpp` checks at run time that the core that loads the plugin has this layout; the assertions at the
// end check that this compiler lays the types out the same way.
//
// All strings, lists and maps are libstdc++'s, in its C++11 ABI. The core owns what it passes, and arguments live only
// during a call. Everything that the plugin returns by pointer is given back to the plugin.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

enum nixl_mem_t { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };
enum nixl_xfer_op_t { NIXL_READ, NIXL_WRITE };
enum nixl_status_t {
    NIXL_IN_PROG = 1,
    NIXL_SUCCESS = 0,
    NIXL_ERR_NOT_POSTED = -1,
    NIXL_ERR_INVALID_PARAM = -2,
    NIXL_ERR_BACKEND = -3,
    NIXL_ERR_NOT_FOUND = -4,
    NIXL_ERR_MISMATCH = -5,
    NIXL_ERR_NOT_ALLOWED = -6,
    NIXL_ERR_REPOST_ACTIVE = -7,
    NIXL_ERR_UNKNOWN = -8,
    NIXL_ERR_NOT_SUPPORTED = -9,
    NIXL_ERR_REMOTE_DISCONNECT = -10,
    NIXL_ERR_CANCELED = -11,
};

using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
// Each notification: the name of the agent that sent it, and its bytes.
using notif_list_t = std::vector<std::pair<std::string, std::string>>;

struct nixlBasicDesc {
    std::uintptr_t addr;
    std::size_t len;
    std::uint64_t devId;
};
struct nixlBackendMD {
    explicit nixlBackendMD(bool isPrivate) : isPrivateMD(isPrivate) {}
    virtual ~nixlBackendMD() = default;
    bool isPrivateMD;
};
struct nixlMetaDesc : nixlBasicDesc {
    nixlBackendMD *metadataP;
};
struct nixlBlobDesc : nixlBasicDesc {
    std::string metaInfo;
};
// A list of the core, which the plugin only reads. The core's class has virtual functions.
struct nixl_meta_dlist_t {
    nixl_meta_dlist_t() = delete;
    const void *vtable;
    nixl_mem_t type;
    std::vector<nixlMetaDesc> descs;
};
struct nixl_remote_meta_dlist_t;
struct nixl_reg_dlist_t;
struct nixl_query_resp_t;

struct nixlBackendReqH {
    virtual ~nixlBackendReqH() = default;
};
struct nixlBackendOptionalArgs {
    std::string notifMsg;
    bool hasNotif;
    std::string customParam;
};
struct nixlBackendInitParams {
    std::string localAgent;
    std::string type;
    nixl_b_params_t *customParams;
    bool enableProgTh;
    std::uint64_t pthrDelay;
    int syncMode;
    bool enableTelemetry_;
};

class nixlBackendEngine {
public:
    explicit nixlBackendEngine(const nixlBackendInitParams &init)
        : backendType(init.type), customParams(*init.customParams), localAgent(init.localAgent),
          enableTelemetry(init.enableTelemetry_) {}
    nixlBackendEngine(const nixlBackendEngine &) = delete;
    nixlBackendEngine &operator=(const nixlBackendEngine &) = delete;

    // The order of these functions is that of the vtable.
    virtual ~nixlBackendEngine() = default;
    virtual bool supportsRemote() const = 0;
    virtual bool supportsLocal() const = 0;
    virtual bool supportsNotif() const = 0;
    virtual nixl_mem_list_t getSupportedMems() const = 0;
    virtual nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &kind, nixlBackendMD *&out) = 0;
    virtual nixl_status_t deregisterMem(nixlBackendMD *metadata) = 0;
    virtual nixl_status_t connect(const std::string &agent) = 0;
    virtual nixl_status_t disconnect(const std::string &agent) = 0;
    virtual nixl_status_t unloadMD(nixlBackendMD *metadata) = 0;
    virtual nixl_status_t prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local,
                                   const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                                   const nixlBackendOptionalArgs *options) const = 0;
    virtual nixl_status_t postXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local,
                                   const nixl_meta_dlist_t &remote, const std::string &agent, nixlBackendReqH *&handle,
                                   const nixlBackendOptionalArgs *options) const = 0;
    virtual nixl_status_t checkXfer(nixlBackendReqH *handle) const = 0;
    virtual nixl_status_t releaseReqH(nixlBackendReqH *handle) const = 0;
    // Memory views are for kernels of a device.
    virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &, void *&, const nixlBackendOptionalArgs *) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, void *&, const nixlBackendOptionalArgs *) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual void releaseMemView(void *) const {}
    virtual nixl_status_t getPublicData(const nixlBackendMD *metadata, std::string &out) const = 0;
    virtual nixl_status_t getConnInfo(std::string &out) const = 0;
    virtual nixl_status_t loadRemoteConnInfo(const std::string &agent, const std::string &info) = 0;
    virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &mem, const nixl_mem_t &kind, const std::string &agent,
                                       nixlBackendMD *&out) = 0;
    virtual nixl_status_t loadLocalMD(nixlBackendMD *metadata, nixlBackendMD *&out) = 0;
    virtual nixl_status_t getNotifs(notif_list_t &out) = 0;
    virtual nixl_status_t genNotif(const std::string &agent, const std::string &message) const = 0;
    virtual nixl_status_t queryMem(const nixl_reg_dlist_t &, std::vector<nixl_query_resp_t> &) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                           const std::string &, nixlBackendReqH *const &, std::chrono::microseconds &,
                                           std::chrono::microseconds &, int &, const void *) const
    {
        return NIXL_ERR_NOT_SUPPORTED;
    }

private:
    // The core reads these fields at their offsets.
    std::string backendType;
    nixl_b_params_t customParams;
    // Events for NIXL's telemetry. Their type differs between 1.0 and 1.5, so the plugin adds none.
    std::vector<char> telemetryEvents;
    std::mutex telemetryMutex;
    bool initErr = false;

protected:
    const std::string localAgent;
    const bool enableTelemetry;
};

struct nixlBackendPlugin {
    int api_version;
    nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *);
    void (*destroy_engine)(nixlBackendEngine *);
    const char *(*get_plugin_name)();
    const char *(*get_plugin_version)();
    nixl_b_params_t (*get_backend_options)();
    nixl_mem_list_t (*get_backend_mems)();
};

// Bytes of the core's vtable of nixlBackendEngine: two words before its 27 slots.
inline constexpr std::size_t NIXL_ENGINE_VTABLE_BYTES = (2 + 27) * sizeof(void *);

static_assert(sizeof(nixlMetaDesc) == 32 && sizeof(nixlBlobDesc) == 56 && sizeof(nixl_meta_dlist_t) == 40);
static_assert(sizeof(nixlBackendMD) == 16 && sizeof(nixlBackendReqH) == 8 && sizeof(nixlBackendOptionalArgs) == 72);
static_assert(sizeof(nixlBackendInitParams) == 96 && sizeof(nixlBackendEngine) == 208);
static_assert(sizeof(nixlBackendPlugin) == 56);
