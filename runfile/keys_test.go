package runfile

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/optim"
)

var update = flag.Bool("update", false, "write the lines of docs/run-yaml.md")

// fieldComments are the comments of the fields of the structs in keys.go, each in one line: by "Struct.Field".
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
			spec := g.Specs[0].(*ast.TypeSpec)
			for _, f := range spec.Type.(*ast.StructType).Fields.List {
				all[spec.Name.Name+"."+f.Names[0].Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
			}
		}
	}
	return all
}

// eachKey visits the keys of a struct in order, and those of its mappings, with the rule of the tag resume.
func eachKey(t reflect.Type, within, resume string, visit func(key, resume string, in reflect.Type, f reflect.StructField)) {
	for f := range t.Fields() {
		key, rule := within+yamlName(f), f.Tag.Get("resume")
		if within != "" && rule == "" {
			rule = resume
		}
		_, reads := reflect.New(f.Type).Interface().(selfReader)
		if f.Type.Kind() == reflect.Struct && !reads {
			eachKey(f.Type, key+".", rule, visit)
			continue
		}
		visit(key, rule, t, f)
	}
}

// docsDefault is the default of a key as the docs have it.
func docsDefault(f reflect.StructField) string {
	if text, ok := f.Tag.Lookup("unset"); ok {
		return strings.ReplaceAll(text, "'", "`")
	}
	if text, ok := f.Tag.Lookup("default"); ok {
		return "`" + text + "`"
	}
	switch f.Type.Kind() {
	case reflect.String, reflect.Slice:
		return ""
	}
	return fmt.Sprintf("`%v`", reflect.Zero(f.Type))
}

// Every key has a line in the docs and a rule for resumed runs, and the docs have the lines in the order of the keys.
func TestKeysAreDocumented(t *testing.T) {
	const page = "../docs/run-yaml.md"
	doc, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	comments := fieldComments(t)
	var want []string
	eachKey(reflect.TypeFor[Config](), "", "", func(key, resume string, in reflect.Type, f reflect.StructField) {
		text := comments[in.Name()+"."+f.Name]
		if text == "" {
			t.Errorf("%s has no comment, which is its line in the docs", key)
		}
		if !slices.Contains([]string{resumeFree, resumeListed, resumeFixed}, resume) {
			t.Errorf("%s: resume is %q", key, resume)
		}
		if saved := f.Tag.Get("saved"); resume == resumeFree && saved != "" {
			t.Errorf("%s may change, and a checkpoint records it as %s", key, saved)
		}
		want = append(want, strings.ReplaceAll(fmt.Sprintf("| `%s` | %s | %s |", key, docsDefault(f), text), "|  |", "| |"))
	})
	named := func(line string) string {
		key, _, _ := strings.Cut(strings.TrimPrefix(line, "| `"), "` |")
		return key
	}
	keys := map[string]bool{}
	for _, line := range want {
		keys[named(line)] = true
	}
	lines := strings.Split(string(doc), "\n")
	var at []int
	var have []string
	for i, line := range lines {
		if strings.HasPrefix(line, "| `") && keys[named(line)] {
			at, have = append(at, i), append(have, line)
		}
	}
	if *update && len(at) == len(want) {
		for i, line := range want {
			lines[at[i]] = line
		}
		if err := os.WriteFile(page, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("-the comments and tags of keys.go +docs/run-yaml.md; with a line for each key in the right section, "+
			"go test ./runfile -update writes the rest\n%s", d)
	}
}

// The docs list the keys that resume_with may list, and messages list them sorted.
func TestListedKeysAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/run-yaml.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(doc), "It may list ")
	sentence, _, _ := strings.Cut(after, "`. ")
	var have []string
	for i, part := range strings.Split(sentence, "`") {
		if i%2 == 1 {
			have = append(have, part)
		}
	}
	slices.Sort(have)
	if d := cmp.Diff(listed(), have); d != "" {
		t.Errorf("-the tags of keys.go +docs/run-yaml.md:\n%s", d)
	}
}

// Checkpoints record the settings by these names and in this form, and messages name the first key of a setting.
func TestSettings(t *testing.T) {
	c := Defaults()
	c.LearningRate, c.WarmupRatio, c.LRScheduler, c.MinRate = 3e-4, 0.1, cosineWithMinimum, 1e-7
	got := c.Settings(optim.Schedule{Shape: optim.Cosine, Steps: 70, WarmupSteps: 7}, "abc")
	want := map[string]string{"sequence_len": "2048", "batch_tokens": "65536", "overlong": "auto",
		"precision": "bf16 split f32", "steps": "70", "learning_rate": "0.0003", "min_learning_rate": "1e-07",
		"lr_scheduler": "cosine", "warmup_steps": "7", "weight_decay": "0.01", "adam_betas": "0.9 0.999",
		"adam_eps": "1e-08", "max_grad_norm": "1", "seed": "42", "data": "abc"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	c.Overlong, c.MinRate, c.MaxGradNorm, c.BatchTokens, c.Seed = "split", 0, 0, 1<<22, 1<<63
	got = c.Settings(optim.Schedule{}, "")
	want = map[string]string{"batch_tokens": "4194304", "max_grad_norm": "0", "seed": "9223372036854775808"}
	for _, key := range []string{"overlong", "min_learning_rate"} {
		if text, ok := got[key]; ok {
			t.Errorf("%s is recorded as %q; older checkpoints have no such setting", key, text)
		}
	}
	for key, text := range want {
		if got[key] != text {
			t.Errorf("%s is recorded as %s, want %s", key, got[key], text)
		}
	}
	for setting, by := range SettledBy {
		for i, key := range by {
			f, _ := fieldOf(reflect.TypeFor[Config](), key)
			if saved := f.Tag.Get("saved"); i == 0 && saved != setting || i > 0 && saved == setting {
				t.Errorf("%s is settled by %s: one key, the first, must be recorded by that name", setting, by)
			}
		}
	}
	for setting, first := range map[string]string{"data": "datasets", "steps": "max_steps", "warmup_steps": "warmup_steps",
		"adam_eps": "adam_eps", "precision": "", "seed": ""} {
		if by := SettledBy[setting]; strings.Join(by[:min(len(by), 1)], "") != first {
			t.Errorf("%s is settled by %s, want %s first", setting, by, first)
		}
	}
}
