/*
 * Mistakes that newcomers make, and the words that the sentence about each must have: what is wrong, and what to do.
 * engine/src/config/address.rs has all wrong addresses.
 */
#define _POSIX_C_SOURCE 200809L
#include "arguments.h"
#include "ferry_kv.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

static const struct {
    const char *address, *words;
} addresses[] = {
    {"", "\"\" is empty: write HOST:PORT"},
    {"node7", "\"node7\" has no port: write node7:PORT"},
    {"node7:0", "has port 0, at which nothing listens: write node7:PORT"},
    {"node7:99999", "has a port above 65535: write node7:PORT"},
    {"node7:http", "has the port \"http\", which is no number: write node7:PORT"},
    {"::1:7000", "is an IPv6 address without brackets: write [::1]:7000"},
    {"::1", "is an IPv6 address without brackets: write [::1]:PORT"},
    {"tcp://h:1", "is a URL: write h:1 without tcp://"},
    {"43125", "has a port and no host: write HOST:43125, on this host 127.0.0.1:43125"},
    {":43125", "has a port and no host: write HOST:43125, on this host 127.0.0.1:43125"},
    {" h:1 ", "has white space around it: write h:1"},
    {"h:1\n", "has white space around it: write h:1"},
};

/* A pair, a third engine with one of each handle, and handles that a case has filled. */
static pair here;
static ferry_engine *other;
static ferry_queue queue, others_queue;
static ferry_region others_region;
static ferry_peer others_peer;
static ferry_transfer others_transfer;
static char listener_address[64];

static void wrong_addresses(void)
{
    ferry_engine *engine = open_engine();
    ferry_config *config = NULL;
    ferry_directory *directory = NULL;
    ferry_peer peer = 0;
    char url[64];
    CHECK_OK(ferry_queue_create(engine, FERRY_QUEUE_PEERS, 1, &queue, NULL));
    CHECK_OK(ferry_config_new(&config, NULL));
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        const char *address = addresses[i].address, *words = addresses[i].words;
        CHECK_BAD(ferry_peer_connect(engine, address, PATIENCE_NS, &peer, &error), words);
        CHECK_MESSAGE(error, "address: \"");
        CHECK_BAD(ferry_peer_connect_async(engine, address, PATIENCE_NS, queue, 0, &error), words);
        /* The lines of a list have no white space, and settings may be empty or have port 0. */
        if (address[0] == '\0' || strpbrk(address, " \n") != NULL) continue;
        snprintf(url, sizeof url, "static:a=%s", address);
        CHECK_BAD(ferry_directory_open(engine, url, NULL, &directory, &error), words);
        CHECK_MESSAGE(error, "the address in entry 0 of url: ");
        if (strstr(address, ":0") != NULL) continue;
        CHECK_BAD(ferry_config_set(config, "listen_address", address, &error), strstr(words, ": write"));
        CHECK_BAD(ferry_config_set(config, "advertise_address", address, &error), strstr(words, ": write"));
    }
    CHECK_OK(ferry_directory_open(engine, "static:a=h:1", NULL, &directory, NULL));
    size_t count = 0;
    CHECK_BAD(ferry_directory_list(directory, "/", NULL, sizeof(ferry_directory_entry), 0, &count, &error),
              "prefix is \"/\"");
    ferry_directory_free(directory);
    ferry_config_free(config);
    end_engine(engine);
}

static ferry_status submit_to(ferry_queue to)
{
    ferry_request request = range(&here, 0, 0, 8);
    ferry_transfer_options options = new_options();
    ferry_transfer transfer = 0;
    options.queue = to;
    return ferry_transfer_submit(here.a, here.peer, FERRY_OP_WRITE, &request, 1, &options, &transfer, &error);
}

/* Writes with a notification and a short deadline; the peer's program takes no notifications. */
static ferry_transfer_options nobody_takes(void)
{
    ferry_transfer_options options = new_options();
    options.notify = "x";
    options.notify_length = 1;
    options.deadline_ns = 20 * UINT64_C(1000000);
    return options;
}

