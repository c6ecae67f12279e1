package checkpoint

import (
	"encoding/json"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/tensor"
)

// small is a manifest of two attachments, one of them empty, and two extents in one file.
func small() *Manifest {
	two := Spec{ID{"a", store.Low}, tensor.I16, 6, 4}
	one := Spec{ID{"b", store.Low}, tensor.I16, 2, 4}
	return &Manifest{
		Step:        3,
		Files:       []File{{"config.json", 0}, {"file", 8}, {"tokens", 5}},
		Attachments: []Attachment{{"config.json", 0}, {"tokens", 0}},
		Extents: []Extent{
			{two, []Piece{{"file", 0, 4, 0}, {"file", 6, 2, 0}}},
			{one, []Piece{{"file", 4, 2, 0}}},
		},
	}
}

// long is an extent of n bytes in pieces of 2^40, each in a file of its own that the manifest gets.
func long(m *Manifest, part string, n int64) Extent {
	e := Extent{Spec: Spec{ID{part, store.Low}, tensor.I16, n, 1 << 40}}
	for i := range e.Spec.Pieces() {
		_, bytes := e.piece(i)
		name := e.pieceName(i)
		m.Files = append(m.Files, File{name, bytes})
		e.Pieces = append(e.Pieces, Piece{File: name, Bytes: bytes})
	}
	return e
}

