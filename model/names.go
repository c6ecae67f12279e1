package model

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/tensor"
)

// Names are the table of a family: each tensor of a decoder by its role in package nn, and what files call it. It is
// read in both directions. Its order is the one in which transformers numbers a layer's parameters, and so that of
// exported files.
//
// A name may have {layer}, {part} and {expert} in it, for the numbers of a block, of a part of its feed-forward, and of
// an expert, counted in the block. An asterisk
// ends a role and stands for "weight" or "bias", there and in the names. Roles of the tensors of parts begin with
// "part.", those of experts with "expert.". Roles that share a name make up one tensor: their rows follow each other in
// the order of the table, and those of parts in the order of parts.
type Names []Name

// Name is a line of the table.
type Name struct {
	Role string // "q.*"
	HF   string // in checkpoints of transformers
	GGUF string // in GGUF files; "": they have no such tensor
	// EachHF is the name of each expert's own tensor in checkpoints that do not stack them; "": all do.
	EachHF string
	// CutHF and CutGGUF say how each of them holds the role.
	CutHF, CutGGUF Cut
	NumbersGGUF    Numbers // that GGUF files hold of it
}

// Cut says how a tensor of a file holds the matrices of its roles, [rows, columns] each. It is a set.
type Cut uint16

// The cuts. Rows alone are in order.
const (
	Rows Cut = 0
	// Interleaved: the rows of two halves alternate. The halves are those of each head, as where a rotation takes
	// neighbours for a pair; or they are the two roles that share the tensor, such as gate and up.
	Interleaved Cut = 1 << iota
	// Transposed: [columns, rows].
	Transposed
	// Stacked: [parts, rows, columns] for the parts or the experts of a feed-forward.
	Stacked
	// PartlyRotated: the rows of each head are in the order in which transformers rotates a part of them. Where all of
	// a head is rotated, this is Rows. See nn.RopeFrequencies. With Interleaved, the halves of that part alternate.
	PartlyRotated
	// ByHead: of the roles that share the tensor, the first has its first head there, then the second role, and so on.
	// In a gated delta net a turn has a key head, and the heads that it serves.
	ByHead
	// PerHead: [heads, rows of a head, columns], or with Transposed [heads, columns, rows of a head].
	PerHead
	// Filters: [rows, 1, columns], as convolutions of each column by itself have it.
	Filters
	// Tiled: the rows of the value heads of a gated delta net, which are the last ones, take turns of another kind: the
	// first head of each key head, then the second of each, and so on. TiledColumns: the same of columns.
	Tiled
	TiledColumns
)

// Under is the table with "model." replaced in the names of checkpoints.
func (n Names) Under(prefix string) Names {
	n = slices.Clone(n)
	for i := range n {
		if rest, ok := strings.CutPrefix(n[i].HF, "model."); ok {
			n[i].HF = prefix + rest
			if n[i].EachHF != "" {
				n[i].EachHF = prefix + strings.TrimPrefix(n[i].EachHF, "model.")
			}
		}
	}
	return n
}

// Renamed is the table with other lines for some of its roles.
func (n Names) Renamed(lines Names) Names {
	n = slices.Clone(n)
	for _, line := range lines {
		i := slices.IndexFunc(n, func(l Name) bool { return l.Role == line.Role })
		n[i] = line
	}
	return n
}

// Before is the table with further lines before that of a role.
func (n Names) Before(role string, lines Names) Names {
	i := slices.IndexFunc(n, func(l Name) bool { return l.Role == role })
	return slices.Insert(slices.Clone(n), i, lines...)
}

// Without is the table without some roles.
func (n Names) Without(roles ...string) Names {
	return slices.DeleteFunc(slices.Clone(n), func(l Name) bool { return slices.Contains(roles, l.Role) })
}

// Recut is the table with another cut of some roles in GGUF files.
func (n Names) Recut(gguf Cut, roles ...string) Names {
	n = slices.Clone(n)
	for i := range n {
		if slices.Contains(roles, n[i].Role) {
			n[i].CutGGUF = gguf
		}
	}
	return n
}

// HeldAs is the table with other numbers of some roles in GGUF files.
func (n Names) HeldAs(gguf Numbers, roles ...string) Names {
	n = slices.Clone(n)
	for i := range n {
		if slices.Contains(roles, n[i].Role) {
			n[i].NumbersGGUF = gguf
		}
	}
	return n
}

