package data

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

func TestZZAudit(t *testing.T) {
	out := os.Getenv("AUDIT")
	if out == "" {
		t.Skip()
	}
	names, _ := filepath.Glob("/tmp/data/tpl/*.jinja")
	rows, _ := os.ReadFile("/tmp/data/rows.jsonl")
	var b strings.Builder
	stat := map[string]int{}
	for _, name := range names {
		src := string(readFile(t, name))
		eos := "</s>"
		for _, e := range []string{"<|return|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<|end_of_role|>", "<|end_of_turn|>", "<|endoftext|>", "[|endofturn|]", "<|end|>", "<SPECIAL_12>", "<|user|>", "<|assistant_end|>"} {
			if strings.Contains(src, e) {
				eos = e
				break
			}
		}
		dir := t.TempDir()
		write(t, dir, "chat_template.jinja", src)
		write(t, dir, "tokenizer_config.json", fmt.Sprintf(`{"bos_token": "<BOS>", "eos_token": %q}`, eos))
		c, err := NewChat(dir, "")
		if err != nil {
			fmt.Fprintf(&b, "%s: PARSE %v\n", filepath.Base(name), err)
			continue
		}
		for _, last := range []bool{false, true} {
			c.LastTurn = last
			for i, line := range strings.Split(strings.TrimSpace(string(rows)), "\n") {
				s := Source{Path: "x", Type: Messages}.withDefaults()
				rec, err := s.record(row{file: "x", line: i + 1, data: []byte(line)})
				if err != nil {
					t.Fatal(err)
				}
				r, err := c.Render(context.Background(), rec)
				if err != nil {
					e := err.Error()
					fmt.Fprintf(&b, "%s last=%v %d: ERR %s\n", filepath.Base(name), last, i+1, e)
					if strings.HasPrefix(e, "chat template: line") {
						e = "raised"
					}
					if k := strings.Index(e, "message "); k >= 0 {
						e = e[:k] + e[min(len(e), k+10):]
					}
					stat[e]++
					continue
				}
				var sb strings.Builder
				for k, g := range r.Segments {
					if g.Target {
						sb.WriteString("⟦" + g.Text + "⟧")
					} else if k == 0 && len(g.Text) > 100 {
						sb.WriteString("..." + g.Text[len(g.Text)-100:])
					} else {
						sb.WriteString(g.Text)
					}
				}
				fmt.Fprintf(&b, "%s last=%v %d: %q%s\n", filepath.Base(name), last, i+1, sb.String(), auditMore(r))
				stat["ok"]++
			}
		}
	}
	os.WriteFile(out, []byte(b.String()), 0o644)
	var keys []string
	for k := range stat {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return stat[keys[i]] > stat[keys[j]] })
	for _, k := range keys[:min(len(keys), 40)] {
		t.Logf("%6d %s", stat[k], k)
	}
}

func auditMore(r Rendered) string {
	if r.Unended == nil {
		return ""
	}
	return fmt.Sprintf(" OPEN next=%q last=%v", r.Unended.Next, r.Unended.IsLast)
}
