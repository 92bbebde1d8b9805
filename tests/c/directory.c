/*
 * Directories of peers by name, without a service: lists, files, addresses, wrong arguments, a closed directory, a
 * forked child and callbacks. directory/tests has etcd.
 */
#define _POSIX_C_SOURCE 200809L
#include "arguments.h"
#include "ferry_kv.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

static ferry_engine *engine, *peer;
static ferry_directory *directory;
static char url[600];

/* Opens two engines, and a directory of the first that names the second and a third that does not exist. */
static void open_directory(void)
{
    engine = open_engine();
    peer = open_engine();
    snprintf(url, sizeof url, "static:prefill/0=%s,prefill/1=127.0.0.1:1", address_of(peer));
    CHECK_OK(ferry_directory_open(engine, url, NULL, &directory, NULL));
}

static void end_directory(void)
{
    ferry_directory_free(directory);
    end_engine(engine);
    end_engine(peer);
}

static void a_list_names_peers(void)
{
    ferry_directory_entry entry = FERRY_DIRECTORY_ENTRY_INIT, entries[3];
    ferry_directory_info status = FERRY_DIRECTORY_INFO_INIT;
    ferry_peer_info info = FERRY_PEER_INFO_INIT;
    ferry_peer connected = 0;
    uint32_t kind = 7;
    size_t count = 0;
    int fd = -1;
    open_directory();
    CHECK_OK(ferry_directory_lookup(directory, "prefill/0", &entry, NULL));
    CHECK(strcmp(entry.name, "prefill/0") == 0 && strcmp(entry.address, address_of(peer)) == 0);
    CHECK(entry.struct_size == sizeof entry && entry.has_identity == 0 && entry.incarnation == 0);
    CHECK_OK(ferry_directory_connect(directory, "prefill/0", PATIENCE_NS, &connected, NULL));
    CHECK_OK(ferry_peer_get_info(engine, connected, &info, NULL));
    CHECK(strcmp(info.address, address_of(peer)) == 0);
    CHECK_OK(ferry_directory_list(directory, "prefill/", entries, sizeof entries[0], 3, &count, NULL));
    CHECK(count == 2 && strcmp(entries[0].name, "prefill/0") == 0);
    CHECK(strcmp(entries[1].name, "prefill/1") == 0 && strcmp(entries[1].address, "127.0.0.1:1") == 0);
    CHECK_OK(ferry_directory_list(directory, "", NULL, sizeof entries[0], 0, &count, NULL));
    CHECK(count == 2);
    CHECK_OK(ferry_directory_list(directory, "decode", NULL, sizeof entries[0], 0, &count, NULL));
    CHECK(count == 0);
    CHECK_OK(ferry_directory_get_info(directory, &status, NULL));
    CHECK(status.is_connected == 1 && status.entries == 2 && status.names == 0 && status.why[0] == 0);
    CHECK_STATUS(ferry_directory_poll(directory, &kind, &entry, NULL), FERRY_PENDING);
    CHECK(kind == 7 && strcmp(entry.name, "prefill/0") == 0);
    CHECK_OK(ferry_directory_fd(directory, &fd, NULL));
    CHECK(fd >= 0 && !readable(fd, 0));
    CHECK_OK(ferry_directory_register(directory, "prefill/0", 0, NULL));
    CHECK_OK(ferry_directory_unregister(directory, "prefill/0", 0, NULL));
    end_directory();
}

static void a_file_and_addresses_name_peers(void)
{
    char file[] = "/tmp/ferry-peers-XXXXXX", text[400];
    ferry_directory *other = NULL;
    ferry_peer connected = 0, same = 0;
    const int fd = mkstemp(file);
    CHECK(fd >= 0);
    open_directory();
    snprintf(text, sizeof text, "# peers\na = %s\n", address_of(peer));
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
    snprintf(text, sizeof text, "static:%s", file);
    CHECK_OK(ferry_directory_open(engine, text, NULL, &other, NULL));
    unlink(file);
    CHECK_OK(ferry_directory_connect(other, "a", PATIENCE_NS, &connected, NULL));
    ferry_directory_free(other);
    CHECK_OK(ferry_directory_open(engine, "static:", NULL, &other, NULL));
    CHECK_OK(ferry_directory_connect(other, address_of(peer), PATIENCE_NS, &same, NULL));
    CHECK(connected != 0 && connected == same);
    ferry_directory_free(other);
    ferry_directory_free(NULL);
    end_directory();
}

