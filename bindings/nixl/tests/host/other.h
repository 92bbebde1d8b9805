// The program in a second process: the target of transfers that are released, or whose target stops, under way.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "agents.h"

namespace suite {

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
            // A target that is stopped would outlive a suite that is killed.
            prctl(PR_SET_PDEATHSIG, SIGKILL);
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

} // namespace suite
