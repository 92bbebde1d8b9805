package ferry

// #include <ferry_kv.h>
import "C"

import (
	"context"
	"iter"
	"time"
	"unsafe"

	"ferry/internal/watch"
)

// A DirectoryEntry is what a directory knows of a name.
type DirectoryEntry struct {
	Name    string
	Address string // "host:port"
	// HasIdentity is true in etcd: EngineID and Incarnation are then set to those of the engine that has the name.
	// Otherwise both are zero.
	HasIdentity bool
	EngineID    [16]byte
	Incarnation uint64
}

func newDirectoryEntry(e *C.ferry_directory_entry) DirectoryEntry {
	return DirectoryEntry{C.GoString(&e.name[0]), C.GoString(&e.address[0]), e.has_identity != 0,
		*(*[16]byte)(unsafe.Pointer(&e.engine_id)), uint64(e.incarnation)}
}

// ChangeKind is what has happened to a name.
type ChangeKind uint32

// The kinds of changes.
const (
	ChangeAdded    ChangeKind = C.FERRY_DIRECTORY_ADDED     // nobody had the name
	ChangeChanged  ChangeKind = C.FERRY_DIRECTORY_CHANGED   // another engine, incarnation or address
	ChangeRemoved  ChangeKind = C.FERRY_DIRECTORY_REMOVED   // nobody has the name any more; the entry is as it was
	ChangeListAnew ChangeKind = C.FERRY_DIRECTORY_LIST_ANEW // too many names have changed; the entry is zero
)

// A DirectoryChange is a change of a directory. Several changes of one name are reported as one.
type DirectoryChange struct {
	Kind  ChangeKind
	Entry DirectoryEntry
}

// DirectoryInfo is the state of a directory.
type DirectoryInfo struct {
	// Connected is true while the table is kept up to date. It is always true in a "static:" directory.
	Connected bool
	// CutOff is how long etcd has not answered; 0 while it answers, and before its first answer.
	CutOff  time.Duration
	Entries int
	// Ignored counts the values in etcd that were left out because they are no entries or exceed the bound.
	Ignored uint64
	// Names counts the names that this directory registers, NamesPublished those of them that etcd has.
	Names, NamesPublished int
	// Sessions counts how often etcd was reached again.
	Sessions uint64
	// Why says why etcd is not reached, or why a name is not published; "" otherwise.
	Why string
}

// Poll takes the next change; false if there is none. It never waits. The first changes of a directory in etcd report
// the entries that were there at the beginning.
func (d *Directory) Poll() (DirectoryChange, bool, error) {
	var (
		kind   C.uint32_t
		status C.ferry_status
	)
	entry := C.ferry_directory_entry{struct_size: C.sizeof_ferry_directory_entry}
	err := d.call("poll", func(c *C.ferry_error) C.ferry_status {
		status = C.ferry_directory_poll(d.handle, &kind, &entry, c)
		return status
	})
	if err != nil || status != C.FERRY_OK {
		return DirectoryChange{}, false, err
	}
	return DirectoryChange{ChangeKind(kind), newDirectoryEntry(&entry)}, true, nil
}

// Next waits for the next change and takes it. The goroutine is parked, and holds no thread. Several goroutines may
// call it; each change goes to one of them. If the context ends, the error holds the context's error, and no change is
// lost. ErrClosed if the directory is closed.
func (d *Directory) Next(ctx context.Context) (DirectoryChange, error) {
	const op = "next"
	var (
		change DirectoryChange
		ok     bool
		err    error
	)
	waited := d.source.Next(ctx, func() bool {
		change, ok, err = d.Poll()
		return ok || err != nil
	})
	switch waited {
	case nil:
		return change, err
	case watch.ErrOver:
		return DirectoryChange{}, closedDirectory(op)
	}
	return DirectoryChange{}, ended(op, waited)
}

// Changes has each change, as Next takes it. It ends with Next's error.
func (d *Directory) Changes(ctx context.Context) iter.Seq2[DirectoryChange, error] {
	return watch.Each(ctx, d.Next)
}
