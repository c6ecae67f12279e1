package runfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/millrace/millrace/optim"
)

const smallRun = "model: m\ndatasets: [{path: a.txt, type: text}]\n"

func parsed(t testing.TB, doc string, set ...string) (*Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.yaml")
	if err := os.WriteFile(path, []byte(doc), 0o644); err != nil {
		t.Fatal(err)
	}
	return Read(path, set)
}

func TestConfigRoundTrip(t *testing.T) {
	c, err := parsed(t, smallRun+`
memory: {device: 20GiB, host: auto}
numerics: {head_chunk: 128}
eval: {datasets: [{path: b.jsonl, type: prompt-response, prompt: question, response: answer}], every: 50}
adam_betas: [0.9, 0.95]
epochs: 2.5
device: [cuda:0, cuda:2]
samples: {prompts: [a, "[b]", [{role: system, content: c}, {role: user, content: d}]], every: 3, temperature: 0}
`, "learning_rate=3e-4", "memory.device=500MB", "output_dir=runs/x")
	if err != nil {
		t.Fatal(err)
	}
	if c.Memory.Device.N != 500e6 || c.Memory.Host.N != 0 || c.LearningRate != 3e-4 || c.Numerics.HeadChunk != 128 ||
		c.AdamBetas != [2]float64{0.9, 0.95} || c.OutputDir != "runs/x" || c.Eval.Datasets[0].Prompt != "question" ||
		c.Epochs != 2.5 || c.Device != "cuda:0,cuda:2" {
		t.Errorf("read as %+v", c)
	}
	doc, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := parsed(t, string(doc))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, doc)
	}
	if d := cmp.Diff(c, again, cmp.AllowUnexported(Bytes{}, Memory{}), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("written and read again:\n%s", d)
	}
}

