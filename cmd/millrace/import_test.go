package main

import (
	"strings"
	"testing"
)

// TestImportAddTokens adds tokens to a model directory and to a GGUF file, from a list and from a file.
func TestImportAddTokens(t *testing.T) {
	w := newWorkshop(t)
	w.useTokenizer()
	list := "<|im_start|>, <|im_end|>"
	r := invoke(t, "import", w.path("model"), w.path("more"), "--add-tokens", list).must(t)
	for _, want := range []string{"<|im_start|> is token ", "<|im_end|> is token ", w.path("more") + ": the vocabulary stays at 576 rows"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("it says %q, want %q", r.stdout, want)
		}
	}
	if text := w.read("more/tokenizer.json"); strings.Count(text, `"<|im_start|>"`) != 1 {
		t.Error("tokenizer.json does not have the token once")
	}
	w.write("tokens.txt", "\uFEFF<a,b>\r\n\n<c>\n")
	r = invoke(t, "import", w.path("more"), w.path("most"), "--add-tokens", "@"+w.path("tokens.txt"), "--plain-tokens").must(t)
	if !strings.Contains(r.stdout, "<a,b> is token ") || !strings.Contains(w.read("most/tokenizer.json"), `"content":"<c>","single_word":false,"lstrip":false,"rstrip":false,"normalized":true,"special":false`) {
		t.Errorf("it says %q", r.stdout)
	}

	invoke(t, "export", w.path("model"), "--gguf", w.path("a.gguf"), "--dtype", "f32").must(t)
	invoke(t, "import", w.path("a.gguf"), w.path("plain"), "--dtype", "f32").must(t)
	invoke(t, "import", w.path("plain"), w.path("twice"), "--add-tokens", list).must(t)
	invoke(t, "import", w.path("a.gguf"), w.path("once"), "--add-tokens", list, "--dtype", "f32").must(t)
	if w.read("once/model.safetensors") != w.read("twice/model.safetensors") || w.read("once/tokenizer.json") != w.read("twice/tokenizer.json") {
		t.Error("a GGUF file with tokens is not what it is in two steps")
	}

	for args, want := range map[string]string{
		"model out": "needs no import", "a.gguf out --plain-tokens": "--plain-tokens is for --add-tokens",
		"model out --add-tokens a --dtype f32": "--dtype is for a GGUF file", "model out --add-tokens ,": "names no token",
		"model out --add-tokens @none.txt": "none.txt", "model more --add-tokens <x>": "exists and is not empty",
		"model out --add-tokens <|im_start|>,<|im_start|>": "named twice",
	} {
		t.Run(args, func(t *testing.T) {
			t.Chdir(w.path("."))
			r := invoke(t, append([]string{"import"}, strings.Fields(args)...)...)
			if r.status != exitBadRequest || !strings.Contains(r.stderr, want) || strings.Count(strings.TrimSpace(r.stderr), "\n") != 0 {
				t.Errorf("status %d, %q, want %q", r.status, r.stderr, want)
			}
		})
	}
	if left := w.read("a.gguf"); left == "" {
		t.Error("the GGUF file is gone")
	}
	for _, name := range w.files(".") {
		if strings.Contains(name, ".millrace-import-") {
			t.Errorf("%s is left", name)
		}
	}
}
