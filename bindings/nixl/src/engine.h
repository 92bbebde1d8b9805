// The backend of one agent: NIXL's calls, in terms of ferry's. NIXL calls from several threads at the same time,
// without a lock.
#pragma once

#include <ferry.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "endpoint.h"
#include "memory.h"
#include "nixl_abi.h"
#include "notices.h"
#include "peer.h"
#include "request.h"

namespace ferry_nixl {

class Engine final : public nixlBackendEngine {
public:
    // Returns nullptr, with a sentence in the log, if the engine does not open.
    static Engine *open(const nixlBackendInitParams &init);
    ~Engine() override;

    bool supportsRemote() const override { return true; }
    bool supportsLocal() const override { return true; }
    bool supportsNotif() const override { return true; }
    nixl_mem_list_t getSupportedMems() const override { return supported(); }
    static nixl_mem_list_t supported() { return {DRAM_SEG, VRAM_SEG}; }

    nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &kind, nixlBackendMD *&out) override;
    nixl_status_t deregisterMem(nixlBackendMD *metadata) override;
    nixl_status_t getPublicData(const nixlBackendMD *metadata, std::string &out) const override;
    nixl_status_t loadLocalMD(nixlBackendMD *metadata, nixlBackendMD *&out) override;
    nixl_status_t loadRemoteMD(const nixlBlobDesc &mem, const nixl_mem_t &kind, const std::string &agent,
                               nixlBackendMD *&out) override;
    nixl_status_t unloadMD(nixlBackendMD *metadata) override;

    nixl_status_t getConnInfo(std::string &out) const override;
    nixl_status_t loadRemoteConnInfo(const std::string &agent, const std::string &info) override;
    nixl_status_t connect(const std::string &agent) override;
    nixl_status_t disconnect(const std::string &agent) override;

    nixl_status_t prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
                           const std::string &agent, nixlBackendReqH *&handle,
                           const nixlBackendOptionalArgs *options) const override;
    nixl_status_t postXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
                           const std::string &agent, nixlBackendReqH *&handle,
                           const nixlBackendOptionalArgs *options) const override;
    nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;

    nixl_status_t getNotifs(notif_list_t &out) override;
    nixl_status_t genNotif(const std::string &agent, const std::string &message) const override;

private:
    Engine(const nixlBackendInitParams &init, std::unique_ptr<Endpoint> endpoint);

    // Returns the peer of an agent whose connection information was loaded, or nullptr.
    std::shared_ptr<Peer> find(const std::string &agent) const;
    // The same for the agent itself, whose engine is a peer of itself.
    std::shared_ptr<Peer> self() const;
    // Takes the events of the endpoint as they come, on a thread of its own, so that peers are not held up when the
    // application does not ask for notifications.
    void read() const;
    // Takes the events that the endpoint has now, with `spool_mutex` held. False after the end of its engine.
    bool drain() const;
    void take(const ferry_event &event) const;
    void cancel_those_that_touch(const Region &region) const;

    const std::unique_ptr<Endpoint> endpoint;
    mutable Dials dials;
    mutable Memory memory;
    mutable std::atomic<std::uint64_t> next_notice{1};

    mutable std::mutex mutex;
    mutable std::map<std::string, std::shared_ptr<Peer>> peers;

    mutable std::mutex requests_mutex;
    // Requests that are prepared and not released.
    mutable std::set<Request *> requests;

    mutable std::mutex spool_mutex;
    mutable std::condition_variable spool_has_room;
    mutable Spool spool;
    mutable bool ending = false;

    std::thread reader;
    const pid_t process = getpid();
};

} // namespace ferry_nixl
