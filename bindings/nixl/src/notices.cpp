// A piece: kind (1 byte), length of the sender's name (2), number of the message (8), bytes of the whole message (8),
// offset of this piece in it (8), the name, the piece's bytes. Numbers are little-endian, as on every machine that NIXL
// runs on.
#include "notices.h"

#include <cstring>
#include <iterator>

#include "log.h"

namespace ferry_nixl {
namespace {

enum Kind : unsigned char { PIECE = 1, GIVEN_UP = 2 };

struct Head {
    Kind kind;
    std::uint16_t name_length;
    std::uint64_t id, total, offset;
};
constexpr std::size_t HEAD_BYTES = 1 + 2 + 3 * 8;
static_assert(HEAD_BYTES + NAME_BYTES_MAX < FERRY_NOTIFY_BYTES_MAX / 2, "a piece has room for bytes");

std::string encode(const Head &head, const std::string &sender)
{
    std::string bytes(HEAD_BYTES, '\0');
    bytes[0] = static_cast<char>(head.kind);
    std::memcpy(&bytes[1], &head.name_length, 2);
    std::memcpy(&bytes[3], &head.id, 8);
    std::memcpy(&bytes[11], &head.total, 8);
    std::memcpy(&bytes[19], &head.offset, 8);
    return bytes + sender;
}

// Returns false if the bytes are no piece.
bool decode(const char *bytes, std::size_t length, Head &head)
{
    if (length < HEAD_BYTES || (bytes[0] != PIECE && bytes[0] != GIVEN_UP)) return false;
    head.kind = static_cast<Kind>(bytes[0]);
    std::memcpy(&head.name_length, bytes + 1, 2);
    std::memcpy(&head.id, bytes + 3, 8);
    std::memcpy(&head.total, bytes + 11, 8);
    std::memcpy(&head.offset, bytes + 19, 8);
    return head.name_length <= NAME_BYTES_MAX && HEAD_BYTES + head.name_length <= length &&
           head.total <= NOTICE_BYTES_MAX;
}

Head head_of(Kind kind, const std::string &sender, std::uint64_t id)
{
    return {kind, static_cast<std::uint16_t>(sender.size()), id, 0, 0};
}

} // namespace

std::vector<std::string> cut(const std::string &sender, const std::string &message, std::uint64_t id)
{
    const std::size_t room = FERRY_NOTIFY_BYTES_MAX - HEAD_BYTES - sender.size();
    std::vector<std::string> pieces;
    std::size_t offset = 0;
    do {
        Head head = head_of(PIECE, sender, id);
        head.total = message.size();
        head.offset = offset;
        pieces.push_back(encode(head, sender) + message.substr(offset, room));
        offset += room;
    } while (offset < message.size());
    return pieces;
}

std::string give_up(const std::string &sender, std::uint64_t id)
{
    return encode(head_of(GIVEN_UP, sender, id), sender);
}

void Spool::take(ferry_peer peer, const char *bytes, std::size_t length)
{
    Head head;
    if (!decode(bytes, length, head)) {
        log(Level::Warning, "a notification that is not from ferry's plugin has come, and is dropped");
        return;
    }
    const char *body = bytes + HEAD_BYTES + head.name_length;
    const std::size_t body_bytes = length - HEAD_BYTES - head.name_length;
    const std::string sender(bytes + HEAD_BYTES, head.name_length);
    if (head.kind == PIECE && head.offset == 0 && body_bytes == head.total) return put(sender, {body, body_bytes});

    Begun &begun = unfinished[peer];
    if (head.kind == GIVEN_UP) return drop(begun, head.id);
    if (head.offset == 0 && begun.messages.size() < UNFINISHED_MAX)
        begun.messages.emplace(head.id, Unfinished{sender, "", head.total});
    const auto at = begun.messages.find(head.id);
    const bool fits = at != begun.messages.end() && head.offset == at->second.bytes.size() &&
                      head.total == at->second.total && body_bytes > 0 && body_bytes <= head.total - head.offset &&
                      body_bytes <= UNFINISHED_BYTES_MAX - begun.bytes;
    if (!fits) {
        log(Level::Warning, "a piece of a notification of agent " + sender +
                                " came out of order or beyond the bounds; the notification is dropped");
        return drop(begun, head.id);
    }
    at->second.bytes.append(body, body_bytes);
    begun.bytes += body_bytes;
    if (at->second.bytes.size() < head.total) return;
    put(sender, at->second.bytes);
    drop(begun, head.id);
}

void Spool::drop(Begun &begun, std::uint64_t id)
{
    const auto at = begun.messages.find(id);
    if (at == begun.messages.end()) return;
    begun.bytes -= at->second.bytes.size();
    begun.messages.erase(at);
}

void Spool::put(const std::string &sender, const std::string &message)
{
    bytes_held += message.size();
    complete.emplace_back(sender, message);
}

void Spool::forget(ferry_peer peer) { unfinished.erase(peer); }

void Spool::give(notif_list_t &out)
{
    if (out.empty()) {
        out.swap(complete);
    } else {
        out.insert(out.end(), std::make_move_iterator(complete.begin()), std::make_move_iterator(complete.end()));
    }
    complete.clear();
    bytes_held = 0;
}

} // namespace ferry_nixl
