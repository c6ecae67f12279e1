package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/workshop/kerneltest"
)

// This binary plays programs: what MILLRACE_TEST_PART names.
const part = "MILLRACE_TEST_PART"

func TestMain(m *testing.M) {
	status := 0
	switch os.Getenv(part) {
	case "":
		os.Exit(m.Run())
	case "passes":
		fmt.Println("all is well")
	case "fails":
		fmt.Println("some output")
		fmt.Fprintln(os.Stderr, "the first line")
		fmt.Fprintln(os.Stderr, "it does not fit")
		os.Exit(2)
	case "refuses":
		fmt.Fprintln(os.Stderr, os.Getenv("MILLRACE_TEST_SAYS"))
		os.Exit(exitRequest)
	case "crashes":
		panic("a bug")
	case "hangs": // until the test that listens ends
		fmt.Println("one line")
		call, err := net.Dial("tcp", os.Getenv("MILLRACE_TEST_LISTENS"))
		if err == nil {
			io.Copy(io.Discard, call)
		}
	case "plans":
		os.Exit(plans(os.Args[1:]))
	case "warns": // millrace plan, of a GPU without cuBLASLt
		if slices.Contains(os.Args, "--json") {
			fmt.Println(`{"warning": "install cuBLASLt", "computed_on": "CUDA"}`)
		} else {
			fmt.Println("device   a GPU")
		}
	case "pins": // cuda.test, of a GPU that cannot pin
		fmt.Print("HOST 123\nSUMMARY 1 GiB at once\n--- FAIL: TestGPUMemory\n")
		status = 1
	case "sanitized": // cuda.test, of which each process is an argument of a sanitizer
		os.Setenv(part, "sanitizes")
		for summary := range strings.SplitSeq(os.Getenv("MILLRACE_TEST_SUMMARIES"), "|") {
			args := append(strings.Fields(os.Getenv(kerneltest.WrapVariable)), summary)
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				fmt.Printf("%v\n%s", err, out)
				status = 1
			}
		}
	case "sanitizes": // compute-sanitizer, of a process that has the summary as its only argument
		logs := os.Args[slices.Index(os.Args, "--log-file")+1]
		name := strings.Replace(logs, "%p", fmt.Sprint(os.Getpid()), 1)
		text := "========= COMPUTE-SANITIZER\n" + os.Args[len(os.Args)-1] + "\n"
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			panic(err)
		}
		fmt.Sscan(os.Getenv("MILLRACE_TEST_STATUS"), &status)
	case "prints":
		fmt.Print(strings.Repeat("many words\n", 2<<20))
	}
	os.Exit(status)
}

// plays makes a row in which this binary plays a part.
func plays(name, how string, most time.Duration, env ...string) row {
	return row{name: name, most: most, run: func(c *check) (string, error) {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		said, err := c.command(append(env, part+"="+how), self)
		return oneLine(said), err
	}}
}

// a check with rows, and what it printed.
func checked(t *testing.T, rows []row, args ...string) (status int, printed, out string) {
	t.Helper()
	out = filepath.Join(t.TempDir(), "out")
	var stdout, stderr bytes.Buffer
	status = run(append([]string{"--out", out, "--dir", t.TempDir()}, args...), &stdout, &stderr, rows)
	return status, stdout.String() + stderr.String(), out
}

