package ferry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestErrorsNameTheArgument(t *testing.T) {
	p := newPair(t, 4096, nil)
	for _, c := range []struct {
		name   string
		status Status
		says   string
		call   func() error
	}{
		{"a bad value", ErrInvalid, "lanes", func() error { _, err := Open(Config{"lanes": "many"}); return err }},
		{"no length", ErrInvalid, "length", func() error { _, err := p.near.Alloc(0, nil); return err }},
		{"a long name", ErrInvalid, "name", func() error {
			_, err := p.near.Alloc(1, &RegionOptions{Name: strings.Repeat("x", 64)})
			return err
		}},
		{"memory twice", ErrOverlap, "", func() error { _, err := p.near.Register(p.here.address, 4096, nil); return err }},
		{"no operation", ErrInvalid, "op", func() error { _, err := p.peer.Submit(7, []Request{p.request(0, 8)}, nil); return err }},
		{"no blocks", ErrInvalid, "blocks", func() error { _, err := p.peer.SubmitBlocks(Write, nil, nil); return err }},
		{"a queue for nothing", ErrInvalid, "what", func() error { _, err := p.near.Queue(0); return err }},
		{"a long notification", ErrLimit, "", func() error { return p.peer.Notify(soon(t), make([]byte, 16385)) }},
		{"no such channel", ErrInvalid, "options.channel: 16 is not 0 to 15", func() error {
			_, err := p.peer.Write(soon(t), nil, &TransferOptions{Notify: []byte("x"), Channel: ChannelsMax})
			return err
		}},
		{"a channel of nothing", ErrInvalid, "options.channel (without notify)", func() error {
			_, err := p.peer.Write(soon(t), []Request{p.request(0, 8)}, &TransferOptions{Channel: 1})
			return err
		}},
		{"a queue of no such channel", ErrInvalid, "channel: 65537 is not 0 to 15", func() error {
			_, err := p.far.ChannelQueue(Notifications, 65537)
			return err
		}},
		{"no descriptor", ErrInvalid, "descriptor", func() error { _, err := p.near.Import(soon(t), []byte("x")); return err }},
	} {
		err := c.call()
		if !errors.Is(err, c.status) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestAFailedSubmitSaysWhichRequest(t *testing.T) {
	p := newPair(t, 4096, nil)
	bad := p.request(0, 8)
	bad.Local = 4096
	var failed *Error
	_, err := p.peer.Write(soon(t), []Request{p.request(0, 8), bad}, nil)
	if !errors.As(err, &failed) || failed.Status != ErrNotRegistered || failed.RequestIndex != 1 || failed.Result != nil {
		t.Fatalf("%#v", err)
	}
}

func TestAFailedTransferHasTheResultOfEachFailedRequest(t *testing.T) {
	p := newPair(t, 3*4096, nil)
	fill(p.here.Bytes(), 3)
	requests := []Request{p.request(0, 4096), p.request(4096, 4096), p.request(8192, 4096)}
	requests[1].Remote, requests[1].RemoteRegion = 4096, 0 // which nobody has mapped there
	for _, how := range []*TransferOptions{nil, overTCP} {
		_, err := p.peer.Write(soon(t), requests, how)
		var failed *Error
		if !errors.As(err, &failed) || !errors.Is(err, ErrPartial) {
			t.Fatalf("%#v", err)
		}
		if failed.RequestIndex != 1 || len(failed.Requests) != 1 || failed.Requests[0].Index != 1 ||
			failed.Requests[0].Status != ErrNotRegistered || failed.Result.RequestsFailed != 1 || failed.Result.BytesConfirmed != 8192 {
			t.Fatalf("%+v %+v", failed, failed.Result)
		}
		check(t, p.there.Bytes()[:4096], 3)
	}
}

func TestConnectFails(t *testing.T) {
	e := newEngine(t, nil)
	other := newEngine(t, nil)
	address := other.Address()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := e.Connect(ctx, address); !errors.Is(err, ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	var refused *Error
	if _, err := e.Connect(soon(t), "127.0.0.1:1"); !errors.Is(err, ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a refused connect: %v", err)
	} else if !errors.As(err, &refused) || !strings.Contains(refused.Message, "127.0.0.1:1") {
		t.Errorf("a refused connect says %q", refused.Message)
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Connect(gone, address); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrCancelled) {
		t.Fatal(err)
	}
}

// A listener that accepts and never answers, in place of an engine.
func silent(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// Whichever notices the deadline first, the context or ferry: the error has both statuses, the context's error, and
// the reason.
func TestAConnectWhoseDeadlinePassesSaysWhy(t *testing.T) {
	address := silent(t)
	e := newEngine(t, nil)
	descriptor, err := newEngine(t, Config{"advertise_address": address}).Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	for name, connect := range map[string]func(ctx context.Context) error{
		"connect": func(ctx context.Context) error { _, err := e.Connect(ctx, address); return err },
		"import":  func(ctx context.Context) error { _, err := e.Import(ctx, descriptor); return err },
	} {
		for range 5 {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			err := connect(ctx)
			cancel()
			for _, cause := range []error{ErrTimeout, context.DeadlineExceeded} {
				if !errors.Is(err, cause) {
					t.Errorf("%s: %v is not %v", name, err, cause)
				}
			}
			if !strings.Contains(err.Error(), address) || !saysNoAnswer(err) {
				t.Errorf("%s: no reason: %v", name, err)
			}
		}
	}
}

// A context that ends before its stated deadline, which ferry has too.
type early struct {
	context.Context
	deadline time.Time
}

func (e early) Deadline() (time.Time, bool) { return e.deadline, true }

// The context's timer fires first; the call then waits a short time for ferry's reason.
func TestAContextThatIsFirstLearnsTheReason(t *testing.T) {
	address := silent(t)
	e := newEngine(t, nil)
	for ferryLater, reason := range map[time.Duration]bool{30 * time.Millisecond: true, time.Hour: false} {
		inner, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		began := time.Now()
		_, err := e.Connect(early{inner, began.Add(200*time.Millisecond + ferryLater)}, address)
		cancel()
		if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || saysNoAnswer(err) != reason {
			t.Errorf("%v later: %v", ferryLater, err)
		}
	}
}

// The same for connects of other goroutines, whose contexts have no deadline.
func TestConnectsInTheBackgroundSayWhy(t *testing.T) {
	e := newEngine(t, Config{"connect_timeout_ms": "50"})
	address := silent(t)
	ended := make(chan error)
	for to, expected := range map[string]Status{address: ErrTimeout, "127.0.0.1:1": ErrUnreachable} {
		go func() { _, err := e.Connect(context.Background(), to); ended <- err }()
		err := <-ended
		var failed *Error
		if !errors.As(err, &failed) || failed.Status != expected || failed.Message == "" || failed.Context != nil {
			t.Errorf("%#v", err)
		}
	}
	waits := make(chan error)
	patient := newEngine(t, nil)
	go func() { _, err := patient.Connect(context.Background(), address); waits <- err }()
	if err := patient.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "the engine is closed") {
		t.Error(err)
	}
}

// Connects that end with their contexts leave their events behind; these are swept, and the count stays right.
func TestAbandonedConnectsAreSwept(t *testing.T) {
	e := newEngine(t, nil)
	address := silent(t)
	for range 3 {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Millisecond, cancel)
		if _, err := e.Connect(ctx, address); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if left := e.connects.unswept.Load(); left != 3 {
		t.Errorf("%d events are expected by nobody, not 3", left)
	}
}

func TestStatusesPrintAsTheirNames(t *testing.T) {
	result := Result{Status: ErrPartial}
	if told := fmt.Sprintf("%s %v %s %d", result.Status, OK, ErrTimeout, ErrTimeout); told != "PARTIAL OK TIMEOUT -200" {
		t.Error(told)
	}
}

func TestStatusesAreErrorsByTheirNames(t *testing.T) {
	if ErrTimeout.Error() != "TIMEOUT" || OK.String() != "OK" || Status(-999).String() != "UNKNOWN" {
		t.Fatal(ErrTimeout, OK, Status(-999))
	}
	err := error(&Error{Op: "write", Status: ErrSystem, OSError: syscall.ECONNRESET, RequestIndex: 2, Message: "what", Context: context.Canceled})
	for _, cause := range []error{ErrSystem, syscall.ECONNRESET, context.Canceled} {
		if !errors.Is(err, cause) {
			t.Errorf("not %v", cause)
		}
	}
	if err.Error() != "ferry: write: SYSTEM: what (request 2) (context canceled)" {
		t.Error(err)
	}
}

// Every status in the header has a constant here.
func TestEveryStatusHasAConstant(t *testing.T) {
	header, err := os.ReadFile(filepath.Join("..", "..", "include", "ferry.h"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("SKIPPED: the module stands alone, without ferry.h beside it")
	}
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("status.go")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^#define (FERRY_ERR_\w+)`).FindAllStringSubmatch(string(header), -1)
	if len(found) < 20 {
		t.Fatal(len(found))
	}
	for _, match := range found {
		if !strings.Contains(string(source), "= C."+match[1]+"\n") {
			t.Errorf("%s has no constant", match[1])
		}
	}
}

// A variable that looks like a setting and is none causes a warning, and does not stop the engine.
func TestWarnings(t *testing.T) {
	if told := newEngine(t, nil).Warnings(); told != nil {
		t.Errorf("nothing to warn of: %q", told)
	}
	t.Setenv("FERRY_LANE", "4")
	t.Setenv("FERRY_BOAT", "yes")
	e := newEngine(t, nil)
	expected := []string{
		"FERRY_BOAT is not a setting, and changes nothing",
		"FERRY_LANE is not a setting; did you mean FERRY_LANES?",
	}
	if told := e.Warnings(); !slices.Equal(told, expected) {
		t.Errorf("%q", told)
	}
	if err := e.Close(); err != nil || e.Warnings() != nil {
		t.Errorf("closed: %v, %q", err, e.Warnings())
	}
}

// Whether ferry gives the reason: the timers of the handshake and of the dial end together, each with its text.
func saysNoAnswer(err error) bool {
	return strings.Contains(err.Error(), "did not answer") || strings.Contains(err.Error(), "no answer within ")
}
