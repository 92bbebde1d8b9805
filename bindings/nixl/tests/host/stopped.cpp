// Transfers whose target stops, or that are released, in the middle.
#include <algorithm>

#include "other.h"

namespace {

using namespace suite;

// An agent of this process with memory full of ones, and a target with as much memory.
struct Toward {
    Toward(const nixl_b_params_t &parameters, std::size_t bytes)
        : a(agent("a", parameters)), other(*a, bytes), here(bytes / 8, 1), local(host::add(*a, here.data(), bytes)) {}
    nixlBackendReqH *prepare(nixl_xfer_op_t op)
    {
        return suite::prepare(*a, op, list(here.data(), here.size() * 8, local), other.all(), "other");
    }
    host::Backend a;
    Other other;
    std::vector<std::uint64_t> here;
    nixlBackendMD *local;
};

// 67,108,864 bytes are on their way. The test releases the transfer as NIXL's core does: once, and a second time if the
// first release is refused. After that, not one more byte may change at the target; a target that was stopped in the
// middle may not continue with the bytes that its sockets hold.
//
// Returns false if this thread came too late, on a busy machine: the transfer was over before.
bool released_in_the_middle(bool stopped)
{
    constexpr std::size_t BYTES = 64 << 20;
    Toward to({{"transports", "tcp"}}, BYTES);
    const host::Backend &a = to.a;
    Other &other = to.other;
    std::fill(to.here.begin(), to.here.end(), ~std::uint64_t(0));
    EXPECT_EQ(a->connect("other"), NIXL_SUCCESS);
    nixlBackendReqH *handle = to.prepare(NIXL_WRITE);
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
    std::fill(to.here.begin(), to.here.end(), 1);
    if (stopped) other.go_on();
    // The target answers after all that its sockets held; the test then waits a little for copies by other threads.
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
    EXPECT_EQ(std::count(other.memory, other.memory + BYTES / 8, 1U), 0) << "bytes from after the release were sent";
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
    Toward to({}, 1 << 16);
    to.other.stop();
    nixlBackendReqH *handle = to.prepare(NIXL_WRITE);
    const host::List none;
    const auto start = Clock::now();
    ASSERT_EQ(to.a->postXfer(NIXL_WRITE, none.get(), none.get(), "", handle, nullptr), NIXL_IN_PROG);
    EXPECT_EQ(to.a->releaseReqH(handle), NIXL_SUCCESS);
    EXPECT_LT(Clock::now() - start, 1s);
    // The dial goes on, and its end finds the released request.
    to.other.go_on();
    EXPECT_EQ(to.a->connect("other"), NIXL_SUCCESS);
    std::string own;
    EXPECT_EQ(to.a->getConnInfo(own), NIXL_SUCCESS);
    EXPECT_EQ(to.a->genNotif("other", own), NIXL_SUCCESS);
    EXPECT_EQ(notices(*to.a, 1).size(), 1U);
    EXPECT_EQ(to.other.landed(), 0U);
}

void fails_within_seconds(Toward &to)
{
    to.other.stop();
    nixlBackendReqH *handle = to.prepare(NIXL_READ);
    const auto start = Clock::now();
    EXPECT_EQ(run(*to.a, handle), NIXL_ERR_REMOTE_DISCONNECT);
    EXPECT_LT(Clock::now() - start, 5s);
    EXPECT_EQ(to.a->releaseReqH(handle), NIXL_SUCCESS);
}

TEST(Peers, ThatAreStoppedFailTransfersWithinSeconds)
{
    Toward to({{"transports", "tcp"}}, 64 << 20);
    ASSERT_EQ(to.a->connect("other"), NIXL_SUCCESS);
    fails_within_seconds(to);
}

TEST(Peers, ThatAreStoppedBeforeTheyAreDialledFailTransfersWithinSeconds)
{
    Toward to({}, 1 << 16);
    fails_within_seconds(to);
}

TEST(Notices, ThatAStoppedPeerHasNotTakenInFailTheTransferThoughItsDataIsThere)
{
    Toward to({{"transports", "local"}}, 1 << 16);
    nixlBackendReqH *handle = to.prepare(NIXL_WRITE);
    EXPECT_EQ(run(*to.a, handle), NIXL_SUCCESS);
    std::fill(to.other.memory, to.other.memory + (1 << 13), 0);
    // The copy needs nothing of the peer's threads; only they receive the notification.
    to.other.stop();
    const nixlBackendOptionalArgs told = {"not taken in", true, ""};
    EXPECT_EQ(run(*to.a, handle, &told), NIXL_ERR_REMOTE_DISCONNECT);
    EXPECT_EQ(to.other.landed(), std::size_t(1) << 13);
    EXPECT_EQ(to.a->releaseReqH(handle), NIXL_SUCCESS);
}

} // namespace
