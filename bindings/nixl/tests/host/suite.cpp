// The plugin under a stand-in for NIXL's core: what the core does and the wheel's Python does not let a test do. The
// program is run a second time as the target of transfers that are released while they are under way.
//
//   suite PLUGIN FOLDER [gtest's options]    FOLDER has copies of the core with other neighbours
#include <dlfcn.h>
#include <ferry.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "../../src/notices.h"
#include "core.h"

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
std::string plugin_path, folder;

nixlBackendPlugin *plugin()
{
    static nixlBackendPlugin *const loaded = host::load(plugin_path);
    return loaded;
}

host::Backend agent(const std::string &name, nixl_b_params_t parameters = {})
{
    host::Backend made = host::create(plugin(), name, std::move(parameters));
    EXPECT_NE(made, nullptr);
    return made;
}

host::List list(const void *at, std::size_t length, nixlBackendMD *metadata)
{
    host::List made;
    made.descs.push_back({{reinterpret_cast<std::uintptr_t>(at), length, 0}, metadata});
    return made;
}

nixl_status_t finish(nixlBackendEngine &engine, nixlBackendReqH *handle, nixl_status_t status)
{
    const auto last = Clock::now() + 30s;
    while (status == NIXL_IN_PROG && Clock::now() < last) status = engine.checkXfer(handle);
    return status;
}

nixl_status_t run(nixlBackendEngine &engine, nixlBackendReqH *&handle, const nixlBackendOptionalArgs *options = nullptr)
{
    const host::List none;
    return finish(engine, handle, engine.postXfer(NIXL_WRITE, none.get(), none.get(), "", handle, options));
}

nixlBackendReqH *prepare(nixlBackendEngine &engine, nixl_xfer_op_t op, const host::List &local, const host::List &remote,
                         const std::string &peer)
{
    nixlBackendReqH *handle = nullptr;
    EXPECT_EQ(engine.prepXfer(op, local.get(), remote.get(), peer, handle, nullptr), NIXL_SUCCESS);
    return handle;
}

notif_list_t notices(nixlBackendEngine &engine, std::size_t count)
{
    notif_list_t all;
    for (const auto last = Clock::now() + 30s; all.size() < count && Clock::now() < last;) {
        notif_list_t some;
        EXPECT_EQ(engine.getNotifs(some), NIXL_SUCCESS);
        all.insert(all.end(), some.begin(), some.end());
    }
    return all;
}

// Two agents of one process, of which `a` knows `b` and its memory.
struct Pair {
    explicit Pair(const nixl_b_params_t &parameters = {}, std::size_t words = 1 << 14)
        : here(words), there(words), a(agent("a", parameters)), b(agent("b", parameters))
    {
        std::iota(here.begin(), here.end(), 1);
        host::introduce(*b, "b", *a);
        local = host::add(*a, here.data(), bytes());
        memory = host::share(*b, "b", *a, there.data(), bytes());
    }
    std::size_t bytes() const { return here.size() * 8; }
    nixlBackendReqH *write() { return prepare(*a, NIXL_WRITE, list(here.data(), bytes(), local),
                                              list(there.data(), bytes(), memory.remote), "b"); }
    std::vector<std::uint64_t> here, there;
    host::Backend a, b;
    nixlBackendMD *local;
    host::Shared memory;
};

TEST(Guard, ACoreOfBefore10IsRefused)
{
    // This program is no NIXL: it lacks the symbol that 1.0 brought.
    void *library = dlopen(plugin_path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto init = reinterpret_cast<nixlBackendPlugin *(*)()>(dlsym(library, "nixl_plugin_init"));
    testing::internal::CaptureStderr();
    nixlBackendPlugin *const made = init();
    EXPECT_EQ(made, nullptr);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("no NIXL from 1.0.0 on"), std::string::npos);
}

TEST(Guard, AnEngineWithMoreFunctionsIsRefused)
{
    for (const auto &[neighbours, served] : {std::pair("232", true), {"264", false}, {"empty", true}}) {
        void *core = dlopen((folder + "/" + neighbours + "/libcore.so").c_str(), RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(core, nullptr) << dlerror();
        testing::internal::CaptureStderr();
        const auto load = reinterpret_cast<host::Load>(dlsym(core, "host_load"));
        EXPECT_EQ(load(plugin_path.c_str()) != nullptr, served) << neighbours;
        const std::string said = testing::internal::GetCapturedStderr();
        EXPECT_EQ(said.find("a vtable of 264 bytes instead of 232") != std::string::npos, !served) << said;
    }
}

TEST(Parameters, EachSettingIsOneAndIsTakenBack)
{
    nixl_b_params_t all = plugin()->get_backend_options();
    EXPECT_EQ(all.at("keepalive_ms"), "1500");
    EXPECT_EQ(all.at("lanes"), "2");
    EXPECT_NE(host::create(plugin(), "a", all), nullptr);
    all["lanes"] = "0";
    testing::internal::CaptureStderr();
    EXPECT_EQ(host::create(plugin(), "a", all), nullptr);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("the parameter lanes: INVALID: "), std::string::npos);
}

