#include "endpoint.h"

#include <cstring>

#include "log.h"
#include "status.h"

namespace ferry_nixl {
namespace {

const char MAGIC[] = "FERRYNX1";
constexpr std::size_t MAGIC_BYTES = sizeof MAGIC - 1, HEAD_BYTES = MAGIC_BYTES + 16;
// The largest number of notifications without a transfer that are on their way at one time.
constexpr std::size_t QUEUE_CAPACITY = 65'536;
constexpr std::uint64_t CLOSE_NS = 5'000'000'000;

} // namespace

std::string Address::encode() const
{
    std::string bytes(HEAD_BYTES, '\0');
    std::memcpy(&bytes[0], MAGIC, MAGIC_BYTES);
    std::memcpy(&bytes[MAGIC_BYTES], &mailbox, 8);
    std::memcpy(&bytes[MAGIC_BYTES + 8], &mailbox_region, 8);
    return bytes + descriptor;
}

bool Address::decode(const std::string &bytes, Address &out)
{
    if (bytes.size() <= HEAD_BYTES || bytes.compare(0, MAGIC_BYTES, MAGIC) != 0) return false;
    std::memcpy(&out.mailbox, &bytes[MAGIC_BYTES], 8);
    std::memcpy(&out.mailbox_region, &bytes[MAGIC_BYTES + 8], 8);
    out.descriptor = bytes.substr(HEAD_BYTES);
    return true;
}

std::uint64_t Underway::add(std::shared_ptr<Notification> notification)
{
    const std::lock_guard<std::mutex> lock(mutex);
    by_number.emplace(next, std::move(notification));
    return next++;
}

std::shared_ptr<Notification> Underway::take(std::uint64_t number)
{
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = by_number.find(number);
    std::shared_ptr<Notification> taken = std::move(found->second);
    by_number.erase(found);
    return taken;
}

std::unique_ptr<Endpoint> Endpoint::open(const ferry_config *config, std::string &why)
{
    std::unique_ptr<Endpoint> made(new Endpoint);
    ferry_error error = FERRY_ERROR_INIT;
    if (made->prepare(config, error) == FERRY_OK) return made;
    why = text_of(error);
    return nullptr;
}

ferry_status Endpoint::prepare(const ferry_config *config, ferry_error &error)
{
    ferry_status status = ferry_engine_open(config, &engine, &error);
    if (status != FERRY_OK) return status;
    const std::uint32_t what = FERRY_QUEUE_TRANSFERS | FERRY_QUEUE_NOTIFICATIONS | FERRY_QUEUE_PEERS;
    status = ferry_queue_create(engine, what, QUEUE_CAPACITY, &queue, &error);
    if (status == FERRY_OK) status = ferry_queue_fd(engine, queue, &readable, &error);
    if (status == FERRY_OK)
        status = ferry_region_register(engine, &mailbox, sizeof mailbox, nullptr, &address.mailbox_region, &error);
    address.mailbox = reinterpret_cast<std::uint64_t>(&mailbox);
    std::size_t length = 0;
    if (status == FERRY_OK) status = ferry_descriptor_export(engine, nullptr, 0, &length, &error);
    address.descriptor.resize(length);
    if (status == FERRY_OK)
        status = ferry_descriptor_export(engine, address.descriptor.data(), length, &length, &error);
    return status;
}

void Endpoint::close()
{
    for (;;) {
        ferry_error error = FERRY_ERROR_INIT;
        if (ferry_engine_close(engine, CLOSE_NS, &error) != FERRY_ERR_BUSY) return;
        log(Level::Warning, "closing the agent's engine still waits: " + text_of(error));
    }
}

Endpoint::~Endpoint()
{
    if (engine == nullptr) return;
    close();
    ferry_engine_free(engine);
}

} // namespace ferry_nixl
