package ferry

// #include <stdlib.h>
// #include <ferry.h>
import "C"

import (
	"maps"
	"slices"
	"strconv"
	"unsafe"
)

// A Config maps the keys of settings to values: Config{"listen_address": "0.0.0.0:7000"}. A missing key takes
// the value of its FERRY_* environment variable, or else its default. Settings lists all settings.
type Config map[string]string

// A Setting is one setting of this version of ferry.
type Setting struct {
	Key         string
	Variable    string
	Default     string
	Valid       string
	Description string
}

// Settings lists every setting.
func Settings() []Setting {
	list, _ := listOf(func(out *C.ferry_setting_info, capacity C.size_t, count *C.size_t) error {
		c := newCError()
		status := C.ferry_config_settings(out, C.sizeof_ferry_setting_info, capacity, count, &c)
		return failure("settings", status, &c)
	})
	settings := make([]Setting, len(list))
	for i, s := range list {
		settings[i] = Setting{C.GoString(s.key), C.GoString(s.variable), C.GoString(s.default_value),
			C.GoString(s.valid), C.GoString(s.description)}
	}
	return settings
}

// make converts the Config to a ferry_config, which the caller frees.
func (config Config) make() (*C.ferry_config, error) {
	const op = "config"
	var made *C.ferry_config
	c := newCError()
	if err := failure(op, C.ferry_config_new(&made, &c), &c); err != nil {
		return nil, err
	}
	for _, key := range slices.Sorted(maps.Keys(config)) {
		k, v := C.CString(key), C.CString(config[key])
		err := failure(op, C.ferry_config_set(made, k, v, &c), &c)
		C.free(unsafe.Pointer(k))
		C.free(unsafe.Pointer(v))
		if err != nil {
			C.ferry_config_free(made)
			return nil, err
		}
	}
	return made, nil
}

// number reads a numeric setting.
func number(config *C.ferry_config, key string) int {
	var buffer [32]C.char
	var length C.size_t
	k := C.CString(key)
	defer C.free(unsafe.Pointer(k))
	if C.ferry_config_get(config, k, &buffer[0], C.size_t(len(buffer)), &length, nil) != C.FERRY_OK {
		return 0
	}
	value, _ := strconv.Atoi(C.GoString(&buffer[0]))
	return value
}

// listOf calls a function that returns a list until the whole list fits.
func listOf[T any](call func(out *T, capacity C.size_t, count *C.size_t) error) ([]T, error) {
	list := make([]T, 16)
	for {
		var count C.size_t
		if err := call(&list[0], C.size_t(len(list)), &count); err != nil {
			return nil, err
		}
		if int(count) <= len(list) {
			return list[:count], nil
		}
		list = make([]T, count)
	}
}

// bytesOf calls a function that returns bytes or a text until the whole result fits.
func bytesOf(call func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t) C.ferry_status,
	fail func(C.ferry_status) error) ([]byte, error) {
	buffer := make([]byte, 512)
	for {
		var length C.size_t
		status := call(unsafe.Pointer(&buffer[0]), C.size_t(len(buffer)), &length)
		if Status(status) == ErrLimit && len(buffer) < 64<<20 {
			buffer = make([]byte, 2*len(buffer))
			continue
		}
		if status < 0 {
			return nil, fail(status)
		}
		return buffer[:length], nil
	}
}
