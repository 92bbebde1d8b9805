package ferry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"ferry"
	"ferry/kv"
)

// Each constant of the headers prints as its name there, without the prefix.
func TestNumbersPrintAsTheirNames(t *testing.T) {
	var headers []byte
	for _, name := range []string{"ferry.h", "ferry_kv.h"} {
		header, err := os.ReadFile(filepath.Join("..", "..", "include", name))
		if errors.Is(err, os.ErrNotExist) {
			t.Skip("SKIPPED: the module stands alone, without the headers beside it")
		}
		headers = append(headers, header...)
	}
	for prefix, print := range map[string]func(n uint32) fmt.Stringer{
		"FERRY_EVENT_":        func(n uint32) fmt.Stringer { return ferry.EventKind(n) },
		"FERRY_TRANSPORT_":    func(n uint32) fmt.Stringer { return ferry.Transport(n) },
		"FERRY_MEMORY_":       func(n uint32) fmt.Stringer { return ferry.MemoryKind(n) },
		"FERRY_PEER_":         func(n uint32) fmt.Stringer { return ferry.PeerState(n) },
		"FERRY_STATE_":        func(n uint32) fmt.Stringer { return ferry.State(n) },
		"FERRY_FENCE_":        func(n uint32) fmt.Stringer { return ferry.Fence(n) },
		"FERRY_NOTIFICATION_": func(n uint32) fmt.Stringer { return ferry.Notification(n) },
		"FERRY_QUEUE_":        func(n uint32) fmt.Stringer { return ferry.What(n) },
		"FERRY_ACCESS_":       func(n uint32) fmt.Stringer { return ferry.Access(n) },
		"FERRY_TRANSFER_":     func(n uint32) fmt.Stringer { return ferry.Flags(n) },
		"FERRY_ALLOW_":        func(n uint32) fmt.Stringer { return ferry.Transports(n) },
		"FERRY_DIRECTORY_":    func(n uint32) fmt.Stringer { return ferry.ChangeKind(n) },
		"FERRY_KV_GROUP_":     func(n uint32) fmt.Stringer { return kv.GroupKind(n) },
		"FERRY_KV_MODE_":      func(n uint32) fmt.Stringer { return kv.Mode(n) },
		"FERRY_KV_EVENT_":     func(n uint32) fmt.Stringer { return kv.EventKind(n) },
		"FERRY_KV_STATE_":     func(n uint32) fmt.Stringer { return kv.StateKind(n) },
		"FERRY_KV_TIMELINE_":  func(n uint32) fmt.Stringer { return kv.TimelineKind(n) },
		"FERRY_KV_MARK_":      func(n uint32) fmt.Stringer { return kv.MarkKind(n) },
		"FERRY_KV_":           func(n uint32) fmt.Stringer { return kv.Arrangement(n) }, // PAIR_* and BLOCK_*
	} {
		names := `(\w+)`
		if prefix == "FERRY_KV_" {
			names = `((?:PAIR|BLOCK)_\w+)`
		}
		found := regexp.MustCompile(`(?m)^#define `+prefix+names+` (\d+)$`).FindAllSubmatch(headers, -1)
		if len(found) == 0 {
			t.Errorf("%s: no constants", prefix)
		}
		for _, match := range found {
			number, _ := strconv.ParseUint(string(match[2]), 10, 32)
			if name := string(match[1]); print(uint32(number)).String() != name && name != "NO_WAIT" { // a flag, no change
				t.Errorf("%s%s prints as %v", prefix, name, print(uint32(number)))
			}
		}
	}
	sets := fmt.Sprint(ferry.Peers|ferry.Notifications|64, " ", ferry.Flags(0), " ", ferry.AllowTCP|ferry.AllowRDMA, kv.MarkKind(7))
	if sets != "NOTIFICATIONS|PEERS|0x40 0x0 TCP|RDMA 7" {
		t.Error(sets)
	}
}