// Each number and line of a manifest is taken at its limit, and refused one after it.
func TestLimits(t *testing.T) {
	nan, inf, low, fine := math.NaN(), math.Inf(1), math.Inf(-1), 1.5
	id := RunID(strings.Repeat("a", 32))
	line := strings.Repeat("x", maxComputedOn)
	lines := make([]string, maxAlgorithms+1)
	for what, c := range map[string]struct {
		change func(m *Manifest)
		ok     bool
	}{
		"nothing":              {func(*Manifest) {}, true},
		"step 0":               {func(m *Manifest) { m.Step = 0 }, true},
		"step -1":              {func(m *Manifest) { m.Step = -1 }, false},
		"last step":            {func(m *Manifest) { m.Step = maxStep }, true},
		"step after it":        {func(m *Manifest) { m.Step = maxStep + 1 }, false},
		"updates -1":           {func(m *Manifest) { m.Updates = -1 }, false},
		"skipped -1":           {func(m *Manifest) { m.SkippedUpdates = -1 }, false},
		"untargeted -1":        {func(m *Manifest) { m.UntargetedSteps = -1 }, false},
		"unhealthy -1":         {func(m *Manifest) { m.UnhealthySteps = -1 }, false},
		"ids":                  {func(m *Manifest) { m.Run, m.CopiedFrom = id, []RunID{id} }, true},
		"id of 31":             {func(m *Manifest) { m.Run = id[1:] }, false},
		"id that is not hex":   {func(m *Manifest) { m.CopiedFrom = []RunID{id, "g" + id[1:]} }, false},
		"change at 0":          {func(m *Manifest) { m.History = []Change{{0, "k", "a", "b"}} }, true},
		"change at the step":   {func(m *Manifest) { m.History = []Change{{3, "k", "a", "b"}} }, true},
		"change before":        {func(m *Manifest) { m.History = []Change{{-1, "k", "a", "b"}} }, false},
		"change after":         {func(m *Manifest) { m.History = []Change{{4, "k", "a", "b"}} }, false},
		"change of two lines":  {func(m *Manifest) { m.History = []Change{{3, "k", "a", "b\n"}} }, false},
		"device":               {func(m *Manifest) { m.ComputedOn = line }, true},
		"device too long":      {func(m *Manifest) { m.ComputedOn = line + "x" }, false},
		"device of two lines":  {func(m *Manifest) { m.ComputedOn = "a\nb" }, false},
		"algorithms":           {func(m *Manifest) { m.Algorithms = lines[1:] }, true},
		"too many":             {func(m *Manifest) { m.Algorithms = lines }, false},
		"algorithm":            {func(m *Manifest) { m.Algorithms = []string{line} }, true},
		"algorithm too long":   {func(m *Manifest) { m.Algorithms = []string{line + "x"} }, false},
		"algorithm of lines":   {func(m *Manifest) { m.Algorithms = []string{"a\nb"} }, false},
		"plateau":              {func(m *Manifest) { m.Plateau = &Plateau{Lowest: &fine} }, true},
		"plateau of none":      {func(m *Manifest) { m.Plateau = &Plateau{} }, true},
		"plateau of -1":        {func(m *Manifest) { m.Plateau = &Plateau{Evaluations: -1} }, false},
		"plateau at NaN":       {func(m *Manifest) { m.Plateau = &Plateau{Lowest: &nan} }, false},
		"loss":                 {func(m *Manifest) { m.EvalLoss, m.Best = &fine, &Best{3, fine} }, true},
		"loss NaN":             {func(m *Manifest) { m.EvalLoss = &nan }, false},
		"loss infinite":        {func(m *Manifest) { m.EvalLoss = &inf }, false},
		"best -infinite":       {func(m *Manifest) { m.Best = &Best{3, low} }, false},
		"file of -1":           {func(m *Manifest) { m.Files[0].Bytes = -1 }, false},
		"long file":            {func(m *Manifest) { m.Files[2].Bytes = maxStateBytes }, true},
		"too long a file":      {func(m *Manifest) { m.Files[2].Bytes = maxStateBytes + 1 }, false},
		"file twice":           {func(m *Manifest) { m.Files = append(m.Files, m.Files[2]) }, false},
		"files out of order":   {func(m *Manifest) { m.Files[0], m.Files[1] = m.Files[1], m.Files[0] }, false},
		"the manifest":         {func(m *Manifest) { m.Files[0].Name, m.Attachments[0].File = manifestName, manifestName }, false},
		"file of no piece":     {func(m *Manifest) { m.Files = append(m.Files, File{"z", 1}) }, false},
		"attachment of none":   {func(m *Manifest) { m.Attachments[1].File = "z" }, false},
		"attachment twice":     {func(m *Manifest) { m.Attachments[1] = m.Attachments[0] }, false},
		"attachments in order": {func(m *Manifest) { m.Attachments[0], m.Attachments[1] = m.Attachments[1], m.Attachments[0] }, false},
		"extent twice":         {func(m *Manifest) { m.Extents[1].ID = m.Extents[0].ID }, false},
		"piece too many":       {func(m *Manifest) { m.Extents[1].Pieces = append(m.Extents[1].Pieces, Piece{}) }, false},
		"piece too long":       {func(m *Manifest) { m.Extents[1].Pieces[0].Bytes++ }, false},
		"piece before":         {func(m *Manifest) { m.Extents[0].Pieces[0].Offset = -1 }, false},
		"piece after":          {func(m *Manifest) { m.Extents[0].Pieces[1].Offset = 7 }, false},
		"file too short":       {func(m *Manifest) { m.Files[1].Bytes = 7 }, false},
		"pieces overlap":       {func(m *Manifest) { m.Extents[1].Pieces[0].Offset = 3 }, false},
		"pieces overlap after": {func(m *Manifest) { m.Extents[1].Pieces[0].Offset = 5 }, false},
		"all of a disk":        {func(m *Manifest) { m.Extents = append(m.Extents, long(m, "x", maxStateBytes-8)) }, true},
		"more than a disk":     {func(m *Manifest) { m.Extents = append(m.Extents, long(m, "x", maxStateBytes-6)) }, false},
	} {
		m := small()
		c.change(m)
		if err := m.check(); (err == nil) != c.ok {
			t.Errorf("%s: error %v", what, err)
		}
	}
}