// tableOf reads the table of a check that has ended.
func tableOf(t *testing.T, out string) map[string]result {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(out, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	all := map[string]result{}
	for _, row := range r.Rows {
		all[row.Row] = row
	}
	return all
}

// A row that fails, crashes, panics or hangs costs only itself, and the table has all of them.
func TestRowsCostOnlyThemselves(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const minutes = 10 * time.Minute
	status, printed, out := checked(t, []row{
		plays("first", "passes", minutes),
		plays("failing", "fails", minutes),
		plays("crashing", "crashes", minutes),
		plays("hanging", "hangs", 50*time.Millisecond, "MILLRACE_TEST_LISTENS="+listener.Addr().String()),
		{name: "panicking", most: minutes, run: func(*check) (string, error) { panic("in the row itself") }},
		{name: "none", most: minutes, run: func(*check) (string, error) { return "", leftOut("there is no PyTorch") }},
		{name: "missing", most: minutes, run: func(c *check) (string, error) { return c.command(nil, "no-such-program") }},
		plays("last", "passes", minutes),
	}, "--budget", "100000")
	if status != exitFailed {
		t.Errorf("status %d", status)
	}
	table := tableOf(t, out)
	for name, want := range map[string][2]string{
		"first": {passed, "all is well"}, "failing": {failed, "status 2: it does not fit"},
		"crashing": {failed, "status 2: panic: a bug"},
		"hanging":  {failed, "ended after 0 s"}, "panicking": {failed, "this program: in the row itself"},
		"none":    {left, "there is no PyTorch"},
		"missing": {failed, "no-such-program"}, "last": {passed, "all is well"},
	} {
		if r := table[name]; r.Result != want[0] || !strings.Contains(r.Note, want[1]) || strings.Contains(r.Note, "\n") {
			t.Errorf("%s: %+v, want %v", name, r, want)
		}
		if n := strings.Count(printed, fmt.Sprintf("%-8s %-18s", want[0], name)); n != 2 { // as it ends, and in the table
			t.Errorf("%s is printed %d times:\n%s", name, n, printed)
		}
	}
	if want := "2 passed, 5 failed, 1 left out; the row open did not say what computes\n"; !strings.HasSuffix(printed, want) {
		t.Errorf("the end is not %q:\n%s", want, printed)
	}
	log, err := os.ReadFile(filepath.Join(out, "all.log"))
	if err != nil || !bytes.Contains(log, []byte("panic: a bug")) || !bytes.Contains(log, []byte("## crashing: FAIL after")) {
		t.Errorf("the log (%v):\n%s", err, log)
	}
}

// The output of a program that has to be ended is kept, and nothing waits for it any longer.
func TestEndedInTime(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	checked(t, []row{{name: "hanging", most: time.Hour, run: func(c *check) (string, error) {
		ctx, cancel := context.WithCancel(c.ctx)
		defer cancel()
		c.ctx = ctx
		go func() {
			defer cancel()
			if call, err := listener.Accept(); err == nil {
				t.Cleanup(func() { call.Close() })
			}
		}()
		said, err := c.command([]string{part + "=hangs", "MILLRACE_TEST_LISTENS=" + listener.Addr().String()}, self)
		if said != "one line\n" || !errors.Is(err, context.Canceled) {
			t.Errorf("it said %q: %v", said, err)
		}
		return "", nil
	}}}, "--budget", "100000")
}

// What does not fit in the budget is left out, and a row has no more than what is left of it.
func TestBudget(t *testing.T) {
	ran := map[string]bool{}
	note := func(name string) func(c *check) (string, error) {
		return func(c *check) (string, error) {
			ran[name] = true
			if _, limited := c.ctx.Deadline(); !limited {
				return "", errors.New("without an end")
			}
			return "", nil
		}
	}
	status, printed, out := checked(t, []row{
		{name: "short", least: time.Second, most: time.Hour, run: note("short")},
		{name: "long", least: time.Hour, most: 2 * time.Hour, run: note("long")},
		{name: "another", least: time.Second, most: time.Minute, run: note("another")},
	}, "--budget", "1000")
	if status != exitDone || !ran["short"] || ran["long"] || !ran["another"] {
		t.Errorf("status %d, ran %v", status, ran)
	}
	if r := tableOf(t, out)["long"]; r.Result != left || !strings.Contains(r.Note, "of the budget were left, and it needs 3600") {
		t.Errorf("%+v\n%s", r, printed)
	}
}

// Where no GPU opens, the other rows are left out.
func TestNoGPU(t *testing.T) {
	status, printed, out := checked(t, []row{
		{name: "open", most: time.Minute, opens: true, run: func(*check) (string, error) {
			return "", &exitError{2, "millrace: device cuda:0: there is no NVIDIA driver\n"}
		}},
		plays("kernels", "passes", time.Minute),
	}, "--budget", "1000")
	table := tableOf(t, out)
	if _, ran := table["kernels"]; status != exitFailed ||
		table["open"].Note != "status 2: millrace: device cuda:0: there is no NVIDIA driver" || ran ||
		!strings.HasSuffix(printed, "0 passed, 1 failed, 1 left out; no GPU could be opened\n") {
		t.Errorf("status %d, %+v\n%s", status, table, printed)
	}
}

// The last line tells if a GPU computes without cuBLASLt. That is a failure where the machine has the library.
func TestWithoutTheLibrary(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "millrace")); err != nil {
		t.Fatal(err)
	}
	for found, want := range map[string]string{"": passed, "/somewhere/libcublasLt.so.13": failed} {
		t.Setenv(part, "warns")
		status, printed, out := checked(t, []row{{name: "open", most: time.Hour, run: func(c *check) (string, error) {
			c.found = found
			return open(c)
		}}}, "--budget", "100000", "--dir", dir)
		r := tableOf(t, out)["open"]
		if r.Result != want || (status == exitDone) != (want == passed) || found != "" && !strings.Contains(r.Note, found+" and is not used: install cuBLASLt") ||
			!strings.HasSuffix(printed, "; SLOWER THAN IT COULD BE: install cuBLASLt\n") {
			t.Errorf("found at %q: status %d, %+v\n%s", found, status, r, printed)
		}
	}
}

