// The backend's parameters: each setting of ferry, by its key.
#pragma once

#include <ferry.h>

#include <memory>
#include <string>

#include "nixl_abi.h"

namespace ferry_nixl {

struct ConfigFree {
    void operator()(ferry_config *config) const { ferry_config_free(config); }
};
using Config = std::unique_ptr<ferry_config, ConfigFree>;

// Returns every setting with the value that an engine would have now: that of the environment, or else the plugin's
// default. A secret that is set is left out.
nixl_b_params_t parameters();

// Makes the configuration of an engine of `backend` from the environment and from the application's parameters, which
// override the environment. Returns nullptr and a sentence in `why` if a value is bad or a key unknown. Under an alias
// (`backend` is not FERRY) the parameters may be meant for another backend: unknown keys are only logged.
Config configure(const std::string &backend, const nixl_b_params_t &given, std::string &why);

} // namespace ferry_nixl
