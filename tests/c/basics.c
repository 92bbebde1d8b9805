/* Names, versions, errors, statistics: everything that needs no peer. */
#include "engines.h"
#include "ferry_kv.h"

static void status_names(void)
{
    CHECK(strcmp(ferry_status_name(FERRY_OK), "OK") == 0);
    CHECK(strcmp(ferry_status_name(FERRY_DRAINING), "DRAINING") == 0);
    CHECK(strcmp(ferry_status_name(FERRY_ERR_NOT_REGISTERED), "NOT_REGISTERED") == 0);
    CHECK(strcmp(ferry_status_name(FERRY_ERR_PANIC), "PANIC") == 0);
    CHECK(strcmp(ferry_status_name(-1), "UNKNOWN") == 0);
    CHECK(strcmp(ferry_status_name(INT32_MIN), "UNKNOWN") == 0);
}

static void numbers_have_names(void)
{
    CHECK(strcmp(ferry_event_name(FERRY_EVENT_LATE_APPLY), "LATE_APPLY") == 0);
    CHECK(strcmp(ferry_event_name(0), "UNKNOWN") == 0);
    CHECK(strcmp(ferry_transport_name(FERRY_TRANSPORT_NONE), "NONE") == 0);
    CHECK(strcmp(ferry_transport_name(UINT32_MAX), "UNKNOWN") == 0);
    CHECK(strcmp(ferry_memory_name(FERRY_MEMORY_CUDA_PINNED), "CUDA_PINNED") == 0);
    CHECK(strcmp(ferry_peer_state_name(FERRY_PEER_LOST), "LOST") == 0);
    CHECK(strcmp(ferry_state_name(FERRY_STATE_TIMED_OUT), "TIMED_OUT") == 0);
    CHECK(strcmp(ferry_fence_name(FERRY_FENCE_LEASE), "LEASE") == 0);
    CHECK(strcmp(ferry_notification_name(FERRY_NOTIFICATION_NOT_SENT), "NOT_SENT") == 0);
    CHECK(strcmp(ferry_kv_event_name(FERRY_KV_EVENT_RECEIVED), "RECEIVED") == 0);
    CHECK(strcmp(ferry_kv_event_name(8), "UNKNOWN") == 0);
    CHECK(strcmp(ferry_kv_state_name(FERRY_KV_STATE_ENDED), "ENDED") == 0);
    CHECK(strcmp(ferry_directory_change_name(FERRY_DIRECTORY_LIST_ANEW), "LIST_ANEW") == 0);
}

static void ids_are_read_as_they_are_written(void)
{
    ferry_kv_id id, other;
    ferry_error error = new_error();
    char text[FERRY_KV_ID_TEXT_BYTES], full[FERRY_KV_ID_TEXT_BYTES];
    CHECK_OK(ferry_kv_id_new(&id, &error));
    CHECK_OK(ferry_kv_id_format(&id, text, sizeof text, &error));
    CHECK(strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32);
    CHECK_OK(ferry_kv_id_parse(text, &other, &error));
    CHECK(memcmp(&id, &other, sizeof id) == 0);
    strcpy(full, "unchanged");
    CHECK(ferry_kv_id_format(&id, full, sizeof full - 1, &error) == FERRY_ERR_LIMIT);
    CHECK(ferry_kv_id_format(&id, NULL, 0, &error) == FERRY_ERR_LIMIT);
    CHECK(strcmp(full, "unchanged") == 0);
    text[31] = 'g';
    CHECK_INVALID(ferry_kv_id_parse(text, &other, &error));
    CHECK_MESSAGE(error, "32 hexadecimal digits");
    text[31] = 0;
    CHECK_INVALID(ferry_kv_id_parse(text, &other, &error));
    CHECK(memcmp(&id, &other, sizeof id) == 0);
    CHECK_INVALID(ferry_kv_id_parse(NULL, &other, &error));
    CHECK_INVALID(ferry_kv_id_format(NULL, text, sizeof text, &error));
}

static void version_is_the_header_s(void)
{
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", FERRY_VERSION_MAJOR, FERRY_VERSION_MINOR,
             FERRY_VERSION_PATCH);
    CHECK(strcmp(ferry_version(), expected) == 0);
}

static void errors_are_filled_on_failure_only(void)
{
    ferry_config *config = NULL;
    ferry_error error = new_error(), before;
    CHECK_OK(ferry_config_new(&config, &error));
    memset(&error, 0x5a, sizeof error);
    error.struct_size = sizeof error;
    before = error;
    CHECK_OK(ferry_config_set(config, "lanes", "2", &error));
    CHECK(memcmp(&error, &before, sizeof error) == 0);
    CHECK_INVALID(ferry_config_set(config, "lanes", "99", &error));
    CHECK(error.status == FERRY_ERR_INVALID && error.struct_size == sizeof error);
    CHECK(error.request_index == UINT64_MAX && error.os_error == 0 && error.reserved == 0);
    CHECK_MESSAGE(error, "1 to 16");
    ferry_config_free(config);
}

