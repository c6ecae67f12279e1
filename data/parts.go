package data

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
)

// said holds the content of a message. Parts of a kind are joined with nothing between them.
type said struct {
	text      string
	isMissing bool // there is no content, or null
	// thoughts and calls may be parts of the content in LLaMA-Factory's v1 format.
	thoughts string
	calls    []template.Value
}

// mediaParts begin the types of parts that are no text, as OpenAI, transformers and LLaMA-Factory call them: image,
// image_url, input_image, video_url and so on.
var mediaParts = []string{"image", "video", "audio", "file"}

// onlyText says why rows with media are refused.
const onlyText = "only text can be trained on, also with models that see or hear"

// contentOf reads a message's content, a text or a list of parts. A part is {"type": "text", "text": ...}, or in
// LLaMA-Factory's v1 format {"type": ..., "value": ...}, with the types text, reasoning and tool_call.
func contentOf(m *template.Dict) (said, error) {
	content, ok := m.Get("content")
	if _, null := content.(template.None); null || !ok {
		return said{isMissing: true}, nil
	}
	switch content := content.(type) {
	case template.String:
		return said{text: string(content)}, nil
	case *template.List:
		var all said
		for _, item := range content.Items() {
			part, ok := item.(*template.Dict)
			if !ok {
				return said{}, errors.New("a part of the content is not an object")
			}
			if err := all.add(part); err != nil {
				return said{}, fmt.Errorf("a part of the content: %w", err)
			}
		}
		return all, nil
	}
	return said{}, errNoContent
}

var errNoContent = errors.New("content is missing, or neither a text nor a list of parts")

// add adds a part.
func (s *said) add(part *template.Dict) error {
	kind, err := textOf(part, "type")
	if err != nil {
		return err
	}
	for _, key := range []string{"train", "weight"} {
		if v, ok := part.Get(key); ok && v != template.Value(template.None{}) {
			if counts, ok := isCounted(v); !ok || !counts {
				return fmt.Errorf("it has %s: a message counts as a whole or not", key)
			}
		}
	}
	isMedia := func(name string) bool { return strings.HasPrefix(strings.TrimPrefix(kind, "input_"), name) }
	switch {
	case slices.ContainsFunc(mediaParts, isMedia):
		return fmt.Errorf("its type is %.100q: %s", kind, onlyText)
	case kind == "text":
		key := "text"
		if _, ok := part.Get(key); !ok {
			if _, ok := part.Get("value"); ok {
				key = "value"
			}
		}
		text, err := textOf(part, key)
		s.text += text
		return err
	case kind == "reasoning":
		text, err := textOf(part, "value")
		s.thoughts += text
		return err
	case kind == "tool_call":
		text, err := textOf(part, "value")
		if err != nil {
			return err
		}
		calls, err := callsOf(text)
		s.calls = append(s.calls, calls...)
		return err
	}
	return fmt.Errorf("its type is %.100q: known are text, and reasoning and tool_call of LLaMA-Factory's v1 format",
		kind)
}
