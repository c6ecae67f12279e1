package generate

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/traintest"
)

// talkOptions are of a random model with a chat template.
func talkOptions(t *testing.T) ChatOptions {
	t.Helper()
	dir := traintest.WriteModel(t, nil)
	traintest.Write(t, filepath.Join(dir, "chat_template.jinja"), traintest.TurnTemplate)
	return ChatOptions{Options: Options{Model: dir, Tokenizer: "bytes", MaxTokens: 6, Compute: "f32"}}
}

func converse(t *testing.T, o ChatOptions) *Conversation {
	t.Helper()
	c, err := OpenConversation(t.Context(), traintest.NewEnv(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Each answer continues the conversation as the template renders it, which is told here by hand.
func TestConversation(t *testing.T) {
	o := talkOptions(t)
	o.System = "S"
	c := converse(t, o)
	text := "<system>S</s>\n"
	for _, question := range []string{"a", "b?"} {
		text += "<user>" + question + "</s>\n<assistant>"
		plain := o.Options
		plain.Prompt = text
		want, err := Text(t.Context(), traintest.NewEnv(t), plain)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		got, err := c.Say(t.Context(), nil, question, &out)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.Tokens, want.Tokens) || got.PromptTokens != len(text) || got.Finish != want.Finish {
			t.Errorf("%q: %+v, want %+v", question, got, want)
		}
		if strings.ToValidUTF8(out.String(), "\ufffd") != got.Text {
			t.Errorf("printed %q, text is %q", out.String(), got.Text)
		}
		text += got.Text + "</s>\n"
	}
	c.Clear()
	if want := []data.Message{{Role: "system", Content: "S"}}; !slices.Equal(c.messages, want) {
		t.Errorf("cleared: %v", c.messages)
	}
}

// An answer costs what is new of the conversation.
func TestConversationReadsWhatIsNew(t *testing.T) {
	c := converse(t, talkOptions(t))
	var read []int
	for range 3 {
		before, a := 0, (*Generated)(nil)
		if c.texts != nil {
			said := append(slices.Clone(c.messages), data.Message{Role: data.User, Content: "a"})
			prompt, err := c.chat.Prompt(t.Context(), said)
			if err != nil {
				t.Fatal(err)
			}
			before = c.texts.known(0, c.tok.Encode(prompt, false))
		}
		a, err := c.Say(t.Context(), nil, "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, a.PromptTokens-before)
	}
	// Bytes that are no UTF-8 come back as other ones, so an answer may be read again from the first of them on.
	if most := len("<user>a</s>\n<assistant>") + 6*len("\ufffd") + len("</s>\n"); read[1] > most || read[2] > most {
		t.Errorf("messages had %d, %d and %d new tokens", read[0], read[1], read[2])
	}
}

// firstWord is called when something is written.
type firstWord func()

func (f firstWord) Write(p []byte) (int, error) {
	if len(p) > 0 {
		f()
	}
	return len(p), nil
}

// An answer that is stopped is what was said so far, and the conversation continues after it.
func TestConversationStopped(t *testing.T) {
	c := converse(t, talkOptions(t))
	stop := make(chan struct{})
	a, err := c.Say(t.Context(), stop, "a", firstWord(sync.OnceFunc(func() { close(stop) })))
	if err != nil || a.Finish != FinishStopped || len(a.Tokens) == 0 || len(a.Tokens) >= 6 {
		t.Fatalf("%+v, %v", a, err)
	}
	if len(c.messages) != 2 || c.messages[1].Content != a.Text {
		t.Errorf("messages %v", c.messages)
	}
	if a, err := c.Say(t.Context(), stop, "b", nil); err != nil || len(a.Tokens) != 0 || a.Finish != FinishStopped ||
		len(c.messages) != 2 {
		t.Errorf("stopped before it began: %+v, %v, %v", a, err, c.messages)
	}
	if _, err := c.Say(t.Context(), nil, "c", nil); err != nil || len(c.messages) != 4 {
		t.Errorf("%v, %v", err, c.messages)
	}
}

// cutting is a store that calls cut when weights are borrowed.
type cutting struct {
	store.Store
	cut func()
}

func (c cutting) Borrow(ctx context.Context, lane trace.Worker, id store.ID, off, n int64, access store.Access,
	version uint64) (*store.Lease, error) {
	c.cut()
	return c.Store.Borrow(ctx, lane, id, off, n, access, version)
}

// A pass that is cut breaks the engine. The next message has an answer all the same: the same one as without the cut.
func TestConversationCut(t *testing.T) {
	c := converse(t, talkOptions(t))
	if _, err := c.Say(t.Context(), nil, "a", nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cut := false
	c.texts.Engine.Store = cutting{c.texts.Engine.Store, func() { cut = true; cancel() }}
	if a, err := c.Say(ctx, nil, "b", nil); a != nil || !errors.Is(err, context.Canceled) || !cut || len(c.messages) != 2 {
		t.Fatalf("%+v, %v, %v", a, err, c.messages)
	}
	if a, err := c.Say(t.Context(), nil, "b", nil); err != nil || len(a.Tokens) == 0 {
		t.Errorf("after the cut: %+v, %v", a, err)
	}
}

// A conversation grows up to the model's positions. A message that is too long was not said.
func TestConversationLength(t *testing.T) {
	o := talkOptions(t)
	o.Model = traintest.WriteModel(t, map[string]any{"max_position_embeddings": 600})
	traintest.Write(t, filepath.Join(o.Model, "chat_template.jinja"), traintest.TurnTemplate)
	o.MaxTokens = 2
	c := converse(t, o)
	var rows []int
	for _, n := range []int{1, 250, 100} {
		if _, err := c.Say(t.Context(), nil, strings.Repeat("x", n), nil); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, c.texts.Plan.LongestDocument())
	}
	if want := []int{256, 512, 512}; !slices.Equal(rows, want) {
		t.Errorf("rows of %v positions, want %v", rows, want)
	}
	before := len(c.messages)
	if _, err := c.Say(t.Context(), nil, strings.Repeat("x", 300), nil); err == nil ||
		!strings.Contains(err.Error(), "made for 600 positions") || len(c.messages) != before {
		t.Errorf("%v, %d messages", err, len(c.messages))
	}
	if _, err := c.Say(t.Context(), nil, "x", nil); err != nil || c.texts.Plan.LongestDocument() != 512 {
		t.Errorf("%v, %d", err, c.texts.Plan.LongestDocument())
	}
}

func TestConversationRefused(t *testing.T) {
	o := talkOptions(t)
	for want, change := range map[string]func(*ChatOptions){
		"no chat template":        func(o *ChatOptions) { o.Model = traintest.WriteModel(t, nil) },
		"there is no file no.jin": func(o *ChatOptions) { o.ChatTemplate = "no.jin" },
		"--max-tokens is 0":       func(o *ChatOptions) { o.MaxTokens = 0 },
		"compute is":              func(o *ChatOptions) { o.Compute = "f8" },
		"cannot be":               func(o *ChatOptions) { o.Tokenizer = "no" },
	} {
		o := o
		change(&o)
		if _, err := OpenConversation(t.Context(), traintest.NewEnv(t), o); err == nil ||
			!strings.Contains(err.Error(), want) &&
				want != "cannot be" {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// The template is asked when something is said.
	o.ChatTemplate = filepath.Join(t.TempDir(), "t.jinja")
	traintest.Write(t, o.ChatTemplate,
		`{% if messages[0].content == "bad" %}{{ raise_exception("no such word") }}{% endif %}`+
			`{{ messages[0].content }}`)
	c := converse(t, o)
	if _, err := c.Say(t.Context(), nil, "bad", nil); err == nil || !strings.Contains(err.Error(), "no such word") ||
		len(c.messages) != 0 {
		t.Errorf("%v, %v", err, c.messages)
	}
	if _, err := c.Say(t.Context(), nil, "good", nil); err != nil {
		t.Error(err)
	}
}
