//! The bytes of messages: little-endian numbers, lists with their counts, texts. A reader believes nothing.

use ferry::status::{Error, Result};

const TEXT_BYTES_MAX: usize = 1_024;

/// INVALID: a peer's message is none.
pub fn malformed(what: &str) -> Error {
    Error::invalid(format!("a message of the peer is malformed: {what}"))
}

#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn byte(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    pub fn u16(&mut self, value: u16) -> &mut Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// At most `TEXT_BYTES_MAX` bytes of a text.
    pub fn text(&mut self, text: &str) -> &mut Writer {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u32(end as u32).0.extend(&text.as_bytes()[..end]);
        self
    }
}

#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk().ok_or_else(|| malformed("it ends early"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn byte(&mut self) -> Result<u8> {
        self.take().map(|[byte]| byte)
    }

    pub fn flag(&mut self) -> Result<bool> {
        match self.byte()? {
            value @ 0..=1 => Ok(value == 1),
            value => Err(malformed(&format!("a flag is {value}"))),
        }
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// A number of elements, each of at least `bytes` bytes: no more than the input has.
    pub fn count(&mut self, max: usize, bytes: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > max || count > self.0.len() / bytes {
            return Err(malformed(&format!("a list has {count} elements")));
        }
        Ok(count)
    }

    pub fn text(&mut self) -> Result<String> {
        let bytes = self.count(TEXT_BYTES_MAX, 1)?;
        let (text, rest) = self.0.split_at(bytes);
        self.0 = rest;
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// The message ends here.
    pub fn end(&self) -> Result<()> {
        match self.0 {
            [] => Ok(()),
            rest => Err(malformed(&format!("{} bytes follow its end", rest.len()))),
        }
    }
}
