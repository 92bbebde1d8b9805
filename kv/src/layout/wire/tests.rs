//! The bytes of a layout: what they are, the first wrong value of each, and what random ones may do.

use super::*;
use crate::layout::tests::{layer, layout, layouts, place};
use crate::layout::Arrangement;
use proptest::prelude::*;

/// An exported layout that can be changed field by field.
struct Fields(Vec<(u16, u16, Vec<u8>)>);

impl Fields {
    fn of(layout: &Layout) -> Fields {
        let bytes = layout.export().unwrap();
        let mut input = Reader::new("test", &bytes[HEADER_BYTES..]);
        let mut fields = Vec::new();
        while !input.is_empty() {
            let (tag, flags, length) = (input.u16().unwrap(), input.u16().unwrap(), input.u32().unwrap());
            fields.push((tag, flags, input.take(length as usize).unwrap().to_vec()));
        }
        Fields(fields)
    }

    fn content(&mut self, tag: u16) -> &mut Vec<u8> {
        &mut self.0.iter_mut().find(|field| field.0 == tag).unwrap().2
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = Writer(b"FKVL\x01\0\0\0\0\0\0\0".to_vec());
        for (tag, flags, content) in &self.0 {
            out.u16(*tag);
            out.u16(*flags);
            out.u32(content.len() as u32);
            out.0.extend(content);
        }
        let length = out.0.len() as u32;
        out.0[8..12].copy_from_slice(&length.to_le_bytes());
        out.0
    }

    fn import(&self) -> Result<Layout> {
        Layout::import(&self.bytes())
    }
}

#[track_caller]
fn refuses_bytes(status: Status, words: &str, bytes: &[u8]) {
    match Layout::import(bytes) {
        Ok(layout) => panic!("taken, but expected {words:?}: {layout:?}"),
        Err(error) => {
            assert!(error.message.contains(words), "{error}, but expected {words:?}");
            assert_eq!(error.status, status, "{error}");
        }
    }
}

/// Changes the exported layout by hand.
#[track_caller]
fn refuses(status: Status, words: &str, change: impl FnOnce(&mut Fields)) {
    let mut fields = Fields::of(&layout());
    change(&mut fields);
    refuses_bytes(status, words, &fields.bytes());
}

#[track_caller]
fn invalid(words: &str, change: impl FnOnce(&mut Fields)) {
    refuses(Status::Invalid, words, change);
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The format cannot change without notice.
#[test]
fn the_bytes_of_a_layout() {
    let mut layout = layout();
    layout.groups.push(Group { kind: GroupKind::Window { tokens: 7 }, block_tokens: 3 });
    let bytes = layout.export().unwrap();
    let mut expected = Writer(b"FKVL\x01\0\0\0".to_vec());
    expected.u32(bytes.len() as u32);
    let field = |out: &mut Writer, tag: u16, length: u32| {
        out.u16(tag);
        out.u16(1);
        out.u32(length);
    };
    for (tag, text) in [(1, "llama"), (2, "main"), (3, "bf16"), (4, "default")] {
        field(&mut expected, tag, text.len() as u32);
        expected.0.extend(text.bytes());
    }
    let numbers = |out: &mut Writer, numbers: &[u32]| numbers.iter().for_each(|number| out.u32(*number));
    field(&mut expected, 5, 32);
    numbers(&mut expected, &[1, 2, 0, 2, 0, 1, 1, 1]);
    field(&mut expected, 6, 24);
    numbers(&mut expected, &[0, 16, 0, 1, 3, 7]);
    field(&mut expected, 7, 73 + 25);
    numbers(&mut expected, &[0, 0, 4, 2, 64, 2]);
    expected.0.push(1);
    [10, 8192, 4096, 128, 256, 2].iter().for_each(|number| expected.u64(*number));
    numbers(&mut expected, &[0, 1, 4, 2, 64, 2]);
    expected.0.push(0);
    field(&mut expected, 8, (4 + 14 + 8) + (4 + 1 + 8) + (4 + 1));
    expected.0.extend(b"\0\0\0\x0emodel.layers.0\0\0\0\0\0\x01\0\0");
    expected.0.extend(b"\0\0\x0d\x011\0\0\0\0\0\x01\0\0");
    expected.0.extend(b"\x01\0\x0d\x012");
    assert_eq!(bytes, expected.0);
    assert_eq!(Layout::import(&bytes).unwrap(), layout);
}

#[test]
fn a_wrong_header() {
    let bytes = layout().export().unwrap();
    let changed = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        bytes
    };
    refuses_bytes(Status::Invalid, "header ends within a value", &bytes[..0]);
    refuses_bytes(Status::Invalid, "header ends within a value", &bytes[..11]);
    refuses_bytes(Status::Invalid, "do not start with FKVL", &changed(3, b'M'));
    refuses_bytes(Status::Version, "version 2; this ferry reads 1", &changed(4, 2));
    refuses_bytes(Status::Version, "version 0", &changed(4, 0));
    refuses_bytes(Status::Version, "version 257", &changed(5, 1));
    refuses_bytes(Status::Invalid, "reserved", &changed(6, 1));
    refuses_bytes(Status::Invalid, "reserved", &changed(7, 1));
    refuses_bytes(Status::Invalid, "bytes, but has", &changed(8, bytes[8].wrapping_add(1)));
    refuses_bytes(Status::Invalid, "bytes, but has", &changed(11, 1));
    refuses_bytes(Status::Invalid, "bytes, but has", &[&bytes[..], &[0]].concat());
    refuses_bytes(Status::Invalid, "bytes, but has", &bytes[..bytes.len() - 1]);
}

