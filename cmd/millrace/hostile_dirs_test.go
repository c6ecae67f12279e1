package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// hostileDirectories are directories of runs, data and caches that another user has prepared: with links, with owners
// and permissions that are not the user's. No verb changes a file outside of what it was given, or shows the
// environment.
func hostileDirectories() (all []hostile) {
	const kept, secret = "kept/thesis.txt", "hf_hostileSecret"
	const third = 54321 // a user who is neither root nor noOwner
	add := func(name, line, want string, status int, spoil func(*workshop)) *hostile {
		all = append(all, hostile{name: "directory: " + name, line: line, want: want, status: status,
			writes: status == exitDone, env: []string{"HF_TOKEN=" + secret}, spoil: func(w *workshop) {
				w.write(kept, "years of work")
				spoil(w)
			}, check: func(w *workshop, r result) {
				if text := w.read(kept); text != "years of work" {
					w.t.Errorf("%s is now %q", kept, text)
				}
				if strings.Contains(r.stdout+r.stderr, secret) {
					w.t.Errorf("the token is shown: %s%s", tail(r.stdout), tail(r.stderr))
				}
				w.findNowhere(secret)
			}})
		return &all[len(all)-1]
	}
	refused := func(name, line, want string, spoil func(*workshop)) *hostile {
		return add(name, line, want, exitBadRequest, spoil)
	}
	const train = "train run.yaml"
	const checkpoint = "out/checkpoints/step-000003"
	trained := func(spoil func(*workshop)) func(*workshop) {
		return func(w *workshop) {
			cmd := inProcess("hostile", "train", "run.yaml", "--set", "save.every=1", "--set", "save.keep=0")
			cmd.Dir = w.dir
			cmd.Env = append(cmd.Env, "MILLRACE_CACHE="+w.path("../cache"))
			if text, err := cmd.CombinedOutput(); err != nil {
				w.t.Fatalf("%v: %s", err, text)
			}
			spoil(w)
		}
	}
	// replaced has a link at a name, to a path from the workshop.
	replaced := func(name, to string) func(*workshop) {
		return func(w *workshop) {
			if !filepath.IsAbs(to) {
				to = w.path(to)
			}
			w.mkdir(filepath.Dir(name))
			w.remove(name)
			w.link(to, name)
		}
	}

	// Links at the names of files that a run writes.
	refused("train, the lock is a link", train, "is a symbolic link", replaced("out/checkpoints/.lock", kept))
	refused("train, the lock is a hard link", train, "has 2 names", func(w *workshop) {
		w.mkdir("out/checkpoints")
		if err := os.Link(w.path(kept), w.path("out/checkpoints/.lock")); err != nil {
			w.t.Skip("the file system has no hard links: ", err)
		}
	})
	refused("train, the lock is a pipe", train, "is a named pipe", func(w *workshop) {
		w.mkdir("out/checkpoints")
		w.pipe("out/checkpoints/.lock")
	})
	for _, name := range []string{"plan.json", "run.yaml", "run.yaml.tmp", "trace.json",
		"checkpoints/.step-000009.del", ".model.tmp-0123456789abcdef"} {
		add("train, "+name+" is a link", train+" --trace", "final model", exitDone, replaced("out/"+name, kept)).want = ""
	}
	add("train, a leftover is a link to a directory", train, "", exitDone,
		replaced("out/checkpoints/.step-000009.del", "kept"))
	refused("resume, the records are a link", train+" --set max_steps=4 --set resume_with=[max_steps]",
		"is a symbolic link", trained(replaced("out/metrics.jsonl", kept))).writes = true
	refused("resume, the manifest is a link to the environment",
		train+" --set resume="+checkpoint+" --set output_dir=other", "/proc",
		trained(replaced(checkpoint+"/manifest.json", "/proc/self/environ"))).slow = true

	// Links of the user's own, as an archive has them, in place of directories inside of the output directory.
	precious := func(name string, h *hostile) {
		was, check := "", h.check
		prepare := h.spoil
		h.spoil = func(w *workshop) { prepare(w); was = w.read(name) }
		h.check = func(w *workshop, r result) {
			check(w, r)
			if w.read(name) != was {
				w.t.Errorf("%s has changed", name)
			}
		}
	}
	precious("precious/model.safetensors", refused("train, the model is a link to another",
		train+" --set max_steps=4 --set resume_with=[max_steps]", "is a link to", trained(func(w *workshop) {
			if err := os.CopyFS(w.path("precious"), os.DirFS(w.path("out/model"))); err != nil {
				w.t.Fatal(err)
			}
			replaced("out/model", "precious")(w)
		})))
	precious(checkpoint+"/manifest.json", refused("train, the checkpoints are a link to those of another run",
		train+" --set save.every=1 --set save.keep=1 --set output_dir=other", "is a link to",
		trained(replaced("other/checkpoints", "out/checkpoints"))))

	// Permissions and owners of the directories that a run cleans and writes to.
	open := func(name string) func(*workshop) {
		return func(w *workshop) {
			w.mkdir(name)
			w.chmod(name, 0o777)
		}
	}
	others := func(name string) func(*workshop) {
		return func(w *workshop) {
			w.mkdir(name)
			w.chown(name)
		}
	}
	for name, c := range map[string]struct{ line, dir string }{
		"output_dir":  {train, "out"},
		"checkpoints": {train, "out/checkpoints"},
		"model":       {train, "out/model"},
		"demo":        {"demo --dir shown --steps 16", "shown"},
		"preview":     {"preview run.yaml --set output_dir=unused", "../cache/tokens"},
		"cache":       {"preview run.yaml --set output_dir=unused", "../cache"},
		"eval":        {"eval --model model --data data/a.txt --tokenizer bytes", "../cache/tokens"},
	} {
		refused(name+", open to every user", c.line, "can be written to by every user",
			open(c.dir)).slow = name != "output_dir"
		refused(name+", of another user", c.line, "belongs to another user", others(c.dir)).slow = name != "output_dir"
		refused(name+", a link of another user", c.line, "is a link that another user", func(w *workshop) {
			w.mkdir("elsewhere")
			replaced(c.dir, "elsewhere")(w)
			w.chown(c.dir)
		}).slow = true
	}
	// The run's directory in save.fallback has a name that is known once the run has begun.
	inFallback := func(spoil func(w *workshop, dir string)) func(*workshop) {
		return trained(func(w *workshop) {
			var run struct{ Identity struct{ Name string } }
			if err := json.Unmarshal([]byte(w.read("out/run.json")), &run); err != nil || run.Identity.Name == "" {
				w.t.Fatalf("run.json: %v: %s", err, w.read("out/run.json"))
			}
			w.mkdir("spare")
			spoil(w, "spare/"+run.Identity.Name)
		})
	}
	const resumed = train + " --set save.fallback=spare --set max_steps=4 --set resume_with=[max_steps]"
	refused("save.fallback, open to every user", resumed, "can be written to by every user",
		inFallback(func(w *workshop, dir string) { open(dir)(w) })).slow = true
	refused("save.fallback, of another user", resumed, "belongs to another user",
		inFallback(func(w *workshop, dir string) { others(dir)(w) })).slow = true
	refused("save.fallback, a link of another user", resumed, "is a link that another user",
		inFallback(func(w *workshop, dir string) {
			w.mkdir("elsewhere")
			replaced(dir, "elsewhere")(w)
			w.chown(dir)
		})).slow = true
	add("output_dir, a link of the user's own", train, "", exitDone, func(w *workshop) {
		w.mkdir("big")
		w.link("big", "out")
	}).slow = true
	add("plan, for an output_dir of another user", "plan run.yaml", "", exitDone, others("out")).slow = true

	// A user who trains in the directory of another: what its links lead to is the user's own.
	victim := refused("train, as the owner of what a link leads to", train+" --set output_dir=../theirs",
		"belongs to another user", func(w *workshop) {
			w.mkdir("../theirs/checkpoints")
			w.write("../theirs/checkpoints/.lock", "")
			w.chmod("../theirs/checkpoints/.lock", 0o666)
			w.link(w.path("kept"), "../theirs/checkpoints/.step-000005.del")
			forbid(w, nil)
			for _, name := range []string{"", "/checkpoints", "/checkpoints/.lock", "/checkpoints/.step-000005.del"} {
				if err := os.Lchown(w.path("../theirs"+name), third, third); err != nil {
					w.t.Skip("only root gives files to other users: ", err)
				}
			}
		})
	victim.wrap = asNobody

	// A volume that root has mounted for all, as Kubernetes does: only root can close it, and a directory in it is fine.
	volume := refused("train, in a volume of root's", train+" --set output_dir=../volume",
		"can be written to by every user: use a new directory in it, such as ../volume/run", func(w *workshop) {
			forbid(w, nil)
			w.mkdir("../volume")
			w.chmod("../volume", 0o777)
			if os.Geteuid() != 0 {
				w.t.Skip("only root has directories that are not this user's")
			}
		})
	volume.wrap = asNobody
	volume = add("train, below a volume of root's", train+" --set output_dir=../volume/run", "../volume/run/model",
		exitDone, volume.spoil)
	volume.wrap = asNobody

	// Reading what others have made: allowed, and links to the environment are not followed.
	const environ = "/proc/self/environ"
	ofOthers := trained(func(w *workshop) { w.chownAll("out") })
	for name, line := range map[string]string{
		"checkpoint verify": "checkpoint verify " + checkpoint, "checkpoint list": "checkpoint list out",
		"export": "export --checkpoint " + checkpoint + " --model model --out out2", "report": "report out",
		"eval":     "eval --model out --data data/a.txt --tokenizer bytes",
		"generate": "generate --model out/model --tokenizer bytes --max-tokens 2 --prompt the",
		"resume":   train + " --set resume=" + checkpoint + " --set output_dir=other",
	} {
		add(name+", of another user's run", line, "", exitDone, ofOthers).slow = true
	}
	for name, line := range map[string]string{
		"checkpoint verify": "checkpoint verify " + checkpoint,
		"export":            "export --checkpoint " + checkpoint + " --model model --out out2",
	} {
		h := add(name+", a piece is a link to the environment", line, "block.1.weights", exitFailed,
			trained(replaced(checkpoint+"/block.1.weights", environ)))
		h.slow = true
	}
	refused("report, the records are a link to the environment", "report out", "/proc",
		replaced("out/metrics.jsonl", environ))
	refused("preview, the data are a link to the environment", "preview run.yaml", "/proc",
		replaced("data/a.txt", environ))
	h := refused("preview, a registry names the environment", "",
		"is not below the registry's directory", func(w *workshop) {
			w.write("reg/dataset_info.json", `{"x": {"file_name": "`+environ+`", "columns": {"prompt": "text"}}}`)
		})
	h.args = []string{"preview", "run.yaml", "--set", "datasets=[{path: reg, name: x}]"}
	h = refused("train, a registry names a file above it", "", "is not below the registry's directory", func(w *workshop) {
		w.write("reg/dataset_info.json", `{"x": {"file_name": "../`+kept+`", "columns": {"prompt": "text"}}}`)
	})
	h.args = []string{"train", "run.yaml", "--set", "datasets=[{path: reg, name: x}]"}
	refused("convert, a link to the environment", "convert other.yaml", "other.yaml", replaced("other.yaml", environ))
	return all
}

func (w *workshop) mkdir(name string) {
	w.t.Helper()
	if err := os.MkdirAll(w.path(name), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workshop) chmod(name string, mode os.FileMode) {
	w.t.Helper()
	if err := os.Chmod(w.path(name), mode); err != nil {
		w.t.Fatal(err)
	}
}

// chown gives a file, a directory or a link to another user, which only root can.
func (w *workshop) chown(name string) {
	w.t.Helper()
	if os.Geteuid() != 0 {
		w.t.Skip("only root gives files to other users")
	}
	if err := os.Lchown(w.path(name), noOwner, noOwner); err != nil {
		w.t.Fatal(err)
	}
}

// chownAll gives a directory and all that is below it to another user.
func (w *workshop) chownAll(name string) {
	w.t.Helper()
	err := filepath.WalkDir(w.path(name), func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			rel, _ := filepath.Rel(w.dir, path)
			w.chown(rel)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// findNowhere fails if a text is in a file of the workshop.
func (w *workshop) findNowhere(text string) {
	w.t.Helper()
	err := filepath.WalkDir(w.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		doc, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(doc), text) {
			w.t.Errorf("%q is in %s", text, path)
		}
		return err
	})
	if err != nil {
		w.t.Error(err)
	}
}
