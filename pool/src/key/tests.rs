//! Digests and chains against vectors that Python's hashlib computed from the format in `mod.rs`, and their rules.

use super::{Chain, Digest, Extra, Identity, Keyspace, TenantTag};
use ferry::Status;
use proptest::prelude::*;

fn plain() -> Identity {
    identity_of("m")
}

fn identity_of(model: &str) -> Identity {
    Identity { model: model.into(), ..Identity::default() }
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
    assert_eq!(own.to_string(), "602843122d62d1270b0654e5b597ca9fec46fa1f2422998d23f35c7f453e712e");
    let long: Vec<u8> = (0..1024).map(|at| (at % 251) as u8).collect();
    let own = keyspace().own(&long).unwrap();
    assert_eq!(own.to_string(), "a179a466b9b390e5d2d8f58553f908ef387ddb5ab3c7286023f35c7f453e712e");
    let identity = Identity {
        model: "meta-llama/Llama-3-8B".into(),
        revision: "8cde5ca".into(),
        dtype: "fp8_e4m3".into(),
        scales: vec![1, 2, 3],
        rope: b"theta=500000".into(),
        more: vec![("zeta".into(), b"last".into()), ("attention".into(), b"mla".into())],
    };
    let keyspace = Keyspace::new("tenant-b", &identity).unwrap();
    let hash: Digest = "9ed09b5d610d9e415219d3ea4168e09948da2ebdc8e5cb4823c7eae9ae6c918b".parse().unwrap();
    let chained = keyspace.chained(&hash.0);
    assert_eq!(chained.to_string(), "9159f963793ba4a9685d81645e2045b2bcd5fab43f08afa146cd9758b557a667");
    let own = keyspace.own(&hash.0).unwrap();
    assert_eq!(own.to_string(), "a66d161913ad7f05acf74b8cbcf6ff8302759e5a2eaf10b446cd9758b557a667");
    for (bytes, expected) in [
        (16, "af22de71065ea4aa72700df5cc1854b6de6afee11f506185234ceb66dab3ff55"),
        (64, "3c8245a86c49b74f3c1887c32559cea1007cfd263ccb834d677a69fcca169504"),
        (65, "c74f9784d654962c5f9bcea7a8c726a231fa4578a3c8608ac5be0296379ebe63"),
        (1024, "450c1b3ba287474a824c6010bef0826f90151330bd288d514330c259f059b34a"),
    ] {
        let secret: Vec<u8> = (0..bytes).map(|at| (at * 7 + bytes) as u8).collect();
        let keyspace = Keyspace::with_secret("tenant-b", Some(&secret), &identity).unwrap();
        assert_eq!(keyspace.chained(&hash.0).to_string(), expected, "a secret of {bytes} bytes");
    }
}

#[test]
fn chains_are_those_that_hashlib_computes() {
    // The example in `mod.rs`.
    let extras = [Extra::Lora("a"), Extra::Image { hash: &[0xff], start: 2, tokens: 1 }];
    let hashes = Chain::new(2).unwrap().hashes(None, &[1, 2, 3, 4, 5], &extras).unwrap();
    assert_eq!(
        hashes.iter().map(hex).collect::<Vec<_>>(),
        [
            "a60e350757f6654293561b1c9970a582be98f3126b8fc3e400b9e3caa678f88e",
            "9ed09b5d610d9e415219d3ea4168e09948da2ebdc8e5cb4823c7eae9ae6c918b",
        ]
    );
    let hashes = Chain::default().hashes(None, &counted(1000), &[]).unwrap();
    assert_eq!(
        hashes.iter().map(hex).collect::<Vec<_>>(),
        [
            "856ab83fe1b8a5a8457b7b5a44695cce2fe6f6903a27331fe7fe549de06e5b55",
            "f3e2f5a75eeedba8d0e42833e1defac88a65c3b0dae68c7ba8b70d4ada67bc70",
            "2037ea2c33936076ebbe845979d94ecf3f73e05574a3ff57cf18362774b578e0",
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
            "edb12c555bac5b4c1e1513f0bc5f0eee9cc89ca22bf92e58dd79a4a7ddeac3cb",
            "5fa74d000b1e9170598df58db62137a7b56b408112ca5a27ee1074b471f38301",
            "171a3bca21c078cdd3f17d6f795853d50036e1f79af6f4c8d9884251b9cdad3b",
            "5b7bd55916e2581aa0ac4a1cdd37ead37672fe5462b161ae4039c738742eb1f0",
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
fn a_key_ends_with_its_tenants_tag_and_begins_with_what_its_secret_decides() {
    let secrets: [Option<&[u8]>; 3] = [None, Some(&[1; 32]), Some(&[2; 32])];
    let of = |tenant: &str, secret, identity: &Identity| {
        Keyspace::with_secret(tenant, secret, identity).unwrap().own(b"x").unwrap()
    };
    let mut tags = Vec::new();
    for tenant in ["a", "b"] {
        for secret in secrets {
            let tag = TenantTag::of(tenant, secret).unwrap();
            let (one, other) = (of(tenant, secret, &plain()), of(tenant, secret, &identity_of("n")));
            assert_eq!((one.tag(), other.tag()), (tag, tag));
            assert_ne!(one.fingerprint(), other.fingerprint());
            tags.push((tag, one.fingerprint()));
        }
    }
    let count = tags.len();
    for by in [|it: &(TenantTag, u64)| u64::from_le_bytes(it.0 .0), |it: &(TenantTag, u64)| it.1] {
        let mut seen: Vec<u64> = tags.iter().map(by).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count, "{tags:?}");
    }
    assert_eq!(of("a", None, &plain()), Keyspace::new("a", &plain()).unwrap().own(b"x").unwrap());
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
    let secret = |bytes: usize| Keyspace::with_secret("t", Some(&vec![1; bytes]), &plain());
    assert!(secret(16).is_ok() && secret(1024).is_ok());
    [0, 15, 1025].into_iter().for_each(|bytes| fails(secret(bytes), invalid, "secret: "));
    assert!(secret(5).unwrap_err().message.ends_with("take 32 random bytes, or no secret"));

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
    assert_eq!(Chain::default().scheme().to_string(), "version 2, SHA-256, 256 tokens a chunk");
    assert_eq!(Chain::default().scheme().0, 0x0002_0001_0000_0100);
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
