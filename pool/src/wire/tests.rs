use super::*;
use crate::limits::COUNTS_BYTES_MAX;
use crate::TenantTag;

fn all() -> Vec<Message> {
    let digest = Digest(std::array::from_fn(|at| at as u8));
    let segments = vec![Segment { address: 1 << 40, bytes: 65_536, region: 7 }; 2];
    let keys = vec![
        Wanted { digest, checksum: None, segments: Vec::new() },
        Wanted { digest, checksum: Some(0), segments },
    ];
    let load = Load { capacity: 1 << 33, free: 9, is_draining: true };
    let (cluster, name) = ("prod".into(), "node 1".into());
    let answer = Answer { outcome: Outcome::Ok, length: 1 << 33, checksum: u64::MAX };
    let from = Cursor { in_file: true, after: Some(9) };
    let tenant = TenantTag([7; 8]);
    let listed = |in_memory, in_file| Listed { fingerprint: 8, tenant, bytes: 1 << 40, in_memory, in_file };
    let values = vec![listed(true, false), listed(false, true), listed(true, true)];
    vec![
        Message::Hello(Hello { scheme: 3, incarnation: 4, is_member: true, load, cluster, name }),
        Message::Load(load),
        Message::Get { request: 1, keys: keys.clone() },
        Message::Put { request: 2, keys },
        Message::Answer { request: 3, answers: vec![answer, Answer::of(Outcome::Full)] },
        Message::Find { request: 4, view: 5, fingerprints: vec![1, u64::MAX] },
        Message::Found { request: 5, owners: vec![8, 9], found: vec![0, 1, 2, 3] },
        Message::Have { request: 6, digests: vec![digest; 3] },
        Message::Announce { number: 7, came: vec![1], went: vec![2, 3] },
        Message::Announced { number: 8 },
        Message::Inventory {
            inventory: 1,
            number: 2,
            is_last: true,
            view: 9,
            since: Some(3),
            fingerprints: vec![1],
        },
        Message::Remove { request: 10, removal: 7, asked: vec![1, 2], digests: vec![digest] },
        Message::Touch(vec![4, 5]),
        Message::Ping,
        Message::Pong,
        Message::Again,
        Message::Leave,
        Message::Doubt(vec![digest]),
        Message::Refused("another cluster".into()),
        Message::Ask { request: 11, question: Question::Drain { copies: true } },
        Message::Ask { request: 12, question: Question::Counts },
        Message::Ask { request: 13, question: Question::List { from: Cursor::default(), most: 7 } },
        Message::Ask { request: 14, question: Question::List { from, most: u32::MAX } },
        Message::Told { request: 15, told: Told::Refused("alone".into()) },
        Message::Told { request: 16, told: Told::Counts("a 1\n".repeat(1_000)) },
        Message::Told { request: 17, told: Told::Values { values: values.clone(), next: None } },
        Message::Told { request: 18, told: Told::Values { values, next: Some(from) } },
    ]
}

#[test]
fn messages_arrive_as_they_were_and_no_cut_or_longer_one_is_taken() {
    for message in all() {
        let bytes = message.encode();
        assert_eq!(Message::decode(&bytes).unwrap(), message);
        for cut in 0..bytes.len() {
            assert_eq!(
                Message::decode(&bytes[..cut]).unwrap_err().status,
                Status::Invalid,
                "{message:?} to {cut}"
            );
        }
        assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()).unwrap_err().status, Status::Invalid);
    }
}

#[test]
fn another_version_an_owner_that_is_not_listed_and_counts_that_lie_are_refused() {
    let refused = |bytes: &[u8]| Message::decode(bytes).unwrap_err().message;
    let mut hello = all()[0].encode();
    hello[1] = 9;
    assert_eq!(refused(&hello), "the peer's pool speaks version 9, this one 3");
    let found = Message::Found { request: 1, owners: vec![1], found: vec![3] }.encode();
    assert!(refused(&found).contains("an owner that it does not list"));
    let mut touch = Message::Touch(vec![1]).encode();
    touch[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(refused(&touch).contains("a list has 4294967295 elements"));
    let mut answer = Message::Answer { request: 1, answers: vec![Answer::of(Outcome::Ok)] }.encode();
    answer[13] = 200;
    assert!(refused(&answer).contains("outcome 200 is unknown"));
    for (bytes, words) in [
        (vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 9], "question 9 is unknown"),
        (vec![21, 0, 0, 0, 0, 0, 0, 0, 0, 9], "answer 9 is unknown"),
    ] {
        assert!(refused(&bytes).contains(words), "{words}");
    }
    let tenant = TenantTag([1; 8]);
    let values = vec![Listed { fingerprint: 1, tenant, bytes: 1, in_memory: true, in_file: false }];
    let told = Told::Values { values, next: None };
    let mut listed = Message::Told { request: 1, told }.encode();
    listed[38] = 4;
    assert!(refused(&listed).contains("tiers 4 are unknown"));
    // A text that is too long is cut behind a line.
    let told = Told::Counts("ä 1\n".repeat(COUNTS_BYTES_MAX / 5 + 1));
    let cut = Message::decode(&Message::Told { request: 1, told }.encode()).unwrap();
    let whole = Told::Counts("ä 1\n".repeat(COUNTS_BYTES_MAX / 5));
    assert_eq!(cut, Message::Told { request: 1, told: whole });
}