TEST(Parameters, UnknownOnesAreRefusedExceptUnderAnAlias)
{
    testing::internal::CaptureStderr();
    EXPECT_EQ(host::create(plugin(), "a", {{"num_threads", "2"}}), nullptr);
    EXPECT_NE(host::create(plugin(), "a", {{"num_threads", "2"}}, "UCX"), nullptr);
    EXPECT_EQ(host::create(plugin(), "a", {{"lanes", "0"}}, "UCX"), nullptr);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("num_threads is not ferry's, and is ignored: ferry stands in for UCX"), std::string::npos) << said;
}

TEST(Parameters, WithASecretEveryInterfaceIsListenedAt)
{
    const std::string secret(64, 'a');
    testing::internal::CaptureStderr();
    // Whether the engine opens at any address depends on the host's routes, so another port stands for the rule.
    const host::Backend near = host::create(plugin(), "a", {{"secret", secret}, {"listen_address", "127.0.0.1:0"}});
    ASSERT_NE(near, nullptr);
    testing::internal::GetCapturedStderr();
    setenv("FERRY_SECRET", secret.c_str(), 1);
    const nixl_b_params_t all = plugin()->get_backend_options();
    unsetenv("FERRY_SECRET");
    EXPECT_EQ(all.at("listen_address"), "0.0.0.0:0");
    EXPECT_EQ(all.count("secret"), 0U) << "a secret is not told";
    EXPECT_EQ(plugin()->get_backend_options().at("listen_address"), "127.0.0.1:0");
}

TEST(Memory, IsRegisteredTwiceAndInParts)
{
    Pair pair;
    nixlBackendMD *again = host::add(*pair.b, pair.there.data(), pair.bytes());
    nixlBackendMD *part = host::add(*pair.b, pair.there.data() + 8, 64);
    nixlBackendReqH *handle = pair.write();
    for (nixlBackendMD *metadata : {pair.memory.local, part}) {
        EXPECT_EQ(pair.b->deregisterMem(metadata), NIXL_SUCCESS);
        EXPECT_EQ(run(*pair.a, handle), NIXL_SUCCESS) << "a registration is left";
    }
    EXPECT_EQ(pair.there, pair.here);
    EXPECT_EQ(pair.b->deregisterMem(again), NIXL_SUCCESS);
    EXPECT_EQ(run(*pair.a, handle), NIXL_ERR_NOT_FOUND) << "none is left";
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
    std::vector<std::uint64_t> other(64);
    host::add(*pair.a, &other[16], 256);
    nixlBlobDesc across;
    across.addr = reinterpret_cast<std::uintptr_t>(&other[8]);
    across.len = 128;
    nixlBackendMD *none = nullptr;
    EXPECT_EQ(pair.a->registerMem(across, DRAM_SEG, none), NIXL_ERR_NOT_ALLOWED);
    EXPECT_EQ(pair.a->registerMem(across, FILE_SEG, none), NIXL_ERR_NOT_SUPPORTED);
}

TEST(Memory, ThatIsDeregisteredEndsItsTransfers)
{
    // The peer never answers: its process is stopped as soon as the transfer is under way, so only a cancel ends it.
    Pair pair({{"transports", "tcp"}}, 8 << 20);
    nixlBackendReqH *handle = pair.write();
    const host::List none;
    nixl_status_t status = pair.a->postXfer(NIXL_WRITE, none.get(), none.get(), "", handle, nullptr);
    EXPECT_EQ(pair.a->deregisterMem(pair.local), NIXL_SUCCESS);
    status = pair.a->checkXfer(handle);
    EXPECT_TRUE(status == NIXL_ERR_CANCELED || status == NIXL_SUCCESS) << status;
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
}

