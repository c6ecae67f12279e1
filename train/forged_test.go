package train

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/vfs"
)

// victim is a run of the user's that was stopped, with files in save.fallback and memory.path. Its directory was shown
// to others, who know all that run.json and the manifests say.
func victim(t *testing.T) (mine *runfile.Config, shared string, outside func() map[string]string) {
	t.Helper()
	mine, shared = smallConfig(t), t.TempDir()
	mine.OutputDir = filepath.Join(t.TempDir(), "mine")
	mine.Save = runfile.Save{Every: 1, Keep: 9}
	until(t, mine, "step  3/12")
	mine.Save.Fallback = filepath.Join(shared, "fallback")
	id := idOf(t, mine)
	copyTree(t, rundir.CheckpointsDir(mine), id.FallbackDir(mine))
	mine.Memory.Path = runfile.Paths{filepath.Join(shared, "memory")}
	state := id.StateDirs(mine)[0]
	mkdir(t, state)
	write(t, filepath.Join(state, "part-1-weights-0.v3.extent"), strings.Repeat("x", 1<<12))
	h := rundir.NewHome(newEnv(t).Runs(), mine) // as the run itself notes them
	h.ID = *id
	h.NoteOwner("save.fallback", filepath.Dir(id.FallbackDir(mine)), rundir.OutsideName)
	h.NoteOwner("memory.path", state, rundir.StateOwnerName)
	h.NoteOwner("output_dir", rundir.CheckpointsDir(mine), rundir.OutsideName)
	return mine, shared, func() map[string]string {
		all := filesBelow(t, mine.OutputDir)
		maps.Copy(all, filesBelow(t, shared))
		return all
	}
}

// forgeries are records that the author of a directory can write into its run.json. dir is where it will be unpacked,
// which an author can guess.
func forgeries(mine rundir.Identity, dir string, here *vfs.Inode) map[string]*rundir.Identity {
	of := func(change func(id *rundir.Identity)) *rundir.Identity {
		id := mine
		change(&id)
		return &id
	}
	own := checkpoint.RunID(strings.Repeat("e", 32))
	all := map[string]*rundir.Identity{
		"no record":                  nil,
		"the record of mine":         of(func(*rundir.Identity) {}),
		"no inode":                   of(func(id *rundir.Identity) { id.Inode, id.Dir = nil, "/nowhere" }),
		"no inode, the path of mine": of(func(id *rundir.Identity) { id.Inode = nil }),
		"no inode, the path here":    of(func(id *rundir.Identity) { id.Inode, id.Dir = nil, dir }),
		"not begun":                  of(func(id *rundir.Identity) { id.Inode, id.Dir, id.Begun = nil, dir, false }),
		"ended": of(func(id *rundir.Identity) {
			id.Inode, id.Dir, id.Ended = nil, dir,
				&rundir.Ending{Step: 3}
		}),
		"diverged": of(func(id *rundir.Identity) {
			id.Inode, id.Dir, id.Ended = nil, dir, &rundir.Ending{Step: 3, Diverged: true}
		}),
		"the inode of mine, the path here": of(func(id *rundir.Identity) { id.Dir = dir }),
		"the copy of mine": of(func(id *rundir.Identity) {
			id.Run, id.Name, id.CopiedFrom, id.Inode, id.Dir = own, "mine-eeeeeeee", []checkpoint.RunID{mine.Run}, nil, dir
		}),
		"the origin of mine": of(func(id *rundir.Identity) {
			id.Inode, id.Dir, id.Origin = nil, dir, &rundir.Origin{Run: mine.Run, Step: 3}
		}),
		"saves noted": of(func(id *rundir.Identity) { id.Inode, id.Dir, id.Saves = nil, dir, mine.Inode }),
	}
	if here != nil { // if it could be guessed: the proofs outside of the directory hold alone
		all["the inode here"] = of(func(id *rundir.Identity) { id.Dir, id.Inode = dir, here })
		all["the inode here, saves noted"] = of(func(id *rundir.Identity) {
			id.Dir, id.Inode, id.Saves = dir, here, vfs.InodeOf(vfs.OS{}, filepath.Join(mine.Dir, rundir.CheckpointsName))
		})
	}
	if here != nil && here.Born != 0 { // a number can be guessed, a time in nanoseconds cannot
		all["no birth time"] = of(func(id *rundir.Identity) {
			id.Dir, id.Inode = dir, &vfs.Inode{Device: here.Device, Number: here.Number}
		})
		all["another birth time"] = of(func(id *rundir.Identity) {
			id.Dir, id.Inode = dir, &vfs.Inode{Device: here.Device, Number: here.Number, Born: mine.Inode.Born}
		})
	}
	return all
}