static ferry_status write_that_nobody_takes(void)
{
    ferry_request request = range(&here, 0, 0, 8);
    ferry_transfer_options options = nobody_takes();
    return ferry_write(here.a, here.peer, &request, 1, &options, NULL, &error);
}

/* The event has the status; the wait for its transfer has the sentence. */
static ferry_status event_that_nobody_takes(void)
{
    ferry_request request = range(&here, 0, 0, 8);
    ferry_transfer_options options = nobody_takes();
    ferry_transfer transfer = 0;
    ferry_event event;
    options.queue = queue;
    CHECK_OK(ferry_transfer_submit(here.a, here.peer, FERRY_OP_WRITE, &request, 1, &options, &transfer, NULL));
    event = next_event(here.a, queue);
    CHECK(event.transfer == transfer && event.status == FERRY_ERR_TIMEOUT);
    return ferry_transfer_wait(here.a, transfer, 0, NULL, &error);
}

static ferry_status notify_that_nobody_takes(void)
{
    return ferry_notify(here.a, here.peer, "x", 1, 20 * UINT64_C(1000000), &error);
}

static ferry_status full_queue(void)
{
    ferry_status status = submit_to(queue);
    ferry_event event;
    /* The event is drained later, so its place is taken whether or not the transfer has ended. */
    CHECK_OK(status);
    status = submit_to(queue);
    event = next_event(here.a, queue);
    ferry_event_release(&event);
    return status;
}

static ferry_status anothers_queue(void)
{
    return submit_to(others_queue);
}

static ferry_status anothers_queue_drained(void)
{
    ferry_event event;
    size_t count = 0;
    return ferry_queue_drain(here.a, others_queue, &event, sizeof event, 1, &count, &error);
}

static ferry_status anothers_region(void)
{
    return ferry_region_unregister(here.a, others_region, 0, &error);
}

static ferry_status anothers_peer(void)
{
    ferry_request request = range(&here, 0, 0, 8);
    return ferry_write(here.a, others_peer, &request, 1, NULL, NULL, &error);
}

static ferry_status anothers_transfer(void)
{
    return ferry_transfer_wait(here.a, others_transfer, 0, NULL, &error);
}

static ferry_status a_region_for_a_peer(void)
{
    return ferry_peer_probe(here.a, here.a_region, 0, NULL, &error);
}

static ferry_status a_region_here_for_one_there(void)
{
    ferry_request request = range(&here, 0, 0, 8);
    request.remote_region = here.a_region;
    return ferry_write(here.a, here.peer, &request, 1, NULL, NULL, &error);
}

static ferry_status connect_to_listener(void)
{
    ferry_peer peer = 0;
    return ferry_peer_connect(here.a, listener_address, 200 * UINT64_C(1000000), &peer, &error);
}

static const struct {
    const char *what;
    ferry_status (*call)(void);
    ferry_status status;
    const char *words;
} mistakes[] = {
    {"a queue that is not drained", full_queue, FERRY_ERR_LIMIT,
     "the queue is full: 1 of 1 places are taken by transfers and connects that are in progress ("},
    {"a queue that is not drained", full_queue, FERRY_ERR_LIMIT,
     "drain it, or create it with a larger capacity"},
    {"another engine's queue", anothers_queue, FERRY_ERR_STALE, "the queue belongs to another engine"},
    {"another engine's queue", anothers_queue_drained, FERRY_ERR_STALE, "the queue belongs to another engine"},
    {"another engine's region", anothers_region, FERRY_ERR_STALE, "the region belongs to another engine"},
    {"another engine's peer", anothers_peer, FERRY_ERR_STALE, "the peer belongs to another engine"},
    {"another engine's transfer", anothers_transfer, FERRY_ERR_STALE, "the transfer belongs to another engine"},
    {"a region for a peer", a_region_for_a_peer, FERRY_ERR_INVALID, "is not a peer handle"},
    {"a region here for one there", a_region_here_for_one_there, FERRY_ERR_STALE,
     "requests[0].remote_region: the region belongs to another engine"},
    {"notifications that nobody takes", write_that_nobody_takes, FERRY_ERR_TIMEOUT,
     "1024 notifications of channel 0 wait at the peer; its program takes none"},
    {"notifications that nobody takes", notify_that_nobody_takes, FERRY_ERR_TIMEOUT,
     "1024 notifications of channel 0 wait at the peer; its program takes none"},
    {"notifications that nobody takes", event_that_nobody_takes, FERRY_ERR_TIMEOUT,
     "1024 notifications of channel 0 wait at the peer; its program takes none"},
};

