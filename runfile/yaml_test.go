package runfile

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/runfile/othertrainers"
)

// refusal is the error of a run file that must be refused, in one line.
func refusal(t *testing.T, doc string, set ...string) string {
	t.Helper()
	_, err := parsed(t, doc, set...)
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("%q %v: error %v, want a refusal in one line", doc, set, err)
	}
	_, text, found := strings.Cut(err.Error(), "run.yaml: ")
	if !found {
		return err.Error()
	}
	return text
}

func TestUnknownKeysAllAtOnce(t *testing.T) {
	text := refusal(t, "model_name_or_path: m\nlearning_rat: 1\nper_device_train_batch_size: 1\nmemory: {vram: 1GiB, dev-ice: 2GiB}\nsequence_len: many\nxyzzy: 1\n")
	want := []string{"line 1: unknown key model_name_or_path: use model; ", "line 2: unknown key learning_rat: did you mean learning_rate or min_learning_rate?; ",
		"line 3: unknown key per_device_train_batch_size: use batch_tokens", "line 4: unknown key memory.vram: keys of memory are device, host",
		"line 4: unknown key memory.dev-ice: did you mean device?", "line 5: sequence_len must be a whole number", "line 6: unknown key xyzzy: remove it"}
	for _, w := range want {
		_, rest, found := strings.Cut(text, w)
		if !found {
			t.Fatalf("%q is not in its place in %q", w, text)
		}
		text = rest
	}
}