// RecutHF is the table with another cut of some roles in checkpoints.
func (n Names) RecutHF(cut Cut, roles ...string) Names {
	n = slices.Clone(n)
	for i := range n {
		if slices.Contains(roles, n[i].Role) {
			n[i].CutHF = cut
		}
	}
	return n
}

// find returns the number of a role's line, and the word that the asterisk stands for.
func (n Names) find(role string) (line int, word string, ok bool) {
	for i, name := range n {
		stem, many := strings.CutSuffix(name.Role, "*")
		rest, ok := strings.CutPrefix(role, stem)
		if ok && (rest == "" || many && (rest == "weight" || rest == "bias")) {
			return i, rest, true
		}
	}
	return 0, "", false
}

// Form lists the tensors that files of one kind hold of a model.
type Form struct {
	Tensors   []Tensor   // in the order of files
	Constants []Tensor   // those of blocks, in their order (see nn.Block.Constants), without pieces
	sources   [][]Source // by part
}

// share is a field on its way into a tensor.
type share struct {
	name       string
	part       int
	expert     int
	field      int
	line       int // of the table
	row        int // of the field, its first one
	rows, cols int
	isVector   bool
	head       int // rows of a head
	rotated    int // of these, or of part of them
	delta      nn.GatedDelta
	cut        Cut
	numbers    Numbers
}

// held tells how files store a line of the table.
type held struct {
	name    string
	cut     Cut
	numbers Numbers
}

// form finds the tensors of files that have these names and cuts, and that name for the constants of a block.
func (m *Model) form(constants string, of func(Name) held) (*Form, error) {
	var order []string
	shares := map[string][]share{}
	for i := range m.Parts {
		p := &m.Parts[i]
		var all []share
		for j, f := range p.Layout.Fields {
			if f.Name == nn.ValueRow {
				continue // which is in no file
			}
			role, expert := m.role(p, f.Name)
			line, word, ok := m.names.find(role)
			if !ok {
				return nil, fmt.Errorf("the table of %s has no line for the tensor %q", m.Type, role)
			}
			files := of(m.names[line])
			if files.name == "" {
				return nil, fmt.Errorf("no name is known for the tensor %q of %s", role, m.Type)
			}
			name := strings.NewReplacer("{layer}", strconv.Itoa(m.inChain(p.Layer)), "{part}", strconv.Itoa(p.Group-1),
				"{expert}", strconv.Itoa(expert), "*", word).Replace(files.name)
			s := share{name: name, part: i, expert: expert, field: j, line: line, rows: f.Shape[0], cols: 1,
				isVector: len(f.Shape) == 1, head: f.Shape[0], cut: files.cut, numbers: files.numbers}
			if !s.isVector {
				s.cols = f.Shape[1]
			}
			if p.Kind == Block {
				switch x := m.Blocks[p.Layer-1].Mixer.(type) {
				case nn.Attention:
					s.head, s.rotated = x.HeadDim, x.Rope.Rotated
				case nn.GatedDelta:
					s.head, s.delta = s.rows/x.KeyHeads, x
				case nn.LatentAttention:
					s.head = cmp.Or(x.HeadRows(f.Name), s.rows)
				}
			}
			all = append(all, s)
		}
		// Stable: in the layout and in transformers, a weight stands before its bias.
		slices.SortStableFunc(all, func(a, b share) int {
			return cmp.Or(cmp.Compare(a.expert, b.expert), cmp.Compare(a.line, b.line))
		})
		for _, s := range all {
			if shares[s.name] == nil {
				order = append(order, s.name)
			}
			shares[s.name] = append(shares[s.name], s)
		}
	}
	form := &Form{sources: make([][]Source, len(m.Parts))}
	for i, b := range m.Blocks {
		n := b.Constants()
		if n > 0 && constants == "" {
			return nil, fmt.Errorf("layer %d has constants, and %s has no name for them", i, m.Type)
		}
		if n > 0 {
			name := strings.ReplaceAll(constants, "{layer}", strconv.Itoa(m.inChain(1+i)))
			form.Constants = append(form.Constants, Tensor{Name: name, Shape: tensor.Shape{n}})
		}
	}
	for _, name := range order {
		t, err := assemble(name, shares[name])
		if err != nil {
			return nil, err
		}
		form.Tensors = append(form.Tensors, t)
		for _, p := range t.Pieces {
			form.sources[p.Part] = append(form.sources[p.Part], Source{t.Name, t.Shape, p})
		}
	}
	for _, s := range form.sources {
		slices.SortStableFunc(s, func(a, b Source) int { return cmp.Compare(a.Field, b.Field) })
	}
	return form, nil
}