#[test]
fn wrong_fields() {
    for (tag, name) in (1..).zip(FIELDS) {
        invalid(&format!("field {name} is missing"), |it| it.0.retain(|field| field.0 != tag));
        invalid(&format!("field {name} is there twice"), |it| it.0.push(it.0[usize::from(tag) - 1].clone()));
    }
    for tag in [0, 9, u16::MAX] {
        refuses(Status::Version, "needs a later ferry", |it| it.0.push((tag, REQUIRED, vec![1])));
        refuses(Status::Version, "needs a later ferry", |it| it.0.push((tag, 2, vec![1])));
        let mut fields = Fields::of(&layout());
        fields.0.insert(0, (tag, 0, vec![1, 2, 3]));
        fields.0.push((tag, 0, Vec::new()));
        assert_eq!(fields.import().unwrap(), layout());
    }
    refuses(Status::Version, "field 1 has the flags 3", |it| it.0[0].1 = 3);
    let mut fields = Fields::of(&layout());
    fields.0.reverse();
    fields.0[2].1 = 0;
    assert_eq!(fields.import().unwrap(), layout());
    // A field that goes on behind the end.
    let mut bytes = layout().export().unwrap();
    put(&mut bytes, HEADER_BYTES + 4, u32::MAX);
    refuses_bytes(Status::Invalid, "ends within a value", &bytes);
}

#[test]
fn wrong_contents() {
    for (tag, name) in [(1, "model"), (2, "revision"), (3, "cache"), (4, "rope")] {
        invalid(&format!("{name} is not UTF-8"), |it| it.content(tag).push(0xff));
        refuses(Status::Limit, &format!("key.{name}: bytes are 256"), |it| {
            *it.content(tag) = vec![b'x'; 256]
        });
    }
    invalid("shard has 1 bytes too many", |it| it.content(5).push(0));
    invalid("shard ends within a value", |it| it.content(5).truncate(31));
    invalid("groups ends within a value", |it| it.content(6).truncate(11));
    invalid("groups has 0", |it| it.content(6).clear());
    invalid("groups[0] has kind 4 with a window of 0", |it| put(it.content(6), 0, 4));
    for kind in [0, 2, 3] {
        invalid(&format!("groups[0] has kind {kind} with a window of 5"), |it| {
            put(it.content(6), 0, kind);
            put(it.content(6), 8, 5);
        });
    }
    refuses(Status::Limit, "groups has 65; at most 64", |it| *it.content(6) = it.content(6).repeat(65));
    invalid("shapes ends within a value", |it| it.content(7).truncate(72));
    invalid("shapes[0].has_memory is 2", |it| it.content(7)[24] = 2);
    let without = [0; 25];
    refuses(Status::Limit, "shapes has more than 1024", |it| *it.content(7) = without.repeat(1025));
    invalid("layers[0] has shape 0 of 0 shapes", |it| it.content(7).clear());
    invalid("layers[0] has shape 2 of 2 shapes", |it| it.content(8)[0] = 2);
    invalid("layers[0] shares 1 bytes of a shorter name", |it| it.content(8)[2] = 1);
    invalid("layers[1] shares 15 bytes of a shorter name", |it| it.content(8)[26 + 2] = 15);
    invalid("layers[0] is not UTF-8", |it| it.content(8)[4] = 0xff);
    invalid("layers ends within a value", |it| it.content(8).truncate(43));
    invalid("layers has 0", |it| it.content(8).clear());
    let unnamed = [1u8, 0, 0, 0];
    refuses(Status::Limit, "layers has more than 1024", |it| *it.content(8) = unnamed.repeat(1025));
    // The check of what has been read.
    invalid("layers[0] \"model.layers.0\": heads is 0", |it| put(it.content(7), 8, 0));
}

