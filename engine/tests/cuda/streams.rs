//! The program's own streams: waiting for them, and making them wait.

use crate::gpu::{copy, gpu, host_bytes, pattern, standin, Gpu, MIB, PATIENCE};
use ferry::internals::device::{Direction, Piece, Point};
use ferry::internals::sys::cuda::{DeviceMemory, PinnedMemory, Stream};
use ferry::status::{Result, Status};
use ferry::Start;
use std::time::Instant;

/// A stream of the program, and memory that shows the stream's progress.
struct Program<'a> {
    gpu: &'a Gpu,
    stream: Stream,
    memory: PinnedMemory,
    there: DeviceMemory,
}

impl Program<'_> {
    fn new(gpu: &Gpu) -> Program<'_> {
        let memory = gpu.pinned(4096);
        host_bytes(&memory).fill(0);
        Program { gpu, stream: Stream::new(gpu.program()).unwrap(), memory, there: gpu.device(4096) }
    }

    /// Makes `stream` wait until `go` is called.
    fn block(&self, stream: usize) {
        let _entered = self.gpu.program().enter().unwrap();
        // SAFETY: stream and memory are the test's, and outlive the wait: the test ends with `go`.
        assert!(unsafe { self.gpu.api.stream_wait_value_32(stream, self.memory.address, 1, 0) }.is_ok());
    }

    fn go(&self) {
        host_bytes(&self.memory)[0] = 1;
    }

    /// Makes `stream` copy byte 64 to 128; returns a function that tells whether it has copied.
    fn work(&self, stream: usize) {
        host_bytes(&self.memory)[64] = 1;
        let _entered = self.gpu.program().enter().unwrap();
        let address = self.memory.address;
        let there = self.there.address;
        // SAFETY: both pieces of memory are this object's, which lives until the stream has ended.
        let copied = unsafe {
            self.gpu
                .api
                .memcpy_host_to_device(there, (address + 64) as usize as *const _, 1, stream)
                .and_then(|()| {
                    self.gpu.api.memcpy_device_to_host((address + 128) as usize as *mut _, there, 1, stream)
                })
        };
        assert!(copied.is_ok());
    }

    fn has_worked(&self) -> bool {
        // SAFETY: a byte of the object's own memory.
        unsafe { self.memory.pointer::<u8>().add(128).read_volatile() == 1 }
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// The point of a stream of the test's, which lives; or of a default stream.
fn point_of(gpu: &Gpu, stream: u64) -> Result<Box<dyn Point>> {
    // SAFETY: as said above.
    gpu.driver().point(unsafe { Start::stream(stream) })
}

fn is_reached(gpu: &Gpu, point: &dyn Point) -> bool {
    let _entered = gpu.program().enter().unwrap();
    point.is_reached().unwrap()
}

#[test]
fn a_point_is_reached_when_the_work_before_it_is_done() {
    let Some(gpu) = gpu("a_point_is_reached_when_the_work_before_it_is_done") else { return };
    let program = Program::new(&gpu);
    let event = {
        let _entered = gpu.program().enter().unwrap();
        let mut event = 0;
        // SAFETY: the result lives on this stack; the test destroys the event.
        assert!(unsafe { gpu.api.event_create(&mut event, 2) }.is_ok());
        event
    };
    program.block(program.stream.raw);
    {
        let _entered = gpu.program().enter().unwrap();
        // SAFETY: event and stream are the test's, and live.
        assert!(unsafe { gpu.api.event_record(event, program.stream.raw) }.is_ok());
    }
    // On a thread without a context, which has none afterwards either.
    let before = gpu.current();
    // SAFETY: the event is the test's, and lives.
    let recorded = unsafe { Start::event(event as u64) };
    let by_event = gpu.driver().point(recorded).unwrap();
    let by_stream = point_of(&gpu, program.stream.raw as u64).unwrap();
    assert_eq!(gpu.current(), before);
    for point in [&by_event, &by_stream] {
        assert!(!is_reached(&gpu, &**point));
    }
    program.go();
    for point in [&by_event, &by_stream] {
        until("the point is not reached", || is_reached(&gpu, &**point));
    }
    drop(by_event);
    let _entered = gpu.program().enter().unwrap();
    // SAFETY: created above, destroyed once; nothing waits for it any more.
    assert!(unsafe { gpu.api.event_destroy(event) }.is_ok(), "it stays the program's");
}

/// The driver ends the work of a destroyed stream.
#[test]
fn a_stream_is_needed_for_the_call_only() {
    let Some(gpu) = gpu("a_stream_is_needed_for_the_call_only") else { return };
    let (before, behind) = (Program::new(&gpu), Program::new(&gpu));
    let stream = Stream::new(gpu.program()).unwrap();
    before.block(stream.raw);
    let point = point_of(&gpu, stream.raw as u64).unwrap();
    drop(stream);
    let early = is_reached(&gpu, &*point);
    before.go();
    until("the point is not reached", || is_reached(&gpu, &*point));
    assert!(!early, "the stream's work had not ended");
    drop(point);

    let stream = Stream::new(gpu.program()).unwrap();
    let hold = gpu.driver().hold(stream.raw as u64).unwrap();
    behind.work(stream.raw);
    drop(stream);
    let early = behind.has_worked();
    hold.release();
    until("the stream does not go on", || behind.has_worked());
    assert!(!early, "the stream is held");
}

#[test]
fn default_streams_have_points_too() {
    let Some(gpu) = gpu("default_streams_have_points_too") else { return };
    for stream in [0, 1, 2] {
        // Without a context the default stream is ambiguous.
        assert!(point_of(&gpu, stream).is_err());
        let program = Program::new(&gpu);
        let _entered = gpu.program().enter().unwrap();
        program.block(stream as usize);
        let point = point_of(&gpu, stream).unwrap();
        assert!(!is_reached(&gpu, &*point), "stream {stream}");
        program.go();
        until("the point is not reached", || is_reached(&gpu, &*point));
    }
}

#[test]
fn a_failed_context_fails_its_points() {
    let Some(gpu) = standin("a_failed_context_fails_its_points") else { return };
    let program = Program::new(&gpu);
    let point = point_of(&gpu, program.stream.raw as u64).unwrap();
    gpu.standin().fault("cuEventQuery", "1", 719);
    let _entered = gpu.program().enter().unwrap();
    let error = point.is_reached().unwrap_err();
    assert_eq!((error.status, error.vendor_error), (Status::Unavailable, 719));
}

#[test]
fn a_stream_in_capture_is_refused() {
    let Some(gpu) = gpu("a_stream_in_capture_is_refused") else { return };
    let program = Program::new(&gpu);
    // SAFETY: the driver's function of this name has this type.
    let begin: unsafe extern "C" fn(usize, i32) -> i32 =
        unsafe { std::mem::transmute(gpu.symbol("cuStreamBeginCapture_v2")) };
    // SAFETY: as above.
    let end: unsafe extern "C" fn(usize, *mut usize) -> i32 =
        unsafe { std::mem::transmute(gpu.symbol("cuStreamEndCapture")) };
    let stream = program.stream.raw;
    let _entered = gpu.program().enter().unwrap();
    // SAFETY: the stream is the test's, and lives.
    assert_eq!(unsafe { begin(stream, 0) }, 0);
    for error in
        [point_of(&gpu, stream as u64).err().unwrap(), gpu.driver().hold(stream as u64).err().unwrap()]
    {
        assert_eq!(error.status, Status::Invalid);
        assert!(error.message.contains("captured"), "{error}");
    }
    let mut graph = 0;
    // SAFETY: as above; the result lives on this stack.
    assert_eq!(unsafe { end(stream, &mut graph) }, 0, "the capture is as it was");
    drop(gpu.driver().hold(stream as u64).unwrap());
    until("the stream does not go on", || program.stream_is_idle());
}

/// Holds a stream, checks that its work waits, releases it in the given manner, and checks that it continues.
fn check_hold(gpu: &Gpu, drop_it: bool) {
    let program = Program::new(gpu);
    // Allocating may wait for all of the device's work, so allocate before a stream is held.
    let (device, host) = (gpu.device(MIB), gpu.pinned(MIB));
    let mut queue = gpu.queue(1);
    let hold = gpu.driver().hold(program.stream.raw as u64).unwrap();
    program.work(program.stream.raw);
    // Ferry's own work does not wait for the program's.
    gpu.put_async(device.address, &pattern(1, MIB));
    for _ in 0..3 {
        let piece = [Piece { from: device.address, to: host.address, length: MIB as u64 }];
        copy(&mut *queue, Direction::DeviceToHost, &piece).unwrap();
    }
    assert!(host_bytes(&host) == pattern(1, MIB));
    assert!(!program.has_worked() && !program.stream_is_idle(), "the stream is held");
    if drop_it {
        drop(hold);
    } else {
        hold.release();
        hold.release();
    }
    until("the stream does not go on", || program.has_worked());
}

#[test]
fn a_held_stream_waits_and_goes_on() {
    for drop_it in [false, true] {
        let Some(gpu) = gpu("a_held_stream_waits_and_goes_on") else { return };
        check_hold(&gpu, drop_it);
    }
}

#[test]
fn a_stream_is_held_where_the_device_can_t_wait() {
    for drop_it in [false, true] {
        let Some(gpu) = standin("a_stream_is_held_where_the_device_can_t_wait") else { return };
        gpu.standin().fault("cuStreamWaitValue32_v2", "*", 801);
        let before = gpu.count("cuLaunchHostFunc");
        check_hold(&gpu, drop_it);
        assert_eq!(gpu.count("cuLaunchHostFunc") - before, 1);
    }
}

#[test]
fn a_hold_that_fails_holds_nothing() {
    for (function, code) in [("cuStreamWaitValue32_v2", 1), ("cuEventRecord", 400)] {
        let Some(gpu) = standin("a_hold_that_fails_holds_nothing") else { return };
        let program = Program::new(&gpu);
        gpu.standin().fault(function, "1", code);
        let error = gpu.driver().hold(program.stream.raw as u64).err().unwrap();
        assert_eq!(error.vendor_error, code);
        program.work(program.stream.raw);
        until("the stream does not go on", || program.has_worked());
        if function == "cuEventRecord" {
            gpu.expect_leaks();
        }
    }
}

/// The flag of a failed record is given up for good: no other hold gets that flag or one in use.
#[test]
fn a_hold_that_failed_lets_no_other_stream_go() {
    let Some(gpu) = standin("a_hold_that_failed_lets_no_other_stream_go") else { return };
    let programs: Vec<_> = (0..5).map(|_| Program::new(&gpu)).collect();
    let stream = |nth: usize| programs[nth].stream.raw as u64;
    let first = gpu.driver().hold(stream(0)).unwrap();
    let second = gpu.driver().hold(stream(1)).unwrap();
    let third = gpu.driver().hold(stream(2)).unwrap();
    [0, 2].into_iter().for_each(|nth| programs[nth].work(programs[nth].stream.raw));
    // The second hold's flag is free again, and the next hold gets it.
    second.release();
    until("the stream does not go on", || programs[1].stream_is_idle());
    gpu.standin().fault("cuEventRecord", "1", 400);
    assert_eq!(gpu.driver().hold(stream(3)).err().unwrap().vendor_error, 400);
    until("the stream does not go on", || programs[3].stream_is_idle());
    // Two holds begin and end while the first and the third are held.
    for _ in 0..2 {
        let hold = gpu.driver().hold(stream(4)).unwrap();
        programs[4].work(programs[4].stream.raw);
        hold.release();
        until("the stream does not go on", || programs[4].stream_is_idle());
        for _ in 0..100 {
            let held = |nth: usize| !programs[nth].has_worked() && !programs[nth].stream_is_idle();
            assert!(held(0) && held(2), "a stream went on that nobody let go");
            std::thread::yield_now();
        }
    }
    drop((first, third));
    until("the streams do not go on", || programs[0].has_worked() && programs[2].has_worked());
    gpu.expect_leaks();
}

#[test]
fn flags_are_used_again_when_their_streams_have_gone_past() {
    let Some(gpu) = gpu("flags_are_used_again_when_their_streams_have_gone_past") else { return };
    let program = Program::new(&gpu);
    for _ in 0..3 * ferry::limits::HOLDS_MAX {
        let hold = gpu.driver().hold(program.stream.raw as u64).unwrap();
        hold.release();
        until("the stream does not go on", || program.stream_is_idle());
    }
    // A released flag may belong to another hold: a second drop must not release that hold.
    let first = gpu.driver().hold(program.stream.raw as u64).unwrap();
    first.release();
    until("the stream does not go on", || program.stream_is_idle());
    let second = gpu.driver().hold(program.stream.raw as u64).unwrap();
    program.work(program.stream.raw);
    drop(first);
    for _ in 0..100 {
        assert!(!program.stream_is_idle());
        std::thread::yield_now();
    }
    second.release();
    until("the stream does not go on", || program.has_worked());
    let all: Vec<_> = (0..ferry::limits::HOLDS_MAX)
        .map(|_| gpu.driver().hold(program.stream.raw as u64).unwrap())
        .collect();
    assert_eq!(gpu.driver().hold(program.stream.raw as u64).err().unwrap().status, Status::Limit);
    drop(all);
    until("the stream does not go on", || program.stream_is_idle());
}

impl Program<'_> {
    fn stream_is_idle(&self) -> bool {
        let _entered = self.gpu.program().enter().unwrap();
        self.stream.is_idle().unwrap()
    }
}
