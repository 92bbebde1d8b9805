// A node of chaos, in C++; host.h documents what it is told and what it says.
#include <ferry.hpp>

#include "host.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <list>
#include <mutex>
#include <poll.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

template <class... Words> void tell(const Words &...words)
{
    static std::mutex lock;
    std::ostringstream line;
    (line << ... << words) << '\n';
    const std::lock_guard<std::mutex> locked(lock);
    std::cout << line.str() << std::flush;
}

std::string outcome(const ferry::Outcome &outcome) { return outcome ? "OK" : outcome.message(); }

milliseconds since(std::chrono::steady_clock::time_point began)
{
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - began);
}

// Zero would mean the setting.
ferry::Timeout deadline_of(std::uint64_t ms)
{
    return ms > 0 ? ferry::Timeout(milliseconds(ms)) : ferry::Timeout(std::chrono::nanoseconds(1));
}

ferry::Result<ferry::Engine> open(const std::string &settings, bool apart)
{
    ferry::Config config = ferry::Config::create().value();
    std::istringstream words(settings);
    for (std::string word; words >> word;) {
        const auto split = word.find('=');
        config.set(word.substr(0, split), word.substr(split + 1)).value();
    }
    if (apart) config.set("listen_address", "127.0.0.1:0").value();
    return ferry::Engine::open(config);
}

class Node {
public:
    explicit Node(ferry::Engine engine) : engine_(std::move(engine))
    {
        queue_ = engine_.queue(FERRY_QUEUE_PEERS | FERRY_QUEUE_NOTIFICATIONS | FERRY_QUEUE_TRANSFERS, 16384).value();
        region_ = engine_.register_memory(reinterpret_cast<void *>(HOST_ARENA), HOST_ARENA_BYTES).value();
        taker_ = std::thread([this] { take_events(); });
        tell("opened ", region_.handle(), ' ', engine_.address().value());
    }

    void obey(const std::string &line)
    {
        std::istringstream words(line);
        std::string command, what;
        std::uint64_t number;
        words >> command;
        if (command == "op") {
            submit(words);
        } else if (command == "cancel" && words >> number) {
            const std::lock_guard<std::mutex> locked(lock_);
            const auto found = transfers_.find(number);
            // A transfer that has ended meanwhile is final.
            if (found != transfers_.end()) (void)found->second.cancel();
        } else if (command == "limit" && words >> what >> number) {
            host_limit(what.c_str(), static_cast<std::int64_t>(number));
        } else if (command == "unlimit" && words >> what) {
            host_limit(what.c_str(), -1);
        } else {
            for (auto task = tasks_.begin(); task != tasks_.end();)
                if (task->over) task->thread.join(), task = tasks_.erase(task);
                else ++task;
            tasks_.emplace_back();
            tasks_.back().thread = std::thread([this, line, task = &tasks_.back()] {
                wait_for(line);
                task->over = true;
            });
        }
    }

    // Ends everything but the process.
    void close()
    {
        auto began = std::chrono::steady_clock::now();
        const auto unregistered = region_.unregister(5s);
        tell("unregistered ", since(began).count(), ' ', outcome(unregistered));
        began = std::chrono::steady_clock::now();
        const auto closed = engine_.close(10s);
        const auto took = since(began);
        closing_ = true;
        taker_.join();
        for (Task &task : tasks_) task.thread.join();
        tell("closed ", took.count(), ' ', outcome(closed));
    }

private:
    struct Task {
        std::thread thread;
        std::atomic<bool> over{false};
    };

    void take_events()
    {
        ferry::Event storage[64];
        pollfd entry = {queue_.fd().value(), POLLIN, 0};
        while (!closing_) {
            const auto events = queue_.drain(storage);
            if (events.status() == FERRY_ERR_CLOSED) return;
            for (const ferry::Event &event : events.value()) take(event);
            if (events->size() < std::size(storage)) poll(&entry, 1, 50);
        }
    }

    void take(const ferry::Event &event)
    {
        switch (event->kind) {
        case FERRY_EVENT_TRANSFER: return final_state(event->user_data);
        case FERRY_EVENT_LATE_APPLY: return tell("late ", event->address - HOST_ARENA, ' ', event->length);
        case FERRY_EVENT_PEER_LOST:
            return tell("lost ", event->peer, ' ', ferry_status_name(event->status), ' ', event.text());
        case FERRY_EVENT_NOTIFICATION:
            std::uint64_t id;
            const std::int64_t wrong = host_note(event.text().data(), event.text().size(), &id);
            if (wrong < 0) tell("note ", id, " whole");
            else tell("note ", id, " broken at ", wrong);
        }
    }

