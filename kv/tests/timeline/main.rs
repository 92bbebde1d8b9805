//! The picture of a timeline: well-formed, a bar for each layer, at the places of its times.

mod xml;

use std::ops::Range;

use ferry::types::PeerId;
use ferry::Status;
use ferry_kv::handoff::{End, Entry, Moved, What, MARK_COMPUTE};
use ferry_kv::timeline::plot;
use xml::Element;

const LAYERS: u32 = 4;

fn entry(ns: Range<u64>, what: What) -> Entry {
    Entry { number: 0, begin_ns: ns.start, end_ns: ns.end, id: 0xabcd_ef01, what }
}

fn moved(transfer: u64, layers: Range<u32>) -> Moved {
    Moved { transfer, peer: PeerId::from_raw(9), layers, tokens: 0..16, bytes: 640 }
}

/// Compute of each layer, and its transfer while the next one is computed.
fn layerwise() -> Vec<Entry> {
    let mut all = vec![entry(1_000..1_000, What::Offered)];
    for layer in 0..LAYERS {
        let begin = 1_000 + u64::from(layer) * 100;
        all.push(entry(begin..begin + 100, What::Mark { kind: MARK_COMPUTE, layer }));
        let moved = moved(layer.into(), layer..layer + 1);
        all.push(entry(begin + 100..begin + 100, What::Posted(moved.clone())));
        all.push(entry(begin + 100..begin + 150, What::Final(moved, Status::Ok)));
    }
    all.push(entry(1_500..1_500, What::Sealed { tokens: 16 }));
    all.push(entry(2_000..2_000, What::Ended(End::Sent, Status::Ok)));
    all
}

/// The bars of a class: layer, begin, end.
fn bars(picture: &[Element], class: &str) -> Vec<(u32, u64, u64)> {
    let of = |element: &&Element| element.name == "rect" && element.value("class") == Some(class);
    let number = |element: &Element, name: &str| element.value(name).unwrap().parse::<u64>().unwrap();
    let bars = picture.iter().filter(of).map(|element| {
        (number(element, "data-layer") as u32, number(element, "data-begin"), number(element, "data-end"))
    });
    bars.collect()
}

fn coordinate(element: &Element, name: &str) -> f64 {
    element.value(name).unwrap().parse().unwrap()
}

#[test]
fn each_layer_has_a_bar_of_compute_and_one_of_its_transfer() {
    let picture = xml::parse(&plot(&layerwise()));
    let expected = |from: u64, length: u64| -> Vec<(u32, u64, u64)> {
        let begin = |layer: u32| 1_000 + u64::from(layer) * 100 + from;
        (0..LAYERS).map(|layer| (layer, begin(layer), begin(layer) + length)).collect()
    };
    assert_eq!(bars(&picture, "compute"), expected(0, 100));
    assert_eq!(bars(&picture, "transfer"), expected(100, 50));
    assert!(bars(&picture, "open").is_empty() && bars(&picture, "failed").is_empty());
    let events: Vec<&str> = picture
        .iter()
        .filter(|element| element.value("class") == Some("event"))
        .map(|element| element.title.as_str())
        .collect();
    assert_eq!(events, ["abcdef01: offered", "abcdef01: sealed, 16 tokens", "abcdef01: Sent, OK"]);
    let titles: Vec<&str> = picture.iter().map(|element| element.title.as_str()).collect();
    assert!(titles.contains(&"abcdef01: compute of layer 2"), "{titles:?}");
    assert!(titles.contains(&"abcdef01: layers 3 to 4, tokens 0 to 16, 640 bytes: OK"), "{titles:?}");
}

