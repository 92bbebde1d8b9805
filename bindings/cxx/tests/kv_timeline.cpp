// The timeline of ferry_kv.hpp: the entries of a handoff, the application's marks and their clock, and the picture.
#include "kv_ranks.hpp"

#include <gtest/gtest.h>

#include <ctime>

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

std::uint64_t monotonic_ns()
{
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1000000000u + static_cast<std::uint64_t>(now.tv_nsec);
}

std::vector<kv::TimelineEntry> of(const std::vector<kv::TimelineEntry> &entries, std::uint32_t what)
{
    std::vector<kv::TimelineEntry> found;
    for (const kv::TimelineEntry &entry : entries)
        if (entry.what == what) found.push_back(entry);
    return found;
}

std::size_t bars(const std::string &picture, const std::string &kind)
{
    const std::string begin = "<rect class=\"" + kind + "\"";
    std::size_t count = 0;
    for (auto at = picture.find(begin); at != std::string::npos; at = picture.find(begin, at + 1)) count++;
    return count;
}

} // namespace

TEST(Timelines, AHandoffIsRecordedAndDrawn)
{
    const Rank producer({1, 8}), consumer({1, 12});
    const kv::Id id = must(kv::new_id());
    const std::uint32_t prefix = static_cast<std::uint32_t>(id.bytes[0]) << 24 |
                                 static_cast<std::uint32_t>(id.bytes[1]) << 16 |
                                 static_cast<std::uint32_t>(id.bytes[2]) << 8 | id.bytes[3];
    must(producer.cache.timeline_start(64));
    consumer.take(id, consumer.connect(producer), kv::TakeOptions().mode(kv::Mode::push));
    producer.offer(id);
    for (std::uint32_t layer = 0; layer < model_layer_count; layer++) {
        {
            const kv::Mark mark(producer.cache, id, layer);
            producer.model.write(producer.words(), layer, 0, kv_tokens);
        }
        must(producer.cache.ready(id, kv_tokens, layer, layer + 1));
    }
    must(producer.cache.seal(id, kv_tokens));
    EXPECT_EQ(consumer.end()->kind, static_cast<std::uint32_t>(FERRY_KV_EVENT_RECEIVED));
    EXPECT_EQ(producer.end()->kind, static_cast<std::uint32_t>(FERRY_KV_EVENT_SENT));

    const std::vector<kv::TimelineEntry> entries = must(producer.cache.timeline());
    for (std::size_t i = 0; i < entries.size(); i++) {
        EXPECT_EQ(entries[i].number, i);
        EXPECT_EQ(entries[i].id, prefix);
        EXPECT_LE(entries[i].begin_ns, entries[i].end_ns);
    }
    const auto marks = of(entries, FERRY_KV_TIMELINE_MARK);
    ASSERT_EQ(marks.size(), model_layer_count);
    EXPECT_EQ(marks[2].first_layer, 2u);
    EXPECT_EQ(marks[2].detail, FERRY_KV_MARK_COMPUTE);
    const auto final = of(entries, FERRY_KV_TIMELINE_FINAL);
    ASSERT_EQ(final.size(), of(entries, FERRY_KV_TIMELINE_POSTED).size());
    EXPECT_EQ(final.back().peer, must(producer.engine.peers()).at(0).handle());
    EXPECT_EQ(of(entries, FERRY_KV_TIMELINE_SEALED).at(0).end_token, kv_tokens);
    ASSERT_EQ(entries.back().what, static_cast<std::uint32_t>(FERRY_KV_TIMELINE_ENDED));
    EXPECT_TRUE(must(consumer.cache.timeline()).empty()); // nobody has asked for it
    EXPECT_EQ(must(producer.cache.timeline(entries.size() - 1)).size(), 1u);
    EXPECT_TRUE(must(producer.cache.timeline(entries.size())).empty());

    const std::string picture = must(kv::timeline_svg(entries));
    EXPECT_EQ(picture.find("<svg "), 0u);
    EXPECT_EQ(picture.rfind("</svg>\n"), picture.size() - 7);
    EXPECT_EQ(bars(picture, "compute"), model_layer_count);
    EXPECT_GE(bars(picture, "transfer"), model_layer_count);

    must(producer.cache.close());
    EXPECT_EQ(must(producer.cache.timeline()).size(), entries.size());
}

