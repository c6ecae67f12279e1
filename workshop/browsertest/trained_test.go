package browsertest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/train/traintest"
	"github.com/millrace/millrace/workshop/browsertest"
)

// rowsFile writes rows of a data set.
func rowsFile(t *testing.T, n int, row func(i int) string) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		b.WriteString(row(i) + "\n")
	}
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	traintest.Write(t, path, b.String())
	return path
}

// trained trains a small model, in float32 as everywhere, with two evaluation sets by name.
func trained(t *testing.T, parent, name string, change func(c *runfile.Config)) {
	t.Helper()
	c := traintest.SmallConfig(t)
	c.OutputDir, c.MaxSteps, c.LayerNorms, c.LearningRate = filepath.Join(parent, name), 6, true, 1e-3
	change(c)
	c.Save.Every, c.Eval.Every = 2, 2
	for _, label := range []string{"task", "forget"} {
		held := c.Datasets[0]
		held.EvalSet = label
		c.Eval.Datasets = append(c.Eval.Datasets, held)
	}
	env := traintest.NewEnv(t)
	env.CacheDir = t.TempDir()
	if _, err := train.Train(t.Context(), c, train.Options{Env: env}); err != nil {
		t.Fatal(err)
	}
}

// The records of runs that were trained, and not made up: maps and curves of the norms of layers, and evaluation sets
// by their names with every objective that has a held-out loss.
func TestPageOfTrainedRuns(t *testing.T) {
	b := browsertest.Start(t)
	parent := t.TempDir()
	kto := func(c *runfile.Config) {
		c.Objective = runfile.Objective{Type: "kto"}
		c.Datasets = []data.Source{{Type: data.Binary, Path: rowsFile(t, 24, func(i int) string {
			return fmt.Sprintf(`{"prompt": "number %d", "completion": %q, "label": %v}`, i, []string{"yes, it is",
				"no way"}[i%2], i%2 == 0)
		})}}
	}
	reward := func(c *runfile.Config) {
		c.Objective = runfile.Objective{Type: "reward"}
		c.Datasets = []data.Source{{Type: data.Preference, Path: rowsFile(t, 24, func(i int) string {
			return fmt.Sprintf(`{"prompt": "number %d", "chosen": "yes, %d", "rejected": "no"}`, i, i)
		})}}
	}
	distill := func(c *runfile.Config) {
		teacher := traintest.WriteConfig(t, nil)
		traintest.WriteWeights(t, teacher, 7)
		c.Objective = runfile.Objective{Type: "distill", Teacher: teacher, TopK: 6}
		c.Datasets = []data.Source{{Type: data.Text, Path: rowsFile(t, 24, func(i int) string {
			return fmt.Sprintf(`{"text": "the river has %d bends"}`, i)
		})}}
	}
	trained(t, parent, "kto", kto)
	if !testing.Short() { // make long has the other objectives
		trained(t, parent, "reward", reward)
		trained(t, parent, "distill", distill)
	}
	w := serveRuns(t, nil, parent)
	numbers := map[string]string{"distill": "kl", "kto": "rewards/margins", "reward": "accuracy"}
	entries, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	for i, entry := range entries { // in the order of their ids
		name := entry.Name()
		p := b.Open(t, fmt.Sprintf("%s/#runs=r%d", w.URL, i+1), wide)
		p.Wait(`store.runs().length && store.runs().every((r) => r.complete)`)
		if got := p.Text(`store.runs()[` + fmt.Sprint(i) + `].objective`); got != name {
			t.Fatalf("run %d is %s", i+1, got)
		}
		for _, chart := range []string{"evaluations", "evaluations/" + numbers[name]} {
			at := fmt.Sprintf(`document.querySelector('[data-chart=%q]')`, chart)
			p.Wait(at)
			p.Get(at+`.scrollIntoView({ block: "center" })`, nil)
			p.Wait(at + `.querySelectorAll(".key li").length === 3`)
			keys := `[...` + at + `.querySelectorAll(".key li")].map((e) => e.textContent).join()`
			if got := p.Text(keys); !strings.Contains(got,
				"task") || !strings.Contains(got, "forget") || !strings.Contains(got, "all sets") {
				t.Errorf("%s: the lines of %s are %s", name, chart, got)
			}
		}
		keep(t, p, "sets-"+name)

		// Not by the mouse: a chart that is drawn late moves what it points at.
		p.Get(`[...document.querySelectorAll("summary")].find((e) => e.textContent === "Layers and experts").click()`, nil)
		maps := `[...document.querySelectorAll(".heat")].filter((e) => !e.hidden)`
		p.Wait(maps + `.length === 3 && ` + maps + `.every((e) => e.querySelector("small").textContent.includes(" to "))`)
		for i, what := range []string{"Gradient norm by layer", "Update to weight by layer", "Norm of weights by layer"} {
			if got := p.Text(fmt.Sprintf(maps+`[%d].querySelector("canvas").ariaLabel`, i)); !strings.HasPrefix(got,
				what+": 4 layers, from ") {
				t.Errorf("%s: a map is %s", name, got)
			}
		}
		// Each layer is drawn: its stripe is not clear where the latest save is.
		var clear int
		p.Get(maps+`.flatMap((e) => { const c = e.querySelector("canvas");
			const { data } = c.getContext("2d").getImageData(Math.floor(c.width * 0.7), 0, 1, c.height);
			return [0, 1, 2, 3].map((i) => data[4 * Math.floor(c.height * (i + 0.4) / 4) + 3]); })
				.filter((a) => a === 0).length`, &clear)
		if clear > 0 {
			t.Errorf("%s: %d stripes of layers are empty", name, clear)
		}
		p.Get(`document.querySelector("#layer").value = "block_2"; `+
			`document.querySelector("#layer").dispatchEvent(new Event("change"))`, nil)
		for _, of := range []string{"grad_norm", "update_ratio", "weight_norm"} {
			at := fmt.Sprintf(`document.querySelector('[data-chart="layers/block_2/%s"]')`, of)
			p.Wait(at)
			p.Get(at+`.scrollIntoView({ block: "center" })`, nil)
			p.Wait(at + `.querySelector("canvas")`)
		}
		keep(t, p, "layers-"+name)
		if name == "kto" {
			p.Show(narrow)
			p.Wait(settled)
			fits(t, p)
			keep(t, p, "layers-400")
			p.Show(dark)
			contrast(t, p, "dark")
		}
		p.Get(`document.querySelector("#layer").value = ""; `+
			`document.querySelector("#layer").dispatchEvent(new Event("change"))`, nil)
		p.Wait(`!document.querySelector('[data-chart="layers/block_2/grad_norm"]')`)
		quiet(t, p, w.URL)
	}
}
