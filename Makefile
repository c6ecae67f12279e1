# What people and CI type. `make` alone lists it.

GO ?= go

# What takes longest begins first, so that no core waits for it at the end.
SLOWEST = ./train ./stream ./cmd/millrace

# The parts of make test. .ci/run gives one at a time, so that its log says how long each takes.
PARTS ?= product workshop

# Names tests by what their sources reach, for stages that need some of them.
PICK = $(GO) run ./workshop/pick

# With SHORT=-short each commit has one of this number of shares of the tests of train, plan and the program under the race detector,
# and a third of all others.
RACE_TURNS ?= 18

# SHORT=-short leaves out what takes long, and make long runs a share of that.
SHORT ?=
TURNS ?= 1

# QUICK=1 makes kernels-check only assemble what is compiled, a share of it, which needs no PyTorch; and gpu-rehearsal run the
# rows of seconds and one set of the slower ones, which the commit chooses.
QUICK ?=
QUICK_ROWS = machine open kernels* conformance speeds tuning sustained memory bench bench-q* bench-70b parity *bad-input pytorch rates *check peers real
QUICK_TURNS = probe+laws-library streamed+variants+resumed laws+repeats
QUICK_TURN = $(subst +, ,$(word $(shell echo $$(($$(git rev-parse HEAD 2>/dev/null | cksum | cut -d' ' -f1) % $(words $(QUICK_TURNS)) + 1))),$(QUICK_TURNS)))

# An interpreter with both files of requirements in device/cuda/kernels; make kernels-check makes this one.
KERNELS_PYTHON ?= build/kernels-venv/bin/python

# Modules of their own: one compares with modules that the program does not need, one uses the program's packages
# from outside, and one has what makes releases.
MODULES = data/parquet/oracle examples/library workshop/tools

# In a module of its own, so that those who import this one need none of what it needs.
STATICCHECK = $(GO) tool -modfile=$(CURDIR)/workshop/tools/go.mod staticcheck

# About how long make demo may take, in seconds.
DEMO_SECONDS ?= 120