/// A name may share a part of a letter with the name before.
#[test]
fn names_share_bytes() {
    let mut layout = layout();
    (layout.layers[0].name, layout.layers[1].name) = ("é".into(), "è".into());
    layout.layers[2].name = "éé".into();
    assert_eq!(Layout::import(&layout.export().unwrap()).unwrap(), layout);
    layout.layers[0].name = "x".repeat(255);
    layout.layers[1].name = "x".repeat(254);
    assert_eq!(Layout::import(&layout.export().unwrap()).unwrap(), layout);
}

fn large(layers: u32, name: impl Fn(u32) -> String) -> Layout {
    let mut layout = layout();
    layout.layers = (0..layers).map(|number| layer(&name(number), 8)).collect();
    place(&mut layout, Arrangement::PairBlockTokenHead, 100_000);
    for (index, layer) in (0..).zip(&mut layout.layers) {
        layer.memory.as_mut().unwrap().address = 0x7f00_0000_0000_1000 - index * 0x12_3456_7000;
    }
    layout
}

#[test]
fn a_layout_of_1024_layers_fits() {
    let layout = large(1024, |number| format!("model.layers.{number}.self_attn.attn"));
    let bytes = layout.export().unwrap();
    assert!(bytes.len() < 32 << 10, "{} bytes", bytes.len());
    assert_eq!(Layout::import(&bytes).unwrap(), layout);
}

#[test]
fn no_more_than_64_kib() {
    // No name shares bytes with the one before.
    let bytes = |layers: u32, last: usize| {
        large(layers, |number| {
            let first = char::from(b'0' + (number % 64) as u8).to_string();
            let length = if number == 0 { last } else { 252 };
            format!("{first}{number:0>3}{}", "x".repeat(length - 4))
        })
    };
    let most = |last| bytes(248, last).export();
    let spare = EXPORT_BYTES_MAX - most(4).unwrap().len();
    let exported = most(4 + spare).unwrap();
    assert_eq!(exported.len(), 64 << 10);
    assert_eq!(Layout::import(&exported).unwrap(), bytes(248, 4 + spare));
    let error = most(4 + spare + 1).unwrap_err();
    assert_eq!(
        (error.status, error.message),
        (Status::Limit, "the layout takes 65537 bytes; at most 65536".into())
    );
    let unknown = |length: usize| {
        let mut fields = Fields::of(&layout());
        let room = length - fields.bytes().len() - 8;
        fields.0.push((99, 0, vec![0; room]));
        fields.bytes()
    };
    assert_eq!(Layout::import(&unknown(65536)).unwrap(), layout());
    refuses_bytes(Status::Limit, "the layout has 65537 bytes; at most 65536", &unknown(65537));
}

#[test]
fn export_checks() {
    let mut layout = layout();
    layout.layers[0].heads = 0;
    assert_eq!(layout.export().unwrap_err().status, Status::Invalid);
}

/// Whatever is read can be written again, in no more bytes.
fn holds_for(bytes: &[u8]) -> std::result::Result<bool, TestCaseError> {
    match Layout::import(bytes) {
        Ok(layout) => {
            let again = layout.export().unwrap();
            prop_assert!(again.len() <= bytes.len());
            prop_assert_eq!(Layout::import(&again).unwrap(), layout);
            Ok(true)
        }
        Err(error) => {
            let known = [Status::Invalid, Status::Version, Status::Limit, Status::Unsupported];
            prop_assert!(known.contains(&error.status), "{}", error);
            Ok(false)
        }
    }
}

proptest! {
    #[test]
    fn what_is_exported_is_imported(layout in layouts()) {
        let bytes = layout.export().unwrap();
        prop_assert_eq!(Layout::import(&bytes).unwrap(), layout);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), starts in any::<bool>()) {
        let mut bytes = bytes;
        if starts {
            let mut header = Writer(b"FKVL\x01\0\0\0".to_vec());
            header.u32(bytes.len() as u32 + 12);
            bytes.splice(0..0, header.0);
        }
        holds_for(&bytes)?;
    }

    /// Changes within the fields, whose lengths remain right.
    #[test]
    fn changed_layouts_are_read_or_refused(
        layout in layouts(),
        changes in proptest::collection::vec((0usize..8, any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..4),
    ) {
        let mut fields = Fields::of(&layout);
        for (field, at, value, how) in changes {
            let content = &mut fields.0[field].2;
            if content.is_empty() {
                continue;
            }
            let at = at.index(content.len());
            match how {
                0 => content.truncate(at),
                1 => content.insert(at, value),
                2 => content[at] ^= 1 << (value % 8),
                _ => content[at] = value,
            }
        }
        holds_for(&fields.bytes())?;
    }

    #[test]
    fn cut_and_changed_bytes_are_read_or_refused(
        layout in layouts(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut bytes = layout.export().unwrap();
        let at = at.index(bytes.len());
        prop_assert!(!holds_for(&bytes[..at])?);
        bytes[at] = value;
        holds_for(&bytes)?;
    }
}
