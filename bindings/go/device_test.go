package ferry

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"ferry/internal/standin"
)

// More than a piece of staging memory, and a few words.
const (
	deviceBytes = 2<<20 + 64<<10
	smallBytes  = 4096
)

// library is a device library and its names in tests.
type library struct {
	*standin.Library
	kind   MemoryKind
	event  func(uintptr) StartAfter
	stream func(uintptr) StartAfter
}

var (
	cuda   = library{standin.CUDA, MemoryCUDA, AfterCUDAEvent, AfterCUDAStream}
	ascend = library{standin.Ascend, MemoryAscend, AfterACLEvent, AfterACLStream}
)

// withEach runs a test with each library.
func withEach(t *testing.T, test func(*testing.T, library)) {
	for _, l := range []library{cuda, ascend} {
		t.Run(l.Name, func(t *testing.T) { test(t, l) })
	}
}

func (l library) config() Config { return Config{l.Name + "_library": l.Path()} }

// devices are two engines that know the library: memory of the first one's device 0, and of the second one's
// device 1.
type devices struct {
	*pair
	source, target standin.Memory
	near, far      *Memory
	there          RegionInfo
}

func newDevices(t *testing.T, l library, length int) *devices {
	t.Helper()
	d := &devices{source: l.Alloc(0, length), target: l.Alloc(1, length)}
	t.Cleanup(d.source.Free)
	t.Cleanup(d.target.Free)
	d.pair = newPair(t, length, l.config())
	var err error
	if d.near, err = d.pair.near.RegisterDevice(d.source.Address, length, nil); err != nil {
		t.Fatal(err)
	}
	options := &RegionOptions{Name: "device", Kind: l.kind, Device: 1}
	if d.far, err = d.pair.far.RegisterDevice(d.target.Address, length, options); err != nil {
		t.Fatal(err)
	}
	d.there = d.region(t, "device")
	return d
}

// region waits for the announcement, which follows shortly after the region.
func (d *devices) region(t *testing.T, name string) RegionInfo {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(time.Millisecond) {
		regions, err := d.peer.Regions()
		if err != nil {
			t.Fatal(err)
		}
		for _, region := range regions {
			if region.Name == name {
				return region
			}
		}
	}
	t.Fatalf("the peer has no region %q", name)
	return RegionInfo{}
}

// request covers all of the memory, from the device or from the host.
func (d *devices) request(local *Memory) []Request {
	return []Request{{local.Address(), d.there.Address, uint64(local.Len()), d.there.Region}}
}

func filled(length int, seed uint64) []byte {
	bytes := make([]byte, length)
	fill(bytes, seed)
	return bytes
}

func TestMemoryOfDevicesIsMovedBothWays(t *testing.T) { withEach(t, memoryOfDevicesIsMovedBothWays) }

func memoryOfDevicesIsMovedBothWays(t *testing.T, l library) {
	d := newDevices(t, l, deviceBytes)
	for name, local := range map[string]*Memory{"device": d.near, "host": d.here} {
		t.Run(name, func(t *testing.T) {
			put, get := d.source.Put, d.source.Get
			if local == d.here {
				put = func(bytes []byte) { copy(d.here.Bytes(), bytes) }
				get = d.here.Bytes
			}
			before, err := d.pair.near.Stats()
			if err != nil {
				t.Fatal(err)
			}
			put(filled(deviceBytes, 1))
			result, err := d.peer.Write(soon(t), d.request(local), nil)
			if err != nil || result.BytesConfirmed != deviceBytes {
				t.Fatal(result, err)
			}
			check(t, d.target.Get(), 1)
			d.target.Put(filled(deviceBytes, 2))
			if _, err := d.peer.Read(soon(t), d.request(local), nil); err != nil {
				t.Fatal(err)
			}
			check(t, get(), 2)
			// Devices of one host copy by themselves, if the library lets a process map its own exports.
			want := before.BytesDevice
			if local == d.near && l.kind == MemoryCUDA {
				want += 2 * deviceBytes
			}
			if after, err := d.pair.near.Stats(); err != nil || after.BytesDevice != want {
				t.Error(after, err)
			}
		})
	}
}

