#include "wire.h"
#include "../ascend/below.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace net {
namespace {

enum : uint32_t { ask_list, ask_put, ask_get };
struct Frame {
    uint32_t what; // of an answer: 0, or 1 for no
    uint32_t count;
    uint64_t address, size;
};

bool send_all(int socket, const void *data, size_t size) {
    const auto *from = static_cast<const char *>(data);
    while (size != 0) {
        const ssize_t sent = send(socket, from, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        from += sent;
        size -= static_cast<size_t>(sent);
    }
    return true;
}

bool receive_all(int socket, void *data, size_t size) {
    auto *to = static_cast<char *>(data);
    while (size != 0) {
        const ssize_t got = recv(socket, to, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        to += got;
        size -= static_cast<size_t>(got);
    }
    return true;
}

sockaddr_in loopback(uint16_t port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

void no_delay(int socket) {
    const int yes = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

} // namespace

bool is_inside(const std::vector<Region> &regions, const void *address, uint64_t size) {
    const auto from = reinterpret_cast<uint64_t>(address);
    return std::any_of(regions.begin(), regions.end(), [&](const Region &region) {
        return size <= region.size && from >= region.address && from - region.address <= region.size - size;
    });
}

bool is_memory(int32_t type, const void *address, uint64_t size) {
    if (address == nullptr || size == 0) return false;
    const int where = standin_acl_where(address, size);
    if (type == 0) return where == standin_device;
    return type == 1 && (where == standin_pageable || where == standin_pinned);
}

int listen_on(uint16_t port, int backlog) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const sockaddr_in address = loopback(port);
    if (bind(listener, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 && listen(listener, backlog) == 0) {
        return listener;
    }
    close(listener);
    return -1;
}

uint16_t port_of(int listener) {
    sockaddr_in address = {};
    socklen_t size = sizeof address;
    getsockname(listener, reinterpret_cast<sockaddr *>(&address), &size);
    return ntohs(address.sin_port);
}

Dial dial(uint16_t port, standin::Deadline deadline, int *out) {
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(port);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.at - standin::Clock::now()).count();
    timeval limit = {left / 1000, (left % 1000) * 1000};
    if (!deadline.endless && left <= 0) limit = {0, 1};
    if (!deadline.endless) setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(connection, reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0) {
        const bool late = errno == EINPROGRESS || errno == EAGAIN;
        close(connection);
        return late ? Dial::timed_out : Dial::refused;
    }
    limit = {};
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    no_delay(connection);
    *out = connection;
    return Dial::done;
}

Server::Server(int connection, std::vector<Region> regions, std::vector<std::string> accepted)
    : connection_(connection), regions_(std::move(regions)), accepted_(std::move(accepted)),
      thread_([this] { serve(); }) {}

Server::~Server() {
    shutdown(connection_, SHUT_RDWR);
    thread_.join();
    close(connection_);
}

void Server::serve() {
    no_delay(connection_);
    std::string greeting(accepted_[0].size(), '\0');
    bool good = receive_all(connection_, &greeting[0], greeting.size());
    const bool known = good && std::find(accepted_.begin(), accepted_.end(), greeting) != accepted_.end();
    const Frame reply = {known ? 0u : 1u, 0, 0, 0};
    good = good && send_all(connection_, &reply, sizeof reply) && known;
    while (good) good = answer();
    shutdown(connection_, SHUT_RDWR);
    ended_ = true;
}

// Serves one request; false if the connection has ended.
bool Server::answer() {
    Frame ask;
    if (!receive_all(connection_, &ask, sizeof ask)) return false;
    Frame reply = {0, 0, ask.address, ask.size};
    if (ask.what == ask_list) {
        reply.count = static_cast<uint32_t>(regions_.size());
        return send_all(connection_, &reply, sizeof reply) &&
               send_all(connection_, regions_.data(), regions_.size() * sizeof(Region));
    }
    void *address = reinterpret_cast<void *>(ask.address);
    if (!is_inside(regions_, address, ask.size)) return false; // the asking end checks; so this is none of ours
    std::vector<char> data(ask.size);
    if (ask.what == ask_put) {
        if (!receive_all(connection_, data.data(), data.size())) return false;
        reply.what = standin_acl_copy(address, data.data(), data.size()) != 0;
        return send_all(connection_, &reply, sizeof reply);
    }
    reply.what = standin_acl_copy(data.data(), address, data.size()) != 0;
    return send_all(connection_, &reply, sizeof reply) && (reply.what != 0 || send_all(connection_, data.data(), data.size()));
}

Client::~Client() { close(connection_); }

void Client::cut() { shutdown(connection_, SHUT_RDWR); }

bool Client::greet(const std::string &greeting) {
    Frame reply;
    return send_all(connection_, greeting.data(), greeting.size()) && receive_all(connection_, &reply, sizeof reply) &&
           reply.what == 0;
}

bool Client::list(std::vector<Region> *out) {
    const std::lock_guard<std::mutex> hold(one_);
    const Frame ask = {ask_list, 0, 0, 0};
    Frame reply;
    if (!send_all(connection_, &ask, sizeof ask) || !receive_all(connection_, &reply, sizeof reply)) return false;
    out->resize(reply.count);
    return receive_all(connection_, out->data(), reply.count * sizeof(Region));
}

bool Client::put(uint64_t remote, const void *local, uint64_t size) {
    std::vector<char> data(size);
    if (standin_acl_copy(data.data(), local, size) != 0) return false;
    const std::lock_guard<std::mutex> hold(one_);
    const Frame ask = {ask_put, 0, remote, size};
    Frame reply;
    return send_all(connection_, &ask, sizeof ask) && send_all(connection_, data.data(), size) &&
           receive_all(connection_, &reply, sizeof reply) && reply.what == 0;
}

bool Client::get(uint64_t remote, void *local, uint64_t size) {
    std::vector<char> data(size);
    {
        const std::lock_guard<std::mutex> hold(one_);
        const Frame ask = {ask_get, 0, remote, size};
        Frame reply;
        if (!send_all(connection_, &ask, sizeof ask) || !receive_all(connection_, &reply, sizeof reply) ||
            reply.what != 0 || !receive_all(connection_, data.data(), size)) {
            return false;
        }
    }
    return standin_acl_copy(local, data.data(), size) == 0;
}

} // namespace net
