//! The page that explains a plan to people.

use super::routes::Exchanges;
use crate::layout::Layout;

pub(super) fn page(_source: &Layout, _target: &Layout, _exchanges: &Exchanges) -> String {
    String::new()
}