func TestMemoryOfDevicesIsNotForTheCPU(t *testing.T) { withEach(t, memoryOfDevicesIsNotForTheCPU) }

func memoryOfDevicesIsNotForTheCPU(t *testing.T, l library) {
	d := newDevices(t, l, smallBytes)
	if d.near.Bytes() != nil || d.near.Address() != uint64(d.source.Address) || d.near.Len() != smallBytes {
		t.Error(d.near.Bytes(), d.near.Address(), d.near.Len())
	}
	if d.there.Kind != l.kind || d.there.Device != 1 || d.there.Kind.String() != strings.ToUpper(l.Name) {
		t.Error(d.there)
	}
	if plain := d.region(t, "there"); plain.Kind != MemoryHost || plain.Device != 0 {
		t.Error(plain)
	}
}

func TestSeveralDevicesAtOnce(t *testing.T) { withEach(t, severalDevicesAtOnce) }

func severalDevicesAtOnce(t *testing.T, l library) {
	e := newEngine(t, l.config())
	first, second := l.Alloc(0, smallBytes), l.Alloc(1, smallBytes)
	defer first.Free()
	defer second.Free()
	ranges := []DeviceRange{{first.Address, smallBytes}, {second.Address, smallBytes}}
	registered, err := e.RegisterDeviceBatch(ranges, nil)
	if err != nil || len(registered) != 2 {
		t.Fatal(err)
	}
	for i, memory := range registered {
		if memory.Address() != uint64(ranges[i].Address) {
			t.Error(i, memory.Address())
		}
		if err := memory.Close(); err != nil {
			t.Error(err)
		}
	}
	ranges[1].Length *= 2
	_, err = e.RegisterDeviceBatch(ranges, nil)
	var failed *Error
	if !errors.As(err, &failed) || failed.Status != ErrInvalid || failed.RequestIndex != 1 {
		t.Error(err)
	}
	if none, err := e.RegisterDeviceBatch(nil, nil); none != nil || err != nil {
		t.Error(none, err)
	}
}

func TestAWrongStatementIsRefused(t *testing.T) { withEach(t, aWrongStatementIsRefused) }

func aWrongStatementIsRefused(t *testing.T, l library) {
	e := newEngine(t, l.config())
	memory := l.Alloc(1, smallBytes)
	defer memory.Free()
	host, err := e.Alloc(smallBytes, nil)
	if err != nil {
		t.Fatal(err)
	}
	device := func(options *RegionOptions) error {
		_, err := e.RegisterDevice(memory.Address, smallBytes, options)
		return err
	}
	for _, c := range []struct {
		name, says string
		err        error
	}{
		{"device", "options.device", device(&RegionOptions{Kind: l.kind})},
		{"kind", "options.kind", device(&RegionOptions{Kind: MemoryHost})},
		{"unknown kind", "options.kind", device(&RegionOptions{Kind: 99})},
		{"device without kind", "options.device", device(&RegionOptions{Device: 1})},
		{"host memory", "options.kind", func() error {
			_, err := e.Register(unsafe.Add(host.address, 0), smallBytes, &RegionOptions{Kind: l.kind})
			return err
		}()},
	} {
		if !errors.Is(c.err, ErrInvalid) || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, c.err)
		}
	}
	if _, err := e.Alloc(smallBytes, &RegionOptions{Kind: l.kind}); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	if _, err := e.RegisterDevice(memory.Address, 0, nil); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// A transfer waits for the pending writes of a stream.
func TestATransferStartsAfterTheWorkOfADevice(t *testing.T) {
	withEach(t, aTransferStartsAfterTheWorkOfADevice)
}

func aTransferStartsAfterTheWorkOfADevice(t *testing.T, l library) {
	points := map[string]func(*standin.Stream) StartAfter{
		"event":  func(s *standin.Stream) StartAfter { return l.event(s.Event()) },
		"stream": func(s *standin.Stream) StartAfter { return l.stream(s.Handle()) },
	}
	for name, point := range points {
		t.Run(name, func(t *testing.T) {
			d := newDevices(t, l, smallBytes)
			stream := l.NewStream(smallBytes)
			t.Cleanup(stream.Close)
			stream.Block()
			fill(stream.Staged(), 3)
			stream.Write(d.source)
			options := &TransferOptions{StartAfter: point(stream)}
			var transfer *Transfer
			var err error
			standin.Do(func() { transfer, err = d.peer.Submit(Write, d.request(d.near), options) })
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-transfer.Done():
				t.Fatal("it did not wait")
			case <-time.After(50 * time.Millisecond):
			}
			if strings.Trim(string(d.target.Get()), "\x00") != "" {
				t.Error("bytes have come")
			}
			stream.Go()
			if _, err := transfer.Wait(soon(t)); err != nil {
				t.Fatal(err)
			}
			check(t, d.target.Get(), 3)
		})
	}
}

