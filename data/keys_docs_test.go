package data

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/data/tokenizer"
)

var updateDocs = flag.Bool("update", false, "write the tables of docs/data.md")

// peerRows are rows as other trainers write them, with the entry that reads them here. What each becomes, in
// docs/data.md, comes from reading it.
var peerRows = []struct {
	trainer, row string
	entry        Source
}{
	{"LLaMA-Factory, alpaca", `{"instruction": "a", "input": "b", "output": "c", "system": "s", "history": [["q", "r"]]}`, Source{Type: Alpaca}},
	{"LLaMA-Factory, sharegpt", `{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s", "tools": "[]"}`, Source{Type: ShareGPT}},
	{"LLaMA-Factory, openai", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`, Source{Type: Messages}},
	{"LLaMA-Factory, v1", `{"messages": [{"role": "user", "content": [{"type": "text", "value": "a"}], "loss_weight": 0.0}, {"role": "assistant", "content": [{"type": "reasoning", "value": "t"}, {"type": "text", "value": "b"}], "loss_weight": 1.0}]}`, Source{Type: Messages}},
	{"LLaMA-Factory, ranking", `{"instruction": "a", "input": "x", "chosen": "b", "rejected": "c"}`,
		Source{Type: Preference}},
	{"LLaMA-Factory, ranking of sharegpt",
		`{"conversations": [{"from": "human", "value": "a"}], "chosen": {"from": "gpt", "value": "b"}, ` +
			`"rejected": {"from": "gpt", "value": "c"}}`, Source{Type: Preference}},
	{"LLaMA-Factory, KTO",
		`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "label": false}`,
		Source{Type: Binary}},
	{"LLaMA-Factory, KTO of alpaca", `{"instruction": "a", "input": "", "output": "b", "kto_tag": true}`,
		Source{Type: Binary}},
	{"LLaMA-Factory, pictures", `{"messages": [{"role": "user", "content": "<image>a"}, {"role": "assistant", "content": "b"}], "images": ["a.png"]}`, Source{Type: Messages}},
	{"Axolotl, completion", `{"text": "a"}`, Source{Type: Text}},
	{"Axolotl, alpaca", `{"instruction": "a", "input": "", "output": "b"}`, Source{Type: Alpaca}},
	{"Axolotl, chat_template", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "training": false}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}`, Source{Type: Messages}},
	{"Axolotl, chat_template with from and value", `{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}`, Source{Type: ShareGPT}},
	{"Axolotl, train_detail", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train_detail": [{"begin_offset": 0, "end_offset": 1, "train": false}]}]}`, Source{Type: Messages}},
	{"Axolotl, chatml.intel", `{"system": "s", "question": "a", "chosen": "b", "rejected": "c"}`,
		Source{Type: Preference}},
	{"Axolotl, chat_template.default of pairs",
		`{"talk": [{"role": "user", "content": "a"}], "good": {"role": "assistant", "content": "b"}, ` +
			`"bad": {"role": "assistant", "content": "c"}}`,
		Source{Type: Preference, Messages: "talk", Chosen: "good", Rejected: "bad"}},
	{"Axolotl, input_output", `{"segments": [{"label": true, "text": "a"}]}`, Source{Type: Messages}},
	{"TRL, text", `{"text": "a"}`, Source{Type: Text}},
	{"TRL, prompt-completion", `{"prompt": "a", "completion": "b"}`, Source{Type: PromptResponse, Response: "completion"}},
	{"TRL, prompt-completion of lists", `{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}], "tools": []}`, Source{Type: PromptResponse, Response: "completion"}},
	{"TRL, messages", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "chat_template_kwargs": {"enable_thinking": false}}`, Source{Type: Messages}},
	{"TRL, preference", `{"prompt": "a", "chosen": "b", "rejected": "c", "margin": 0.5}`, Source{Type: Preference}},
	{"TRL, preference, the chosen answers alone", `{"prompt": "a", "chosen": "b", "rejected": "c"}`,
		Source{Type: PromptResponse, Response: "chosen"}},
	{"TRL, preference of lists",
		`{"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant", "content": "b"}], ` +
			`"rejected": [{"role": "assistant", "content": "c"}]}`, Source{Type: Preference}},
	{"TRL, preference with implicit prompts",
		`{"chosen": [{"role": "user", "content": "a"}, ` +
			`{"role": "assistant", "content": "b c"}], "rejected": [{"role": "user", "content": "a"}, ` +
			`{"role": "assistant", "content": "b d"}]}`, Source{Type: Preference}},
	{"UltraFeedback, binarized",
		`{"prompt": "a", "chosen": [{"role": "user", "content": "a"}, ` +
			`{"role": "assistant", "content": "b"}], "rejected": [{"role": "user", "content": "a"}, ` +
			`{"role": "assistant", "content": "c"}], ` +
			`"score_chosen": 8, "score_rejected": 6.5}`, Source{Type: Preference, Margin: scoresMargin}},
	{"HH-RLHF", `{"chosen": "Human: a Assistant: b", "rejected": "Human: a Assistant: c"}`, Source{Type: Preference}},
	{"TRL, unpaired preference", `{"prompt": "a", "completion": "b", "label": 0}`, Source{Type: Binary}},
	{"TRL, unpaired preference, as text", `{"prompt": "a", "completion": "b", "label": 0}`, Source{Type: PromptResponse,
		Response: "completion"}},
	{"ms-swift, query-response", `{"system": "s", "query": "a", "response": "b", "history": [["q", "r"]]}`, Source{Type: PromptResponse, Prompt: "query"}},
	{"ms-swift, messages", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": false}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}`, Source{Type: Messages}},
	{"ms-swift, rejected answer, as messages", `{"messages": [{"role": "user", "content": "a"}, ` +
		`{"role": "assistant", "content": "b"}], "rejected_response": "c"}`, Source{Type: Messages}},
	{"ms-swift, rejected answer", `{"messages": [{"role": "user", "content": "a"}, ` +
		`{"role": "assistant", "content": "b"}], "rejected_response": "c"}`, Source{Type: Preference}},
	{"Unsloth, conversations", `{"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`, Source{Type: Messages, Messages: "conversations"}},
	{"Unsloth, question and answer", `{"question": "a", "answer": "b", "system_prompt": "s"}`, Source{Type: PromptResponse, Prompt: "question", Response: "answer", System: "system_prompt"}},
	{"Unsloth, gpt-oss", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "thinking": "t"}], "chat_template_kwargs": {"reasoning_effort": "low"}}`, Source{Type: Messages}},
	{"OpenAI, chat", `{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1}]}`, Source{Type: Messages}},
	{"OpenAI, tools", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "r"}, {"role": "assistant", "content": "b"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}], "parallel_tool_calls": false}`, Source{Type: Messages}},
	{"OpenAI, functions of old", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}], "functions": [{"name": "f"}]}`, Source{Type: Messages, Tools: "functions"}},
	{"OpenAI, preference",
		`{"input": {"messages": [{"role": "user", "content": "a"}], "tools": [], "parallel_tool_calls": true}, ` +
			`"preferred_output": [{"role": "assistant", "content": "b"}], ` +
			`"non_preferred_output": [{"role": "assistant", "content": "c"}]}`, Source{Type: Preference}},
	{"tokens with weights", `{"input_ids": [97, 98, 99], "weights": [0, 0.5, 1]}`, Source{Type: Weighted}},
	{"tokens with an advantage",
		`{"input_ids": [97, 98, 99], "completion_mask": [0, 0, 1], "advantage": -0.5, "logprobs": [0, 0, -1.5]}`,
		Source{Type: Weighted}},
	{"slime, marks", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": 0}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}`, Source{Type: Messages}},
}

