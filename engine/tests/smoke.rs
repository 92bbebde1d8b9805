//! Two engines in one process: the basic operations work.
use ferry::types::{Op, Request};
use ferry::*;
use std::time::Duration;

fn engine() -> Engine {
    let mut config = Config::new().unwrap();
    config.set("lease_ms", "1000").unwrap();
    Engine::open(config).unwrap()
}

#[test]
fn write_and_read() {
    let (a, b) = (engine(), engine());
    let n = 8 << 20;
    let ma = a.alloc(n, &RegionOptions::default()).unwrap();
    let mb = b.alloc(n, &RegionOptions::default()).unwrap();
    let data: Vec<u8> = (0..n).map(|i| (i / 7 % 251) as u8).collect();
    ma.write(0, &data);
    let peer = a.connect(b.address(), Some(Duration::from_secs(5))).unwrap();
    for len in [1u64, 64, 4096, 65536, 1 << 20, 8 << 20] {
        mb.write(0, &vec![0; n]);
        let r =
            Request { local: ma.address(), remote: mb.address(), length: len, remote_region: mb.region() };
        let result = a.write(peer, &[r], &TransferOptions::default()).unwrap();
        assert_eq!(result.bytes_confirmed, len);
        let mut back = vec![0; n];
        mb.read(0, &mut back);
        assert!(back[..len as usize] == data[..len as usize], "len {len}");
        assert!(back[len as usize..].iter().all(|b| *b == 0));
        // and back
        ma.write(0, &vec![0; n]);
        a.read(peer, &[r], &TransferOptions::default()).unwrap();
        ma.read(0, &mut back);
        assert!(back[..len as usize] == data[..len as usize], "read len {len}");
        ma.write(0, &data);
    }
    a.notify(peer, b"hello", Deadline::Default).unwrap();
    let q = b.queue(ferry::notify::WHAT_NOTIFICATIONS, 16).unwrap();
    let mut out = vec![];
    assert_eq!(q.drain(&mut out, 4), 1);
    let _ = Op::Read;
    println!("{}", a.metrics().unwrap());
}
