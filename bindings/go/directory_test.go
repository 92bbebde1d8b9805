package ferry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Directories: lists, files and addresses. Rust tests cover their work in etcd; the tests here check that Go calls
// reach it and end with their contexts.

func openDirectory(t *testing.T, e *Engine, url string) *Directory {
	t.Helper()
	d, err := e.OpenDirectory(soon(t), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// named opens a directory that names a second engine, and a third that does not exist.
func named(t *testing.T) (d *Directory, peer *Engine) {
	own, peer := newEngine(t, nil), newEngine(t, nil)
	return openDirectory(t, own, fmt.Sprintf("static:prefill/0=%s,prefill/1=127.0.0.1:1", peer.Address())), peer
}

func TestAListNamesPeers(t *testing.T) {
	d, engine := named(t)
	want := DirectoryEntry{Name: "prefill/0", Address: engine.Address()}
	if entry, err := d.Lookup("prefill/0"); err != nil || entry != want {
		t.Fatal(entry, err)
	}
	peer, err := d.Connect(soon(t), "prefill/0")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := peer.Info(); err != nil || info.Address != engine.Address() {
		t.Fatal(info, err)
	}
	other := DirectoryEntry{Name: "prefill/1", Address: "127.0.0.1:1"}
	if list, err := d.List(""); err != nil || len(list) != 2 || list[0] != want || list[1] != other {
		t.Fatal(list, err)
	}
	if list, err := d.List("prefill/1"); err != nil || len(list) != 1 || list[0] != other {
		t.Fatal(list, err)
	}
	if list, err := d.List("decode"); err != nil || len(list) != 0 {
		t.Fatal(list, err)
	}
	if status, err := d.Info(); err != nil || status != (DirectoryInfo{Connected: true, Entries: 2}) {
		t.Fatalf("%+v %v", status, err)
	}
	if change, ok, err := d.Poll(); ok || err != nil {
		t.Fatal(change, err)
	}
	if err := errors.Join(d.Register(soon(t), "prefill/0"), d.Unregister(soon(t), "prefill/0")); err != nil {
		t.Fatal(err)
	}
}

func TestAFileAndAddressesNamePeers(t *testing.T) {
	own, peer := newEngine(t, nil), newEngine(t, nil)
	file := filepath.Join(t.TempDir(), "peers")
	if err := os.WriteFile(file, []byte("# peers\na = "+peer.Address()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := openDirectory(t, own, "static:"+file).Connect(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	second, err := openDirectory(t, own, "static:").Connect(soon(t), peer.Address())
	if err != nil || first != second || first == (Peer{}) {
		t.Fatal(first, second, err)
	}
	// More than one call's worth.
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("n%03d=h:1", i))
	}
	list, err := openDirectory(t, own, "static:"+strings.Join(many, ",")).List("n")
	if err != nil || len(list) != 100 || list[99].Name != "n099" {
		t.Fatal(len(list), err)
	}
}

func TestWhatIsWrongWithADirectoryIsNamed(t *testing.T) {
	d, _ := named(t)
	open := func(url string, options *DirectoryOptions) error {
		_, err := d.engine.OpenDirectory(soon(t), url, options)
		return err
	}
	gone := newEngine(t, nil)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	_, ofClosed := gone.OpenDirectory(soon(t), "static:", nil)
	_, lookup := d.Lookup("prefill/2")
	_, connect := d.Connect(soon(t), "prefill/2")
	_, list := d.List("a b")
	_, zero := d.Lookup("prefill/0\x00")
	for i, it := range []struct {
		err    error
		status Status
		part   string
	}{
		{open("consul:", nil), ErrInvalid, "url begins neither"},
		{open("etcd:https://h", nil), ErrInvalid, "ca: "},
		{open("static:\x00", nil), ErrInvalid, "no zero"},
		{open("static:", &DirectoryOptions{User: "u\x00"}), ErrInvalid, "no zero"},
		{open("static:", &DirectoryOptions{TTL: 1500 * time.Millisecond}), ErrInvalid, "TTL is 1.5s"},
		{open("static:", &DirectoryOptions{TTL: 3601 * time.Second}), ErrInvalid, "TTL is 1h0m1s"},
		{open("static:", &DirectoryOptions{TTL: -time.Second}), ErrInvalid, "TTL is -1s"},
		{open("static:", &DirectoryOptions{User: "u"}), ErrInvalid, "options.password"},
		{open("static:", &DirectoryOptions{CAFile: "/nonexistent"}), ErrInvalid, "options.ca_file"},
		{open("static:", &DirectoryOptions{CertFile: "/nonexistent", KeyFile: "/n"}), ErrInvalid, "options.cert_file"},
		{open("static:", &DirectoryOptions{KeyFile: "/nonexistent"}), ErrInvalid, "options.cert_file"},
		{ofClosed, ErrClosed, "the engine is closed"},
		{lookup, ErrUnreachable, "the directory has no prefill/2"},
		{connect, ErrUnreachable, "the directory has no prefill/2"},
		{list, ErrInvalid, `prefix is "a b"`},
		{zero, ErrInvalid, `name: "prefill/0\x00" has a zero`},
		{d.Register(soon(t), "decode"), ErrInvalid, "has no decode"},
		{d.Unregister(soon(t), "a b"), ErrInvalid, `name is "a b"`},
	} {
		// None of these calls waits.
		if !errors.Is(it.err, it.status) || !strings.Contains(it.err.Error(), it.part) || errors.Is(it.err, context.DeadlineExceeded) {
			t.Errorf("%d: %v, not %v with %q", i, it.err, it.status, it.part)
		}
	}
}

func TestTimesAndTurnsOfADirectory(t *testing.T) {
	if ms := openTimeout(context.Background()); ms != 0 { // the default
		t.Error(ms)
	}
	for left, want := range map[time.Duration][2]uint64{-time.Hour: {1, 1}, time.Second: {1, 1000}, 1 << 62: {1<<32 - 1, 1<<32 - 1}} {
		ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(left))
		defer cancel()
		if ms := uint64(openTimeout(ctx)); ms < want[0] || ms > want[1] {
			t.Error(left, ms)
		}
	}
	// A name that was there in the first turn and is unknown in the next one is withdrawn.
	var w, wrong withdrawal
	if first, second := w.turn(ErrTimeout), w.turn(ErrInvalid); first != ErrTimeout || second != OK {
		t.Error(first, second)
	}
	if first := wrong.turn(ErrInvalid); first != ErrInvalid {
		t.Error(first)
	}
}

// passes makes a call whose deadline passes, again until its error has the reason: on a busy machine ferry may answer
// later than aside waits.
func passes(t *testing.T, limit time.Duration, reason string, call func(ctx context.Context) error) {
	t.Helper()
	var err error
	for range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err = call(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrTimeout) {
			t.Fatal(err)
		}
		if strings.Contains(err.Error(), reason) {
			return
		}
	}
	t.Fatal(err)
}

// Nothing listens there, so Connect retries until its context ends.
func TestConnectByNameEndsWithItsContext(t *testing.T) {
	d, _ := named(t)
	const limit = directoryTurn + 200*time.Millisecond
	passes(t, limit, "prefill/1: ", func(ctx context.Context) error {
		began := time.Now()
		_, err := d.Connect(ctx, "prefill/1")
		if took := time.Since(began); took < limit {
			t.Error(took)
		}
		return err
	})
	began, before := time.Now(), runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := d.Connect(ctx, "prefill/1"); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrCancelled) {
		t.Error(err)
	}
	if took := time.Since(began); took > directoryTurn/2 {
		t.Error(took)
	}
	// In the background the call ends with its turn.
	for ctx := soon(t); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("the call goes on")
		}
	}
}

