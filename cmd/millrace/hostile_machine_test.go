package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// hostileMachine are permissions, limits, outputs that are closed or full, and other processes.
func hostileMachine(t *testing.T) (all []hostile) {
	forbidden := func(name, line, want string, status int, paths map[string]fs.FileMode) {
		all = append(all, hostile{name: "forbidden: " + name, line: line, want: want, status: status, wrap: asNobody, spoil: func(w *workshop) {
			w.write("tokens.json", `{"input_ids": [[1, 2, 3]], "labels": [[-100, 2, 3]]}`)
			forbid(w, paths)
		}})
	}
	const run, model = "train run.yaml", "eval --model model --data data/a.txt --tokenizer bytes"
	forbidden("the run file", run, "run.yaml", exitBadRequest, map[string]fs.FileMode{"run.yaml": 0})
	forbidden("the data", run, "data/a.txt", exitBadRequest, map[string]fs.FileMode{"data/a.txt": 0})
	forbidden("the weights", run, "model.safetensors", exitBadRequest, map[string]fs.FileMode{"model/model.safetensors": 0})
	forbidden("the weights, evaluated", model, "model.safetensors", exitBadRequest, map[string]fs.FileMode{"model/model.safetensors": 0})
	forbidden("config.json", "plan run.yaml", "config.json", exitBadRequest, map[string]fs.FileMode{"model/config.json": 0})
	forbidden("the directory of results", run, "out", exitBadRequest, map[string]fs.FileMode{".": 0o555})
	forbidden("grad --out", "grad --model model --tokens tokens.json --out data/g.safetensors", "data/g.safetensors", exitBadRequest, map[string]fs.FileMode{"data": 0o555})
	forbidden("grad --out over a file that is protected", "grad --model model --tokens tokens.json --out data/b.txt", "data/b.txt", exitBadRequest, map[string]fs.FileMode{"data/b.txt": 0o444})
	forbidden("preview --html", "preview run.yaml --html data/p.html", "data/p.html", exitBadRequest, map[string]fs.FileMode{"data": 0o555})
	forbidden("export", "export model data/out", "data/out", exitBadRequest, map[string]fs.FileMode{"data": 0o555})
	forbidden("the tokens", "grad --model model --tokens tokens.json --out g.safetensors", "tokens.json", exitBadRequest, map[string]fs.FileMode{"tokens.json": 0})

	// Limits of the shell, in blocks of 512 bytes and in files.
	limited := func(limit string) func(*exec.Cmd) {
		return func(cmd *exec.Cmd) {
			shell, err := exec.LookPath("sh")
			if err != nil {
				return
			}
			cmd.Args = append([]string{"sh", "-c", "ulimit " + limit + ` && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
			cmd.Path = shell
		}
	}
	small := "ulimit -f"
	all = append(all,
		hostile{name: "limit of file sizes: export", line: "export model out2 --dtype f32", wrap: limited("-f 16"), want: small, status: exitFailed},
		hostile{name: "limit of file sizes: train", line: run, wrap: limited("-f 16"), want: small, status: exitFailed, writes: true, slow: true},
		hostile{name: "limit of file sizes: preview --html", line: "preview run.yaml --limit 0 --html p.html", env: []string{"HOME=", "MILLRACE_CACHE=", "XDG_CACHE_HOME="}, wrap: limited("-f 1"), want: small, status: exitFailed},
		hostile{name: "limit of file sizes: demo", line: "demo --dir demo --steps 16", wrap: limited("-f 16"), want: small,
			status: exitFailed, writes: true, slow: true},
		hostile{name: "limit of open files", line: model, wrap: limited("-n 12"), want: "loss"},
	)

	// Outputs.
	full := func(cmd *exec.Cmd) {
		if f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0); err == nil {
			cmd.Stdout = f
		}
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		for _, line := range []string{"version", "plan run.yaml", "preview run.yaml", "preview run.yaml --json", "checkpoint --help", "generate --model model --tokenizer bytes --prompt x --max-tokens 2"} {
			all = append(all, hostile{name: "standard output is full: " + line, line: line, wrap: full, want: "no space left on device", status: exitFailed})
		}
		all = append(all, bad("preview --html to a full device", "preview run.yaml --html /dev/full", "no space left on device", nil))
		all[len(all)-1].status = exitFailed
	}
	closed := func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"sh", "-c", `exec "$0" "$@" >&-`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
	}
	all = append(all, hostile{name: "standard output is closed", line: "version", wrap: closed, want: ""},
		hostile{name: "standard error is closed", line: "plan run.yaml", want: "qwen3", wrap: func(cmd *exec.Cmd) {
			cmd.Args = append([]string{"sh", "-c", `exec "$0" "$@" 2>&-`, cmd.Path}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
		}})

	// Surroundings.
	all = append(all,
		hostile{name: "no home", line: "plan run.yaml", env: []string{"HOME=", "MILLRACE_CACHE=", "XDG_CACHE_HOME="}, want: "qwen3"},
		hostile{name: "a cache that is a file", line: "preview run.yaml", env: []string{"MILLRACE_CACHE=/dev/null"}, want: "document"},
		hostile{name: "a secret in HF_ENDPOINT", line: "plan run.yaml --set model=openai/none", env: []string{"HF_ENDPOINT=http://me:s3cret@127.0.0.1:1", "HF_HUB_OFFLINE=0"},
			want: "127.0.0.1", status: exitFailed, check: func(w *workshop, r result) {
				if strings.Contains(r.stderr, "s3cret") {
					w.t.Errorf("the password is shown: %s", r.stderr)
				}
			}},
		hostile{name: "an endpoint that is not an address", line: "plan run.yaml --set model=openai/none",
			env:  []string{"HF_ENDPOINT=me:s3cret@nowhere", "HF_HUB_OFFLINE=0"},
			want: "HF_ENDPOINT", status: exitBadRequest},
		hostile{name: "C locale and a dumb terminal", line: "plan run.yaml", env: []string{"LC_ALL=C", "TERM=dumb"}, want: "qwen3"},
	)
	held := bad("two runs in one directory", run, "another run", nil)
	held.writes = true
	held.spoil = func(w *workshop) {
		other := inProcess("hostile", "train", "run.yaml", "--set", "max_steps=1000000", "--set", "save.every=100000")
		other.Dir = w.dir
		other.Env = append(other.Env, "MILLRACE_CACHE="+w.path("../cache"))
		progress, err := other.StderrPipe()
		if err != nil {
			w.t.Fatal(err)
		}
		if err := other.Start(); err != nil {
			w.t.Fatal(err)
		}
		if _, err := progress.Read(make([]byte, 1)); err != nil { // it runs
			w.t.Fatal(err)
		}
		go func() {
			drain := make([]byte, 1<<16)
			for {
				if _, err := progress.Read(drain); err != nil {
					return
				}
			}
		}()
		w.t.Cleanup(func() { other.Process.Kill(); other.Wait() })
	}
	return append(all, held)
}

// noOwner is the id of a user who owns no file.
const noOwner = 65534

// forbid gives files to the user noOwner, or to the one who tests, with permissions that forbid something.
func forbid(w *workshop, paths map[string]fs.FileMode) {
	if os.Geteuid() == 0 {
		err := filepath.WalkDir(filepath.Dir(w.dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				err = os.Lchown(path, noOwner, noOwner)
			}
			return err
		})
		if err != nil {
			w.t.Skip("files cannot be given away: ", err)
		}
		for dir := filepath.Dir(w.dir); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if within, err := filepath.Rel(os.TempDir(), dir); err == nil && within != "." && filepath.IsLocal(within) {
				os.Chmod(dir, 0o755) // the test's own directories, which testing keeps to its user
			}
			if info, err := os.Stat(dir); err != nil || info.Mode()&0o001 == 0 {
				w.t.Skipf("others may not enter %s", dir)
			}
		}
	}
	for name, mode := range paths {
		if err := os.Chmod(w.path(name), mode); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { os.Chmod(w.path(name), 0o777) })
	}
}

// asNobody runs a root's command as noOwner, since permissions do not bind root. It opens the program before, since
// noOwner may not enter its directory.
func asNobody(cmd *exec.Cmd) {
	if os.Geteuid() != 0 {
		return
	}
	program, err := os.Open(cmd.Path)
	if err != nil {
		panic(err)
	}
	cmd.ExtraFiles = []*os.File{program}
	cmd.Path = "/proc/self/fd/3"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: noOwner, Gid: noOwner}}
}
