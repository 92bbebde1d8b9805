//! The kernel's text, which no test without a GPU can run: an interpreter for its few instructions runs it thread by
//! thread, and `ptxas` assembles it where that is installed.

use crate::gpu::shuffled;
use std::collections::HashMap;
use std::process::Command;

const TEXT: &str = include_str!("../../src/transport/cuda/copy.ptx");

/// Memory from address BASE on, and how often each byte was written.
struct Memory {
    bytes: Vec<u8>,
    written: Vec<u32>,
}

const BASE: u64 = 0x7f00_0000_0000;

impl Memory {
    fn new(length: usize) -> Memory {
        Memory { bytes: (0..length).map(|at| (at * 7 + at / 251) as u8).collect(), written: vec![0; length] }
    }

    fn place(&self, address: u64, length: usize) -> std::ops::Range<usize> {
        assert_eq!(address % length as u64, 0, "{address:#x} is not aligned for {length} bytes");
        let at = (address - BASE) as usize;
        assert!(at + length <= self.bytes.len());
        at..at + length
    }

    fn load(&self, address: u64, length: usize) -> u64 {
        let mut value = [0; 8];
        value[..length].copy_from_slice(&self.bytes[self.place(address, length)]);
        u64::from_le_bytes(value)
    }

    fn store(&mut self, address: u64, length: usize, value: u64) {
        let place = self.place(address, length);
        self.bytes[place.clone()].copy_from_slice(&value.to_le_bytes()[..length]);
        self.written[place].iter_mut().for_each(|count| *count += 1);
    }
}

/// A statement: `@%p op a, b, c`.
struct Statement<'a> {
    predicate: Option<&'a str>,
    op: &'a str,
    operands: Vec<&'a str>,
}

struct Program<'a> {
    statements: Vec<Statement<'a>>,
    labels: HashMap<&'a str, usize>,
}

fn parse(text: &str) -> Program<'_> {
    let body = &text[text.find("\n{").unwrap() + 2..text.rfind('}').unwrap()];
    let (mut statements, mut labels) = (Vec::new(), HashMap::new());
    for line in body.lines().map(|line| line.split("//").next().unwrap().trim()) {
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label, statements.len());
        } else if !line.is_empty() && !line.starts_with(".reg") {
            let line = line.strip_suffix(';').unwrap();
            let (predicate, line) = match line.strip_prefix('@') {
                Some(rest) => rest.split_once(' ').map(|(predicate, rest)| (Some(predicate), rest)).unwrap(),
                None => (None, line),
            };
            let (op, operands) = line.split_once(' ').unwrap_or((line, ""));
            let operands = operands.split([',', '{', '}', '[', ']', ' ']).filter(|word| !word.is_empty());
            statements.push(Statement { predicate, op, operands: operands.collect() });
        }
    }
    Program { statements, labels }
}

/// Runs one thread; `special` has %tid.x and the other special registers.
fn run(program: &Program, memory: &mut Memory, parameters: [u64; 2], special: &[(&str, u64)]) {
    let mut registers: HashMap<&str, u64> = special.iter().copied().collect();
    let (mut at, mut steps) = (0, 0);
    while let Some(statement) = program.statements.get(at) {
        at += 1;
        steps += 1;
        assert!(steps < 1_000_000, "the kernel does not end");
        if statement.predicate.is_some_and(|name| registers[name] == 0) {
            continue;
        }
        let operands = &statement.operands;
        let value = |at: usize| -> u64 {
            let word: &str = operands[at];
            match word.split_once('+') {
                Some((register, offset)) => registers[register] + offset.parse::<u64>().unwrap(),
                None => word.parse().unwrap_or_else(|_| registers[word]),
            }
        };
        let narrow = |number: u64| u64::from(number as u32);
        let result = match statement.op {
            "ret" => return,
            "bra" => {
                at = program.labels[operands[0]];
                continue;
            }
            "ld.param.u64" => parameters[0],
            "ld.param.u32" => narrow(parameters[1]),
            "cvta.to.global.u64" | "mov.u64" | "cvt.u64.u32" => value(1),
            "mov.u32" => narrow(value(1)),
            "add.u64" => value(1).wrapping_add(value(2)),
            "add.u32" => narrow(value(1).wrapping_add(value(2))),
            "sub.u64" => value(1).wrapping_sub(value(2)),
            "neg.s64" => value(1).wrapping_neg(),
            "min.u64" => value(1).min(value(2)),
            "and.b64" => value(1) & value(2),
            "xor.b64" => value(1) ^ value(2),
            "shl.b64" => value(1) << value(2),
            "shr.u64" => value(1) >> value(2),
            "mul.lo.u64" => value(1).wrapping_mul(value(2)),
            "mul.wide.u32" => narrow(value(1)) * narrow(value(2)),
            "mad.lo.u32" => narrow(value(1).wrapping_mul(value(2)).wrapping_add(value(3))),
            "mad.wide.u32" => narrow(value(1)) * narrow(value(2)) + value(3),
            "setp.ge.u32" | "setp.ge.u64" => u64::from(value(1) >= value(2)),
            "setp.ne.u64" => u64::from(value(1) != value(2)),
            "ld.global.u64" => memory.load(value(1), 8),
            "ld.global.u8" => memory.load(value(1), 1),
            "st.global.u8" => {
                memory.store(value(0), 1, value(1));
                continue;
            }
            "ld.global.v4.u32" => {
                memory.place(value(4), 16);
                let loaded = [0, 1, 2, 3].map(|word| memory.load(value(4) + 4 * word as u64, 4));
                for (name, word) in operands[..4].iter().zip(loaded) {
                    registers.insert(name, word);
                }
                continue;
            }
            "st.global.v4.u32" => {
                memory.place(value(0), 16);
                for word in 0..4 {
                    memory.store(value(0) + 4 * word as u64, 4, value(1 + word));
                }
                continue;
            }
            other => panic!("the interpreter has no {other}"),
        };
        registers.insert(operands[0], result);
    }
}