// More entries than one read of C returns, and more than the recording keeps.
TEST(Timelines, AreReadWholeAndBounded)
{
    const Rank rank(Shape{});
    const kv::Id id = must(kv::new_id());
    must(rank.cache.timeline_start(2500));
    const Clock::time_point now = Clock::now();
    const auto mark = [&](std::uint32_t layer) { must(rank.cache.mark(id, layer, now, now, 7)); };
    for (std::uint32_t layer = 0; layer < 2048; layer++) mark(layer);
    EXPECT_EQ(must(rank.cache.timeline()).size(), 2048u); // a whole number of reads
    for (std::uint32_t layer = 2048; layer < 2600; layer++) mark(layer);
    const std::vector<kv::TimelineEntry> entries = must(rank.cache.timeline());
    ASSERT_EQ(entries.size(), 2500u);
    for (std::size_t i = 0; i < entries.size(); i++) {
        EXPECT_EQ(entries[i].number, i + 100);
        EXPECT_EQ(entries[i].first_layer, i + 100);
        EXPECT_EQ(entries[i].detail, 7);
    }
    EXPECT_EQ(must(rank.cache.stats()).timeline_overwritten, 100u);
    must(rank.cache.timeline_stop());
    EXPECT_TRUE(must(rank.cache.timeline()).empty());
    mark(0);
    EXPECT_TRUE(must(rank.cache.timeline()).empty());
    must(rank.cache.timeline_stop());
}

// Marks are on CLOCK_MONOTONIC, as the entries of ferry are, and a Mark lasts as long as its scope.
TEST(Timelines, MarksHaveTheClockOfTheEntries)
{
    const Rank rank(Shape{});
    const kv::Id id = must(kv::new_id());
    must(rank.cache.timeline_start(8));
    const Clock::time_point at = Clock::time_point() + 5s;
    must(rank.cache.mark(id, 1, at, at + 3us));
    const std::uint64_t before = monotonic_ns();
    std::uint64_t within = 0;
    {
        const kv::Mark mark(rank.cache, id, 2, 9);
        within = monotonic_ns();
    }
    rank.offer(id);
    const std::uint64_t after = monotonic_ns();
    const auto entries = must(rank.cache.timeline());
    ASSERT_EQ(entries.size(), 3u);
    EXPECT_EQ(entries[0].begin_ns, 5000000000u);
    EXPECT_EQ(entries[0].end_ns, 5000003000u);
    EXPECT_TRUE(before <= entries[1].begin_ns && entries[1].begin_ns <= within);
    EXPECT_TRUE(within <= entries[1].end_ns && entries[1].end_ns <= after);
    EXPECT_EQ(entries[1].first_layer, 2u);
    EXPECT_EQ(entries[1].detail, 9);
    EXPECT_EQ(entries[2].what, static_cast<std::uint32_t>(FERRY_KV_TIMELINE_OFFERED));
    EXPECT_TRUE(entries[1].end_ns <= entries[2].begin_ns && entries[2].end_ns <= after);
    EXPECT_EQ(must(kv::timeline_svg(entries)).find("NaN"), std::string::npos);
}

TEST(Timelines, WhatIsWrongIsNamed)
{
    const Rank rank(Shape{});
    const kv::Id id = must(kv::new_id());
    const auto said = [](const ferry::Outcome &call) { return std::string(call.name()) + ": " + call.message(); };
    EXPECT_EQ(said(rank.cache.timeline_start(0)), "INVALID: entries_max: 0 is not 1 to 1048576");
    const Clock::time_point at = Clock::time_point() + 2ns;
    EXPECT_EQ(said(rank.cache.mark(id, 0, at, at - 1ns)), "INVALID: end_ns: 1 is before begin_ns, 2");
    EXPECT_EQ(said(kv::timeline_svg(kv::TimelineEntry())), "INVALID: entries[0].what is 0");
    EXPECT_EQ(must(kv::timeline_svg({})).find("<svg "), 0u);
    const kv::Cache none;
    EXPECT_EQ(said(none.timeline()), "INVALID: cache is NULL");
    EXPECT_EQ(said(none.timeline_start(1)), "INVALID: cache is NULL");
    EXPECT_EQ(said(none.timeline_stop()), "INVALID: cache is NULL");
    { const kv::Mark nothing(none, id, 0); }
}
