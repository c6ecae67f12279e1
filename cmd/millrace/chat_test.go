package main

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace/train/generate"
)

// turns writes <role>content</s> and a line break per turn.
const turns = `{% for m in messages %}{{ '<' + m.role + '>' + m.content + '</s>\n' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}`

// talkative is a workshop whose model has a chat template and many positions.
func talkative(t *testing.T) (w *workshop, flags []string) {
	w = newWorkshop(t)
	w.write("model/config.json", strings.Replace(tinyConfig, `"max_position_embeddings": 128`,
		`"max_position_embeddings": 8192`, 1))
	w.write("model/chat_template.jinja", turns)
	return w, []string{"chat", "--model", w.path("model"), "--tokenizer", "bytes", "--temperature", "0", "--compute",
		"f32"}
}

// answers are the objects that --json prints.
func answers(t *testing.T, stdout string) (all []generate.Generated) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(stdout)); ; {
		var g generate.Generated
		if err := d.Decode(&g); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatalf("%v in %s", err, stdout)
		}
		all = append(all, g)
	}
}

// Each line that is piped is a message, and each answer a line of its own; the second message has the first one before
// it, unless /clear is between them.
func TestChat(t *testing.T) {
	w, flags := talkative(t)
	flags = append(flags, "--max-tokens", "3")
	r := invokeWith(t, "a\n\n/clear\na\nb \\\nc", nil, append(flags, "--json")...).must(t)
	all := answers(t, r.stdout)
	if len(all) != 3 || strings.Count(r.stdout, "\n") != 3 {
		t.Fatalf("%s", r.stdout)
	}
	begin := len("<user>a</s>\n<assistant>")
	second := begin + len(all[1].Text+"</s>\n<user>b \nc</s>\n<assistant>")
	if all[0].PromptTokens != begin || all[1].PromptTokens != begin || all[2].PromptTokens != second {
		t.Errorf("prompts of %d, %d and %d tokens; want %d, %d and %d", all[0].PromptTokens, all[1].PromptTokens,
			all[2].PromptTokens, begin, begin, second)
	}
	plain := invokeWith(t, "a\n", nil, flags...).must(t).stdout
	if strings.ToValidUTF8(plain, "\ufffd") != strings.TrimSuffix(all[0].Text, "\n")+"\n" {
		t.Errorf("printed %q, the text is %q", plain, all[0].Text)
	}
	system := answers(t, invokeWith(t, "a\n", nil, append(flags, "--json", "--system", "S", "--max-new-tokens",
		"1")...).must(t).stdout)
	if len(system) != 1 || system[0].PromptTokens != begin+len("<system>S</s>\n") || len(system[0].Tokens) > 1 {
		t.Errorf("with a system prompt: %+v", system)
	}
	if r := invokeWith(t, "", nil, flags...).must(t); r.stdout != "" {
		t.Errorf("without a message: %q", r.stdout)
	}
	w.write("t.jinja", `{{ raise_exception("not today") }}`)
	if r := invokeWith(t, "a\n", nil, append(flags, "--chat-template",
		w.path("t.jinja"))...); r.status != exitBadRequest || !strings.Contains(r.errorLine(), "not today") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	if r := invokeWith(t, strings.Repeat("x", maxPromptBytes+1), nil, flags...); r.status != exitBadRequest ||
		!strings.Contains(r.errorLine(), "16 MiB") {
		t.Errorf("a line that is too long: status %d: %.200s", r.status, r.stderr)
	}
	if r := invokeWith(t, strings.Repeat("x", 9000), nil, flags...); r.status != exitBadRequest ||
		!strings.Contains(r.errorLine(), "8192 positions") {
		t.Errorf("a message that is too long: status %d: %.200s", r.status, r.stderr)
	}
}

// Lines that begin with a slash are commands and never reach the model, except those that begin with two.
func TestChatCommands(t *testing.T) {
	_, flags := talkative(t)
	flags = append(flags, "--max-tokens", "2", "--json")
	begin := len("<user></s>\n<assistant>")
	r := invokeWith(t, "/help\n/reset\n//tmp is what?\n /quit \nunsaid\n", nil, flags...).must(t)
	if all := answers(t, r.stdout); len(all) != 1 || all[0].PromptTokens != begin+len("/tmp is what?") {
		t.Errorf("%s", r.stdout)
	}
	if !strings.Contains(r.stderr, "/clear, /reset   forget the conversation") {
		t.Errorf("/help: %s", r.stderr)
	}
	for _, line := range []string{"/save talk", "/tmp", "/", "/clear it"} {
		r := invokeWith(t, line+"\na\n", nil, flags...)
		if r.status != exitBadRequest || r.stdout != "" ||
			!strings.Contains(r.errorLine(), "there is no command "+line+": ") ||
			!strings.Contains(r.errorLine(), "write /"+line+" to send it") {
			t.Errorf("%s: status %d, %s, %s", line, r.status, r.stderr, r.stdout)
		}
	}
}

// An interrupt ends a chat whose messages come from a pipe, in the middle of an answer.
func TestPipedChatInterrupted(t *testing.T) {
	_, flags := talkative(t)
	signals := make(chan os.Signal)
	out := writerFunc(func([]byte) { // the first word
		select {
		case signals <- os.Interrupt:
		default:
		}
	})
	var stderr strings.Builder
	if status := run(append(flags, "--max-tokens", "4000"), strings.NewReader("a\nb\n"), out, &stderr,
		signals); status != exitInterrupted {
		t.Errorf("status %d: %s", status, stderr.String())
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(text []byte) (int, error) {
	f(text)
	return len(text), nil
}

// A run and a checkpoint can be talked to, with the run's tokenizer and chat template.
func TestChatWithARun(t *testing.T) {
	w, _ := talkative(t)
	invoke(t, "train", w.path("run.yaml"), "--set", "save.every=1").must(t)
	for _, name := range []string{"out", "out/checkpoints", "out/checkpoints/step-000002"} {
		r := invokeWith(t, "a\n", nil, "chat", "--model", w.path(name), "--max-tokens", "2").must(t)
		if !strings.Contains(r.stderr, "using "+w.path("out")) {
			t.Errorf("%s: %s", name, r.stderr)
		}
		invoke(t, "generate", "--model", w.path(name), "--max-tokens", "2", "--prompt", "x").must(t)
	}
}
