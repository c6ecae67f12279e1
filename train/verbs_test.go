package train

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hf/hub/hubtest"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/verbs"
)

// A run trains on a data set of the hub, says which commit, and finds it again without the hub.
func TestTrainOnTheHub(t *testing.T) {
	server, _ := hubtest.Start(t)
	train := strings.Repeat(`{"text": "the wheel turns. the wheel turns."}`+"\n", 40)
	server.Repos["datasets/org/wheels"] = &hubtest.Repo{Files: map[string]string{"train.jsonl": train, "test.jsonl": `{"text": "the wheel"}` + "\n"}}
	c := smallConfig(t)
	t.Chdir(t.TempDir())
	c.Datasets = []data.Source{{Path: "org/wheels", Type: data.Text}}
	c.Eval.Datasets = []data.Source{{Path: "org/wheels", Type: data.Text, Split: "test"}}
	var said strings.Builder
	env := newEnv(t)
	env.Progress = &said
	if _, err := Train(context.Background(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"dataset org/wheels: train.jsonl at commit " + hubtest.Commit, "dataset org/wheels: test.jsonl at commit "} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("it does not say %q: %s", want, said.String())
		}
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	again, err := runfile.Read(filepath.Join(c.OutputDir, "run.yaml"), []string{"output_dir=" + filepath.Join(t.TempDir(), "again")})
	if err != nil {
		t.Fatal(err)
	}
	sum, err := Train(context.Background(), again, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, sum.Model, filepath.Join(c.OutputDir, "model"))
	// The resolved run file names the commit: it reads the same rows after the branch has moved.
	if got := again.Datasets[0]; got.Path != "org/wheels" || got.Revision != hubtest.Commit || again.Eval.Datasets[0].Revision != hubtest.Commit {
		t.Errorf("run.yaml has %+v", got)
	}
	// A run that had saved nothing starts over, whether its file names the commit or not.
	for _, name := range []string{"model", "metrics.jsonl"} {
		if err := os.RemoveAll(filepath.Join(c.OutputDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Error(err)
	}
	again.Datasets[0].Split = "dev"
	_, err = verbs.Preview(context.Background(), newEnv(t), again, verbs.PreviewOptions{Limit: 1},
		func(verbs.PreviewExample) error { return nil })
	if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), `no split "dev"; it has train, test`) {
		t.Errorf("a wrong split: %v", err)
	}
	// That the hub cannot be reached is no fault of the request.
	t.Setenv("HF_HUB_OFFLINE", "")
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	c.Datasets[0].Path = "org/others"
	_, err = verbs.Preview(context.Background(), newEnv(t), c, verbs.PreviewOptions{Limit: 1},
		func(verbs.PreviewExample) error { return nil })
	if err == nil || errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "dataset org/others: ") || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("without a network: %v", err)
	}
}

// A size of the user's is tried even beyond what is available; what the machine shows is the limit of auto, which
// says so where that grows.
func TestMemoryThatGrows(t *testing.T) {
	for _, c := range []struct {
		host  string // memory.host
		grows bool   // as the environment says
		tried bool
		notes int
	}{{"auto", false, false, 0}, {"900TiB", false, true, 0}, {"auto", true, true, 1}, {"900TiB", true, true, 0}} {
		env := newEnv(t)
		var said strings.Builder
		env.Progress, env.MemoryGrows = &said, c.grows
		config := smallConfig(t)
		config.Memory.Host = budget(t, c.host).Device
		for range 2 {
			p, err := verbs.PlanFor(context.Background(), config, verbs.PlanOptions{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			if c.grows && p.AvailableBytes != 0 {
				t.Errorf("%+v: %d bytes are the limit of a machine that grows", c, p.AvailableBytes)
			}
		}
		if env.Accounts.GrowsOnUse() != c.tried || strings.Count(said.String(), "set memory.host to a size") != c.notes {
			t.Errorf("%+v: %v, and said %q", c, env.Accounts.GrowsOnUse(), said.String())
		}
	}
}

// A budget that no sizes fit is refused before data are read.
func TestTooLittleMemoryComesBeforeTheData(t *testing.T) {
	c := smallConfig(t)
	c.Datasets[0].Path = filepath.Join(t.TempDir(), "not there.jsonl")
	c.Memory.Host = budget(t, "1MiB").Device
	_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	refused(t, err, "memory.host")
	c.Memory = budget(t, "1kB")
	_, err = Train(context.Background(), c, Options{Env: newEnv(t)})
	refused(t, err, "makes it fit: memory.device=")
	c.Memory = runfile.Memory{}
	_, err = Train(context.Background(), c, Options{Env: newEnv(t)})
	refused(t, err, "not there.jsonl")
}

func TestReexport(t *testing.T) {
	dir := writeModel(t, nil)
	write(t, filepath.Join(dir, "generation_config.json"), `{"eos_token_id": 256}`)
	half, full := filepath.Join(t.TempDir(), "half"), filepath.Join(t.TempDir(), "full")
	env := newEnv(t)
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Model: dir, Dir: half,
		DType: tensor.BF16}); err != nil {
		t.Fatal(err)
	}
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Model: half, Dir: full,
		DType: tensor.F32}); err != nil {
		t.Fatal(err)
	}
	a, b := open(t, dir), open(t, full)
	for _, name := range a.Names() {
		info, _ := a.Info(name)
		if again, ok := b.Info(name); !ok || again.DType != tensor.F32 || !slices.Equal(again.Shape, info.Shape) {
			t.Fatalf("%s: %+v", name, again)
		}
		x, y := make([]float32, info.Shape.Elems()), make([]float32, info.Shape.Elems())
		if err := errors.Join(a.ReadF32(name, x, 0), b.ReadF32(name, y, 0)); err != nil {
			t.Fatal(err)
		}
		for i := range x {
			if want := tensor.F32FromBF16(tensor.BF16FromF32(x[i])); y[i] != want {
				t.Fatalf("%s: element %d is %v, want %v rounded to %v", name, i, y[i], x[i], want)
			}
		}
	}
	if c, err := hf.ReadConfig(half); err != nil || c.DType() != tensor.BF16 {
		t.Errorf("config of the bf16 model: %v (%v)", c.DType(), err)
	}
	if got := files(t, full)["generation_config.json"]; got != `{"eos_token_id": 256}` {
		t.Errorf("generation config %q", got)
	}
	if _, err := export.HuggingFace(context.Background(), env, export.Options{Model: dir, Dir: half,
		DType: tensor.BF16}); err == nil {
		t.Error("a model that is there is replaced")
	}
}

func open(t testing.TB, dir string) *hf.Weights {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}