TEST(Strangers, MetadataOfOtherBackendsIsRefused)
{
    const host::Backend a = agent("a");
    EXPECT_EQ(a->loadRemoteConnInfo("u", std::string(200, 'u')), NIXL_ERR_MISMATCH);
    EXPECT_EQ(a->loadRemoteConnInfo("u", ""), NIXL_ERR_MISMATCH);
    nixlBlobDesc piece{};
    piece.metaInfo = "0123456789abcdef";
    nixlBackendMD *out = nullptr;
    EXPECT_EQ(a->loadRemoteMD(piece, DRAM_SEG, "u", out), NIXL_ERR_MISMATCH);
    EXPECT_EQ(a->connect("u"), NIXL_ERR_NOT_FOUND);
    EXPECT_EQ(a->genNotif("u", "x"), NIXL_ERR_NOT_FOUND);
    // The head is ferry's, and no descriptor follows.
    std::string info;
    ASSERT_EQ(a->getConnInfo(info), NIXL_SUCCESS);
    ASSERT_EQ(a->loadRemoteConnInfo("d", info.substr(0, 24) + "nothing"), NIXL_SUCCESS);
    EXPECT_EQ(a->connect("d"), NIXL_ERR_INVALID_PARAM);
}

TEST(Peers, ThatAreGoneFailTransfersAndAreDialledAgain)
{
    Pair pair;
    std::string old;
    ASSERT_EQ(pair.b->getConnInfo(old), NIXL_SUCCESS);
    nixlBackendReqH *handle = pair.write();
    EXPECT_EQ(run(*pair.a, handle), NIXL_SUCCESS);
    pair.b.reset();
    EXPECT_EQ(run(*pair.a, handle), NIXL_ERR_REMOTE_DISCONNECT);
    EXPECT_EQ(run(*pair.a, handle), NIXL_ERR_REMOTE_DISCONNECT);
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
    // A new agent of the same name at another address.
    pair.b = agent("b");
    host::introduce(*pair.b, "b", *pair.a);
    pair.memory = host::share(*pair.b, "b", *pair.a, pair.there.data(), pair.bytes());
    handle = pair.write();
    EXPECT_EQ(run(*pair.a, handle), NIXL_SUCCESS);
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
    EXPECT_EQ(pair.a->disconnect("b"), NIXL_SUCCESS);
    EXPECT_EQ(pair.a->disconnect("b"), NIXL_ERR_NOT_FOUND);
}

TEST(Peers, WithAnotherSecretAreRefused)
{
    testing::internal::CaptureStderr();
    const host::Backend a = agent("a", {{"secret", std::string(64, 'a')}, {"listen_address", "127.0.0.1:0"}});
    const host::Backend b = agent("b", {{"secret", std::string(64, 'b')}, {"listen_address", "127.0.0.1:0"}});
    host::introduce(*b, "b", *a);
    EXPECT_EQ(a->connect("b"), NIXL_ERR_NOT_ALLOWED);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("agent b is not reached: REFUSED: "), std::string::npos);
}

TEST(Requests, AreCheckedBeforeTheyArePrepared)
{
    Pair pair;
    nixlBackendReqH *handle = nullptr;
    const host::List local = list(pair.here.data(), 64, pair.local), none;
    host::List two = list(pair.there.data(), 64, pair.memory.remote);
    two.descs.push_back(two.descs[0]);
    const host::List shorter = list(pair.there.data(), 32, pair.memory.remote);
    const host::List unknown = list(pair.there.data(), 64, nullptr);
    for (const host::List *remote : {&none, const_cast<const host::List *>(&two), &shorter, &unknown})
        EXPECT_EQ(pair.a->prepXfer(NIXL_READ, local.get(), remote->get(), "b", handle, nullptr), NIXL_ERR_INVALID_PARAM);
    EXPECT_EQ(pair.a->prepXfer(NIXL_READ, local.get(), shorter.get(), "c", handle, nullptr), NIXL_ERR_NOT_FOUND);
    handle = prepare(*pair.a, NIXL_READ, local, list(pair.there.data() + pair.there.size(), 64, pair.memory.remote), "b");
    EXPECT_EQ(run(*pair.a, handle), NIXL_ERR_INVALID_PARAM) << "beyond the region";
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
    handle = pair.write();
    EXPECT_EQ(pair.a->checkXfer(handle), NIXL_ERR_NOT_POSTED);
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS) << "never posted";
}

