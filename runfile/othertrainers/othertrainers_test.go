package othertrainers

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// A row has one of the two answers, in a form that stands in an error among others, and no key is there twice.
func TestRows(t *testing.T) {
	for _, entries := range []bool{false, true} {
		seen := map[string]bool{}
		for _, s := range Sections() {
			if s.Entries != entries {
				continue
			}
			for _, r := range s.Rows {
				if (r.Use == "") == (r.Drop == "") || r.Drop != "" && r.Note != "" || len(r.Keys) == 0 ||
					(r.Changes || r.Refuse) && r.Drop == "" || r.Changes && r.Refuse {
					t.Errorf("%+v", r)
				}
				if text := r.Advice(); strings.ContainsAny(text, ";\n") || strings.HasSuffix(text, ".") {
					t.Errorf("%v: %q", r.Keys, text)
				}
				for _, k := range r.Keys {
					if seen[k] {
						t.Errorf("%s is there twice", k)
					}
					seen[k] = true
				}
			}
		}
	}
}

func TestLookup(t *testing.T) {
	for key, want := range map[string]string{
		"num_train_epochs": "use epochs", "cutoff_len": "use sequence_len",
		"wandb_whatever":              "leave it out: every step is a record",
		"lora_r":                      "no key asks for that, and without it all parameters learn to predict the next token: Millrace trains all parameters",
		"stage":                       "use objective.type (dpo, kto, ",
		"reward_funcs":                "use rl.reward (a program, ",
		"eos_token":                   "leave it out, which changes the result: ",
		"gradient_accumulation_steps": "use batch_tokens (sequences per device x",
		"flash_attn":                  "leave it out: the device's driver chooses",
	} {
		if r, ok := Lookup(key); !ok || !strings.HasPrefix(r.Advice(), want) {
			t.Errorf("%s: %q", key, r.Advice())
		}
	}
	if r, ok := LookupEntry("field_messages"); !ok || r.Use != "messages" {
		t.Errorf("%+v", r)
	}
	for _, key := range []string{"", "xyzzy", "learning_rate", "*"} {
		if r, ok := Lookup(key); ok {
			t.Errorf("%s: %+v", key, r)
		}
	}
}

// sameHere are keys of the other trainers that have the same name and meaning here.
var sameHere = strings.Fields(`model datasets chat_template chat_template_kwargs train_on_prompt val_size sequence_len
	max_steps learning_rate lr_scheduler warmup_steps warmup_ratio weight_decay max_grad_norm router_aux_loss_coef device
	seed report_to output_dir`)

// Every key of the other trainers has an answer.
func TestAllKeysAreKnown(t *testing.T) {
	doc, err := os.ReadFile("testdata/keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, k := range sameHere {
		known[k] = true
	}
	n := 0
	for line := range strings.Lines(string(doc)) {
		key := strings.TrimSpace(line)
		if strings.HasPrefix(key, "#") {
			continue
		}
		n++
		if _, ok := Lookup(key); ok == known[key] {
			t.Errorf("%s: in the list %v, the same here %v", key, ok, known[key])
		}
	}
	if n < 800 {
		t.Errorf("%d keys only", n)
	}
}

var update = flag.Bool("update", false, "write the table of the docs")

// The table of the docs is the list.
func TestDocs(t *testing.T) {
	const path, mark = "../../docs/other-trainers.md", "\n## Keys\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, _, found := strings.Cut(string(page), mark)
	if !found {
		t.Fatalf("%s has no heading Keys", path)
	}
	want := text + mark + table()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(page) {
		t.Errorf("%s is not what keys.yaml says; run go test ./runfile/othertrainers -update", path)
	}
}

// table is the list as Markdown.
func table() string {
	var b strings.Builder
	code := func(names []string) string { return "`" + strings.Join(names, "`, `") + "`" }
	for _, s := range Sections() {
		fmt.Fprintf(&b, "\n### %s\n\n| there | here |\n|---|---|\n", s.Title)
		for _, r := range s.Rows {
			here := r.Drop
			if r.Use != "" {
				here = "`" + r.Use + "`"
			}
			if r.Note != "" {
				here += ": " + r.Note
			}
			switch {
			case r.Changes:
				here = "changes the result: " + here
			case r.Refuse:
				here = "refused by `convert`: " + here
			}
			fmt.Fprintf(&b, "| %s | %s |\n", code(r.Keys), here)
		}
	}
	return b.String()
}
