//! Digests and chains against vectors that Python's hashlib computed from the format in `mod.rs`, and their rules.

use super::{Chain, Digest, Extra, Identity, Keyspace};
use ferry::Status;
use proptest::prelude::*;

fn plain() -> Identity {
    Identity { model: "m".into(), ..Identity::default() }
}

fn keyspace() -> Keyspace {
    Keyspace::new("default", &plain()).unwrap()
}

fn hex(hash: &[u8; 32]) -> String {
    Digest(*hash).to_string()
}

fn counted(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| at.wrapping_mul(2_654_435_761)).collect()
}

#[test]
fn digests_are_those_that_hashlib_computes() {
    let own = keyspace().own(&[0]).unwrap();
    assert_eq!(own.to_string(), "04953606dff0799afe058088de7decd66f4af9b9716dff8ef8734f12e6840060");
    let long: Vec<u8> = (0..1024).map(|at| (at % 251) as u8).collect();
    let own = keyspace().own(&long).unwrap();
    assert_eq!(own.to_string(), "d162064a70fef057b5a8d5f0e3ddd884eb48623c852dc0618615f3d31bf3ff85");
    let identity = Identity {
        model: "meta-llama/Llama-3-8B".into(),
        revision: "8cde5ca".into(),
        dtype: "fp8_e4m3".into(),
        scales: vec![1, 2, 3],
        rope: b"theta=500000".into(),
        more: vec![("zeta".into(), b"last".into()), ("attention".into(), b"mla".into())],
    };
    let keyspace = Keyspace::new("tenant-b", &identity).unwrap();
    let hash: Digest = "1e9d5b79544da83c703c3e2ba1405af8bd2a5f858e30b385e30bfe9c93ee42e2".parse().unwrap();
    let chained = keyspace.chained(&hash.0);
    assert_eq!(chained.to_string(), "c86f6ddee87065aefdbdc68610377d1a88f3233afcfbf09b80b997ab85eb5735");
    let own = keyspace.own(&hash.0).unwrap();
    assert_eq!(own.to_string(), "ad064a20f92002cee3318e8b16749b9c7217c10ad1546818f4b36f85fdd9fc01");
}

#[test]
fn chains_are_those_that_hashlib_computes() {
    // The example in `mod.rs`.
    let extras = [Extra::Lora("a"), Extra::Image { hash: &[0xff], start: 2, tokens: 1 }];
    let hashes = Chain::new(2).unwrap().hashes(None, &[1, 2, 3, 4, 5], &extras).unwrap();
    assert_eq!(
        hashes.iter().map(hex).collect::<Vec<_>>(),
        [
            "40a94d583a1f5a9edcf5f597124b98d3b6a8ab491e151df5ffad171667dd0cfb",
            "1e9d5b79544da83c703c3e2ba1405af8bd2a5f858e30b385e30bfe9c93ee42e2",
        ]
    );
    let hashes = Chain::default().hashes(None, &counted(1000), &[]).unwrap();
    assert_eq!(
        hashes.iter().map(hex).collect::<Vec<_>>(),
        [
            "00a22bedfc4776fcac6ec826ef22f81fd7bf2009651b86f8c8f47a250fe4f589",
            "92abc89503a6dd69f229f9b6d82ed10942ba75b777df93b15655bd1a8c1d8822",
            "5c3016c9f06f3859ce10025d4dc3bc147909228bbf7190842c0df4c17762c3dd",
        ]
    );
    // An image over the first chunk's edge, one over three chunks, one on a chunk's last token, one that fills a chunk.
    let extras = [
        Extra::Image { hash: b"img-d", start: 14, tokens: 7 },
        Extra::Salt(b"s\0alt"),
        Extra::Image { hash: b"img-a", start: -3, tokens: 5 },
        Extra::Image { hash: b"img-c", start: 13, tokens: 1 },
        Extra::Lora("lora-7"),
        Extra::Image { hash: b"img-b", start: 5, tokens: 10 },
    ];
    let hashes = Chain::new(7).unwrap().hashes(None, &counted(30), &extras).unwrap();
    assert_eq!(
        hashes.iter().map(hex).collect::<Vec<_>>(),
        [
            "5f5a516e726799db26f1c2e650f77d4a9991e7917e37c3cc984cb6c82b8b4be4",
            "cbe15f9d0a912fad0e2ed0a44b879f2587a9de97fcdf6c2e16835b35ece48b30",
            "e8ea4fe1882b328f1c218fb5475a3e8c4957b4c88a32bd418d0cf03d67306849",
            "b82e381d2f03ffa27bc88012a25c5055c07a8e42bc9f68a015776a716cbfb909",
        ]
    );
}