static void null_pointers(void)
{
    ferry_directory *other = NULL;
    ferry_directory_entry entry = FERRY_DIRECTORY_ENTRY_INIT;
    ferry_directory_info status = FERRY_DIRECTORY_INFO_INIT;
    ferry_peer connected = 0;
    uint32_t kind = 7;
    size_t count = 7;
    int fd = -7;
    open_directory();
    CHECK_NULL(ferry_directory_open(NULL, url, NULL, &other, &error), "engine");
    CHECK_NULL(ferry_directory_open(engine, NULL, NULL, &other, &error), "url");
    CHECK_NULL(ferry_directory_open(engine, url, NULL, NULL, &error), "out_directory");
    CHECK_NULL(ferry_directory_register(NULL, "a", 0, &error), "directory");
    CHECK_NULL(ferry_directory_register(directory, NULL, 0, &error), "name");
    CHECK_NULL(ferry_directory_unregister(NULL, "a", 0, &error), "directory");
    CHECK_NULL(ferry_directory_unregister(directory, NULL, 0, &error), "name");
    CHECK_NULL(ferry_directory_lookup(NULL, "a", &entry, &error), "directory");
    CHECK_NULL(ferry_directory_lookup(directory, NULL, &entry, &error), "name");
    CHECK_NULL(ferry_directory_lookup(directory, "prefill/0", NULL, &error), "out_entry");
    CHECK_NULL(ferry_directory_connect(NULL, "a", 0, &connected, &error), "directory");
    CHECK_NULL(ferry_directory_connect(directory, NULL, 0, &connected, &error), "name");
    CHECK_NULL(ferry_directory_connect(directory, "prefill/0", 0, NULL, &error), "out_peer");
    CHECK_NULL(ferry_directory_list(NULL, "", &entry, sizeof entry, 1, &count, &error), "directory");
    CHECK_NULL(ferry_directory_list(directory, NULL, &entry, sizeof entry, 1, &count, &error), "prefix");
    CHECK_NULL(ferry_directory_list(directory, "", NULL, sizeof entry, 1, &count, &error), "out_entries");
    CHECK_NULL(ferry_directory_list(directory, "", &entry, sizeof entry, 1, NULL, &error), "out_count");
    CHECK_NULL(ferry_directory_poll(NULL, &kind, &entry, &error), "directory");
    CHECK_NULL(ferry_directory_poll(directory, NULL, &entry, &error), "out_kind");
    CHECK_NULL(ferry_directory_poll(directory, &kind, NULL, &error), "out_entry");
    CHECK_NULL(ferry_directory_fd(NULL, &fd, &error), "directory");
    CHECK_NULL(ferry_directory_fd(directory, NULL, &error), "out_fd");
    CHECK_NULL(ferry_directory_get_info(NULL, &status, &error), "directory");
    CHECK_NULL(ferry_directory_get_info(directory, NULL, &error), "out_status");
    CHECK_NULL(ferry_directory_close(NULL, &error), "directory");
    CHECK(other == NULL && connected == 0 && kind == 7 && count == 7 && fd == -7);
    end_directory();
}