BENCH_TIME ?= 200ms
BENCH_PROGRAMS = $(sort $(dir $(wildcard benchmarks/*/main.go)))

.DEFAULT_GOAL := help

.PHONY: help
help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/millrace
	CGO_ENABLED=0 $(GO) build -o bin/millrace ./cmd/millrace

# The version is that of the commit's tag; untagged commits get a pseudo-version.
.PHONY: release
release: ## dist/: archives, wheels, Debian and RPM packages of the last commit for each platform, bills of materials, SHA256SUMS
	cd workshop/tools && $(GO) run ./release -repository ../.. -out ../../dist

.PHONY: install-check
install-check: ## do the archive, the wheel and the packages of this platform install, and what they install work?
	workshop/tools/release/quick.sh

.PHONY: release-check
release-check: ## is the release reproducible, and does each package work on a clean system? (root, debootstrap)
	workshop/tools/release/check.sh

.PHONY: demo
demo: build ## a small model learns to write, is killed and resumes with the same bits, in about DEMO_SECONDS=120
	bin/millrace demo --dir build/demo --seconds $(DEMO_SECONDS)

.PHONY: test
test: $(PARTS) ## all tests: make product and make workshop; no cgo, no Python, no network

.PHONY: product
product: ## the tests of the program: all that are not below workshop/
	all=$$($(GO) list ./...) && CGO_ENABLED=0 $(GO) test -timeout 40m $(SHORT) $(SLOWEST) $$(echo "$$all" | grep -v /workshop/)
	for module in $(filter-out workshop/%,$(MODULES)); do (cd $$module && CGO_ENABLED=0 $(GO) test $(SHORT) ./...) || exit 1; done

.PHONY: workshop
workshop: ## the tests of what proves, checks, generates and releases the program: all below workshop/
	CGO_ENABLED=0 $(GO) test -timeout 40m $(SHORT) ./workshop/...
	for module in $(filter workshop/%,$(MODULES)); do (cd $$module && CGO_ENABLED=0 $(GO) test $(SHORT) ./...) || exit 1; done

.PHONY: long
long: ## the tests that SHORT=-short makes quick or leaves out; with TURNS=12 a twelfth of them, which the commit chooses
	tests=$$($(PICK) -turns $(TURNS) long) && CGO_ENABLED=0 $(GO) test -timeout 40m $$tests

.PHONY: surroundings
surroundings: ## do quick tests pass with odd descriptors, umask, limits, locale, proxies, home, TMPDIR, on one core, as another user, in a container? (TURNS=3: of a third of the packages, which the commit chooses)
	GO=$(GO) TURNS=$(TURNS) sh internal/surroundings/odd.sh

.PHONY: words
words: ## the tests that read pages: links, plain words, and what docs say of keys, flags, models and figures
	tests=$$($(PICK) words) && CGO_ENABLED=0 $(GO) test $$tests

.PHONY: docs-zh
docs-zh: ## which sections of docs/zh are older than the English ones? (DONE=docs/zh/data.md:2,5 notes that these are translated again, DONE=docs/zh/data.md all)
	$(GO) run ./workshop/translations $(if $(DONE),-done $(DONE))

.PHONY: night
night: ## hours: what CI samples, in long forms: all race tests, trials, faults, kills, laws, fuzzers, rehearsals (ONLY='race fuzz')
	GO=$(GO) ONLY='$(ONLY)' bash workshop/night.sh

.PHONY: hostile
hostile: ## what users do wrong and what the world does to them: is each answered well?
	cd cmd/millrace && CGO_ENABLED=0 $(GO) test -run '^TestHostile$$' -count=1

.PHONY: race
race: ## the tests of packages whose goroutines share memory, under the race detector (SHORT=-short: quick ones, of which a commit has a share)
	@command -v "$$($(GO) env CC | cut -d' ' -f1)" >/dev/null || \
		{ echo "make race: the race detector needs cgo, and there is no C compiler: install gcc or clang, or set CC" >&2; exit 1; }
	tests=$$($(PICK) $(if $(SHORT),-turns $(RACE_TURNS)) race) && CGO_ENABLED=1 $(GO) test -race -timeout $(if $(SHORT),40m,3h) $(SHORT) $$tests

.PHONY: mpi-check
mpi-check: ## training on ranks of Open MPI and MPICH, on this host (REPEATS=50 runs of each; needs Python and an index)
	REPEATS=$(REPEATS) GO=$(GO) sh internal/mpi/check.sh

.PHONY: kernels
kernels: ## compile the GPU kernels whose sources changed (needs Python, no GPU)
	$(KERNELS_PYTHON) device/cuda/kernels/build.py

.PHONY: kernels-check
kernels-check: ## run the GPU kernels in Triton's interpreter, compile them again, assemble them (needs Python, no GPU)
	QUICK=$(QUICK) sh device/cuda/kernels/check.sh

# BUDGET=300 and the other variables of workshop/gpucheck/README.md are for the run.
.PHONY: gpu-check
gpu-check: ## bin/gpucheck: a folder to copy to a machine with a GPU, whose run.sh checks everything; runs it where there is one (BUDGET=570 s, TREE=1)
	bash workshop/gpucheck/gpu-check.sh
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then exec bash bin/gpucheck/run.sh; \
		else echo "make gpu-check: this machine has no NVIDIA GPU: copy bin/gpucheck to one that has, and start run.sh there"; fi

.PHONY: gpu-rehearsal
gpu-rehearsal: ## run all that gpu-check runs on a stand-in of the driver, in tiny sizes: no figure means anything (QUICK=1: some)
	TAGS=standin bash workshop/gpucheck/gpu-check.sh build/gpu-rehearsal
	TINY=1 BUDGET=2400 OUT=build/gpu-rehearsal/out $(if $(QUICK),ONLY='$(QUICK_ROWS) $(QUICK_TURN)') \
		bash build/gpu-rehearsal/run.sh

# Programs that compare with oneDNN or PyTorch say so where those are missing; the others still run.
.PHONY: bench
bench: ## Go benchmarks, then the programs below benchmarks/ (BENCH_TIME=1s for steadier figures)
	CGO_ENABLED=0 $(GO) test -run '^$$' -bench . -benchtime $(BENCH_TIME) ./...
	for module in $(MODULES); do \
		(cd $$module && CGO_ENABLED=0 $(GO) test -run '^$$' -bench . -benchtime $(BENCH_TIME) ./...) || exit 1; done
	@failed=; for program in $(BENCH_PROGRAMS); do \
		echo; echo "== $$program"; \
		CGO_ENABLED=0 $(GO) run -tags onednn ./$$program || failed="$$failed $$program"; \
	done; if [ -n "$$failed" ]; then echo "make bench: did not run to the end:$$failed" >&2; exit 1; fi

.PHONY: lint
lint: ## gofmt, go vet, and the staticcheck that workshop/tools/go.mod names
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then \
		echo "make lint: not formatted, run make fmt:" $$unformatted >&2; exit 1; fi
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 $(GO) vet -tags onednn ./benchmarks/...
	for module in $(MODULES); do (cd $$module && CGO_ENABLED=0 $(GO) vet ./...) || exit 1; done
	CGO_ENABLED=0 $(GO) vet -tags nogpu ./cmd/... ./device/cuda/... ./internal/mpi
	for module in . $(MODULES); do (cd $$module && CGO_ENABLED=0 $(STATICCHECK) ./...) || exit 1; done
	CGO_ENABLED=0 $(GO) test -run TestPlainWords ./internal/archtest

.PHONY: cross
cross: ## does it compile where there is no assembly for it, and on other systems?
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 $(GO) build $$($(GO) list -f "{{if .GoFiles}}{{.ImportPath}}{{end}}" ./... | grep -v /benchmarks/)

.PHONY: fmt
fmt: ## format all sources
	gofmt -w .
