// The node of chaos in Go; tests/chaos/host.h documents what it is told and what it says.
package main

// #include "../host.c"
import "C"

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"ferry"
)

const arena = uint64(C.HOST_ARENA)

type node struct {
	engine *ferry.Engine
	memory *ferry.Memory
	over   context.CancelFunc
	waits  sync.WaitGroup

	mu sync.Mutex
	// Those that are not final, and the peers by the numbers that this node has given them; protected by mu.
	transfers map[uint64]*ferry.Transfer
	peers     []ferry.Peer
}

var speaking sync.Mutex

func tell(format string, arguments ...any) {
	line := strings.ReplaceAll(fmt.Sprintf(format, arguments...), "\n", " ")
	speaking.Lock()
	defer speaking.Unlock()
	os.Stdout.WriteString(line + "\n")
}

func statusOf(err error) string {
	var failed *ferry.Error
	if errors.As(err, &failed) {
		return failed.Status.String()
	}
	if err != nil {
		return "SYSTEM"
	}
	return "OK"
}

func outcome(err error) string {
	if err != nil {
		return err.Error()
	}
	return "OK"
}

func demand(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

// number returns the number of a peer.
func (n *node) number(peer ferry.Peer) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	for at, known := range n.peers {
		if known == peer {
			return at
		}
	}
	n.peers = append(n.peers, peer)
	return len(n.peers) - 1
}

func (n *node) peer(number uint64) ferry.Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peers[number]
}

func (n *node) take(event ferry.Event) {
	switch event.Kind {
	case ferry.EventNotification:
		var id C.uint64_t
		wrong := C.host_note(unsafe.Pointer(unsafe.SliceData(event.Data)), C.size_t(len(event.Data)), &id)
		if wrong < 0 {
			tell("note %d whole", id)
		} else {
			tell("note %d broken at %#x", id, wrong)
		}
	case ferry.EventLateApply:
		tell("late %d %d", event.Address-arena, event.Length)
	case ferry.EventPeerLost:
		tell("lost %d %s %s", n.number(event.Peer), event.Status, event.Reason)
	}
}

// wait runs a command that waits. A closed engine ends the wait.
func (n *node) wait(limit time.Duration, f func(ctx context.Context)) {
	n.waits.Add(1)
	go func() {
		defer n.waits.Done()
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		f(ctx)
	}()
}

func parse(word string) uint64 {
	number, err := strconv.ParseUint(word, 10, 64)
	demand(err)
	return number
}

// within is the time of a deadline in milliseconds; 0 would mean the setting.
func within(word string) time.Duration {
	return max(time.Duration(parse(word))*time.Millisecond, 1)
}

func (n *node) obey(words []string) {
	switch words[0] {
	case "op":
		n.submit(words)
	case "cancel":
		n.mu.Lock()
		transfer := n.transfers[parse(words[1])]
		n.mu.Unlock()
		if transfer != nil {
			transfer.Cancel()
		}
	case "limit":
		limit(words[1], int64(parse(words[2])))
	case "unlimit":
		limit(words[1], -1)
	case "connect":
		n.wait(2*time.Second, func(ctx context.Context) {
			if peer, err := n.engine.Connect(ctx, words[3]); err != nil {
				tell("unconnected %s %s %v", words[1], words[2], err)
			} else {
				tell("connected %s %s %d", words[1], words[2], n.number(peer))
			}
		})
	case "notify":
		n.wait(within(words[3]), func(ctx context.Context) {
			tell("noted %s %s", words[1], statusOf(n.peer(parse(words[2])).Notify(ctx, []byte(words[1]+" "))))
		})
	case "fence":
		n.wait(5*time.Second, func(ctx context.Context) {
			tell("fenced %s %s", words[1], statusOf(n.peer(parse(words[1])).Fence(ctx)))
		})
	default:
		demand(fmt.Errorf("no such command: %v", words))
	}
}

