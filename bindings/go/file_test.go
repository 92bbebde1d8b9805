package ferry

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestFilesAreReadAndWrittenAsMemory(t *testing.T) {
	p := newPair(t, 1<<16, nil)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const offset, length = 100, 1 << 16
	region, err := p.far.RegisterFile(file, offset, length, &RegionOptions{Name: "file", Kind: MemoryFile})
	if err != nil {
		t.Fatal(err)
	}
	if region.Bytes() != nil || region.Len() != length {
		t.Fatalf("%d bytes mapped, length %d", len(region.Bytes()), region.Len())
	}
	for found := false; !found; _, err = p.peer.Probe(soon(t)) {
		_, missing := p.peer.Region("file")
		found = missing == nil
	}
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 8192)
	for i := range want {
		want[i] = byte(i>>8) ^ byte(i)
	}
	copy(p.here.Bytes(), want)
	one := []Request{{p.here.Address(), region.Address() + 4096, 8192, region.Region()}}
	if _, err := p.peer.Write(soon(t), one, &TransferOptions{Flags: Durable}); err != nil {
		t.Fatal(err)
	}
	found := make([]byte, 8192)
	if _, err := file.ReadAt(found, offset+4096); err != nil || !bytes.Equal(found, want) {
		t.Fatalf("not what was written (%v)", err)
	}
	one[0].Remote = region.Address() + 40000
	_, err = p.peer.Read(soon(t), one, nil)
	var told *Error
	if !errors.As(err, &told) || !errors.Is(err, ErrSystem) || told.OSError != syscall.ENODATA {
		t.Fatalf("beyond the end: %v", err)
	}
	if err := region.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.far.RegisterFile(file, -1, 1, nil); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
	folder, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if _, err := p.far.RegisterFile(folder, 0, 1, nil); !errors.Is(err, ErrInvalid) {
		t.Fatal(err)
	}
}
