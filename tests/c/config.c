/* Configurations: setting, reading, listing, the environment. */
#define _POSIX_C_SOURCE 200809L
#include "engines.h"

static void set_and_get(void)
{
    ferry_config *config = NULL;
    ferry_error error = new_error();
    char value[64];
    size_t length = 0;
    CHECK_OK(ferry_config_new(&config, NULL));
    CHECK_OK(ferry_config_set(config, "lease_ms", "1234", &error));
    CHECK_OK(ferry_config_get(config, "lease_ms", value, sizeof value, &length, NULL));
    CHECK(strcmp(value, "1234") == 0 && length == 4);
    CHECK_INVALID(ferry_config_set(config, "lease_ms", "12x", &error));
    CHECK_OK(ferry_config_get(config, "lease_ms", value, sizeof value, &length, NULL));
    CHECK(strcmp(value, "1234") == 0);
    CHECK_INVALID(ferry_config_set(config, "leese_ms", "1", &error));
    CHECK_MESSAGE(error, "did you mean \"lease_ms\"");
    CHECK_INVALID(ferry_config_get(config, "leese_ms", value, sizeof value, &length, &error));
    CHECK_STATUS(ferry_config_get(config, "lease_ms", value, 4, &length, NULL), FERRY_ERR_LIMIT);
    CHECK_OK(ferry_config_set(config, "secret",
                              "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", NULL));
    CHECK_OK(ferry_config_get(config, "secret", value, sizeof value, &length, NULL));
    CHECK(strcmp(value, "(hidden)") == 0);
    ferry_config_free(config);
    ferry_config_free(NULL);
}

static void text_must_be_utf8(void)
{
    ferry_config *config = NULL;
    ferry_error error = new_error();
    CHECK_OK(ferry_config_new(&config, NULL));
    CHECK_INVALID(ferry_config_set(config, "lanes", "\xff", &error));
    CHECK_MESSAGE(error, "value is not UTF-8");
    ferry_config_free(config);
}

static void the_settings_are_listed_and_their_defaults_valid(void)
{
    ferry_setting_info settings[64];
    ferry_config *config = NULL;
    size_t count = 0, again = 0;
    int seen_lanes = 0;
    CHECK_OK(ferry_config_settings(NULL, sizeof settings[0], 0, &count, NULL));
    CHECK(count > 20 && count <= 64);
    CHECK_OK(ferry_config_settings(settings, sizeof settings[0], 64, &again, NULL));
    CHECK(again == count);
    CHECK_OK(ferry_config_new(&config, NULL));
    for (size_t i = 0; i < count; i++) {
        CHECK(settings[i].struct_size == sizeof settings[i] && settings[i].reserved == 0);
        CHECK(strncmp(settings[i].variable, "FERRY_", 6) == 0);
        CHECK(settings[i].description[0] != '\0' && settings[i].valid[0] != '\0');
        CHECK_OK(ferry_config_set(config, settings[i].key, settings[i].default_value, NULL));
        if (strcmp(settings[i].key, "lanes") == 0) {
            seen_lanes = 1;
            CHECK(strcmp(settings[i].variable, "FERRY_LANES") == 0);
            CHECK(strcmp(settings[i].default_value, "2") == 0);
            CHECK(strcmp(settings[i].valid, "1 to 16") == 0);
        }
    }
    CHECK(seen_lanes);
    memset(settings, 0, sizeof settings);
    CHECK_OK(ferry_config_settings(settings, sizeof settings[0], 1, &again, NULL));
    CHECK(again == count && settings[0].key != NULL && settings[1].key == NULL);
    ferry_config_free(config);
}

