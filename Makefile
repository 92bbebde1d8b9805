# ferry. `make demo` and `make test` set up what they need and run; everything else hangs off them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

# Where rustup puts the toolchain, for shells that have not heard of it.
export PATH := $(HOME)/.cargo/bin:$(PATH)
CARGO ?= cargo
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin
DESTDIR ?=
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

.PHONY: help setup build demo test test-rdma check bench compare install fmt clean

help:
	@echo "make demo       two processes exchange a model's KV cache, by push and by pull"
	@echo "make test       everything: format, lints, all tests, C ABI under valgrind, install, demo"
	@echo "make test-rdma  the tests of RDMA alone, in a virtual machine with Soft-RoCE devices"
	@echo "make check      format, lints, unit and C tests; for use while working"
	@echo "make bench      ferry beside raw sockets, row by row (about ten minutes, on a quiet machine)"
	@echo "make compare    ferry beside Mooncake, NIXL and raw references (about 20 minutes, on a quiet machine)"
	@echo "make build      the libraries and ferry-bench, optimised"
	@echo "make install    PREFIX=$(PREFIX) DESTDIR="

setup:
	@scripts/setup.sh

build: setup
	$(CARGO) build --release --workspace

demo: setup
	$(CARGO) build --release -p ferry-examples
	$(TARGET)/release/kv_demo

test: setup
	scripts/test.sh

test-rdma: setup
	scripts/test.sh rdma

check: setup
	scripts/test.sh format clippy unit c

bench: setup
	$(CARGO) build --release -p ferry-bench
	mkdir -p $(TARGET)/bench
	$(TARGET)/release/ferry-bench compare --json $(TARGET)/bench/compare.json

# COMPARE="--rows 'WRITE 4 KiB' --engines 'ferry|NIXL' --rounds 3" runs a part of it.
compare: setup
	$(CARGO) build --release -p ferry-ffi -p ferry-bench
	scripts/compare.sh $(COMPARE)

install: build
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(BINDIR)
	install -m 755 $(TARGET)/release/libferry.so $(DESTDIR)$(LIBDIR)/libferry.so.$(VERSION)
	ln -sf libferry.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libferry.so.0
	ln -sf libferry.so.0 $(DESTDIR)$(LIBDIR)/libferry.so
	ffi/abi/localize.sh $(TARGET)/release/libferry.a $(TARGET)/release/libferry-local.a
	install -m 644 $(TARGET)/release/libferry-local.a $(DESTDIR)$(LIBDIR)/libferry.a
	install -m 644 include/ferry.h $(DESTDIR)$(INCLUDEDIR)/ferry.h
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' \
		ffi/ferry.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/ferry.pc
	install -m 755 $(TARGET)/release/ferry-bench $(DESTDIR)$(BINDIR)/ferry-bench

fmt:
	$(CARGO) fmt --all

clean:
	$(CARGO) clean
