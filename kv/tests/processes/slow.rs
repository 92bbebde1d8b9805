//! A path that moves so many bytes a second, as a network does that is slower than this host.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const CHUNK: usize = 64 * 1024;

/// Returns an address whose connections lead to `target`, each at most this fast in either direction. The threads end
/// with their connections, and the last one with the test program.
pub fn path(target: &str, bytes_per_s: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, target) = (listener.local_addr().unwrap().to_string(), target.to_owned());
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(&target) else { continue };
            let ways = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
            for (from, to) in ways {
                let (from, to) = (from.unwrap(), to.unwrap());
                to.set_nodelay(true).unwrap();
                std::thread::spawn(move || forward(from, to, bytes_per_s));
            }
        }
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream, bytes_per_s: usize) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(bytes @ 1..) = from.read(&mut chunk) {
        // The time that the bytes take on the path.
        std::thread::sleep(Duration::from_secs_f64(bytes as f64 / bytes_per_s as f64));
        if to.write_all(&chunk[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
