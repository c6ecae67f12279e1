package reward

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/runfile"
)

// The adapter of docs/rl.md has functions that were written for TRL judge: of texts and of conversations, with columns,
// without a reward, and such as print.
func TestAdapter(t *testing.T) {
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").CombinedOutput()
	if err != nil {
		t.Skipf("it needs python3: %v: %s", err, python)
	}
	page, err := os.ReadFile("../../../docs/rl.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)#### Functions of TRL\n.*?```python\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no adapter")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"adapter.py": string(block[1]), "rewards.py": `
def columns(prompts, completions, answer, completion_ids, **kwargs):
    print("judging", prompts, kwargs["other"])
    return [len(c) + a + len(i) + 100 * len(p) for p, c, a, i in zip(prompts, completions, answer, completion_ids)]

def few(completions):
    return [None if c == "none" else c == "yes" for c in completions]

def talk(prompts, completions, **kwargs):
    return [0.5 if p[-1]["content"] == "q" and c[0] == {"role": "assistant", "content": "yes"} else 0
            for p, c in zip(prompts, completions)]
`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	row := json.RawMessage(`{"answer": 3, "other": "x"}`)
	for _, c := range []struct {
		function string
		answer   Answer
		want     string
	}{
		{"columns", Answer{Prompt: "pp", Completion: "abcd", CompletionIDs: []int32{1}, Row: row}, "208"},
		{"few", Answer{Completion: "yes", Row: row}, "1"},
		{"few", Answer{Completion: "none", Row: row}, "NaN"},
		{"talk", Answer{Completion: "yes", Messages: json.RawMessage(`[{"role": "user", "content": "q"}]`), Row: row},
			"0.5"},
	} {
		command := []string{strings.TrimSpace(string(python)), "adapter.py", "rewards:" + c.function}
		p, err := Open(t.Context(), []runfile.Reward{{Name: "a", Command: command}}, Options{Dir: dir, after: never})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Judge(c.answer); err != nil {
			t.Fatal(err)
		}
		r, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if rewards(r) != c.want {
			t.Errorf("%s: %s, want %s; %s", c.function, rewards(r), c.want, counts(r.Tallies[0]))
		}
		p.Close()
	}
}