static void the_environment_gives_defaults_that_settings_override(void)
{
    ferry_config *config = NULL;
    ferry_error error = new_error();
    ferry_engine *engine = NULL;
    char value[64];
    size_t length = 0;
    CHECK(setenv("FERRY_LANES", "5", 1) == 0);
    CHECK_OK(ferry_config_new(&config, NULL));
    CHECK_OK(ferry_config_get(config, "lanes", value, sizeof value, &length, NULL));
    CHECK(strcmp(value, "5") == 0);
    CHECK_OK(ferry_config_set(config, "lanes", "3", NULL));
    CHECK_OK(ferry_config_get(config, "lanes", value, sizeof value, &length, NULL));
    CHECK(strcmp(value, "3") == 0);
    ferry_config_free(config);
    config = NULL;
    CHECK(setenv("FERRY_LANES", "many", 1) == 0);
    CHECK_INVALID(ferry_config_new(&config, &error));
    CHECK_MESSAGE(error, "FERRY_LANES");
    CHECK(config == NULL);
    CHECK_INVALID(ferry_engine_open(NULL, &engine, &error));
    CHECK_MESSAGE(error, "FERRY_LANES");
    CHECK(engine == NULL);
    CHECK(unsetenv("FERRY_LANES") == 0);
}

static void settings_that_contradict_each_other_do_not_open(void)
{
    ferry_config *config = NULL;
    ferry_engine *engine = NULL;
    ferry_error error = new_error();
    CHECK_OK(ferry_config_new(&config, NULL));
    CHECK_OK(ferry_config_set(config, "lease_ms", "100", NULL));
    CHECK_OK(ferry_config_set(config, "drain_ms", "100", NULL));
    CHECK_INVALID(ferry_engine_open(config, &engine, &error));
    CHECK_MESSAGE(error, "drain_ms");
    CHECK(engine == NULL);
    ferry_config_free(config);
}

/* Of an engine that is opened without a configuration, and of one whose configuration read the environment. */
static void a_variable_that_is_no_setting_is_told(void)
{
    const char *expected = "FERRY_BOAT is not a setting, and changes nothing\n"
                           "FERRY_LANE is not a setting; did you mean FERRY_LANES?";
    char text[256];
    size_t length = 7;
    ferry_config *config = NULL;
    ferry_engine *engine = open_engine(), *plain = NULL;
    CHECK_OK(ferry_engine_warnings(engine, text, sizeof text, &length, NULL));
    CHECK(length == 0 && text[0] == 0);
    end_engine(engine);
    CHECK(setenv("FERRY_LANE", "1", 1) == 0 && setenv("FERRY_BOAT", "1", 1) == 0);
    CHECK_OK(ferry_engine_open(NULL, &plain, NULL));
    CHECK_OK(ferry_config_new(&config, NULL));
    CHECK(unsetenv("FERRY_LANE") == 0 && unsetenv("FERRY_BOAT") == 0);
    CHECK_OK(ferry_engine_open(config, &engine, NULL));
    ferry_config_free(config);
    CHECK_OK(ferry_engine_warnings(plain, text, sizeof text, &length, NULL));
    CHECK(length == strlen(expected) && strcmp(text, expected) == 0);
    CHECK_OK(ferry_engine_warnings(engine, text, sizeof text, &length, NULL));
    CHECK(strcmp(text, expected) == 0);
    end_engine(engine);
    end_engine(plain);
}

static void a_port_in_use_is_a_system_error_with_its_errno(void)
{
    ferry_engine *first = open_engine(), *second = NULL;
    ferry_config *config = NULL;
    ferry_error error = new_error();
    CHECK_OK(ferry_config_new(&config, NULL));
    CHECK_OK(ferry_config_set(config, "listen_address", address_of(first), NULL));
    CHECK_STATUS(ferry_engine_open(config, &second, &error), FERRY_ERR_SYSTEM);
    CHECK(error.os_error != 0 && second == NULL);
    CHECK_MESSAGE(error, "listen_address: listening on ");
    ferry_config_free(config);
    end_engine(first);
}

SUITE(config, CASE(set_and_get), CASE(text_must_be_utf8),
      CASE(the_settings_are_listed_and_their_defaults_valid),
      CASE(the_environment_gives_defaults_that_settings_override),
      CASE(settings_that_contradict_each_other_do_not_open),
      CASE(a_variable_that_is_no_setting_is_told),
      CASE(a_port_in_use_is_a_system_error_with_its_errno));
