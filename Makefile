# ferry. Each target looks for the packages that it needs, installs those that are missing, then runs. Building needs
# fewer than the tests: docs/building.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

# The folders where rustup and Go install their toolchains, for shells without them in PATH.
export PATH := $(if $(CARGO_HOME),$(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):/usr/local/go/bin
CARGO ?= cargo
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin
DESTDIR ?=
# `make fuzz TARGET=name` names a fuzz target; everywhere else TARGET is cargo's folder.
FUZZ_TARGET := $(TARGET)
override TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
ABI := $(shell sed -n 's/^\#define FERRY_ABI_MAJOR //p' include/ferry.h)

.PHONY: help setup setup-tests build demo docs test test-bare test-rdma test-cuda sim sim-mutants chaos soak scale test-engines fuzz sanitize miri prove check comparisons bench bench-cuda compare figures overhead pool-paper install install-nixl install-debug deb fmt clean

help:
	@echo "make demo       two processes exchange a model's KV cache, by push and by pull"
	@echo "make test       format, lints, all tests, C ABI under valgrind, install, demo; prints the seconds of each leg"
	@echo "make test-rdma  only the RDMA tests, in a virtual machine with Soft-RoCE devices"
	@echo "make test-cuda  only the CUDA tests, on this machine's GPU; $(TARGET)/cuda-leg can be copied to another machine"
	@echo "make test-bare  make demo and make test in a new Debian 13 and a new Debian 12, made by debootstrap: RELEASES=trixie RUN=demo; needs root (hours)"
	@echo "make chaos      engines on hosts of their own under random real faults: ROUNDS=20 SEED=number; RDMA=1 in a virtual machine; needs root or user namespaces"
	@echo "make sim        SEEDS=n runs of whole engines on a simulated kernel, with faults, each contract checked"
	@echo "make sim-mutants each bug of sim/mutants planted in a copy of HEAD, and found by the simulation or its test: MUTANTS='name ...'"
	@echo "make soak       processes in five languages under faults: MINUTES=10 SEED=number; checks each byte, memory, latency"
	@echo "make scale      what a peer and a region cost, up to 10,000 and 100,000 of them; fails if the cost of one grows"
	@echo "make check      format, lints, unit and C tests; the quick check while you work"
	@echo "make bench      ferry beside raw sockets, row by row (about ten minutes, on a quiet machine)"
	@echo "make bench-cuda ferry's copies from and to a GPU beside the driver's"
	@echo "make compare    ferry beside Mooncake, NIXL and raw references, the pool beside Mooncake Store (about 25 minutes, on a quiet machine)"
	@echo "make figures    measures what docs/results.md and README show, and rewrites them (about 40 minutes, on a quiet machine)"
	@echo "make overhead   the time that the C++, Python and Go bindings add to a call in C (some minutes)"
	@echo "make pool-paper the pool on paper: 1,000 nodes, 10^8 keys, two published traces, when loading is worth it (a minute)"
	@echo "make test-engines  vLLM and LMCache over ferry, on this CPU; installs their wheels (6 GB)"
	@echo "make fuzz       each fuzz target for SECONDS=60; TARGET=lane takes one. Installs the pinned nightly Rust"
	@echo "make sanitize   the suites in C, Python and Go under AddressSanitizer and ThreadSanitizer. Installs the pinned nightly Rust"
	@echo "make miri       tests of the engine's own decisions and tables under Miri. Installs the pinned nightly Rust"
	@echo "make prove      an hour of looking for faults: sanitize, miri, fuzz, chaos, soak and sim, each with a time limit; SEED=number"
	@echo "make build      the libraries and ferry-bench, optimised"
	@echo "make docs       the pages as a site with search, and the references of all languages, in $(TARGET)/docs"
	@echo "make install    installs below PREFIX=$(PREFIX); DESTDIR= stages it"
	@echo "make install-debug  the same, with debug information in files of its own"
	@echo "make install-nixl   the same, with the plugin for NIXL in $(LIBDIR)/ferry/nixl; needs a C++ compiler"
	@echo "make deb        Debian packages libferry0, libferry0-dbgsym and libferry-dev, in $(TARGET)/debian"

setup:
	@scripts/setup.sh

setup-tests:
	@scripts/setup.sh tests

build: setup
	CARGO=$(CARGO) scripts/build.sh

demo: setup
	$(CARGO) build --release -p ferry-examples --bin kv_demo
	$(TARGET)/release/kv_demo

test: setup-tests
	scripts/test.sh

# RELEASES='trixie' takes only these, RUN=demo only this command.
test-bare:
	RUN='$(RUN)' scripts/bare.sh $(RELEASES)

test-rdma: setup-tests
	scripts/test.sh rdma

test-cuda: setup-tests
	scripts/cuda.sh test

# Real engines over ferry-vllm and the plugin for NIXL; installs their wheels, 6 GB. PARTS='matrix vllm' takes these.
test-engines: setup-tests
	scripts/engines.sh $(PARTS)

# ROUNDS rounds; SEED repeats the rounds of a run that failed. The program enters namespaces of its own. RDMA=1 plays the
# rounds in the virtual machine with RDMA devices. Needs python3 and, for the nodes in Go, Go; installs neither.
chaos: setup-tests
	ROUNDS=$(ROUNDS) SEED=$(SEED) RDMA=$(RDMA) CARGO=$(CARGO) scripts/chaos.sh

# FROM=n begins with another seed; RECORD=file remembers the seeds that have run, and goes on behind them.
SEEDS ?= 1000
sim: setup
	CARGO=$(CARGO) scripts/sim.sh run --seeds $(SEEDS) $(if $(FROM),--from $(FROM)) $(if $(RECORD),--record $(RECORD))

# MUTANTS='name ...' takes only these. SEEDS=n, as many as the simulation may need for one. RECORD=1 keeps the table.
sim-mutants: setup
	CARGO=$(CARGO) SEEDS=$(if $(filter command% environment%,$(origin SEEDS)),$(SEEDS)) RECORD=$(RECORD) scripts/mutants.sh run $(MUTANTS)

# At least 3 minutes. Needs python3 and, for the node in Go, Go; installs neither. RECORD=1 keeps the figures.
soak: setup-tests
	RECORD=$(RECORD) scripts/soak.sh $(or $(MINUTES),10) $(SEED)

# RECORD=1 keeps the figures and draws docs/pictures/scale.svg.
scale: setup
	RECORD=$(RECORD) CARGO=$(CARGO) scripts/scale.sh

check: setup-tests
	scripts/test.sh format clippy unit c

bench: comparisons
	mkdir -p $(TARGET)/bench
	$(TARGET)/release/ferry-compare sockets --json $(TARGET)/bench/compare.json

bench-cuda: setup
	scripts/cuda.sh bench

comparisons: build
	$(CARGO) build --release -p ferry-compare

# COMPARE="--rows 'WRITE 4 KiB' --engines 'ferry|NIXL' --rounds 3" runs a part of the comparison, COMPARE=pool the pool's.
compare: comparisons
	scripts/compare.sh $(COMPARE)

# FIGURES='peers bindings' takes only these parts.
figures: comparisons
	scripts/figures.sh $(FIGURES)

overhead: setup-tests
	scripts/overhead.sh

# Fetches the traces, unless TRACES='PATH/conversation_trace.jsonl PATH/synthetic_trace.jsonl' names them.
pool-paper: setup
	$(CARGO) run --release -p ferry-pool-paper -- $(TARGET)/pool-paper $(PARTS) $(TRACES)

fuzz:
	scripts/fuzz.sh run $(or $(SECONDS),60) $(FUZZ_TARGET)

# SUITES='c python go' takes only these.
sanitize: setup-tests
	scripts/sanitize.sh address $(SUITES)
	scripts/sanitize.sh thread $(SUITES)

miri: setup
	scripts/miri.sh

# PARTS='miri sim' takes only these.
prove: setup-tests
	SEED=$(SEED) scripts/prove.sh $(PARTS)

# Fills the templates in ffi/ for this installation. Paths are relative if possible, so that the tree can be
# moved.
RELOCATABLE = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
FILL = sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(call RELOCATABLE,$(LIBDIR))|' \
	-e 's|@INCLUDEDIR@|$(call RELOCATABLE,$(INCLUDEDIR))|; s|@VERSION@|$(VERSION)|; s|@ABI@|$(ABI)|' \
	-e 's|@VERSION_MAJOR@|$(word 1,$(subst ., ,$(VERSION)))|; s|@VERSION_MINOR@|$(word 2,$(subst ., ,$(VERSION)))|' \
	-e "s|@INCLUDE_FROM_CMAKE@|$$(realpath -m --relative-to='$(LIBDIR)/cmake/ferry' '$(INCLUDEDIR)')|"

# The installed files have no debug information: libferry.so is eight times as large with it. Each names the file
# `.debug/NAME.debug` beside it, which `make install-debug` installs, and where debuggers look.
STRIP = scripts/strip.sh
LIBRARIES = libferry libferry_mooncake
PROGRAMS = ferry-bench ferry-pool
install: build
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(LIBDIR)/cmake/ferry $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(BINDIR)
	for name in $(LIBRARIES); do $(STRIP) $(TARGET)/release/$$name.so $(TARGET)/stripped/$$name.so.$(VERSION); done
	for name in $(PROGRAMS); do $(STRIP) $(TARGET)/release/$$name $(TARGET)/stripped/$$name; done
	install -m 755 $(TARGET)/stripped/libferry.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libferry.so.$(VERSION)
	ln -sf libferry.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libferry.so.$(ABI)
	ln -sf libferry.so.$(ABI) $(DESTDIR)$(LIBDIR)/libferry.so
	install -m 755 $(TARGET)/stripped/libferry_mooncake.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libferry_mooncake.so.$(VERSION)
	ln -sf libferry_mooncake.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libferry_mooncake.so.0
	ln -sf libferry_mooncake.so.0 $(DESTDIR)$(LIBDIR)/libferry_mooncake.so
	ffi/abi/localize.sh $(TARGET)/release/libferry.a $(TARGET)/stripped/libferry.a
	strip --strip-debug --enable-deterministic-archives $(TARGET)/stripped/libferry.a
	install -m 644 $(TARGET)/stripped/libferry.a $(DESTDIR)$(LIBDIR)/libferry.a
	install -m 644 include/ferry.h include/ferry_kv.h include/ferry_pool.h include/ferry.hpp include/ferry_kv.hpp \
		bindings/mooncake/ferry_mooncake.h $(DESTDIR)$(INCLUDEDIR)
	@$(FILL) ffi/ferry.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/ferry.pc
	@$(FILL) bindings/mooncake/ferry-mooncake.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/ferry-mooncake.pc
	@$(FILL) ffi/ferryConfig.cmake.in > $(DESTDIR)$(LIBDIR)/cmake/ferry/ferryConfig.cmake
	@$(FILL) ffi/ferryConfigVersion.cmake.in > $(DESTDIR)$(LIBDIR)/cmake/ferry/ferryConfigVersion.cmake
	install -m 755 $(PROGRAMS:%=$(TARGET)/stripped/%) $(DESTDIR)$(BINDIR)

# The plugin for NIXL, which needs a C++ compiler. NIXL_PLUGIN_DIR is then $(LIBDIR)/ferry/nixl.
install-nixl: install
	FERRY_LIBRARY=$(TARGET)/release/libferry.so bindings/nixl/build.sh $(TARGET)/nixl
	install -d $(DESTDIR)$(LIBDIR)/ferry/nixl
	install -m 755 -s $(TARGET)/nixl/libplugin_FERRY.so $(DESTDIR)$(LIBDIR)/ferry/nixl/libplugin_FERRY.so

install-debug: install
	install -d $(DESTDIR)$(LIBDIR)/.debug $(DESTDIR)$(BINDIR)/.debug
	install -m 644 $(LIBRARIES:%=$(TARGET)/stripped/.debug/%.so.$(VERSION).debug) $(DESTDIR)$(LIBDIR)/.debug
	install -m 644 $(PROGRAMS:%=$(TARGET)/stripped/.debug/%.debug) $(DESTDIR)$(BINDIR)/.debug

docs: setup
	@scripts/setup.sh docs
	scripts/docs.sh $(TARGET)/docs

deb:
	@scripts/setup.sh deb
	scripts/deb.sh $(TARGET)/debian

fmt:
	$(CARGO) fmt --all

clean:
	$(CARGO) clean
