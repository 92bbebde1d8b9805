package ferry

// #include <stdlib.h>
// #include <ferry_kv.h>
import "C"

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"ferry/internal/watch"
)

// A Directory finds peers of an engine by name, in a list or in etcd; docs/directory.md has the rules. Close it:
// nothing else frees it. directory_table.go has its entries, changes and status.
type Directory struct {
	engine *Engine
	// Locked for reading in every call into ferry, for writing when the directory is freed.
	mu      sync.RWMutex
	handle  *C.ferry_directory
	closing sync.Mutex
	source  *watch.Source
}

// DirectoryOptions are the options of a directory in etcd; nil means the defaults. A "static:" directory ignores them.
// An empty text means the value of the environment variable that the field's comment names.
type DirectoryOptions struct {
	// TTL is how long etcd keeps an engine's names after it last heard from the engine: 1 to 3,600 whole seconds; 0
	// means 10.
	TTL time.Duration
	// NoWait opens the directory without waiting for etcd. The directory keeps trying to reach etcd.
	NoWait bool
	// User and Password are the user's name and password at etcd: FERRY_ETCD_USER and FERRY_ETCD_PASSWORD.
	User, Password string
	// CAFile names a file with the authorities' certificates that etcd's certificate is checked against, in PEM, for
	// https: FERRY_ETCD_CA.
	CAFile string
	// CertFile and KeyFile name files with this client's certificate and key, in PEM: FERRY_ETCD_CERT and
	// FERRY_ETCD_KEY.
	CertFile, KeyFile string
}

// OpenDirectory opens a directory of the engine's peers. The URL is "static:name=host:port,...", "static:/file",
// "static:" (names are addresses), or "etcd:http://host:port,.../prefix". The context's deadline bounds the wait for
// etcd's first answer; without one it is 5 seconds. ErrUnreachable: etcd does not answer in time. The engine may
// be closed before or after the directory.
func (e *Engine) OpenDirectory(ctx context.Context, url string, options *DirectoryOptions) (*Directory, error) {
	const op = "directory"
	if options == nil {
		options = &DirectoryOptions{}
	}
	if options.TTL < 0 || options.TTL%time.Second != 0 || options.TTL > 3600*time.Second {
		return nil, invalid(op, "TTL is %v; it must be 1 to 3,600 whole seconds, or 0", options.TTL)
	}
	for _, text := range []string{url, options.User, options.Password, options.CAFile, options.CertFile, options.KeyFile} {
		if strings.IndexByte(text, 0) >= 0 { // C would see it end there
			return nil, invalid(op, "the URL and the options must have no zero")
		}
	}
	d, given, timeout := &Directory{engine: e}, *options, openTimeout(ctx)
	open := func() error { return d.open(op, url, &given, timeout) }
	if err := asideOrUndo(ctx, op, open, func() { C.ferry_directory_free(d.handle) }); err != nil {
		return nil, err
	}
	var fd C.int
	err := d.call(op, func(c *C.ferry_error) C.ferry_status { return C.ferry_directory_fd(d.handle, &fd, c) })
	if err == nil {
		if d.source, err = watch.NewSource(int(fd)); err != nil {
			err = watchError(err)
		}
	}
	if err != nil {
		C.ferry_directory_free(d.handle)
		return nil, err
	}
	return d, nil
}

func (d *Directory) open(op, url string, options *DirectoryOptions, timeoutMs C.uint32_t) error {
	var texts []unsafe.Pointer
	defer func() {
		for _, text := range texts {
			C.free(text)
		}
	}()
	text := func(text string) *C.char {
		made := C.CString(text)
		texts = append(texts, unsafe.Pointer(made))
		return made
	}
	given := func(option string) *C.char {
		if option == "" {
			return nil
		}
		return text(option)
	}
	// The struct is in C's memory, because it has pointers.
	full := (*C.ferry_directory_options)(C.calloc(1, C.sizeof_ferry_directory_options))
	texts = append(texts, unsafe.Pointer(full))
	*full = C.ferry_directory_options{struct_size: C.sizeof_ferry_directory_options,
		ttl_s: C.uint32_t(options.TTL / time.Second), open_timeout_ms: timeoutMs,
		user: given(options.User), password: given(options.Password), ca_file: given(options.CAFile),
		cert_file: given(options.CertFile), key_file: given(options.KeyFile)}
	if options.NoWait {
		full.flags = C.FERRY_DIRECTORY_NO_WAIT
	}
	return d.engine.call(op, func(c *C.ferry_error) C.ferry_status {
		return C.ferry_directory_open(d.engine.handle, text(url), full, &d.handle, c)
	})
}

