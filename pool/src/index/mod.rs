//! The index: which nodes hold a key. Soft state, pure: the time is an argument, and the node machine carries the
//! messages. An owner is asked before bytes move, so a wrong entry costs a message and never wrong bytes.
//!
//! | | |
//! |---|---|
//! | [`Members`], [`IndexMembers`] | who keeps the index, and which two keep a key; [`place`] |
//! | [`Table`] | the entries of one index member: fingerprints of `key::Digest`, and owners |
//! | `buckets` | the memory of the entries |
//! | `standing` | what the table knows of one owner: its inventory, what it missed |
//! | `tombstones` | keys that were removed while an owner was absent |

mod buckets;
#[cfg(test)]
mod model_tests;
mod rendezvous;
mod standing;
mod table;
mod tombstones;

pub use rendezvous::{place, ramped, Candidate, Homes, IndexMembers, Member, Members, NodeId};
pub use standing::{Owner, Part};
pub use table::{Answer, Owners, Table};

use ferry::status::Result;
use ferry::{Error, Status};

fn check_count(what: &str, count: usize, max: usize) -> Result<()> {
    if count > max {
        return Err(Error::new(Status::Limit, format!("{what}: {count}, and at most {max} are taken")));
    }
    Ok(())
}
