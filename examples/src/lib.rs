//! What the demonstration is made of: a paged KV cache whose every word knows its place (`kv`), and the
//! secret that the two workers share (`secret`). The programs are in `bin/`.

pub mod kv;
pub mod secret;
