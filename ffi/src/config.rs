//! `ferry_config`: the settings of an engine before it opens, and the table of all settings.

use crate::error::ferry_error;
use crate::guard::{call, quietly};
use crate::pointers::{exclusive, reference, text, BytesOut, Out};
use crate::status::ferry_status;
use crate::versioned::{OutArray, Versioned};
use engine::thread::unforked;
use engine::{Config, Error};
use std::ffi::{c_char, CString};
use std::mem::size_of;
use std::sync::OnceLock;

/// The settings for a new engine. Not thread-safe: one thread at a time.
pub struct ferry_config {
    pub(crate) config: Config,
}

/// One setting that ferry knows. The texts are static.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ferry_setting_info {
    /// Out: how many bytes were written.
    pub struct_size: u32,
    /// Always 0.
    pub reserved: u32,
    /// The key; it ends in the unit if the setting has one.
    pub key: *const c_char,
    /// The environment variable that overrides the default.
    pub variable: *const c_char,
    /// The default, in the form that ferry_config_set takes.
    pub default_value: *const c_char,
    /// The valid values, in words.
    pub valid: *const c_char,
    /// The effect of the setting, in one sentence.
    pub description: *const c_char,
}

// SAFETY: repr(C), begins with struct_size, integers and raw pointers, no padding (asserted from C).
unsafe impl Versioned for ferry_setting_info {
    const SIZE_MIN: usize = 48;
}

/// Creates a configuration from the defaults and the FERRY_* environment variables, which override the
/// defaults. Free it with ferry_config_free.
///
/// FERRY_ERR_INVALID: an environment variable has a bad value; the message names the variable.
#[no_mangle]
pub unsafe extern "C" fn ferry_config_new(
    out_config: *mut *mut ferry_config,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let out = Out::new(out_config, "out_config")?;
            out.set(Box::into_raw(Box::new(ferry_config { config: Config::new()? })));
            Ok(())
        })
    }
}

/// Changes one setting and overrides the environment. Copies both texts.
///
/// FERRY_ERR_INVALID: the key is unknown (the message suggests the nearest known key), or the value is bad
/// (the message says what is valid). The configuration is unchanged.
#[no_mangle]
pub unsafe extern "C" fn ferry_config_set(
    config: *mut ferry_config,
    key: *const c_char,
    value: *const c_char,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let config = exclusive(config, "config")?;
            config.config.set(text(key, "key")?, text(value, "value")?)
        })
    }
}

/// Reads one setting as text, in the form that ferry_config_set takes; a secret reads as "(hidden)".
///
/// All functions return texts and bytes in this way: *out_length gets the length, without the terminating
/// zero of a text. With a capacity of 0 the call writes only the length, and buffer may be NULL. Otherwise
/// the call writes everything into the buffer, or fails with FERRY_ERR_LIMIT and writes nothing.
#[no_mangle]
pub unsafe extern "C" fn ferry_config_get(
    config: *const ferry_config,
    key: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
    out_length: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let config = reference(config, "config")?;
            let key = text(key, "key")?;
            let out = BytesOut::new(buffer.cast(), capacity, out_length)?;
            let value = config.config.get(key);
            out.put_text(&value.ok_or_else(|| Error::invalid(format!("unknown setting {key:?}")))?)
        })
    }
}

/// Lists every setting that this library knows.
///
/// All functions return lists in this way: out_settings has room for `capacity` elements of `element_size`
/// bytes, normally sizeof. The call writes as many elements as fit. *out_count gets the number of elements
/// that exist; if it is above `capacity`, some are missing. With a capacity of 0, out_settings may be NULL.
#[no_mangle]
pub unsafe extern "C" fn ferry_config_settings(
    out_settings: *mut ferry_setting_info,
    element_size: usize,
    capacity: usize,
    out_count: *mut usize,
    error: *mut ferry_error,
) -> ferry_status {
    // SAFETY: the pointers are the caller's for the length of the call.
    unsafe {
        call(error, || {
            let array = OutArray::new(out_settings, element_size, capacity, "out_settings")?;
            let count = Out::new(out_count, "out_count")?;
            array.fill(table().iter().map(SettingText::info));
            count.set(table().len());
            Ok(())
        })
    }
}

/// Frees a configuration. NULL does nothing. Engines opened with the configuration keep their own copy.
#[no_mangle]
pub unsafe extern "C" fn ferry_config_free(config: *mut ferry_config) {
    quietly(|| {
        if !config.is_null() {
            // SAFETY: from `ferry_config_new`, and the caller gives it up.
            drop(unsafe { Box::from_raw(config) });
        }
    });
}

/// A row of the engine's table as terminated texts.
struct SettingText {
    key: CString,
    variable: CString,
    default_value: CString,
    valid: CString,
    description: CString,
}

impl SettingText {
    fn info(&self) -> ferry_setting_info {
        ferry_setting_info {
            struct_size: size_of::<ferry_setting_info>() as u32,
            reserved: 0,
            key: self.key.as_ptr(),
            variable: self.variable.as_ptr(),
            default_value: self.default_value.as_ptr(),
            valid: self.valid.as_ptr(),
            description: self.description.as_ptr(),
        }
    }
}

/// Builds the table once and keeps it, because the texts that callers get are static.
fn table() -> &'static [SettingText] {
    static TABLE: OnceLock<Vec<SettingText>> = OnceLock::new();
    // The engine's texts contain no zero byte; a text with one would become empty.
    let c_text = |text: String| CString::new(text).unwrap_or_default();
    let make = || {
        let row = |setting: &engine::config::Setting| SettingText {
            key: c_text(setting.name.to_owned()),
            variable: c_text(setting.variable()),
            default_value: c_text(setting.default_text()),
            valid: c_text(setting.valid.to_string()),
            description: c_text(setting.doc.to_owned()),
        };
        Config::settings().iter().map(row).collect()
    };
    TABLE.get().unwrap_or_else(|| unforked(|| TABLE.get_or_init(make)))
}