// role is the name of a field of a part in the table, and the number of its expert in the block.
func (m *Model) role(p *Part, field string) (role string, expert int) {
	layer := p.Layer
	if p.Kind == ChainEmbed {
		layer = m.LookupOf(p.Index).Layer
	}
	prefix := m.prefix(layer)
	if in, name, ok := nn.ExpertField(field); ok && p.Group > 0 {
		return prefix + "expert." + name, p.FirstExpert + in
	}
	switch {
	case p.Group > 0:
		return prefix + "part." + field, 0
	case p.Kind == Block:
		return prefix + field, 0
	}
	return prefix + map[PartKind]string{Embed: "embed_tokens.", Norm: "norm.", HeadTile: "lm_head.",
		LayerEmbed: "embed_tokens_per_layer.", ChainEmbed: "embed_tokens."}[p.Kind] + field, 0
}

// run is some rows of a share's head, each that many after the one before.
type run struct{ from, rows, step int }

// runs are the rows of a head in the order of the share, by their place in the file. A share whose rows are in the
// file's order is a run of all of them.
func (s share) runs(alone bool) []run {
	rotated, step := s.head, 1
	if s.cut&PartlyRotated != 0 && 0 < s.rotated && s.rotated < s.head {
		rotated = s.rotated
	}
	second := rotated / 2
	if s.cut&Interleaved != 0 && alone {
		step, second = 2, 1
	}
	rest := (s.head - rotated) / 2
	switch {
	case rest == 0 && step == 1 && s.cut&ByHead != 0:
		return []run{{0, s.head, 1}}
	case rest == 0 && step == 1:
		return []run{{0, s.rows, 1}}
	case rest == 0:
		return []run{{0, rotated / 2, step}, {second, rotated / 2, step}}
	}
	return []run{{0, rotated / 2, step}, {rotated, rest, 1}, {second, rotated / 2, step}, {rotated + rest, rest, 1}}
}

// pieces finds where a sheet of rows has the share with that number, of several, which begins after at rows.
func (s share) pieces(number, shares, at, rows int) (all []Piece, err error) {
	p := Piece{Part: s.part, Field: s.field, Cols: s.cols, Numbers: s.numbers}
	if s.cut&Interleaved != 0 && shares > 1 && s.cut&ByHead == 0 { // the rows of shares alternate
		if shares != 2 {
			return nil, fmt.Errorf("%d shares are no halves", shares)
		}
		p.Rows, p.At, p.RowStep = s.rows, int64(number), shares
		return []Piece{p}, nil
	}
	switch {
	case s.cut&Tiled != 0:
		return s.tiles(at, s.rows), nil
	case s.cut&TiledColumns != 0:
		return s.tiles(0, s.cols), nil
	}
	runs := s.runs(shares == 1 || s.cut&ByHead != 0)
	height := 0 // of the runs
	for _, r := range runs {
		height += r.rows
	}
	if height == 0 || s.rows%height != 0 {
		return nil, fmt.Errorf("%d rows are not heads of %d, of which %d are rotated", s.rows, s.head, s.rotated)
	}
	for first := 0; first < s.rows; first += height {
		place := at + first
		if s.cut&ByHead != 0 {
			turns := s.rows / height
			place = first/height*(rows/turns) + at/turns
		}
		p.Row = s.row + first
		for _, r := range runs {
			p.Rows, p.At, p.RowStep = r.rows, int64(place+r.from), r.step
			all = append(all, p)
			p.Row += r.rows
		}
	}
	return all, nil
}

