/* Connecting, listing, probing, fencing, closing; descriptors. */
#define _POSIX_C_SOURCE 200809L
#include "engines.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

static void connecting_twice_is_the_same_peer(void)
{
    pair pair = open_pair(4096);
    ferry_peer again = 0;
    CHECK_OK(ferry_peer_connect(pair.a, address_of(pair.b), PATIENCE_NS, &again, NULL));
    CHECK(again == pair.peer);
    CHECK(only_peer(pair.a) == pair.peer);
    CHECK(only_peer(pair.b) != 0);
    end_pair(&pair);
}

/* Opens a listening socket that never answers, like an engine that hangs; `address` gets its address. */
static int silent_listener(char *address, size_t capacity)
{
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&name, 0, sizeof name);
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && listen(fd, 8) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&name, &length) == 0);
    snprintf(address, capacity, "127.0.0.1:%u", (unsigned)ntohs(name.sin_port));
    return fd;
}

static void where_nobody_can_be_reached(void)
{
    ferry_engine *engine = open_engine();
    ferry_peer peer = 0;
    ferry_error error = new_error();
    char address[64];
    int fd = silent_listener(address, sizeof address);
    CHECK_STATUS(ferry_peer_connect(engine, address, 30 * UINT64_C(1000000), &peer, &error), FERRY_ERR_TIMEOUT);
    CHECK_MESSAGE(error, address);
    CHECK_STATUS(ferry_peer_connect(engine, address, 0, &peer, NULL), FERRY_ERR_TIMEOUT);
    close(fd);
    CHECK_STATUS(ferry_peer_connect(engine, address, PATIENCE_NS, &peer, NULL), FERRY_ERR_UNREACHABLE);
    CHECK_INVALID(ferry_peer_connect(engine, "no port", PATIENCE_NS, &peer, NULL));
    CHECK_INVALID(ferry_peer_connect(engine, "", PATIENCE_NS, &peer, NULL));
    CHECK(peer == 0);
    end_engine(engine);
}

