// Converts ferry's statuses to NIXL's, and ferry's errors to text for the log.
#pragma once

#include <ferry.h>

#include <string>

#include "nixl_abi.h"

namespace ferry_nixl {

inline std::string name_of(ferry_status status) { return ferry_status_name(status); }

// "INVALID: the sentence".
inline std::string text_of(const ferry_error &error) { return name_of(error.status) + ": " + error.message; }

inline nixl_status_t nixl_status(ferry_status status)
{
    switch (status) {
    case FERRY_OK: return NIXL_SUCCESS;
    case FERRY_PENDING:
    case FERRY_DRAINING: return NIXL_IN_PROG;
    case FERRY_ERR_NOT_REGISTERED:
    case FERRY_ERR_STALE: return NIXL_ERR_NOT_FOUND;
    case FERRY_ERR_INVALID: return NIXL_ERR_INVALID_PARAM;
    case FERRY_ERR_OVERLAP:
    case FERRY_ERR_LIMIT:
    case FERRY_ERR_ACCESS:
    case FERRY_ERR_BUSY:
    case FERRY_ERR_REFUSED: return NIXL_ERR_NOT_ALLOWED;
    case FERRY_ERR_UNSUPPORTED:
    case FERRY_ERR_UNAVAILABLE: return NIXL_ERR_NOT_SUPPORTED;
    case FERRY_ERR_VERSION:
    case FERRY_ERR_NOT_FERRY: return NIXL_ERR_MISMATCH;
    case FERRY_ERR_CANCELLED: return NIXL_ERR_CANCELED;
    case FERRY_ERR_UNREACHABLE:
    case FERRY_ERR_PEER_LOST:
    case FERRY_ERR_CLOSED: return NIXL_ERR_REMOTE_DISCONNECT;
    default: return NIXL_ERR_BACKEND;
    }
}

} // namespace ferry_nixl