// filesIn are the files of a directory.
func filesIn(t *testing.T, dir string) map[string]string {
	all := files(t, dir)
	delete(all, ".")
	return all
}

// A directory of a run that came from elsewhere has a record that its author wrote, and links. Whatever the record says,
// nothing of another run of the user's is removed, adopted or read for a result.
func TestForgedRecords(t *testing.T) {
	mine, _, outside := victim(t)
	of, before := idOf(t, mine), outside()
	ofMine := func(name string) string { return filepath.Join(mine.OutputDir, name) }
	last := ofMine(filepath.Join(rundir.CheckpointsName, "step-000003"))
	for way, furnish := range map[string]func(dir string){
		"fallback and memory.path": func(string) {},
		"a link at checkpoints": func(dir string) {
			linkTo(t, ofMine(rundir.CheckpointsName), filepath.Join(dir, rundir.CheckpointsName))
		},
		"a link at a checkpoint": func(dir string) {
			linkTo(t, last, filepath.Join(dir, rundir.CheckpointsName,
				"step-000003"))
		},
		"a link at a hidden checkpoint": func(dir string) {
			linkTo(t, last, filepath.Join(dir, rundir.CheckpointsName, ".step-000003."+of.Run.Short()+".old"))
		},
		"links in a checkpoint": func(dir string) {
			for name := range filesIn(t, last) {
				linkTo(t, filepath.Join(last, name), filepath.Join(dir, rundir.CheckpointsName, "step-000003", name))
			}
		},
		"links next to a manifest": func(dir string) { // which its author was given
			for name, text := range filesIn(t, last) {
				to := filepath.Join(dir, rundir.CheckpointsName, "step-000003", name)
				if linkTo(t, filepath.Join(last, name), to); name == checkpoint.ManifestName {
					if err := os.Remove(to); err != nil {
						t.Fatal(err)
					}
					write(t, to, text)
				}
			}
		},
		"a link at run.json": func(dir string) {
			linkTo(t, ofMine(rundir.IdentityName),
				filepath.Join(dir, rundir.IdentityName))
		},
		"a link at run.yaml": func(dir string) {
			linkTo(t, ofMine(rundir.ResolvedName),
				filepath.Join(dir, rundir.ResolvedName))
		},
	} {
		dir := filepath.Join(t.TempDir(), "evil")
		mkdir(t, dir)
		for name, forged := range forgeries(*of, dir, vfs.InodeOf(vfs.OS{}, dir)) {
			what := way + ", " + name
			if err := errors.Join(os.RemoveAll(filepath.Join(dir, rundir.CheckpointsName)),
				os.RemoveAll(filepath.Join(dir, rundir.IdentityName)), os.RemoveAll(filepath.Join(dir,
					rundir.ResolvedName))); err != nil {
				t.Fatal(err)
			}
			c := *mine
			c.OutputDir = dir
			run, err := os.ReadFile(ofMine(rundir.ResolvedName))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, rundir.ResolvedName), strings.ReplaceAll(string(run), mine.OutputDir, dir))
			if forged != nil {
				doc, err := forged.Encode()
				if err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(dir, rundir.IdentityName), string(doc))
			}
			furnish(dir)

			// To read.
			if _, from, err := newEnv(t).Runs().WeightsOf(t.Context(), dir); err == nil && from != nil {
				t.Errorf("%s: the weights are those of %s", what, from.Dir())
			}
			dirs, err := newEnv(t).Runs().CheckpointDirs(dir)
			if err == nil && (len(dirs) != 1 || dirs[0] != filepath.Join(dir, rundir.CheckpointsName)) {
				t.Errorf("%s: checkpoints in %v", what, dirs)
			}
			if isOut := way == "a link at checkpoints"; isOut != (err != nil) {
				t.Errorf("%s: error %v of who lists the checkpoints", what, err)
			}
			// To write.
			for _, resume := range []string{"auto", "never"} {
				c.Resume = resume
				h := rundir.NewHome(newEnv(t).Runs(), &c)
				c.Memory.Path, c.OutputDir = mine.Memory.Path, dir
				b, err := h.Hold()
				if err == nil {
					h.ClearState()
					err = h.Claim()
				}
				if err == nil && h.ID.Run == of.Run {
					t.Errorf("%s: it is the other run, %+v", what, h.ID)
				}
				if b.From != nil {
					t.Errorf("%s: it continues from %s", what, b.From.Dir())
				}
				if err == nil && (h.Fallback != nil || slices.Equal(c.Memory.Path, of.StateDirs(mine))) {
					t.Errorf("%s: it has the directories of the other run", what)
				}
				if err == nil {
					h.Unclaim()
				}
				h.Close(false)
				if now := outside(); !maps.Equal(now, before) {
					t.Fatalf("%s: files of the other run have changed", what)
				}
			}
		}
	}
}