static void an_error_of_a_wrong_size_stops_the_call(void)
{
    ferry_config *config = NULL;
    ferry_error error = new_error();
    error.struct_size = sizeof error - 1;
    CHECK_INVALID(ferry_config_new(&config, &error));
    CHECK(config == NULL && error.status == 0);
    error.struct_size = 1;
    CHECK_INVALID(ferry_config_new(&config, &error));
    CHECK(config == NULL && error.status == 0);
}

/* A program that zeroes its errors and sets no struct_size learns the reason too; nothing is written behind the
 * struct of the first version, which has 288 bytes. */
static void a_zeroed_error_is_one_of_the_first_version(void)
{
    struct {
        ferry_error known;
        uint64_t behind;
    } error;
    ferry_config *config = NULL;
    memset(&error, 0, sizeof error);
    error.behind = UINT64_C(0x5a5a5a5a5a5a5a5a);
    CHECK_OK(ferry_config_new(&config, &error.known));
    CHECK(error.known.struct_size == 0 && error.known.status == 0);
    CHECK_INVALID(ferry_config_set(config, "lanes", "99", &error.known));
    CHECK(error.known.struct_size == 288 && error.known.status == FERRY_ERR_INVALID);
    CHECK_MESSAGE(error.known, "1 to 16");
    CHECK(error.behind == UINT64_C(0x5a5a5a5a5a5a5a5a));
    ferry_config_free(config);
}

static void an_error_of_a_newer_version_is_filled_as_far_as_known(void)
{
    struct {
        ferry_error known;
        uint64_t newer;
    } error;
    ferry_config *config = NULL;
    memset(&error, 0x5a, sizeof error);
    error.known.struct_size = sizeof error;
    CHECK_INVALID(ferry_config_set(config, "lanes", "2", &error.known));
    CHECK(error.known.struct_size == sizeof(ferry_error));
    CHECK_MESSAGE(error.known, "config is NULL");
    CHECK(error.newer == UINT64_C(0x5a5a5a5a5a5a5a5a));
}

static void statistics_count(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 4096);
    ferry_stats stats;
    char text[16384];
    size_t length = 0;
    CHECK_OK(ferry_write(pair.a, pair.peer, &request, 1, NULL, NULL, NULL));
    memset(&stats, 0x5a, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK_OK(ferry_engine_get_stats(pair.a, &stats, NULL));
    CHECK(stats.transfers_submitted == 1 && stats.transfers_done == 1 && stats.requests_in == 1);
    CHECK(stats.bytes_written == 4096 && stats.peers_up == 1 && stats.regions == 1);
    CHECK(stats.transfers == 0 && stats.struct_size == sizeof stats && stats.bytes_device == 0);
    CHECK_OK(ferry_engine_get_stats(pair.b, &stats, NULL));
    CHECK(stats.bytes_applied == 4096 && stats.bytes_written == 0);
    CHECK_OK(ferry_engine_metrics(pair.a, text, sizeof text, &length, NULL));
    CHECK(strlen(text) == length);
    CHECK(strstr(text, "\nferry_bytes_written_total 4096\n") != NULL);
    CHECK(strstr(text, "\nferry_bytes_device_total 0\n") != NULL);
    CHECK(strstr(text, "# TYPE ferry_peers_up gauge\nferry_peers_up 1\n") != NULL);
    CHECK_STATUS(ferry_engine_metrics(pair.a, text, 16, &length, NULL), FERRY_ERR_LIMIT);
    CHECK_OK(ferry_engine_metrics(pair.a, NULL, 0, &length, NULL));
    CHECK(length > 1000);
    end_pair(&pair);
}

static void the_address_is_returned_by_the_rules_of_texts(void)
{
    ferry_engine *engine = open_engine();
    ferry_error error = new_error();
    char buffer[300];
    size_t length = 0, again = 77;
    CHECK_OK(ferry_engine_address(engine, NULL, 0, &length, NULL));
    CHECK(length > strlen("127.0.0.1:") && length < sizeof buffer);
    memset(buffer, 'x', sizeof buffer);
    CHECK_STATUS(ferry_engine_address(engine, buffer, length, &again, &error), FERRY_ERR_LIMIT);
    CHECK(buffer[0] == 'x' && again == 77);
    CHECK_OK(ferry_engine_address(engine, buffer, length + 1, &again, NULL));
    CHECK(again == length && strlen(buffer) == length && buffer[length + 1] == 'x');
    CHECK(strncmp(buffer, "127.0.0.1:", 10) == 0);
    end_engine(engine);
    engine = open_engine_with("listen_address", "");
    CHECK_OK(ferry_engine_address(engine, buffer, sizeof buffer, &length, NULL));
    CHECK(length == 0 && buffer[0] == '\0');
    end_engine(engine);
}

SUITE(basics, CASE(status_names), CASE(numbers_have_names), CASE(ids_are_read_as_they_are_written),
      CASE(version_is_the_header_s),
      CASE(errors_are_filled_on_failure_only), CASE(an_error_of_a_wrong_size_stops_the_call),
      CASE(a_zeroed_error_is_one_of_the_first_version),
      CASE(an_error_of_a_newer_version_is_filled_as_far_as_known), CASE(statistics_count),
      CASE(the_address_is_returned_by_the_rules_of_texts));
