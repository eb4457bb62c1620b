# A thin front to CMake and Ninja; `make help` lists the targets.
#
# Variables: BUILD (directory of the plain build), WERROR (ON: warnings are errors), JOBS, PREFIX and DESTDIR (install),
# FUZZ_SECONDS (per fuzzer, in check: 12), CMAKE_ARGS (more options of the plain build).
BUILD ?= build/release
WERROR ?= OFF
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
CMAKE_ARGS ?=
export JOBS

.DEFAULT_GOAL := build
.PHONY: help bootstrap configure compile build demo test check bench bench-check gpu-test lint format install clean

help:
	@echo 'build     compile library, command, tests; says which optional tools are missing'
	@echo 'demo      replay a recorded trace on the software GPU'
	@echo 'test      quick tests, under 3 minutes on 2 cores'
	@echo 'check     all that can run without a GPU: sanitizers, slow tests, fuzzing, lint; under 30 minutes'
	@echo 'bench-check  figures of the model against the committed ones (BASELINE=FILE: all figures of this machine)'
	@echo 'bench     measure; gpu-test  tests on a real GPU (skipped without one)'
	@echo 'lint      static checks; format  rewrite the sources with clang-format'
	@echo 'install   to PREFIX ($(PREFIX)), below DESTDIR; clean  remove build/'

bootstrap:
	@scripts/bootstrap

configure: bootstrap
	@mkdir -p $(BUILD)
	@cmake -S . -B $(BUILD) -G Ninja -DMB_WERROR=$(WERROR) -DCMAKE_INSTALL_PREFIX=$(PREFIX) \
	    $(CMAKE_ARGS) >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }

compile: configure
	@cmake --build $(BUILD) -j $(JOBS)

build: compile
	@cat $(BUILD)/summary.txt

# Only what the command needs, so that a first look does not wait for the tests to compile.
demo: configure
	@cmake --build $(BUILD) -j $(JOBS) --target moonbright
	$(BUILD)/bin/moonbright demo

test: build
	@rm -f build/results/test.tsv
	@scripts/run-tests --tier test --build $(BUILD) -- -LE '^(slow|gpu)$$'; \
	    scripts/summary build/results/test.tsv

check: build
	@scripts/check $(BUILD)

bench: build
	@scripts/bench $(BUILD)

# Models have no noise, so their figures are compared wherever this runs; times only with a BASELINE of this machine.
bench-check: configure
	@cmake --build $(BUILD) -j $(JOBS) --target moonbright
	@scripts/bench-check $(BUILD) $(BASELINE)

# Not by CMake: GPU machines often lack cmocka, and each test must be a process of its own.
gpu-test:
	@scripts/gpu-test

lint:
	@scripts/bootstrap --check
	@scripts/lint

format:
	@scripts/lint --format

install: build
	DESTDIR=$(DESTDIR) cmake --install $(BUILD)

clean:
	rm -rf build