// asideOrUndo makes a call as aside does. If the context ends first and the call succeeds later, asideOrUndo undoes the
// call.
func asideOrUndo(ctx context.Context, op string, call func() error, undo func()) error {
	var settled atomic.Bool
	err := aside(ctx, op, func() error {
		err := call()
		if err == nil && !settled.CompareAndSwap(false, true) {
			undo()
		}
		return err
	})
	if err != nil && !settled.CompareAndSwap(false, true) {
		return nil // it succeeded just then
	}
	return err
}

// openTimeout is the time until the context's deadline in milliseconds, at least one; 0, the default, without a
// deadline.
func openTimeout(ctx context.Context) C.uint32_t {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	left := (time.Until(deadline) + time.Millisecond - 1) / time.Millisecond
	return C.uint32_t(min(max(left, 1), 1<<32-1))
}

// call makes one call into ferry.
func (d *Directory) call(op string, f func(c *C.ferry_error) C.ferry_status) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.handle == nil {
		return closedDirectory(op)
	}
	c := newCError()
	return failure(op, f(&c), &c)
}

func closedDirectory(op string) *Error {
	return &Error{Op: op, Status: ErrClosed, Message: "the directory is closed", RequestIndex: -1}
}

// named makes one call into ferry with a name.
func (d *Directory) named(op, name string, f func(name *C.char, c *C.ferry_error) C.ferry_status) error {
	if strings.IndexByte(name, 0) >= 0 { // C would see the name end there
		return invalid(op, "name: %q has a zero", name)
	}
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return d.call(op, func(c *C.ferry_error) C.ferry_status { return f(text, c) })
}

// How long a thread stays in a waiting call of a directory before the context is checked. It also bounds each dial.
const directoryTurn = 2 * time.Second

// repeat makes a waiting call in turns, each with a timeout of directoryTurn at most. It stops when the context has
// ended, when a call returns before its timeout, or when the status is none of `passing`. If the context cuts the last
// turn short, repeat returns the error of the turn before, which had more time to find the reason.
func (d *Directory) repeat(ctx context.Context, op, name string,
	call func(name *C.char, timeout C.uint64_t, c *C.ferry_error) C.ferry_status, passing ...Status) error {
	var earlier *Error
	for {
		var began time.Time
		timeout := min(timeoutOf(ctx), C.uint64_t(directoryTurn))
		err := d.named(op, name, func(name *C.char, c *C.ferry_error) C.ferry_status {
			began = time.Now()
			return call(name, timeout, c)
		})
		failed, _ := err.(*Error)
		if failed == nil || !slices.Contains(passing, failed.Status) || time.Since(began) < time.Duration(timeout) {
			return err
		}
		cause := over(ctx)
		if cause != nil && earlier != nil && timeout < C.uint64_t(directoryTurn) {
			failed = earlier
		}
		if failed.Context = cause; cause != nil {
			return failed
		}
		earlier = failed
	}
}

// Register makes the engine known under a name, and returns when etcd has it. The directory keeps the name by itself.
// While another engine has the name, Register waits. It holds a thread.
//
// If the context ends first, the error holds the context's error, and the name is not registered; after a cancellation
// the name may be registered for a short time before it is withdrawn. ErrBusy: another engine has the name.
// ErrUnreachable: etcd does not answer.
func (d *Directory) Register(ctx context.Context, name string) error {
	const op = "register"
	register := func() error {
		return d.repeat(ctx, op, name, func(name *C.char, timeout C.uint64_t, c *C.ferry_error) C.ferry_status {
			return C.ferry_directory_register(d.handle, name, timeout, c)
		}, ErrBusy, ErrUnreachable)
	}
	return asideOrUndo(ctx, op, register, func() {
		d.named(op, name, func(name *C.char, c *C.ferry_error) C.ferry_status {
			return C.ferry_directory_unregister(d.handle, name, 0, c)
		})
	})
}