    void final_state(std::uint64_t id)
    {
        static const char *const states[] = {"?", "?", "?", "Done", "Failed", "Cancelled", "TimedOut"};
        static const char *const fences[] = {"?", "Confirmed", "Dead", "Lease"};
        static const char *const notifications[] = {"None", "Delivered", "NotSent", "Unknown"};
        static const char *const transports[] = {"none", "tcp", "local", "rdma", "cuda", "ascend"};
        std::unique_lock<std::mutex> locked(lock_);
        auto found = transfers_.extract(id);
        locked.unlock();
        if (!found) return tell("again ", id);
        ferry::TransferResult result;
        if (found.mapped().wait(0s, &result).pending()) throw std::runtime_error("a transfer has ended and is not final");
        tell("final ", id, ' ', states[result.state % 7], ' ', ferry_status_name(result.status), ' ', fences[result.fence % 4],
             ' ', notifications[result.notification % 4], ' ', transports[result.transport % 6]);
    }

    void wait_for(const std::string &line)
    {
        std::istringstream words(line);
        std::string command, address;
        std::uint64_t a, b, c;
        words >> command >> a;
        if (command == "connect" && words >> b >> address) {
            const auto peer = engine_.connect(address, 2s);
            if (peer) tell("connected ", a, ' ', b, ' ', peer->handle());
            else tell("unconnected ", a, ' ', b, ' ', peer.name(), ": ", peer.message());
        } else if (command == "notify" && words >> b >> c) {
            const auto noted = ferry::Peer(engine_, b).notify(std::to_string(a) + " ", deadline_of(c));
            tell("noted ", a, ' ', noted.name());
        } else if (command == "fence") {
            tell("fenced ", a, ' ', ferry::Peer(engine_, a).fence(5s).name());
        }
    }

    void submit(std::istream &words)
    {
        std::uint64_t id, peer, region, deadline, local, remote, bytes;
        std::string op, flags;
        words >> id >> op >> peer >> region >> deadline >> flags;
        std::string note = std::to_string(id) + " ";
        std::vector<ferry::Request> requests;
        for (char colon; words >> local >> colon >> remote >> colon >> bytes;) {
            requests.push_back({HOST_ARENA + local, HOST_ARENA + remote, bytes, region});
            note += std::to_string(remote) + ":" + std::to_string(bytes) + " ";
        }
        const auto has = [&](char flag) { return flags.find(flag) != std::string::npos; };
        ferry::TransferOptions options;
        if (has('o')) options.flags(FERRY_TRANSFER_ORDERED);
        if (has('c')) options.flags(FERRY_TRANSFER_CHECKSUM);
        if (has('s')) options.flags(FERRY_TRANSFER_NO_COALESCE);
        if (has('n')) options.notify(note);
        options.deadline(deadline_of(deadline)).user_data(id).queue(queue_);
        const std::lock_guard<std::mutex> locked(lock_);
        auto transfer = ferry::Peer(engine_, peer).submit(op == "w" ? ferry::Op::write : ferry::Op::read, requests, options);
        if (transfer) transfers_.emplace(id, std::move(*transfer));
        else tell("refused ", id, ' ', transfer.name(), ' ', transfer.message());
    }

    ferry::Engine engine_;
    ferry::Queue queue_;
    ferry::Region region_;
    // Locked while a transfer is submitted, so that its end finds it here.
    std::mutex lock_;
    std::unordered_map<std::uint64_t, ferry::Transfer> transfers_;
    std::list<Task> tasks_;
    std::atomic<bool> closing_{false};
    std::thread taker_;
};

} // namespace

int main()
try {
    std::string line;
    host_map();
    std::getline(std::cin, line);
    const std::string settings = line;
    // Descriptors that the process opens once and keeps do not count as leaked.
    open(settings, true).value().close().value();
    const struct host_usage before = host_usage_before();
    {
        auto engine = open(settings, false);
        if (!engine) return tell("unopened ", engine.message()), 0;
        Node node(std::move(*engine));
        for (;;) {
            // A parent that is gone does not wait.
            if (!std::getline(std::cin, line)) std::_Exit(0);
            if (line == "close") break;
            node.obey(line);
        }
        node.close();
    }
    const struct host_usage after = host_usage_after(before);
    tell("usage ", before.descriptors, ' ', after.descriptors, ' ', before.threads, ' ', after.threads);
    return 0;
} catch (const std::exception &error) {
    std::cerr << "node: " << error.what() << '\n';
    std::_Exit(1);
}