TEST(Requests, OfOneSmallRangeAreDoneAtOnceOnThisHost)
{
    Pair pair;
    ASSERT_EQ(pair.a->connect("b"), NIXL_SUCCESS);
    const host::List none;
    for (nixl_xfer_op_t op : {NIXL_WRITE, NIXL_READ}) {
        nixlBackendReqH *handle = prepare(*pair.a, op, list(pair.here.data(), 4096, pair.local),
                                          list(pair.there.data(), 4096, pair.memory.remote), "b");
        // The path of this host is proven shortly after the session is up, and a busy lane is left to its owner.
        int at_once = 0;
        for (std::uint64_t turn = 1; turn < 1000 && at_once < 3; turn++) {
            (op == NIXL_WRITE ? pair.here : pair.there)[511] = turn;
            const nixl_status_t posted = pair.a->postXfer(op, none.get(), none.get(), "", handle, nullptr);
            at_once += posted == NIXL_SUCCESS;
            EXPECT_EQ(finish(*pair.a, handle, posted), NIXL_SUCCESS);
            EXPECT_EQ((op == NIXL_WRITE ? pair.there : pair.here)[511], turn);
        }
        EXPECT_EQ(at_once, 3);
        EXPECT_EQ(pair.a->checkXfer(handle), NIXL_SUCCESS);
        EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
    }
    // What cannot be is told as of any other transfer.
    nixlBackendReqH *handle = prepare(*pair.a, NIXL_WRITE, list(pair.here.data(), 4096, pair.local),
                                      list(pair.there.data(), 4096, pair.memory.remote), "b");
    EXPECT_EQ(pair.b->deregisterMem(pair.memory.local), NIXL_SUCCESS);
    EXPECT_EQ(run(*pair.a, handle), NIXL_ERR_NOT_FOUND);
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
}

TEST(Requests, OutliveTheirMetadata)
{
    Pair pair;
    nixlBackendReqH *handle = pair.write();
    EXPECT_EQ(pair.a->unloadMD(pair.memory.remote), NIXL_SUCCESS);
    EXPECT_EQ(pair.a->disconnect("b"), NIXL_SUCCESS);
    EXPECT_EQ(run(*pair.a, handle), NIXL_SUCCESS);
    EXPECT_EQ(pair.there, pair.here);
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
}

TEST(Requests, ToOneselfMoveDataAndTell)
{
    std::vector<std::uint64_t> here(1 << 12, 7), there(1 << 12, 0);
    const host::Backend a = agent("a");
    nixlBackendMD *from = host::add(*a, here.data(), here.size() * 8), *to = host::add(*a, there.data(), there.size() * 8);
    nixlBackendMD *target = nullptr;
    ASSERT_EQ(a->loadLocalMD(to, target), NIXL_SUCCESS);
    EXPECT_EQ(a->connect("a"), NIXL_SUCCESS);
    nixlBackendReqH *handle = prepare(*a, NIXL_WRITE, list(here.data(), here.size() * 8, from),
                                      list(there.data(), there.size() * 8, target), "a");
    const nixlBackendOptionalArgs told = {"to myself", true, ""};
    EXPECT_EQ(run(*a, handle, &told), NIXL_SUCCESS);
    EXPECT_EQ(there, here);
    EXPECT_EQ(a->genNotif("a", "and alone"), NIXL_SUCCESS);
    notif_list_t all = notices(*a, 2);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, (notif_list_t{{"a", "and alone"}, {"a", "to myself"}}));
    EXPECT_EQ(a->releaseReqH(handle), NIXL_SUCCESS);
    EXPECT_EQ(a->unloadMD(target), NIXL_SUCCESS);
    // Memory of after the first transfer is the mirror's too.
    std::vector<std::uint64_t> later(16, 0);
    nixlBackendMD *more = host::add(*a, later.data(), 128);
    ASSERT_EQ(a->loadLocalMD(more, target), NIXL_SUCCESS);
    handle = prepare(*a, NIXL_WRITE, list(here.data(), 128, from), list(later.data(), 128, target), "a");
    EXPECT_EQ(run(*a, handle), NIXL_SUCCESS);
    EXPECT_EQ(later, std::vector<std::uint64_t>(16, 7));
    EXPECT_EQ(a->releaseReqH(handle), NIXL_SUCCESS);
    EXPECT_EQ(a->deregisterMem(more), NIXL_SUCCESS);
    EXPECT_EQ(a->unloadMD(target), NIXL_SUCCESS);
}

