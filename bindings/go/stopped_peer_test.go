package ferry

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"ferry/internal/standin"
)

// slow keeps a transfer in progress until the test resumes it: its peer is a stopped process, which runs this
// test's own program; see TestMain.
type slow struct {
	command *exec.Cmd
	engine  *Engine
	peer    Peer
	here    *Memory
	remote  RegionInfo
}

const slowBytes = 1 << 20

func TestMain(m *testing.M) {
	if os.Getenv("FERRY_GO_TEST_PEER") != "" {
		e, err := Open(nil)
		if err == nil {
			_, err = e.Alloc(slowBytes, nil)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(e.Address())
		io.Copy(io.Discard, os.Stdin) // until the test is over
		os.Exit(0)
	}
	code := m.Run()
	// The objects left here were not freed by ferry: the tests free their own.
	if left := standin.Complaints(); left != 0 && code == 0 {
		fmt.Fprintf(os.Stderr, "the stand-ins for device libraries have %d complaints\n", left)
		code = 1
	}
	os.Exit(code)
}

func newSlow(t *testing.T, config Config) *slow {
	t.Helper()
	s := &slow{command: exec.Command(os.Args[0])}
	s.command.Env = append(os.Environ(), "FERRY_GO_TEST_PEER=1")
	s.command.Stderr = os.Stderr
	if _, err := s.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	lines, err := s.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.command.Process.Kill()
		s.command.Wait()
	})
	var address string
	if _, err := fmt.Fscanln(lines, &address); err != nil {
		t.Fatal(err)
	}
	s.engine = newEngine(t, config)
	if s.here, err = s.engine.Alloc(slowBytes, nil); err != nil {
		t.Fatal(err)
	}
	if s.peer, err = s.engine.Connect(soon(t), address); err != nil {
		t.Fatal(err)
	}
	regions, err := s.peer.Regions()
	if err != nil || len(regions) != 1 {
		t.Fatal(regions, err)
	}
	s.remote = regions[0]
	return s
}

// stop stops the peer's process, so that TCP transfers to it are not final.
func (s *slow) stop(t *testing.T) {
	t.Helper()
	if err := s.command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Until it has stopped: its state, the third field, is then T.
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.command.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if _, rest, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(rest, "T") {
			return
		}
		runtime.Gosched()
	}
}

func (s *slow) resume() { s.command.Process.Signal(syscall.SIGCONT) }

func (s *slow) requests() []Request {
	return []Request{{s.here.Address(), s.remote.Address, slowBytes, s.remote.Region}}
}

var overTCP = &TransferOptions{Transports: AllowTCP}

// A peer that is killed and one that is stopped are down before they are lost; one that continues is up again.
func TestAPeerThatGoesDownIsTold(t *testing.T) {
	config := Config{"transports": "tcp", "keepalive_ms": "600", "reconnect_timeout_ms": "60000"}
	s := newSlow(t, config)
	queue, err := s.engine.Queue(PeerStates)
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()
	next := func(kind EventKind) Event {
		t.Helper()
		event, err := queue.Next(soon(t))
		if err != nil || event.Kind != kind || event.Peer != s.peer {
			t.Fatal(event, err)
		}
		return event
	}
	s.stop(t)
	if event := next(EventPeerDown); event.Status != ErrTimeout || event.Reason == "" {
		t.Fatal(event)
	}
	s.resume()
	next(EventPeerUp)
	s.command.Process.Kill()
	if event := next(EventPeerDown); event.Status >= 0 || event.Reason == "" {
		t.Fatal(event)
	}
}