static void wrong_arguments(void)
{
    ferry_directory *other = NULL;
    ferry_directory_options options = FERRY_DIRECTORY_OPTIONS_INIT;
    ferry_directory_entry entry = FERRY_DIRECTORY_ENTRY_INIT;
    ferry_peer connected = 0;
    size_t count = 0;
    open_directory();
#define OPEN(text) ferry_directory_open(engine, text, &options, &other, &error)
    CHECK_BAD(OPEN("consul:a"), "url begins neither");
    CHECK_BAD(OPEN("static:a"), "entry 0 of url is no name=address");
    CHECK_BAD(OPEN("static:a=h:1,a=h:2"), "entry 1 of url has the name a again");
    CHECK_BAD(OPEN("static:/nonexistent"), "/nonexistent");
    CHECK_BAD(OPEN("etcd:h:1"), "neither by http:// nor by https://");
    CHECK_BAD(OPEN("etcd:http://u:p@h"), "user and password are options");
    CHECK_BAD(OPEN("etcd:https://h"), "ca: ");
    options.ttl_s = 3601;
    CHECK_BAD(OPEN("etcd:http://127.0.0.1:1"), "ttl");
    options.ttl_s = 0;
    options.user = "u";
    CHECK_BAD(OPEN("etcd:http://127.0.0.1:1"), "options.password");
    options.user = NULL;
    options.ca_file = "/nonexistent";
    CHECK_BAD(OPEN("etcd:https://127.0.0.1:1"), "options.ca_file");
    options.ca_file = NULL;
    options.flags = 2;
    CHECK_BAD(OPEN("static:"), "options.flags is 2");
    options.flags = 0;
    options.struct_size--;
    CHECK_BAD(OPEN("static:"), "options.struct_size is 55");
    options.struct_size++;
    /* Nobody listens at that port of this host. */
    options.open_timeout_ms = 100;
    CHECK_NAMES(OPEN("etcd:http://127.0.0.1:1"), FERRY_ERR_UNREACHABLE, "url: etcd does not answer");
    CHECK(other == NULL);
#undef OPEN
    CHECK_NAMES(ferry_directory_lookup(directory, "prefill/2", &entry, &error), FERRY_ERR_UNREACHABLE, "no prefill/2");
    CHECK_NAMES(ferry_directory_connect(directory, "prefill/2", FERRY_FOREVER, &connected, &error),
                FERRY_ERR_UNREACHABLE, "no prefill/2");
    CHECK_BAD(ferry_directory_lookup(directory, "a b", &entry, &error), "name is \"a b\"");
    CHECK_BAD(ferry_directory_register(directory, "", 0, &error), "name is empty");
    CHECK_BAD(ferry_directory_register(directory, "decode", 0, &error), "has no decode");
    CHECK_BAD(ferry_directory_list(directory, "a b", &entry, sizeof entry, 1, &count, &error), "prefix is");
    CHECK_BAD(ferry_directory_list(directory, "", &entry, sizeof entry - 8, 1, &count, &error), "element_size");
    CHECK(ferry_directory_connect(directory, "prefill/1", 1000000, &connected, &error) < 0);
    CHECK_MESSAGE(error, "prefill/1: ");
    entry.struct_size--;
    CHECK_BAD(ferry_directory_lookup(directory, "prefill/0", &entry, &error), "out_entry.struct_size");
    end_directory();
}

/* etcd is not there, and the directory goes on trying. */
static void a_directory_need_not_wait_for_etcd(void)
{
    ferry_directory_options options = FERRY_DIRECTORY_OPTIONS_INIT;
    ferry_directory_info status = FERRY_DIRECTORY_INFO_INIT;
    ferry_directory_entry entry = FERRY_DIRECTORY_ENTRY_INIT;
    ferry_directory *other = NULL;
    open_directory();
    options.flags = FERRY_DIRECTORY_NO_WAIT;
    CHECK_OK(ferry_directory_open(engine, "etcd:http://127.0.0.1:1/a", &options, &other, NULL));
    CHECK_NAMES(ferry_directory_lookup(other, "a", &entry, &error), FERRY_ERR_UNREACHABLE, "has not answered yet");
    CHECK_NAMES(ferry_directory_register(other, "a", 1000000, &error), FERRY_ERR_UNREACHABLE, "is not published");
    CHECK_OK(ferry_directory_get_info(other, &status, NULL));
    CHECK(status.is_connected == 0 && status.cut_off_ms == 0 && status.sessions == 0 && status.names_published == 0);
    ferry_directory_free(other);
    end_directory();
}

/* Returns the first call that a closed directory, or a child, does not refuse. */
static const char *first_not_closed_directory(void)
{
    ferry_directory_entry entry = FERRY_DIRECTORY_ENTRY_INIT;
    ferry_directory_info status = FERRY_DIRECTORY_INFO_INIT;
    ferry_peer connected = 0;
    uint32_t kind = 0;
    size_t count = 0;
#define REFUSES(call) if ((call) != FERRY_ERR_CLOSED) return #call
    REFUSES(ferry_directory_register(directory, "prefill/0", FERRY_FOREVER, NULL));
    REFUSES(ferry_directory_unregister(directory, "prefill/0", FERRY_FOREVER, NULL));
    REFUSES(ferry_directory_lookup(directory, "prefill/0", &entry, NULL));
    REFUSES(ferry_directory_connect(directory, "prefill/0", FERRY_FOREVER, &connected, NULL));
    REFUSES(ferry_directory_list(directory, "", &entry, sizeof entry, 1, &count, NULL));
    REFUSES(ferry_directory_poll(directory, &kind, &entry, NULL));
    REFUSES(ferry_directory_get_info(directory, &status, NULL));
    return NULL;
}