// Unregister withdraws a name, and returns when etcd has it no longer. It holds a thread. If the context ends first,
// the name is withdrawn when etcd answers, or when its lease is over.
func (d *Directory) Unregister(ctx context.Context, name string) error {
	const op = "unregister"
	return aside(ctx, op, func() error {
		var w withdrawal
		return d.repeat(ctx, op, name, func(name *C.char, timeout C.uint64_t, c *C.ferry_error) C.ferry_status {
			return C.ferry_status(w.turn(Status(C.ferry_directory_unregister(d.handle, name, timeout, c))))
		}, ErrTimeout)
	})
}

// A withdrawal is the state of an Unregister, which ferry does in turns.
type withdrawal struct{ goesOn bool }

// turn converts ferry's status of one turn. If ferry no longer knows the name, the name was withdrawn between two
// turns, which is a success.
func (w *withdrawal) turn(status Status) Status {
	if w.goesOn && status == ErrInvalid {
		return OK
	}
	w.goesOn = true
	return status
}

// Lookup returns what the directory knows of a name. It never waits. ErrUnreachable: nobody has the name.
func (d *Directory) Lookup(name string) (DirectoryEntry, error) {
	entry := C.ferry_directory_entry{struct_size: C.sizeof_ferry_directory_entry}
	err := d.named("lookup", name, func(name *C.char, c *C.ferry_error) C.ferry_status {
		return C.ferry_directory_lookup(d.handle, name, &entry, c)
	})
	if err != nil {
		return DirectoryEntry{}, err
	}
	return newDirectoryEntry(&entry), nil
}

// Connect connects to the incarnation that has the name. It keeps trying while the name is missing, while nothing
// answers, or while another engine answers; but if a "static:" directory lacks the name, it fails at once. It holds a
// thread. If the context ends first, the error is ErrUnreachable, ErrTimeout or ErrStale with the context's error, or
// ErrCancelled.
func (d *Directory) Connect(ctx context.Context, name string) (Peer, error) {
	const op = "connect"
	var peer C.ferry_peer
	err := aside(ctx, op, func() error {
		return d.repeat(ctx, op, name, func(name *C.char, timeout C.uint64_t, c *C.ferry_error) C.ferry_status {
			return C.ferry_directory_connect(d.handle, name, timeout, &peer, c)
		}, ErrUnreachable, ErrTimeout, ErrStale, ErrPeerLost)
	})
	if err != nil {
		return Peer{}, err
	}
	return Peer{d.engine, uint64(peer)}, nil
}

// List lists the entries whose names begin with the prefix, in order of the names; "" lists all. It never waits.
func (d *Directory) List(prefix string) ([]DirectoryEntry, error) {
	list, err := listOf(func(out *C.ferry_directory_entry, capacity C.size_t, count *C.size_t) error {
		return d.named("list", prefix, func(prefix *C.char, c *C.ferry_error) C.ferry_status {
			return C.ferry_directory_list(d.handle, prefix, out, C.sizeof_ferry_directory_entry, capacity, count, c)
		})
	})
	entries := make([]DirectoryEntry, len(list))
	for i := range list {
		entries[i] = newDirectoryEntry(&list[i])
	}
	return entries, err
}

// Info returns whether etcd answers, and which names are published.
func (d *Directory) Info() (DirectoryInfo, error) {
	s := C.ferry_directory_info{struct_size: C.sizeof_ferry_directory_info}
	err := d.call("info", func(c *C.ferry_error) C.ferry_status {
		return C.ferry_directory_get_info(d.handle, &s, c)
	})
	if err != nil {
		return DirectoryInfo{}, err
	}
	return DirectoryInfo{
		Connected: s.is_connected != 0,
		CutOff:    time.Duration(s.cut_off_ms) * time.Millisecond,
		Entries:   int(s.entries), Ignored: uint64(s.ignored),
		Names: int(s.names), NamesPublished: int(s.names_published),
		Sessions: uint64(s.sessions), Why: C.GoString(&s.why[0]),
	}, nil
}

// Close withdraws the names and ends the directory. Peers stay connected. If etcd does not answer within a second, the
// names stay until their lease is over. Close waits for calls that hold a thread, two seconds at most. A second Close
// returns nil.
func (d *Directory) Close() error {
	d.closing.Lock()
	defer d.closing.Unlock()
	if d.handle == nil { // written under closing
		return nil
	}
	c := newCError()
	if err := failure("close", C.ferry_directory_close(d.handle, &c), &c); err != nil {
		return err
	}
	d.mu.Lock()
	C.ferry_directory_free(d.handle)
	d.handle = nil
	d.mu.Unlock()
	d.source.Close()
	return nil
}
