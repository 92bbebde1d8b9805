package kv

// #include <ferry_kv.h>
import "C"

import (
	"encoding/hex"
	"unsafe"
)

// An ID is 128 random bits that name one attempt to hand a sequence over. The program that routes the request draws it,
// tells it to both sides, and never uses it again. Any peer that knows an ID may take its offer.
type ID [16]byte

// NewID draws an ID.
func NewID() (ID, error) {
	var id ID
	c := newCError()
	err := failure("id", C.ferry_kv_id_new(id.c(), &c), &c)
	return id, err
}

// String returns the ID in hexadecimal digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

func (id *ID) c() *C.ferry_kv_id { return (*C.ferry_kv_id)(unsafe.Pointer(id)) }
