package data

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Keys of rows that are more than text with one answer: as LLaMA-Factory, TRL and LLaVA name them.
var (
	mediaKeys  = []string{"images", "image", "videos", "video", "audios", "audio"}
	labelKeys  = []string{"label", "kto_tag"} // whether the answer is a good one
	choiceKeys = [][]string{{"chosen", "rejected"}, {"chosen_messages", "rejected_messages"}}
	unfitKeys  = slices.Concat(mediaKeys, labelKeys, slices.Concat(choiceKeys...))
)

// placeholders stand in a text for a picture, a film or a sound.
var placeholders = []string{"<image>", "<video>", "<audio>"}

// unfit says why a row is not to be trained as text with one answer, or "" if it is. A key that the source names is
// read as that says.
func (s Source) unfit(object map[string]json.RawMessage) string {
	has := func(key string) bool {
		k := s.keys()
		if slices.Contains([]string{k.field, k.prompt, k.response, k.input, k.history, k.messages, k.system, k.tools}, key) {
			return false
		}
		value := object[key]
		if len(value) > 32 {
			return true
		}
		switch strings.Join(strings.Fields(string(value)), "") {
		case "", "null", "[]", "{}", `""`, "[null]", "[{}]":
			return false
		}
		return true
	}
	for _, key := range mediaKeys {
		// The text of a row with a picture can be trained on as long as no placeholder in it stands for the picture.
		if has(key) && (s.Type != Text || slices.ContainsFunc(placeholders, func(p string) bool { return strings.Contains(string(object[s.Field]), p) })) {
			return fmt.Sprintf("the row has %q: %s", key, onlyText)
		}
	}
	if s.Type == Text {
		return ""
	}
	for _, key := range labelKeys {
		if has(key) && string(object[key]) == "false" {
			return fmt.Sprintf("%q is false, which marks the answer as a bad one", key)
		}
	}
	for _, keys := range choiceKeys {
		if has(keys[0]) && has(keys[1]) {
			return fmt.Sprintf("the row has %q and %q: only one answer can be trained on; name its key",
				keys[0], keys[1])
		}
	}
	return ""
}