TEST(Notices, OfAnyLengthComeBehindTheDataAndInOrder)
{
    Pair pair;
    nixlBackendReqH *handle = pair.write();
    notif_list_t sent;
    for (std::size_t length : {0, 1, 16'000, 16'384, 40'000, 1'000'000}) {
        std::fill(pair.there.begin(), pair.there.end(), 0);
        nixlBackendOptionalArgs told = {std::string(length, static_cast<char>('a' + sent.size())), true, ""};
        EXPECT_EQ(run(*pair.a, handle, &told), NIXL_SUCCESS);
        sent.emplace_back("a", told.notifMsg);
        told.notifMsg += "alone";
        EXPECT_EQ(pair.a->genNotif("b", told.notifMsg), NIXL_SUCCESS);
        sent.emplace_back("a", told.notifMsg);
        EXPECT_EQ(pair.there, pair.here);
    }
    EXPECT_EQ(notices(*pair.b, sent.size()), sent);
    nixlBackendOptionalArgs too_long = {std::string(ferry_nixl::NOTICE_BYTES_MAX + 1, 'x'), true, ""};
    EXPECT_EQ(run(*pair.a, handle, &too_long), NIXL_ERR_INVALID_PARAM);
    EXPECT_EQ(pair.a->genNotif("b", too_long.notifMsg), NIXL_ERR_INVALID_PARAM);
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
}

TEST(Notices, NobodyAsksForDoNotStopTheSender)
{
    Pair pair;
    nixlBackendReqH *handle = pair.write();
    const nixlBackendOptionalArgs told = {"more than a peer of ferry may leave untaken", true, ""};
    for (int i = 0; i < 3000; i++) ASSERT_EQ(run(*pair.a, handle, &told), NIXL_SUCCESS) << i;
    EXPECT_EQ(notices(*pair.b, 3000).size(), 3000U);
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
}

TEST(Notices, ToOneselfAreBounded)
{
    const host::Backend a = agent("a");
    const std::string long_one(ferry_nixl::NOTICE_BYTES_MAX, 'x');
    for (int i = 0; i < 5; i++) EXPECT_EQ(a->genNotif("a", long_one), NIXL_SUCCESS);
    EXPECT_EQ(a->genNotif("a", "one more"), NIXL_ERR_NOT_ALLOWED);
    EXPECT_EQ(notices(*a, 5).size(), 5U);
    EXPECT_EQ(a->genNotif("a", "one more"), NIXL_SUCCESS);
}

TEST(Notices, OfATransferThatFailsAreNotTold)
{
    Pair pair;
    nixlBackendReqH *handle = pair.write();
    EXPECT_EQ(pair.b->deregisterMem(pair.memory.local), NIXL_SUCCESS);
    const nixlBackendOptionalArgs told = {std::string(40'000, 'x'), true, ""};
    // More than the receiver keeps of messages that have begun: each that is given up makes room.
    for (int i = 0; i < 300; i++) ASSERT_EQ(run(*pair.a, handle, &told), NIXL_ERR_NOT_FOUND);
    const std::string next(40'000, 'y');
    EXPECT_EQ(pair.a->genNotif("b", next), NIXL_SUCCESS);
    EXPECT_EQ(notices(*pair.b, 1), (notif_list_t{{"a", next}}));
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
}

TEST(Pieces, OutOfOrderOrBeyondTheBoundsAreDropped)
{
    const std::vector<std::string> pieces = ferry_nixl::cut("s", std::string(50'000, 'm'), 9);
    ASSERT_EQ(pieces.size(), 4U);
    const auto told = [](const std::vector<std::string> &in, ferry_peer second_peer = 1) {
        ferry_nixl::Spool spool;
        testing::internal::CaptureStderr();
        for (std::size_t i = 0; i < in.size(); i++) spool.take(i == 1 ? second_peer : 1, in[i].data(), in[i].size());
        testing::internal::GetCapturedStderr();
        notif_list_t out;
        spool.give(out);
        return out.size();
    };
    EXPECT_EQ(told(pieces), 1U);
    EXPECT_EQ(told({pieces[0], pieces[2], pieces[1], pieces[3]}), 0U) << "order";
    EXPECT_EQ(told({pieces[0], pieces[0], pieces[1], pieces[2], pieces[3]}), 0U) << "twice";
    EXPECT_EQ(told({pieces[1], pieces[2], pieces[3]}), 0U) << "no beginning";
    EXPECT_EQ(told(pieces, 2), 0U) << "of two peers";
    EXPECT_EQ(told({pieces[0], ferry_nixl::give_up("s", 9), pieces[1], pieces[2], pieces[3]}), 0U) << "given up";
    for (std::size_t cut : {std::size_t(0), std::size_t(26), std::size_t(27)})
        EXPECT_EQ(told({pieces[0].substr(0, cut)}), 0U) << cut;
    std::string long_name = pieces[0], long_message = pieces[0], other = pieces[0];
    long_name[2] = '\x7f';
    long_message[17] = '\x7f';
    other[0] = '\x03';
    EXPECT_EQ(told({long_name}) + told({long_message}) + told({other}), 0U);
    // Nothing of a peer stays behind its end.
    ferry_nixl::Spool spool;
    spool.take(1, pieces[0].data(), pieces[0].size());
    spool.forget(1);
    testing::internal::CaptureStderr();
    for (std::size_t i = 1; i < 4; i++) spool.take(1, pieces[i].data(), pieces[i].size());
    EXPECT_NE(testing::internal::GetCapturedStderr().find("out of order"), std::string::npos);
}

TEST(Pieces, OfOnePeerTakeBoundedMemory)
{
    // The first pieces of as many messages as a peer likes: at most 256 are kept.
    ferry_nixl::Spool spool;
    testing::internal::CaptureStderr();
    std::vector<std::vector<std::string>> messages;
    for (std::uint64_t id = 0; id < 300; id++) {
        messages.push_back(ferry_nixl::cut("s", std::string(20'000, 'm'), id));
        spool.take(1, messages.back()[0].data(), messages.back()[0].size());
    }
    for (const auto &message : messages) spool.take(1, message[1].data(), message[1].size());
    testing::internal::GetCapturedStderr();
    notif_list_t out;
    spool.give(out);
    EXPECT_EQ(out.size(), 256U);
}

TEST(Threads, CallAtTheSameTime)
{
    Pair pair;
    host::introduce(*pair.a, "a", *pair.b);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            const std::size_t words = pair.here.size() / 4, first = t * words;
            for (int i = 0; i < 100; i++) {
                nixlBackendReqH *handle = nullptr;
                const host::List from = list(&pair.here[first], words * 8, pair.local);
                const host::List to = list(&pair.there[first], words * 8, pair.memory.remote);
                wrong += pair.a->prepXfer(NIXL_WRITE, from.get(), to.get(), "b", handle, nullptr) != NIXL_SUCCESS;
                const nixlBackendOptionalArgs told = {std::to_string(t), true, ""};
                if (i % 3 == 0) {
                    pair.a->postXfer(NIXL_WRITE, from.get(), to.get(), "b", handle, nullptr);
                } else {
                    wrong += run(*pair.a, handle, &told) != NIXL_SUCCESS;
                }
                while (pair.a->releaseReqH(handle) != NIXL_SUCCESS) {}
                wrong += pair.b->genNotif("a", "back") != NIXL_SUCCESS;
                std::uint64_t word = 0;
                wrong += pair.a->deregisterMem(host::add(*pair.a, &word, 8)) != NIXL_SUCCESS;
                notif_list_t some;
                wrong += pair.a->getNotifs(some) != NIXL_SUCCESS;
            }
        });
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(notices(*pair.b, 4 * 66).size(), 4U * 66);
}

TEST(Forked, ChildrenEndWithoutWaitingForThreadsThatTheyDoNotHave)
{
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer does not follow a fork of a process with threads";
#endif
    Pair pair;
    nixlBackendReqH *handle = pair.write();
    EXPECT_EQ(run(*pair.a, handle), NIXL_SUCCESS);
    const pid_t child = fork();
    if (child == 0) {
        alarm(10);
        pair.a.reset();
        pair.b.reset();
        _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(run(*pair.a, handle), NIXL_SUCCESS);
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
}

// A target in another process, whose memory this process sees too.
class Other {
public:
    Other(nixlBackendEngine &user, std::size_t bytes) : length(bytes)
    {
        memory_fd = memfd_create("target", 0);
        EXPECT_EQ(ftruncate(memory_fd, static_cast<off_t>(bytes)), 0);
        log_fd = memfd_create("log", 0);
        memory = static_cast<std::uint64_t *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0));
        int out[2];
        EXPECT_EQ(pipe(out), 0);
        const std::string descriptor = std::to_string(memory_fd), size = std::to_string(bytes);
        pid = fork();
        if (pid == 0) {
            dup2(out[1], 1);
            dup2(log_fd, 2);
            execl("/proc/self/exe", "suite", "--target", plugin_path.c_str(), descriptor.c_str(), size.c_str(), nullptr);
            _exit(127);
        }
        close(out[1]);
        FILE *said = fdopen(out[0], "r");
        std::string info = line(said), region = line(said);
        address = std::stoull(line(said));
        fclose(said);
        EXPECT_EQ(user.loadRemoteConnInfo("other", info), NIXL_SUCCESS);
        nixlBlobDesc piece{};
        piece.addr = address;
        piece.len = bytes;
        piece.metaInfo = region;
        EXPECT_EQ(user.loadRemoteMD(piece, DRAM_SEG, "other", metadata), NIXL_SUCCESS);
    }
    ~Other()
    {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        munmap(memory, length);
        close(memory_fd);
        close(log_fd);
    }
    // True if the target's log has the words.
    bool said(const std::string &words) const
    {
        std::string text(1 << 16, '\0');
        text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, pread(log_fd, text.data(), text.size(), 0))));
        return text.find(words) != std::string::npos;
    }
    void stop()
    {
        kill(pid, SIGSTOP);
        int status;
        EXPECT_EQ(waitpid(pid, &status, WUNTRACED), pid);
    }
    void go_on() { kill(pid, SIGCONT); }
    host::List all() const { return list(reinterpret_cast<void *>(address), length, metadata); }
    std::size_t landed() const { return static_cast<std::size_t>(std::count_if(memory, memory + length / 8,
                                                                              [](std::uint64_t word) { return word != 0; })); }

    // The target's part: serves until it is killed, and answers every notification.
    static int serve(int memory_fd, std::size_t bytes)
    {
        void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
        const host::Backend self = host::create(plugin(), "other");
        nixlBackendMD *metadata = host::add(*self, memory, bytes);
        std::string info, region;
        self->getConnInfo(info);
        self->getPublicData(metadata, region);
        put(info);
        put(region);
        put(std::to_string(reinterpret_cast<std::uintptr_t>(memory)));
        for (;;) {
            notif_list_t come;
            self->getNotifs(come);
            for (const auto &notice : come) {
                self->loadRemoteConnInfo(notice.first, notice.second);
                self->genNotif(notice.first, "here");
            }
            usleep(1000);
        }
    }

    pid_t pid;
    std::uint64_t *memory;
    const std::size_t length;

private:
    // Lines of hexadecimal digits.
    static void put(const std::string &bytes)
    {
        for (unsigned char byte : bytes) std::printf("%02x", byte);
        std::printf("\n");
        std::fflush(stdout);
    }
    static std::string line(FILE *from)
    {
        char text[4096];
        std::string bytes;
        if (fgets(text, sizeof text, from) == nullptr) ADD_FAILURE() << "the target said nothing";
        for (std::size_t i = 0; text[i] != '\n' && text[i] != '\0'; i += 2)
            bytes.push_back(static_cast<char>(std::stoi(std::string(text + i, 2), nullptr, 16)));
        return bytes;
    }

    int memory_fd, log_fd;
    std::uint64_t address = 0;
    nixlBackendMD *metadata = nullptr;
};

// 67,108,864 bytes are on their way. The release is asked for as NIXL's core does: once, and a second time if the first
// is refused. When it has returned, not one more byte may change at the target; a target that was stopped in the middle
// may not go on with what its sockets hold.
//
// Returns false if this thread came too late, on a busy machine: the transfer was over before.
bool released_in_the_middle(bool stopped)
{
    constexpr std::size_t BYTES = 64 << 20;
    const host::Backend a = agent("a", {{"transports", "tcp"}});
    Other other(*a, BYTES);
    std::vector<std::uint64_t> here(BYTES / 8, ~std::uint64_t(0));
    nixlBackendMD *local = host::add(*a, here.data(), BYTES);
    EXPECT_EQ(a->connect("other"), NIXL_SUCCESS);
    nixlBackendReqH *handle = prepare(*a, NIXL_WRITE, list(here.data(), BYTES, local), other.all(), "other");
    const host::List none;
    EXPECT_EQ(a->postXfer(NIXL_WRITE, none.get(), none.get(), "", handle, nullptr), NIXL_IN_PROG);
    const auto last = Clock::now() + 10s;
    while (static_cast<volatile std::uint64_t *>(other.memory)[0] == 0 && Clock::now() < last) {}
    if (stopped) other.stop();
    if (stopped && other.landed() == BYTES / 8) return false;
    const auto start = Clock::now();
    const nixl_status_t first = a->releaseReqH(handle);
    EXPECT_EQ(first, stopped ? NIXL_ERR_REPOST_ACTIVE : NIXL_SUCCESS);
    if (first != NIXL_SUCCESS) {
        EXPECT_LT(Clock::now() - start, 1s) << "the first release does not wait for the peer";
        EXPECT_EQ(a->releaseReqH(handle), NIXL_SUCCESS);
        EXPECT_LT(Clock::now() - start, 5s);
    }
    const std::size_t landed = other.landed();
    EXPECT_GT(landed, 0U);
    if (landed == BYTES / 8) return false;
    std::fill(here.begin(), here.end(), 1);
    if (stopped) other.go_on();
    // The target answers behind all that its sockets held; then a little more, for what a thread may still copy.
    std::string own;
    EXPECT_EQ(a->getConnInfo(own), NIXL_SUCCESS);
    EXPECT_EQ(a->genNotif("other", own), NIXL_SUCCESS);
    EXPECT_EQ(notices(*a, 1).size(), 1U);
    const auto watched = Clock::now() + 500ms;
    if (!stopped) {
        while (Clock::now() < watched) EXPECT_EQ(other.landed(), landed);
    } else {
        // A process that is stopped between its look at the clock and the access may make that one access when it goes
        // on: at most a frame. ferry tells the application there (LATE_APPLY).
        const std::size_t more = other.landed() - landed;
        EXPECT_LE(more, (std::size_t(1) << 20) / 8);
        EXPECT_TRUE(more == 0 || other.said("bytes after its lease")) << more;
        while (Clock::now() < watched) EXPECT_EQ(other.landed(), landed + more);
    }
    EXPECT_EQ(std::count(other.memory, other.memory + BYTES / 8, 1U), 0) << "bytes of after the release were sent";
    return true;
}

void in_the_middle_once(bool stopped)
{
    for (int i = 0; i < 20; i++)
        if (released_in_the_middle(stopped)) return;
    FAIL() << "the transfer was over before the release, 20 times";
}

TEST(Release, InTheMiddleReturnsWhenNothingCanLand) { in_the_middle_once(false); }
TEST(Release, OfATransferToAStoppedPeerReturnsWhenNothingCanLand) { in_the_middle_once(true); }

TEST(Release, OfATransferWhosePeerIsStillDialled)
{
    const host::Backend a = agent("a");
    Other other(*a, 1 << 16);
    other.stop();
    std::vector<std::uint64_t> here(1 << 13, 1);
    nixlBackendMD *local = host::add(*a, here.data(), 1 << 16);
    nixlBackendReqH *handle = prepare(*a, NIXL_WRITE, list(here.data(), 1 << 16, local), other.all(), "other");
    const host::List none;
    const auto start = Clock::now();
    ASSERT_EQ(a->postXfer(NIXL_WRITE, none.get(), none.get(), "", handle, nullptr), NIXL_IN_PROG);
    EXPECT_EQ(a->releaseReqH(handle), NIXL_SUCCESS);
    EXPECT_LT(Clock::now() - start, 1s);
    EXPECT_EQ(other.landed(), 0U);
}

TEST(Peers, ThatAreStoppedFailTransfersWithinSeconds)
{
    const host::Backend a = agent("a", {{"transports", "tcp"}});
    Other other(*a, 64 << 20);
    std::vector<std::uint64_t> here(8 << 20, 1);
    nixlBackendMD *local = host::add(*a, here.data(), 64 << 20);
    ASSERT_EQ(a->connect("other"), NIXL_SUCCESS);
    other.stop();
    nixlBackendReqH *handle = prepare(*a, NIXL_READ, list(here.data(), 64 << 20, local), other.all(), "other");
    const auto start = Clock::now();
    EXPECT_EQ(run(*a, handle), NIXL_ERR_REMOTE_DISCONNECT);
    EXPECT_LT(Clock::now() - start, 5s);
    EXPECT_EQ(a->releaseReqH(handle), NIXL_SUCCESS);
}

TEST(Notices, ThatAStoppedPeerHasNotTakenInFailTheTransferThoughItsDataIsThere)
{
    const host::Backend a = agent("a", {{"transports", "local"}});
    Other other(*a, 1 << 16);
    std::vector<std::uint64_t> here(1 << 13, 1);
    nixlBackendMD *local = host::add(*a, here.data(), 1 << 16);
    ASSERT_EQ(a->connect("other"), NIXL_SUCCESS);
    nixlBackendReqH *handle = prepare(*a, NIXL_WRITE, list(here.data(), 1 << 16, local), other.all(), "other");
    EXPECT_EQ(run(*a, handle), NIXL_SUCCESS);
    std::fill(other.memory, other.memory + (1 << 13), 0);
    // The copy needs nothing of the peer's threads; only they take the notification in.
    other.stop();
    const nixlBackendOptionalArgs told = {"not taken in", true, ""};
    EXPECT_EQ(run(*a, handle, &told), NIXL_ERR_REMOTE_DISCONNECT);
    EXPECT_EQ(other.landed(), std::size_t(1) << 13);
    EXPECT_EQ(a->releaseReqH(handle), NIXL_SUCCESS);
}

TEST(Peers, ThatAreStoppedBeforeTheyAreDialledFailTransfersWithinSeconds)
{
    const host::Backend a = agent("a");
    Other other(*a, 1 << 16);
    other.stop();
    std::vector<std::uint64_t> here(1 << 13, 1);
    nixlBackendMD *local = host::add(*a, here.data(), 1 << 16);
    nixlBackendReqH *handle = prepare(*a, NIXL_READ, list(here.data(), 1 << 16, local), other.all(), "other");
    const auto start = Clock::now();
    EXPECT_EQ(run(*a, handle), NIXL_ERR_REMOTE_DISCONNECT);
    EXPECT_LT(Clock::now() - start, 5s);
    EXPECT_EQ(a->releaseReqH(handle), NIXL_SUCCESS);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 5 && std::strcmp(argv[1], "--target") == 0) {
        plugin_path = argv[2];
        return Other::serve(std::stoi(argv[3]), std::stoull(argv[4]));
    }
    if (argc < 3) {
        std::fprintf(stderr, "usage: suite PLUGIN FOLDER [gtest's options]\n");
        return 2;
    }
    plugin_path = argv[1];
    folder = argv[2];
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