// A host without room for a 14B model is no failure of the program.
func TestBench14B(t *testing.T) {
	onPath(t, "millrace")
	t.Setenv(part, "refuses")
	for said, want := range map[string]string{
		"millrace: memory.host: the run needs 126.47 GiB": left, "millrace: memory.device: a step needs 90 GiB": failed,
	} {
		t.Setenv("MILLRACE_TEST_SAYS", said)
		_, printed, out := checked(t, []row{{name: "bench-14b", most: time.Hour, run: benchmark{name: "bench-14b",
			shape: "qwen2.5-14b", steps: 2, whole: true}.run}}, "--budget", "100000")
		if r := tableOf(t, out)["bench-14b"]; r.Result != want || !strings.Contains(r.Note, said) {
			t.Errorf("%q: %+v\n%s", said, r, printed)
		}
	}
}

// The row memory keeps the size of the host's memory also if pinning fails.
func TestMemory(t *testing.T) {
	onPath(t, "cuda.test")
	t.Setenv(part, "pins")
	var host int64
	_, printed, out := checked(t, []row{{name: "memory", most: time.Hour, run: func(c *check) (string, error) {
		note, err := memory(c)
		host = c.hostBytes
		return note, err
	}}}, "--budget", "100000")
	if r := tableOf(t, out)["memory"]; r.Result != failed || !strings.HasSuffix(r.Note, "; 1 GiB at once") || host != 123 {
		t.Errorf("%+v, %d bytes\n%s", r, host, printed)
	}
}