// An extent has as many pieces as there are numbers for, and names that files may have.
func TestSpecLimits(t *testing.T) {
	low := func(part string, bytes, piece int64) Spec {
		return Spec{ID{part, store.Low}, tensor.I16, bytes, piece}
	}
	most := 200 - len(low("", 1, 1).pieceName(maxPieces))
	for _, c := range []struct {
		s  Spec
		ok bool
	}{
		{low("a", 4*maxPieces, 4), true}, {low("a", 4*maxPieces+1, 4), false},
		{low("a", maxStateBytes, maxStateBytes), true}, {low("a", maxStateBytes+1, maxStateBytes+1), false},
		{low("a", 1, 1), true},
		{low(strings.Repeat("a", most), 1, 1), true}, {low(strings.Repeat("a", most+1), 1, 1), false},
		{Spec{ID{"a", store.Kinds - 1}, tensor.I16, 1, 1}, true}, {Spec{ID{"a", store.Kinds}, tensor.I16, 1, 1}, false},
	} {
		if err := c.s.check(); (err == nil) != c.ok {
			t.Errorf("%v, %d bytes in pieces of %d: error %v", c.s.ID, c.s.Bytes, c.s.PieceBytes, err)
		}
	}
}

// The last piece of an extent may be as short as a byte.
func TestPieces(t *testing.T) {
	for _, c := range []struct{ bytes, piece, want int64 }{{1, 4, 1}, {4, 4, 1}, {5, 4, 2}, {8, 4, 2}, {9, 4, 3}} {
		s := Spec{Bytes: c.bytes, PieceBytes: c.piece}
		if _, last := s.piece(s.Pieces() - 1); int64(s.Pieces()) != c.want || last != c.bytes-4*(c.want-1) {
			t.Errorf("%d bytes are %d pieces, the last of %d", c.bytes, s.Pieces(), last)
		}
	}
	if m := small(); m.length("tokens") != 5 || m.length("file") != 8 || m.length("nowhere") != 0 {
		t.Error("files have other lengths")
	}
}

// Names from damaged files are cut short, and no others.
func TestQuote(t *testing.T) {
	name := strings.Repeat("a", 100)
	for in, want := range map[string]string{name: `"` + name + `"`, name + "b": `"` + name + `"... (101 bytes)`} {
		if got := quote(in); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A manifest that is made of empty values is refused before they are in memory; the densest that a run writes is read.
func TestManyValues(t *testing.T) {
	const n = 1 << 20
	for what, body := range map[string]string{
		"files":       `{"files":[` + strings.Repeat("{},", n) + `{}]}`,
		"pieces":      `{"extents":[{"pieces":[` + strings.Repeat("{},", n) + `{}]}]}`,
		"algorithms":  `{"algorithms":[` + strings.Repeat(`"",`, n) + `""]}`,
		"copied from": `{"copied_from":[` + strings.Repeat(`"",`, n) + `""]}`,
		"settings":    `{"mathematics":{` + strings.Repeat(`"aaaa":"",`, n) + `"":""}}`,
		"numbers":     `{"data":[` + strings.Repeat("1,", n) + `1]}`,
	} {
		doc := seal([]byte(body))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decode(doc)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "values") {
			t.Errorf("%s: error %v", what, err)
		}
		if made := after.TotalAlloc - before.TotalAlloc; made > 1<<20 {
			t.Errorf("%s: %d bytes for a manifest of %d", what, made, len(doc))
		}
	}
	m := small()
	m.Numerics, m.Data = json.RawMessage("{}"), json.RawMessage("{}")
	e := Extent{Spec: Spec{ID{"p", store.Low}, tensor.I16, 1 << 17, 1}}
	m.Files = append(m.Files[:2:2], File{"p", 1 << 17}, m.Files[2])
	for i := range e.Spec.Pieces() {
		e.Pieces = append(e.Pieces, Piece{File: "p", Offset: int64(i), Bytes: 1})
	}
	m.Extents = append(m.Extents, e)
	doc, err := m.encode()
	if err == nil {
		_, err = decode(doc)
	}
	if err != nil {
		t.Error(err)
	}
}
