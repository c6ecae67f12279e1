package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf/hub/hubtest"
)

var (
	benchmarkLink = regexp.MustCompile(`\]\(([^)]*\.md)\)`)
	figure        = regexp.MustCompile(`\d+(,\d{3})*(\.\d+)?`)
)

// Every number in the result column of a table row that links to a page of benchmarks/ is on that page.
func TestFiguresComeFromBenchmarks(t *testing.T) {
	for _, page := range []string{"../../README.md", "../../benchmarks/README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		checked := 0
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(line, "|")
			link := benchmarkLink.FindStringSubmatch(line)
			if len(cells) < 5 || link == nil || strings.Contains(link[1], "gpucheck") {
				continue
			}
			source, err := os.ReadFile(filepath.Join(filepath.Dir(page), filepath.FromSlash(link[1])))
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			for _, n := range figure.FindAllString(cells[2], -1) {
				checked++
				if !hasFigure(string(source), n) {
					t.Errorf("%s: %s is not in %s: %s", page, n, link[1], line)
				}
			}
		}
		if checked < 5 {
			t.Errorf("%s: only %d figures with a link to their page", page, checked)
		}
	}
}

// hasFigure reports whether a text has a number as a whole, not as a part of another one.
func hasFigure(text, number string) bool {
	whole := regexp.MustCompile(`(^|[^\d.,])` + regexp.QuoteMeta(number) + `([^\d]|$)`)
	return whole.MatchString(text)
}

// The README's commands run as they stand there, one after the other in one directory, with a small hub that has a
// tiny model under the model's name. Output that the README shows is the program's; a line of dots stands for any
// lines.
func TestReadmeCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out plans of large models; make test runs them")
	}
	w := newWorkshop(t)
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := os.ReadFile("../../data/tokenizer/testdata/smollm2.json")
	if err != nil {
		t.Fatal(err)
	}
	w.write("model/config.json", strings.NewReplacer("257", "1024", `ings": 128`, `ings": 512`).Replace(tinyConfig))
	w.writeWeights(nil)
	hub, _ := hubtest.Start(t)
	hub.Repos["models/HuggingFaceTB/SmolLM2-135M-Instruct"] = &hubtest.Repo{Files: map[string]string{
		"config.json": w.read("model/config.json"), "model.safetensors": w.read("model/model.safetensors"),
		"tokenizer.json": string(tokens),
		"tokenizer_config.json": `{"eos_token": "<|eos|>", "chat_template": "` +
			`{% for m in messages %}{{ '<|bos|>' + m.role + '\n' + m.content + '<|eos|>\n' }}{% endfor %}` +
			`{% if add_generation_prompt %}{{ '<|bos|>assistant\n' }}{% endif %}"}`,
	}}
	hub.Repos["datasets/openai/gsm8k"] = &hubtest.Repo{Files: map[string]string{
		"README.md": "---\nconfigs:\n- config_name: main\n  data_files:\n" +
			"  - {split: train, path: main/train.jsonl}\n---\n",
		"main/train.jsonl": strings.Repeat(
			`{"question": "What is 17 + 4?", "answer": "17 + 4 = <<17+4=21>>21\n#### 21"}`+"\n", 40),
	}}
	t.Chdir(w.dir)
	t.Setenv("COLUMNS", "100")
	ran := map[string]bool{}
	for _, block := range fencedBlocks(string(readme)) {
		switch {
		case block.language == "yaml":
			name, _, _ := strings.Cut(strings.TrimPrefix(block.text, "# "), "\n")
			w.write(name, block.text)
		case block.language == "console":
			for _, c := range commandsOf(block.text) {
				args := strings.Fields(c.command)
				if args[0] != "millrace" {
					t.Errorf("the README's console has %q; this test runs millrace only", c.command)
					continue
				}
				ran[args[1]] = true
				got := invokeWith(t, "Hello\n", nil, args[1:]...).must(t).stdout
				if missing := missingLine(got, c.output); missing != "" {
					t.Errorf("%s: the README shows a line that the program does not print, or not in this order:\n%s\nthe program "+
						"prints\n%s", c.command, missing, got)
				}
			}
		}
	}
	for _, verb := range []string{"plan", "preview", "train"} {
		if !ran[verb] {
			t.Errorf("the README does not show millrace %s", verb)
		}
	}
}

