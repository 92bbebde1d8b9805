// Directories of ferry_kv.hpp: lists, files and addresses, and their lifetimes. Rust tests cover their work in etcd;
// the tests here check that C++ calls reach it.
#include "engines.hpp"

#include <ferry_kv.hpp>
#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <optional>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace std::chrono_literals;

namespace {

std::string said(const ferry::Outcome &call) { return std::string(call.name()) + ": " + call.message(); }

// An engine, and a directory of it that names a second engine, and a third that does not exist.
struct Named {
    Named() : own(open_engine()), peer(open_engine())
    {
        const std::string url = "static:prefill/0=" + must(peer.address()) + ",prefill/1=127.0.0.1:1";
        directory = must(ferry::Directory::open(own, url));
    }
    ferry::Engine own, peer;
    ferry::Directory directory;
};

bool readable(const ferry::Directory &directory, int timeout_ms)
{
    pollfd entry = {must(directory.fd()), POLLIN, 0};
    return poll(&entry, 1, timeout_ms) == 1;
}

} // namespace

TEST(Directories, AListNamesPeers)
{
    const Named named;
    const ferry::Directory &directory = named.directory;
    const ferry::DirectoryEntry entry = must(directory.lookup("prefill/0"));
    EXPECT_STREQ(entry.name, "prefill/0");
    EXPECT_EQ(entry.address, must(named.peer.address()));
    EXPECT_EQ(entry.has_identity, 0u);
    const ferry::Peer peer = must(directory.connect("prefill/0", patience));
    EXPECT_EQ(peer.engine(), named.own.handle());
    EXPECT_EQ(must(peer.info()).address, must(named.peer.address()));
    const std::vector<ferry::DirectoryEntry> all = must(directory.list());
    ASSERT_EQ(all.size(), 2u);
    EXPECT_STREQ(all[1].name, "prefill/1");
    EXPECT_STREQ(all[1].address, "127.0.0.1:1");
    EXPECT_EQ(must(directory.list("prefill/1")).size(), 1u);
    EXPECT_TRUE(must(directory.list("decode")).empty());
    const ferry::DirectoryInfo status = must(directory.info());
    EXPECT_EQ(status.is_connected, 1u);
    EXPECT_EQ(status.entries, 2u);
    EXPECT_STREQ(status.why, "");
    EXPECT_TRUE(directory.poll().pending());
    EXPECT_FALSE(readable(directory, 0));
    must(directory.register_name("prefill/0"));
    must(directory.unregister_name("prefill/0"));
}

TEST(Directories, AFileAndAddressesNamePeers)
{
    const ferry::Engine own = open_engine(), peer = open_engine();
    const std::string address = must(peer.address());
    const std::string file = testing::TempDir() + "ferry-peers-" + std::to_string(getpid());
    std::ofstream(file) << "# peers\na = " << address << "\n";
    const ferry::Directory of_file = must(ferry::Directory::open(own, "static:" + file));
    std::filesystem::remove(file);
    const ferry::Directory addresses = must(ferry::Directory::open(own, "static:"));
    EXPECT_EQ(must(of_file.connect("a", patience)), must(addresses.connect(address, patience)));
    EXPECT_EQ(must(addresses.lookup(address)).name, address);
}

TEST(Directories, WhatIsWrongIsNamed)
{
    const Named named;
    const auto open = [&](ferry::Text url, const ferry::DirectoryOptions &options = {}) {
        return said(ferry::Directory::open(named.own, url, options));
    };
    const auto begins = [](const std::string &text, const char *begin) {
        EXPECT_EQ(text.find(begin), 0u) << text;
    };
    begins(open("consul:"), "INVALID: url begins neither");
    begins(open("etcd:https://h"), "INVALID: ca: ");
    begins(open("etcd:http://h", ferry::DirectoryOptions().ttl(ferry::forever)), "INVALID: ttl is 4294968s");
    begins(open("etcd:http://h", ferry::DirectoryOptions().ttl(3600s + 1ms)), "INVALID: ttl is 3601s");
    begins(open("static:", ferry::DirectoryOptions().ca_file("/nonexistent")), "INVALID: options.ca_file");
    begins(open("static:", ferry::DirectoryOptions().certificate("/nonexistent", "/missing")),
           "INVALID: options.cert_file");
    begins(said(ferry::Directory::open(ferry::Engine(), "static:")), "INVALID: engine is NULL");
    begins(said(named.directory.lookup("prefill/2")), "UNREACHABLE: the directory has no prefill/2");
    begins(said(named.directory.connect("prefill/2")), "UNREACHABLE: the directory has no prefill/2");
    begins(said(named.directory.register_name("decode")),
           "INVALID: name: the list of the static: directory has no decode");
    begins(said(named.directory.unregister_name("a b")), "INVALID: name is \"a b\"");
    begins(said(named.directory.list("a b")), "INVALID: prefix is \"a b\"");
    // Nothing listens there, so the call retries until its timeout.
    const auto began = std::chrono::steady_clock::now();
    const auto nobody = named.directory.connect("prefill/1", 200ms);
    EXPECT_TRUE(nobody.status() == FERRY_ERR_UNREACHABLE || nobody.status() == FERRY_ERR_TIMEOUT) << said(nobody);
    EXPECT_GE(std::chrono::steady_clock::now() - began, 200ms);
    EXPECT_EQ(std::string(nobody.message()).find("prefill/1: "), 0u);
}