func (n *node) submit(words []string) {
	id := parse(words[1])
	note := words[1] + " "
	var requests []ferry.Request
	for _, piece := range words[7:] {
		part := strings.Split(piece, ":")
		requests = append(requests, ferry.Request{
			Local: arena + parse(part[0]), Remote: arena + parse(part[1]), Length: parse(part[2]),
			RemoteRegion: ferry.Region(parse(words[4])),
		})
		note += part[1] + ":" + part[2] + " "
	}
	options := ferry.TransferOptions{Deadline: within(words[5])}
	for flag, bit := range map[string]ferry.Flags{"o": ferry.Ordered, "c": ferry.Checksum, "s": ferry.NoCoalesce} {
		if strings.Contains(words[6], flag) {
			options.Flags |= bit
		}
	}
	if strings.Contains(words[6], "n") {
		options.Notify = []byte(note)
	}
	op := ferry.Read
	if words[2] == "w" {
		op = ferry.Write
	}
	transfer, err := n.peer(parse(words[3])).Submit(op, requests, &options)
	if err != nil {
		tell("refused %d %s %v", id, statusOf(err), err)
		return
	}
	n.mu.Lock()
	n.transfers[id] = transfer
	n.mu.Unlock()
	n.waits.Add(1)
	go func() {
		defer n.waits.Done()
		result, err := transfer.Wait(context.Background())
		n.mu.Lock()
		delete(n.transfers, id)
		n.mu.Unlock()
		tell("final %d %s %s %s %s %s", id, states[result.State], statusOf(err), fences[result.Fence],
			deliveries[result.Notification], strings.ToLower(result.Transport.String()))
	}()
}

// The names that Rust's types print.
var (
	states     = map[ferry.State]string{ferry.StateDone: "Done", ferry.StateFailed: "Failed", ferry.StateCancelled: "Cancelled", ferry.StateTimedOut: "TimedOut"}
	fences     = map[ferry.Fence]string{0: "?", ferry.FenceConfirmed: "Confirmed", ferry.FenceDead: "Dead", ferry.FenceLease: "Lease"}
	deliveries = map[ferry.Notification]string{ferry.NotificationNone: "None", ferry.NotificationDelivered: "Delivered", ferry.NotificationNotSent: "NotSent", ferry.NotificationUnknown: "Unknown"}
)

func limit(what string, more int64) {
	name := C.CString(what)
	C.host_limit(name, C.int64_t(more))
	C.free(unsafe.Pointer(name))
}

func (n *node) close() {
	timed := func(word string, limit time.Duration, f func(ctx context.Context) error, after func()) {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		began := time.Now()
		err := f(ctx)
		took := time.Since(began)
		after()
		tell("%s %d %s", word, took.Milliseconds(), outcome(err))
	}
	timed("unregistered", 5*time.Second, n.memory.CloseContext, func() {})
	timed("closed", 10*time.Second, n.engine.CloseContext, func() {
		n.over()
		n.waits.Wait()
	})
}

func main() {
	base := C.host_map()
	lines := bufio.NewReader(os.Stdin)
	settings, err := lines.ReadString('\n')
	demand(err)
	config := ferry.Config{}
	for _, word := range strings.Fields(settings) {
		key, value, _ := strings.Cut(word, "=")
		config[key] = value
	}
	listen := config["listen_address"]
	config["listen_address"] = "127.0.0.1:0"
	// Descriptors that the process opens once and keeps are not leaked; Go watches descriptors with one of its own.
	first, err := ferry.Open(config)
	demand(err)
	_, err = first.Queue(ferry.Peers)
	demand(err)
	demand(first.Close())
	before := C.host_usage_before()
	config["listen_address"] = listen
	engine, err := ferry.Open(config)
	if err != nil {
		tell("unopened %v", err)
		return
	}
	memory, err := engine.Register(base, int(C.HOST_ARENA_BYTES), nil)
	demand(err)
	queue, err := engine.Queue(ferry.Peers | ferry.Notifications)
	demand(err)
	ctx, over := context.WithCancel(context.Background())
	n := &node{engine: engine, memory: memory, over: over, transfers: map[uint64]*ferry.Transfer{}}
	n.waits.Add(1)
	go func() {
		defer n.waits.Done()
		for event, err := range queue.Events(ctx) {
			if err != nil {
				return
			}
			n.take(event)
		}
	}()
	tell("opened %d %s", memory.Region(), engine.Address())
	for {
		line, err := lines.ReadString('\n')
		if err != nil { // The parent is gone.
			os.Exit(0)
		}
		words := strings.Fields(line)
		if words[0] == "close" {
			break
		}
		n.obey(words)
	}
	n.close()
	after := C.host_usage_after(before)
	tell("usage %d %d %d %d", before.descriptors, after.descriptors, before.threads, after.threads)
}