static void a_closed_directory_refuses_each_call(void)
{
    const char *call;
    int fd = -1;
    open_directory();
    CHECK_OK(ferry_directory_fd(directory, &fd, NULL));
    CHECK_OK(ferry_directory_close(directory, NULL));
    CHECK_OK(ferry_directory_close(directory, NULL));
    CHECK(readable(fd, 0));
    call = first_not_closed_directory();
    if (call != NULL) FAIL("%s", call);
    end_directory();
}

static void a_forked_child_is_refused(void)
{
    ferry_directory_entry entry = FERRY_DIRECTORY_ENTRY_INIT;
    int status = -1;
    pid_t child;
    open_directory();
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ferry_directory *own = NULL;
        int fd = -1, result = 0;
        const char *call = first_not_closed_directory();
        if (call != NULL) result = write(STDOUT_FILENO, call, strlen(call)) < 0 ? 8 : 9;
        else if (ferry_directory_fd(directory, &fd, NULL) != FERRY_ERR_CLOSED) result = 1;
        else if (ferry_directory_open(engine, url, NULL, &own, NULL) != FERRY_ERR_CLOSED) result = 2;
        else if (ferry_directory_close(directory, NULL) != FERRY_OK) result = 3;
        else ferry_directory_free(directory);
        leave_child(result);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the child ended with %d", WEXITSTATUS(status));
    CHECK_OK(ferry_directory_lookup(directory, "prefill/0", &entry, NULL));
    end_directory();
}

/* What a callback got from calls that wait, and from two that don't. */
static ferry_status in_callback[7];

static void call_from_callback(void *context, const ferry_event *event)
{
    ferry_directory_entry entry = FERRY_DIRECTORY_ENTRY_INIT;
    ferry_directory *own = NULL;
    ferry_peer connected = 0;
    (void)event;
    in_callback[0] = ferry_directory_connect(directory, "prefill/0", 1, &connected, NULL);
    in_callback[1] = ferry_directory_open(engine, url, NULL, &own, NULL);
    in_callback[2] = ferry_directory_close(directory, NULL);
    in_callback[3] = ferry_directory_register(directory, "prefill/0", 1, NULL);
    in_callback[4] = ferry_directory_unregister(directory, "prefill/0", 1, NULL);
    in_callback[5] = ferry_directory_register(directory, "prefill/0", 0, NULL);
    in_callback[6] = ferry_directory_lookup(directory, "prefill/0", &entry, NULL);
    __atomic_store_n((int *)context, 1, __ATOMIC_RELEASE);
}

static void a_callback_does_not_wait(void)
{
    ferry_queue queue = 0;
    int was_called = 0, i;
    open_directory();
    CHECK_OK(ferry_queue_create(engine, FERRY_QUEUE_PEERS, 16, &queue, NULL));
    CHECK_OK(ferry_queue_callback(engine, queue, call_from_callback, &was_called, NULL));
    CHECK_OK(ferry_peer_connect_async(engine, address_of(peer), PATIENCE_NS, queue, 1, NULL));
    while (!__atomic_load_n(&was_called, __ATOMIC_ACQUIRE)) poll(NULL, 0, 1);
    for (i = 0; i < 5; i++) CHECK(in_callback[i] == FERRY_ERR_BUSY);
    CHECK(in_callback[5] == FERRY_OK && in_callback[6] == FERRY_OK);
    CHECK_OK(ferry_queue_callback(engine, queue, NULL, NULL, NULL));
    end_directory();
}

SUITE(directory, CASE(a_list_names_peers), CASE(a_file_and_addresses_name_peers), CASE(null_pointers),
      CASE(wrong_arguments), CASE(a_directory_need_not_wait_for_etcd), CASE(a_closed_directory_refuses_each_call),
      CASE(a_forked_child_is_refused), CASE(a_callback_does_not_wait));