// The README shows lines of the demo: the transcript of a run has them, in this order.
func TestReadmeDemo(t *testing.T) {
	var shown, transcript []string
	for page, into := range map[string]*[]string{"../../README.md": &shown, "../../benchmarks/demo.md": &transcript} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range fencedBlocks(string(text)) {
			if block.language == "text" {
				*into = append(*into, strings.Split(block.text, "\n")...)
			}
		}
	}
	at := 0
	for _, line := range shown {
		if line == "..." || line == "" {
			continue
		}
		n := slices.Index(transcript[at:], line)
		if n < 0 {
			t.Fatalf("the README shows a line that benchmarks/demo.md does not have, or not in this order: %q", line)
		}
		at += n + 1
	}
	if at == 0 {
		t.Error("the README shows nothing of the demo")
	}
}

// Lines for a shell name what exists: this module's program, and targets of the Makefile.
func TestReadmeShell(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	targets, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(strings.SplitN(string(module), "\n", 2)[0], "module ")
	lines := 0
	for _, block := range fencedBlocks(string(readme)) {
		if block.language != "sh" {
			continue
		}
		for line := range strings.Lines(block.text) {
			lines++
			command, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
			switch target, isMake := strings.CutPrefix(command, "make "); {
			case isMake && !strings.Contains(string(targets), "\n"+target+":"):
				t.Errorf("%s: the Makefile has no such target", command)
			case isMake, command == "git clone https://"+name+" && cd millrace",
				command == "go install "+name+"/cmd/millrace@latest":
			default:
				t.Errorf("%q: this test does not know it", command)
			}
		}
	}
	if lines < 3 {
		t.Errorf("the README has %d lines for a shell", lines)
	}
}

type fenced struct{ language, text string }

// fencedBlocks lists a page's blocks of code.
func fencedBlocks(page string) (all []fenced) {
	for i, part := range strings.Split("\n"+page, "\n```") {
		if i%2 == 1 {
			language, text, _ := strings.Cut(part, "\n")
			all = append(all, fenced{language, text + "\n"})
		}
	}
	return all
}

type shown struct {
	command string
	output  []string
}

// commandsOf splits a console at its prompts.
func commandsOf(console string) (all []shown) {
	for line := range strings.Lines(console) {
		line = strings.TrimRight(line, " \n")
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, shown{command: command})
		} else if len(all) > 0 {
			all[len(all)-1].output = append(all[len(all)-1].output, line)
		}
	}
	return all
}

// missingLine returns the first line of want that got lacks. Lines follow each other as in want, except after a line of
// dots.
func missingLine(got string, want []string) string {
	lines, gap := strings.Split(got, "\n"), false
	for _, line := range want {
		if strings.TrimSpace(line) == "..." {
			gap = true
			continue
		}
		for gap && len(lines) > 0 && strings.TrimRight(lines[0], " ") != line {
			lines = lines[1:]
		}
		if len(lines) == 0 || strings.TrimRight(lines[0], " ") != line {
			return line
		}
		lines, gap = lines[1:], false
	}
	return ""
}

func TestMissingLine(t *testing.T) {
	got := "a\nb\nc  \nd\n"
	for want, missing := range map[string]string{
		"a\nb": "", "...\nc\nd": "", "a\n...\nd": "", "b": "b", "a\nc": "c", "a\n...\nx": "x", "...\nd\na": "a",
	} {
		if m := missingLine(got, strings.Split(want, "\n")); m != missing {
			t.Errorf("%q: %q is missing, not %q", want, m, missing)
		}
	}
}
