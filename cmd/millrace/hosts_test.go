package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/train"
)

// launch has the environment say that a launcher started two processes of the program.
func launch(t *testing.T, size string) {
	t.Setenv("OMPI_COMM_WORLD_RANK", "0")
	t.Setenv("OMPI_COMM_WORLD_SIZE", size)
	t.Setenv("MILLRACE_MPI", filepath.Join(t.TempDir(), "libmpi.so"))
}

// A launcher of several processes is for train, and for what says something of each machine. One of a single process
// needs no MPI.
func TestLaunchers(t *testing.T) {
	useCache(t)
	for _, c := range []struct {
		size   string
		args   []string
		status int
		want   string
	}{
		{"2", []string{"plan", "run.yaml"}, exitBadRequest,
			"mpiexec of Open MPI started several processes, and plan is for one: run it without the launcher; " +
				"in a shell that has its variables, unset OMPI_COMM_WORLD_RANK"},
		{"2", []string{"checkpoint", "list", "x"}, exitBadRequest, "and checkpoint is for one: run it without"},
		{"2", []string{"version"}, exitDone, ""},
		{"2", []string{"train", "no-such.yaml"}, exitFailed, "libmpi.so"},
		{"1", []string{"train", "no-such.yaml"}, exitBadRequest, "there is no such file"},
		{"1", []string{"plan", "no-such.yaml"}, exitBadRequest, "there is no such file"},
	} {
		t.Run(c.size+" "+strings.Join(c.args, " "), func(t *testing.T) {
			launch(t, c.size)
			r := invoke(t, c.args...)
			if r.status != c.status || !strings.Contains(r.stderr, c.want) || strings.Count(r.stderr, "\n") > 1 {
				t.Errorf("status %d, want %d, and %q in one line: %q", r.status, c.status, c.want, r.stderr)
			}
		})
	}
	t.Setenv("RANK", "1")
	t.Setenv("WORLD_SIZE", "2")
	r := invoke(t, "train", "no-such.yaml")
	if r.status != exitBadRequest || !strings.Contains(r.stderr, "mpiexec -n 2") {
		t.Errorf("with torchrun: status %d: %s", r.status, r.stderr)
	}
	if r := invoke(t, "plan", "no-such.yaml"); !strings.Contains(r.stderr, "there is no such file") {
		t.Errorf("a plan with torchrun: %s", r.stderr)
	}
}

// An error of all hosts is told by one of them, and each ends with its status. One that a host has alone is told with
// its name.
func TestErrorsOfHosts(t *testing.T) {
	end := func(host int, err error) (status int, line string) {
		var said strings.Builder
		p := &program{stderr: &progress{w: &said}, trains: true, env: &train.Env{
			Cluster: &train.Cluster{Host: host, Hosts: 2, Names: []string{"a", "b"}, Peers: twice{}}}}
		return p.end(err), said.String()
	}
	bad := blame.BadRequest(errors.New("datasets is missing"))
	for host, want := range []string{"millrace: datasets is missing\n", ""} {
		c := &train.Cluster{Host: host, Hosts: 2, Names: []string{"a", "b"}, Peers: twice{}}
		if status, line := end(host, c.Agree(bad)); status != exitBadRequest || line != want {
			t.Errorf("host %d: status %d, %q, want %q", host, status, line, want)
		}
	}
	if status, line := end(1, errors.New("the drive fails")); status != exitFailed ||
		line != "rank 1 (host b): millrace: the drive fails\n" {
		t.Errorf("an error of one host: status %d, %q", status, line)
	}
}

// twice are two hosts that always say the same.
type twice struct{ train.Peers }

func (twice) Exchange(b []byte) ([][]byte, error) { return [][]byte{b, b}, nil }