#[test]
fn each_part_of_an_identity_makes_other_keys() {
    let pair = |name: &str, value: &[u8]| (String::from(name), value.to_vec());
    let identities = [
        plain(),
        Identity { model: "n".into(), ..plain() },
        Identity { revision: "1".into(), ..plain() },
        Identity { dtype: "1".into(), ..plain() },
        Identity { scales: b"1".into(), ..plain() },
        Identity { rope: b"1".into(), ..plain() },
        Identity { more: vec![pair("a", b"")], ..plain() },
        Identity { more: vec![pair("a", b"bc")], ..plain() },
        Identity { more: vec![pair("ab", b"c")], ..plain() },
        Identity { more: vec![pair("a", b""), pair("bc", b"")], ..plain() },
    ];
    let of = |tenant: &str, identity: &Identity| Keyspace::new(tenant, identity).unwrap().own(b"x").unwrap();
    let mut digests: Vec<Digest> = identities.iter().map(|identity| of("default", identity)).collect();
    digests.push(of("defaul", &plain()));
    digests.push(keyspace().own(b"y").unwrap());
    let hash = [7; 32];
    digests.push(keyspace().own(&hash).unwrap());
    digests.push(keyspace().chained(&hash));
    let count = digests.len();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), count);
    let ordered = Identity { more: vec![pair("a", b"1"), pair("b", b"2")], ..plain() };
    let other = Identity { more: vec![pair("b", b"2"), pair("a", b"1")], ..plain() };
    assert_eq!(of("default", &ordered), of("default", &other));
}

#[test]
fn arguments_out_of_range_are_named() {
    fn fails<T: std::fmt::Debug>(result: ferry::status::Result<T>, status: Status, name: &str) {
        let error = result.unwrap_err();
        assert!(error.status == status && error.message.starts_with(name), "{error}");
    }
    let invalid = Status::Invalid;
    assert!(keyspace().own(&[1; 1024]).is_ok());
    for bytes in [0, 1025, 10_000] {
        fails(keyspace().own(&vec![1; bytes]), invalid, "chunk hash: ");
    }
    let with = |more| Keyspace::new("t", &Identity { more, ..plain() });
    let pairs = |count: usize| (0..count).map(|at| (at.to_string(), vec![])).collect::<Vec<_>>();
    assert!(with(pairs(64)).is_ok());
    fails(with(pairs(65)), Status::Limit, "pairs of the identity: ");
    assert!(with(vec![("long".into(), vec![0; 4096])]).is_ok());
    fails(with(vec![("long".into(), vec![0; 4097])]), invalid, "long: ");
    fails(with(vec![("".into(), vec![])]), invalid, "name in the identity: ");
    fails(with(vec![("rope".into(), vec![])]), invalid, "rope: ");
    fails(with([pairs(1), pairs(1)].concat()), invalid, "0: ");
    fails(Keyspace::new("t", &Identity::default()), invalid, "model: ");
    fails(Keyspace::new("", &plain()), invalid, "tenant: ");
    fails(Keyspace::new(&"t".repeat(256), &plain()), invalid, "tenant: ");

    assert!(Chain::new(1).is_ok() && Chain::new(65_536).is_ok());
    fails(Chain::new(0), invalid, "chunk_tokens: ");
    fails(Chain::new(65_537), invalid, "chunk_tokens: ");
    let chain = Chain::default();
    fails(chain.hashes(Some([0; 32]), &[], &[]), invalid, "parent: ");
    fails(chain.hashes(None, &[], &[Extra::Lora("")]), invalid, "lora: ");
    fails(chain.hashes(None, &[], &[Extra::Salt(&[0; 1025])]), invalid, "salt: ");
    fails(chain.hashes(None, &[], &[Extra::Image { hash: &[], start: 0, tokens: 1 }]), invalid, "image: ");
    fails(chain.hashes(None, &[], &[Extra::Image { hash: &[1], start: 0, tokens: 0 }]), invalid, "image: ");
    fails(chain.hashes(None, &[], &[Extra::Salt(b"s"); 4097]), Status::Limit, "extra keys: ");
    fails(chain.hashes(None, &vec![0; (1 << 24) + 1], &[]), Status::Limit, "tokens: ");
}