// entryText is an entry of `datasets` as a run file has it, without its path.
func entryText(s Source) string {
	var keys []string
	for v, i := reflect.ValueOf(s), 0; i < v.NumField(); i++ {
		if name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ","); v.Field(i).Kind() == reflect.String && v.Field(i).String() != "" {
			keys = append(keys, name+": "+v.Field(i).String())
		}
	}
	return strings.Join(keys, ", ")
}

// peersTable shows what becomes of the rows of other trainers: each is read.
func peersTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| format | a row | entry | what counts in the loss |\n|---|---|---|---|\n")
	chat := chatOf(t, strings.Replace(writesAll, "{{ name }}", "{{ enable_thinking }}{{ reasoning_effort }}", 1))
	chat.All = true
	for _, p := range peerRows {
		s := rowReader{Source: p.entry.withDefaults()}
		documents, _, err := s.documents(t.Context(), row0([]byte(p.row)), Options{Tokenizer: tokenizer.Bytes(),
			Renderer: chat})
		var becomes string
		if err != nil {
			becomes = "refused: " + strings.TrimPrefix(err.Error(), "x:1: ")
		} else {
			var sides []string
			for _, e := range documents {
				sides = append(sides, countedIn(t, e.Example))
			}
			if s.Type.format().isLabeled {
				sides[0] += map[float64]string{0: ", not wanted", 1: ", wanted"}[documents[0].number]
			}
			becomes = strings.Join(sides, " over ")
		}
		fmt.Fprintf(&b, "| %s | `%s` | `%s` | %s |\n", p.trainer, p.row, entryText(p.entry), strings.ReplaceAll(becomes, "|", `\|`))
	}
	return b.String()
}

