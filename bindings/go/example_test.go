package ferry_test

import (
	"bytes"
	"context"
	"errors"
	"ferry"
	"ferry/internal/standin"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The pieces of README.md, in functions that run. TestReadme sees that they are the same.

func submit(ctx context.Context, peer ferry.Peer, requests []ferry.Request) error {
	transfer, err := peer.Submit(ferry.Read, requests, nil)
	if err != nil {
		return err // nothing was done
	}
	// ... others
	result, err := transfer.Wait(ctx) // or select on transfer.Done()
	_ = result
	return err
}

func show(ctx context.Context, transfer *ferry.Transfer) (ferry.Result, error) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-transfer.Done():
			return transfer.Wait(ctx)
		case <-ticker.C:
			at := transfer.Progress()
			fmt.Printf("\r%d of %d MiB", at.BytesConfirmed>>20, at.BytesTotal>>20)
		}
	}
}

func blocks(ctx context.Context, peer ferry.Peer, memory *ferry.Memory, region ferry.RegionInfo) error {
	transfer, err := peer.SubmitBlocks(ferry.Write, &ferry.Blocks{
		LocalBase: []uint64{memory.Address()}, RemoteBase: []uint64{region.Address},
		LocalStride: []uint64{256}, RemoteStride: []uint64{256}, BlockBytes: []uint64{256},
		RemoteRegion: []ferry.Region{region.Region},
		LocalBlocks:  ferry.IDs([]int32{5, 6, 7, 12, 13}),
		RemoteBlocks: ferry.IDs([]int32{2, 3, 4, 8, 9}),
	}, nil)
	if err != nil {
		return err
	}
	_, err = show(ctx, transfer)
	return err
}

func byName(ctx context.Context, engine *ferry.Engine, url string, use func(ferry.Peer)) error {
	directory, err := engine.OpenDirectory(ctx, url, nil)
	if err != nil {
		return err
	}
	defer directory.Close() // withdraws the name
	if err := directory.Register(ctx, "decode/0"); err != nil {
		return err
	}
	peer, err := directory.Connect(ctx, "prefill/0") // goes on trying while nobody has the name
	if err == nil {
		use(peer)
	}
	return err
}

func explain(err error) string {
	var failed *ferry.Error
	switch {
	case errors.Is(err, ferry.ErrTimeout), errors.Is(err, context.Canceled):
		return "try again"
	case errors.As(err, &failed):
		for _, request := range failed.Requests {
			fmt.Println(request.Index, request.Status)
		}
	}
	return "give up"
}

func device(engine *ferry.Engine, pointer uintptr, length int) (*ferry.Memory, error) {
	memory, err := engine.RegisterDevice(pointer, length, nil) // what cudaMalloc or aclrtMalloc returned, as a uintptr
	return memory, err
}

func onStreams(peer ferry.Peer, requests []ferry.Request, event, stream uintptr) error {
	transfer, err := peer.Submit(ferry.Read, requests, &ferry.TransferOptions{StartAfter: ferry.AfterCUDAEvent(event)})
	if err != nil {
		return err
	}
	err = transfer.StreamWait(stream) // the stream goes on when the transfer is final, however it ends
	return err
}

// A pair is a target that has memory, and an engine that is connected to it.
type pair struct {
	target string
	inbox  *ferry.Memory
	engine *ferry.Engine
	peer   ferry.Peer
}

func connected(t *testing.T, config ferry.Config) (p pair, ctx context.Context, must func(error)) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	must = func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	target, err := ferry.Open(nil)
	must(err)
	t.Cleanup(func() { target.Close() })
	p.target = target.Address()
	p.inbox, err = target.Alloc(4096, nil)
	must(err)
	p.engine, err = ferry.Open(config)
	must(err)
	t.Cleanup(func() { p.engine.Close() })
	p.peer, err = p.engine.Connect(ctx, target.Address())
	must(err)
	return p, ctx, must
}

func TestThePiecesOfTheReadmeWithADevice(t *testing.T) {
	there, stream := standin.CUDA.Alloc(0, 4096), standin.CUDA.NewStream(4096)
	t.Cleanup(there.Free)
	t.Cleanup(stream.Close)
	p, ctx, must := connected(t, ferry.Config{"cuda_library": standin.CUDA.Path()})
	copy(p.inbox.Bytes(), "for a device")
	memory, err := device(p.engine, there.Address, there.Length)
	must(err)
	stream.Write(there) // records the event
	all := ferry.Request{Local: memory.Address(), Remote: p.inbox.Address(), Length: 4096, RemoteRegion: p.inbox.Region()}
	must(onStreams(p.peer, []ferry.Request{all}, stream.Event(), stream.Handle()))
	stream.Read(there)
	for !stream.IsDone() {
		must(ctx.Err())
		runtime.Gosched()
	}
	if !bytes.HasPrefix(stream.Staged(), []byte("for a device")) {
		t.Fatal("the stream did not wait for the bytes")
	}
}

func TestThePiecesOfTheReadme(t *testing.T) {
	p, ctx, must := connected(t, nil)
	inbox, peer := p.inbox, p.peer
	memory, err := p.engine.Alloc(4096, nil)
	must(err)
	regions, err := peer.Regions()
	must(err)
	copy(inbox.Bytes(), "read")
	all := ferry.Request{Local: memory.Address(), Remote: regions[0].Address, Length: 4096, RemoteRegion: regions[0].Region}
	must(submit(ctx, peer, []ferry.Request{all}))
	if string(memory.Bytes()[:4]) != "read" {
		t.Fatal("the bytes were not read")
	}
	copy(memory.Bytes()[13*256:], "thirteen")
	must(blocks(ctx, peer, memory, regions[0]))
	if !bytes.HasPrefix(inbox.Bytes()[9*256:], []byte("thirteen")) {
		t.Fatal("block 13 is not at 9")
	}
	url := "static:decode/0=" + p.engine.Address() + ",prefill/0=" + p.target
	must(byName(ctx, p.engine, url, func(found ferry.Peer) {
		if found != peer {
			t.Error(found)
		}
	}))
	all.Remote, all.RemoteRegion = 4096, 0
	_, err = peer.Write(ctx, []ferry.Request{all}, nil)
	if explain(err) != "give up" || explain(&ferry.Error{Status: ferry.ErrTimeout}) != "try again" {
		t.Fatal(err)
	}
}

func TestReadme(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	pieces := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read("README.md"), -1)
	if len(pieces) != 14 {
		t.Fatal(len(pieces))
	}
	source := strings.ReplaceAll(read("example_test.go")+read("kv/example_test.go"), "\n\t", "\n")
	for _, piece := range pieces {
		// test.sh runs the one that is a program.
		if !strings.HasPrefix(piece[1], "package main\n") && !strings.Contains(source, piece[1]) {
			t.Errorf("this is in no example_test.go:\n%s", piece[1])
		}
	}
}