func TestConfigRefuses(t *testing.T) {
	for name, c := range map[string]struct{ doc, want string }{
		"unknown key":       {smallRun + "learning_rat: 1\n", "line 3"},
		"unknown inner key": {smallRun + "memory: {vram: 1GiB}\n", "line 3"},
		"wrong type":        {smallRun + "sequence_len: many\n", "line 3: sequence_len must be a whole number, not many"},
		"a fraction":        {smallRun + "max_steps: 3.5\n", "line 3: max_steps must be a whole number, not 3.5"},
		"an overflow":       {smallRun + "max_steps: 99999999999999999999\n", "line 3: max_steps must be a whole number"},
		"no names":          {smallRun + "device: [cpu, [cpu]]\n", "line 3: device[1] must be one text"},
		"a list":            {smallRun + "tokenizer: [a]\n", "line 3: tokenizer must be one text, not [a]"},
		"no list":           {"model: m\ndatasets: {path: a, type: text}\n", "line 2: datasets must be a list"},
		"no mapping":        {smallRun + "memory: 5GiB\n", "line 3: memory must be a mapping, such as {device: ...}, not 5GiB"},
		"no number":         {smallRun + "adam_betas: [0.9, x]\n", "line 3: adam_betas[1] must be a number, not x"},
		"too few":           {smallRun + "adam_betas: [0.9]\n", "line 3: adam_betas must be a list of 2"},
		"no truth":          {smallRun + "train_on_prompt: 3\n", "line 3: train_on_prompt must be true or false, not 3"},
		"inner type":        {"model: m\ndatasets:\n- {path: a, type: text, max_samples: few}\n", "line 3: datasets[0].max_samples"},
		"only a text":       {"hello\n", "must be a mapping"},
		"not yaml":          {"model: [", "line 1"},
		"no model":          {"datasets: [{path: a, type: text}]\n", "model is missing"},
		"no data":           {"model: m\n", "datasets is missing"},
		"bad data type":     {"model: m\ndatasets: [{path: a, type: csv}]\n", "csv"},
		"bad size":          {smallRun + "memory: {device: 20}\n", "20GiB"},
		"negative size":     {smallRun + "memory: {host: -1GiB}\n", "20GiB"},
		"batch":             {smallRun + "sequence_len: 100\nbatch_tokens: 250\n", "multiple"},
		"both lengths":      {smallRun + "max_steps: 1\nepochs: 1\n", "choose one"},
		"scheduler":         {smallRun + "lr_scheduler: sine\n", "sine"},
		"rate":              {smallRun + "learning_rate: .nan\n", "learning_rate"},
		"floor too high":    {smallRun + "learning_rate: 1e-5\nmin_learning_rate: 1e-4\n", "min_learning_rate is 0.0001, above learning_rate (1e-05)"},
		"no floor":          {smallRun + "lr_scheduler: cosine_with_min_lr\n", "min_learning_rate is missing"},
		"idle floor":        {smallRun + "lr_scheduler: constant\nmin_learning_rate: 1e-6\n", "constant never falls"},
		"floor below 0":     {smallRun + "min_learning_rate: -1\n", "min_learning_rate is -1"},
		"patience below 0":  {smallRun + "stop: {patience: -1}\n", "stop.patience is -1"},
		"idle patience":     {smallRun + "val_size: 0.1\nstop: {patience: 2}\n", "set eval.every"},
		"idle samples":      {smallRun + "samples: {every: 5}\n", "samples.every is 5, and there are no prompts"},
		"no tokens":         {smallRun + "samples: {max_tokens: 0}\n", "samples.max_tokens is 0: it must be"},
		"cold samples":      {smallRun + "samples: {temperature: -1}\n", "samples.temperature is -1"},
		"top_k below 0":     {smallRun + "samples: {top_k: -1}\n", "samples.top_k is -1"},
		"top_p above 1":     {smallRun + "samples: {top_p: 1.5}\n", "samples.top_p is 1.5"},
		"no prompt":         {smallRun + "samples: {prompts: [{a: b}]}\n", "samples.prompts[0] must be one value"},
		"no role":           {smallRun + "samples: {prompts: [[{role: x, content: y}]]}\n", "message 1 has the role"},
		"a turn of no one":  {smallRun + "samples: {prompts: [[{rol: user}]]}\n", "key samples.prompts[0][0].rol"},
		"an answer":         {smallRun + "samples: {prompts: [[{role: assistant, content: x}]]}\n", "end with one of"},
		"an empty talk":     {smallRun + "samples: {prompts: [[]]}\n", "samples.prompts[0]: it has no messages"},
		"eps of 0":          {smallRun + "adam_eps: 0\n", "adam_eps is 0: it must be between 1.18e-38"},
		"eps 0 in 32 bits":  {smallRun + "adam_eps: 1e-50\n", "adam_eps is 1e-50"},
		"denormal eps":      {smallRun + "adam_eps: 1.1e-38\n", "adam_eps is 1.1e-38"},
		"eps without end":   {smallRun + "adam_eps: .inf\n", "adam_eps is +Inf"},
		"betas":             {smallRun + "adam_betas: [0.9, 1.0]\n", "adam_betas"},
		"precision":         {smallRun + "precision: {compute: f32, master: split}\n", "does not go with"},
		"master alone":      {smallRun + "precision: {master: f32}\n", "leave master out"},
		"fp8":               {smallRun + "precision: {compute: fp8}\n", "fp8"},
		"moments":           {smallRun + "precision: {moments: 2bit}\n", "moments"},
		"disk":              {smallRun + "memory: {disk: 1TeB}\n", "1TeB"},
		"eval":              {smallRun + "eval: {every: 5}\n", "eval"},
		"set of training":   {"model: m\ndatasets: [{path: a, type: text, eval_set: x}]\n", "only entries of eval.datasets"},
		"label of a set":    {smallRun + "eval: {datasets: [{path: a, type: text, label: x}]}\n", "write eval_set: x"},
		"set with a blank":  {smallRun + "eval: {datasets: [{path: a, type: text, eval_set: a b}]}\n", "letters from a to z"},
		"best of no set":    {smallRun + "val_size: 0.1\neval: {best: x}\n", "no entry of eval.datasets has an eval_set"},
		"best of another": {smallRun + "eval: {datasets: [{path: a, type: text, eval_set: x}, {path: b, type: text}], " +
			"best: y}\n",
			"eval.best is y, which is no eval_set of eval.datasets: use x or default"},
		"groups of rows":  {smallRun + "numerics: {groups: 3}\n", "numerics.groups is 3: it must divide the 32"},
		"exchange":        {smallRun + "numerics: {exchange: fp16}\n", "use f32 or bf16"},
		"no unit of time": {smallRun + "distributed: {timeout: 10}\n", "write a time from 1m to 720h"},
		"short wait":      {smallRun + "distributed.timeout: 1m\ndistributed: {timeout: 59s}\n", ""},
		"micro-batch":     {smallRun + "numerics: {micro_batch: 0}\n", "auto"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parsed(t, c.doc)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %q, want one line with %q", err, c.want)
			}
		})
	}
	if _, err := parsed(t, smallRun, "nonsense"); err == nil {
		t.Errorf("--set nonsense: %v", err)
	}
	if _, err := Read("no/such/run.yaml", nil); err == nil {
		t.Errorf("missing file: %v", err)
	}
}

