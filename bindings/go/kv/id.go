package kv

// #include <stdlib.h>
// #include <ferry_kv.h>
import "C"

import (
	"encoding/hex"
	"strings"
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

// ParseID reads an ID as String writes it.
func ParseID(text string) (ID, error) {
	var id ID
	c, digits := newCError(), C.CString(strings.ReplaceAll(text, "\x00", "?")) // C would see the text end at a zero
	defer C.free(unsafe.Pointer(digits))
	err := failure("parse id", C.ferry_kv_id_parse(digits, id.c(), &c), &c)
	return id, err
}

// String returns the ID as 32 hexadecimal digits, for the message to the other process. Keep it out of logs: anyone who
// knows an ID may take its offer.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText returns the digits of String, for JSON.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the digits as ParseID does.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = ParseID(string(text))
	return err
}

func (id *ID) c() *C.ferry_kv_id { return (*C.ferry_kv_id)(unsafe.Pointer(id)) }