// tiles are the pieces of n rows, of which value heads are the last ones, or of n columns, in the order of Tiled. at is
// where the first one is. In pieces of columns it and At are in columns. Where there are fewer than values of heads,
// each head has one.
func (s share) tiles(at, n int) (all []Piece) {
	d, columns := s.delta, s.cut&TiledColumns != 0
	width := 1 // of a head
	if n >= d.Heads*d.ValueDim {
		width = d.ValueDim
	}
	add := func(first, place, n, step int) {
		p := Piece{Part: s.part, Field: s.field, Cols: s.cols, Numbers: s.numbers, At: int64(at + place)}
		if columns {
			p.Rows, p.Col, p.Cols, p.Width, p.RowStep = s.rows, first, n, s.cols, 1
		} else {
			p.Row, p.Rows, p.RowStep = first, n, step
		}
		all = append(all, p)
	}
	before, each := n-d.Heads*width, d.Heads/d.KeyHeads
	switch {
	case each == 1:
		add(0, 0, n, 1)
		return all
	case before > 0:
		add(0, 0, before, 1)
	}
	for key := range d.KeyHeads {
		if width == 1 && !columns {
			add(before+key*each, before+key, each, d.KeyHeads)
			continue
		}
		for i := range each {
			add(before+(key*each+i)*width, before+(i*d.KeyHeads+key)*width, width, 1)
		}
	}
	return all
}

// sheet identifies the matrix that a share is of, in a tensor that has several: shares of one matrix have the same.
func (s share) sheet() (place [3]int) {
	switch {
	case s.cut&Stacked != 0:
		place[0], place[1] = s.part, s.expert
	case s.cut&PerHead != 0:
		place[2] = s.row
	}
	return place
}

// byHead are shares of one head each.
func (s share) byHead() (all []share) {
	for row := 0; row < s.rows; row += s.head {
		one := s
		one.row, one.rows = row, s.head
		all = append(all, one)
	}
	return all
}

// assemble finds where a tensor has each of its shares.
func assemble(name string, all []share) (Tensor, error) {
	t := Tensor{Name: name}
	if s := all[0]; s.cut&PerHead != 0 {
		if len(all) > 1 || s.rows%s.head != 0 {
			return t, fmt.Errorf("tensor %s: %d shares are no heads of %d rows", name, len(all), s.head)
		}
		all = s.byHead()
	}
	first, sheets := all[0], [][]share{nil}
	for i, s := range all {
		if i > 0 && s.sheet() != all[i-1].sheet() {
			sheets = append(sheets, nil)
		}
		last := len(sheets) - 1
		sheets[last] = append(sheets[last], s)
	}
	rows := 0
	for _, s := range sheets[0] {
		rows += s.rows
	}
	rowStep, colStep := first.cols, 1
	if first.cut&Transposed != 0 {
		rowStep, colStep = 1, rows
	}
	const whole = Stacked | PerHead | Transposed | ByHead | Filters | TiledColumns
	for i, sheet := range sheets {
		at := 0
		for j, s := range sheet {
			if s.cols != first.cols || s.cut&whole != first.cut&whole || s.isVector != first.isVector ||
				s.cut&ByHead != 0 && s.rows*first.head != first.rows*s.head { // as many turns
				return t, fmt.Errorf("tensor %s has shares of different forms", name)
			}
			pieces, err := s.pieces(j, len(sheet), at, rows)
			if err != nil {
				return t, fmt.Errorf("tensor %s: %w", name, err)
			}
			step := rowStep // of p.At, which is in rows so far, or in columns
			if s.cut&TiledColumns != 0 {
				step = colStep
			}
			for _, p := range pieces {
				p.At = int64(i*rows)*int64(first.cols) + p.At*int64(step)
				p.RowStep, p.ColStep = p.RowStep*rowStep, colStep
				t.Pieces = append(t.Pieces, p)
			}
			at += s.rows
		}
		if at != rows {
			return t, fmt.Errorf("tensor %s: parts have %d and %d rows", name, rows, at)
		}
	}
	t.Shape = tensor.Shape{rows, first.cols}
	if first.cut&Transposed != 0 {
		t.Shape = tensor.Shape{first.cols, rows}
	}
	if first.cut&Filters != 0 {
		t.Shape = tensor.Shape{rows, 1, first.cols}
	}
	if first.isVector {
		t.Shape = tensor.Shape{rows}
	}
	if first.cut&(Stacked|PerHead) != 0 {
		t.Shape = append(tensor.Shape{len(sheets)}, t.Shape...)
	}
	return t, nil
}
