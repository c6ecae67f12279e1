package data

import "context"

// sectionBytes is about how much of a long document becomes tokens at a time, as much as of short ones.
const sectionBytes = batchBytes

// cutter finds the places where a tokenizer lets a long text be cut; nil if it does not. A text is cut only where a
// document is its text and an end: a template could write more around it. A source that leaves bad documents out has
// to know a whole one before its first token is kept.
func (s rowReader) cutter(ctx context.Context, o Options) func(text string, from int) int {
	t, ok := o.Tokenizer.(interface{ Cut(string, int) int })
	if !ok || !s.Type.format().isText || s.BadRows == SkipBadRows {
		return nil
	}
	const some = "some text"
	r, err := o.Renderer.Render(ctx, Record{Type: Text, Text: some})
	if err != nil || len(r.Segments) != 1 || r.Segments[0] != (Segment{some, true}) ||
		!r.End || r.Joined || r.Unended != nil {
		return nil
	}
	return t.Cut
}