// onPath makes this binary the programs of some names, the only ones on PATH.
func onPath(t *testing.T, names ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range names {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// nvidia-smi runs from the first row to the last, and ends with the check.
func TestWatch(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	onPath(t, "nvidia-smi")
	t.Setenv(part, "hangs")
	t.Setenv("MILLRACE_TEST_LISTENS", listener.Addr().String())
	var watcher net.Conn
	status, printed, out := checked(t, []row{{name: "watched", least: time.Second, most: time.Hour,
		run: func(*check) (string, error) {
			watcher, err = listener.Accept()
			return "", err
		}}}, "--budget", "100000")
	if status != exitDone {
		t.Fatalf("status %d\n%s", status, printed)
	}
	defer watcher.Close()
	if n, err := watcher.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the watcher still runs: %d bytes, %v", n, err)
	}
	if _, err := os.Stat(filepath.Join(out, watchName)); err != nil {
		t.Error(err)
	}
}

// The runs of a row that keeps them are packed at once.
func TestPacksAtOnce(t *testing.T) {
	runs := func(c *check) []byte {
		text, _ := os.ReadFile(filepath.Join(c.out, "runs.tar.gz"))
		return text
	}
	var before, after []byte
	checked(t, []row{
		{name: "other", least: time.Second, most: time.Hour, run: func(*check) (string, error) { return "", nil }},
		{name: "bench", least: time.Second, most: time.Hour, keeps: true, run: func(c *check) (string, error) {
			before = runs(c)
			return "", os.WriteFile(filepath.Join(c.work, "bench.trace.json"), []byte("{}"), 0o666)
		}},
		{name: "last", least: time.Second, most: time.Hour, run: func(c *check) (string, error) {
			after = runs(c)
			return "", nil
		}},
	}, "--budget", "100000")
	if len(before) != 0 || len(after) == 0 {
		t.Errorf("%d bytes before the row, %d after it", len(before), len(after))
	}
}

// An error that a sanitizer finds in any process fails its row. A sanitizer that needs more time than there is does
// not.
func TestSanitize(t *testing.T) {
	run := func(name string, most time.Duration) result {
		t.Helper()
		_, printed, out := checked(t, []row{{name: name, least: time.Millisecond, most: most, run: sanitize(name)}},
			"--budget", "100000")
		r, ok := tableOf(t, out)[name]
		if !ok {
			t.Fatal(printed)
		}
		return r
	}
	t.Setenv("PATH", t.TempDir())
	if r := run("memcheck", time.Hour); r.Result != left || r.Note != "there is no compute-sanitizer" {
		t.Errorf("without the tool: %+v", r)
	}
	onPath(t, "compute-sanitizer", "cuda.test")
	t.Setenv(part, "sanitized")
	for _, test := range []struct{ tool, summaries, status, result, note string }{
		{"memcheck", "========= ERROR SUMMARY: 0 errors|========= ERROR SUMMARY: 0 errors",
			"0", passed, "memcheck found 0 errors in 2 processes"},
		{"memcheck", "========= ERROR SUMMARY: 0 errors|========= Invalid read\n========= ERROR SUMMARY: 3 errors",
			"86", failed, "memcheck found 3 errors in 2 processes"},
		{"racecheck", "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
			"0", passed, "racecheck found 0 errors in 1 processes"},
		{"racecheck", "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)",
			"86", failed, "racecheck found 2 errors in 1 processes"},
		{"memcheck", "nothing", "0", failed, "memcheck said nothing of any process"},
		{"memcheck", "========= ERROR SUMMARY: 0 errors", "1", failed, "status 1"},
	} {
		t.Setenv("MILLRACE_TEST_SUMMARIES", test.summaries)
		t.Setenv("MILLRACE_TEST_STATUS", test.status)
		if r := run(test.tool, time.Hour); r.Result != test.result || !strings.Contains(r.Note, test.note) {
			t.Errorf("%v: %+v", test, r)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	t.Setenv(part, "hangs")
	t.Setenv("MILLRACE_TEST_LISTENS", listener.Addr().String())
	if r := run("memcheck", 50*time.Millisecond); r.Result != left || !strings.Contains(r.Note, "did not end in time") {
		t.Errorf("one that hangs: %+v", r)
	}
}

// A table, such as that of kernels' speeds, is shown, and kept as numbers.
func TestTable(t *testing.T) {
	m := tableOfTest("speeds").FindStringSubmatch("=== RUN\n#      ms\nnorm  1.0\nSPEEDS {\"rows\":[{}]}\nSUMMARY 1 operations\n")
	if m == nil || m[1] != "      ms\nnorm  1.0\n" || m[2] != `{"rows":[{}]}` {
		t.Errorf("%q", m)
	}
}

// What comes back is few files in one folder, none of them long.
func TestFewFiles(t *testing.T) {
	_, _, out := checked(t, []row{plays("talking", "prints", time.Hour), {name: "running", most: time.Minute, run: func(c *check) (string, error) {
		folder := filepath.Join(c.work, "runs", "a", "checkpoints")
		return "", errors.Join(os.MkdirAll(folder, 0o777), os.WriteFile(filepath.Join(folder, "metrics.jsonl"), []byte("{}\n"), 0o666),
			os.WriteFile(filepath.Join(folder, "weights.safetensors"), make([]byte, 1<<20), 0o666))
	}}}, "--budget", "100000")
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) > 8-3 { // rates.json, peers.json and dmon.txt
		t.Errorf("%d files", len(entries))
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if e.IsDir() || info.Size() > 16<<20 {
			t.Errorf("%s: a folder: %t, %d bytes", e.Name(), e.IsDir(), info.Size())
		}
	}
}

func TestRequests(t *testing.T) {
	for args, want := range map[string]string{
		"--budget soon":                  `--budget is "soon": give seconds, such as 570`,
		"--only nothing":                 "the rows are a b",
		"--only [":                       "is no pattern",
		"--whatever":                     "flag provided but not defined",
		"more":                           `"more" is no flag`,
		"--budget 10 --out /proc/none/x": "--out: ",
	} {
		rows := []row{plays("a", "passes", time.Minute), plays("b", "passes", time.Minute)}
		status, printed, _ := checked(t, rows, strings.Fields(args)...)
		if status == exitDone || !strings.Contains(printed, want) {
			t.Errorf("%s: status %d, %q, want %q", args, status, printed, want)
		}
	}
	status, printed, out := checked(t, []row{plays("a", "passes", time.Minute), plays("b", "passes", time.Minute)}, "--only", "b*")
	if table := tableOf(t, out); status != exitDone || len(table) != 1 || table["b"].Result != passed {
		t.Errorf("--only: status %d, %v\n%s", status, table, printed)
	}
}

// Each row has a name of its own, and time.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if seen[r.name] || r.least <= 0 || r.most < r.least || r.run == nil {
			t.Errorf("%+v", r)
		}
		seen[r.name] = true
		if !bytes.Contains(readme, []byte("\n| "+r.name+" |")) {
			t.Errorf("README.md has no row %s", r.name)
		}
	}
}

