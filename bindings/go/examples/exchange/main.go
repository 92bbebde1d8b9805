// Exchange is a small program that each of ferry's languages has; any two can talk:
//
//	exchange serve               prints "ADDRESS host:port", lets a peer read and write its memory, checks it
//	exchange connect HOST:PORT   reads the server's memory, checks it, and writes the answer into it
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"ferry"
)

const (
	size     = 1 << 20
	name     = "exchange"
	patience = 30 * time.Second
)

// The bytes of the server at the start, and the bytes that the client writes.
func first(i int) byte  { return byte(i*7 + 3) }
func second(i int) byte { return byte(i*11 + 5) }

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		err = serve(ctx)
	case len(os.Args) == 3 && os.Args[1] == "connect":
		err = connect(ctx, os.Args[2])
	default:
		err = fmt.Errorf("usage: exchange serve | exchange connect HOST:PORT")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "exchange:", err)
		os.Exit(1)
	}
	fmt.Println("OK")
}

// serve takes no part in the transfers: the engine's threads do the work.
func serve(ctx context.Context) error {
	engine, err := ferry.Open(nil)
	if err != nil {
		return err
	}
	defer engine.Close()
	memory, err := engine.Alloc(size, &ferry.RegionOptions{Name: name})
	if err != nil {
		return err
	}
	fill(memory.Bytes(), first)
	queue, err := engine.Queue(ferry.Notifications)
	if err != nil {
		return err
	}
	fmt.Println("ADDRESS", engine.Address())
	event, err := queue.Next(ctx)
	if err != nil {
		return err
	}
	if string(event.Data) != "done" {
		return fmt.Errorf("the notification is %q", event.Data)
	}
	// The notification comes after its data: every byte is in place.
	return check(memory.Bytes(), second)
}

func connect(ctx context.Context, address string) error {
	engine, err := ferry.Open(nil)
	if err != nil {
		return err
	}
	defer engine.Close()
	memory, err := engine.Alloc(size, nil)
	if err != nil {
		return err
	}
	peer, err := engine.Connect(ctx, address)
	if err != nil {
		return err
	}
	region, err := peer.Region(name)
	if err != nil {
		return err
	}
	if region.Length != size {
		return fmt.Errorf("the region has %d bytes, not %d", region.Length, size)
	}
	all := []ferry.Request{{Local: memory.Address(), Remote: region.Address, Length: size, RemoteRegion: region.Region}}
	if _, err := peer.Read(ctx, all, nil); err != nil {
		return err
	}
	if err := check(memory.Bytes(), first); err != nil {
		return err
	}
	fill(memory.Bytes(), second)
	_, err = peer.Write(ctx, all, &ferry.TransferOptions{Notify: []byte("done")})
	return err
}

func fill(bytes []byte, pattern func(int) byte) {
	for i := range bytes {
		bytes[i] = pattern(i)
	}
}

func check(bytes []byte, pattern func(int) byte) error {
	for i, got := range bytes {
		if want := pattern(i); got != want {
			return fmt.Errorf("byte %d is %d, not %d", i, got, want)
		}
	}
	return nil
}