// Small, from the host and to a peer on this host: without a stream this is one copy in the calling thread.
func TestASmallTransferWaitsForAnEventToo(t *testing.T) {
	withEach(t, aSmallTransferWaitsForAnEventToo)
}

func aSmallTransferWaitsForAnEventToo(t *testing.T, l library) {
	d := newDevices(t, l, smallBytes)
	stream := l.NewStream(smallBytes)
	t.Cleanup(stream.Close)
	stream.Block()
	stream.Write(d.source)
	fill(d.here.Bytes(), 4)
	ended := make(chan error, 1)
	go func() {
		_, err := d.peer.Write(soon(t), []Request{d.pair.request(0, smallBytes)}, &TransferOptions{StartAfter: l.event(stream.Event())})
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatal("it did not wait", err)
	case <-time.After(50 * time.Millisecond):
	}
	stream.Go()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	check(t, d.pair.there.Bytes(), 4)
}

// Streams of AscendCL have a context, and a context belongs to a thread; goroutines have none.
func TestAGoroutineNamesAnEventRatherThanAStreamOfAscend(t *testing.T) {
	d := newDevices(t, ascend, smallBytes)
	stream := ascend.NewStream(smallBytes)
	t.Cleanup(stream.Close)
	fill(stream.Staged(), 6)
	stream.Write(d.source)
	_, err := d.peer.Write(soon(t), d.request(d.near), &TransferOptions{StartAfter: AfterACLStream(stream.Handle())})
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "record an event there instead") {
		t.Fatal(err)
	}
	if _, err := d.peer.Write(soon(t), d.request(d.near), &TransferOptions{StartAfter: AfterACLEvent(stream.Event())}); err != nil {
		t.Fatal(err)
	}
	check(t, d.target.Get(), 6)
}

func TestAStreamWaitsForATransfer(t *testing.T) {
	d := newDevices(t, cuda, smallBytes)
	held, waiting := cuda.NewStream(smallBytes), cuda.NewStream(smallBytes)
	t.Cleanup(held.Close)
	t.Cleanup(waiting.Close)
	d.target.Put(filled(smallBytes, 5))
	held.Block()
	held.Write(d.source)
	transfer, err := d.peer.Submit(Read, d.request(d.near), &TransferOptions{StartAfter: AfterCUDAEvent(held.Event())})
	if err != nil {
		t.Fatal(err)
	}
	if err := transfer.StreamWait(waiting.Handle()); err != nil {
		t.Fatal(err)
	}
	waiting.Read(d.source)
	if waiting.IsDone() {
		t.Error("the stream did not wait")
	}
	held.Go()
	for until := time.Now().Add(30 * time.Second); !waiting.IsDone(); runtime.Gosched() {
		if time.Now().After(until) {
			t.Fatal("the stream is stuck")
		}
	}
	check(t, waiting.Staged(), 5)
	if _, err := transfer.Wait(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := transfer.StreamWait(waiting.Handle()); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNoPointIsRefused(t *testing.T) {
	p := newPair(t, smallBytes, Config{"ascend": "false"})
	for _, c := range []struct {
		point StartAfter
		is    Status
	}{
		{AfterCUDAEvent(0), ErrInvalid},
		{AfterACLEvent(0), ErrInvalid},
		{AfterACLEvent(7), ErrUnavailable},
		{AfterACLStream(7), ErrUnavailable},
	} {
		_, err := p.peer.Write(soon(t), []Request{p.request(0, 8)}, &TransferOptions{StartAfter: c.point})
		if !errors.Is(err, c.is) {
			t.Errorf("%v: %v", c.point, err)
		}
	}
}