static void a_peer_with_another_secret_is_refused(void)
{
    ferry_engine *a = open_engine_with(
        "secret", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
    ferry_engine *b = open_engine_with(
        "secret", "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
    ferry_engine *c = open_engine_with(
        "secret", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
    ferry_peer peer = 0;
    CHECK_STATUS(ferry_peer_connect(a, address_of(b), PATIENCE_NS, &peer, NULL), FERRY_ERR_REFUSED);
    CHECK(peer == 0);
    CHECK_OK(ferry_peer_connect(a, address_of(c), PATIENCE_NS, &peer, NULL));
    end_engine(a);
    end_engine(b);
    end_engine(c);
}

static void an_asynchronous_connect_reports_to_its_queue(void)
{
    ferry_engine *a = open_engine(), *b = open_engine();
    ferry_queue queue = 0, transfers = 0;
    ferry_error error = new_error();
    ferry_event event;
    ferry_peer peer = 0;
    char address[64];
    CHECK_OK(ferry_queue_create(a, FERRY_QUEUE_PEERS, 1, &queue, NULL));
    CHECK_OK(ferry_queue_create(a, FERRY_QUEUE_TRANSFERS, 1, &transfers, NULL));
    CHECK_INVALID(ferry_peer_connect_async(a, address_of(b), PATIENCE_NS, transfers, 1, &error));
    CHECK_MESSAGE(error, "peer events");
    CHECK_INVALID(ferry_peer_connect_async(a, address_of(b), PATIENCE_NS, 0, 1, NULL));
    CHECK_INVALID(ferry_peer_connect_async(a, "no port", PATIENCE_NS, queue, 1, NULL));
    CHECK_OK(ferry_peer_connect_async(a, address_of(b), PATIENCE_NS, queue, 77, NULL));
    event = next_event_of(a, queue, FERRY_EVENT_PEER_CONNECTED);
    CHECK(event.status == FERRY_OK && event.user_data == 77 && event.peer == only_peer(a));
    close(silent_listener(address, sizeof address));
    CHECK_OK(ferry_peer_connect_async(a, address, PATIENCE_NS, queue, 78, NULL));
    event = next_event_of(a, queue, FERRY_EVENT_PEER_CONNECTED);
    CHECK(event.status == FERRY_ERR_UNREACHABLE && event.user_data == 78 && event.peer == 0);
    CHECK_STATUS(ferry_peer_connect(a, address, PATIENCE_NS, &peer, &error), FERRY_ERR_UNREACHABLE);
    CHECK(event.os_error == ECONNREFUSED && event.os_error == error.os_error);
    CHECK_MESSAGE(error, ": Connection refused");
    CHECK(event.data_length == strlen(error.message));
    CHECK(memcmp(event.data, error.message, event.data_length) == 0);
    ferry_event_release(&event);
    CHECK(event.data == NULL);
    end_engine(a);
    end_engine(b);
}

static void room_for_asynchronous_connects_is_reserved(void)
{
    ferry_engine *engine = open_engine();
    ferry_queue queue = 0;
    ferry_event event;
    char address[64];
    int fd = silent_listener(address, sizeof address);
    CHECK_OK(ferry_queue_create(engine, FERRY_QUEUE_PEERS, 1, &queue, NULL));
    CHECK_OK(ferry_peer_connect_async(engine, address, PATIENCE_NS, queue, 1, NULL));
    CHECK_STATUS(ferry_peer_connect_async(engine, address, PATIENCE_NS, queue, 2, NULL), FERRY_ERR_LIMIT);
    CHECK_STATUS(ferry_queue_destroy(engine, queue, NULL), FERRY_ERR_BUSY);
    /* The other end closes the connection: the connect fails, and its room is free again. */
    close(accept(fd, NULL, NULL));
    event = next_event(engine, queue);
    CHECK(event.kind == FERRY_EVENT_PEER_CONNECTED && event.user_data == 1 && event.status < 0);
    ferry_event_release(&event);
    close(fd);
    CHECK_OK(ferry_queue_destroy(engine, queue, NULL));
    end_engine(engine);
}

static void probe_and_info(void)
{
    pair pair = open_pair(4096);
    ferry_peer_info info;
    uint64_t round_trip_ns = 0;
    CHECK_OK(ferry_peer_probe(pair.a, pair.peer, PATIENCE_NS, &round_trip_ns, NULL));
    CHECK(round_trip_ns > 0 && round_trip_ns < PATIENCE_NS);
    CHECK_OK(ferry_peer_probe(pair.a, pair.peer, PATIENCE_NS, NULL, NULL));
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    CHECK_OK(ferry_peer_get_info(pair.a, pair.peer, &info, NULL));
    CHECK(info.struct_size == sizeof info && info.state == FERRY_PEER_UP && info.incarnation != 0);
    CHECK(strcmp(info.address, address_of(pair.b)) == 0);
    CHECK(info.round_trip_ns > 0 && info.transfers_active == 0 && info.lanes > 0);
    CHECK(!is_zero(info.engine_id, 16));
    end_pair(&pair);
}

static void paths_say_which_is_taken_and_why(void)
{
    pair pair = open_pair(4096);
    ferry_path_info paths[8];
    size_t count = 0;
    CHECK_OK(ferry_peer_paths(pair.a, pair.peer, paths, sizeof paths[0], 8, &count, NULL));
    CHECK(count == 5);
    for (size_t i = 0; i < count; i++) {
        CHECK(paths[i].struct_size == sizeof paths[i] && paths[i].why[0] != '\0');
        CHECK(paths[i].chosen == (paths[i].transport == FERRY_TRANSPORT_TCP));
        CHECK(paths[i].reserved == 0);
    }
    end_pair(&pair);
}

static void a_closed_peer_is_lost(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 64);
    ferry_peer_info info;
    info.struct_size = sizeof info;
    CHECK_OK(ferry_peer_close(pair.a, pair.peer, PATIENCE_NS, NULL));
    CHECK_OK(ferry_peer_get_info(pair.a, pair.peer, &info, NULL));
    CHECK(info.state == FERRY_PEER_LOST && info.transfers_active == 0);
    CHECK_STATUS(ferry_peer_probe(pair.a, pair.peer, PATIENCE_NS, NULL, NULL), FERRY_ERR_CLOSED);
    CHECK_STATUS(ferry_write(pair.a, pair.peer, &request, 1, NULL, NULL, NULL), FERRY_ERR_CLOSED);
    CHECK_STATUS(ferry_notify(pair.a, pair.peer, "x", 1, 0, NULL), FERRY_ERR_CLOSED);
    CHECK_OK(ferry_peer_close(pair.a, pair.peer, PATIENCE_NS, NULL));
    CHECK_INVALID(ferry_peer_close(pair.a, 0, 0, NULL));
    CHECK_INVALID(ferry_peer_probe(pair.a, pair.a_region, 0, NULL, NULL));
    CHECK_STATUS(ferry_peer_probe(pair.b, pair.peer, 0, NULL, NULL), FERRY_ERR_STALE);
    end_pair(&pair);
}

static void a_fenced_peer_cannot_write_here_until_connected_to(void)
{
    pair pair = open_pair(4096);
    ferry_request request = range(&pair, 0, 0, 64);
    ferry_transfer_options options = new_options();
    ferry_peer a_at_b = only_peer(pair.b), back = 0;
    options.deadline_ns = 200 * UINT64_C(1000000);
    fill(pair.a_memory, 4096, 3);
    CHECK_OK(ferry_peer_fence(pair.b, a_at_b, PATIENCE_NS, NULL));
    CHECK(ferry_write(pair.a, pair.peer, &request, 1, &options, NULL, NULL) < 0);
    CHECK(is_zero(pair.b_memory, 4096));
    CHECK_OK(ferry_peer_connect(pair.b, address_of(pair.a), PATIENCE_NS, &back, NULL));
    end_pair(&pair);
}

static void queues_hear_of_peers_that_come_and_go(void)
{
    ferry_engine *a = open_engine(), *b = open_engine();
    ferry_queue queue = 0;
    ferry_peer peer = 0;
    ferry_event up, lost;
    CHECK_OK(ferry_queue_create(b, FERRY_QUEUE_PEERS, 8, &queue, NULL));
    CHECK_OK(ferry_peer_connect(a, address_of(b), PATIENCE_NS, &peer, NULL));
    up = next_event(b, queue);
    CHECK(up.kind == FERRY_EVENT_PEER_UP && up.peer == only_peer(b));
    end_engine(a);
    lost = next_event(b, queue);
    CHECK(lost.kind == FERRY_EVENT_PEER_LOST && lost.peer == up.peer && lost.status < 0);
    /* The event has a sentence with the reason. */
    CHECK(lost.data != NULL && lost.data_length > 10);
    ferry_event_release(&lost);
    CHECK(lost.data == NULL && lost.data_length == 0);
    end_engine(b);
}

static void descriptors_lead_to_their_engine(void)
{
    ferry_engine *a = open_engine(), *b = open_engine(), *deaf = open_engine_with("listen_address", "");
    unsigned char descriptor[512];
    size_t length = 0, needed = 0;
    ferry_queue queue = 0;
    ferry_peer peer = 0;
    ferry_event lost;
    CHECK_OK(ferry_descriptor_export(b, NULL, 0, &needed, NULL));
    CHECK_STATUS(ferry_descriptor_export(b, descriptor, needed - 1, &length, NULL), FERRY_ERR_LIMIT);
    CHECK_OK(ferry_descriptor_export(b, descriptor, needed, &length, NULL));
    CHECK(length == needed && length <= 300);
    CHECK_OK(ferry_descriptor_import(a, descriptor, length, PATIENCE_NS, &peer, NULL));
    CHECK(peer == only_peer(a));
    CHECK_STATUS(ferry_descriptor_export(deaf, NULL, 0, &needed, NULL), FERRY_ERR_UNAVAILABLE);
    CHECK_OK(ferry_queue_create(a, FERRY_QUEUE_PEERS, 4, &queue, NULL));
    end_engine(b);
    /* The descriptor's engine is gone and a knows that; before, a would return the existing peer. */
    lost = next_event_of(a, queue, FERRY_EVENT_PEER_LOST);
    ferry_event_release(&lost);
    CHECK(ferry_descriptor_import(a, descriptor, length, PATIENCE_NS, &peer, NULL) <= -300);
    end_engine(a);
    end_engine(deaf);
}

static void a_descriptor_with_a_flipped_bit_is_refused(void)
{
    ferry_engine *a = open_engine(), *b = open_engine();
    unsigned char descriptor[512];
    size_t length = 0;
    ferry_peer peer = 0;
    CHECK_OK(ferry_descriptor_export(b, descriptor, sizeof descriptor, &length, NULL));
    for (size_t bit = 0; bit < length * 8; bit++) {
        ferry_status status;
        descriptor[bit / 8] ^= (unsigned char)(1u << (bit % 8));
        status = ferry_descriptor_import(a, descriptor, length, PATIENCE_NS, &peer, NULL);
        CHECK(status == FERRY_ERR_CORRUPT || status == FERRY_ERR_INVALID);
        descriptor[bit / 8] ^= (unsigned char)(1u << (bit % 8));
    }
    for (size_t cut = 0; cut < length; cut++) {
        ferry_status status = ferry_descriptor_import(a, descriptor, cut, PATIENCE_NS, &peer, NULL);
        CHECK(status == FERRY_ERR_CORRUPT || status == FERRY_ERR_INVALID);
    }
    CHECK(peer == 0);
    end_engine(a);
    end_engine(b);
}

static void a_region_is_found_by_its_name(void)
{
    pair pair = open_pair(4096);
    ferry_region_options options = FERRY_REGION_OPTIONS_INIT;
    ferry_region_info found = FERRY_REGION_INFO_INIT;
    ferry_error error = new_error();
    static char first[4096], second[4096];
    ferry_region older = 0, newer = 0;
    ferry_peer peer = 0;
    CHECK_STATUS(ferry_peer_region(pair.a, pair.peer, "cache", &found, &error), FERRY_ERR_NOT_REGISTERED);
    CHECK_MESSAGE(error, "name: the peer has announced no region named \"cache\"");
    CHECK(found.region == 0);
    options.access = FERRY_ACCESS_REMOTE_READ;
    options.name = "cache";
    CHECK_OK(ferry_region_register(pair.b, second, sizeof second, &options, &older, NULL));
    CHECK_OK(ferry_region_register(pair.b, first, sizeof first, &options, &newer, NULL));
    /* A new engine has all regions when it is connected. */
    ferry_engine *late = open_engine();
    CHECK_OK(ferry_peer_connect(late, address_of(pair.b), PATIENCE_NS, &peer, NULL));
    CHECK_OK(ferry_peer_region(late, peer, "cache", &found, NULL));
    CHECK(found.region == newer && found.address == (uintptr_t)first && found.length == sizeof first);
    CHECK(found.access == FERRY_ACCESS_REMOTE_READ && found.struct_size == sizeof found);
    CHECK_INVALID(ferry_peer_region(late, peer, NULL, &found, &error));
    CHECK_MESSAGE(error, "name is NULL");
    CHECK_INVALID(ferry_peer_region(late, peer, "cache", NULL, &error));
    CHECK_MESSAGE(error, "out_region is NULL");
    end_engine(late);
    end_pair(&pair);
}

SUITE(peers, CASE(a_region_is_found_by_its_name), CASE(connecting_twice_is_the_same_peer), CASE(where_nobody_can_be_reached),
      CASE(a_peer_with_another_secret_is_refused), CASE(an_asynchronous_connect_reports_to_its_queue),
      CASE(room_for_asynchronous_connects_is_reserved), CASE(probe_and_info),
      CASE(paths_say_which_is_taken_and_why), CASE(a_closed_peer_is_lost),
      CASE(a_fenced_peer_cannot_write_here_until_connected_to),
      CASE(queues_hear_of_peers_that_come_and_go), CASE(descriptors_lead_to_their_engine),
      CASE(a_descriptor_with_a_flipped_bit_is_refused));