#[test]
fn a_scheme_says_what_hashes_how() {
    assert_eq!(Chain::default().scheme().to_string(), "version 1, SHA-256, 256 tokens a chunk");
    assert_eq!(Chain::default().scheme().0, 0x0001_0001_0000_0100);
    assert_ne!(Chain::new(255).unwrap().scheme(), Chain::default().scheme());
}

fn extras() -> impl Strategy<Value = Vec<(u8, i64, u32)>> {
    proptest::collection::vec(
        (0u8..6, prop_oneof![-20i64..60, Just(i64::MIN), Just(i64::MAX)], 1u32..40),
        0..6,
    )
}

proptest! {
    /// An image is found in exactly the chunks that it touches, with the offset that a plain reading gives, and hashing
    /// in two calls gives what one call gives.
    #[test]
    fn chains_resume(
        chunk in 1u32..9, length in 0u32..60, cut in 0usize..8, given in extras(), salted in any::<bool>()
    ) {
        let tokens = counted(length);
        let names: Vec<[u8; 1]> = given.iter().map(|&(name, ..)| [name]).collect();
        let make = |back: i64| {
            let images = given.iter().zip(&names).map(|(&(_, start, tokens), hash)| {
                Extra::Image { hash, start: start.saturating_sub(back), tokens }
            });
            images.chain(salted.then_some(Extra::Salt(b"salt"))).collect::<Vec<_>>()
        };
        let chain = Chain::new(chunk).unwrap();
        let whole = chain.hashes(None, &tokens, &make(0)).unwrap();
        prop_assert_eq!(whole.len(), (length / chunk) as usize);
        let cut = cut.min(whole.len());
        let (first, rest) = tokens.split_at(cut * chunk as usize);
        let mut parts = chain.hashes(None, first, &make(0)).unwrap();
        let shifted = make(first.len() as i64);
        parts.extend(chain.hashes(parts.last().copied(), rest, &shifted).unwrap());
        prop_assert_eq!(&parts, &whole);
        // Without one image, the hashes are equal before the first chunk that it touches, and differ from there on.
        if let Some(&(name, start, count)) = given.first().filter(|first| given.iter().filter(|one| one.0 == first.0).count() == 1) {
            let mut fewer = make(0);
            fewer.retain(|extra| !matches!(extra, Extra::Image { hash, .. } if hash[0] == name));
            let fewer = chain.hashes(None, &tokens, &fewer).unwrap();
            let touches = |at: usize| {
                let from = at as i128 * i128::from(chunk);
                i128::from(start) < from + i128::from(chunk) && i128::from(start) + i128::from(count) > from
            };
            let mut touched = false;
            for at in 0..whole.len() {
                touched |= touches(at);
                prop_assert_eq!(whole[at] != fewer[at], touched, "chunk {}", at);
            }
        }
    }
}

/// Prints what `cargo test --release -p ferry-pool speed -- --ignored --nocapture` measures.
#[test]
#[ignore = "a measurement"]
fn speed_of_hashing_128_thousand_tokens() {
    let tokens = counted(128 << 10);
    let mut times: Vec<u128> = (0..201)
        .map(|_| {
            let start = std::time::Instant::now();
            assert_eq!(Chain::default().hashes(None, &tokens, &[]).unwrap().len(), 512);
            start.elapsed().as_micros()
        })
        .collect();
    times.sort_unstable();
    println!("131,072 tokens in chunks of 256: median {} µs, best {} µs", times[100], times[0]);
}
