//! The parts of the demonstration: a paged KV cache whose every word encodes its position (`kv`), and the
//! secret that the two workers share (`secret`). The programs are in `bin/`.

pub mod kv;
pub mod secret;
