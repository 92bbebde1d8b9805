// Handoff is a prefill worker that hands a KV cache to a decode worker, layer by layer. Each of ferry's languages has
// this program; any two can talk:
//
//	handoff decode                        prints "ADDRESS host:port", and OK when it has a whole cache
//	handoff prefill HOST:PORT [DIES_IN]   pushes a cache; with DIES_IN it kills itself while that layer moves
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"ferry"
)

const (
	layers     = 64
	blocks     = 16
	blockBytes = 16384
	layerBytes = blocks * blockBytes
	patience   = 60 * time.Second
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	engine, err := ferry.Open(nil)
	if err == nil {
		err = run(ctx, engine, os.Args[1:])
		engine.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "handoff:", err)
		os.Exit(1)
	}
	fmt.Println("OK")
}

func run(ctx context.Context, engine *ferry.Engine, args []string) error {
	cache, err := engine.Alloc(layers*layerBytes, &ferry.RegionOptions{Name: "kv"})
	if err != nil {
		return err
	}
	if len(args) == 1 && args[0] == "decode" {
		return decode(ctx, engine, cache)
	}
	if len(args) < 2 || len(args) > 3 || args[0] != "prefill" {
		return fmt.Errorf("usage: handoff decode | prefill HOST:PORT [DIES_IN]")
	}
	args = append(args, "") // without DIES_IN
	return prefill(ctx, engine, cache, args[1], args[2])
}

func content(layer int) []byte {
	made := make([]byte, layerBytes)
	for i := range made {
		made[i] = byte(layer*37 + i*11)
	}
	return made
}

func check(cache *ferry.Memory, layer int, whose string) error {
	if !bytes.Equal(cache.Bytes()[layer*layerBytes:][:layerBytes], content(layer)) {
		return fmt.Errorf("layer %d is wrong in the %s cache", layer, whose)
	}
	return nil
}

// both returns the places of the layers, here and in the peer's cache.
func both(peer ferry.Peer, cache *ferry.Memory) (ferry.UniformBlocks, error) {
	remote, err := peer.Region("kv")
	return ferry.UniformBlocks{LocalBase: cache.Address(), RemoteBase: remote.Address, RemoteRegion: remote.Region,
		LayerBytes: layerBytes, BlockBytes: blockBytes, Blocks: blocks}, err
}

func decode(ctx context.Context, engine *ferry.Engine, cache *ferry.Memory) error {
	queue, err := engine.Queue(ferry.Notifications | ferry.Peers | ferry.PeerStates)
	if err != nil {
		return err
	}
	fmt.Println("ADDRESS", engine.Address())
	var worker ferry.Peer
	for come := 0; ; {
		event, err := queue.Next(ctx)
		if err != nil {
			return err
		}
		switch {
		case event.Kind == ferry.EventPeerUp:
			worker, come = event.Peer, 0
		case event.Kind == ferry.EventNotification && string(event.Data) == "pull":
			if come != layers {
				return fmt.Errorf("%d layers of %d have come", come, layers)
			}
			return pull(ctx, engine, worker)
		case event.Kind == ferry.EventNotification:
			// Every byte of the layer is here: the notification comes after the data.
			layer, _ := strconv.Atoi(strings.TrimPrefix(string(event.Data), "layer "))
			if err := check(cache, layer, "pushed"); err != nil {
				return err
			}
			come++
		case event.Peer == worker && event.Kind != ferry.EventLateApply: // EventPeerDown, or EventPeerLost
			// After the fence, nothing that the dead worker sent can land in the cache; the next worker may use it.
			if err := worker.Fence(ctx); err != nil {
				return err
			}
			fmt.Printf("LOST after %d layers: %s\n", come, event.Reason)
			worker = ferry.Peer{}
		}
	}
}

// pull copies the whole cache of the worker, and checks the copy.
func pull(ctx context.Context, engine *ferry.Engine, worker ferry.Peer) error {
	copied, err := engine.Alloc(layers*layerBytes, nil)
	if err != nil {
		return err
	}
	all, err := both(worker, copied)
	if err != nil {
		return err
	}
	all.Count = layers
	transfer, err := worker.SubmitUniform(ferry.Read, &all, nil)
	if err == nil {
		_, err = transfer.Wait(ctx)
	}
	for layer := 0; err == nil && layer < layers; layer++ {
		err = check(copied, layer, "pulled")
	}
	if err == nil {
		err = worker.Notify(ctx, []byte("done"))
	}
	return err
}

func prefill(ctx context.Context, engine *ferry.Engine, cache *ferry.Memory, address, diesIn string) error {
	queue, err := engine.Queue(ferry.Notifications)
	if err != nil {
		return err
	}
	peer, err := engine.Connect(ctx, address)
	if err != nil {
		return err
	}
	one, err := both(peer, cache)
	if err != nil {
		return err
	}
	var pushes []*ferry.Transfer
	for one.Count = 1; one.First < layers; one.First++ {
		copy(cache.Bytes()[one.First*layerBytes:], content(one.First)) // the model's work
		told := []byte("layer " + strconv.Itoa(one.First))
		push, err := peer.SubmitUniform(ferry.Write, &one, &ferry.TransferOptions{Notify: told})
		if err != nil {
			return err
		}
		pushes = append(pushes, push)
		if strconv.Itoa(one.First) == diesIn {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	if err := ferry.WaitAll(ctx, pushes...); err != nil {
		return err
	}
	if err := peer.Notify(ctx, []byte("pull")); err != nil {
		return err
	}
	_, err = queue.Next(ctx) // "done"
	return err
}