// A call that succeeds after its caller has left is undone; a call that succeeds just before counts.
func TestWhatSucceedsTooLateIsUndone(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	goOn, undone := make(chan struct{}), make(chan struct{})
	call := func() error { cancel(); <-goOn; return nil }
	if err := asideOrUndo(ctx, "op", call, func() { close(undone) }); !errors.Is(err, ErrCancelled) {
		t.Fatal(err)
	}
	select {
	case <-undone:
		t.Fatal("a call that still runs was undone")
	default:
	}
	close(goOn)
	select {
	case <-undone:
	case <-soon(t).Done():
		t.Fatal("a call that succeeded too late was not undone")
	}
	var counted []chan struct{}
	for range 1000 {
		ctx, cancel := context.WithCancel(context.Background())
		undone := make(chan struct{}, 1)
		err := asideOrUndo(ctx, "op", func() error { go cancel(); return nil }, func() { undone <- struct{}{} })
		if err == nil {
			counted = append(counted, undone)
			continue
		}
		select {
		case <-undone:
		case <-soon(t).Done():
			t.Fatal("a call that succeeded and returned an error was not undone")
		}
	}
	for _, undone := range counted {
		if len(undone) != 0 {
			t.Fatal("a call that counts was undone")
		}
	}
}

func TestAClosedDirectorySaysSo(t *testing.T) {
	d, _ := named(t)
	var all sync.WaitGroup
	for range 3 {
		together(&all, func() {
			if _, err := d.Next(context.Background()); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := d.Next(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	_, lookup := d.Lookup("prefill/0")
	_, list := d.List("")
	_, _, poll := d.Poll()
	_, status := d.Info()
	_, connect := d.Connect(soon(t), "prefill/0")
	for i, err := range []error{lookup, list, poll, status, connect, d.Register(soon(t), "prefill/0"), d.Unregister(soon(t), "prefill/0")} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// The engine may be closed before its directory; its peers then end with it.
func TestADirectoryOutlivesItsEngine(t *testing.T) {
	d, _ := named(t)
	if err := d.engine.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lookup("prefill/0"); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := d.Connect(soon(t), "prefill/0"); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestAClosedDirectoryLeavesNoDescriptor(t *testing.T) {
	e := newEngine(t, nil)
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := descriptors()
	for range 16 {
		if err := openDirectory(t, e, "static:").Close(); err != nil {
			t.Fatal(err)
		}
	}
	if after := descriptors(); after >= before+16 {
		t.Fatal(before, after)
	}
}

// startEtcd starts a server of etcd until the end of the test.
func startEtcd(t *testing.T) (url string) {
	program := os.Getenv("FERRY_TEST_ETCD")
	if program == "" {
		program = "etcd"
	}
	if _, err := exec.LookPath(program); err != nil {
		t.Skip("SKIPPED: there is no etcd (Debian's package etcd-server)")
	}
	free := func() string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		return "http://" + listener.Addr().String()
	}
	own, peer := free(), free()
	server := exec.Command(program, "--data-dir", filepath.Join(t.TempDir(), "etcd"), "--listen-client-urls", own,
		"--advertise-client-urls", own, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default="+peer)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	return own
}

func TestNamesInEtcdComeAndGo(t *testing.T) {
	url := "etcd:" + startEtcd(t) + "/test"
	own, peer := newEngine(t, nil), newEngine(t, nil)
	finder, names := openDirectory(t, own, url), openDirectory(t, peer, url)
	if err := names.Register(soon(t), "prefill/0"); err != nil {
		t.Fatal(err)
	}
	change, err := finder.Next(soon(t))
	if err != nil || change.Kind != ChangeAdded || !change.Entry.HasIdentity {
		t.Fatal(change, err)
	}
	found, err := finder.Connect(soon(t), "prefill/0")
	if err != nil {
		t.Fatal(err)
	}
	info, err := found.Info()
	if err != nil || info.EngineID != change.Entry.EngineID || info.Incarnation != change.Entry.Incarnation {
		t.Fatal(info, change, err)
	}
	if status, err := names.Info(); err != nil || !status.Connected || status.Names != 1 || status.NamesPublished != 1 {
		t.Fatalf("%+v %v", status, err)
	}
	// The waiter gets the name in a later turn: it waits for longer than one turn.
	third, waits := openDirectory(t, newEngine(t, nil), url), make(chan error, 1)
	go func() { waits <- third.Register(soon(t), "prefill/0") }()
	passes(t, directoryTurn+300*time.Millisecond, "BUSY: ", func(ctx context.Context) error {
		return finder.Register(ctx, "prefill/0")
	})
	if err := names.Unregister(soon(t), "prefill/0"); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
	if entry, err := third.Lookup("prefill/0"); err != nil || entry.Address != third.engine.Address() {
		t.Fatal(entry, err)
	}
	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
	for change.Kind != ChangeRemoved {
		if change, err = finder.Next(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// The name becomes free when no caller waits for it any more, but the call still runs in the background.
func TestARegistrationThatIsCancelledIsUndone(t *testing.T) {
	url := "etcd:" + startEtcd(t) + "/test"
	finder, names := openDirectory(t, newEngine(t, nil), url), openDirectory(t, newEngine(t, nil), url)
	if err := names.Register(soon(t), "a"); err != nil {
		t.Fatal(err)
	}
	until := func(what string, holds func() bool) {
		for ctx := soon(t); !holds(); time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatal(what)
			}
		}
	}
	registers := func() bool {
		status, err := finder.Info()
		return err == nil && status.Names == 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- finder.Register(ctx, "a") }()
	until("nothing was registered", registers)
	cancel()
	if err := <-ended; !errors.Is(err, ErrCancelled) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := names.Unregister(soon(t), "a"); err != nil {
		t.Fatal(err)
	}
	until("the name is kept", func() bool { return !registers() })
	until("the name is there", func() bool { _, err := names.Lookup("a"); return errors.Is(err, ErrUnreachable) })
}

func TestOpenWaitsForEtcdUntilItsContextEnds(t *testing.T) {
	e := newEngine(t, nil)
	const nobody = "etcd:http://127.0.0.1:1"
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := e.OpenDirectory(ctx, nobody, nil); !errors.Is(err, ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	began := time.Now()
	if _, err := e.OpenDirectory(ctx, nobody, nil); !errors.Is(err, context.Canceled) || time.Since(began) > 3*time.Second {
		t.Fatal(err)
	}
	d, err := e.OpenDirectory(context.Background(), nobody, &DirectoryOptions{NoWait: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if status, err := d.Info(); err != nil || status.Connected {
		t.Fatal(status, err)
	}
	// etcd is not running: a call with a name ends in the background, one turn later at most.
	passes(t, 100*time.Millisecond, "UNREACHABLE: ", func(ctx context.Context) error { return d.Register(ctx, "a") })
}
