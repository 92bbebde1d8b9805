// The node of the soak (tests/soak/soak.py) in Go; tests/soak/node.c documents the commands and the memory.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"ferry"
)

const (
	slots     = 16
	slotBytes = 1 << 20
	bad       = uint64(1) << 63
	patience  = 10 * time.Second
)

type notice struct{ slot, bytes, pieces, serial uint64 }

// errCorrupt says that bytes are not what they should be.
var errCorrupt = errors.New("corrupt")

func (n notice) turned(place uint64) uint64 {
	piece := n.bytes / n.pieces
	return (n.pieces-1-place/piece)*piece + place%piece
}

func (n notice) isRight(slot []byte) bool {
	for at := uint64(0); at < n.bytes; at += 8 {
		if binary.NativeEndian.Uint64(slot[at:]) != n.serial<<32|n.turned(at)/8 {
			return false
		}
	}
	return true
}

func (n notice) encode() []byte {
	var bytes []byte
	for _, word := range []uint64{n.slot, n.bytes, n.pieces, n.serial} {
		bytes = binary.NativeEndian.AppendUint64(bytes, word)
	}
	return bytes
}

// check checks what a notification names, and acknowledges it.
func check(soak []byte, event ferry.Event) {
	if event.Kind != ferry.EventNotification || len(event.Data) != 32 {
		return
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(event.Data[8*i:]) }
	n := notice{word(0), word(1), word(2), word(3)}
	if n.slot >= slots || n.bytes > slotBytes || n.pieces == 0 {
		return
	}
	answer := n.serial | bad
	if n.isRight(soak[n.slot*slotBytes:]) {
		answer = n.serial
	}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&soak[slots*slotBytes+8*n.slot])), answer)
}

// round is one round: WRITE, READ, and the peer's answer. It returns the time of the WRITE.
func round(ctx context.Context, peer ferry.Peer, there ferry.RegionInfo, here *ferry.Memory, n notice) (time.Duration, error) {
	piece, remote, bytes := n.bytes/n.pieces, there.Address+n.slot*slotBytes, here.Bytes()
	for k := uint64(0); k < n.bytes/8; k++ {
		binary.NativeEndian.PutUint64(bytes[8*k:], n.serial<<32|k)
	}
	var requests []ferry.Request
	for at := uint64(0); at < n.bytes; at += piece {
		requests = append(requests, ferry.Request{
			Local: here.Address() + at, Remote: remote + n.turned(at), Length: piece, RemoteRegion: there.Region,
		})
	}
	before := time.Now()
	if _, err := peer.Write(ctx, requests, &ferry.TransferOptions{Notify: n.encode()}); err != nil {
		return 0, err
	}
	took := time.Since(before)
	back := bytes[slotBytes : slotBytes+n.bytes]
	clear(back)
	all := []ferry.Request{{Local: here.Address() + slotBytes, Remote: remote, Length: n.bytes, RemoteRegion: there.Region}}
	if _, err := peer.Read(ctx, all, nil); err != nil {
		return 0, err
	}
	if !n.isRight(back) {
		return 0, fmt.Errorf("%w: what was read back, serial %d", errCorrupt, n.serial)
	}
	acknowledgement := []ferry.Request{{
		Local: here.Address() + 2*slotBytes, Remote: there.Address + slots*slotBytes + 8*n.slot, Length: 8,
		RemoteRegion: there.Region,
	}}
	for time.Since(before) < patience {
		if _, err := peer.Read(ctx, acknowledgement, nil); err != nil {
			return 0, err
		}
		switch binary.NativeEndian.Uint64(bytes[2*slotBytes:]) {
		case n.serial:
			return took, nil
		case n.serial | bad:
			return 0, fmt.Errorf("%w: what the peer found, serial %d", errCorrupt, n.serial)
		}
	}
	return 0, errors.New("the peer did not answer")
}

func exchange(engine *ferry.Engine, address string, n notice, count uint64) (answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	peer, err := engine.Connect(ctx, address)
	if err != nil {
		return "", err
	}
	regions, err := peer.Regions()
	if err != nil {
		return "", err
	}
	here, err := engine.Alloc(2*slotBytes+64, nil)
	if err != nil {
		return "", err
	}
	defer func() {
		if freed := here.Close(); err == nil {
			err = freed
		}
	}()
	for _, there := range regions {
		if there.Name != "soak" {
			continue
		}
		answer := strings.Builder{}
		answer.WriteString("OK")
		for i := uint64(0); i < count; i++ {
			took, err := round(context.Background(), peer, there, here, n)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&answer, " %.1f", float64(took)/1e3)
			n.serial++
		}
		return answer.String(), nil
	}
	return "", errors.New("the peer has no region \"soak\"")
}

func run() error {
	engine, err := ferry.Open(nil)
	if err != nil {
		return err
	}
	soak, err := engine.Alloc(slots*slotBytes+8*slots, &ferry.RegionOptions{Name: "soak"})
	if err != nil {
		return err
	}
	queue, err := engine.Queue(ferry.Notifications)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		for event, err := range queue.Events(ctx) {
			if err != nil {
				return
			}
			check(soak.Bytes(), event)
		}
	}()
	fmt.Println("ADDRESS", engine.Address())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var (
			address string
			n       notice
			count   uint64
		)
		_, err := fmt.Sscanf(lines.Text(), "exchange %s %d %d %d %d %d", &address, &n.slot, &n.bytes, &n.pieces, &count, &n.serial)
		var answer string
		if err == nil && n.bytes <= slotBytes && n.pieces > 0 {
			answer, err = exchange(engine, address, n, count)
		}
		switch {
		case errors.Is(err, errCorrupt):
			answer = "CORRUPT " + err.Error()
		case err != nil:
			answer = "FAILED " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
	}
	cancel()
	<-over
	return engine.Close()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}