TEST(Directories, AClosedOneSaysSo)
{
    Named named;
    must(named.directory.close());
    must(named.directory.close());
    EXPECT_TRUE(readable(named.directory, 0));
    EXPECT_EQ(named.directory.lookup("prefill/0").status(), FERRY_ERR_CLOSED);
    EXPECT_EQ(named.directory.list().status(), FERRY_ERR_CLOSED);
    EXPECT_EQ(named.directory.poll().status(), FERRY_ERR_CLOSED);
    EXPECT_EQ(named.directory.info().status(), FERRY_ERR_CLOSED);
    EXPECT_EQ(named.directory.connect("prefill/0").status(), FERRY_ERR_CLOSED);
    EXPECT_EQ(named.directory.register_name("prefill/0").status(), FERRY_ERR_CLOSED);
    EXPECT_EQ(named.directory.unregister_name("prefill/0").status(), FERRY_ERR_CLOSED);
}

// A directory is moved, keeps its engine alive, and its peers outlive it. ASan reports what is not freed.
TEST(Directories, OwnWhatTheyHave)
{
    std::optional<ferry::Engine> own = open_engine();
    const ferry::Engine peer = open_engine();
    ferry::Directory directory = must(ferry::Directory::open(*own, "static:a=" + must(peer.address())));
    const int fd = must(must(ferry::Directory::open(*own, "static:")).fd());
    EXPECT_EQ(fcntl(fd, F_GETFD), -1); // freed with the directory
    own.reset();
    ferry::Directory moved = std::move(directory);
    EXPECT_FALSE(directory);
    EXPECT_EQ(said(directory.lookup("a")), "INVALID: directory is NULL");
    EXPECT_EQ(said(directory.close()), "INVALID: directory is NULL");
    EXPECT_TRUE(moved);
    const ferry::Peer connected = must(moved.connect("a", patience));
    moved = ferry::Directory();
    EXPECT_TRUE(connected.probe(patience).ok()); // the peer has a share of the engine
}

namespace {

// A server of etcd on free ports, until the end of the test.
class Etcd {
public:
    static bool is_here() { return std::system("command -v \"${FERRY_TEST_ETCD:-etcd}\" >/dev/null") == 0; }
    Etcd() : folder_(testing::TempDir() + "ferry-etcd-" + std::to_string(getpid())), url(free_url())
    {
        const char *program = std::getenv("FERRY_TEST_ETCD");
        const std::string peers = free_url(), cluster = "default=" + peers;
        const std::vector<std::string> words = {program ? program : "etcd", "--data-dir", folder_,
            "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peers,
            "--initial-advertise-peer-urls", peers, "--initial-cluster", cluster, "--logger", "zap", "--log-outputs",
            folder_ + ".log"};
        std::vector<char *> arguments;
        for (const std::string &word : words) arguments.push_back(const_cast<char *>(word.c_str()));
        arguments.push_back(nullptr);
        if (posix_spawnp(&process_, arguments[0], nullptr, nullptr, arguments.data(), environ) != 0)
            give_up("Debian's package etcd-server has etcd");
    }
    ~Etcd()
    {
        kill(process_, SIGKILL);
        waitpid(process_, nullptr, 0);
        std::filesystem::remove_all(folder_);
        std::filesystem::remove(folder_ + ".log");
    }

private:
    static std::string free_url()
    {
        sockaddr_in address = {};
        socklen_t length = sizeof address;
        const int listener = socket(AF_INET, SOCK_STREAM, 0);
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (bind(listener, reinterpret_cast<sockaddr *>(&address), length) != 0 ||
            getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length) != 0)
            give_up("no free port");
        close(listener);
        return "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    }

    std::string folder_;
    pid_t process_ = 0;

public:
    const std::string url;
};

} // namespace

TEST(DirectoriesInEtcd, NamesComeAndGo)
{
    if (!Etcd::is_here()) GTEST_SKIP() << "SKIPPED: there is no etcd (Debian's package etcd-server)";
    const Etcd etcd;
    const std::string url = "etcd:" + etcd.url + "/test";
    const auto options = ferry::DirectoryOptions().open_timeout(30s).ttl(1500ms);
    const ferry::Engine own = open_engine(), peer = open_engine();
    const ferry::Directory finder = must(ferry::Directory::open(own, url, options));
    ferry::Directory names = must(ferry::Directory::open(peer, url, options));
    must(names.register_name("prefill/0", patience));
    ASSERT_TRUE(readable(finder, 60000));
    const ferry::DirectoryChange change = must(finder.poll());
    EXPECT_EQ(change.kind, ferry::ChangeKind::added);
    const ferry::PeerInfo info = must(must(finder.connect("prefill/0", patience)).info());
    EXPECT_EQ(change.entry.incarnation, info.incarnation);
    EXPECT_EQ(std::memcmp(change.entry.engine_id, info.engine_id, 16), 0);
    EXPECT_EQ(must(names.info()).names_published, 1u);
    const auto taken = finder.register_name("prefill/0", 3s);
    EXPECT_EQ(taken.status(), FERRY_ERR_BUSY) << said(taken);
    names = ferry::Directory(); // the destructor withdraws the name
    ASSERT_TRUE(readable(finder, 60000));
    EXPECT_EQ(must(finder.poll()).kind, ferry::ChangeKind::removed);
    EXPECT_EQ(finder.connect("prefill/0", 100ms).status(), FERRY_ERR_UNREACHABLE);
}

TEST(DirectoriesInEtcd, OpenWaitsAsLongAsItIsTold)
{
    const ferry::Engine own = open_engine();
    const char *nobody = "etcd:http://127.0.0.1:1";
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(ferry::Directory::open(own, nobody, ferry::DirectoryOptions().open_timeout(200ms)).status(),
              FERRY_ERR_UNREACHABLE);
    const auto took = std::chrono::steady_clock::now() - began;
    EXPECT_TRUE(200ms <= took && took < 4s);
    const auto trying = must(ferry::Directory::open(own, nobody, ferry::DirectoryOptions().no_wait()));
    EXPECT_EQ(must(trying.info()).is_connected, 0u);
}
