package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/plan"
)

// offered are the words that the program offers for the last one, and its mode.
func offered(t *testing.T, words ...string) (found []string, mode string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(invoke(t, append([]string{"complete", "--"}, words...)...).must(t).stdout,
		"\n"), "\n")
	for _, line := range lines[:len(lines)-1] {
		word, _, tab := strings.Cut(line, "\t")
		if !tab {
			t.Errorf("%q: no tab", line)
		}
		found = append(found, word)
	}
	mode, ok := strings.CutPrefix(lines[len(lines)-1], ":")
	if !ok {
		t.Errorf("%q: the last line is no mode", lines)
	}
	return found, mode
}

func TestComplete(t *testing.T) {
	useCache(t)
	var machines []string
	for _, m := range plan.Machines() {
		machines = append(machines, m.Name)
	}
	for line, want := range map[string][]string{
		"pl":                            {"plan"},
		"checkpoint ":                   {"list", "verify"},
		"checkpoint v":                  {"verify"},
		"help gr":                       {"grad"},
		"plan --shape ":                 plan.Shapes(),
		"plan --why --machine ":         append(slices.Clone(machines), ":files"),
		"plan --shape=llama-3-8":        {"--shape=llama-3-8b"},
		"plan --shape llama-3-8b --mac": {"--machine", "--machine-out"},
		"bench --stream ":               {"auto", "always"},
		"bench --recompute=al":          {"--recompute=always"},
		"bench --sha":                   {"--shape"},
		"eval --type al":                {"alpaca"},
		"generate --compute ":           {"bf16", "f32"},
		"train --set memory.d":          {"memory.device=", "memory.disk=", ":nospace"},
		"train --set=learning":          {"--set=learning_rate=", ":nospace"},
		"train --set memory.device=":    {":nospace"}, // the value is the user's
		"train ":                        {":files"},
		"train run.yaml memory.d":       {"memory.device=", "memory.disk=", ":nospace"},
		"train run.yaml seed=1 learnin": {"learning_rate=", ":nospace"},
		"export a ":                     {":dirs"},
		"push ":                         {":files"}, // shells offer directories with them
		"report a b ":                   {":dirs"},
		"convert ":                      {":files"},
		"plan --model ":                 {":dirs"},
		"eval --tokenizer ":             {"auto", "bytes", ":files"},
		"completion ":                   {"bash", "zsh", "fish"},
		"no ":                           nil,
		"plan --nothing ":               {":files"},
		"plan --nothing=":               nil,
		"plan --json=":                  nil,
		"plan \x01":                     {":files"},
	} {
		got, mode := offered(t, strings.Split(line, " ")...)
		if mode != "" {
			got = append(got, ":"+mode)
		}
		if line == "no " {
			got = slices.DeleteFunc(got, func(string) bool { return true }) // verbs; what matters is that it ends
		}
		joined := cmp.Transformer("empty", func(s []string) string { return strings.Join(s, " ") })
		if d := cmp.Diff(want, got, joined); d != "" {
			t.Errorf("%q: %s", line, d)
		}
	}
	if got, _ := offered(t); !slices.Contains(got, "train") || slices.Contains(got, "complete") {
		t.Errorf("without a word: %q", got)
	}
}

// Each flag that has a value says which: words, files, directories, or one of these.
func TestEachValueIsDeclared(t *testing.T) {
	free := []string{"N", "SIZE", "TEXT", "JSON", "NAME", "SUBSET", "REVISION", "PATTERN"}
	parser, err := newParser(io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range parser.Model.Leaves(false) {
		for _, f := range verb.Flags {
			number := f.Target.CanInt() || f.Target.CanUint() || f.Target.CanFloat()
			found := values(f.Value)
			declared := len(found.words) > 0 || found.mode != "" || slices.Contains(free, f.PlaceHolder)
			if !f.IsBool() && !number && !declared {
				t.Errorf("%s --%s has no values: add a tag \"complete\" or an enumeration", verb.Path(), f.Name)
			}
		}
	}
}

// inShell runs a script in a shell that finds the program, and returns the lines that it prints.
func inShell(t *testing.T, shell, script string, args ...string) []string {
	t.Helper()
	if _, err := exec.LookPath(shell); err != nil {
		t.Skipf("%s is not installed; TestComplete asks the program what the shell would ask", shell)
	}
	useCache(t)
	dir := t.TempDir()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "millrace")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.gguf", "b.yaml", "a-dir/x"} {
		if err := os.MkdirAll(filepath.Join(dir, "here", filepath.Dir(name)), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "here", name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(shell, append(args, script)...)
	cmd.Dir = filepath.Join(dir, "here")
	cmd.Env = append(os.Environ(), programEnv+"=is a program", "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir,
		"XDG_CONFIG_HOME="+dir, "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", shell, err, out)
	}
	return strings.Fields(string(out))
}

