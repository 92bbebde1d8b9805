//! A shared object of Ascend's and tables of its functions, which are looked up when it is opened. An object stays
//! open because it has threads of its own.

use crate::status::{Error, Result, Status};
use crate::sys::loader;
use crate::types::Transport;
use std::ffi::{c_int, c_void, CStr, CString};

macro_rules! calls {
    ($table:ident required: $($name:ident),+; $(mark: $mark:ident;)? $(optional: $($maybe:ident),+;)?) => {
        /// The library's functions. Fields have the functions' names, which errors repeat; some versions lack the
        /// optional ones. The mark is never called: its presence shows that the version is new enough.
        #[allow(non_snake_case)]
        pub struct $table {
            $(pub $name: <ffi::$name as IntoIterator>::Item,)+
            $($(pub $maybe: ffi::$maybe,)+)?
        }

        impl $table {
            /// Fails with UNAVAILABLE and the name of a required function that is missing.
            fn look_up(object: Object, library: &str) -> Result<$table> {
                $(
                    // SAFETY: the type is that of the function of this name.
                    #[allow(non_snake_case)]
                    let $name = unsafe { object.find(concat!(stringify!($name), "\0")) }
                        .ok_or_else(|| unavailable(format!("{library} has no {}", stringify!($name))))?;
                )+
                $(
                    // SAFETY: as above.
                    unsafe { object.find::<<ffi::$mark as IntoIterator>::Item>(concat!(stringify!($mark), "\0")) }
                        .ok_or_else(|| unavailable(format!("{library} has no {}", stringify!($mark))))?;
                )?
                $($(
                    // SAFETY: as above.
                    #[allow(non_snake_case)]
                    let $maybe = unsafe { object.find(concat!(stringify!($maybe), "\0")) };
                )+)?
                Ok($table { $($name,)+ $($($maybe,)+)? })
            }
        }
    };
}

pub(super) use calls;

/// Makes an UNAVAILABLE error about one of Ascend's libraries.
pub fn unavailable(text: String) -> Error {
    Error::new(Status::Unavailable, format!("Ascend: {text}")).over(Transport::Ascend)
}

/// A shared object that stays open.
#[derive(Clone, Copy)]
pub struct Object(*mut c_void);

impl Object {
    /// Opens a shared object. Fails with UNAVAILABLE and the reason.
    pub fn open(name: &str) -> Result<Object> {
        Object::open_with(name, 0)
    }

    /// True if the object is open already. Opens nothing.
    pub fn is_loaded(name: &str) -> bool {
        match Object::open_with(name, libc::RTLD_NOLOAD) {
            Ok(object) => {
                // SAFETY: gives back what the line above took; others still have it open.
                unsafe { libc::dlclose(object.0) };
                true
            }
            Err(_) => false,
        }
    }

    fn open_with(name: &str, flags: c_int) -> Result<Object> {
        let path = CString::new(name)
            .map_err(|_| Error::invalid(format!("{name:?} can't be the name of a library")))?;
        // SAFETY: a C string, borrowed for the call. Naming a library allows its constructors to run.
        let object = unsafe { loader::open(&path, flags | libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !object.is_null() {
            return Ok(Object(object));
        }
        // SAFETY: NULL, or a C string of this thread, valid until its next call of the loader.
        let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text).to_string_lossy()) };
        Err(unavailable(text.map_or_else(
            || format!("{name} can't be opened"),
            |text| format!("the library can't be opened: {text}"),
        )))
    }

    /// The function of this name, which ends with a zero.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to that function.
    pub unsafe fn find<F: Copy>(self, name: &str) -> Option<F> {
        let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
        // SAFETY: the object stays open.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: not null, and a pointer to a function of this type, as the caller says.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}