// The attacks whole: training in such a directory with save.keep leaves the other run as it was.
func TestForgedRecordsTrain(t *testing.T) {
	mine, _, outside := victim(t)
	of, before := idOf(t, mine), outside()
	for way, link := range map[string]bool{"fallback": false, "link": true} {
		dir := filepath.Join(t.TempDir(), "evil")
		mkdir(t, dir)
		forged := *of
		forged.Inode, forged.Dir = nil, "/nowhere"
		doc, err := forged.Encode()
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, rundir.IdentityName), string(doc))
		if link {
			linkTo(t, rundir.CheckpointsDir(mine), filepath.Join(dir, rundir.CheckpointsName))
		}
		c := *mine
		c.OutputDir, c.Save.Keep = dir, 1
		sum, err := Train(context.Background(), &c, Options{Env: newEnv(t)})
		if link != (err != nil) || err == nil && sum.ResumedAfter != 0 {
			t.Errorf("%s: %+v, error %v", way, sum, err)
		}
		if now := outside(); !maps.Equal(now, before) {
			t.Errorf("%s: files of the other run have changed", way)
		}
	}
}

// What leads out of a run's directory is neither read for a result nor published, by any verb; the same files inside
// are.
func TestRunsPublishNothingElse(t *testing.T) {
	mine, _, outside := victim(t)
	mine.Memory.Path = nil
	if _, err := Train(context.Background(), mine, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	before := outside()
	ofMine := func(name string) string { return filepath.Join(mine.OutputDir, name) }
	run, err := os.ReadFile(ofMine(rundir.ResolvedName))
	if err != nil {
		t.Fatal(err)
	}
	last := filepath.Join(rundir.CheckpointsName, "step-000012")
	for what, furnish := range map[string]func(dir string){
		"the model": func(dir string) { linkTo(t, ofMine(rundir.LastModel), filepath.Join(dir, rundir.LastModel)) },
		"checkpoints": func(dir string) {
			linkTo(t, ofMine(rundir.CheckpointsName), filepath.Join(dir, rundir.CheckpointsName))
		},
		"a checkpoint":   func(dir string) { linkTo(t, ofMine(last), filepath.Join(dir, last)) },
		"the base model": func(dir string) { copyTree(t, ofMine(last), filepath.Join(dir, last)) },
	} {
		dir := filepath.Join(t.TempDir(), "evil")
		mkdir(t, dir)
		write(t, filepath.Join(dir, rundir.ResolvedName), string(run))
		write(t, filepath.Join(dir, rundir.MetricsName), "")
		furnish(dir)
		out := filepath.Join(t.TempDir(), "out")
		verbs := map[string]func() error{
			"export": func() error {
				_, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Model: dir, Dir: out})
				return err
			},
			"export --gguf": func() error {
				_, err := export.GGUF(t.Context(), newEnv(t), export.GGUFOptions{Model: dir, File: out + ".gguf"})
				return err
			},
			"push": func() error {
				_, err := export.Push(t.Context(), newEnv(t), export.PushOptions{Path: dir, Repo: "a/b", DryRun: true})
				return err
			},
			"generate": func() error {
				_, err := generate.Text(t.Context(), newEnv(t), generate.Options{Model: dir, Prompt: "x", MaxTokens: 1})
				return err
			},
			"chat": func() error {
				_, err := generate.OpenConversation(t.Context(), newEnv(t),
					generate.ChatOptions{Options: generate.Options{Model: dir, MaxTokens: 1}})
				return err
			},
		}
		for verb, do := range verbs {
			if err := do(); !errors.Is(err, blame.ErrRequest) || vfs.Exists(out) || vfs.Exists(out+".gguf") {
				t.Errorf("%s, %s: error %v", what, verb, err)
			} else if verb != "push" && !strings.Contains(err.Error(), below.FollowVariable) {
				t.Errorf("%s, %s: the error does not say what to do: %v", what, verb, err)
			}
		}
		if !maps.Equal(outside(), before) {
			t.Errorf("%s: files of the other run have changed", what)
		}
		below.Allow(below.Links{Anywhere: true})
		_, err := export.HuggingFace(t.Context(), newEnv(t), export.Options{Model: dir, Dir: out, DType: tensor.F32})
		below.Allow(below.Links{})
		if err != nil {
			t.Errorf("%s, with all links allowed: %v", what, err)
		}
	}
}
