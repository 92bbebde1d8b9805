//! Device memory that a program of CUDA maps by hand, for the tests of CUDA and of devices.

use ferry::internals::sys::cuda::{Context, MemAccess};
use std::ffi::c_void;
use std::sync::Arc;

pub struct Mapped {
    pub context: Arc<Context>,
    pub address: u64,
    pub bytes: usize,
}

#[repr(C)]
#[derive(Default)]
struct Properties {
    kind: i32,
    handles: i32,
    location: (i32, i32),
    security: usize,
    flags: [u8; 8],
}

impl Mapped {
    /// `create` is the driver's cuMemCreate; `handles` is 1 for memory that can be exported as a descriptor, else 0.
    pub fn new(context: Arc<Context>, create: *mut c_void, bytes: usize, handles: i32) -> Mapped {
        let (api, ordinal) = (context.api, context.ordinal);
        let properties = Properties { kind: 1, handles, location: (1, ordinal), ..Properties::default() };
        let access = MemAccess::read_write(ordinal);
        let (mut allocation, mut address) = (0, 0);
        {
            let _entered = context.enter().unwrap();
            // SAFETY: the driver's function of this name has this type; results and arguments live on this stack, each
            // call gets what the one before it made, and Drop ends it.
            unsafe {
                let create: unsafe extern "C" fn(*mut u64, usize, *const Properties, u64) -> i32 =
                    std::mem::transmute(create);
                assert_eq!(create(&mut allocation, bytes, &properties, 0), 0);
                assert!(api.mem_address_reserve(&mut address, bytes, 0, 0, 0).is_ok());
                assert!(api.mem_map(address, bytes, 0, allocation, 0).is_ok());
                assert!(api.mem_set_access(address, bytes, &access, 1).is_ok());
                assert!(api.mem_release(allocation).is_ok());
            }
        }
        Mapped { context, address, bytes }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _entered = self.context.enter().unwrap();
        // SAFETY: mapped by `new`; the program does not use the memory again.
        unsafe {
            assert!(self.context.api.mem_unmap(self.address, self.bytes).is_ok());
            assert!(self.context.api.mem_address_free(self.address, self.bytes).is_ok());
        }
    }
}