// transformers' name for a cosine with a floor means a cosine, as every shape may have a floor.
func TestCosineWithMinLR(t *testing.T) {
	c, err := parsed(t, smallRun+"learning_rate: 1e-4\nwarmup_ratio: 0.1\nmin_learning_rate: 1e-5\nlr_scheduler: cosine_with_min_lr\n")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Schedule(25), (optim.Schedule{Shape: optim.Cosine, Peak: 1e-4, Floor: 1e-5, WarmupSteps: 3, Steps: 25}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The master weights follow from the compute type, in whatever order and place it was named; where both are named, they
// must go together.
func TestMasterFollowsCompute(t *testing.T) {
	const f32, bf16 = "precision: {compute: f32}\n", "precision: {compute: bf16}\n"
	for _, c := range []struct {
		doc, set, compute, master string
	}{
		{"", "", "bf16", "split"},
		{f32, "", "f32", "f32"},
		{bf16, "", "bf16", "split"},
		{"", "precision.compute=f32", "f32", "f32"},
		{"", "precision={compute: f32}", "f32", "f32"},
		{f32, "precision.compute=bf16", "bf16", "split"},
		{bf16, "precision.compute=f32", "f32", "f32"},
		{f32, "precision.master=f32", "f32", "f32"},
		{f32, "precision=", "bf16", "split"},
		{"precision: {compute: bf16, master: split}\n", "precision.master=", "bf16", "split"},
		{"precision: {compute: f32, master: }\n", "", "f32", "f32"},
	} {
		var set []string
		if c.set != "" {
			set = []string{c.set}
		}
		got, err := parsed(t, smallRun+c.doc, set...)
		if err != nil || got.Precision.Compute != c.compute || got.Precision.Master != c.master {
			t.Errorf("%s%s: %+v, %v", c.doc, c.set, got.Precision, err)
		}
	}
	for _, both := range []string{"{compute: f32, master: f32}", "{compute: bf16, master: split}"} {
		other := map[bool]string{true: "bf16", false: "f32"}[strings.Contains(both, "f32")]
		text := refusal(t, smallRun+"precision: "+both+"\n", "precision.compute="+other)
		if !strings.Contains(text, "does not go with") {
			t.Error(text)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(smallRun))
	f.Add([]byte("memory: {device: 1e300TiB}"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		c := Defaults()
		if err := c.parse(doc); err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		_ = c.Check()
	})
}

// memory.path is a text or a list of texts, and is written as it was read.
func TestPathsOfDrives(t *testing.T) {
	for doc, want := range map[string]Paths{"": nil, "memory: {path: a}": {"a"}, "memory: {path: [a, b]}": {"a", "b"},
		"memory: {path: [a]}": {"a"}, "memory: {path: ''}": nil, "memory: {path: null}": nil} {
		c, err := parsed(t, smallRun+doc)
		if err != nil || !cmp.Equal(c.Memory.Path, want) {
			t.Errorf("%q: %q, %v", doc, c.Memory.Path, err)
			continue
		}
		text, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if err != nil || !cmp.Equal(again.Memory.Path, want) {
			t.Errorf("%q again: %q, %v", doc, again.Memory.Path, err)
		}
	}
	c, err := parsed(t, smallRun, "memory.path=[a, b]")
	if err != nil || !cmp.Equal(c.Memory.Path, Paths{"a", "b"}) {
		t.Errorf("as a setting: %v, %v", c, err)
	}
	for doc, want := range map[string]string{"memory: {path: [a, '']}": "memory.path has an empty path",
		"memory: {path: {a: b}}":                               "memory.path must be",
		"memory: {path: [" + strings.Repeat("a, ", 16) + "a]}": "name at most 16"} {
		if _, err := parsed(t, smallRun+doc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
}
