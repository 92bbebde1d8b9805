// Makes a planted mistake (tests/sanitize/planted.c) in a program in Go that uses the module ferry, by the name that
// scripts/sanitize.sh gives: the sanitizer must report the mistake, or the suite in Go would run without it.
package main

// #include <planted.h>
import "C"

import (
	"fmt"
	"os"

	"ferry"
)

func main() {
	fmt.Println("libferry", ferry.Version())
	switch os.Args[1] {
	case "planted_race":
		C.planted_race()
	case "planted_use_after_free":
		C.planted_use_after_free()
	default:
		panic("no mistake is named " + os.Args[1])
	}
}
