#!/usr/bin/env bash
# make night: what .ci/run samples, in long forms. Each job has a log in build/night, all jobs run even if one fails, and
# the last lines say which failed. ONLY names jobs; without it all run, for some hours.
#
#   race     all tests of packages whose goroutines share memory, under the race detector
#   trials   random runs with all moves of an operator, faults of files, kills, directories
#   laws     property tests of placements, stores and checkpoints with more draws; documents at many places
#   fuzz     each fuzzer for FUZZ_TIME
#   kernels  the kernels in Triton's interpreter, compiled again and assembled
#   gpu      every row of gpu-check on the stand-in
#   mpi      REPEATS runs with each MPI library
#   hostile  all that users do wrong; surroundings; another system's build
set -uo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
logs=build/night
mkdir -p "$logs"
failed=

# job NAME COMMAND... runs if it is wanted.
job() {
	local name=$1
	shift
	case " ${ONLY:-$name} " in *" $name "*) ;; *) return 0 ;; esac
	echo "== $name: $* (after ${SECONDS} s)"
	if ! "$@" >>"$logs/$name.log" 2>&1; then
		failed="$failed $name"
		tail -n 20 "$logs/$name.log"
	fi
}
rm -f "$logs"/*.log

# long PACKAGE TESTS FLAGS...: some tests of a package in their long forms.
long() {
	local package=$1 tests=$2
	shift 2
	CGO_ENABLED=0 $go test -vet=off -count=1 -timeout 0 "$package" -run "^($tests)\$" "$@"
}
job trials long ./train 'TestTrials|TestRunsUnderFaults|TestKilledRunsGoOn|TestPlansComeFromTheRequestAlone|TestModelOfTheDirectories|TestResultsAreOfTheirSteps' \
	-trials="${TRIALS:-500}" -faults="${FAULTS:-500}" -kills="${KILLS:-300}" -planners=50 -directories -moves
job laws long ./stream '.*' -all -rapid.checks="${CHECKS:-500}"
for package in ./plan ./store ./checkpoint ./trace; do job laws long "$package" '.*' -rapid.checks="${CHECKS:-500}"; done
job laws long ./model 'Test.*Document.*' -documentrows=20 -packs=200
for fuzzer in $($go run ./workshop/pick fuzz); do
	job fuzz env CGO_ENABLED=0 $go test -vet=off "${fuzzer%%:*}" -run '^$' -fuzz "^${fuzzer##*:}\$" -fuzztime "${FUZZ_TIME:-2m}" -fuzzminimizetime 10x
done
job kernels make kernels-check
job gpu make gpu-check TREE=1
job gpu make gpu-rehearsal
job mpi make mpi-check REPEATS="${REPEATS:-20}"
for target in hostile surroundings cross install-check; do job hostile make "$target"; done
job race make race

[ -z "$failed" ] || { echo "make night: failed:$failed; the logs are in $logs" >&2; exit 1; }
echo "make night: all passed, in ${SECONDS} s"
