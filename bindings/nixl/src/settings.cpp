#include "settings.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "log.h"
#include "status.h"

namespace ferry_nixl {
namespace {

// The plugin's defaults that differ from ferry's. A serving engine must learn within seconds that a peer is stopped or
// unreachable, because it can compute again what it does not get: after 1.5 seconds of silence the peer has 1.5 seconds
// to come back.
const std::pair<const char *, const char *> DEFAULTS[] = {
    {"connect_timeout_ms", "3000"},
    {"keepalive_ms", "1500"},
    {"progress_timeout_ms", "1500"},
    {"reconnect_timeout_ms", "1500"},
};
const char HIDDEN[] = "(hidden)";

std::vector<ferry_setting_info> known_settings()
{
    std::size_t count = 0;
    ferry_config_settings(nullptr, sizeof(ferry_setting_info), 0, &count, nullptr);
    std::vector<ferry_setting_info> settings(count);
    ferry_config_settings(settings.data(), sizeof(ferry_setting_info), count, &count, nullptr);
    return settings;
}

std::string value_of(const ferry_config *config, const char *key)
{
    std::size_t length = 0;
    if (ferry_config_get(config, key, nullptr, 0, &length, nullptr) != FERRY_OK) return "";
    std::string value(length, '\0');
    ferry_config_get(config, key, value.data(), length + 1, &length, nullptr);
    return value;
}

bool set_in_environment(const std::string &key)
{
    for (const ferry_setting_info &setting : known_settings())
        if (key == setting.key) return std::getenv(setting.variable) != nullptr;
    return false;
}

bool known(const std::string &key)
{
    for (const ferry_setting_info &setting : known_settings())
        if (key == setting.key) return true;
    return false;
}

// Agents on several hosts reach each other without a further setting if they share a secret.
void listen_everywhere_if_guarded(ferry_config *config)
{
    const bool guarded = !value_of(config, "secret").empty() || !value_of(config, "secret_file").empty() ||
                         value_of(config, "allow_unauthenticated") == "true";
    if (guarded && !set_in_environment("listen_address")) ferry_config_set(config, "listen_address", "0.0.0.0:0", nullptr);
}

Config from_environment(std::string &why)
{
    ferry_error error = FERRY_ERROR_INIT;
    ferry_config *made = nullptr;
    if (ferry_config_new(&made, &error) != FERRY_OK) {
        why = text_of(error);
        return nullptr;
    }
    Config config(made);
    for (const auto &[key, value] : DEFAULTS)
        if (!set_in_environment(key)) ferry_config_set(made, key, value, nullptr);
    listen_everywhere_if_guarded(made);
    return config;
}

} // namespace

nixl_b_params_t parameters()
{
    nixl_b_params_t all;
    std::string why;
    const Config config = from_environment(why);
    if (config == nullptr) log(Level::Error, why);
    for (const ferry_setting_info &setting : known_settings()) {
        const std::string value = config == nullptr ? setting.default_value : value_of(config.get(), setting.key);
        if (value != HIDDEN) all.emplace(setting.key, value);
    }
    return all;
}

Config configure(const std::string &backend, const nixl_b_params_t &given, std::string &why)
{
    Config config = from_environment(why);
    if (config == nullptr) return nullptr;
    for (const auto &[key, value] : given) {
        // Applications pass back the values that `parameters` returned. Setting `secret_file` to nothing, for example,
        // would discard a secret from the environment.
        if (value == value_of(config.get(), key.c_str())) continue;
        ferry_error error = FERRY_ERROR_INIT;
        if (ferry_config_set(config.get(), key.c_str(), value.c_str(), &error) == FERRY_OK) continue;
        if (backend != "FERRY" && !known(key)) {
            log(Level::Warning, "the parameter " + key + " is not ferry's, and is ignored: ferry stands in for " + backend);
            continue;
        }
        why = "the parameter " + key + ": " + text_of(error);
        return nullptr;
    }
    if (given.count("listen_address") == 0) listen_everywhere_if_guarded(config.get());
    return config;
}

} // namespace ferry_nixl
