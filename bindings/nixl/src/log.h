// Sentences for people, on stderr, where NIXL's own log goes by default.
#pragma once

#include <string>

#include "nixl_abi.h"

namespace ferry_nixl {

enum class Level { Error, Warning, Info };

// Writes a line if NIXL_LOG_LEVEL (WARN by default, as in NIXL) asks for the level. Any thread may call it.
void log(Level level, const std::string &sentence);

// Logs an error that ends a call of the core, and returns the call's status.
nixl_status_t refuse(nixl_status_t status, const std::string &sentence);

} // namespace ferry_nixl
