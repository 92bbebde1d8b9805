#include "log.h"

#include <strings.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace ferry_nixl {
namespace {

Level wanted()
{
    const char *text = std::getenv("NIXL_LOG_LEVEL");
    for (const char *name : {"INFO", "DEBUG", "TRACE"})
        if (text != nullptr && strcasecmp(text, name) == 0) return Level::Info;
    for (const char *name : {"ERROR", "FATAL"})
        if (text != nullptr && strcasecmp(text, name) == 0) return Level::Error;
    return Level::Warning;
}

} // namespace

void log(Level level, const std::string &sentence)
{
    static const Level most = wanted();
    if (level > most) return;
    timeval now{};
    tm local{};
    gettimeofday(&now, nullptr);
    localtime_r(&now.tv_sec, &local);
    char when[32];
    std::strftime(when, sizeof when, "%m%d %H:%M:%S", &local);
    // One call, so that lines of several threads and processes do not mix.
    std::fprintf(stderr, "%c%s.%06ld %7d FERRY] %s\n", "EWI"[static_cast<int>(level)], when,
                 static_cast<long>(now.tv_usec), static_cast<int>(getpid()), sentence.c_str());
}

nixl_status_t refuse(nixl_status_t status, const std::string &sentence)
{
    log(Level::Error, sentence);
    return status;
}

} // namespace ferry_nixl
