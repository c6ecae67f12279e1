# What people and CI type. `make` alone lists it.

GO ?= go

# What takes longest begins first, so that no core waits for it at the end.
SLOWEST = ./train ./stream ./cmd/millrace

# Packages in which goroutines share memory. Those with arithmetic or texts alone would only repeat make test, slowly.
# gguf is left out: the workers of its export have a range each, and its tests take 40 s under the race detector.
RACE = store checkpoint data probe device/cpu device/cpu/pool device/null device/cuda device/cuda/cublaslt workshop/gpucheck \
	trace hostmem vfs hf/hub internal/fault internal/mpi workshop/cudatest/... train/... rehearse
RACE_PACKAGES = $(addprefix ./,$(RACE))

# Tests of train, stream, data and device/cuda that run what their other tests run, in many runs or for other models: minutes under the race
# detector, for no goroutine that those do not have. make test runs them.
RACE_REPEATS = TestAddTokens TestAdviceOnAResume TestAlgorithmsAreKept TestAlgorithmsThatAreNotOffered \
	TestAnEndedRunIsMadeLonger TestAnyOrderResumes TestBestIsOfTheSameData TestBestOfARunThatHasEnded TestCardOfARun TestConstants \
	TestConstantsMove TestConstantsOfARandomModel TestContinuedPassesAgreeWithWholeOnes TestExperts \
	TestHostsExportWithoutLowHalves TestNewLayers TestRules TestDamageSinceAChangeOfData TestDamagedCheckpointsAreSetAside \
	TestRunsAreNotOpenToAll TestDocumentsArePlanned TestEndedRunsStayEnded TestEpochsAreRoundedUp TestDirectoriesAreOfTheRun TestEveryKeyWithEveryValue \
	TestFilesOfARunAreNotLinks TestForgedRecords TestForgedRecordsTrain TestFrozenTensors TestGradientsOfGoldenModels TestGreedyTokensAgreeWithTransformers \
	TestIdentityLostTwice TestResultsAreOfTheirSteps TestResultsOfAnotherWay TestResultsOfOthersStay \
	TestInterruptedElsewhere TestKilledBeforeTheFirstCheckpoint TestFrozenTensorsAreThoseOfTheBase TestFrozenTensorsInGGUF TestFrozenTensorsWithoutTheBase TestKeptSizesAreSaid TestKilledHybridsGoOn TestLinksInARunLeadNowhere \
	TestLinksInSharedDirectoriesLeadNowhere TestLossOfConversations TestMXFP4TrainsAndExports TestModelOfTheDirectories \
	TestOpenRefuses TestPartOfTheOutputDirectoryIsLost TestPatchworkTrainsAndExports TestPatience TestPatienceAtTheEnd \
	TestPatienceInterruptedEvaluation TestPatienceRaisedAndLowered TestPlanForLessMemoryThanItTakes TestEndAfterAChange TestEndAmongUnhealthySteps TestFilesInPlaceOfResults TestShortenedBeyondItsData TestRemovedFilesComeBack TestStartsThatEnd \
	TestRecordBeforeTraining TestRemovedOutputDirectory TestResumeFromAPath TestResumeOnAnotherDevice \
	TestResumeOnConversations TestResumeRefuses TestResumeWith TestRunGradients TestRunIsTraining TestRunsPublishNothingElse \
	TestRunsShareAFallback TestSetTensor TestSizesSurviveAKill TestSpaceIsPlanned TestSpoiledWeightsEndTheRun \
	TestStandInCardsDealTheHead \
	TestTakenOutputDirectory TestTextsGoBack TestTrainLearns TestTrainRefuses TestTrials TestTrainedCheckpoints TestTrainedModelStopsByItsDirectoryAlone \
	TestDamageIsFoundBeforeItHurts TestLongContextTrains TestPlanOfARunThatHasBegun TestPlannedRunsDoNotFail TestRehearseADisk \
	TestSizesDoNotFollowFromTheTokenCache TestSizesComeFromTheMachine TestModelOfTheDirectories TestRecordsHaveTheGreatestUpdate \
	TestCopiesOfAMovedDirectory TestForeignCheckpointsStay TestDirectoryChangesBeforeItIsHeld \
	TestVariablesAreOfTheRun TestUnclippedRunsEndWhereGradientsAreNotFinite TestWrittenBytesAgreeWithTheKernel
space := $(subst ,, )

# SHORT=-short leaves out what takes long.
SHORT ?=

# QUICK=1 makes kernels-check only assemble what is compiled, a third of it, which needs no PyTorch; and gpu-rehearsal leave
# out the rows that run what its other rows or tests run, in other settings.
QUICK ?=

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
test: ## all tests; no cgo, no Python, no network
	CGO_ENABLED=0 $(GO) test -timeout 40m $(SHORT) $(SLOWEST) ./...
	for module in $(MODULES); do (cd $$module && CGO_ENABLED=0 $(GO) test $(SHORT) ./...) || exit 1; done

.PHONY: surroundings
surroundings: ## do quick tests pass with odd descriptors, umask, limits, locale, proxies, home, TMPDIR, on one core, as another user, in a container?
	GO=$(GO) sh internal/surroundings/odd.sh

.PHONY: hostile
hostile: ## what users do wrong and what the world does to them: is each answered well?
	cd cmd/millrace && CGO_ENABLED=0 $(GO) test -run '^TestHostile$$' -count=1

.PHONY: race
race: ## the tests of what runs concurrently, under the race detector (SHORT=-short: the quick ones)
	@command -v "$$($(GO) env CC | cut -d' ' -f1)" >/dev/null || \
		{ echo "make race: the race detector needs cgo, and there is no C compiler: install gcc or clang, or set CC" >&2; exit 1; }
	CGO_ENABLED=1 $(GO) test -race -timeout 40m $(SHORT) $(if $(SHORT),-skip '^($(subst $(space),|,$(strip $(RACE_REPEATS))))$$') $(SLOWEST) $(RACE_PACKAGES)

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
gpu-rehearsal: ## run all that gpu-check runs on a stand-in of the driver, in tiny sizes: no figure means anything (QUICK=1: most)
	TAGS=standin bash workshop/gpucheck/gpu-check.sh build/gpu-rehearsal
	TINY=1 OUT=build/gpu-rehearsal/out $(if $(QUICK),ONLY='[^bt]* tuning bench bench-q* bench-70b bad-input') \
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
