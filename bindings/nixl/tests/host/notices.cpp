// Notifications: in order, after their data, bounded; and their pieces.
#include <algorithm>
#include <cstring>

#include "../../src/notices.h"
#include "agents.h"

namespace {

using namespace suite;

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

TEST(Notices, OfWhichAPieceIsLostFailTheTransfer)
{
    Pair pair;
    // The pieces that go ahead write a word of the peer, which this connection information names wrongly.
    std::string info;
    ASSERT_EQ(pair.b->getConnInfo(info), NIXL_SUCCESS);
    info[16] = static_cast<char>(info[16] ^ 0x55);
    ASSERT_EQ(pair.a->loadRemoteConnInfo("b", info), NIXL_SUCCESS);
    nixlBackendReqH *handle = pair.write();
    const nixlBackendOptionalArgs short_one = {"whole", true, ""}, long_one = {std::string(40'000, 'x'), true, ""};
    EXPECT_EQ(run(*pair.a, handle, &short_one), NIXL_SUCCESS) << "goes with the transfer alone";
    testing::internal::CaptureStderr();
    EXPECT_EQ(run(*pair.a, handle, &long_one), NIXL_ERR_NOT_FOUND);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("its notification has not"), std::string::npos);
    EXPECT_EQ(notices(*pair.b, 1), (notif_list_t{{"a", "whole"}}));
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

TEST(Notices, NobodyAsksForDoNotHoldUpARelease)
{
    Pair pair;
    ASSERT_EQ(pair.a->connect("b"), NIXL_SUCCESS);
    const std::string long_one(ferry_nixl::NOTICE_BYTES_MAX, 'x');
    for (int i = 0; i < 5; i++) ASSERT_EQ(pair.a->genNotif("a", long_one), NIXL_SUCCESS);
    ASSERT_EQ(pair.a->genNotif("a", "one more"), NIXL_ERR_NOT_ALLOWED) << "the largest number waits already";
    // Two pieces go ahead. No thread of the agent takes the events of their ends.
    nixlBackendReqH *handle = pair.write();
    const nixlBackendOptionalArgs told = {std::string(40'000, 'y'), true, ""};
    const host::List none;
    ASSERT_EQ(pair.a->postXfer(NIXL_WRITE, none.get(), none.get(), "", handle, &told), NIXL_IN_PROG);
    // Its data comes after the pieces: all are submitted.
    const auto last = Clock::now() + 30s;
    while (static_cast<volatile std::uint64_t &>(pair.there.back()) == 0 && Clock::now() < last) {}
    const auto start = Clock::now();
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_ERR_REPOST_ACTIVE);
    EXPECT_EQ(pair.a->releaseReqH(handle), NIXL_SUCCESS);
    EXPECT_LT(Clock::now() - start, 4s);
    EXPECT_EQ(notices(*pair.a, 5).size(), 5U);
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
    // Nothing of a peer is left after its end.
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

} // namespace