/// 1,000 ns are 1,000 units wide, and begin behind the lanes' names.
#[test]
fn places_are_proportional_to_times() {
    let picture = xml::parse(&plot(&layerwise()));
    let rects: Vec<&Element> =
        picture.iter().filter(|element| element.value("data-layer").is_some()).collect();
    assert_eq!(rects.len(), 2 * LAYERS as usize);
    for rect in rects {
        let (begin, end) = (coordinate(rect, "data-begin"), coordinate(rect, "data-end"));
        assert_eq!(coordinate(rect, "x"), 80.0 + begin - 1_000.0);
        assert_eq!(coordinate(rect, "width"), end - begin);
        let lane = (coordinate(rect, "y") - 34.0) / 20.0;
        assert_eq!(lane.floor(), coordinate(rect, "data-layer"));
        // Compute is in the upper half of its lane, and a transfer in the lower.
        assert_eq!(lane.fract() < 0.4, rect.value("class") == Some("compute"));
    }
    let texts: Vec<&str> = picture.iter().map(|element| element.text.as_str()).collect();
    for text in ["layer 0", "layer 3", "0.000 ms", "0.001 ms", "compute", "transfer"] {
        assert!(texts.contains(&text), "{text}: {texts:?}");
    }
    assert!(!texts.contains(&"layer 4"));
    assert_eq!(picture[0].name, "svg");
    assert_eq!(picture[0].value("xmlns"), Some("http://www.w3.org/2000/svg"));
}

#[test]
fn what_failed_what_is_open_and_what_arrived_can_be_told_apart() {
    let other = Moved { peer: PeerId::from_raw(8), ..moved(1, 2..3) };
    let entries = [
        entry(0..0, What::Taken),
        entry(0..0, What::Posted(moved(1, 0..2))),
        entry(5..5, What::Posted(other)),
        entry(0..10, What::Final(moved(1, 0..2), Status::Cancelled)),
        entry(10..10, What::Arrived(moved(0, 3..4))),
        entry(20..30, What::Mark { kind: 7, layer: 1 }),
    ];
    let picture = xml::parse(&plot(&entries));
    assert_eq!(bars(&picture, "failed"), [(0, 0, 10), (1, 0, 10)]);
    assert_eq!(bars(&picture, "transfer"), [(3, 10, 10)]);
    assert_eq!(bars(&picture, "open"), [(2, 5, 30)]);
    assert_eq!(bars(&picture, "mark"), [(1, 20, 30)]);
    assert!(picture.iter().any(|element| element.title == "abcdef01: mark 7 of layer 1"));
    // An entry that takes no time is seen.
    let arrived = picture.iter().find(|it| it.title.ends_with(": arrived")).unwrap();
    assert!(coordinate(arrived, "width") > 0.0);
}

/// Entries may come from anywhere: no number is too large, and the picture is bounded.
#[test]
fn nothing_in_an_entry_is_trusted() {
    let wide = Range { start: 0, end: u32::MAX };
    let entries = [
        entry(Range { start: u64::MAX, end: 0 }, What::Mark { kind: 0, layer: u32::MAX }),
        entry(0..u64::MAX, What::Final(moved(1, wide), Status::Ok)),
        entry(Range { start: 3, end: 2 }, What::Mark { kind: 1, layer: 0 }),
        entry(0..5, What::Posted(moved(2, Range { start: 9, end: 3 }))),
    ];
    let picture = xml::parse(&plot(&entries));
    assert_eq!(bars(&picture, "transfer").len(), 1_024);
    assert_eq!(bars(&picture, "compute"), [(0, 3, 3)]);
    assert!(bars(&picture, "mark").is_empty() && bars(&picture, "open").is_empty());
    let many: Vec<Entry> =
        (0..60).map(|at| entry(at..at + 1, What::Final(moved(at, 0..1_000), Status::Ok))).collect();
    let picture = xml::parse(&plot(&many));
    assert_eq!(bars(&picture, "transfer").len(), 50_000);
    assert!(picture.iter().any(|element| element.text == "10000 more are not drawn"));
    assert_eq!(xml::parse(&plot(&[]))[0].name, "svg");
}