// shapesLike are the published shapes whose names begin so, each after a prefix.
func shapesLike(begin, prefix string) (names []string) {
	for _, name := range plan.Shapes() {
		if strings.HasPrefix(name, begin) {
			names = append(names, prefix+name)
		}
	}
	return names
}

func TestBashCompletion(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out what starts a shell again and again; make test runs it")
	}
	for _, c := range []struct {
		words string // as bash splits them
		want  []string
	}{
		{`millrace pl`, []string{"plan"}},
		{`'~/millrace' pl`, []string{"plan"}},
		{`millrace plan --shape qwen2.5-7`, shapesLike("qwen2.5-7", "")},
		{`millrace plan --shape = qwen2.5-7`, shapesLike("qwen2.5-7", "")},
		{`millrace plan --shape =`, plan.Shapes()},
		{`millrace plan --shape llama-3-8b --set memory.de`, []string{"memory.device="}},
		{`millrace plan --set memory.device = 2GiB --tb`, []string{"--tbw"}},
		{`millrace generate --device cuda : 0 --tok`, []string{"--tokenizer"}},
		{`millrace import a`, []string{"a.gguf", "a-dir"}},
		{`millrace plan --model a`, []string{"a-dir"}},
		{`millrace plan --model = a`, []string{"a-dir"}},
	} {
		got := inShell(t, "bash", `source <(millrace completion bash)
			COMP_WORDS=(`+c.words+`); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
			_millrace; complete -p millrace >/dev/null; printf '%s\n' "${COMPREPLY[@]}"`, "--norc", "-c")
		slices.Sort(got)
		if d := cmp.Diff(slices.Sorted(slices.Values(c.want)), got); d != "" {
			t.Errorf("%s: %s", c.words, d)
		}
	}
}

func TestFishCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"millrace plan --shape qwen2.5-7":     shapesLike("qwen2.5-7", ""),
		"millrace plan --shape=qwen2.5-7":     shapesLike("qwen2.5-7", "--shape="),
		"millrace plan --set memory.de":       {"memory.device="},
		"millrace checkpoint ve":              {"verify"},
		"~/millrace checkpoint ve":            {"verify"},
		"millrace bench --stream ":            {"auto", "always"},
		"millrace import a":                   {"a.gguf", "a-dir/"},
		"millrace plan --model=a":             {"--model=a-dir/"},
		"millrace plan --model ":              {"a-dir/"},
		"millrace eval --data=x --tokenizer ": {"auto", "bytes", "a.gguf", "b.yaml", "a-dir/"},
	} {
		got := inShell(t, "fish", `millrace completion fish | source; complete -C '`+line+`' | string split -f 1 \t; true`,
			"--no-config", "-c")
		slices.Sort(got)
		if d := cmp.Diff(slices.Sorted(slices.Values(want)), got); d != "" {
			t.Errorf("%s: %s", line, d)
		}
	}
}

// The functions of zsh's completion work only while a user types, so stand-ins of them say what they were called
// with.
func TestZshCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"millrace plan --shape qwen2.5-7": shapesLike("qwen2.5-7", ""),
		"millrace plan --set memory.de":   {"memory.device=", "-S"},
		"millrace plan --model ''":        {"_files", "-/"},
		"millrace import a":               {"_files"},
		"millrace bench --stream ''":      {"auto", "always"},
		"'~/millrace' bench --stream ''":  {"auto", "always"},
	} {
		got := inShell(t, "zsh", `compdef() { }
			compset() { }
			_files() { print _files "$@" }
			_describe() { for w in "${(@P)2}"; do print -- "${w%%:*}"; done; print -- "${@:3:1}" }
			source <(millrace completion zsh)
			words=(`+line+`) CURRENT=$#words
			_millrace`, "-f", "-c")
		slices.Sort(got)
		if d := cmp.Diff(slices.Sorted(slices.Values(want)), got); d != "" {
			t.Errorf("%s: %s", line, d)
		}
	}
}
