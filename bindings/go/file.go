package ferry

// #include <stdlib.h>
// #include <ferry.h>
import "C"

import (
	"os"
	"runtime"
	"unsafe"
)

// RegisterFile registers length bytes of a file or of a block device, from offset on. Peers read and write them as
// memory, and requests name them by the address of the result; its Bytes is nil. The range of a file may lie beyond its
// end: a Write there extends the file, and a Read there fails with ErrSystem. The engine opens the file anew with the
// rights of file, which may be closed afterwards.
func (e *Engine) RegisterFile(file *os.File, offset, length int64, options *RegionOptions) (*Memory, error) {
	const op = "register file"
	if offset < 0 || length <= 0 {
		return nil, invalid(op, "offset is %d and length is %d; they must be at least 0 and 1", offset, length)
	}
	full := C.ferry_region_options{struct_size: C.sizeof_ferry_region_options}
	full.access, full.name = options.full()
	full.kind, full.device = options.location()
	defer C.free(unsafe.Pointer(full.name))
	var address C.uint64_t
	var region C.ferry_region
	err := e.call(op, func(c *C.ferry_error) C.ferry_status {
		return C.ferry_region_register_file(e.handle, C.int32_t(file.Fd()), C.uint64_t(offset), C.uint64_t(length), &full,
			&address, &region, c)
	})
	runtime.KeepAlive(file)
	if err != nil {
		return nil, err
	}
	return &Memory{engine: e, device: uintptr(address), length: int(length), region: Region(region)}, nil
}
