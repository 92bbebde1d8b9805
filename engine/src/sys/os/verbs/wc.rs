//! The status numbers of verbs.h, and their names.

pub const SUCCESS: u32 = 0;
pub const LOC_LEN_ERR: u32 = 1;
pub const LOC_QP_OP_ERR: u32 = 2;
pub const LOC_PROT_ERR: u32 = 4;
pub const WR_FLUSH_ERR: u32 = 5;
pub const MW_BIND_ERR: u32 = 6;
pub const BAD_RESP_ERR: u32 = 7;
pub const LOC_ACCESS_ERR: u32 = 8;
pub const REM_INV_REQ_ERR: u32 = 9;
pub const REM_ACCESS_ERR: u32 = 10;
pub const REM_OP_ERR: u32 = 11;
pub const RETRY_EXC_ERR: u32 = 12;
pub const RNR_RETRY_EXC_ERR: u32 = 13;
pub const REM_ABORT_ERR: u32 = 16;
pub const FATAL_ERR: u32 = 19;
pub const RESP_TIMEOUT_ERR: u32 = 20;
pub const GENERAL_ERR: u32 = 21;

/// Returns the name that libibverbs's tools print.
pub fn name(status: u32) -> &'static str {
    match status {
        SUCCESS => "success",
        LOC_LEN_ERR => "local length error",
        LOC_QP_OP_ERR => "local QP operation error",
        LOC_PROT_ERR => "local protection error",
        WR_FLUSH_ERR => "work request flushed",
        MW_BIND_ERR => "memory window bind error",
        BAD_RESP_ERR => "bad response error",
        LOC_ACCESS_ERR => "local access error",
        REM_INV_REQ_ERR => "remote invalid request error",
        REM_ACCESS_ERR => "remote access error",
        REM_OP_ERR => "remote operation error",
        RETRY_EXC_ERR => "transport retry counter exceeded",
        RNR_RETRY_EXC_ERR => "RNR retry counter exceeded",
        REM_ABORT_ERR => "remote aborted",
        FATAL_ERR => "fatal error",
        RESP_TIMEOUT_ERR => "response timeout error",
        GENERAL_ERR => "general error",
        _ => "unknown error",
    }
}
