//! Reads and writes little-endian numbers, and copies what a peer sent. Neighbour: `wire`, which knows the fields.

use ferry::status::{Error, Result};
use ferry::Status;

pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }
}

/// The rest of a field. An end in the middle of a value is an error that names the field.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    field: &'static str,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(field: &'static str, bytes: &'a [u8]) -> Reader<'a> {
        Reader { field, bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// Fails if anything is left.
    pub fn end(&self) -> Result<()> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(Error::invalid(format!("the layout's {} has {left} bytes too many", self.field))),
        }
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or_else(|| self.short())?;
        self.bytes = rest;
        Ok(*taken)
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn short(&self) -> Error {
        Error::invalid(format!("the layout's {} ends within a value", self.field))
    }
}

/// Joins the parts to a text. `what` names it if it is not UTF-8.
pub fn text(parts: &[&[u8]], what: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let length = parts.iter().map(|part| part.len()).sum();
    bytes.try_reserve_exact(length).map_err(|_| no_memory())?;
    for part in parts {
        bytes.extend_from_slice(part);
    }
    String::from_utf8(bytes).map_err(|_| Error::invalid(format!("the layout's {what} is not UTF-8")))
}

/// Appends an item; NO_MEMORY if the list cannot grow.
pub fn grow<T>(list: &mut Vec<T>, item: T) -> Result<()> {
    list.try_reserve(1).map_err(|_| no_memory())?;
    list.push(item);
    Ok(())
}

pub fn limit(text: String) -> Error {
    Error::new(Status::Limit, text)
}

fn no_memory() -> Error {
    Error::new(Status::NoMemory, "no memory for a peer's layout")
}
