// Decides whether the NIXL that loads the plugin is one whose layout `nixl_abi.h` describes.
#pragma once

#include <string>

namespace ferry_nixl {

// Looks at the library that holds `caller`, an address in NIXL's core. Returns "" if the plugin may serve it, else a
// sentence that says why not.
std::string why_not(const void *caller);

} // namespace ferry_nixl
