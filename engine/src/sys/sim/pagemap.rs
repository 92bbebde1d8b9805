//! The simulated side of `sys::pagemap`.

pub struct Pagemap;

impl Pagemap {
    pub fn of(_pid: Option<i32>) -> Pagemap {
        Pagemap
    }

    pub fn has(&self, address: u64, length: u64) -> Option<bool> {
        Some(ferry_sim_kernel::pages::are_there(address, length))
    }

    pub fn count(&self, first: u64, most: u64) -> Option<u64> {
        let page_bytes = crate::sys::memory::page_bytes() as u64;
        let is_there = |page: &u64| ferry_sim_kernel::pages::are_there(page * page_bytes, page_bytes);
        Some((first..first + most).take_while(is_there).count() as u64)
    }
}
