package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// fetched is the answer to a request with a token.
func fetched(t *testing.T, method, url, token string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("X-Millrace-Token", token)
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode >= 300 {
		t.Errorf("%s %s: %d %s %v", method, url, r.StatusCode, text, err)
	}
	return string(text)
}

var served = regexp.MustCompile(`at (http://\S+/)(?:#token=(\S+))?$`)

// serve shows runs until it is interrupted, which is its good end.
func TestServe(t *testing.T) {
	w := newWorkshop(t)
	w.write("runs/a/metrics.jsonl", `{"step":1,"loss":4}`+"\n")
	w.write("token", "a-token-of-a-test\n")
	out, in := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	p := &program{ctx: ctx, stdout: in, stderr: &progress{w: io.Discard}}
	ended := make(chan error, 1)
	c := &serveCmd{Dirs: []string{w.path("runs")}, Address: "127.0.0.1:0", TokenFile: w.path("token")}
	go func() { ended <- c.Run(p) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	m := served.FindStringSubmatch(strings.TrimSpace(line))
	if err != nil || m == nil || !strings.HasPrefix(line, "1 run at ") {
		t.Fatalf("%q, %v", line, err)
	}
	var list struct{ Runs []struct{ Name string } }
	if err := json.Unmarshal([]byte(fetched(t, "GET", m[1]+"api/runs", "")), &list); err != nil || len(list.Runs) != 1 ||
		list.Runs[0].Name != w.path("runs/a") {
		t.Errorf("%+v %v", list, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w.write("short", "abc")
	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"serve", w.path("none")}, "none does not exist; name the output_dir of a run, or a folder of runs"},
		{[]string{"serve", w.path("token")}, "is not a directory"},
		{[]string{"serve", w.path("runs"), "--address", taken.Addr().String()}, "--address: " + taken.Addr().String() +
			" is in use by another program; choose another port"},
		{[]string{"serve", w.path("runs"), "--address", "a:b"}, `"b" is not a port`},
		{[]string{"serve", w.path("runs"), "--token-file", w.path("short")}, "must have one token of 16 characters or more"},
		{[]string{"train", w.path("run.yaml"), "--serve=" + taken.Addr().String()}, "--serve: " + taken.Addr().String() +
			" is in use"},
	} {
		if r := invoke(t, x.args...); r.status != exitBadRequest || !strings.Contains(r.errorLine(), x.want) {
			t.Errorf("%v: status %d, %s", x.args, r.status, r.stderr)
		}
	}
	if w.files("out") != nil {
		t.Error("a run that could not be shown has begun")
	}
}

// A run that is shown says where, with the token by which its page asks it to stop: it ends as after an interrupt.
func TestTrainServes(t *testing.T) {
	w := newWorkshop(t)
	cmd := inProcess("runs", "train", w.path("run.yaml"), "--serve=127.0.0.1:0", "--set", "max_steps=1000000")
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func(cmd *exec.Cmd) { _ = cmd.Process.Kill() }(cmd)
	lines := bufio.NewScanner(pipe)
	var m []string
	for m == nil && lines.Scan() {
		m = served.FindStringSubmatch(lines.Text())
	}
	if m == nil || m[2] == "" {
		t.Fatal("it does not say where it is")
	}
	await(t, lines, "  loss ")
	if list := fetched(t, "GET", m[1]+"api/runs", ""); !strings.Contains(list, `"controls":true,"message":null`) {
		t.Error(list)
	}
	fetched(t, "POST", m[1]+"api/runs/r1/stop", m[2])
	await(t, lines, "saved in "+w.path("out/checkpoints/step-"))
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitInterrupted {
		t.Errorf("status %d", got)
	}
}