/// Runs the grid over pieces (source, target, length) and checks every byte of memory.
fn check(pieces: &[(u64, u64, u64)], threads: u64, grid: (u64, u64), length: usize) {
    let table = length.next_multiple_of(8);
    let mut memory = Memory::new(table + pieces.len() * 24);
    for (at, (source, target, bytes)) in pieces.iter().enumerate() {
        for (word, value) in [BASE + source, BASE + target, *bytes].into_iter().enumerate() {
            let place = table + at * 24 + word * 8;
            memory.bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    let mut expected = memory.bytes.clone();
    let mut writes = vec![0; expected.len()];
    for (source, target, bytes) in pieces {
        expected.copy_within(*source as usize..(source + bytes) as usize, *target as usize);
        writes[*target as usize..(target + bytes) as usize].iter_mut().for_each(|count| *count += 1);
    }
    let program = parse(TEXT);
    for (x, y, thread) in (0..grid.0)
        .flat_map(|x| (0..grid.1).flat_map(move |y| (0..threads).map(move |thread| (x, y, thread))))
    {
        let special = [
            ("%tid.x", thread),
            ("%ntid.x", threads),
            ("%ctaid.x", x),
            ("%ctaid.y", y),
            ("%nctaid.x", grid.0),
            ("%nctaid.y", grid.1),
        ];
        run(&program, &mut memory, [BASE + table as u64, pieces.len() as u64], &special);
    }
    assert!(memory.bytes == expected, "{pieces:?} by {threads} threads in {grid:?}");
    assert!(memory.written == writes, "a byte was written twice, or beside");
}

#[test]
fn the_kernel_copies_each_byte_once() {
    // Every place within a vector on both sides, and lengths around the amount that one turn of all threads moves.
    let turn = 32 * 16 * 4;
    for (source, target) in [(0, 0), (1, 1), (15, 15), (0, 1), (3, 8), (8, 0)] {
        for length in
            [0, 1, 15, 16, 17, 31, 32, 33, 512, 513, turn - 1, turn, turn + 1, turn + 600, 3 * turn + 77]
        {
            let to = 16_384 + target;
            check(&[(source, to, length)], 32, (1, 1), 32_768);
        }
    }
    for offset in 0..16 {
        check(&[(offset, 4096 + offset, 700)], 32, (1, 1), 8192);
        check(&[(offset, 4096, 700)], 32, (1, 1), 8192);
    }
}

#[test]
fn the_grid_covers_many_pieces_of_many_sizes() {
    let order = shuffled(40, 7);
    let pieces: Vec<(u64, u64, u64)> = (0..40u64)
        .map(|at| {
            let place = order[at as usize] as u64;
            (place * 1024 + at % 5, 65_536 + at * 1024 + place % 3, 1000 - 13 * at)
        })
        .collect();
    for grid in [(1, 1), (40, 1), (7, 1), (64, 2), (3, 5)] {
        check(&pieces, 32, grid, 65_536 + 41 * 1024);
    }
    check(&[], 32, (1, 1), 64);
}

#[test]
fn ptxas_assembles_the_kernel() {
    let Ok(version) = Command::new("ptxas").arg("--version").output() else {
        return eprintln!("SKIPPED ptxas_assembles_the_kernel: there is no ptxas");
    };
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/src/transport/cuda/copy.ptx");
    // This ptxas knows the oldest architectures; later versions have dropped them.
    for architecture in ["sm_80", "sm_90", "sm_100"] {
        let built =
            Command::new("ptxas").args(["-arch", architecture, "-o", "/dev/null", text]).output().unwrap();
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{architecture}: {said}{}", String::from_utf8_lossy(&version.stdout));
    }
}