static void mistakes_with_their_words(void)
{
    static unsigned char bytes[64];
    ferry_request request;
    ferry_transfer held;
    memset(&error, 0, sizeof error);
    here = open_pair(4096);
    other = open_engine();
    CHECK_OK(ferry_queue_create(here.a, FERRY_QUEUE_TRANSFERS, 1, &queue, NULL));
    CHECK_OK(ferry_queue_create(other, FERRY_QUEUE_TRANSFERS, 1, &others_queue, NULL));
    CHECK_OK(ferry_region_register(other, bytes, sizeof bytes, NULL, &others_region, NULL));
    CHECK_OK(ferry_peer_connect(other, address_of(here.b), PATIENCE_NS, &others_peer, NULL));
    request = range(&here, 0, 0, 64);
    request.local = (uintptr_t)bytes;
    CHECK_OK(ferry_transfer_submit(other, others_peer, FERRY_OP_WRITE, &request, 1, NULL, &others_transfer, NULL));
    held = hold_transfer(&here, NULL);
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        ferry_status status;
        error = new_error();
        status = mistakes[i].call();
        if (status != mistakes[i].status || strstr(error.message, mistakes[i].words) == NULL)
            FAIL("%s: %s: %s\n      lacks: %s", mistakes[i].what, ferry_status_name(status), error.message,
                 mistakes[i].words);
    }
    let_go(&here);
    CHECK_OK(ferry_transfer_wait(here.a, held, PATIENCE_NS, NULL, NULL));
    end_engine(other);
    end_pair(&here);
}

/* Takes one connection, answers as a web server does, and ends it when the engine has. */
static void *serve(void *listener)
{
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    char bytes[64];
    const int fd = accept(*(int *)listener, NULL, NULL);
    if (fd < 0 || write(fd, answer, sizeof answer - 1) < 0) return NULL;
    while (read(fd, bytes, sizeof bytes) > 0) continue;
    close(fd);
    return NULL;
}

static void connects_to_what_is_no_engine(void)
{
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    pthread_t server;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&name, 0, sizeof name);
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && listen(fd, 8) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&name, &length) == 0);
    snprintf(listener_address, sizeof listener_address, "127.0.0.1:%u", (unsigned)ntohs(name.sin_port));
    here.a = open_engine();
    CHECK_NAMES(connect_to_listener(), FERRY_ERR_TIMEOUT,
                "but did not answer ferry's handshake within 200 ms (the call's timeout)");
    close(accept(fd, NULL, NULL));
    CHECK(pthread_create(&server, NULL, serve, &fd) == 0);
    CHECK_NAMES(connect_to_listener(), FERRY_ERR_NOT_FERRY, "something listens there but does not speak ferry");
    CHECK(pthread_join(server, NULL) == 0);
    close(fd);
    CHECK_NAMES(connect_to_listener(), FERRY_ERR_UNREACHABLE, ": Connection refused: nothing listens there");
    CHECK_MESSAGE(error, listener_address);
    end_engine(here.a);
}

SUITE(mistakes, CASE(wrong_addresses), CASE(mistakes_with_their_words), CASE(connects_to_what_is_no_engine));
