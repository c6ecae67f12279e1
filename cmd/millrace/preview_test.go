package main

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/verbs"
)

func TestPreviewPage(t *testing.T) {
	e := verbs.PreviewExample{InputIDs: []int32{7, 8, 9}, Labels: []int32{-100, 8, -100},
		Tokens: []string{"<script>", " a\n", "\xe2\x82"}}
	var b bytes.Buffer
	s := &verbs.PreviewSummary{Lengths: data.Lengths{P50: 2, P90: 4, P99: 5,
		Over: [3]data.LengthOver{{Tokens: 2048, Documents: 1}, {Tokens: 4096}, {Tokens: 8192}}}, Repeated: 1, HeldInTrain: 2,
		HeldOf: 3, Documents: 2, Tokens: 9, TargetTokens: 4, LongestDoc: 5, SkippedRows: 1, HeldOut: 3, Dropped: 1,
		CutTokens: 6, Packed: 1, Rows: 1, Efficiency: 0.5, TurnLines: []string{"4 turns <x>"}}
	if err := previewPage(&b, []verbs.PreviewExample{e}, s, &runfile.Config{Model: "a&b", SequenceLen: 8}); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{
		"<h1>a&amp;b</h1>", "<li>2 documents, 9 tokens, of which 4 count in the loss; the longest has 5</li>", "<li>1 bad row skipped</li>", "<li>4 turns &lt;x&gt;</li>",
		"<li>half of the documents have at most 2 tokens, 90% at most 4, 99% at most 5 (1 over 2048, 0 over 4096, 0 over 8192); 44.4% of the tokens count in the loss</li>",
		"<li>1 document equal to an earlier one</li>", "<li>2 of 3 held-out documents are in the training data, too: the held-out loss is lower than that of new data</li>",
		"<li>3 more documents held out for evaluation (val_size)</li>",
		"<li>1 of 2 documents longer than sequence_len (8): dropped, 6 tokens left out</li>",
		"<li>1 row of 8 positions, 50.0% of them filled</li>", "Example 1: 3 tokens, 1 count",
		`<span class="t" title="7">&lt;script&gt;</span><span class="t y" title="8">·a⏎</span><br><span class="t" title="9">` + "\uFFFD</span>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// A page with losses has those of tokens where they are known, and says what lines below them are.
func TestPreviewPageWithLosses(t *testing.T) {
	mean := 2.5
	e := verbs.PreviewExample{InputIDs: []int32{7, 8, 9}, Labels: []int32{-100, 8, 9}, Tokens: []string{"a", "b", "c"},
		Losses: verbs.TokenLosses{float32(math.NaN()), 2.25, 50}, Loss: &mean}
	var b bytes.Buffer
	if err := previewPage(&b, []verbs.PreviewExample{e}, &verbs.PreviewSummary{}, &runfile.Config{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3 tokens, 2 count, loss 2.5000", `<span class="t" title="7">a</span>`,
		`<span class="t y l l2" title="8, loss 2.250">b</span><span class="t y l l8" title="9, loss 50.000">c</span>`,
		"A line below a token"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestVisible(t *testing.T) {
	if got := strings.Map(visible, "a\x1b[31m\tb\n\u009b"); got != "a␛[31m\tb\n\uFFFD" {
		t.Errorf("%q", got)
	}
}