// Events, results and objects print as a line for people.
func TestWhatAProgramPrintsIsReadable(t *testing.T) {
	m := newMistaken(t)
	ctx := context.Background()
	queue, err := m.far.ChannelQueue(ferry.Notifications, 3)
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fatal(err)
	request := []ferry.Request{{Local: m.here.Address(), Remote: m.there.Address, Length: 64}}
	options := &ferry.TransferOptions{Notify: []byte("hello"), Channel: 3, Transports: ferry.AllowTCP}
	transfer, err := m.peer.Submit(ferry.Write, request, options)
	fatal(err)
	result, err := transfer.Wait(ctx)
	fatal(err)
	event, err := queue.Next(ctx)
	fatal(err)
	info, err := m.peer.Info()
	fatal(err)
	paths, err := m.peer.Paths()
	fatal(err)
	directory, err := m.near.OpenDirectory(ctx, "static:far="+m.far.Address(), nil)
	fatal(err)
	defer directory.Close()
	entry, err := directory.Lookup("far")
	fatal(err)
	plan, err := kv.NewPlan(m.layout, m.layout)
	fatal(err)
	fatal(m.cache.StartTimeline(8))
	fatal(m.cache.Offer(m.id, []kv.BlockList{{IDs: []uint32{0}}}, nil))
	offered, err := m.cache.State(m.id)
	fatal(err)
	entries, err := m.cache.Timeline(0)
	fatal(err)
	cache := fmt.Sprint(m.cache)
	fatal(m.cache.CancelOffer(m.id))
	end, err := m.cache.Next(ctx)
	fatal(err)
	state, err := m.cache.State(m.id)
	fatal(err)
	near, far, id := m.near.Address(), m.far.Address(), m.id.String()
	for _, it := range []struct{ printed, expected string }{
		{fmt.Sprint(m.near), "engine at " + near},
		{fmt.Sprint(m.peer), far},
		{fmt.Sprint(ferry.Peer{}), "peer 0x0"},
		{fmt.Sprint(info), far + " UP, engine [0-9a-f]{32} incarnation 0x[0-9a-f]+, [1-9] lanes, [01] transfers"},
		{fmt.Sprint(m.there), `region 0x[0-9a-f]+ "there", 8192 bytes at 0x[0-9a-f]+, HOST REMOTE_READ\|REMOTE_WRITE`},
		{fmt.Sprint(m.here), "8192 bytes at 0x[0-9a-f]+, region 0x[0-9a-f]+"},
		{fmt.Sprint(paths), `\[.*LOCAL, chosen: .*\]`},
		{fmt.Sprint(queue), "queue of NOTIFICATIONS, channel 3, engine at " + far},
		{fmt.Sprint(event), "NOTIFICATION " + near + `, channel 3: "hello"`},
		{fmt.Sprint(ferry.Event{Kind: ferry.EventPeerLost, Status: ferry.ErrPeerLost, Reason: "why"}), "PEER_LOST peer 0x0: PEER_LOST: why"},
		{fmt.Sprint(ferry.Event{Kind: ferry.EventLateApply, Address: 16, Length: 8, Region: 2}), "LATE_APPLY peer 0x0: 8 bytes at 0x10, region 0x2"},
		{fmt.Sprint(result), "DONE OK, 64 bytes over TCP in [0-9.]+.?s, fence CONFIRMED, notification DELIVERED"},
		{fmt.Sprint(transfer), "write DONE OK, 64 bytes .*"},
		{fmt.Sprint(transfer.Progress()), "64 of 64 bytes"},
		{fmt.Sprint(ferry.RequestResult{Index: 2, Status: ferry.ErrStale, Transport: ferry.TransportTCP}), "request 2 STALE, 0 bytes over TCP"},
		{fmt.Sprint(directory), "directory with 1 entries, 0 of 0 names published"},
		{fmt.Sprint(ferry.DirectoryChange{Kind: ferry.ChangeAdded, Entry: entry}), "ADDED far at " + far},
		{fmt.Sprint(m.layout), "layout of rank 0 of 1, 1 layers in 1 groups"},
		{fmt.Sprint(plan), "(?s).*source: 1 rank.*"},
		{cache, "cache of engine at " + near + ", 1 offers, 0 takes"},
		{fmt.Sprint(offered), "OFFERED, sealed false, 0 takers"},
		{fmt.Sprint(state), "ENDED, CANCELLED"},
		{fmt.Sprint(end), "CANCELLED CANCELLED: .*; 0 tokens valid; id " + id[:8]},
		{fmt.Sprint(kv.Event{Kind: kv.EventLayers, Layers: 3, ID: m.id}), "LAYERS 3; id " + id[:8]},
		{fmt.Sprint(kv.Event{Kind: kv.EventPeerLost, Status: ferry.ErrPeerLost, Rank: 1, Peer: m.peer, Message: "why", ValidTokens: 16}),
			"PEER_LOST PEER_LOST by rank 1 \\(peer " + far + "\\): why; 16 tokens valid; id 00000000"},
		{fmt.Sprint([]kv.Block{{Group: 1, Block: 5}}), `\[block 5 of group 1\]`},
		{fmt.Sprint(entries[0]), "OFFERED of " + id[:8] + ` at [0-9:.]+ for 0s, layers 0 to 0, tokens 0 to 0, detail 0`},
	} {
		if !regexp.MustCompile("^" + it.expected + "$").MatchString(it.printed) {
			t.Errorf("%s\n is no %s", it.printed, it.expected)
		}
	}
}

func TestAnIDIsText(t *testing.T) {
	id, err := kv.NewID()
	if err != nil {
		t.Fatal(err)
	}
	var back kv.ID
	if text, err := id.MarshalText(); err != nil || back.UnmarshalText(text) != nil || back != id || string(text) != id.String() {
		t.Error(string(text), back, err)
	}
	for _, text := range []string{"", "cf8a", id.String() + "0", id.String() + "\x00", "x" + id.String()[1:]} {
		if _, err := kv.ParseID(text); !errors.Is(err, ferry.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