// Keys of other trainers are told by their keys here, and none of them is a key here, except rl: it names a method in
// files of Axolotl, and has a mapping here, which the error for a name says.
func TestKeysOfOtherTrainers(t *testing.T) {
	for _, section := range othertrainers.Sections() {
		for _, row := range section.Rows {
			if _, ok := keyType(row.Use); row.Use != "" && !section.Entries && !ok {
				t.Errorf("%v: there is no key %s", row.Keys, row.Use)
			}
			for _, key := range row.Keys {
				if key = strings.TrimSuffix(key, "*"); key == "rl" {
					continue
				}
				doc, want := key+": x\n", "line 1: unknown key "+key+": "+row.Advice()
				if section.Entries {
					doc, want = "datasets: [{"+key+": x}]\n", "line 1: unknown key datasets[0]."+key+": "+row.Advice()
				}
				var c Config
				if err := c.parse([]byte(doc)); err == nil || err.Error() != want {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
	}
}

// keyType is the type of a key of a run file.
func keyType(key string) (t reflect.Type, ok bool) {
	t = reflect.TypeFor[Config]()
	for _, name := range strings.Split(key, ".") {
		f, found := fieldOf(t, name)
		if !found {
			return nil, false
		}
		t = f.Type
	}
	return t, true
}

func TestRunFileEndsWhereItIsStrange(t *testing.T) {
	bomb := "datasets:\n- &a0 {path: x, type: text}\n"
	for i := range 9 {
		bomb += fmt.Sprintf("- &a%d {<<: [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]}\n", i+1, i, i, i, i, i, i, i, i, i, i)
	}
	for name, c := range map[string]struct{ doc, want string }{
		"a second document":  {smallRun + "---\nseed: 1\n", "line 4: a second YAML document"},
		"not UTF-8":          {smallRun + "output_dir: caf\xe9\n", "line 3: the byte 0xe9 is not UTF-8"},
		"UTF-16":             {"\xff\xfem\x00", "UTF-16"},
		"an escape":          {smallRun + "\x1b[31mfoo: 1\n", "line 3: there is a control character, U+001B"},
		"too long":           {smallRun + "# " + strings.Repeat("x", 300<<10), "more than 256 KiB"},
		"a bomb":             {"model: m\n" + bomb, "aliases"},
		"an alias of itself": {"model: m\ndatasets: &d [*d]\n", ""},
		"no such alias":      {"model: *m\n", "line 1"},
		"an unknown key, merged": {"eval: &e {evry: 1}\nsave: {<<: *e}\n",
			"line 1: unknown keys eval.evry, save.evry: did you mean every?"},
		"a tag": {"model: !!binary x\n", ""},
		"deep":  {strings.Repeat("[", 100_000), "more than 10000 times"},
		"twice": {smallRun + "seed: 1\nseed: 2\n", "line 4"},
	} {
		if text := refusal(t, c.doc); !strings.Contains(text, c.want) || len(text) > 2000 {
			t.Errorf("%s: %.300q, want %q", name, text, c.want)
		}
	}
}

func TestByteOrderMark(t *testing.T) {
	if c, err := parsed(t, "\ufeff"+smallRun); err != nil || c.Model != "m" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestAnchors(t *testing.T) {
	c, err := parsed(t, "model: m\ndatasets:\n- &d {path: a, type: text, max_samples: 5}\n- {<<: *d, path: b}\n")
	if err != nil || len(c.Datasets) != 2 || c.Datasets[1].Path != "b" || c.Datasets[1].MaxSamples != 5 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A size that cannot be read is told with its key and line.
func TestSizesNameTheirKey(t *testing.T) {
	for line, want := range map[string]string{
		"memory: {device: 5XB}":          `line 3: memory.device: size "5XB"`,
		"memory: {max_write_per_day: 0}": `line 3: memory.max_write_per_day: size "0"`,
		"numerics: {head_chunk: 0}":      `line 3: numerics.head_chunk: "0": write a number from 1 on`,
		"memory: {host: {x: 1}}":         "line 3: memory.host must be one value, not",
	} {
		if text := refusal(t, smallRun+line+"\n"); !strings.HasPrefix(text, want) {
			t.Errorf("%s: %q, want %q", line, text, want)
		}
	}
	if text := refusal(t, smallRun, "memory.device.x=1"); text != "memory.device.x=1: memory.device must be one value, not x: 1" {
		t.Error(text)
	}
}

func TestLengthsThatAreNone(t *testing.T) {
	for line, want := range map[string]string{
		"max_steps: 0":                   "line 3: max_steps is 0",
		"epochs: 0":                      "line 3: epochs is 0",
		"epochs: 0.0":                    "line 3: epochs is 0",
		"epochs: 1e300":                  "epochs is 1e+300: it must be above 0 and at most 10000",
		"epochs: .inf":                   "epochs is +Inf",
		"epochs: .nan":                   "epochs is NaN",
		"epochs: -1":                     "epochs is -1",
		"max_steps: -1":                  "max_steps is -1",
		"max_steps: 99999999999":         "max_steps is 99999999999",
		"sequence_len: 0":                "sequence_len is 0",
		"sequence_len: 99999999":         "sequence_len is 99999999: it must be at most",
		"batch_tokens: 1099511627776000": "batch_tokens is 1099511627776000: it must be at most",
		"warmup_steps: 99999999999":      "warmup_steps is 99999999999",
		"learning_rate: .inf":            "learning_rate is +Inf: it must be finite",
		"overlong: drops":                `overlong is "drops": use auto, split, drop or truncate`,
	} {
		if text := refusal(t, smallRun+line+"\n"); !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", line, text, want)
		}
	}
}

// weight: 0 switches a data set off; it does not stand for the default of 1.
func TestWeightZeroIsOff(t *testing.T) {
	c, err := parsed(t, "model: m\ndatasets:\n- {path: a, type: text, weight: 0}\n- {path: b, type: text, weight: 2}\n- {path: c, type: text, weight: 0.0}\n"+
		"eval: {datasets: [{path: d, type: text, weight: 0}]}\n")
	if err != nil || len(c.Datasets) != 1 || c.Datasets[0].Path != "b" || len(c.Eval.Datasets) != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	if text := refusal(t, "model: m\ndatasets: [{path: a, type: text, weight: 0}]\n"); !strings.Contains(text, "all of them have weight 0") {
		t.Error(text)
	}
}

// A key that is set to nothing has its default again.
func TestSetToNothing(t *testing.T) {
	doc := smallRun + "learning_rate: 3e-4\nmax_steps: 7\nmemory: {device: 1GiB}\neval: {datasets: [{path: b, type: text}], every: 2}\nadam_betas: [0.5, 0.5]\n"
	for _, nothing := range []string{"", "null", "~"} {
		c, err := parsed(t, doc, "learning_rate="+nothing, "max_steps="+nothing, "epochs=2", "memory.device="+nothing, "eval="+nothing, "adam_betas="+nothing)
		d := Defaults()
		if err != nil || c.LearningRate != d.LearningRate || c.MaxSteps != 0 || c.Epochs != 2 || c.Memory.Device != d.Memory.Device || c.evaluates() ||
			c.Eval.Every != 0 || c.AdamBetas != d.AdamBetas {
			t.Errorf("=%s: %+v, %v", nothing, c, err)
		}
	}
	for set, want := range map[string]string{
		"model=":            "model is missing",
		"output_dir=#2":     "# begins a comment",
		"datasets[0].path=": "is not a key",
		"a b=1":             "is not a key",
		"=1":                "write key=value",
		"learning_rat=":     "unknown key learning_rat: did you mean learning_rate or min_learning_rate?",
		"output_dir=a\xff":  "not UTF-8",
	} {
		if text := refusal(t, doc, set); !strings.Contains(text, want) {
			t.Errorf("--set %s: %q, want %q", set, text, want)
		}
	}
}