// countedIn lists what counts of an example.
func countedIn(t *testing.T, e Example) (all string) {
	d, err := NewDataset([]Example{e})
	if err != nil {
		t.Fatal(err)
	}
	text, inside := strings.NewReplacer("\n", " ", "<|endoftext|>", "").Replace(marked(d)[0]), ""
	for {
		_, rest, ok := strings.Cut(text, "[")
		if !ok {
			return strings.TrimSpace(all)
		}
		inside, text, _ = strings.Cut(rest, "]")
		all += "`" + strings.TrimSpace(strings.TrimSuffix(inside, "</s>")) + "` "
	}
}

// code lists names; those with many endings once.
func code(names string) string {
	var stems []string
	for _, kind := range []string{"image", "video", "audio", "chosen", "preferred", "positive", "rejected", "dispreferred", "non_preferred", "negative"} {
		for _, written := range []string{media(kind), choice(kind)} {
			if strings.Contains(names, written) {
				names = strings.Replace(names, written, "", 1)
				stems = append(stems, kind)
			}
		}
	}
	all := "`" + strings.Join(append(strings.Fields(names), stems...), "`, `") + "`"
	switch {
	case stems == nil:
		return all
	case stems[0] == "image":
		return all + ", also with `" + strings.Join(mediaEnds[1:], "`, `") + "`"
	}
	all = "`" + strings.Join(stems, choiceEnds[0]+"`, `") + choiceEnds[0] + "`, also with `" + strings.Join(choiceEnds[1:], "`, `") + "`"
	for _, alone := range []string{"chosen", "rejected"} {
		if slices.Contains(stems, alone) {
			all = "`" + alone + "`, " + all
		}
	}
	return all
}

// keysTable shows what each type does with the keys of rows, and of what is in them.
func keysTable() string {
	var b strings.Builder
	b.WriteString("| key of a row | what it says | read by | otherwise |\n|---|---|---|---|\n")
	for _, k := range keyTable {
		if k.at != inRow {
			continue
		}
		var readers []string
		refusedBy := typesThat(func(f *format) bool { return k.concerns(f.name) })
		for _, e := range entryKeys {
			if e.name == k.entry {
				readers = append(readers, typesThat(e.isOf)...)
			}
		}
		otherwise := "refused in " + strings.Join(refusedBy, ", ")
		switch {
		case k.does == marks:
			otherwise = "refused unless 1 or true, in all types"
		case k.does == judges:
			otherwise = "refused unless 1 or true, in all types except text; always in binary"
		case k.remedy == onlyText:
			otherwise += " (in text only with a placeholder in it)"
		}
		if k.remedy != "" && k.remedy != onlyText {
			otherwise += ": " + k.remedy
		}
		read := strings.Join(readers, ", ")
		if read == "" {
			read = "no type"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", code(k.names), k.says, read, otherwise)
	}
	b.WriteString("\n| in a | key | what it says | what becomes of it |\n|---|---|---|---|\n")
	for _, k := range keyTable {
		becomes := map[action]string{reads: "read", marks: "1 or true: it counts; 0 or false: it does not; else refused", judges: "refused unless 1 or true",
			labels: "changes nothing", refuses: "refused: " + k.remedy}[k.does]
		if k.at == inPart && k.does == marks {
			becomes = "refused unless 1 or true: " + k.remedy
		}
		if k.at != inRow {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", k.at, code(k.names), k.says, becomes)
		}
	}
	return b.String()
}

// TestKeysAreDocumented: docs/data.md has the tables that the code makes, and each row of another trainer is read as
// the page says.
func TestKeysAreDocumented(t *testing.T) {
	const page = "../docs/data.md"
	doc, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(doc)
	for name, table := range map[string]string{"rows of other trainers": peersTable(t), "keys": keysTable()} {
		begin, end := "<!-- "+name+": go test ./data -run TestKeysAreDocumented -update writes this table -->\n", "<!-- end of "+name+" -->\n"
		before, rest, ok := strings.Cut(text, begin)
		have, after, isEnded := strings.Cut(rest, end)
		if !ok || !isEnded {
			t.Fatalf("%s has no marks of %q", page, name)
		}
		if d := cmp.Diff(table, have); d != "" && !*updateDocs {
			t.Errorf("-the code +%s: -update writes it\n%s", page, d)
		}
		text = before + begin + table + end + after
	}
	if *updateDocs {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
