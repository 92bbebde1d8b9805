// The plugin under a stand-in for NIXL's core: calls of the core that a test through the wheel's Python cannot make.
//
//   suite PLUGIN FOLDER [gtest's options]    FOLDER has copies of the core with other neighbours
//   suite --target PLUGIN MEMORY BYTES       the target of transfers in a second process: other.h
#include <dlfcn.h>
#include <ferry.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "../../src/notices.h"
#include "other.h"

namespace {

using namespace suite;

TEST(Guard, ACoreOfBefore10IsRefused)
{
    // This program is no NIXL: it lacks the symbol that NIXL has since 1.0.
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
    // 64 MiB take longer than the call. Without a cancel the transfer would be done.
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
    // An impossible request fails as any other transfer does.
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
    // Memory that is registered after the first transfer is in the mirror too.
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