// The rows that CI runs in no commit are those that README.md names.
func TestRowsOfCI(t *testing.T) {
	read := func(file, pattern string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s has no %s", file, pattern)
		}
		return string(found[1])
	}
	turns := read("../../Makefile", `QUICK_TURNS = (.*)`)
	o := config{only: read("../../Makefile", `QUICK_ROWS = (.*)`) + " " + strings.ReplaceAll(turns, "+", " ")}
	if err := o.choose(rows); err != nil {
		t.Fatal(err)
	}
	var without []string
	for _, r := range rows {
		if !slices.ContainsFunc(o.rows, func(chosen row) bool { return chosen.name == r.name }) {
			without = append(without, r.name)
		}
	}
	listed := read("README.md", `QUICK=1\x60, without seven rows \(([^)]*)\)`)
	named := strings.FieldsFunc(listed, func(r rune) bool { return strings.ContainsRune("`, \n", r) })
	slices.Sort(named)
	slices.Sort(without)
	if !slices.Equal(named, without) {
		t.Errorf("CI runs without %q, and README.md names %q", without, named)
	}
}

func TestNotes(t *testing.T) {
	const begins = "=== RUN   TestGPUTraining\n=== RUN   TestGPUTraining/own_products\n"
	for _, c := range []struct{ said, want string }{
		{"--- FAIL: TestGPUConformance (1s)\n    --- PASS: TestGPUConformance/own_products (1s)\n" +
			"    --- SKIP: TestGPUConformance/cuBLASLt (0s)\n" +
			"   rig.go:1: the worst error is 0.31 of what is allowed: x\n" +
			"   rig.go:1: the worst error is 1.4 of what is allowed: y\n", "1 tests passed, 1 failed; " +
			"the worst error is 1.4 of what is allowed; TestGPUConformance; without cuBLASLt"},
		{"x\nSUMMARY 143 of 143 kernels ran\nPASS\n", "143 of 143 kernels ran"},
		{begins + "--- PASS: TestGPUTraining (1s)\nPASS\n", "1 tests passed, 0 failed"},
		{begins, "cut off after 2 tests had begun, the last one TestGPUTraining/own_products"},
		{begins + "--- PASS: TestGPUTraining (1s)\n=== RUN   TestGPUContinues\n",
			"cut off after 3 tests had begun, the last one TestGPUContinues; 1 tests passed, 0 failed"},
	} {
		if got := testNote(c.said); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
